//! What the names of a device stand for.

use std::sync::Arc;

use backend_api::{
    BufferHandle, BufferId, DeviceSpan, Error, ErrorKind, Extents, HostAllocation, HostId, HostSpan, Names,
    QueueId, Result, Ticket,
};
use parking_lot::{RwLock, RwLockReadGuard};

use crate::host_memory::Piece;
use crate::medium::Medium;

/// A place in memory.
#[derive(Debug)]
pub(crate) struct Place<T> {
    /// The memory, kept alive by this.
    pub memory: Arc<T>,
    /// Bytes from its start.
    pub offset: u64,
}

impl<T> Place<T> {
    /// Whether it is in that memory.
    pub fn is_in(&self, memory: *const ()) -> bool {
        Arc::as_ptr(&self.memory).cast() == memory
    }
}

/// All names of one device.
#[derive(Debug)]
pub(crate) struct Registry<M, Q>(RwLock<Entries<M, Q>>);

/// What [`Registry::read`] shows.
#[derive(Debug)]
pub(crate) struct Entries<M, Q> {
    buffers: Names<BufferId, Arc<M>>,
    hosts: Names<HostId, Arc<Piece>>,
    queues: Names<QueueId, Arc<Q>>,
    /// The newest ticket of each queue that has ended. Sixteen bytes a queue, kept for ever, because its
    /// tickets stay askable for ever.
    ended: Names<QueueId, u64>,
}

/// What a queue's name stands for.
pub(crate) enum Found<'a, Q> {
    /// This queue.
    Live(&'a Arc<Q>),
    /// A queue that has ended after it had given the ticket: it is done.
    Ended,
}

impl<M: Medium, Q> Registry<M, Q> {
    /// No names.
    pub fn new() -> Self {
        Self(RwLock::new(Entries {
            buffers: Names::default(),
            hosts: Names::default(),
            queues: Names::default(),
            ended: Names::default(),
        }))
    }

    /// Looks names up. Who submits keeps this until the work is in its queue: a release comes before or
    /// after, and never in between.
    pub fn read(&self) -> RwLockReadGuard<'_, Entries<M, Q>> {
        self.0.read()
    }

    /// Names a buffer.
    pub fn add_buffer(&self, buffer: Arc<M>) -> BufferHandle {
        let handle = BufferHandle::unique();
        self.0.write().buffers.insert(handle.id(), buffer);
        handle
    }

    /// Forgets a buffer.
    pub fn remove_buffer(&self, id: BufferId) -> Option<Arc<M>> {
        self.0.write().buffers.remove(&id)
    }

    /// Names a piece of host memory.
    ///
    /// # Safety
    /// As [`HostAllocation::new`], for the memory of the piece.
    pub unsafe fn add_host(&self, piece: Piece) -> HostAllocation {
        // SAFETY: the caller's promise.
        let host = unsafe { HostAllocation::new(piece.address(), piece.bytes(), piece.kind()) };
        self.0.write().hosts.insert(host.id(), Arc::new(piece));
        host
    }

    /// Forgets a piece of host memory.
    pub fn remove_host(&self, id: HostId) -> Option<Arc<Piece>> {
        self.0.write().hosts.remove(&id)
    }

    /// Enters a queue.
    pub fn add_queue(&self, id: QueueId, queue: Arc<Q>) {
        self.0.write().queues.insert(id, queue);
    }

    /// Replaces a queue that has ended by the number of its newest ticket, which `newest` tells.
    pub fn remove_queue(&self, id: QueueId, newest: impl FnOnce(&Q) -> u64) {
        let mut entries = self.0.write();
        if let Some(queue) = entries.queues.remove(&id) {
            entries.ended.insert(id, newest(&queue));
        }
    }

    /// A queue that has not ended.
    pub fn live_queue(&self, id: QueueId) -> Option<Arc<Q>> {
        self.0.read().queues.get(&id).map(Arc::clone)
    }

    /// All queues that have not ended.
    pub fn all_queues(&self) -> Vec<Arc<Q>> {
        self.0.read().queues.values().map(Arc::clone).collect()
    }
}

impl<M: Medium, Q> Entries<M, Q> {
    /// A queue to submit to.
    pub fn queue(&self, operation: &'static str, id: QueueId) -> Result<&Arc<Q>> {
        self.queues
            .get(&id)
            .ok_or_else(|| Error::new(ErrorKind::UnknownHandle, operation).with_detail("unknown queue"))
    }

    /// The queue of a ticket.
    pub fn queue_of(&self, operation: &'static str, ticket: Ticket) -> Result<Found<'_, Q>> {
        let unknown = |detail| Error::new(ErrorKind::UnknownHandle, operation).with_detail(detail);
        if let Some(queue) = self.queues.get(&ticket.queue) {
            return Ok(Found::Live(queue));
        }
        match self.ended.get(&ticket.queue) {
            Some(&newest) if ticket.value <= newest => Ok(Found::Ended),
            Some(_) => Err(unknown("the ticket was never given")),
            None => Err(unknown("unknown queue")),
        }
    }

    pub fn buffer(&self, operation: &'static str, id: BufferId) -> Result<&Arc<M>> {
        self.buffers
            .get(&id)
            .ok_or_else(|| Error::new(ErrorKind::UnknownHandle, operation).with_detail("unknown buffer"))
    }

    /// A place in device memory that was checked.
    pub fn device(&self, operation: &'static str, at: DeviceSpan<'_>) -> Result<Place<M>> {
        let memory = Arc::clone(self.buffer(operation, at.buffer())?);
        Ok(Place { memory, offset: at.offset() })
    }

    /// A place in host memory that was checked.
    pub fn host(&self, operation: &'static str, at: HostSpan<'_>) -> Result<Place<Piece>> {
        let unknown = || Error::new(ErrorKind::UnknownHandle, operation).with_detail("unknown host memory");
        let memory = Arc::clone(self.hosts.get(&at.host()).ok_or_else(unknown)?);
        Ok(Place { memory, offset: at.offset() })
    }
}

impl<M: Medium, Q> Extents for Entries<M, Q> {
    fn device_bytes(&self, buffer: BufferId) -> Option<u64> {
        self.buffers.get(&buffer).map(|buffer| buffer.bytes())
    }

    fn host_bytes(&self, host: HostId) -> Option<u64> {
        self.hosts.get(&host).map(|piece| piece.bytes() as u64)
    }
}
