//! What to do with a driver that does not answer.
//!
//! A question about work in flight may be refused for a shortage that has nothing to do with that work. It is
//! asked again then. A driver that refuses for long tells nothing any more, and what it may still use is
//! never given back.

use std::any::Any;
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::driver::objects::Status;
use crate::error::{Severity, severity};

/// How long a driver may refuse to say whether work is over.
pub(crate) const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 10_000 });
/// How long one may fail to do what is trivial before its device counts as lost.
pub(crate) const DOUBT: Duration = Duration::from_millis(100);
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// Asks until there is an answer, the driver says that the device is gone, or its time is up. Blocks.
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

/// Things of which nobody knows whether a driver still uses them. In a place where they are found, so that
/// they are no leak.
static KEPT: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// How many things are kept.
#[cfg(test)]
pub(crate) fn kept() -> usize {
    KEPT.lock().len()
}

/// Keeps something as long as the process lives.
pub(crate) fn keep_for_good(thing: impl Send + 'static) {
    KEPT.lock().push(Box::new(thing));
}
