//! Handles of a device's objects. Each handle has one owner; code that borrows the handle may use the object.

use std::ptr::NonNull;

use crate::id::{BufferId, HostId, QueueId};
use crate::{DeviceSpan, HostMemory, HostSpan};

/// Handle of a queue of a device. [`release_queue`](crate::Device::release_queue) releases the queue.
///
/// A program needs this handle to submit work; a [`QueueId`] only identifies the queue. Dropping the handle
/// does not release the queue, which then lives as long as its device. A [`Queue`](crate::Queue) releases its
/// queue on drop.
///
/// ```
/// use backend_api::{Device, QueueHandle, Request};
/// let device = backend_host::HostDevice::new(1 << 20)?;
/// let queue = device.create_queue()?;
/// let ticket = device.submit(&queue, &Request::Copies(&[], None))?;
/// assert_eq!(ticket.queue, queue.id());
/// device.release_queue(queue);
/// // A name alone is none that a device knows.
/// assert!(device.submit(&QueueHandle::unique(), &Request::Copies(&[], None)).is_err());
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// A released queue takes no more work:
///
/// ```compile_fail,E0382
/// # use backend_api::{Device, Request};
/// # let device = backend_host::HostDevice::new(1 << 20)?;
/// let queue = device.create_queue()?;
/// device.release_queue(queue);
/// device.submit(&queue, &Request::Copies(&[], None))?;
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "dropping the handle does not release the queue: pass it to `release_queue`"]
pub struct QueueHandle(QueueId);

impl QueueHandle {
    /// Creates a handle with an id that is unique in the process. For backends, which then add the handle to
    /// the device's tables.
    pub fn unique() -> Self {
        Self(QueueId::unique())
    }

    /// Returns the id.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.0
    }
}

/// Handle of device memory. [`release`](crate::Device::release) returns the memory to the device.
///
/// Places in the memory borrow the handle, so no submission can use them after the release. Dropping the
/// handle does not release the memory. A [`DeviceBuffer`](crate::DeviceBuffer) releases its memory on drop.
///
/// ```
/// use backend_api::{BufferHandle, Commit, Device, Fill, Request};
/// let device = backend_host::HostDevice::new(1000)?;
/// let queue = device.create_queue()?;
/// let buffer = device.allocate(600, Commit::Lazy)?;
/// device.submit(&queue, &Request::Fill(&Fill { to: buffer.at(100), bytes: 500, pattern: &[1] }))?;
/// assert_ne!(buffer.id(), BufferHandle::unique().id());
/// device.release(buffer);
/// assert_eq!(device.memory()?.free_bytes, 1000);
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// A place does not outlive the handle:
///
/// ```compile_fail,E0505
/// # use backend_api::{Commit, Device, Fill, Request};
/// # let device = backend_host::HostDevice::new(1000)?;
/// # let queue = device.create_queue()?;
/// let buffer = device.allocate(600, Commit::Lazy)?;
/// let place = buffer.at(100);
/// device.release(buffer);
/// device.submit(&queue, &Request::Fill(&Fill { to: place, bytes: 500, pattern: &[1] }))?;
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "dropping the handle does not release the memory: pass it to `release`"]
pub struct BufferHandle(BufferId);

impl BufferHandle {
    /// Creates a handle with an id that is unique in the process. For backends, which then add the handle to
    /// the device's tables.
    pub fn unique() -> Self {
        Self(BufferId::unique())
    }

    /// Returns the id.
    #[must_use]
    pub fn id(&self) -> BufferId {
        self.0
    }

    /// Returns the place at `offset` bytes from the start. It may be out of bounds; each use checks that.
    #[must_use]
    pub fn at(&self, offset: u64) -> DeviceSpan<'_> {
        DeviceSpan::new(self.0, offset)
    }
}

