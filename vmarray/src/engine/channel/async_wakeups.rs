//! The waker that a device calls when it completes work for tasks. The waker makes progress for all tasks of
//! its channel (share of a device).
//!
//! So no task must be polled, and the library needs no thread of its own: the device's completion thread
//! finishes the submission's pages and submits the next one.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Wake, Waker};

use parking_lot::{Condvar, Mutex};

use super::Channel;
use crate::engine::combiner::ENDED;
use crate::engine::page::{DeferredWakes, LockScope, PageTable};

thread_local! {
    /// Number of drivers whose code the thread is running.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// The waker of a channel, which devices call. It references channel and page table while their array lives.
#[derive(Debug)]
pub(crate) struct WakeupDriver {
    state: Mutex<DriverState>,
    left: Condvar,
}

#[derive(Debug)]
struct DriverState {
    /// `None` once the array is being dropped.
    driven: Option<(Arc<Channel>, Arc<PageTable>)>,
    /// Number of threads that are running the driver.
    inside: usize,
}

impl WakeupDriver {
    pub(crate) fn new(channel: &Arc<Channel>, table: &Arc<PageTable>) -> Arc<Self> {
        let driven = Some((Arc::clone(channel), Arc::clone(table)));
        let driver =
            Arc::new(Self { state: Mutex::new(DriverState { driven, inside: 0 }), left: Condvar::new() });
        let _ = channel.tasks.driver.set(Waker::from(Arc::clone(&driver)));
        driver
    }

    /// Releases the channel and waits until no thread runs the driver, because the calling thread drops the
    /// array and frees its memory. Does not wait for a driver that the calling thread is itself running.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        let driven = state.driven.take();
        while state.inside > 0 && INSIDE.get() == 0 {
            self.left.wait(&mut state);
        }
        drop(state);
        drop(driven);
    }
}

impl Wake for WakeupDriver {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A device may call this waker while this thread submits work under locks. Defer such a call.
        if LockScope::postpone(|| Waker::from(Arc::clone(self))) {
            return;
        }
        // Defer the wakers of tasks until this thread has left `drive`, because they are program code.
        let _deferral = DeferredWakes::begin();
        let mut state = self.state.lock();
        let Some((channel, table)) = state.driven.clone() else { return };
        state.inside += 1;
        drop(state);
        INSIDE.set(INSIDE.get() + 1);
        // The drop of `_visit` counts this thread out again, even if a device panics.
        let _visit = DriverVisit(self);
        channel.drive(&table, ENDED);
        drop((channel, table));
    }
}

/// A thread's run of a driver, which its drop ends.
struct DriverVisit<'a>(&'a WakeupDriver);

impl Drop for DriverVisit<'_> {
    fn drop(&mut self) {
        INSIDE.set(INSIDE.get() - 1);
        self.0.state.lock().inside -= 1;
        self.0.left.notify_all();
    }
}
