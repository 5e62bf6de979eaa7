//! Waiting for what another thread is about to do: spinning, then yielding, then sleeping until told.
//!
//! To be woken by the system takes tens of microseconds, several times what a copy of a page takes. So a
//! thread that waits for a copy looks for about as long as a queue of copies takes, and burns a core no
//! longer than that.

use std::time::Duration;

use backend_api::contended;
use parking_lot::MutexGuard;

use super::{Channel, Shard};
use crate::engine::event_count::EventKey;
use crate::engine::page::wake_tasks;

/// How long a thread looks without giving its time slice away, and in all before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
const PATIENCE: Duration = Duration::from_micros(100);

/// Spins, then yields, while something holds; gives up after a while. Whether it has ended.
pub(super) fn spin_while(holds: impl Fn() -> bool) -> bool {
    contended::spin_while(SPIN, PATIENCE, holds)
}

impl Channel {
    /// Locks the shard, and tells the policy of pages that were put in frames meanwhile.
    pub(super) fn lock(&self) -> MutexGuard<'_, Shard> {
        let mut shard = contended::lock(&self.shard);
        self.tell_policy(&mut shard);
        shard
    }

    /// Tells the policy of pages that were put in frames.
    pub(super) fn tell_policy(&self, shard: &mut Shard) {
        while let Some((page, frame)) = self.newcomers.pop() {
            shard.frames.policy_insert(page, frame);
        }
    }

    /// Waits until frames, memory or the end of some work have come since `key` was made. The thread holds no
    /// lock.
    pub(super) fn await_events(&self, key: EventKey) {
        if !spin_while(|| self.events.is_current(key)) {
            self.events.wait(key);
        }
    }

    /// Wakes threads and tasks that wait for [events](Channel::events). The lock of the shard is not held.
    pub(super) fn announce(&self) {
        self.events.notify();
        wake_tasks(self.task_key());
        self.tell_driver();
    }
}
