//! Deferred wake-ups: wakers run when the thread holds no lock of a combined device.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use parking_lot::Mutex;

use backend_api::Ticket;
use vmarray_support::backends::wake_all;

thread_local! {
    /// The nesting depth of calls of combined devices in this thread.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
    static DUE: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// A call of a combined device: wakers that devices run meanwhile in this thread are deferred to its end.
pub(crate) struct DeferringCall(());

impl DeferringCall {
    pub(crate) fn begin() -> Self {
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

/// An object with tickets whose work may move between devices.
pub(crate) trait Woken: Send + Sync + 'static {
    /// Wakes a waker when a ticket is over.
    fn wake(self: &Arc<Self>, ticket: Ticket, waker: Waker);
}

/// A waker that wraps a waker of the program. It checks the ticket, which may have to wait for another
/// device then.
pub(crate) struct Chain<C> {
    core: Weak<C>,
    ticket: Ticket,
    waker: Mutex<Option<Waker>>,
}

impl<C: Woken> Chain<C> {
    pub(crate) fn waker(core: &Arc<C>, ticket: Ticket, waker: Waker) -> Waker {
        Arc::new(Self { core: Arc::downgrade(core), ticket, waker: Mutex::new(Some(waker)) }).into()
    }
}

impl<C: Woken> Wake for Chain<C> {
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
