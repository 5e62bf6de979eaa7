//! How many of a channel's frames the program's guards may hold at once.

use std::sync::atomic::Ordering;

use backend_api::Device;

use super::Channel;
use crate::base::error::{ErrorKind, Result};
use crate::engine::guards;

/// All frames but one, or the only one, can be guarded.
pub(super) fn most(frames: u32) -> u32 {
    frames.saturating_sub(1).max(1)
}

impl<D: Device> Channel<D> {
    /// Counts a guard on a frame of this channel; waits while too many are counted.
    ///
    /// # Errors
    /// [`TooManyGuards`](ErrorKind::TooManyGuards) instead of waiting if the thread holds guards itself, or
    /// has futures that count as guards.
    pub(crate) fn admit_guard(&self) -> Result<()> {
        if self.try_admit_guard() {
            return Ok(());
        }
        loop {
            if guards::held_or_expected() {
                let frames = u64::from(self.guards_max.load(Ordering::Relaxed));
                return Err(ErrorKind::TooManyGuards { channel: self.index, frames }.into());
            }
            self.counters.waits.add(1);
            let mut shard = self.lock();
            let is_full = || self.guards.load(Ordering::SeqCst) >= self.guards_max.load(Ordering::Relaxed);
            self.sleep_while(&mut shard, |_| is_full());
            drop(shard);
            if self.try_admit_guard() {
                return Ok(());
            }
        }
    }

    pub(super) fn try_admit_guard(&self) -> bool {
        let most = self.guards_max.load(Ordering::Relaxed);
        let more = |guards: u32| (guards < most).then_some(guards + 1);
        self.guards.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more).is_ok()
    }

    /// Ends the count of a guard, which has let go of its page.
    pub(crate) fn dismiss_guard(&self) {
        self.guards.fetch_sub(1, Ordering::SeqCst);
        self.announce();
    }
}
