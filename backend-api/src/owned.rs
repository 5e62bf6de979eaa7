//! Owners of what a device gave: they give it back when they go.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::{
    BufferId, Commit, Compute, Device, DeviceSpan, Fill, Gather, HostAllocation, HostId, HostMemory,
    HostSpan, QueueId, Result, Scatter, Search, Ticket, Transfer, racy,
};

/// A queue of a device; ended on drop, which blocks until its work is done.
///
/// ```
/// # fn f<D: backend_api::Device>(device: &std::sync::Arc<D>) -> backend_api::Result<()> {
/// let queue = backend_api::Queue::new(device)?;
/// device.wait(queue.submit(&[])?)
/// # }
/// ```
#[derive(Debug)]
pub struct Queue<D: Device> {
    device: Arc<D>,
    id: QueueId,
}

impl<D: Device> Queue<D> {
    /// A new queue.
    ///
    /// # Errors
    /// As [`Device::create_queue`].
    pub fn new(device: &Arc<D>) -> Result<Self> {
        Ok(Self { id: device.create_queue()?, device: Arc::clone(device) })
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// [`Device::submit`] on this queue.
    ///
    /// # Errors
    /// As there.
    pub fn submit(&self, transfers: &[Transfer]) -> Result<Ticket> {
        self.device.submit(self.id, transfers)
    }

    /// [`Device::fill`] on this queue.
    ///
    /// # Errors
    /// As there.
    pub fn fill(&self, fill: &Fill<'_>) -> Result<Ticket> {
        self.device.fill(self.id, fill)
    }

    /// [`Device::search`] on this queue.
    ///
    /// # Errors
    /// As there.
    pub fn search(&self, search: &Search<'_>) -> Result<Ticket> {
        self.device.search(self.id, search)
    }

    /// [`Device::gather`] on this queue.
    ///
    /// # Errors
    /// As there.
    pub fn gather(&self, gather: &Gather) -> Result<Ticket> {
        self.device.gather(self.id, gather)
    }

    /// [`Device::scatter`] on this queue.
    ///
    /// # Errors
    /// As there.
    pub fn scatter(&self, scatter: &Scatter) -> Result<Ticket> {
        self.device.scatter(self.id, scatter)
    }

    /// [`Device::compute`] on this queue.
    ///
    /// # Errors
    /// As there.
    pub fn compute(&self, compute: &Compute<'_>) -> Result<Ticket> {
        self.device.compute(self.id, compute)
    }

    /// [`Device::order_after`] on this queue.
    ///
    /// # Errors
    /// As there.
    pub fn order_after(&self, ticket: Ticket) -> Result<()> {
        self.device.order_after(self.id, ticket)
    }
}

impl<D: Device> Drop for Queue<D> {
    fn drop(&mut self) {
        self.device.release_queue(self.id);
    }
}

/// Device memory; given back on drop, which blocks until work in flight has left it.
///
/// ```
/// # fn f<D: backend_api::Device>(device: &std::sync::Arc<D>) -> backend_api::Result<()> {
/// let memory = backend_api::DeviceBuffer::new(device, 1 << 20, backend_api::Commit::Proven)?;
/// assert_eq!(memory.bytes(), 1 << 20);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct DeviceBuffer<D: Device> {
    device: Arc<D>,
    id: BufferId,
    bytes: u64,
}

impl<D: Device> DeviceBuffer<D> {
    /// New device memory, with unspecified contents.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn new(device: &Arc<D>, bytes: u64, commit: Commit) -> Result<Self> {
        Ok(Self { id: device.allocate(bytes, commit)?, device: Arc::clone(device), bytes })
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> BufferId {
        self.id
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The place `offset` bytes into it.
    #[must_use]
    pub fn at(&self, offset: u64) -> DeviceSpan {
        DeviceSpan::new(self.id, offset)
    }
}

impl<D: Device> Drop for DeviceBuffer<D> {
    fn drop(&mut self) {
        self.device.release(self.id);
    }
}

/// Host memory that a device copies from and to; given back on drop, which blocks until work in flight has left it.
///
/// ```
/// # fn f<D: backend_api::Device>(device: &std::sync::Arc<D>) -> backend_api::Result<()> {
/// let host = backend_api::HostBuffer::new(device, 100, backend_api::HostMemory::Pageable)?;
/// host.write(10, b"abc");
/// let mut back = [0; 3];
/// host.read(10, &mut back);
/// assert_eq!(&back, b"abc");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct HostBuffer<D: Device> {
    device: Arc<D>,
    allocation: HostAllocation,
}

impl<D: Device> HostBuffer<D> {
    /// New zeroed host memory of exactly this kind.
    ///
    /// # Errors
    /// As [`Device::allocate_host`].
    pub fn new(device: &Arc<D>, bytes: usize, kind: HostMemory) -> Result<Self> {
        Ok(Self { allocation: device.allocate_host(bytes, kind)?, device: Arc::clone(device) })
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> HostId {
        self.allocation.id
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.allocation.bytes
    }

    /// Whether it is page-locked or pageable.
    #[must_use]
    pub fn kind(&self) -> HostMemory {
        self.allocation.kind
    }

    /// The place `offset` bytes into it.
    #[must_use]
    pub fn at(&self, offset: u64) -> HostSpan {
        HostSpan::new(self.allocation.id, offset)
    }

    /// Its first byte. Reaching through it needs care: see the section on races in the [crate's documentation](crate).
    #[must_use]
    pub fn address(&self) -> NonNull<u8> {
        self.allocation.address
    }

    /// Copies bytes out, tolerating work in flight that writes to them.
    ///
    /// # Panics
    /// If the range leaves the memory.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.checked(offset, into.len());
        // SAFETY: `checked` proved that the range is inside; a `&mut` elsewhere cannot overlap memory that is only
        // reached through this address.
        unsafe { racy::read(from, into) }
    }

    /// Copies bytes in, tolerating work in flight that reads or writes them.
    ///
    /// # Panics
    /// If the range leaves the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.checked(offset, bytes.len());
        // SAFETY: as in `read`.
        unsafe { racy::write(to, bytes) }
    }

    fn checked(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.allocation.bytes),
            "range of {bytes} bytes at {offset} leaves host memory of {} bytes",
            self.allocation.bytes
        );
        // SAFETY: the offset is not beyond the end of the allocation.
        unsafe { self.allocation.address.as_ptr().add(offset) }
    }
}

impl<D: Device> Drop for HostBuffer<D> {
    fn drop(&mut self) {
        self.device.release_host(self.allocation.id);
    }
}
