//! Owners of what a device gave: they give it back when they go.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{
    BufferHandle, BufferId, Commit, Compute, Device, DeviceSpan, Fill, Gather, HostAllocation, HostId,
    HostMemory, HostSpan, QueueHandle, QueueId, Result, Scatter, Search, Ticket, Transfer, racy,
};

/// A queue of a device; ended on drop, which blocks until its work is done.
///
/// ```
/// use backend_api::{Device, Progress, Queue};
/// # use std::sync::Arc;
/// let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let queue = Queue::new(&device)?;
/// let ticket = queue.submit(&[])?;
/// drop(queue);
/// assert_eq!(device.poll(ticket)?, Progress::Done);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct Queue<D: Device> {
    device: Arc<D>,
    /// There until the drop.
    handle: ManuallyDrop<QueueHandle>,
}

impl<D: Device> Queue<D> {
    /// A new queue.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use backend_api::Queue;
    /// let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let (one, other) = (Queue::new(&device)?, Queue::new(&device)?);
    /// assert_ne!(one.id(), other.id());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Device::create_queue`].
    pub fn new(device: &Arc<D>) -> Result<Self> {
        Ok(Self { handle: ManuallyDrop::new(device.create_queue()?), device: Arc::clone(device) })
    }

    /// Its name.
    ///
    /// ```
    /// use backend_api::Queue;
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let queue = Queue::new(&device)?;
    /// assert_eq!(queue.submit(&[])?.queue, queue.id());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.handle.id()
    }

    /// The right to submit work to it, for calls of the device itself.
    ///
    /// ```
    /// use backend_api::{Device, Queue, Route};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let queue = Queue::new(&device)?;
    /// device.wait(device.submit_by(Route::Batch, queue.handle(), &[])?)?;
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn handle(&self) -> &QueueHandle {
        &self.handle
    }

    /// Its device.
    ///
    /// ```
    /// use backend_api::{Device, Queue};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let queue = Queue::new(&device)?;
    /// let ticket = queue.submit(&[])?;
    /// queue.device().wait(ticket)?;
    /// assert!(Arc::ptr_eq(queue.device(), &device));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// [`Device::submit`] on this queue.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
    /// host.write(0, b"away");
    /// queue.submit(&[Transfer::Upload { from: host.at(0), to: memory.at(0), bytes: 4 }])?;
    /// let back = Transfer::Download { from: memory.at(0), to: host.at(10), bytes: 4 };
    /// device.wait(queue.submit(&[back])?)?;
    /// let mut bytes = [0; 4];
    /// host.read(10, &mut bytes);
    /// assert_eq!(&bytes, b"away");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn submit(&self, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        self.device.submit(&self.handle, transfers)
    }

    /// [`Device::fill`] on this queue.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer, Fill, HostBuffer, HostMemory, Queue, Transfer};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
    /// queue.fill(&Fill { to: memory.at(0), bytes: 64, pattern: &[9] })?;
    /// let back = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 64 };
    /// device.wait(queue.submit(&[back])?)?;
    /// let mut bytes = [0; 64];
    /// host.read(0, &mut bytes);
    /// assert_eq!(bytes, [9; 64]);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn fill(&self, fill: &Fill<'_>) -> Result<Ticket> {
        self.device.fill(&self.handle, fill)
    }

    /// [`Device::search`] on this queue.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer, Elements, Fill, HostBuffer, HostMemory, Queue, Search};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// # queue.fill(&Fill { to: memory.at(0), bytes: 9, pattern: &[1, 2, 3] })?;
    /// // Device memory holds 1, 2, 3, 1, 2, 3, 1, 2, 3. A limit of 0 only counts.
    /// let elements = Elements { start: memory.at(0), count: 9, stride: 1 };
    /// let host = HostBuffer::new(&device, Search::answer_bytes(0) as usize, HostMemory::Pageable)?;
    /// let answer = host.at(0);
    /// let search = Search { elements, field_offset: 0, value: &[3], limit: 0, count_all: true, answer };
    /// device.wait(queue.search(&search)?)?;
    /// let mut matches = [0; 8];
    /// host.read(0, &mut matches);
    /// assert_eq!(u64::from_ne_bytes(matches), 3);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn search(&self, search: &Search<'_>) -> Result<Ticket> {
        self.device.search(&self.handle, search)
    }

    /// [`Device::gather`] on this queue.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer, Elements, Fill, Gather, HostBuffer, HostMemory, Queue};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// # queue.fill(&Fill { to: memory.at(0), bytes: 6, pattern: b"aabbcc" })?;
    /// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
    /// // Device memory holds `aabbcc`.
    /// host.write(0, &1_u64.to_ne_bytes());
    /// let elements = Elements { start: memory.at(0), count: 3, stride: 2 };
    /// let gather = Gather { elements, indices: host.at(0), count: 1, values: host.at(8) };
    /// device.wait(queue.gather(&gather)?)?;
    /// let mut value = [0; 2];
    /// host.read(8, &mut value);
    /// assert_eq!(&value, b"bb");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn gather(&self, gather: &Gather<'_>) -> Result<Ticket> {
        self.device.gather(&self.handle, gather)
    }

    /// [`Device::scatter`] on this queue.
    ///
    /// ```
    /// # use backend_api::{Commit, DeviceBuffer, Fill, HostBuffer, HostMemory, Queue, Transfer};
    /// use backend_api::{Device, Elements, Scatter};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// # queue.fill(&Fill { to: memory.at(0), bytes: 6, pattern: b"aabbcc" })?;
    /// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
    /// // Device memory holds `aabbcc`.
    /// host.write(0, &1_u64.to_ne_bytes());
    /// host.write(8, b"xx");
    /// let elements = Elements { start: memory.at(0), count: 3, stride: 2 };
    /// queue.scatter(&Scatter { elements, indices: host.at(0), count: 1, values: host.at(8) })?;
    /// # let back = Transfer::Download { from: memory.at(0), to: host.at(16), bytes: 6 };
    /// # device.wait(queue.submit(&[back])?)?;
    /// # let mut device_memory = [0; 6];
    /// # host.read(16, &mut device_memory);
    /// assert_eq!(&device_memory, b"aaxxcc");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn scatter(&self, scatter: &Scatter<'_>) -> Result<Ticket> {
        self.device.scatter(&self.handle, scatter)
    }

    /// [`Device::compute`] on this queue.
    ///
    /// ```
    /// use backend_api::{Commit, Compute, Device, DeviceBuffer, Elements, Fill, HostBuffer, HostMemory, Queue};
    /// use backend_api::expr::{Action, Geometry, Instruction, Program, Type, Value};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// # queue.fill(&Fill { to: memory.at(0), bytes: 9, pattern: &[1, 2, 3] })?;
    /// # let host = HostBuffer::new(&device, 32, HostMemory::Pageable)?;
    /// // Device memory holds 1, 2, 3, 1, 2, 3, 1, 2, 3. How many are 0, 1, 2 and 3?
    /// let byte = Instruction::Field { source: 0, offset: 0, of: Type::U8 };
    /// let program = Program::new(vec![byte, Instruction::Cast { of: Value(0), to: Type::U32 }])?;
    /// let sources = [Elements { start: memory.at(0), count: 9, stride: 1 }];
    /// let action = Action::Histogram { value: Value(1), filter: None, bins: 4, answer: host.at(0) };
    /// let compute = Compute { program: &program, sources: &sources, geometry: Geometry::plain(0), action };
    /// device.wait(queue.compute(&compute)?)?;
    /// let mut counts = [[0; 8]; 4];
    /// host.read(0, counts.as_flattened_mut());
    /// assert_eq!(counts.map(u64::from_ne_bytes), [0, 3, 3, 3]);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn compute(&self, compute: &Compute<'_>) -> Result<Ticket> {
        self.device.compute(&self.handle, compute)
    }

    /// [`Device::order_after`] on this queue.
    ///
    /// ```
    /// use backend_api::{Device, Progress, Queue};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let (first, second) = (Queue::new(&device)?, Queue::new(&device)?);
    /// let before = first.submit(&[])?;
    /// second.order_after(before)?;
    /// device.wait(second.submit(&[])?)?;
    /// assert_eq!(device.poll(before)?, Progress::Done);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn order_after(&self, ticket: Ticket) -> Result<()> {
        self.device.order_after(&self.handle, ticket)
    }
}

