//! Waits of a thread for another thread: the thread spins, then yields, then sleeps.
//!
//! The system takes tens of microseconds to wake a thread, several times the copy of a page. So a thread that
//! waits for a copy polls first, for about the time of a full queue of copies.

use std::time::Duration;

use parking_lot::MutexGuard;
use vmarray_support::contended;

use super::{Channel, Shard};
use crate::engine::event_count::EventKey;
use crate::engine::page::wake_tasks;

/// Time of spinning before the thread yields, and total time before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
const PATIENCE: Duration = Duration::from_micros(100);

/// Spins, then yields, while a condition holds, up to the time limit. True if the condition has ended.
pub(super) fn spin_while(holds: impl Fn() -> bool) -> bool {
    contended::spin_while(SPIN, PATIENCE, holds)
}

impl Channel {
    /// Locks the shard, and reports pages with new frames to the policy.
    pub(super) fn lock(&self) -> MutexGuard<'_, Shard> {
        let mut shard = contended::lock(&self.shard);
        self.update_policy(&mut shard);
        shard
    }

    /// Reports pages with new frames to the policy.
    pub(super) fn update_policy(&self, shard: &mut Shard) {
        while let Some((page, frame)) = self.newcomers.pop() {
            shard.frames.policy_insert(page, frame);
        }
    }

    /// Waits for an event after `key` was made: new frames, memory or completed work. Call it without locks.
    pub(super) fn await_events(&self, key: EventKey) {
        if !spin_while(|| self.events.is_current(key)) {
            self.events.wait(key);
        }
    }

    /// Wakes threads and tasks that wait for [events](Channel::events). Call it without the shard's lock.
    pub(super) fn announce(&self) {
        self.events.notify();
        wake_tasks(self.task_key());
        self.wake_driver();
    }
}
