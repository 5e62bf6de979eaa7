//! Owning handles of a device's queues and memory, which release them on drop.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::numa::OnNode;
use crate::{
    BufferHandle, BufferId, Commit, Device, DeviceSpan, HostAllocation, HostId, HostMemory, HostSpan,
    QueueHandle, QueueId, Request, Result, Ticket, racy,
};

/// An owned queue of a device. Its drop waits until its work is done, and then releases the queue.
///
/// ```
/// use backend_api::expr::{Action, Geometry, Instruction, Program, Type, Value};
/// use backend_api::{
///     Commit, Compute, Device, DeviceBuffer, Elements, Fill, Gather, HostBuffer, HostMemory, QueueProgress,
///     Queue, Request, Scatter, Search, Transfer,
/// };
/// # use std::sync::Arc;
/// let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let (queue, other) = (Queue::new(&device)?, Queue::new(&device)?);
/// assert!(queue.id() != other.id() && Arc::ptr_eq(queue.device(), &device));
/// let memory = DeviceBuffer::new(&device, 64, Commit::Lazy)?;
/// let host = HostBuffer::new(&device, 256, HostMemory::Pageable)?;
/// let word = |at| {
///     let mut bytes = [0; 8];
///     host.read(at, &mut bytes);
///     u64::from_ne_bytes(bytes)
/// };
///
/// // Device memory gets 1, 2, 3, 1, 2, 3, 1, 2, 3. How many are 3?
/// queue.submit(&Fill { to: memory.at(0), bytes: 9, pattern: &[1, 2, 3] })?;
/// let elements = Elements { start: memory.at(0), count: 9, stride: 1 };
/// let answer = host.at(0);
/// queue.submit(&Search { elements, field_offset: 0, value: &[3], limit: 0, count_all: true, answer })?;
/// // The counts of 0, 1, 2 and 3.
/// let byte = Instruction::Field { source: 0, offset: 0, of: Type::U8 };
/// let program = Program::new(vec![byte, Instruction::Cast { of: Value(0), to: Type::U32 }])?;
/// let action = Action::Histogram { value: Value(1), filter: None, bins: 4, answer: host.at(16) };
/// let geometry = Geometry::plain(0);
/// queue.submit(&Compute { program: &program, sources: &[elements], geometry, action })?;
/// // Copy element 8 to element 3 through host memory, then download all elements.
/// host.write(128, &8_u64.to_ne_bytes());
/// host.write(136, &3_u64.to_ne_bytes());
/// let (elements, values) = (elements.into(), host.at(144));
/// queue.submit(&Gather { elements, indices: host.at(128), count: 1, values })?;
/// let moved = queue.submit(&Scatter { elements, indices: host.at(136), count: 1, values })?;
/// other.order_after(moved)?;
/// let ticket = other.submit(&[Transfer::Download { from: memory.at(0), to: host.at(160), bytes: 9 }])?;
/// device.wait(ticket)?;
/// assert_eq!((word(0), [16, 24, 32, 40].map(word)), (3, [0, 3, 3, 3]));
/// let mut bytes = [0; 9];
/// host.read(160, &mut bytes);
/// assert_eq!(bytes, [1, 2, 3, 3, 2, 3, 1, 2, 3]);
///
/// // The device's own methods take the queue's handle.
/// device.wait(device.submit(queue.handle(), &Request::Copies(&[], None))?)?;
/// drop(other);
/// assert_eq!(device.poll(ticket)?, QueueProgress::Done);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct Queue<D: Device + ?Sized> {
    device: Arc<D>,
    handle: ManuallyDrop<QueueHandle>,
}

impl<D: Device + ?Sized> Queue<D> {
    /// Creates a queue of `device`. Returns the errors of [`Device::create_queue`].
    pub fn new(device: &Arc<D>) -> Result<Self> {
        Ok(Self { handle: ManuallyDrop::new(device.create_queue()?), device: Arc::clone(device) })
    }

