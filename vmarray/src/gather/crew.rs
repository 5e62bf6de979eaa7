//! Threads for the length of one call, and the order that they keep.

use std::num::NonZero;
use std::thread;

use parking_lot::{Condvar, Mutex};

use crate::guards;

/// Less work than this, in bytes, is not worth a thread.
const BYTES_PER_WORKER: usize = 2 << 20;

/// How many threads share work of so many bytes, and at most `most`.
///
/// A thread that holds guards works alone: others could not know that they must not wait for those.
pub(super) fn workers(bytes: usize, most: usize) -> usize {
    if guards::held() {
        return 1;
    }
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    (bytes / BYTES_PER_WORKER).min(cores).min(most).max(1)
}

/// Runs `work` on so many threads, of which the calling one is the first. Fewer do if the system gives no more.
pub(super) fn together(workers: usize, work: impl Fn() + Sync) {
    if workers == 1 {
        return work();
    }
    thread::scope(|scope| {
        for _ in 1..workers {
            if thread::Builder::new().spawn_scoped(scope, &work).is_err() {
                break;
            }
        }
        work();
    });
}

/// Lets threads pass by number: 0, 1, 2, …
#[derive(Debug, Default)]
pub(super) struct Turnstile {
    next: Mutex<usize>,
    passed: Condvar,
}

/// A thread's turn. The next one's comes when it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Turnstile);

impl Turnstile {
    /// Waits for the turn of a number. Each number has to be asked for once.
    pub(super) fn wait(&self, number: usize) -> Turn<'_> {
        let mut next = self.next.lock();
        self.passed.wait_while(&mut next, |next| *next != number);
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.next.lock() += 1;
        self.0.passed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn turns_come_in_order() {
        let (turnstile, next, seen) = (Turnstile::default(), AtomicUsize::new(0), Mutex::new(Vec::new()));
        together(4, || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= 100 {
                    break;
                }
                let _turn = turnstile.wait(number);
                seen.lock().push(number);
            }
        });
        assert_eq!(*seen.lock(), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn little_work_is_done_alone() {
        assert_eq!(workers(BYTES_PER_WORKER, 100), 1);
        assert_eq!(workers(usize::MAX, 1), 1);
    }
}
