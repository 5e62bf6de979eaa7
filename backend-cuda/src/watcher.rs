//! The watcher thread of a CUDA device: runs wakers when their submissions end or the device is lost.
//!
//! The first waker of a device starts the thread. The thread polls the queues that have waiters, and sleeps
//! while there are no waiters. A poll costs a query of the driver, so it polls often at first, and ever less
//! often without progress. The driver's host callbacks would be an alternative, but they block the stream
//! until they have run.
//!
//! A waker is foreign code: it may submit, wait, and release, including the device itself. The thread holds
//! no lock while it runs a waker, and a blocked waiter does not depend on this thread. A slow waker only
//! delays other wakers of the device.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::core::CudaCore;
use crate::queue::CudaQueue;
use crate::wakers::CompletionThread;

/// The time for which the watcher polls without a pause after progress or a new waiter.
const EAGER: Duration = Duration::from_micros(200);
/// Reciprocal of the part of the time since then that the watcher sleeps until its next poll.
const PAUSE_PART: u32 = 32;
const PAUSE_MIN: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// The number of rounds between two checks of the driver's health.
const EXAMINE_ROUNDS: u32 = 64;

impl CudaCore {
    /// Calls `waker` when the submission with a ticket value is done or the device is lost.
    pub(crate) fn wake(self: &Arc<Self>, queue: &Arc<CudaQueue>, value: u64, waker: Waker) {
        let mut is_waiting = true;
        queue.add_waiter(value, waker, || {
            is_waiting = !self.is_settled(queue, value);
            !is_waiting
        });
        if is_waiting && let Err(error) = self.watch_queue(queue) {
            // Without the watcher, poll in this thread until the ticket is done, which is slow.
            tracing::warn!(%error, "cannot start the thread that runs wakers");
            while !self.is_settled(queue, value) {
                std::thread::yield_now();
                self.was_pending(queue);
            }
            queue.deliver(value);
        }
    }

    /// Makes the watcher poll a queue until the queue has no waiters.
    ///
    /// Starts the thread if necessary. If the system cannot start a thread, the caller must poll itself.
    fn watch_queue(self: &Arc<Self>, queue: &Arc<CudaQueue>) -> std::io::Result<()> {
        let mut state = self.watch.state.lock();
        if state.thread.is_none() {
            let weak = Arc::downgrade(self);
            let watch = Arc::clone(&self.watch);
            let builder = std::thread::Builder::new().name("vmarray-cuda".into());
            state.thread = Some(builder.spawn(move || run(&watch, &weak))?);
        }
        if !queue.is_watched.swap(true, Ordering::AcqRel) {
            state.added.push(Arc::clone(queue));
            self.watch.changed.notify_all();
        }
        Ok(())
    }
}

/// Guard whose drop records the end of the watcher thread.
struct Ended<'a>(&'a CompletionThread);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.state.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

fn run(watch: &CompletionThread, core: &Weak<CudaCore>) {
    let _ended = Ended(watch);
    let mut queues: Vec<Arc<CudaQueue>> = Vec::new();
    let mut idle_since = Instant::now();
    let mut round = 0_u32;
    loop {
        {
            let mut state = watch.state.lock();
            if queues.is_empty() {
                while state.added.is_empty() && !state.stopped {
                    watch.changed.wait(&mut state);
                }
            } else if state.added.is_empty() && !state.stopped {
                let idle = idle_since.elapsed();
                if idle > EAGER {
                    let pause = (idle / PAUSE_PART).clamp(PAUSE_MIN, PAUSE_MAX);
                    watch.changed.wait_for(&mut state, pause);
                }
            }
            if state.stopped {
                return;
            }
            if !state.added.is_empty() {
                queues.append(&mut state.added);
                idle_since = Instant::now();
            }
        }
        // The watcher owns no reference to the device while it sleeps, and ends with the device.
        let Some(core) = core.upgrade() else { return };
        round = round.wrapping_add(1);
        std::thread::yield_now();
        let mut due = Vec::new();
        queues.retain(|queue| {
            if look(&core, queue, round, &mut due) {
                return true;
            }
            // A waiter that registers after this store adds the queue again. The check below finds a waiter
            // that registered just before the store.
            queue.is_watched.store(false, Ordering::Release);
            queue.awaited().is_some() && !queue.is_watched.swap(true, Ordering::AcqRel)
        });
        if !due.is_empty() {
            idle_since = Instant::now();
            watch.wake(due);
        }
    }
}

/// Removes the due wakers of a queue and appends them to `due`. Returns true if the queue has other wakers.
fn look(core: &CudaCore, queue: &CudaQueue, round: u32, due: &mut Vec<Waker>) -> bool {
    let Some(awaited) = queue.awaited() else { return false };
    if !queue.is_reached(awaited) && round.is_multiple_of(EXAMINE_ROUNDS) {
        core.examine(queue);
    }
    if core.lost().is_some() {
        return queue.take_due(u64::MAX, due);
    }
    queue.take_due(queue.reached(u64::MAX).unwrap_or(0), due)
}
