//! The trait that a backend implements.

use std::fmt::Debug;
use std::ptr::NonNull;
use std::task::Waker;

use crate::kernel::KernelFacts;
use crate::{
    BufferHandle, Compute, DeviceInfo, DeviceSpan, Error, ErrorKind, Fill, Gather, HostAllocation, Launch,
    MemoryStatus, QueueHandle, Reach, Result, Route, Routing, Scatter, Search, Ticket, Transfer,
};

/// The state of a queue's work up to a ticket.
///
/// ```
/// use backend_api::{Device, Progress, Queue};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let queue = Queue::new(&device)?;
/// let ticket = queue.submit(&[])?;
/// while device.poll(ticket)? == Progress::Pending {
///     // Time for other work.
/// }
/// assert_eq!(device.poll(ticket)?, Progress::Done);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Progress {
    /// Some of it is not done yet.
    Pending,
    /// All of it is done.
    Done,
}

/// The kind of a host allocation.
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
    /// Page-locked memory. The call fails with [`PinRefused`](crate::ErrorKind::PinRefused) if the system
    /// refuses.
    Pinned,
    /// Ordinary memory. Copies may be slower and may need an intermediate copy.
    Pageable,
}

/// The guarantee that an allocation's memory exists.
///
/// ```
/// use backend_api::{Commit, DeviceBuffer, ErrorKind};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(4 << 20)?);
/// // Nothing can turn out to be missing later.
/// let _memory = DeviceBuffer::new(&device, 4 << 20, Commit::Proven)?;
/// let error = DeviceBuffer::new(&device, 1, Commit::Lazy).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::OutOfMemory);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Commit {
    /// The driver's own choice: many drivers find the memory only at first use.
    Lazy,
    /// The device has written to every part before the call returns, so the memory is known to exist. If
    /// the backend can check it, the memory is also on the device and not spilled to host memory.
    Proven,
}

/// Reads of a device's memory by the calling thread itself: [`Device::direct_reads`].
///
/// ```
/// use backend_api::{Commit, Device, DeviceBuffer, DirectReads};
/// # use std::sync::Arc;
/// let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let memory = DeviceBuffer::new(&device, 100, Commit::Lazy)?;
/// let direct: &dyn DirectReads = device.direct_reads().unwrap();
/// let mut bytes = [1; 10];
/// direct.read_directly(memory.at(90), &mut bytes)?;
/// assert_eq!((bytes, direct.unit_bytes()), ([0; 10], 1));
/// # Ok::<_, backend_api::Error>(())
/// ```
pub trait DirectReads: Send + Sync {
    /// Copies bytes out of a buffer. Blocks until they are copied.
    ///
    /// The read is ordered with no queue. The caller ensures that no work in flight writes to these bytes;
    /// otherwise each may be old or new. The caller also ensures that the buffer is not released
    /// meanwhile: a release does not wait for this read. After an error, the contents of `into` are
    /// unspecified.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle), [`InvalidArgument`](ErrorKind::InvalidArgument) for a
    /// range outside of the buffer, and the errors of copies by a queue.
    fn read_directly(&self, from: DeviceSpan<'_>, into: &mut [u8]) -> Result<()>;

    /// The smallest number of bytes that the device reads for any request. It is not zero and does not
    /// change while the device lives.
    fn unit_bytes(&self) -> usize {
        1
    }
}

/// The address space of a device's memory: [`Device::addresses`].
///
/// ```
/// use backend_api::{AddressSpace, Device};
/// let device = backend_host::HostDevice::new(1 << 20)?;
/// assert_eq!(device.addresses().unwrap().space(), AddressSpace::Host);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddressSpace {
    /// The process's own: addresses are pointers.
    Host,
    /// CUDA's address space: memory of the GPU of this number, in its primary context, which all CUDA code
    /// of the process shares.
    Cuda {
        /// The driver's number of the GPU.
        ordinal: u32,
    },
}

