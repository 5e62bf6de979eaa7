//! Wakers run when the mirror's lock is not held, whichever device runs them, and in whatever call.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use parking_lot::Mutex;

use super::Core;
use crate::Ticket;
use crate::backends::wake_all;

thread_local! {
    /// In how many calls of mirrors the thread is.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
    static DUE: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// A call of a mirror: wakers that devices run meanwhile on this thread wait for its end.
pub(super) struct Call(());

impl Call {
    pub(super) fn begin() -> Self {
        INSIDE.set(INSIDE.get() + 1);
        Self(())
    }
}

impl Drop for Call {
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

/// What a device is given for a waker of the program: it asks the mirror, which may have to wait for another
/// device then.
pub(super) struct Chain {
    core: Weak<Core>,
    ticket: Ticket,
    waker: Mutex<Option<Waker>>,
}

impl Chain {
    pub(super) fn waker(core: &Arc<Core>, ticket: Ticket, waker: Waker) -> Waker {
        Arc::new(Self { core: Arc::downgrade(core), ticket, waker: Mutex::new(Some(waker)) }).into()
    }
}

impl Wake for Chain {
    fn wake(self: Arc<Self>) {
        if INSIDE.get() > 0 {
            DUE.with_borrow_mut(|due| due.push(self.into()));
            return;
        }
        let Some(waker) = self.waker.lock().take() else { return };
        match self.core.upgrade() {
            Some(core) => core.wake(self.ticket, waker),
            None => waker.wake(),
        }
    }
}
