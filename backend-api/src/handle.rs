//! Handles of a device's queues and allocations, and positions in device memory. Only the owner of a handle
//! can release the object; code that borrows the handle can use the object.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::id::{BufferId, HostId, QueueId};

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
/// // A device refuses a handle that it did not create.
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
    /// Creates a handle with an id that is unique in the process. Backends use it when they create a queue.
    pub fn unique() -> Self {
        Self(QueueId::unique())
    }

    /// Returns the queue's id.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.0
    }
}

/// Handle of device memory. [`release`](crate::Device::release) returns the memory to the device.
///
/// A [`DeviceSpan`] borrows the handle, so no submission can use the memory after the release. Dropping the
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
    /// Creates a handle with an id that is unique in the process. Backends use it when they allocate memory.
    pub fn unique() -> Self {
        Self(BufferId::unique())
    }

    /// Returns the buffer's id.
    #[must_use]
    pub fn id(&self) -> BufferId {
        self.0
    }

    /// Returns the position at `offset` bytes from the start. It may be out of bounds; each use checks this.
    #[must_use]
    pub fn at(&self, offset: u64) -> DeviceSpan<'_> {
        DeviceSpan::new(self.0, offset)
    }
}

/// Kind of a host allocation: page-locked or pageable.
///
/// ```
/// use backend_api::{ErrorKind, HostBuffer, HostMemory};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::builder().bytes(0).pinned_max_bytes(0).build()?);
/// let buffer = match HostBuffer::new(&device, 4096, HostMemory::Pinned) {
///     Err(error) if error.kind() == ErrorKind::PinRefused => {
///         HostBuffer::new(&device, 4096, HostMemory::Pageable)?
///     }
///     other => other?,
/// };
/// assert_eq!(buffer.kind(), HostMemory::Pageable, "this device refuses to pin anything");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum HostMemory {
    /// Page-locked memory. The allocation fails with [`PinRefused`](crate::ErrorKind::PinRefused) if the
    /// system refuses to lock it.
    Pinned,
    /// Ordinary memory. Copies from and to it can be slower, because the driver may copy the bytes twice.
    Pageable,
}

/// Handle of host memory that a device can copy from and to. [`release_host`](crate::Device::release_host)
/// returns the memory to the device.
///
/// Memory of [`allocate_host`](crate::Device::allocate_host) is aligned to at least 4096 bytes and zeroed.
/// Its address stays the same until the memory is released or its device is dropped. A [`HostSpan`] borrows
/// the handle. Dropping the handle does not release the memory. A [`HostBuffer`](crate::HostBuffer) releases
/// its memory on drop and keeps its device alive.
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
    /// Creates a handle of host memory, with an id that is unique in the process. Backends call it when they
    /// allocate or import memory.
    ///
    /// # Safety
    /// Until the handle is passed to [`release_host`](crate::Device::release_host) of the device that issued
    /// it, or that device is dropped:
    ///
    /// - the `bytes` bytes from `address` on are initialised, and valid for reads and writes by any thread,
    /// - all accesses, also by work of devices, use this handle or a [`HostSpan`] that borrows it.
    ///
    /// For memory of the program that a device imports ([`import_host`](crate::Device::import_host)), the
    /// caller of the import makes these promises. As long as no other code has the handle, the caller need
    /// not keep all of them.
    pub unsafe fn new(address: NonNull<u8>, bytes: usize, kind: HostMemory) -> Self {
        Self { id: HostId::unique(), address, bytes, kind }
    }

    /// Returns the id of the host memory.
    #[must_use]
    pub fn id(&self) -> HostId {
        self.id
    }

    /// Returns the address of the first byte. Accesses through the address must follow the section "Host
    /// memory and races" in the [crate's documentation](crate).
    #[must_use]
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the kind of the memory: page-locked or pageable.
    #[must_use]
    pub fn kind(&self) -> HostMemory {
        self.kind
    }

    /// Returns the position at `offset` bytes from the start. It may be out of bounds; each use checks this.
    #[must_use]
    pub fn at(&self, offset: u64) -> HostSpan<'_> {
        HostSpan::new(self.id, offset)
    }
}