impl<D: Device> Drop for Queue<D> {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        self.device.release_queue(unsafe { ManuallyDrop::take(&mut self.handle) });
    }
}

/// Device memory; given back on drop, which blocks until work in flight has left it.
///
/// ```
/// use backend_api::{Commit, Device, DeviceBuffer};
/// # use std::sync::Arc;
/// let device = Arc::new(backend_host::HostDevice::new(1000)?);
/// let memory = DeviceBuffer::new(&device, 600, Commit::Proven)?;
/// assert!(DeviceBuffer::new(&device, 600, Commit::Proven).is_err(), "there is not enough for two");
/// drop(memory);
/// assert!(DeviceBuffer::new(&device, 600, Commit::Proven).is_ok());
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceBuffer<D: Device> {
    device: Arc<D>,
    /// There until the drop.
    handle: ManuallyDrop<BufferHandle>,
    bytes: u64,
}

impl<D: Device> DeviceBuffer<D> {
    /// New device memory, with unspecified contents.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer};
    /// # use std::sync::Arc;
    /// let device = Arc::new(backend_host::HostDevice::new(1000)?);
    /// let memory = DeviceBuffer::new(&device, 600, Commit::Lazy)?;
    /// assert_eq!(device.memory()?.free_bytes, 400);
    /// drop(memory);
    /// assert_eq!(device.memory()?.free_bytes, 1000);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn new(device: &Arc<D>, bytes: u64, commit: Commit) -> Result<Self> {
        let handle = ManuallyDrop::new(device.allocate(bytes, commit)?);
        Ok(Self { handle, device: Arc::clone(device), bytes })
    }

    /// Its name.
    ///
    /// ```
    /// use backend_api::{Commit, DeviceBuffer};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let memory = DeviceBuffer::new(&device, 100, Commit::Lazy)?;
    /// assert_eq!(memory.at(10).buffer(), memory.id());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn id(&self) -> BufferId {
        self.handle.id()
    }

    /// Its length in bytes.
    ///
    /// ```
    /// use backend_api::{Commit, DeviceBuffer, Fill, Queue};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let queue = Queue::new(&device)?;
    /// let memory = DeviceBuffer::new(&device, 100, Commit::Lazy)?;
    /// assert_eq!(memory.bytes(), 100);
    /// queue.fill(&Fill { to: memory.at(0), bytes: memory.bytes(), pattern: &[0] })?;
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The place `offset` bytes into it.
    ///
    /// ```
    /// use backend_api::{Commit, DeviceBuffer, ErrorKind, Fill, Queue};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let queue = Queue::new(&device)?;
    /// let memory = DeviceBuffer::new(&device, 100, Commit::Lazy)?;
    /// let fill = |offset| Fill { to: memory.at(offset), bytes: 10, pattern: &[1] };
    /// assert!(queue.fill(&fill(90)).is_ok());
    /// // The place may be anywhere; whether it is inside is checked when it is used.
    /// assert_eq!(queue.fill(&fill(91)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn at(&self, offset: u64) -> DeviceSpan<'_> {
        self.handle.at(offset)
    }
}

