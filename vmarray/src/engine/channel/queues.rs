//! The device queues of a channel (share of a device) for copies in one direction, and the choice of the
//! queue for a submission.
//!
//! Work in one queue runs in order, and the bus idles for some microseconds between submissions. With a
//! single queue, the fetch of a page would wait for an earlier search of all device memory. So each direction
//! has several queues. A submission goes to the least busy queue, or to the first of equally busy ones. If
//! each submission ends before the next one begins, all use the first queue, and the channel creates no
//! other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use backend_api::{Device, Queue, Result, Ticket};

/// Maximum number of queues of a direction.
pub(super) const QUEUES: usize = 4;

/// The device queues of a channel for copies in one direction.
#[derive(Debug)]
pub(super) struct DirectionQueues {
    first: Queue<dyn Device>,
    /// True if a new queue runs after all work submitted to the first queue, or to one ordered before it.
    follow_first: bool,
    others: [OnceLock<Queue<dyn Device>>; QUEUES - 1],
    /// The newest submission to each queue, and its newest known completion.
    submitted: [AtomicU64; QUEUES],
    done: [AtomicU64; QUEUES],
}

impl DirectionQueues {
    pub(super) fn new(device: &Arc<dyn Device>, follow_first: bool) -> Result<Self> {
        Ok(Self {
            first: Queue::new(device)?,
            follow_first,
            others: Default::default(),
            submitted: Default::default(),
            done: Default::default(),
        })
    }

    /// Returns the queue for kernels that write, and for all other ordered work.
    pub(super) fn first(&self) -> &Queue<dyn Device> {
        &self.first
    }

    /// Returns true if work may be in flight.
    pub(super) fn are_busy(&self) -> bool {
        (0..QUEUES).any(|at| self.under_way(at) > 0)
    }

    fn under_way(&self, at: usize) -> u64 {
        // One thread may record the end of work before another thread records its start, so saturate at 0.
        let done = self.done[at].load(Ordering::Relaxed);
        self.submitted[at].load(Ordering::Relaxed).saturating_sub(done)
    }

    /// Returns the queue with the least known work in flight, and its number. Under the submission lock.
    pub(super) fn least_busy(&self, device: &Arc<dyn Device>) -> (usize, &Queue<dyn Device>) {
        let at = (0..QUEUES).min_by_key(|at| self.under_way(*at)).unwrap_or(0);
        if at == 0 {
            return (0, &self.first);
        }
        let queue = &self.others[at - 1];
        if queue.get().is_none()
            && let Ok(new) = self.make(device)
        {
            let _ = queue.set(new);
        }
        // If the device cannot create another queue, use the first one.
        queue.get().map_or((0, &self.first), |queue| (at, queue))
    }

    fn make(&self, device: &Arc<dyn Device>) -> Result<Queue<dyn Device>> {
        let queue = Queue::new(device)?;
        if self.follow_first {
            queue.order_after(self.first.submit(&[])?)?;
        }
        Ok(queue)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Queue<dyn Device>> {
        std::iter::once(&self.first).chain(self.others.iter().filter_map(OnceLock::get))
    }

    pub(super) fn note_submitted(&self, at: usize, ticket: Ticket) {
        self.submitted[at].store(ticket.value, Ordering::Relaxed);
    }

    /// Records that a submission to one of these queues has ended.
    pub(super) fn note_done(&self, ticket: Ticket) {
        let is_its = |queue: &Queue<dyn Device>| queue.id() == ticket.queue;
        let others = self.others.iter().map(|queue| queue.get().is_some_and(is_its));
        if let Some(at) = std::iter::once(is_its(&self.first)).chain(others).position(|is_it| is_it) {
            self.done[at].fetch_max(ticket.value, Ordering::Relaxed);
        }
    }
}
