//! Submissions that use an allocation: the newest of each queue, for a release that must wait for them.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A queue whose submissions use an allocation.
pub(crate) trait UsingQueue: std::fmt::Debug + Send + Sync {
    /// Blocks until the recorded submission `value` is done, or has failed to start. Returns false if the
    /// device is lost and the end of the work is unknown.
    fn wait_for_noted(&self, value: u64) -> bool;

    /// Returns true if the submission `value` is not known to be done.
    fn is_pending(&self, value: u64) -> bool;

    /// Blocks until the commands of the submission `value` are done. Runs no waker.
    fn settle(&self, value: u64);
}

/// The submissions that use an allocation: the newest of each queue.
#[derive(Debug, Default)]
pub(crate) struct Uses(Mutex<Vec<(Weak<dyn UsingQueue>, u64)>>);

impl Uses {
    /// Records that the next submission to `queue`, with the ticket `value`, accesses this memory.
    pub fn note(&self, queue: &Arc<impl UsingQueue + 'static>, value: u64) {
        let mut uses = self.0.lock();
        if let Some((_, newest)) =
            uses.iter_mut().find(|(known, _)| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(queue)))
        {
            *newest = value;
            return;
        }
        uses.retain(|(known, _)| known.strong_count() > 0);
        let queue = Arc::downgrade(queue);
        uses.push((queue, value));
    }

    /// Blocks until all recorded submissions are done or the device is gone. No thread may record a
    /// submission meanwhile. Returns false if the device is lost and the end of the submissions is unknown.
    /// The caller must then [keep](crate::core::OpenClCore::keep) the memory.
    #[must_use]
    pub fn wait(&self) -> bool {
        let uses = std::mem::take(&mut *self.0.lock());
        let queues = uses.into_iter().filter_map(|(queue, value)| Some((queue.upgrade()?, value)));
        // Wait for all queues, even if the end of an earlier queue's work is unknown.
        queues.fold(true, |known, (queue, value)| queue.wait_for_noted(value) && known)
    }
}
