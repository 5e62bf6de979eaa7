//! A device's queues, by id. For each released queue, the table keeps the number of its last submission.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::IdMap;
use backend_api::{Error, ErrorKind, QueueId, Result, Ticket};

/// A device's table of its queues, by id, for backends. The table also contains released queues, because
/// their tickets (handles of submissions) stay valid for ever.
///
/// ```
/// use std::sync::Arc;
/// use backend_api::{ErrorKind, QueueHandle, Ticket};
/// use vmarray_support::Queues;
/// let (queues, handle) = (Queues::default(), QueueHandle::unique());
/// queues.add(handle.id(), Arc::new("a queue"));
/// assert_eq!(*queues.get("submit", handle.id())?, "a queue");
/// assert_eq!(queues.live().len(), 1);
/// queues.end(handle.id(), 7);
/// assert!(queues.get("submit", handle.id()).is_err());
/// let newest = |_: &_| unreachable!("it has ended");
/// assert!(queues.of("poll", Ticket { queue: handle.id(), value: 7 }, newest)?.is_none());
/// let error = queues.of("poll", Ticket { queue: handle.id(), value: 8 }, newest).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::UnknownHandle);
/// queues.remove(handle.id());
/// let error = queues.of("poll", Ticket { queue: handle.id(), value: 7 }, newest).unwrap_err();
/// assert_eq!(error.detail(), Queues::<&str>::unknown("poll").detail());
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct Queues<Q>(RwLock<IdMap<QueueId, Entry<Q>>>);

#[derive(Debug)]
enum Entry<Q> {
    Live(Arc<Q>),
    /// A released queue, with the value of its newest ticket. The table keeps it for ever.
    Ended(u64),
}

impl<Q> Default for Queues<Q> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<Q> Queues<Q> {
    /// Adds a queue to the table.
    pub fn add(&self, id: QueueId, queue: Arc<Q>) {
        self.0.write().insert(id, Entry::Live(queue));
    }

    /// Removes a queue to which the program has submitted no work.
    pub fn remove(&self, id: QueueId) {
        self.0.write().remove(&id);
    }

    /// Marks a queue as released: its submissions up to number `newest` are done.
    pub fn end(&self, id: QueueId, newest: u64) {
        self.0.write().insert(id, Entry::Ended(newest));
    }

    /// Returns a queue that the program has not released.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle) in `operation` if the queue is released or unknown.
    pub fn get(&self, operation: &'static str, id: QueueId) -> Result<Arc<Q>> {
        match self.0.read().get(&id) {
            Some(Entry::Live(queue)) => Ok(Arc::clone(queue)),
            _ => Err(Self::unknown(operation)),
        }
    }

    /// Returns the queue of a ticket (submission), or `None` if the program has released the queue; its work
    /// is then done. `newest` must return the value of a queue's newest ticket.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle) in `operation` if the queue or the ticket is unknown.
    pub fn of(
        &self,
        operation: &'static str,
        ticket: Ticket,
        newest: impl FnOnce(&Q) -> u64,
    ) -> Result<Option<Arc<Q>>> {
        let (newest, queue) = match self.0.read().get(&ticket.queue) {
            Some(Entry::Live(queue)) => (newest(queue), Some(Arc::clone(queue))),
            Some(Entry::Ended(newest)) => (*newest, None),
            None => return Err(Self::unknown(operation)),
        };
        if ticket.value > newest {
            let detail = format!("ticket {} was never issued", ticket.value);
            return Err(Error::new(ErrorKind::UnknownHandle, operation).with_detail(detail));
        }
        Ok(queue)
    }

    /// Returns all queues that the program has not released.
    #[must_use]
    pub fn live(&self) -> Vec<Arc<Q>> {
        let live = |entry: &Entry<Q>| match entry {
            Entry::Live(queue) => Some(Arc::clone(queue)),
            Entry::Ended(_) => None,
        };
        self.0.read().values().filter_map(live).collect()
    }

    /// Creates the error of `operation` for a queue that was released or does not exist.
    #[must_use]
    pub fn unknown(operation: &'static str) -> Error {
        Error::new(ErrorKind::UnknownHandle, operation)
            .with_detail("the queue is released, or belongs to another device")
    }
}