    /// Returns the queue's id.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.handle.id()
    }

    /// Returns the queue's handle, for methods of [`Device`].
    pub fn handle(&self) -> &QueueHandle {
        &self.handle
    }

    /// Returns the device to which the queue belongs.
    #[must_use]
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// Submits a request to this queue with [`Device::submit`], and returns its errors. Accepts a [`Request`]
    /// or a value that converts to one: a list of [`Transfer`](crate::Transfer)s, or a reference to a
    /// [`Launch`](crate::Launch), a [`Fill`](crate::Fill) or another kind of request.
    pub fn submit<'a>(&self, request: impl Into<Request<'a>>) -> Result<Ticket> {
        self.device.submit(&self.handle, &request.into())
    }

    /// Delays later work of this queue until the submission with `ticket`, in any queue, is done. Calls
    /// [`Device::order_after`], and returns its errors.
    pub fn order_after(&self, ticket: Ticket) -> Result<()> {
        self.device.order_after(&self.handle, ticket)
    }
}

impl<D: Device + ?Sized> Drop for Queue<D> {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        self.device.release_queue(unsafe { ManuallyDrop::take(&mut self.handle) });
    }
}

/// Owned device memory. Its drop waits for work in flight on the memory, and then releases the memory.
///
/// ```
/// use backend_api::{Commit, Device, DeviceBuffer, ErrorKind, Fill, Queue};
/// # use std::sync::Arc;
/// let device = Arc::new(backend_host::HostDevice::new(1000)?);
/// let memory = DeviceBuffer::new(&device, 600, Commit::Proven)?;
/// assert!(DeviceBuffer::new(&device, 600, Commit::Proven).is_err(), "there is not enough for two");
/// assert_eq!((memory.bytes(), memory.at(10).buffer()), (600, memory.id()));
/// // A position may be out of bounds; each use checks the position.
/// let fill = Fill { to: memory.at(599), bytes: 2, pattern: &[1] };
/// assert_eq!(Queue::new(&device)?.submit(&fill).unwrap_err().kind(), ErrorKind::InvalidArgument);
/// drop(memory);
/// assert_eq!(device.memory()?.free_bytes, 1000);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceBuffer<D: Device + ?Sized> {
    device: Arc<D>,
    handle: ManuallyDrop<BufferHandle>,
    bytes: AtomicU64,
}

impl<D: Device + ?Sized> DeviceBuffer<D> {
    /// Allocates `bytes` bytes with unspecified contents. Returns the errors of [`Device::allocate`].
    pub fn new(device: &Arc<D>, bytes: u64, commit: Commit) -> Result<Self> {
        let handle = ManuallyDrop::new(device.allocate(bytes, commit)?);
        Ok(Self { handle, device: Arc::clone(device), bytes: AtomicU64::new(bytes) })
    }

    /// Allocates `bytes` bytes of device memory that can be [extended](Self::extend) up to `most` bytes.
    /// Returns the errors of [`Device::allocate_extensible`].
    pub fn extensible(device: &Arc<D>, bytes: u64, most: u64, commit: Commit) -> Result<Self> {
        let handle = ManuallyDrop::new(device.allocate_extensible(bytes, most, commit)?);
        Ok(Self { handle, device: Arc::clone(device), bytes: AtomicU64::new(bytes) })
    }

    /// Extends the buffer in place to `bytes` bytes; its contents stay. Returns [`Device::extend`]'s errors.
    pub fn extend(&self, bytes: u64, commit: Commit) -> Result<()> {
        self.device.extend(&self.handle, bytes, commit)?;
        self.bytes.fetch_max(bytes, Ordering::AcqRel);
        Ok(())
    }

    /// Returns the buffer's id.
    #[must_use]
    pub fn id(&self) -> BufferId {
        self.handle.id()
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Returns the position `offset` bytes from the start, as an argument of requests.
    #[must_use]
    pub fn at(&self, offset: u64) -> DeviceSpan<'_> {
        self.handle.at(offset)
    }
}

