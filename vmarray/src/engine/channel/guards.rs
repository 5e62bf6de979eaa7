//! Limit on the number of cache frames of a channel (share of a device) that page guards may pin at once.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::Channel;
use crate::base::error::{Error, ErrorKind, Result};
use crate::engine::guards;

/// The number of guards on frames of a channel, and their limit.
#[derive(Debug)]
pub(super) struct GuardCount {
    pub(super) count: AtomicU32,
    pub(super) max: AtomicU32,
    /// Number of threads that wait for the end of a guard.
    waiters: AtomicU32,
}

/// While this value lives, the end of a guard wakes waiting threads.
pub(super) struct GuardWait<'a>(&'a AtomicU32);

impl Drop for GuardWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl GuardCount {
    pub(super) fn new(frames: u32) -> Self {
        Self { count: AtomicU32::new(0), max: AtomicU32::new(most(frames)), waiters: AtomicU32::new(0) }
    }

    /// Call this before the check if a thread must wait for guards.
    pub(super) fn wait(&self) -> GuardWait<'_> {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence of the thread that ends a guard: either the waiting thread's check sees the
        // end of a guard, or the thread that ends the guard sees the waiting thread.
        fence(Ordering::SeqCst);
        GuardWait(&self.waiters)
    }
}

/// Returns the limit: all frames but one, or the only one.
pub(super) fn most(frames: u32) -> u32 {
    frames.saturating_sub(1).max(1)
}

impl Channel {
    /// Counts a guard on a frame of this channel; waits while the limit is reached.
    ///
    /// # Errors
    /// [`TooManyGuards`](ErrorKind::TooManyGuards) if it [must not](guards::must_not_await_guards) wait.
    pub(crate) fn admit_guard(&self) -> Result<()> {
        if self.try_admit_guard() {
            return Ok(());
        }
        let _waiting = self.guards.wait();
        loop {
            let key = self.events.prepare();
            if self.try_admit_guard() {
                return Ok(());
            }
            if guards::must_not_await_guards() {
                let frames = self.guards.max.load(Ordering::Relaxed);
                return Err(self.too_many_guards(frames));
            }
            self.counters.waits.add(1);
            self.await_events(key);
        }
    }

    /// Returns the error that guards hold all frames, and the calling thread holds one of them.
    pub(super) fn too_many_guards(&self, frames: u32) -> Error {
        ErrorKind::TooManyGuards { channel: self.layout.index, frames: frames.into() }.into()
    }

    /// Returns the limit of guards on frames of this channel at the same time.
    #[cfg(feature = "rayon")]
    pub(crate) fn most_guards(&self) -> usize {
        self.guards.max.load(Ordering::Relaxed) as usize
    }

    pub(super) fn try_admit_guard(&self) -> bool {
        let most = self.guards.max.load(Ordering::Relaxed);
        let more = |guards: u32| (guards < most).then_some(guards + 1);
        self.guards.count.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more).is_ok()
    }

    /// Ends the count of a guard, which has released its page.
    pub(crate) fn dismiss_guard(&self) {
        self.guards.count.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.guards.waiters.load(Ordering::SeqCst) > 0 {
            self.events.advance();
        }
        self.announce();
    }
}
