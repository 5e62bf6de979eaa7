//! Waiting for what another thread is about to do: spinning, then yielding, then sleeping until told.
//!
//! To be woken by the system takes tens of microseconds, several times what a copy of a page takes. So a thread that
//! waits for a copy looks for about as long as a queue of copies takes, and burns a core no longer than that.

use std::hint;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use backend_api::Device;
use parking_lot::MutexGuard;

use super::{Channel, Shard};
use crate::page::wake_tasks;

/// Looks before the clock is read again.
const LOOKS: u32 = 16;
/// How long a thread looks without giving its time slice away, and in all before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
const PATIENCE: Duration = Duration::from_micros(100);

/// Spins, then yields, while something holds; gives up after a while. Whether it has ended.
pub(super) fn spin_while(holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if !holds() {
                return true;
            }
            hint::spin_loop();
        }
        let waited = start.elapsed();
        if waited > PATIENCE {
            return false;
        }
        if waited > SPIN {
            thread::yield_now();
        }
    }
}

/// Tries before a thread sleeps for the lock of the shard, which is held for a microsecond or so.
const TRIES: u32 = 400;

impl<D: Device> Channel<D> {
    /// Locks the shard. Many threads come at the same moment when a batch is done: to put them to sleep, as the lock
    /// itself does after a few looks, would take far longer than their turn to come.
    pub(super) fn lock(&self) -> MutexGuard<'_, Shard<D>> {
        for _ in 0..TRIES {
            if let Some(shard) = self.shard.try_lock() {
                return shard;
            }
            hint::spin_loop();
        }
        self.shard.lock()
    }

    /// Waits until frames or memory have come since the lock of the shard was taken, which is given up meanwhile.
    pub(super) fn await_news(&self, mut shard: MutexGuard<'_, Shard<D>>) {
        // Changes under the lock.
        let known = self.news.load(Ordering::Relaxed);
        let is_old = || self.news.load(Ordering::Relaxed) == known;
        if MutexGuard::unlocked(&mut shard, || spin_while(is_old)) {
            return;
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if is_old() {
            self.freed.wait(&mut shard);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps while something holds that may also change without the lock, before an [`announce`](Self::announce).
    pub(super) fn sleep_while(
        &self,
        shard: &mut MutexGuard<'_, Shard<D>>,
        holds: impl Fn(&Shard<D>) -> bool,
    ) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Either this look sees the change, or whoever made it sees this sleeper.
        fence(Ordering::SeqCst);
        if holds(shard) {
            self.freed.wait(shard);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Notes, under the lock of the shard, that there may be frames, memory, or work that is done; to be announced.
    pub(super) fn note_news(&self) {
        self.news.fetch_add(1, Ordering::Relaxed);
    }

    /// Wakes those who wait for news or for guards to end. The lock of the shard is not held.
    pub(super) fn announce(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // Whoever is about to sleep holds the lock: after this it sleeps, or has looked again.
            drop(self.shard.lock());
            self.freed.notify_all();
        }
        wake_tasks(self.task_key());
    }
}