/// Handle of host memory that a device can copy from and to. [`release_host`](crate::Device::release_host)
/// returns the memory to the device.
///
/// Memory of [`allocate_host`](crate::Device::allocate_host) is aligned to at least 4096 bytes and zeroed.
/// Its address stays the same until it is released or its device is dropped. Places in the memory borrow the
/// handle. Dropping the handle does not release the memory. A [`HostBuffer`](crate::HostBuffer) releases its
/// memory on drop and keeps its device alive.
///
/// ```
/// use std::ptr::NonNull;
/// use backend_api::{Device, HostAllocation, HostMemory};
/// let device = backend_host::HostDevice::new(0)?;
/// let host = device.allocate_host(100, HostMemory::Pageable)?;
/// assert_eq!((host.bytes(), host.kind(), host.at(10).host()), (100, HostMemory::Pageable, host.id()));
/// // SAFETY: no work in flight touches the memory, and the byte is inside of it.
/// assert_eq!(unsafe { host.address().read() }, 0);
/// device.release_host(host);
///
/// let mut memory = [0_u64; 512];
/// // SAFETY: the array outlives all uses of the handle, and is reached through nothing else meanwhile.
/// let own = unsafe { HostAllocation::new(NonNull::from(&mut memory).cast(), 4096, HostMemory::Pageable) };
/// assert_eq!(own.bytes(), 4096);
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// Code cannot release memory that another value owns: an id is not enough, and the handle in a
/// [`HostBuffer`](crate::HostBuffer) cannot be moved out:
///
/// ```compile_fail,E0308
/// use backend_api::{Device, HostBuffer, HostMemory};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(0)?);
/// let buffer = HostBuffer::new(&device, 4096, HostMemory::Pageable)?;
/// device.release_host(buffer.id());
/// buffer.read(0, &mut [0; 8]); // This would read memory that is gone.
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// A wrapper cannot release memory that it has handed out either:
///
/// ```compile_fail,E0382
/// # use backend_api::*;
/// # use std::sync::Mutex;
/// #[derive(Debug)]
/// struct Remembering<D> {
///     inner: D,
///     frames: Mutex<Vec<HostAllocation>>,
/// }
///
/// // SAFETY: the inner device does everything.
/// unsafe impl<D: Device> Device for Remembering<D> {
///     fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
///         let frame = self.inner.allocate_host(bytes, kind)?;
///         self.frames.lock().unwrap().push(frame);
///         Ok(frame)
///     }
///     backend_api::forward! { self => self.inner;
///         info memory create_queue release_queue allocate release import_host release_host
///         submit poll wait wake order_after
///     }
/// }
/// ```
///
/// Safe code cannot create a handle of host memory:
///
/// ```compile_fail,E0133
/// use backend_api::{HostAllocation, HostMemory};
/// let nowhere = std::ptr::NonNull::dangling();
/// let wrong = HostAllocation::new(nowhere, 1 << 20, HostMemory::Pageable);
/// ```
#[derive(Debug)]
#[must_use = "dropping the handle does not release the memory: pass it to `release_host`"]
pub struct HostAllocation {
    id: HostId,
    address: NonNull<u8>,
    bytes: usize,
    kind: HostMemory,
}

// SAFETY: an allocation is a name and an address; access through it needs further unsafe code, or the
// atomics of `HostBuffer`.
unsafe impl Send for HostAllocation {}
// SAFETY: as above.
unsafe impl Sync for HostAllocation {}

impl HostAllocation {
    /// Creates a handle of memory, with an id that is unique in the process. For backends, which then add the
    /// handle to the device's tables.
    ///
    /// # Safety
    /// Until the handle is passed to [`release_host`](crate::Device::release_host) of the device that
    /// issued it, or that device is dropped:
    ///
    /// - the `bytes` bytes from `address` on are initialised, and valid for reads and writes by any thread,
    /// - all access goes through this handle and places borrowed from it, which includes work on these
    ///   places.
    ///
    /// For memory of the program that a device imports ([`import_host`](crate::Device::import_host)), the
    /// caller of the import makes these promises. As long as no other code has the handle, the caller need
    /// not keep all of them.
    pub unsafe fn new(address: NonNull<u8>, bytes: usize, kind: HostMemory) -> Self {
        Self { id: HostId::unique(), address, bytes, kind }
    }

    /// Returns the id.
    #[must_use]
    pub fn id(&self) -> HostId {
        self.id
    }

    /// Address of the first byte. Access through the address is subject to rules: see "Host memory and races"
    /// in the [crate's documentation](crate).
    #[must_use]
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Kind of the memory: page-locked or pageable.
    #[must_use]
    pub fn kind(&self) -> HostMemory {
        self.kind
    }

    /// Returns the place at `offset` bytes from the start. It may be out of bounds; each use checks that.
    #[must_use]
    pub fn at(&self, offset: u64) -> HostSpan<'_> {
        HostSpan::new(self.id, offset)
    }
}