impl<D: Device + ?Sized> Drop for DeviceBuffer<D> {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        self.device.release(unsafe { ManuallyDrop::take(&mut self.handle) });
    }
}

/// Owned host memory that a device can copy from and to. Its drop waits for work in flight on the memory, and
/// then releases the memory.
///
/// ```
/// use backend_api::{HostBuffer, HostMemory};
/// # use std::sync::Arc;
/// let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let host = HostBuffer::new(&device, 100, HostMemory::Pageable)?;
/// host.write(97, b"end");
/// let mut bytes = [1; 4];
/// host.read(96, &mut bytes);
/// assert_eq!(&bytes, b"\0end");
/// assert_eq!((host.bytes(), host.kind(), host.at(10).host()), (100, HostMemory::Pageable, host.id()));
/// // SAFETY: no work in flight touches the buffer, and the byte is inside of it.
/// assert_eq!(unsafe { host.address().add(99).read() }, b'd');
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct HostBuffer<D: Device + ?Sized> {
    device: Arc<D>,
    allocation: ManuallyDrop<HostAllocation>,
}

impl<D: Device + ?Sized> HostBuffer<D> {
    /// Allocates `bytes` bytes of zeroed host memory of exactly this kind. If the device's NUMA
    /// [node](crate::DeviceInfo::numa_node) is known and has room, page-locked memory is on this node. A
    /// memory policy of the calling thread has priority. Returns the errors of [`Device::allocate_host`].
    pub fn new(device: &Arc<D>, bytes: usize, kind: HostMemory) -> Result<Self> {
        let node = device.info().numa_node.filter(|_| kind == HostMemory::Pinned);
        let _near = OnNode::prefer(node);
        let allocation = ManuallyDrop::new(device.allocate_host(bytes, kind)?);
        Ok(Self { allocation, device: Arc::clone(device) })
    }

    /// Returns the id of the host memory.
    #[must_use]
    pub fn id(&self) -> HostId {
        self.allocation.id()
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.allocation.bytes()
    }

    /// Kind of the memory: page-locked or pageable.
    #[must_use]
    pub fn kind(&self) -> HostMemory {
        self.allocation.kind()
    }

    /// Returns the position `offset` bytes from the start, as an argument of requests.
    #[must_use]
    pub fn at(&self, offset: u64) -> HostSpan<'_> {
        self.allocation.at(offset)
    }

    /// Returns the address of the first byte. Accesses through the address must follow the section "Host
    /// memory and races" in the [crate's documentation](crate).
    #[must_use]
    pub fn address(&self) -> NonNull<u8> {
        self.allocation.address()
    }

    /// Copies the bytes from `offset` on to `into`. If work in flight writes to these bytes at the same time,
    /// their values are unspecified.
    ///
    /// # Panics
    /// If the range ends beyond the memory.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.checked(offset, into.len());
        // SAFETY: `checked` proved that the range is inside; a `&mut` elsewhere cannot overlap memory that
        // is only reached through this address.
        unsafe { racy::read(from, into) }
    }

    /// Copies `bytes` to the memory from `offset` on. Work in flight may access this memory at the same time.
    ///
    /// # Panics
    /// If the range ends beyond the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.checked(offset, bytes.len());
        // SAFETY: as in `read`.
        unsafe { racy::write(to, bytes) }
    }

    fn checked(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.allocation.bytes()),
            "{bytes} bytes at offset {offset} are outside of host memory of {} bytes",
            self.allocation.bytes()
        );
        // SAFETY: the offset is not beyond the end of the allocation.
        unsafe { self.allocation.address().as_ptr().add(offset) }
    }
}

impl<D: Device + ?Sized> Drop for HostBuffer<D> {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        self.device.release_host(unsafe { ManuallyDrop::take(&mut self.allocation) });
    }
}
