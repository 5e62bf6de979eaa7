//! Waiting for what another thread is about to do: spinning, then yielding, then sleeping until told.
//!
//! To be woken by the system takes tens of microseconds, several times what a copy of a page takes. So a
//! thread that waits for a copy looks for about as long as a queue of copies takes, and burns a core no
//! longer than that.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use backend_api::{Device, contended};
use parking_lot::MutexGuard;

use super::{Channel, Shard};
use crate::engine::page::wake_tasks;

/// How long a thread looks without giving its time slice away, and in all before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
const PATIENCE: Duration = Duration::from_micros(100);

/// Spins, then yields, while something holds; gives up after a while. Whether it has ended.
pub(super) fn spin_while(holds: impl Fn() -> bool) -> bool {
    contended::spin_while(SPIN, PATIENCE, holds)
}

impl<D: Device> Channel<D> {
    /// Locks the shard, and tells the policy of pages that were put in frames meanwhile.
    pub(super) fn lock(&self) -> MutexGuard<'_, Shard<D>> {
        let mut shard = contended::lock(&self.shard);
        self.welcome(&mut shard);
        shard
    }

    /// Tells the policy of pages that were put in frames.
    pub(super) fn welcome(&self, shard: &mut Shard<D>) {
        while let Some((page, frame)) = self.newcomers.pop() {
            shard.policy_insert(page, frame, self.recency);
        }
    }

    /// What [`await_news`](Self::await_news) is to be told, before the look that finds nothing.
    pub(super) fn news(&self) -> u64 {
        self.news.load(Ordering::SeqCst)
    }

    /// Waits until frames or memory have come since [`news`](Self::news) were asked for. The lock of the
    /// shard is given up meanwhile.
    pub(super) fn await_news(&self, mut shard: MutexGuard<'_, Shard<D>>, known: u64) {
        let is_old = || self.news.load(Ordering::SeqCst) == known;
        if MutexGuard::unlocked(&mut shard, || spin_while(is_old)) {
            return;
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if is_old() {
            self.freed.wait(&mut shard);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps while something holds that may also change without the lock, before an
    /// [`announce`](Self::announce).
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

    /// Notes that there may be frames, memory, or work that is done; to be announced.
    pub(super) fn note_news(&self) {
        self.news.fetch_add(1, Ordering::SeqCst);
    }

    /// Wakes those who wait for news or for guards to end. The lock of the shard is not held.
    pub(super) fn announce(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // Whoever is about to sleep holds the lock: after this it sleeps, or has looked again.
            drop(contended::lock(&self.shard));
            self.freed.notify_all();
        }
        wake_tasks(self.task_key());
        self.tell_driver();
    }
}
