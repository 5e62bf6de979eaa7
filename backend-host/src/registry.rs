//! What the names of a device stand for.

use std::ptr::NonNull;
use std::sync::Arc;

use backend_api::{
    BufferHandle, BufferId, DeviceInfo, DeviceSpan, Error, ErrorKind, Extents, HostAllocation, HostId,
    HostMemory, HostSpan, Names, QueueHandle, QueueId, Result, Ticket,
};
use parking_lot::{RwLock, RwLockReadGuard};

use crate::host_memory::{Piece, Pinning};
use crate::medium::Medium;
use crate::memory::Wiping;

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

/// All names of one device, and the host memory behind them. Its errors name the device, but for those of
/// [`Entries`].
#[derive(Debug)]
pub(crate) struct Registry<M, Q> {
    info: Arc<DeviceInfo>,
    pinning: Arc<Pinning>,
    entries: RwLock<Entries<M, Q>>,
}

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

/// The queue that is asked to wait, and the one that it waits for unless that has ended.
type Order<'a, Q> = (&'a Arc<Q>, Option<&'a Arc<Q>>);

impl<M: Medium, Q> Registry<M, Q> {
    /// No names of a device of these facts, which page-locks `pinned_max_bytes` at most.
    pub fn new(info: DeviceInfo, pinned_max_bytes: u64) -> Self {
        let entries = Entries {
            buffers: Names::default(),
            hosts: Names::default(),
            queues: Names::default(),
            ended: Names::default(),
        };
        Self { info: Arc::new(info), pinning: Pinning::new(pinned_max_bytes), entries: RwLock::new(entries) }
    }

    pub fn info(&self) -> &Arc<DeviceInfo> {
        &self.info
    }

    /// Whether memory of the device is wiped.
    pub fn wiping(&self) -> &Arc<Wiping> {
        self.pinning.wiping()
    }

    /// Names the device in an error.
    pub fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.on(&self.info))
    }

    /// Looks names up. Who submits keeps this until the work is in its queue: a release comes before or
    /// after, and never in between.
    pub fn read(&self) -> RwLockReadGuard<'_, Entries<M, Q>> {
        self.entries.read()
    }

    /// Names a buffer.
    pub fn add_buffer(&self, buffer: Arc<M>) -> BufferHandle {
        let handle = BufferHandle::unique();
        self.entries.write().buffers.insert(handle.id(), buffer);
        handle
    }

    /// Forgets a buffer.
    pub fn remove_buffer(&self, id: BufferId) -> Option<Arc<M>> {
        self.entries.write().buffers.remove(&id)
    }

    /// As [`allocate_host`](backend_api::Device::allocate_host).
    pub fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        let piece = self.named(self.pinning.allocate(bytes, kind))?;
        // SAFETY: new memory, zeroed, that nobody else knows. It lives as long as its entry and any work that
        // touches it.
        Ok(unsafe { self.add_host(piece) })
    }

    /// As [`import_host`](backend_api::Device::import_host).
    ///
    /// # Safety
    /// As there. The device ends all work that touches the memory before it lets go of the piece.
    pub unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        // SAFETY: the caller's promise.
        let piece = self.named(unsafe { self.pinning.import(address, bytes, kind) })?;
        // SAFETY: as the caller promises.
        Ok(unsafe { self.add_host(piece) })
    }

    /// # Safety
    /// As [`HostAllocation::new`], for the memory of the piece.
    unsafe fn add_host(&self, piece: Piece) -> HostAllocation {
        // SAFETY: the caller's promise.
        let host = unsafe { HostAllocation::new(piece.address(), piece.bytes(), piece.kind()) };
        self.entries.write().hosts.insert(host.id(), Arc::new(piece));
        host
    }

    /// Forgets a piece of host memory.
    pub fn remove_host(&self, id: HostId) -> Option<Arc<Piece>> {
        self.entries.write().hosts.remove(&id)
    }

    /// Enters a queue.
    pub fn add_queue(&self, id: QueueId, queue: Arc<Q>) {
        self.entries.write().queues.insert(id, queue);
    }

    /// Replaces a queue that has ended by the number of its newest ticket, which `newest` tells.
    pub fn remove_queue(&self, id: QueueId, newest: impl FnOnce(&Q) -> u64) {
        let mut entries = self.entries.write();
        if let Some(queue) = entries.queues.remove(&id) {
            entries.ended.insert(id, newest(&queue));
        }
    }

    /// A queue that has not ended.
    pub fn live_queue(&self, id: QueueId) -> Option<Arc<Q>> {
        self.entries.read().queues.get(&id).map(Arc::clone)
    }

    /// The queue of a ticket, unless it has ended.
    pub fn queue_of(&self, operation: &'static str, ticket: Ticket) -> Result<Option<Arc<Q>>> {
        let found = self.read().queue_of(operation, ticket).map(Option::<&Arc<Q>>::cloned);
        self.named(found)
    }

    /// All queues that have not ended.
    pub fn all_queues(&self) -> Vec<Arc<Q>> {
        self.entries.read().queues.values().map(Arc::clone).collect()
    }
}

impl<M: Medium, Q> Entries<M, Q> {
    /// A queue to submit to.
    pub fn queue(&self, operation: &'static str, id: QueueId) -> Result<&Arc<Q>> {
        self.queues
            .get(&id)
            .ok_or_else(|| Error::new(ErrorKind::UnknownHandle, operation).with_detail("unknown queue"))
    }

    /// The queue of a ticket, unless it has ended after it had given the ticket: it is done then.
    fn queue_of(&self, operation: &'static str, ticket: Ticket) -> Result<Option<&Arc<Q>>> {
        if let Some(queue) = self.queues.get(&ticket.queue) {
            return Ok(Some(queue));
        }
        match self.ended.get(&ticket.queue) {
            Some(&newest) if ticket.value <= newest => Ok(None),
            Some(_) => Err(never_given(operation, ticket)),
            None => Err(Error::new(ErrorKind::UnknownHandle, operation).with_detail("unknown queue")),
        }
    }

    /// Looks up what [`order_after`](backend_api::Device::order_after) names. `newest` tells the value of a
    /// queue's newest ticket.
    pub fn order(
        &self,
        queue: &QueueHandle,
        ticket: Ticket,
        newest: impl Fn(&Q) -> u64,
    ) -> Result<Order<'_, Q>> {
        const OPERATION: &str = "order_after";
        let later = self.queue(OPERATION, queue.id())?;
        let before = self.queue_of(OPERATION, ticket)?;
        match before {
            Some(before) if ticket.value > newest(before) => Err(never_given(OPERATION, ticket)),
            _ => Ok((later, before)),
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

fn never_given(operation: &'static str, ticket: Ticket) -> Error {
    let detail = format!("ticket {} was never given", ticket.value);
    Error::new(ErrorKind::UnknownHandle, operation).with_detail(detail)
}
