//! Parallel `for_each`: scoped threads take the items of a list one after another.

use parking_lot::Mutex;

use crate::error::Result;
use crate::scoped_threads;

/// Runs `work` on all items, on up to `threads` threads, including the calling one. Each thread takes one
/// item at a time, in order. After an error the threads take no more items, and the call returns the error.
///
/// If the system cannot start a thread, the other threads process all items. A thread that holds guards works
/// [alone](scoped_threads::works_alone). A panic of `work` continues in the calling thread.
pub fn for_each<I>(
    threads: usize,
    items: impl IntoIterator<Item = I, IntoIter: Send>,
    work: impl Fn(I) -> Result<()> + Sync,
) -> Result<()> {
    for_each_with(threads, items, || (), |(), item| work(item))
}

/// Runs `work` on all items as [`for_each`] does. Each thread has its own result of `scratch_of`.
pub fn for_each_with<I, S>(
    threads: usize,
    items: impl IntoIterator<Item = I, IntoIter: Send>,
    scratch_of: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, I) -> Result<()> + Sync,
) -> Result<()> {
    let items = items.into_iter();
    let most = items.size_hint().1.unwrap_or(usize::MAX);
    let threads = threads.min(most);
    let (items, result) = (Mutex::new(items), Mutex::new(Ok(())));
    scoped_threads::together(threads, || {
        let take = || items.lock().next();
        let mut scratch = None;
        while let Some(item) = take() {
            if let Err(error) = work(scratch.get_or_insert_with(&scratch_of), item) {
                while take().is_some() {}
                let mut result = result.lock();
                *result = std::mem::replace(&mut *result, Ok(())).and(Err(error));
            }
        }
    });
    result.into_inner()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn every_item_is_worked_on_once() {
        for threads in [0, 1, 3] {
            let mut seen = vec![0; 1000];
            let add = |item: &mut i32| {
                *item += 1;
                Ok(())
            };
            for_each(threads, seen.iter_mut(), add).unwrap();
            assert_eq!(seen, [1; 1000]);
        }
    }

    #[test]
    fn an_error_ends_the_work() {
        let done = AtomicUsize::new(0);
        let error = for_each(1, 0..1000, |item| {
            done.fetch_add(1, Ordering::Relaxed);
            if item == 7 { Err(ErrorKind::NoDevices.into()) } else { Ok(()) }
        });
        assert_eq!(*error.unwrap_err().kind(), ErrorKind::NoDevices);
        assert_eq!(done.into_inner(), 8);
    }
}
