//! The queues of one direction.
//!
//! Work of one queue runs one after the other, and the bus stands still for some microseconds between one
//! submission and the next; a page's fetch would wait for a search of all device memory that was started
//! before. So each direction has several queues; a submission goes to the one with the least under way, and
//! of those to the first. As long as one is done before the next is submitted all go to the same queue, and
//! no other is ever made.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use backend_api::{Device, Queue, Result, Ticket};

/// How many queues a direction has.
pub(super) const QUEUES: usize = 4;

/// The queues of one direction.
#[derive(Debug)]
pub(super) struct Queues {
    first: Queue<dyn Device>,
    /// Whether a new queue runs after all that was submitted to the first one, or ordered before it.
    follow_first: bool,
    others: [OnceLock<Queue<dyn Device>>; QUEUES - 1],
    /// The newest submission to each queue, and the newest that is known to be done.
    submitted: [AtomicU64; QUEUES],
    done: [AtomicU64; QUEUES],
}

impl Queues {
    pub(super) fn new(device: &Arc<dyn Device>, follow_first: bool) -> Result<Self> {
        Ok(Self {
            first: Queue::new(device)?,
            follow_first,
            others: Default::default(),
            submitted: Default::default(),
            done: Default::default(),
        })
    }

    /// The queue for kernels that write, and all else that is to be in order.
    pub(super) fn first(&self) -> &Queue<dyn Device> {
        &self.first
    }

    /// Whether anything is under way, as far as is known.
    pub(super) fn are_busy(&self) -> bool {
        (0..QUEUES).any(|at| self.under_way(at) > 0)
    }

    fn under_way(&self, at: usize) -> u64 {
        // The second is often noted before the first.
        let done = self.done[at].load(Ordering::Relaxed);
        self.submitted[at].load(Ordering::Relaxed).saturating_sub(done)
    }

    /// The queue with the least under way, as far as is known, and its number. To be called under the lock of
    /// threads that submit.
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
        // A device may have no more of them.
        queue.get().map_or((0, &self.first), |queue| (at, queue))
    }

    fn make(&self, device: &Arc<dyn Device>) -> Result<Queue<dyn Device>> {
        let queue = Queue::new(device)?;
        if self.follow_first {
            queue.order_after(self.first.submit(&[])?)?;
        }
        Ok(queue)
    }

    /// All that were made.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Queue<dyn Device>> {
        std::iter::once(&self.first).chain(self.others.iter().filter_map(OnceLock::get))
    }

    pub(super) fn note_submitted(&self, at: usize, ticket: Ticket) {
        self.submitted[at].store(ticket.value, Ordering::Relaxed);
    }

    /// Notes that a submission is done, if it was one to these queues.
    pub(super) fn note_done(&self, ticket: Ticket) {
        let is_its = |queue: &Queue<dyn Device>| queue.id() == ticket.queue;
        let others = self.others.iter().map(|queue| queue.get().is_some_and(is_its));
        if let Some(at) = std::iter::once(is_its(&self.first)).chain(others).position(|is_it| is_it) {
            self.done[at].fetch_max(ticket.value, Ordering::Relaxed);
        }
    }
}
