//! Work shared out to threads that live as long as it takes.

use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};

use crate::base::error::Result;
use crate::engine::guards;

/// How many threads suit the machine.
pub(super) fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `work` on all items. Up to `threads` threads, the calling one among them, each with scratch memory of
/// its own, take one item at a time, in order. After an error, which is returned, no more items are taken.
///
/// Threads that the system refuses to start are done without. A thread that holds guards works alone: others
/// could not know that they must not wait for those. A panic of `work` is passed on.
pub(super) fn for_each<I, S>(
    threads: usize,
    items: impl IntoIterator<Item = I, IntoIter: Send>,
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, I) -> Result<()> + Sync,
) -> Result<()> {
    let items = items.into_iter();
    let most = items.size_hint().1.unwrap_or(usize::MAX);
    let helpers = if guards::held() { 0 } else { threads.min(most).saturating_sub(1) };
    let items = Mutex::new(items);
    let take = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        let mut scratch = scratch();
        while let Some(item) = take() {
            if let Err(error) = work(&mut scratch, item) {
                while take().is_some() {}
                return Err(error);
            }
        }
        Ok(())
    };
    scope(|scope| {
        let started: Vec<_> =
            (0..helpers).map_while(|_| Builder::new().spawn_scoped(scope, run).ok()).collect();
        let mut result = run();
        for thread in started {
            match thread.join() {
                Ok(other) => result = result.and(other),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::base::error::ErrorKind;

    #[test]
    fn every_item_is_worked_on_once() {
        for threads in [0, 1, 3] {
            let mut seen = vec![0; 1000];
            for_each(
                threads,
                seen.iter_mut(),
                || (),
                |(), item| {
                    *item += 1;
                    Ok(())
                },
            )
            .unwrap();
            assert_eq!(seen, [1; 1000]);
        }
    }

    #[test]
    fn an_error_ends_the_work() {
        let done = AtomicUsize::new(0);
        let error = for_each(
            1,
            0..1000,
            || (),
            |(), item: usize| {
                done.fetch_add(1, Ordering::Relaxed);
                if item == 7 { Err(ErrorKind::NoDevices.into()) } else { Ok(()) }
            },
        );
        assert_eq!(*error.unwrap_err().kind(), ErrorKind::NoDevices);
        assert_eq!(done.into_inner(), 8);
    }
}
