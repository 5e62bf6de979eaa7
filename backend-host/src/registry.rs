//! What the names of a device stand for.

use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backend_api::backends::Memory;
use backend_api::{
    BufferHandle, DeviceInfo, HostAllocation, HostMemory, QueueHandle, QueueId, Queues, Result, Ticket,
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

/// All names of one device, and the host memory behind them. Its errors name the device.
#[derive(Debug)]
pub(crate) struct Registry<M, Q> {
    info: Arc<DeviceInfo>,
    pinning: Arc<Pinning>,
    memory: RwLock<Memory<M, Piece>>,
    queues: Queues<Q>,
    /// The value of a queue's newest ticket.
    newest: fn(&Q) -> u64,
    /// Whether another device was given a place in memory of this one.
    is_visited: AtomicBool,
}

impl<M: Medium, Q> Registry<M, Q> {
    /// No names of a device of these facts, which page-locks `pinned_max_bytes` at most. `newest` tells the
    /// value of a queue's newest ticket.
    pub fn new(info: DeviceInfo, pinned_max_bytes: u64, newest: fn(&Q) -> u64) -> Self {
        Self {
            info: Arc::new(info),
            pinning: Pinning::new(pinned_max_bytes),
            memory: RwLock::default(),
            queues: Queues::default(),
            newest,
            is_visited: AtomicBool::new(false),
        }
    }

    /// Notes that another device is given a place in memory of this one. Called while the memory is locked.
    pub fn note_visit(&self) {
        self.is_visited.store(true, Ordering::Relaxed);
    }

    /// Whether work of other devices may touch memory whose name was removed. Its lock orders the answer.
    pub fn is_visited(&self) -> bool {
        self.is_visited.load(Ordering::Relaxed)
    }

    /// Forgets all memory; gives the buffers.
    pub fn remove_all(&self) -> Vec<Arc<M>> {
        let (buffers, _) = std::mem::take(&mut *self.memory.write()).all();
        buffers.collect()
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

    /// Looks memory up. Who submits keeps this until the work is in its queue: a release comes before or
    /// after, and never in between.
    pub fn memory(&self) -> RwLockReadGuard<'_, Memory<M, Piece>> {
        self.memory.read()
    }

    /// Names a buffer.
    pub fn add_buffer(&self, buffer: Arc<M>) -> BufferHandle {
        self.memory.write().add_buffer(buffer.bytes(), buffer)
    }

    /// Makes the length of a buffer known that was extended.
    pub fn extend_buffer(&self, handle: &BufferHandle, buffer: Arc<M>) -> Result<()> {
        let mut memory = self.memory.write();
        // Read under the lock: of several threads that extend it the last one knows all of it.
        self.named(memory.extend_buffer(handle, buffer.bytes(), buffer))
    }

    /// Forgets a buffer.
    pub fn remove_buffer(&self, handle: &BufferHandle) -> Option<Arc<M>> {
        self.memory.write().remove_buffer(handle)
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
        self.memory.write().add_host(&host, Arc::new(piece));
        host
    }

    /// Forgets a piece of host memory.
    pub fn remove_host(&self, handle: &HostAllocation) -> Option<Arc<Piece>> {
        self.memory.write().remove_host(handle)
    }

    /// Enters a queue.
    pub fn add_queue(&self, id: QueueId, queue: Arc<Q>) {
        self.queues.add(id, queue);
    }

    /// Ends a queue, to which nothing more is submitted.
    pub fn end_queue(&self, id: QueueId, queue: &Q) {
        self.queues.end(id, (self.newest)(queue));
    }

    /// A queue that has not ended.
    pub fn queue(&self, operation: &'static str, queue: &QueueHandle) -> Result<Arc<Q>> {
        self.named(self.queues.get(operation, queue.id()))
    }

    /// The queue of a ticket, unless it has ended: the ticket is done then.
    pub fn queue_of(&self, operation: &'static str, ticket: Ticket) -> Result<Option<Arc<Q>>> {
        self.named(self.queues.of(operation, ticket, self.newest))
    }

    /// All queues that have not ended.
    pub fn live_queues(&self) -> Vec<Arc<Q>> {
        self.queues.live()
    }
}
