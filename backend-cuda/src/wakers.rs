//! The thread that runs wakers, and notices for them that a device died while nobody looked.
//!
//! It is started with the first waker of a device, looks at the queues that somebody waits for, and sleeps
//! while there are none. Looking costs a question to the driver, so it does so often at first and ever less
//! often while nothing gets done. The driver's host callbacks would be the other way; but they hold up the
//! stream until they have run.
//!
//! A waker is foreign code: it may submit, wait, and release, down to the device itself. No lock is held
//! while it runs, and who blocks does not depend on this thread. A waker that takes long delays other wakers
//! of the device, nothing else.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::core::Core;
use crate::queue::Queue;

/// How long it looks without a pause after something got done or was added.
const EAGER: Duration = Duration::from_micros(200);
/// The part of the time since then that it sleeps until its next look.
const PAUSE_PART: u32 = 32;
const PAUSE_MIN: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// In every so many rounds the driver is asked whether it is well.
const EXAMINE_ROUNDS: u32 = 64;

/// What the watcher shares with those who need it.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Queues that somebody waits for, not yet seen by the watcher.
    added: Vec<Arc<Queue>>,
    thread: Option<JoinHandle<()>>,
    stopped: bool,
}

impl Watch {
    /// Has a queue looked at until nobody waits for it.
    ///
    /// Starts the thread if need be. Where the system gives none, the caller has to look itself.
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

    /// Ends the thread, and waits for that unless it is the caller.
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
            // The thread itself does not panic; if it did, that was reported then.
            let _ = thread.join();
        }
    }
}

fn run(watch: &Watch, core: &Weak<Core>) {
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
        // The device is not kept alive by its watcher; it stops the watcher before it goes.
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
            // Whoever registers from here on adds the queue again; whoever did so just before is still to be
            // seen.
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
