//! The watcher thread of a device: it runs wakers, and detects for them that the device was lost.
//!
//! The first waker of a device starts it. It polls the queues that have waiters, and sleeps while none
//! has. A poll costs a query of the driver, so it polls often at first, and ever less often without
//! progress. The driver's host callbacks would be an alternative, but they block the stream until they
//! have run.
//!
//! A waker is foreign code: it may submit, wait, and release, including the device itself. The thread
//! holds no lock while it runs one, and a blocked waiter does not depend on this thread. A slow waker only
//! delays other wakers of the device.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::core::Core;
use crate::queue::Queue;

/// The time in which it polls without a pause after progress or a new waiter.
const EAGER: Duration = Duration::from_micros(200);
/// The part of the time since then that it sleeps until its next poll.
const PAUSE_PART: u32 = 32;
const PAUSE_MIN: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// The number of rounds between two checks of the driver's health.
const EXAMINE_ROUNDS: u32 = 64;

/// The state that the watcher shares with its clients.
#[derive(Debug, Default)]
pub(crate) struct CompletionThread {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Queues with waiters that the watcher has not seen yet.
    added: Vec<Arc<Queue>>,
    thread: Option<JoinHandle<()>>,
    stopped: bool,
}

impl CompletionThread {
    /// Polls a queue until it has no waiters.
    ///
    /// Starts the thread if needed. If the system cannot start one, the caller must poll itself.
    pub(crate) fn add(&self, core: &Arc<Core>, queue: &Arc<Queue>) -> std::io::Result<()> {
        let mut state = self.state.lock();
        if state.thread.is_none() {
            let weak = Arc::downgrade(core);
            let watch = Arc::clone(&core.watch);
            let builder = std::thread::Builder::new().name("vmarray-cuda".into());
            state.thread = Some(builder.spawn(move || run(&watch, &weak))?);
        }
        if !queue.is_watched.swap(true, Ordering::AcqRel) {
            state.added.push(Arc::clone(queue));
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Ends the thread, and waits for its end unless the thread itself calls.
    pub(crate) fn stop(&self) {
        let thread = {
            let mut state = self.state.lock();
            state.stopped = true;
            self.changed.notify_one();
            state.thread.take()
        };
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // The thread itself does not panic; if it did, the panic was reported then.
            let _ = thread.join();
        }
    }
}

fn run(watch: &CompletionThread, core: &Weak<Core>) {
    let mut queues: Vec<Arc<Queue>> = Vec::new();
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
        // The watcher does not keep the device alive; the device stops the watcher before it is dropped.
        let Some(core) = core.upgrade() else { return };
        round = round.wrapping_add(1);
        std::thread::yield_now();
        queues.retain(|queue| {
            let (woken, others) = look(&core, queue, round);
            if woken > 0 {
                idle_since = Instant::now();
            }
            if others {
                return true;
            }
            // A waiter that registers after this adds the queue again; the check below sees one that
            // registered just before.
            queue.is_watched.store(false, Ordering::Release);
            queue.awaited().is_some() && !queue.is_watched.swap(true, Ordering::AcqRel)
        });
    }
}

fn look(core: &Core, queue: &Queue, round: u32) -> (usize, bool) {
    let Some(awaited) = queue.awaited() else { return (0, false) };
    if !queue.is_reached(awaited) && round.is_multiple_of(EXAMINE_ROUNDS) {
        core.examine(queue);
    }
    if core.lost().is_some() {
        return queue.deliver(u64::MAX);
    }
    queue.deliver(queue.reached(u64::MAX).unwrap_or(0))
}
