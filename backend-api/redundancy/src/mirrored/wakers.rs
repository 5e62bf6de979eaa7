//! Deferred wake-ups: wakers run after the thread has released all locks of the mirror, which wakers may
//! need.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use vmarray_support::backends::wake_all;

thread_local! {
    /// The number of nested calls of mirrors in this thread.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
    static DUE: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// A guard of a call of a mirror: wakers that devices call in this thread run when the guard is dropped.
pub(super) struct DeferringCall(());

impl DeferringCall {
    pub(super) fn begin() -> Self {
        INSIDE.set(INSIDE.get() + 1);
        Self(())
    }
}

impl Drop for DeferringCall {
    fn drop(&mut self) {
        INSIDE.set(INSIDE.get() - 1);
        while INSIDE.get() == 0 {
            let due = DUE.take();
            if due.is_empty() {
                return;
            }
            wake_all(due);
        }
    }
}

/// Defers the waker to the end of the thread's call of a mirror; returns `false` if there is no such call.
pub(super) fn is_deferred(waker: impl FnOnce() -> Waker) -> bool {
    let is_inside = INSIDE.get() > 0;
    if is_inside {
        DUE.with_borrow_mut(|due| due.push(waker()));
    }
    is_inside
}
