//! Retries of queries that an OpenCL driver refuses.
//!
//! A driver may refuse a query about work in flight because of an unrelated shortage of memory. The backend
//! then repeats the query. After refusals for ten seconds it treats the driver as dead, and never releases
//! memory that the driver may still use.

use std::any::Any;
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::driver::objects::Status;
use crate::error::{Severity, severity};

/// The time for which a driver may refuse to report if work is over.
pub(crate) const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 10_000 });
/// The time for which a driver may fail a trivial command before its device counts as lost.
pub(crate) const DOUBT: Duration = Duration::from_millis(100);
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// Repeats a query until it succeeds, the driver reports the loss of the device, or `time` has passed.
pub(crate) fn insist<T>(time: Duration, mut ask: impl FnMut() -> Status<T>) -> Status<T> {
    let mut start = None;
    loop {
        let answer = ask();
        match answer {
            Err(status) if severity(status) != Severity::Lost => {
                if start.get_or_insert_with(Instant::now).elapsed() >= time {
                    return answer;
                }
                sleep(PAUSE);
            }
            _ => return answer,
        }
    }
}

/// Objects that a driver may still use. This list keeps them reachable, so leak checkers do not report them.
static KEPT: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// The number of objects that were kept for ever.
#[cfg(test)]
pub(crate) fn kept() -> usize {
    KEPT.lock().len()
}

/// Keeps an object until the process ends.
pub(crate) fn keep_for_good(thing: impl Send + 'static) {
    KEPT.lock().push(Box::new(thing));
}
