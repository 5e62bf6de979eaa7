//! Handle tables of a CUDA device: map buffer ids to allocations of device memory and host memory.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

use backend_api::{
    BufferHandle, BufferId, Error, ErrorKind, Extents, HostAllocation, HostId, HostMemory, Result, Transfer,
};
use parking_lot::RwLock;
use vmarray_support::IdMap;

use crate::driver::ContextHandle;
use crate::host_memory::{HostAddress, HostRange};
use crate::memory::DeviceMemory;
use crate::queue::CudaQueue;

/// The device's memory by id.
#[derive(Debug, Default)]
pub(crate) struct CudaMemory {
    device: RwLock<IdMap<BufferId, Arc<DeviceMemory>>>,
    host: RwLock<IdMap<HostId, Arc<HostRange>>>,
}

impl CudaMemory {
    pub(crate) fn add_device(&self, memory: DeviceMemory) -> BufferHandle {
        let handle = BufferHandle::unique();
        self.device.write().insert(handle.id(), Arc::new(memory));
        handle
    }

    /// Adds host memory to the table under a new id.
    ///
    /// # Safety
    /// The requirements of [`HostAllocation::new`], for the memory of the range.
    pub(crate) unsafe fn add_host(&self, range: HostRange, kind: HostMemory) -> HostAllocation {
        // SAFETY: guaranteed by the caller.
        let handle = unsafe { HostAllocation::new(range.address, range.bytes, kind) };
        self.host.write().insert(handle.id(), Arc::new(range));
        handle
    }

    /// Returns the memory with this id, for calls that keep it alive themselves.
    pub(crate) fn device(&self, id: BufferId) -> Option<Arc<DeviceMemory>> {
        self.device.read().get(&id).cloned()
    }

    pub(crate) fn remove_device(&self, id: BufferId) -> Option<DeviceMemory> {
        let memory = self.device.write().remove(&id)?;
        Some(sole(memory))
    }

    /// Removes all device memory from the table.
    pub(crate) fn remove_all_device(&self) -> Vec<DeviceMemory> {
        let all = std::mem::take(&mut *self.device.write());
        all.into_values().map(sole).collect()
    }

    /// Returns memory for another device that has peer access. If a queue will submit work on the memory, the
    /// function records the queue before the id can be removed.
    pub(crate) fn visit(
        &self,
        id: BufferId,
        queue: Option<&Arc<CudaQueue>>,
        is_reached: impl FnOnce() -> bool,
    ) -> Option<Arc<DeviceMemory>> {
        let device = self.device.read();
        let memory = device.get(&id).filter(|_| is_reached())?;
        if let Some(queue) = queue {
            let visitor: Weak<CudaQueue> = Arc::downgrade(queue);
            memory.note_visitor(visitor);
        }
        Some(Arc::clone(memory))
    }

    pub(crate) fn remove_host(&self, id: HostId) -> Option<HostRange> {
        let range = self.host.write().remove(&id)?;
        Some(sole(range))
    }

    /// Begins the look-ups of one call.
    pub(crate) fn lookup(&self) -> HandleLookup<'_> {
        HandleLookup {
            memory: self,
            device: RefCell::default(),
            host: RefCell::default(),
            hosts_are_mapped: Cell::new(true),
            elsewhere: None,
            foreign: RefCell::default(),
        }
    }

    /// Begins look-ups as [`lookup`](Self::lookup) does, for a call that accepts memory of other devices.
    pub(crate) fn lookup_with<'a>(&'a self, elsewhere: Elsewhere<'a>) -> HandleLookup<'a> {
        HandleLookup { elsewhere: Some(elsewhere), ..self.lookup() }
    }
}

/// Looks up memory of another device.
pub(crate) type Elsewhere<'a> = &'a dyn Fn(BufferId) -> Option<Arc<DeviceMemory>>;

/// Waits until calls that are about to use the memory have submitted their work and dropped their reference.
///
/// Such a call began before the id was removed. It keeps the memory alive for some microseconds or, with
/// pageable memory, until its copy is done.
fn sole<T>(mut shared: Arc<T>) -> T {
    let mut turns = 0_u32;
    loop {
        match Arc::try_unwrap(shared) {
            Ok(memory) => return memory,
            Err(still_shared) => shared = still_shared,
        }
        turns += 1;
        if turns < 100 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
}

/// The look-ups of one call, which keep the memory alive until the call has submitted its work.
///
/// One call refers to the same memory many times, so the look-ups are cached.
pub(crate) struct HandleLookup<'a> {
    memory: &'a CudaMemory,
    device: RefCell<Known<BufferId, DeviceMemory>>,
    host: RefCell<Known<HostId, HostRange>>,
    hosts_are_mapped: Cell<bool>,
    elsewhere: Option<Elsewhere<'a>>,
    /// Memory of other devices that was found there.
    foreign: RefCell<Vec<(BufferId, Arc<DeviceMemory>)>>,
}

/// The start and the length of memory that was looked up.
#[derive(Clone, Copy, Debug)]
struct Found<A> {
    start: A,
    bytes: u64,
}

/// The results of one call's look-ups. The first result needs no allocation, because most calls use one
/// allocation of each kind of memory.
#[derive(Debug)]
struct Known<K, V> {
    first: Option<(K, Arc<V>)>,
    others: IdMap<K, Arc<V>>,
}