/// A position in device memory: a buffer and an offset in bytes. The position borrows the memory's owner.
/// [`DeviceBuffer::at`](crate::DeviceBuffer::at) and [`BufferHandle::at`] return positions.
///
/// ```
/// use backend_api::{Commit, DeviceBuffer, DeviceSpan};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let memory = DeviceBuffer::new(&device, 10_000, Commit::Lazy)?;
/// let place = memory.at(4096);
/// assert_eq!((place.buffer(), place.offset()), (memory.id(), 4096));
/// assert_eq!((place.plus(4096), place.with_offset(5)), (memory.at(8192), memory.at(5)));
///
/// struct Slots<M> { places: Vec<DeviceSpan<'static>>, memory: M }
/// // SAFETY: only the owner of the slots uses their places, and it also owns the memory.
/// let places = (0..10).map(|slot| unsafe { memory.at(slot * 1000).detach() }).collect();
/// let slots = Slots { places, memory };
/// assert_eq!(slots.places[9], slots.memory.at(9000));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceSpan<'a> {
    buffer: BufferId,
    offset: u64,
    owner: PhantomData<&'a BufferHandle>,
}

/// A position in host memory that the device can copy from and to: an allocation and an offset in bytes. The
/// position borrows the owner of the memory. [`HostBuffer::at`](crate::HostBuffer::at) and
/// [`HostAllocation::at`] return positions.
///
/// ```
/// use backend_api::{HostBuffer, HostMemory};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let host = HostBuffer::new(&device, 10_000, HostMemory::Pageable)?;
/// let place = host.at(4096);
/// assert_eq!((place.host(), place.offset()), (host.id(), 4096));
/// assert_eq!((place.plus(4096), place.with_offset(5)), (host.at(8192), host.at(5)));
/// // SAFETY: the place is not used after the memory has gone.
/// assert_eq!(unsafe { place.detach() }, place);
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// A device cannot store a place, and therefore cannot use it after the call:
///
/// ```compile_fail,E0521
/// # use backend_api::*;
/// # use std::sync::Mutex;
/// #[derive(Debug)]
/// struct Remembering<D> {
///     inner: D,
///     last: Mutex<Option<HostSpan<'static>>>,
/// }
///
/// // SAFETY: the inner device does everything.
/// unsafe impl<D: Device> Device for Remembering<D> {
///     fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
///         if let Request::Copies([Transfer::Download { to, .. }], _) = request {
///             *self.last.lock().unwrap() = Some(*to);
///         }
///         self.inner.submit(queue, request)
///     }
///     backend_api::forward! { self => self.inner;
///         info memory create_queue release_queue allocate release allocate_host import_host release_host
///         poll wait wake order_after
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostSpan<'a> {
    host: HostId,
    offset: u64,
    owner: PhantomData<&'a HostAllocation>,
}

macro_rules! span {
    ($Span:ident, $name:ident: $Id:ident) => {
        impl $Span<'_> {
            fn new($name: $Id, offset: u64) -> Self {
                Self { $name, offset, owner: PhantomData }
            }

            /// Returns the id of the memory that contains the position.
            #[must_use]
            pub fn $name(self) -> $Id {
                self.$name
            }

            /// Returns the offset in the memory, in bytes.
            #[must_use]
            pub fn offset(self) -> u64 {
                self.offset
            }

            /// Returns the position `bytes` bytes after this one. If the offset overflows, the device refuses
            /// each use of the position.
            #[must_use]
            pub fn plus(self, bytes: u64) -> Self {
                self.with_offset(self.offset.saturating_add(bytes))
            }

            /// Returns the position at `offset` bytes from the start of the same memory.
            #[must_use]
            pub fn with_offset(self, offset: u64) -> Self {
                Self { offset, ..self }
            }

            /// Returns the same position without the borrow of the memory's owner. For code that owns the
            /// memory and stores positions in it, or that delays the release of the memory until the last use
            /// is over.
            ///
            /// # Safety
            /// Until the last use of the position, the caller owns the memory or acts for its owner. The
            /// caller passes the position only to code that could get one from the owner at that time.
            #[must_use]
            pub unsafe fn detach(self) -> $Span<'static> {
                $Span { $name: self.$name, offset: self.offset, owner: PhantomData }
            }
        }
    };
}

span!(DeviceSpan, buffer: BufferId);
span!(HostSpan, host: HostId);