/// The addresses of a device's memory, for other libraries of the process: [`Device::addresses`].
///
/// An address is a number. Code that accesses memory through it ensures that the memory is not released
/// meanwhile. It also ensures that no work of the device writes to bytes that the code reads, and that no
/// work accesses bytes that the code writes. Queues do not know of such accesses.
///
/// ```
/// use backend_api::{AddressSpace, Addresses, Commit, Device, DeviceBuffer, ErrorKind};
/// # use std::sync::Arc;
/// let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let memory = DeviceBuffer::new(&device, 100, Commit::Lazy)?;
/// let addresses: &dyn Addresses = device.addresses().unwrap();
/// assert_eq!(addresses.space(), AddressSpace::Host);
/// let start = addresses.address(memory.at(0), 100)?;
/// assert_eq!(addresses.address(memory.at(10), 90)?, start + 10);
/// assert_eq!(addresses.address(memory.at(10), 91).unwrap_err().kind(), ErrorKind::InvalidArgument);
/// addresses.synchronize()?;
/// # Ok::<_, backend_api::Error>(())
/// ```
pub trait Addresses: Send + Sync {
    /// The address space. It does not change while the device lives.
    fn space(&self) -> AddressSpace;

    /// Returns the address of a place that `bytes` bytes follow. It stays the same until the memory is
    /// released.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle), or [`InvalidArgument`](ErrorKind::InvalidArgument) for
    /// a range outside of the buffer.
    fn address(&self, place: DeviceSpan<'_>, bytes: u64) -> Result<u64>;

    /// Blocks until all work is over that other libraries have submitted to the device so far.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost), or the driver's error.
    fn synchronize(&self) -> Result<()>;
}

/// A GPU, or a substitute for one.
///
/// The [crate's documentation](crate) states the rules for all methods; each method lists its own rules.
/// The conformance suite checks both. Wrappers forward methods by [`forward!`](crate::forward);
/// [`requests!`](crate::requests) implements all methods that submit work by one expression.
///
/// - Any thread may call any method at any time. `dyn Device` is a type.
/// - No method panics because of a caller's argument, a driver or a full device.
/// - *Never blocks* means that a method waits for no work of a queue and for no other thread's call into a
///   driver. It takes locks that are held for moments, and may query the driver for facts that the driver
///   returns at once. It does not bound a time.
///
/// # Safety
/// Unsafe code relies on the promises of a device. An owner reads host memory at the address that the
/// device returned. A page cache hands out slices of its frames while other frames are copied. An
/// implementation promises:
///
/// - **Host memory.** The memory of [`allocate_host`](Self::allocate_host) is zeroed, and keeps the
///   promises of [`HostAllocation::new`]. It does so until it is [released](Self::release_host) or the
///   device is dropped.
/// - **Nothing else is touched.** Work reads and writes only the ranges that its call names. It writes
///   only to the ranges that the call names as targets, and only after the call has begun. No other call
///   starts work.
/// - **Done is over.** A ticket leaves the state *pending*, by success or by an error, only when all of
///   its work is over for good, reads as well as writes. The same holds for the work of a call that
///   returned an error.
/// - **Memory outlives work.** Submitted work keeps the memory that it touches alive. Releasing host
///   memory, device memory or a queue returns when all work that touches it is over. Dropping the device
///   does too. This includes work of other devices that [reach](Self::reaches) the memory. None of these
///   calls waits for a waker: it may wait for a lock that the caller holds.
/// - **Names are not mistaken.** A handle of another device is refused, or ignored by a release. A place
///   or a ticket of another device is refused as well, unless this device reaches that one and the call
///   accepts such places.
/// - **Races are tolerated.** Owners read and write host memory while the processor copies. So the
///   processor copies to and from host memory, imported memory included, only by [`racy`](crate::racy). It
///   does the same for device memory if two queues can reach one range at once. An index in host memory is
///   used only if that very reading of it was checked.
///
/// # Examples
/// Memory, queues and tickets:
///
/// ```
/// use std::task::Waker;
/// use backend_api::{Commit, Device, DeviceKind, ErrorKind, HostMemory, Progress, Transfer};
/// let device = backend_host::HostDevice::new(1000)?;
/// assert_eq!((device.info().kind, device.memory()?.free_bytes), (DeviceKind::HostMemory, 1000));
/// let (copies, others) = (device.create_queue()?, device.create_queue()?);
/// let (buffer, host) = (device.allocate(600, Commit::Lazy)?, device.allocate_host(64, HostMemory::Pageable)?);
/// assert_eq!(device.allocate(600, Commit::Lazy).unwrap_err().kind(), ErrorKind::OutOfMemory);
/// let mut words = *b"there here ";
/// let address = std::ptr::NonNull::from(&mut words).cast();
/// // SAFETY: the array outlives the import, and is not touched before it is released.
/// let own = unsafe { device.import_host(address, words.len(), HostMemory::Pageable)? };
///
/// let up = device.submit(&copies, &[Transfer::Upload { from: own.at(0), to: buffer.at(0), bytes: 5 }])?;
/// device.order_after(&others, up)?;
/// let down = device.submit(&others, &[Transfer::Download { from: buffer.at(0), to: own.at(6), bytes: 5 }])?;
/// device.wait(down)?;
/// assert_eq!(device.poll(up)?, Progress::Done);
/// device.wake(up, Waker::noop().clone());
/// device.release_host(own);
/// assert_eq!(&words, b"there there");
///
/// // Memory and queues can be released without a wait.
/// device.submit(&copies, &[Transfer::Download { from: buffer.at(0), to: host.at(0), bytes: 64 }])?;
/// device.release_host(host);
/// device.release(buffer);
/// device.release_queue(copies);
/// assert_eq!((device.poll(up)?, device.memory()?.free_bytes), (Progress::Done, 1000));
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// Memory that grows in its place:
///
/// ```
/// use backend_api::{Commit, Device, ErrorKind};
/// let device = backend_host::HostDevice::new(1000)?;
/// let buffer = device.allocate_extensible(100, 5000, Commit::Lazy)?;
/// device.extend(&buffer, 900, Commit::Proven)?;
/// assert_eq!(device.memory()?.free_bytes, 100);
/// assert_eq!(device.extend(&buffer, 2000, Commit::Lazy).unwrap_err().kind(), ErrorKind::OutOfMemory);
/// assert_eq!(device.extend(&buffer, 6000, Commit::Lazy).unwrap_err().kind(), ErrorKind::TooLarge);
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// Kernels, each shown where its request is described:
///
/// ```
/// use backend_api::expr::{Action, Geometry, Instruction, Partial, Program, Type, Value};
/// use backend_api::{Commit, Compute, Device, Elements, Fill, Gather, HostMemory, Scatter, Search, racy};
/// let device = backend_host::HostDevice::new(1000)?;
/// let (queue, buffer) = (device.create_queue()?, device.allocate(64, Commit::Lazy)?);
/// let host = device.allocate_host(Compute::partials_bytes() as usize, HostMemory::Pageable)?;
/// device.fill(&queue, &Fill { to: buffer.at(0), bytes: 9, pattern: &[1, 2, 3] })?;
/// let elements = Elements { start: buffer.at(0), count: 9, stride: 1 };
/// let (indices, answer) = (host.at(0), host.at(64));
/// device.search(&queue, &Search { elements, field_offset: 0, value: &[2], limit: 2, count_all: true, answer })?;
/// // New host memory is zeroed, so each moves elements 0 and 0 to or from the values.
/// device.gather(&queue, &Gather { elements: elements.into(), indices, count: 2, values: host.at(16) })?;
/// device.scatter(&queue, &Scatter { elements: elements.into(), indices, count: 1, values: host.at(17) })?;
/// let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U8 }])?;
/// let action = Action::Sum { value: Value(0), filter: None, answer: host.at(0) };
/// let geometry = Geometry::plain(0);
/// let compute = Compute { program: &program, sources: &[elements], geometry, action };
/// device.prepare(&compute)?; // From here on nothing waits for a compiler.
/// device.wait(device.compute(&queue, &compute)?)?;
/// let mut words = [[0; 8]; 6];
/// // SAFETY: the memory is longer, and there is no reference to it.
/// unsafe { racy::read(host.address().as_ptr(), words.as_flattened_mut()) };
/// assert_eq!(Partial::sum_of_integers(&Partial::list(&words.map(u64::from_ne_bytes))), 18);
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// Kernels of the program:
///
/// ```
/// use backend_api::{Device, ErrorKind, HostMemory, Launch, expr::Geometry, kernel::Kernel};
/// let device = backend_host::HostDevice::new(1000)?;
/// let (queue, host) = (device.create_queue()?, device.allocate_host(32, HostMemory::Pageable)?);
/// let nothing = Kernel::new(Default::default())?;
/// let launch = Launch::new(&nothing, 10, Geometry::plain(0), host.at(0));
/// device.prepare_launches(&[launch])?;
/// device.wait(device.launch(&queue, &launch)?)?;
/// // A device that interprets kernels knows of no registers.
/// assert_eq!(device.kernel_facts(&launch).unwrap_err().kind(), ErrorKind::Unsupported);
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// Routes, and memory that is wiped:
///
/// ```
/// use std::time::Duration;
/// use backend_api::{Commit, Device, Route, Routing};
/// use backend_host::SimulatedDevice;
/// let builder = SimulatedDevice::builder(1).route(Route::Single, Duration::ZERO, Duration::ZERO);
/// let device = builder.route(Route::Kernel, Duration::ZERO, Duration::ZERO).build();
/// assert_eq!(device.routes(), [Route::Single, Route::Kernel]);
/// device.wait(device.submit_by(Route::Kernel, &device.create_queue()?, &[])?)?;
/// device.set_routing(Routing::only(Route::Kernel));
/// assert_eq!(device.routing(), Routing::only(Route::Kernel));
/// device.wipe_on_release()?;
/// device.release(device.allocate(100, Commit::Lazy)?);
/// assert_eq!(device.wiped_bytes(), 100);
/// # Ok::<_, backend_api::Error>(())
/// ```
pub unsafe trait Device: Debug + Send + Sync + 'static {
    /// The facts about the device.
    ///
    /// - Never blocks. They do not change while the device lives.
    fn info(&self) -> &DeviceInfo;

