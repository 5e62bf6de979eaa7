//! Which page guards the calling thread holds, so that it never waits for something that might wait for it.
//!
//! The rule is that of ordered locks: a thread that holds guards may block on a guarded page only if that page's entry
//! comes after all that it holds. Guards cannot be sent to other threads, so the list is complete.

use std::cell::RefCell;

use crate::page::Entry;

thread_local! {
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

fn with<R>(run: impl FnOnce(&mut Vec<usize>) -> R) -> Option<R> {
    HELD.try_with(|held| run(&mut held.borrow_mut())).ok()
}

/// Notes that the thread now holds a guard of this page.
pub(crate) fn push(entry: &Entry) {
    with(|held| held.push(std::ptr::from_ref(entry).addr()));
}

/// Notes that a guard has gone.
pub(crate) fn pop(entry: &Entry) {
    let address = std::ptr::from_ref(entry).addr();
    with(|held| {
        if let Some(at) = held.iter().rposition(|&known| known == address) {
            held.swap_remove(at);
        }
    });
}

/// Whether the thread holds any guard, of whichever array.
pub(crate) fn held() -> bool {
    with(|held| !held.is_empty()).unwrap_or(false)
}

/// Whether the thread may wait until others let go of their guards of this page.
pub(crate) fn may_wait_for(entry: &Entry) -> bool {
    let address = std::ptr::from_ref(entry).addr();
    with(|held| held.iter().all(|&known| known < address)).unwrap_or(true)
}
