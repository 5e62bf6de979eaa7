//! Execution of requests on the processor: copies and kernels, for any type of device memory.

pub(crate) mod compute;
pub(crate) mod copy;
pub(crate) mod fill;
pub(crate) mod indexed;
pub(crate) mod launch;
mod marked;
mod matcher;
mod search;
mod waves;

use backend_api::{Error, Result};
use parking_lot::Mutex;

use crate::worker::Crew;

/// Bytes that one thread processes before it takes the next part: long compared with taking a part, short
/// enough for an even distribution.
const PART_BYTES: usize = 512 << 10;

/// Runs parts of a request that may fail. Returns the error of the lowest failed part, and starts no further
/// parts after a failure.
fn each_part(crew: Crew<'_>, parts: usize, body: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
    if parts <= 1 || crew.width() == 1 {
        return (0..parts).try_for_each(body);
    }
    let failure: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    crew.each(parts, &|part| {
        if failure.lock().is_some() {
            return;
        }
        if let Err(error) = body(part) {
            let mut failure = failure.lock();
            if failure.as_ref().is_none_or(|(other, _)| part < *other) {
                *failure = Some((part, error));
            }
        }
    });
    failure.into_inner().map_or(Ok(()), |(_, error)| Err(error))
}