impl<D: Device> Drop for DeviceBuffer<D> {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        self.device.release(unsafe { ManuallyDrop::take(&mut self.handle) });
    }
}

/// Host memory that a device copies from and to; given back on drop, which blocks until work in flight has
/// left it.
///
/// ```
/// use backend_api::{HostBuffer, HostMemory};
/// # use std::sync::Arc;
/// let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let host = HostBuffer::new(&device, 100, HostMemory::Pageable)?;
/// host.write(10, b"abc");
/// let mut back = [0; 3];
/// host.read(10, &mut back);
/// assert_eq!(&back, b"abc");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct HostBuffer<D: Device> {
    device: Arc<D>,
    /// There until the drop.
    allocation: ManuallyDrop<HostAllocation>,
}

impl<D: Device> HostBuffer<D> {
    /// New zeroed host memory of exactly this kind.
    ///
    /// ```
    /// use backend_api::{HostBuffer, HostMemory};
    /// # use std::sync::Arc;
    /// let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let host = HostBuffer::new(&device, 3, HostMemory::Pageable)?;
    /// let mut bytes = [1; 3];
    /// host.read(0, &mut bytes);
    /// assert_eq!(bytes, [0; 3]);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Device::allocate_host`].
    pub fn new(device: &Arc<D>, bytes: usize, kind: HostMemory) -> Result<Self> {
        let allocation = ManuallyDrop::new(device.allocate_host(bytes, kind)?);
        Ok(Self { allocation, device: Arc::clone(device) })
    }

