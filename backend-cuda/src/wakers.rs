//! State of the thread that runs wakers of a CUDA device: see [`watcher`](crate::watcher).

use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use vmarray_support::backends::wake_all;

use crate::queue::CudaQueue;

/// The state that the watcher thread shares with the device.
#[derive(Debug, Default)]
pub(crate) struct CompletionThread {
    pub(crate) state: Mutex<WatchState>,
    pub(crate) changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct WatchState {
    /// Queues with waiters that the watcher has not polled yet.
    pub(crate) added: Vec<Arc<CudaQueue>>,
    pub(crate) thread: Option<JoinHandle<()>>,
    pub(crate) stopped: bool,
    /// True while the thread runs wakers.
    is_waking: bool,
    pub(crate) has_ended: bool,
}

impl CompletionThread {
    /// Ends the thread, and waits for its end. Does not wait while the thread runs wakers, because a waker
    /// may wait for a lock of the caller, or call this function.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.changed.notify_all();
        let Some(thread) = state.thread.take() else { return };
        while !state.is_waking && !state.has_ended {
            self.changed.wait(&mut state);
        }
        let has_ended = state.has_ended;
        drop(state);
        if has_ended {
            // Ignore a panic of the thread, because the panic hook has already reported it.
            let _ = thread.join();
        }
    }

    /// Calls wakers in the watcher thread.
    pub(crate) fn wake(&self, due: Vec<Waker>) {
        self.state.lock().is_waking = true;
        self.changed.notify_all();
        wake_all(due);
        self.state.lock().is_waking = false;
    }
}