impl<K, V> Default for Known<K, V> {
    fn default() -> Self {
        Self { first: None, others: IdMap::default() }
    }
}

impl<K: Copy + Eq + std::hash::Hash, V> Known<K, V> {
    fn recall<R>(
        &mut self,
        table: &RwLock<IdMap<K, Arc<V>>>,
        id: K,
        read: impl FnOnce(&V) -> R,
    ) -> Option<R> {
        let known = match &self.first {
            Some((first, found)) if *first == id => Some(found),
            _ => self.others.get(&id),
        };
        // `found` shares ownership, so it stays valid even if another thread removes the table's entry.
        if let Some(found) = known {
            return Some(read(found));
        }
        let found = table.read().get(&id).map(Arc::clone)?;
        let result = read(&found);
        match self.first {
            None => self.first = Some((id, found)),
            Some(_) => _ = self.others.insert(id, found),
        }
        Some(result)
    }
}

impl HandleLookup<'_> {
    fn device(&self, id: BufferId) -> Option<Found<u64>> {
        let found = |memory: &DeviceMemory| Found { start: memory.address, bytes: memory.bytes() };
        let own = self.device.borrow_mut().recall(&self.memory.device, id, found);
        own.or_else(|| {
            if let Some((_, memory)) = self.foreign.borrow().iter().find(|(known, _)| *known == id) {
                return Some(found(memory));
            }
            let memory = self.elsewhere?(id)?;
            let found = found(&memory);
            self.foreign.borrow_mut().push((id, memory));
            Some(found)
        })
    }

    /// Returns true if any memory that was looked up so far belongs to another device.
    pub(crate) fn any_foreign(&self) -> bool {
        !self.foreign.borrow().is_empty()
    }

    /// Returns the context of memory that was looked up and belongs to another device.
    pub(crate) fn foreign_context(&self, at: backend_api::DeviceSpan<'_>) -> Option<ContextHandle> {
        let foreign = self.foreign.borrow();
        let found = foreign.iter().find(|(known, _)| *known == at.buffer());
        found.map(|(_, memory)| memory.context().handle())
    }

    fn host(&self, id: HostId) -> Option<Found<HostAddress>> {
        let found = self.host.borrow_mut().recall(&self.memory.host, id, |range| Found {
            start: HostAddress {
                host: range.address.as_ptr().expose_provenance() as u64,
                mapped: range.mapped,
            },
            bytes: range.bytes as u64,
        })?;
        if found.start.mapped.is_none() {
            self.hosts_are_mapped.set(false);
        }
        Some(found)
    }

    /// Checks all transfers of a call. If a transfer uses the same memory as the previous one, the check
    /// costs two comparisons of numbers.
    pub(crate) fn check_transfers(&self, transfers: &[Transfer<'_>]) -> Result<()> {
        let mut known: Option<(HostId, u64, BufferId, u64)> = None;
        for transfer in transfers {
            let (host, device, bytes) = match *transfer {
                Transfer::Upload { from, to, bytes } => (from, to, bytes),
                Transfer::Download { from, to, bytes } => (to, from, bytes),
                Transfer::Internal { .. } => {
                    self.check_transfer(transfer)?;
                    continue;
                }
            };
            let fits = |offset: u64, length: u64| bytes <= length && offset <= length - bytes;
            if let Some((host_id, host_bytes, buffer, device_bytes)) = known
                && host_id == host.host()
                && buffer == device.buffer()
                && fits(host.offset(), host_bytes)
                && fits(device.offset(), device_bytes)
            {
                continue;
            }
            self.check_transfer(transfer)?;
            if self.foreign_context(device).is_some() {
                return Err(Error::new(ErrorKind::UnknownHandle, "submit").with_detail(
                    "the memory belongs to another device; first copy it to memory of this device",
                ));
            }
            let lengths = self.host_bytes(host.host()).zip(self.device_bytes(device.buffer()));
            known = lengths.map(|(host_bytes, bytes)| (host.host(), host_bytes, device.buffer(), bytes));
        }
        Ok(())
    }

    /// Returns the address of a checked span of device memory.
    pub(crate) fn device_address(&self, at: backend_api::DeviceSpan<'_>) -> u64 {
        self.device(at.buffer()).map_or(0, |found| found.start).wrapping_add(at.offset())
    }

    /// Returns the addresses of a checked span of host memory: for the processor, and for kernels if
    /// page-locked.
    pub(crate) fn host_address(&self, at: backend_api::HostSpan<'_>) -> HostAddress {
        let start = self.host(at.host()).map_or(HostAddress { host: 0, mapped: None }, |found| found.start);
        HostAddress {
            host: start.host.wrapping_add(at.offset()),
            mapped: start.mapped.map(|mapped| mapped.wrapping_add(at.offset())),
        }
    }

    /// Returns true if kernels can access all host memory that was looked up so far.
    pub(crate) fn hosts_are_mapped(&self) -> bool {
        self.hosts_are_mapped.get()
    }
}

impl Extents for HandleLookup<'_> {
    fn device_bytes(&self, buffer: BufferId) -> Option<u64> {
        self.device(buffer).map(|found| found.bytes)
    }

    fn host_bytes(&self, host: HostId) -> Option<u64> {
        self.host(host).map(|found| found.bytes)
    }
}
