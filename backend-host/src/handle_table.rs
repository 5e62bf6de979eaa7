//! Handle table of a device: maps the ids of buffers and queues to their objects.

use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backend_api::{
    BufferHandle, DeviceInfo, HostAllocation, HostMemory, QueueHandle, QueueId, Result, Ticket,
};
use parking_lot::{RwLock, RwLockReadGuard};
use vmarray_support::Queues;
use vmarray_support::backends::MemoryTable;

use crate::host_memory::{HostMemoryPiece, Pinning};
use crate::memory::Wiping;
use crate::storage::Storage;

/// A location in memory: an allocation and an offset.
#[derive(Debug)]
pub(crate) struct MemoryPlace<T> {
    /// The memory; this reference keeps it alive.
    pub memory: Arc<T>,
    /// Offset within the memory, in bytes.
    pub offset: u64,
}

impl<T> MemoryPlace<T> {
    /// Returns true if this location is in the allocation at the address `memory`.
    pub fn is_in(&self, memory: *const ()) -> bool {
        Arc::as_ptr(&self.memory).cast() == memory
    }
}

/// All handles of one device, and its host memory. Errors name the device.
#[derive(Debug)]
pub(crate) struct HandleTable<M, Q> {
    info: Arc<DeviceInfo>,
    pinning: Arc<Pinning>,
    memory: RwLock<MemoryTable<M, HostMemoryPiece>>,
    queues: Queues<Q>,
    /// Returns the value of a queue's newest ticket.
    newest: fn(&Q) -> u64,
    /// True if another device has used memory of this device.
    is_visited: AtomicBool,
}

impl<M: Storage, Q> HandleTable<M, Q> {
    /// Creates an empty table for a device that page-locks at most `pinned_max_bytes` bytes. `newest` returns
    /// the number of a queue's newest submission.
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

    /// Records that work of another device uses this device's memory. The caller must lock `memory`.
    pub fn note_visit(&self) {
        self.is_visited.store(true, Ordering::Relaxed);
    }

    /// Returns true if work of other devices may still use memory that was removed from the table. The caller
    /// must lock the table (`memory`), which orders accesses to the flag.
    pub fn is_visited(&self) -> bool {
        self.is_visited.load(Ordering::Relaxed)
    }

    /// Removes all memory from the table, and returns the device buffers.
    pub fn remove_all(&self) -> Vec<Arc<M>> {
        let (buffers, _) = std::mem::take(&mut *self.memory.write()).all();
        buffers.collect()
    }

    pub fn info(&self) -> &Arc<DeviceInfo> {
        &self.info
    }

    /// Returns the switch for wiping of released memory, with its counter of wiped bytes.
    pub fn wiping(&self) -> &Arc<Wiping> {
        self.pinning.wiping()
    }

    /// Adds the device's name to an error.
    pub fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.on(&self.info))
    }

    /// Locks the table of memory for lookups. A submitting thread keeps the lock until the work is queued. So
    /// no other thread can release the memory between lookup and submission.
    pub fn memory(&self) -> RwLockReadGuard<'_, MemoryTable<M, HostMemoryPiece>> {
        self.memory.read()
    }

    pub fn add_buffer(&self, buffer: Arc<M>) -> BufferHandle {
        self.memory.write().add_buffer(buffer.bytes(), buffer)
    }

    /// Registers the new length of an extended buffer.
    pub fn extend_buffer(&self, handle: &BufferHandle, buffer: Arc<M>) -> Result<()> {
        let mut memory = self.memory.write();
        // Several threads may extend the buffer. Read its length under the lock, so that the thread that
        // registers last registers the final length.
        self.named(memory.extend_buffer(handle, buffer.bytes(), buffer))
    }

    pub fn remove_buffer(&self, handle: &BufferHandle) -> Option<Arc<M>> {
        self.memory.write().remove_buffer(handle)
    }

    /// Allocates host memory: [`Device::allocate_host`](backend_api::Device::allocate_host).
    pub fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        let piece = self.named(self.pinning.allocate(bytes, kind))?;
        // SAFETY: new zeroed memory, unknown to other code. It lives as long as its entry and all work that
        // uses it.
        Ok(unsafe { self.add_host(piece) })
    }

    /// Imports host memory: [`Device::import_host`](backend_api::Device::import_host).
    ///
    /// # Safety
    /// The conditions of [`import_host`](backend_api::Device::import_host). The device finishes all work on
    /// the memory before it drops the memory's table entry.
    pub unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        // SAFETY: the caller guarantees this.
        let piece = self.named(unsafe { self.pinning.import(address, bytes, kind) })?;
        // SAFETY: the caller guarantees this.
        Ok(unsafe { self.add_host(piece) })
    }

    /// # Safety
    /// As [`HostAllocation::new`], for the memory of the piece.
    unsafe fn add_host(&self, piece: HostMemoryPiece) -> HostAllocation {
        // SAFETY: the caller guarantees this.
        let host = unsafe { HostAllocation::new(piece.address(), piece.bytes(), piece.kind()) };
        self.memory.write().add_host(&host, Arc::new(piece));
        host
    }

    pub fn remove_host(&self, handle: &HostAllocation) -> Option<Arc<HostMemoryPiece>> {
        self.memory.write().remove_host(handle)
    }

    pub fn add_queue(&self, id: QueueId, queue: Arc<Q>) {
        self.queues.add(id, queue);
    }

    /// Removes a queue from the table. The caller has already made the queue refuse further work.
    pub fn end_queue(&self, id: QueueId, queue: &Q) {
        self.queues.end(id, (self.newest)(queue));
    }

    /// Returns the queue with this handle, unless it was released.
    pub fn queue(&self, operation: &'static str, queue: &QueueHandle) -> Result<Arc<Q>> {
        self.named(self.queues.get(operation, queue.id()))
    }

    /// Returns the queue of a ticket (submission); `None` if the queue was released, since its work is done.
    pub fn queue_of(&self, operation: &'static str, ticket: Ticket) -> Result<Option<Arc<Q>>> {
        self.named(self.queues.of(operation, ticket, self.newest))
    }

    /// Returns all queues that were not released.
    pub fn live_queues(&self) -> Vec<Arc<Q>> {
        self.queues.live()
    }
}