    /// Its name.
    ///
    /// ```
    /// use backend_api::{HostBuffer, HostMemory};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let host = HostBuffer::new(&device, 100, HostMemory::Pageable)?;
    /// assert_eq!(host.at(10).host(), host.id());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn id(&self) -> HostId {
        self.allocation.id()
    }

    /// Its length in bytes.
    ///
    /// ```
    /// use backend_api::{HostBuffer, HostMemory};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let host = HostBuffer::new(&device, 100, HostMemory::Pageable)?;
    /// assert_eq!(host.bytes(), 100);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.allocation.bytes()
    }

    /// Whether it is page-locked or pageable.
    ///
    /// ```
    /// use backend_api::{HostBuffer, HostMemory};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let host = HostBuffer::new(&device, 100, HostMemory::Pageable)?;
    /// assert_eq!(host.kind(), HostMemory::Pageable);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn kind(&self) -> HostMemory {
        self.allocation.kind()
    }

    /// The place `offset` bytes into it.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// let host = HostBuffer::new(&device, 20, HostMemory::Pageable)?;
    /// host.write(0, b"0123456789");
    /// queue.submit(&[Transfer::Upload { from: host.at(4), to: memory.at(0), bytes: 2 }])?;
    /// device.wait(queue.submit(&[Transfer::Download { from: memory.at(0), to: host.at(10), bytes: 2 }])?)?;
    /// let mut bytes = [0; 2];
    /// host.read(10, &mut bytes);
    /// assert_eq!(&bytes, b"45");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn at(&self, offset: u64) -> HostSpan<'_> {
        self.allocation.at(offset)
    }

    /// Its first byte. Reaching through it needs care: see the section on races in the [crate's
    /// documentation](crate).
    ///
    /// ```
    /// use backend_api::{HostBuffer, HostMemory};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let host = HostBuffer::new(&device, 100, HostMemory::Pageable)?;
    /// host.write(0, &[5]);
    /// // SAFETY: no work in flight touches the buffer, and the byte is inside of it.
    /// assert_eq!(unsafe { host.address().read() }, 5);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn address(&self) -> NonNull<u8> {
        self.allocation.address()
    }

    /// Copies bytes out, tolerating work in flight that writes to them.
    ///
    /// ```
    /// use backend_api::{HostBuffer, HostMemory};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let host = HostBuffer::new(&device, 100, HostMemory::Pageable)?;
    /// host.write(97, b"end");
    /// let mut bytes = [0; 4];
    /// host.read(96, &mut bytes);
    /// assert_eq!(&bytes, b"\0end");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the range leaves the memory.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.checked(offset, into.len());
        // SAFETY: `checked` proved that the range is inside; a `&mut` elsewhere cannot overlap memory that is
        // only reached through this address.
        unsafe { racy::read(from, into) }
    }

    /// Copies bytes in, tolerating work in flight that reads or writes them.
    ///
    /// ```
    /// use backend_api::{HostBuffer, HostMemory};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let host = HostBuffer::new(&device, 100, HostMemory::Pageable)?;
    /// host.write(0, b"abc");
    /// host.write(1, b"x");
    /// let mut bytes = [0; 3];
    /// host.read(0, &mut bytes);
    /// assert_eq!(&bytes, b"axc");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
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
            offset.checked_add(bytes).is_some_and(|end| end <= self.allocation.bytes()),
            "range of {bytes} bytes at {offset} leaves host memory of {} bytes",
            self.allocation.bytes()
        );
        // SAFETY: the offset is not beyond the end of the allocation.
        unsafe { self.allocation.address().as_ptr().add(offset) }
    }
}

impl<D: Device> Drop for HostBuffer<D> {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        self.device.release_host(unsafe { ManuallyDrop::take(&mut self.allocation) });
    }
}