    /// Returns the amount of memory that the device has now.
    ///
    /// - May ask the driver.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost), or the driver's error.
    fn memory(&self) -> Result<MemoryStatus>;

    /// Creates an in-order queue.
    ///
    /// - Work of one queue runs in the order of submission; each call sees the effects of the calls before
    ///   it.
    /// - Work of two queues may run at the same time and in any order.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost), or a refusal by the system or the driver.
    fn create_queue(&self) -> Result<QueueHandle>;

    /// Releases a queue.
    ///
    /// - Blocks until its work is over.
    /// - Tickets of a released queue stay valid, but their errors are forgotten: all of them are then
    ///   reported as done. A caller that needs an outcome polls before it releases the queue.
    /// - A queue of another device is ignored.
    fn release_queue(&self, queue: QueueHandle);

    /// Allocates `bytes` bytes of device memory.
    ///
    /// - The contents are unspecified.
    /// - If the driver limits the size of one allocation, the device joins several behind one handle.
    /// - Allocations of zero bytes are valid.
    ///
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) with the requested and the available bytes,
    /// [`TooLarge`](ErrorKind::TooLarge), [`Lost`](ErrorKind::Lost).
    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle>;

    /// Allocates `bytes` bytes of device memory that can be [extended](Self::extend) in its place, up to
    /// `most` bytes.
    ///
    /// - All other calls treat it like memory of [`allocate`](Self::allocate).
    /// - The range for growth reserves addresses, not memory. A device that cannot reserve addresses may
    ///   allocate memory in steps instead, each of at most an eighth of `most`.
    /// - `most` may be more than the device has, and is at least `bytes`. [`u64::MAX`] means the device's
    ///   own limit; a device that allocates in steps may refuse that as unsupported.
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate), for `bytes`;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if `most` is less than `bytes`;
    /// [`Unsupported`](ErrorKind::Unsupported) if the device or its driver has no such memory, which is
    /// the default.
    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        let _ = commit;
        Err(Error::new(ErrorKind::Unsupported, "allocate_extensible")
            .with_bytes(bytes)
            .with_detail(format!("this device has no memory that can grow to {most} bytes"))
            .with_advice("allocate all of it at once, or use another device")
            .on(self.info()))
    }

    /// Extends [such memory](Self::allocate_extensible) to `bytes` bytes, in its place.
    ///
    /// - Existing places stay valid, and existing bytes stay unchanged. Work in flight on them continues;
    ///   the call does not wait for it.
    /// - The contents of the added bytes are unspecified.
    /// - Memory that is long enough already stays unchanged.
    /// - After an error the memory is unchanged.
    ///
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) with the requested and the available bytes,
    /// [`TooLarge`](ErrorKind::TooLarge) for more than `most` bytes, or for memory that cannot grow,
    /// [`UnknownHandle`](ErrorKind::UnknownHandle), [`Unsupported`](ErrorKind::Unsupported),
    /// [`Lost`](ErrorKind::Lost).
    fn extend(&self, buffer: &BufferHandle, bytes: u64, commit: Commit) -> Result<()> {
        let _ = (buffer, commit);
        Err(Error::new(ErrorKind::Unsupported, "extend").with_bytes(bytes).on(self.info()))
    }

    /// Releases device memory.
    ///
    /// - Blocks until submitted work that touches it is over.
    /// - Memory of another device is ignored, and stays allocated.
    fn release(&self, buffer: BufferHandle);

    /// Allocates host memory that the device copies from and to, usable by all of its queues.
    ///
    /// - It is zeroed, aligned to at least 4096 bytes, and shared with no other allocation.
    /// - Its address stays the same until [`release_host`](Self::release_host), or until the device is
    ///   dropped.
    /// - Allocations of zero bytes are valid.
    ///
    /// # Errors
    /// [`PinRefused`](ErrorKind::PinRefused) for more pinned memory than the system allows,
    /// [`OutOfMemory`](ErrorKind::OutOfMemory), [`Lost`](ErrorKind::Lost).
    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation>;

    /// Imports memory of the program, as pageable memory or, if `kind` requires it, locked in place.
    ///
    /// - The device copies from and to the memory itself, at any alignment; its contents stay.
    /// - A device that cannot import memory, or not as this kind, refuses the call.
    /// - The call itself neither reads nor writes the memory. Work accesses it like memory of
    ///   [`allocate_host`](Self::allocate_host): by [`racy`](crate::racy), or by a GPU.
    /// - Releasing removes it from the device's tables, wipes nothing, and leaves the memory to the
    ///   program.
    ///
    /// # Errors
    /// [`PinRefused`](ErrorKind::PinRefused), [`Unsupported`](ErrorKind::Unsupported),
    /// [`Lost`](ErrorKind::Lost).
    ///
    /// # Safety
    /// The caller promises, until [`release_host`](Self::release_host) has returned or the device was
    /// dropped:
    ///
    /// - the `bytes` bytes from `address` on stay allocated and initialised, and any thread may read them;
    ///   any thread may also write to them, if work names them as a target,
    /// - the program keeps to the rules on [races](crate#the-contract) with work that names them. While
    ///   work that writes them is in flight, the program has no reference into them, and accesses them by
    ///   [`racy`](crate::racy) alone. While work that reads them is in flight, the program has no `&mut`
    ///   into them, and writes to them by `racy` alone. A `&` into bytes that work only reads may stay,
    ///   and so may a `&mut` that is not used meanwhile, if its provenance and that of `address` are
    ///   exposed.
    ///
    /// The handle, and places borrowed from it, let safe code submit such work.
    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation>;

    /// Releases host memory, or ends the import of imported memory.
    ///
    /// - Blocks until submitted work that touches it is over.
    /// - Memory of another device is ignored, and stays allocated.
    fn release_host(&self, host: HostAllocation);

    /// Turns on wiping: from now on, the device overwrites memory with zeroes before it returns it to the
    /// driver or the system.
    ///
    /// - It concerns all users of the device, and memory allocated before the call: device memory, host
    ///   memory that the device allocated, and internal memory through which data of the program passes.
    ///   Memory of the program is not wiped: [imported](Self::import_host) memory, and the arguments and
    ///   results of calls.
    /// - The thread that releases memory wipes it when the work that touches it is done. This takes about
    ///   as long as writing all of it. The same holds for memory that is released because another step
    ///   failed.
    /// - Unreachable data is not wiped: memory of a lost device, the system's swap space, and a GPU's
    ///   registers and caches. Drives and file systems that move a file's blocks also keep the former
    ///   places.
    /// - Memory that cannot be wiped is released nevertheless. The device reports it to the program's
    ///   subscriber of `tracing`, or to standard error if it has none.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the device cannot wipe, which is the default; or the
    /// driver's error if it refuses a resource that wiping needs.
    fn wipe_on_release(&self) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "wipe_on_release")
            .with_detail("this device does not wipe memory")
            .with_advice("leave wiping out, or use another device")
            .on(self.info()))
    }

    /// Makes written data durable: it survives the end of the process and a loss of power. Of work that is
    /// not done at the call, some or all effects may become durable.
    ///
    /// - Blocks until the data is durable.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind};
    /// let device = backend_host::HostDevice::new(1 << 20)?;
    /// assert_eq!(device.sync().unwrap_err().kind(), ErrorKind::Unsupported);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if memory of the device does not outlive the process, which
    /// is the default; else the system's error. The next call tries again for data that is not durable
    /// yet.
    fn sync(&self) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "sync")
            .with_detail("the memory of this device is lost when the process ends")
            .with_advice("store persistent data in a file")
            .on(self.info()))
    }

    /// Returns reads by the calling thread itself, if it can reach memory of the device, as with RAM and
    /// files. A short read then costs a copy or a system call, and no queue. A device has them for its
    /// whole life, or never.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer};
    /// # use std::sync::Arc;
    /// let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// let memory = DeviceBuffer::new(&device, 100, Commit::Lazy)?;
    /// let mut bytes = [1; 10];
    /// device.direct_reads().unwrap().read_directly(memory.at(90), &mut bytes)?;
    /// assert_eq!(bytes, [0; 10]);
    /// assert!(device.direct_reads().unwrap().read_directly(memory.at(91), &mut bytes).is_err());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    fn direct_reads(&self) -> Option<&dyn DirectReads> {
        None
    }

    /// Returns the addresses of the device's memory, if other libraries can use them: for RAM and for
    /// NVIDIA's GPUs. A wrapper that must see all writes has none. A device has them for its whole life,
    /// or never.
    ///
    /// ```
    /// use backend_api::Device;
    /// let device = backend_host::HostDevice::new(1 << 20)?;
    /// assert!(device.addresses().is_some());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    fn addresses(&self) -> Option<&dyn Addresses> {
        None
    }

    /// Submits copies.
    ///
    /// - Returns before they are done.
    /// - All names and ranges are checked before any copy starts.
    /// - The copies of one call may run in any order and at once. If one copy writes bytes that another
    ///   copy reads or writes, these bytes are unspecified.
    /// - Places of [`Transfer::Internal`] may be in memory of devices that this device
    ///   [reaches](Self::reaches).
    /// - An empty slice returns a ticket for the work before it.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a range outside of its memory,
    /// [`UnknownHandle`](ErrorKind::UnknownHandle), [`Lost`](ErrorKind::Lost), or the driver's error.
    /// After an error no part of the call is or will be in flight; after the first two, no byte was
    /// changed.
    fn submit(&self, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket>;

    /// The routes by which the device can carry the copies of one call, for a program that measures them.
    ///
    /// - Empty, the default, if the device has a single route.
    fn routes(&self) -> &[Route] {
        &[]
    }

    /// Submits like [`submit`](Self::submit), by a given route.
    ///
    /// - Copies that the route cannot carry go as `submit` sends them. So do all copies on devices without
    ///   the route, which is the default.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit).
    fn submit_by(&self, route: Route, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        let _ = route;
        self.submit(queue, transfers)
    }

    /// Sets the table of routes for the copies of [`submit`](Self::submit). It replaces the device's own
    /// choice; an empty table restores that choice.
    ///
    /// - Never blocks, and changes no effect of any call.
    /// - Devices with one route ignore the table. A device also ignores each class that names a route that
    ///   it lacks.
    fn set_routing(&self, routing: Routing) {
        let _ = routing;
    }

    /// Returns the table that was [set](Self::set_routing); empty if none was set, or if the device
    /// ignored it.
    fn routing(&self) -> Routing {
        Routing::new()
    }

    /// Submits a fill with a pattern.
    ///
    /// - Returns before it is done. The call copies the pattern before it returns.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit); an empty or overlong pattern is an invalid argument.
    fn fill(&self, queue: &QueueHandle, fill: &Fill<'_>) -> Result<Ticket>;

    /// Submits a search.
    ///
    /// - Returns before it is done. The call copies the value before it returns.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit); an empty or overlong value, or a field outside of its
    /// element, is an invalid argument.
    fn search(&self, queue: &QueueHandle, search: &Search<'_>) -> Result<Ticket>;

    /// Submits a gather: collects elements by index.
    ///
    /// - Returns before it is done.
    /// - The work itself checks each index, in the same reading that it uses; it reads no byte outside of
    ///   the elements.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit). An index outside of the elements makes the ticket fail with
    /// [`KernelFailed`](ErrorKind::KernelFailed).
    fn gather(&self, queue: &QueueHandle, gather: &Gather<'_>) -> Result<Ticket>;

    /// Submits a scatter: distributes elements by index.
    ///
    /// - Returns before it is done.
    /// - The work itself checks each index, in the same reading that it uses; it writes no byte outside of
    ///   the elements.
    ///
    /// # Errors
    /// The errors of [`gather`](Self::gather).
    fn scatter(&self, queue: &QueueHandle, scatter: &Scatter<'_>) -> Result<Ticket>;

    /// Submits the evaluation of a program for each of some elements.
    ///
    /// - Returns before it is done. The call copies all arguments except the memory before it returns.
    /// - The first call with a program may take long, if the device must translate it.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit); a violation of a rule of [`Compute`] is an invalid
    /// argument; [`Unsupported`](ErrorKind::Unsupported) for types that the device does not know, such as
    /// `f64` on some: then, too, no byte was changed.
    fn compute(&self, queue: &QueueHandle, compute: &Compute<'_>) -> Result<Ticket>;

    /// Translates the program of a request for the device, so that a later [`compute`](Self::compute) need
    /// not. It is for callers that hold a lock or a page while they call `compute`.
    ///
    /// - Blocks for the whole translation, which may take some milliseconds or more; for a known request
    ///   it costs a look-up in a table. The default does nothing.
    /// - The call uses no queue and returns no ticket. It evaluates, reads and writes nothing.
    /// - A later request profits if it has the same program, up to its literals, and the same kind of
    ///   action on the same values. Its sources must have the same strides, and starts of the same
    ///   alignment. If the program uses the index, the page length and the number of channels must be
    ///   equal as well. The number of elements does not matter, and may be 0 here.
    /// - A device may evict a translation; `compute` repeats it.
    ///
    /// # Errors
    /// Any error that `compute` would return for the request; `compute` returns it again.
    fn prepare(&self, compute: &Compute<'_>) -> Result<()> {
        let _ = compute;
        Ok(())
    }

    /// Submits the launch of a kernel.
    ///
    /// - Returns before it is done. The call copies all arguments except the memory before it returns.
    /// - The first call with a kernel may take long, if the device must translate it.
    ///
    /// Failures of items do not make the ticket fail: the [report](crate::kernel::Report) lists them.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit); a violation of a rule of [`Launch`] is an invalid argument;
    /// [`Unsupported`](ErrorKind::Unsupported) for types, operations or views that the device does not
    /// know: then, too, no byte was changed. A device that runs no kernels supports none.
    fn launch(&self, queue: &QueueHandle, launch: &Launch<'_>) -> Result<Ticket> {
        let _ = (queue, launch);
        Err(Error::new(ErrorKind::Unsupported, "launch")
            .with_detail("this device cannot run kernels of the program")
            .on(self.info()))
    }

    /// Prepares launches like these, such as by translating their kernels, so that they start quickly
    /// later. Preparing several at once may cost little more than one. Blocks until it is done; launches
    /// no kernel. The default does nothing.
    ///
    /// # Errors
    /// The errors of [`launch`](Self::launch), if the device must prepare anything.
    fn prepare_launches(&self, launches: &[Launch<'_>]) -> Result<()> {
        let _ = launches;
        Ok(())
    }

    /// Returns the facts about a kernel as this device compiled it for a launch like this.
    ///
    /// # Errors
    /// The errors of [`launch`](Self::launch), and [`Unsupported`](ErrorKind::Unsupported) if the device
    /// reports no facts.
    fn kernel_facts(&self, launch: &Launch<'_>) -> Result<KernelFacts> {
        let _ = launch;
        Err(Error::new(ErrorKind::Unsupported, "kernel_facts")
            .with_detail("this device reports no facts about its kernels")
            .on(self.info()))
    }

    /// Returns the state of the work up to a ticket.
    ///
    /// - Never blocks. The call may advance the device's work, if it need not wait for that.
    /// - *Done* means that all effects of the call and of all earlier calls in the queue are visible to
    ///   the host and to all queues.
    /// - Any result but *pending* means that none of the work will touch memory any more.
    /// - A dead device is never pending for ever.
    /// - Polling changes no result: many threads may poll one ticket, at any time.
    ///
    /// # Errors
    /// The error of the very call that returned the ticket, on each poll and in each thread, unless its
    /// queue was [released](Self::release_queue). [`Lost`](ErrorKind::Lost) for all work that was pending
    /// when the device was lost, unless it still ends. [`UnknownHandle`](ErrorKind::UnknownHandle) for a
    /// ticket that this device did not issue.
    fn poll(&self, ticket: Ticket) -> Result<Progress>;

    /// Blocks until the work up to a ticket is done.
    ///
    /// - Spins briefly, then yields, then sleeps.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll).
    fn wait(&self, ticket: Ticket) -> Result<()>;

    /// Wakes `waker` once, when a ticket is done or has failed.
    ///
    /// - Wakes at once, before the call returns, if the ticket is done, failed or unknown.
    /// - Never blocks, except for the time of a waker that the call wakes itself.
    /// - A waker may call the device: it runs while no lock is held.
    ///
    /// The call does for a task of any executor the same as [`wait`](Self::wait) for a thread:
    ///
    /// ```
    /// use std::{future::poll_fn, pin::pin, task::{Context, Poll, Waker}};
    /// use backend_api::{Device, Progress};
    /// # let device = backend_host::HostDevice::new(1 << 20)?;
    /// # let ticket = device.submit(&device.create_queue()?, &[])?;
    /// let done = poll_fn(|context| match device.poll(ticket) {
    ///     Ok(Progress::Pending) => {
    ///         device.wake(ticket, context.waker().clone());
    ///         Poll::Pending
    ///     }
    ///     other => Poll::Ready(other),
    /// });
    /// # device.wait(ticket)?;
    /// # assert!(pin!(done).poll(&mut Context::from_waker(Waker::noop())).is_ready());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    fn wake(&self, ticket: Ticket, waker: Waker);

    /// Returns the access that this device has to the memory of another device, which its facts identify.
    ///
    /// - With [`Reach::Copies`], copies by [`Transfer::Internal`] may have a source or a target in the
    ///   other device's memory. [`order_after`](Self::order_after) then takes the other's tickets. With
    ///   [`Reach::Maps`], the same holds for views of [launches](Self::launch) and for the elements of
    ///   [gathers](Self::gather) and [scatters](Self::scatter). No other call accepts such places.
    /// - Only `order_after` and waiting order the work of two devices.
    /// - The answer does not change while both devices live. It holds in this direction alone. The first
    ///   call for a pair of devices may take long.
    /// - The owner of the memory may release it, or drop its device, at any time. That call waits for the
    ///   work that uses the memory, as for the device's own work.
    /// - Work on memory of a lost device may be refused, or fail as [`CopyFailed`](ErrorKind::CopyFailed)
    ///   or [`KernelFailed`](ErrorKind::KernelFailed). Bytes from that memory are unspecified. This device
    ///   continues.
    /// - The call is not meant for the device itself. Its own facts may belong to another object for the
    ///   same hardware, and the device answers accordingly.
    ///
    /// A link between devices can be broken without an error: compare the bytes that the first copies over
    /// it deliver.
    ///
    /// ```
    /// use backend_api::{Device, Reach};
    /// use backend_host::HostDevice;
    /// let device = || HostDevice::builder().bytes(1 << 20).build();
    /// let (one, other) = (device()?, device()?);
    /// // All of it is host RAM.
    /// assert_eq!(one.reaches(other.info()), Reach::Maps);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    fn reaches(&self, other: &DeviceInfo) -> Reach {
        let _ = other;
        Reach::No
    }

    /// Delays work that is submitted to `queue` from now on until `ticket` is done or has failed. The
    /// ticket may be of any queue of this device, or of a device that it [reaches](Self::reaches).
    ///
    /// - Does not wait for the ticket.
    /// - Consumes no ticket number.
    /// - Tickets of a device that was dropped are unknown.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle), [`Lost`](ErrorKind::Lost), or the driver's error.
    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()>;
}
