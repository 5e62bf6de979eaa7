//! The trait [`Device`], which a backend implements.

use std::fmt::Debug;
use std::ptr::NonNull;
use std::task::Waker;

use crate::kernel::KernelFacts;
use crate::{
    BufferHandle, DeviceInfo, DeviceSpan, Error, ErrorKind, HostAllocation, HostMemory, Launch, MemoryStatus,
    QueueHandle, Reach, Request, Result, Route, Routing, StreamLauncher, Ticket,
};

/// Progress of a queue up to a [`Ticket`] (position in its sequence of submissions): pending or done.
///
/// ```
/// use backend_api::{Device, QueueProgress, Queue};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let queue = Queue::new(&device)?;
/// let ticket = queue.submit(&[])?;
/// while device.poll(ticket)? == QueueProgress::Pending {
///     // Do other work here.
/// }
/// assert_eq!(device.poll(ticket)?, QueueProgress::Done);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueProgress {
    /// Some of the work is not done yet.
    Pending,
    /// All of the work is done.
    Done,
}

/// The time at which the driver provides an allocation's memory: at its first use, or during the call.
///
/// ```
/// use backend_api::{Commit, DeviceBuffer, ErrorKind};
/// # use std::sync::Arc;
/// # let device = Arc::new(backend_host::HostDevice::new(4 << 20)?);
/// // `Proven` memory exists after the call, so its later uses cannot fail.
/// let _memory = DeviceBuffer::new(&device, 4 << 20, Commit::Proven)?;
/// let error = DeviceBuffer::new(&device, 1, Commit::Lazy).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::OutOfMemory);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Commit {
    /// The driver chooses the time. Many drivers provide memory only at its first use.
    Lazy,
    /// Before the call returns, the device writes to every part of the memory, so the memory certainly
    /// exists. If the backend can check it, the memory is also on the device, and not spilled to host memory.
    Proven,
}

/// Direct reads: the calling thread reads device memory itself, without a request to a queue. See
/// [`Device::direct_reads`].
///
/// ```
/// use backend_api::{Commit, Device, DeviceBuffer, DirectReads};
/// # use std::sync::Arc;
/// let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let memory = DeviceBuffer::new(&device, 100, Commit::Lazy)?;
/// let direct: &dyn DirectReads = device.direct_reads().unwrap();
/// let mut bytes = [1; 10];
/// direct.read_directly(memory.at(90), &mut bytes)?;
/// let (first, second) = bytes.split_at_mut(4);
/// direct.read_all_directly(&mut [(memory.at(0), first), (memory.at(50), second)])?;
/// assert_eq!((bytes, direct.unit_bytes()), ([0; 10], 1));
/// # Ok::<_, backend_api::Error>(())
/// ```
pub trait DirectReads: Send + Sync {
    /// Copies bytes out of a buffer in the calling thread.
    ///
    /// The read is not ordered with any queue. If work in flight writes to these bytes, each byte may be old
    /// or new. The caller ensures that no thread releases the buffer during the read, because a release does
    /// not wait for it. After an error, the contents of `into` are unspecified.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle), [`InvalidArgument`](ErrorKind::InvalidArgument) for a
    /// range outside of the buffer, and the errors of copies by a queue.
    fn read_directly(&self, from: DeviceSpan<'_>, into: &mut [u8]) -> Result<()>;

    /// Copies bytes out of buffers as [`read_directly`](Self::read_directly) does, from several places. By
    /// default it reads one after the other.
    ///
    /// # Errors
    /// The errors of [`read_directly`](Self::read_directly), for any of the reads.
    fn read_all_directly(&self, reads: &mut [(DeviceSpan<'_>, &mut [u8])]) -> Result<()> {
        reads.iter_mut().try_for_each(|(from, into)| self.read_directly(*from, into))
    }

    /// Returns the smallest number of bytes that the device reads at once, such as the block size of a drive.
    /// It is at least 1 and does not change while the device lives.
    fn unit_bytes(&self) -> usize {
        1
    }
}

/// The address space of the addresses that [`Device::addresses`] returns.
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
    /// The process's own address space: addresses are pointers.
    Host,
    /// The address space of CUDA. The memory is on the GPU `ordinal`, in its primary context, which all CUDA
    /// code of the process shares.
    Cuda {
        /// The driver's number of the GPU.
        ordinal: u32,
    },
}

/// Returns addresses of a device's memory to other libraries of the process; see [`Device::addresses`].
///
/// An address is a number. The device does not order accesses through addresses with the work of its queues.
/// Code that accesses memory through an address must therefore ensure three things. The memory is not
/// released in the meantime. No work of the device writes to bytes that the code reads. No work of the device
/// accesses bytes that the code writes.
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
    /// Returns the address space. It does not change while the device lives.
    fn space(&self) -> AddressSpace;

    /// Returns the address of a position in the device's memory. Checks that at least `bytes` bytes follow
    /// it. The address stays the same until the memory is released.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle), or [`InvalidArgument`](ErrorKind::InvalidArgument) for a
    /// range outside of the buffer.
    fn address(&self, place: DeviceSpan<'_>, bytes: u64) -> Result<u64>;

    /// Blocks until the device has completed all work that other libraries have submitted to it so far.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost), or the driver's error.
    fn synchronize(&self) -> Result<()>;
}

/// A GPU, or a substitute for one, such as host RAM or a file. A backend implements this trait.
///
/// The [crate's documentation](crate) states the rules for all methods; each method lists its own rules. The
/// conformance suite checks all of these rules. Wrappers forward methods by [`forward!`](crate::forward). A
/// device that only stores pages implements the 14 required methods, and two kinds of [`Request`]: copies and
/// fills.
///
/// - Any thread may call any method at any time. The trait is dyn-compatible.
/// - No method panics because of a caller's argument, a driver or a full device.
/// - *Never blocks* means that a method does not wait for work of a queue, or for another thread's call into
///   a driver. It may take locks that are held only for moments, and query facts that the driver returns at
///   once. The term promises no maximum time.
///
/// # Safety
/// Unsafe code relies on the promises of a device: for instance, owners access host memory at the address
/// that the device returned. An implementation promises:
///
/// - **Host memory.** The memory of [`allocate_host`](Self::allocate_host) is zeroed, and keeps the promises
///   of [`HostAllocation::new`]. It does so until it is [released](Self::release_host) or the device is
///   dropped.
/// - **Nothing else is touched.** Work accesses only the ranges that the submitting call names, writes only
///   to its targets, and only after the call has begun. Other calls start no work.
/// - **Done is over.** When a ticket is done or has failed, none of its work reads or writes memory any more.
///   The same holds for the work of a call that has returned an error.
/// - **Memory outlives work.** Releasing host memory, device memory or a queue blocks until all work that
///   uses it is over, and so does dropping the device. This includes work of other devices that
///   [reach](Self::reaches) the memory. None of these calls waits for a waker to return, because the waker
///   could wait for a lock that the caller holds.
/// - **Devices do not mix.** A device refuses handles, places and tickets of other devices; a release ignores
///   them. The exceptions are places and tickets of a device that this device [reaches](Self::reaches), in
///   calls that accept them.
/// - **Races are tolerated.** The program may read and write host memory while a device copies it. A device
///   that copies with the CPU therefore accesses host memory, imported memory included, only by
///   [`racy`](crate::racy). It does the same for device memory if two queues can reach one range at once. A
///   device reads each index in host memory once, so that it uses the value that it has checked.
///
/// # Examples
/// Memory, queues and tickets:
///
/// ```
/// use std::task::Waker;
/// use backend_api::{Commit, Device, DeviceKind, ErrorKind, HostMemory, QueueProgress, Request, Transfer};
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
/// let up = [Transfer::Upload { from: own.at(0), to: buffer.at(0), bytes: 5 }];
/// let up = device.submit(&copies, &Request::Copies(&up, None))?;
/// device.order_after(&others, up)?;
/// let down = [Transfer::Download { from: buffer.at(0), to: own.at(6), bytes: 5 }];
/// let down = device.submit(&others, &Request::Copies(&down, None))?;
/// device.wait(down)?;
/// assert_eq!(device.poll(up)?, QueueProgress::Done);
/// device.wake(up, Waker::noop().clone());
/// device.release_host(own);
/// assert_eq!(&words, b"there there");
///
/// // Memory and queues can be released without a wait.
/// let last = [Transfer::Download { from: buffer.at(0), to: host.at(0), bytes: 64 }];
/// device.submit(&copies, &Request::Copies(&last, None))?;
/// device.release_host(host);
/// device.release(buffer);
/// device.release_queue(copies);
/// assert_eq!((device.poll(up)?, device.memory()?.free_bytes), (QueueProgress::Done, 1000));
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// Memory that grows without moving:
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
/// Work of kernels; the requests' documentation describes each kind:
///
/// ```
/// use backend_api::expr::{Action, Geometry, Instruction, Partial, Program, Type, Value};
/// use backend_api::{
///     Commit, Compute, Device, Elements, Fill, Gather, HostMemory, Request, Scatter, Search, racy,
/// };
/// let device = backend_host::HostDevice::new(1000)?;
/// let (queue, buffer) = (device.create_queue()?, device.allocate(64, Commit::Lazy)?);
/// let host = device.allocate_host(Compute::partials_bytes() as usize, HostMemory::Pageable)?;
/// device.submit(&queue, &Request::Fill(&Fill { to: buffer.at(0), bytes: 9, pattern: &[1, 2, 3] }))?;
/// let elements = Elements { start: buffer.at(0), count: 9, stride: 1 };
/// let (indices, answer) = (host.at(0), host.at(64));
/// let search = Search { elements, field_offset: 0, value: &[2], limit: 2, count_all: true, answer };
/// device.submit(&queue, &Request::Search(&search))?;
/// // New host memory is zeroed, so all indices are 0.
/// let gather = Gather { elements: elements.into(), indices, count: 2, values: host.at(16) };
/// device.submit(&queue, &Request::Gather(&gather))?;
/// let scatter = Scatter { elements: elements.into(), indices, count: 1, values: host.at(17) };
/// device.submit(&queue, &Request::Scatter(&scatter))?;
/// let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U8 }])?;
/// let action = Action::Sum { value: Value(0), filter: None, answer: host.at(0) };
/// let geometry = Geometry::plain(0);
/// let compute = Compute { program: &program, sources: &[elements], geometry, action };
/// device.prepare(&[Request::Compute(&compute)])?; // From here on nothing waits for a compiler.
/// device.wait(device.submit(&queue, &Request::Compute(&compute))?)?;
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
/// use backend_api::{Device, ErrorKind, HostMemory, Launch, Request, expr::Geometry, kernel::VerifiedKernel};
/// let device = backend_host::HostDevice::new(1000)?;
/// let (queue, host) = (device.create_queue()?, device.allocate_host(32, HostMemory::Pageable)?);
/// let nothing = VerifiedKernel::new(Default::default())?;
/// let launch = Launch::new(&nothing, 10, Geometry::plain(0), host.at(0));
/// device.prepare(&[Request::Launch(&launch)])?;
/// device.wait(device.submit(&queue, &Request::Launch(&launch))?)?;
/// // A device that interprets kernels reports no registers.
/// assert_eq!(device.kernel_facts(&launch).unwrap_err().kind(), ErrorKind::Unsupported);
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// Routes of copies, and wiping of memory:
///
/// ```
/// use std::time::Duration;
/// use backend_api::{Commit, Device, Request, Route, Routing};
/// use backend_host::SimulatedDevice;
/// let builder = SimulatedDevice::builder(1).route(Route::Single, Duration::ZERO, Duration::ZERO);
/// let device = builder.route(Route::Kernel, Duration::ZERO, Duration::ZERO).build();
/// assert_eq!(device.routes(), [Route::Single, Route::Kernel]);
/// device.wait(device.submit(&device.create_queue()?, &Request::Copies(&[], Some(Route::Kernel)))?)?;
/// device.set_routing(Routing::only(Route::Kernel));
/// assert_eq!(device.routing(), Routing::only(Route::Kernel));
/// device.wipe_on_release()?;
/// device.release(device.allocate(100, Commit::Lazy)?);
/// assert_eq!(device.wiped_bytes(), 100);
/// # Ok::<_, backend_api::Error>(())
/// ```
pub unsafe trait Device: Debug + Send + Sync + 'static {
    /// Returns the properties of the device.
    ///
    /// - Never blocks. The properties do not change while the device lives.
    fn info(&self) -> &DeviceInfo;

    /// Returns the device's total and free memory at the moment of the call.
    ///
    /// - May call the driver.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost), or the driver's error.
    fn memory(&self) -> Result<MemoryStatus>;

    /// Creates an in-order queue.
    ///
    /// - The device runs the work of one queue in the order of submission; each submission sees the effects
    ///   of earlier submissions.
    /// - Work of two queues may run at the same time and in any order.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost), or a refusal by the system or the driver.
    fn create_queue(&self) -> Result<QueueHandle>;

    /// Releases a queue.
    ///
    /// - Blocks until the queue's work is over.
    /// - Tickets of a released queue stay valid, but `poll` reports all of them as done, even if they failed.
    ///   Poll before the release to detect errors.
    /// - The call ignores a queue of another device.
    fn release_queue(&self, queue: QueueHandle);

    /// Allocates `bytes` bytes of device memory.
    ///
    /// - The contents are unspecified.
    /// - If the driver limits the size of one allocation, the device combines several under one handle.
    /// - Allocations of zero bytes are valid.
    ///
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) with the requested and the available bytes,
    /// [`TooLarge`](ErrorKind::TooLarge), [`Lost`](ErrorKind::Lost).
    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle>;

    /// Allocates `bytes` bytes of device memory that can be [extended](Self::extend) up to `most` bytes
    /// without moving.
    ///
    /// - All other calls treat it like memory of [`allocate`](Self::allocate).
    /// - The device reserves addresses for growth, not memory. A device that cannot reserve addresses may
    ///   allocate memory in steps instead, each of at most an eighth of `most`.
    /// - `most` may exceed the device's memory. [`u64::MAX`] means the device's own limit; a device that
    ///   allocates in steps may refuse it as unsupported.
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
            .with_advice("allocate memory of a fixed length, or use another device")
            .on(self.info()))
    }

    /// Extends [extensible memory](Self::allocate_extensible) to `bytes` bytes without moving it.
    ///
    /// - Existing positions stay valid, and existing bytes stay unchanged. The call does not wait for work in
    ///   flight on the memory.
    /// - The contents of the added bytes are unspecified.
    /// - The call does nothing if the memory already has `bytes` bytes or more.
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
    /// - Blocks until submitted work that uses the memory is over.
    /// - The call ignores memory of another device, which stays allocated.
    fn release(&self, buffer: BufferHandle);

    /// Allocates host memory that the device's queues can copy from and to.
    ///
    /// - The memory is zeroed, aligned to at least 4096 bytes, and shared with no other allocation.
    /// - Its address stays the same until [`release_host`](Self::release_host), or until the device is
    ///   dropped.
    /// - Allocations of zero bytes are valid.
    ///
    /// # Errors
    /// [`PinRefused`](ErrorKind::PinRefused) for more pinned memory than the system allows,
    /// [`OutOfMemory`](ErrorKind::OutOfMemory), [`Lost`](ErrorKind::Lost).
    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation>;

    /// Imports memory of the program, so that the device can copy from and to it: as pageable memory or, if
    /// `kind` requires it, page-locked in place.
    ///
    /// - The device copies from and to the memory itself, at any alignment. The import does not change the
    ///   contents.
    /// - A device that cannot import memory as this kind refuses the call.
    /// - The call itself neither reads nor writes the memory. Later work accesses it like memory of
    ///   [`allocate_host`](Self::allocate_host): by [`racy`](crate::racy), or by a GPU.
    /// - Releasing the memory only ends the import: it frees nothing and wipes nothing.
    ///
    /// # Errors
    /// [`PinRefused`](ErrorKind::PinRefused), [`Unsupported`](ErrorKind::Unsupported),
    /// [`Lost`](ErrorKind::Lost).
    ///
    /// # Safety
    /// The caller promises, until [`release_host`](Self::release_host) has returned or the device was
    /// dropped:
    ///
    /// - The `bytes` bytes from `address` on stay allocated and initialised. Any thread may read them. Any
    ///   thread may also write to them, if work names them as a target.
    /// - The program follows the rules on [races](crate#the-contract). While work in flight writes to bytes,
    ///   the program has no reference into them, and accesses them only by [`racy`](crate::racy). While work
    ///   in flight reads bytes, the program has no `&mut` into them, and writes to them only by `racy`; it
    ///   may have a `&` into them. A `&mut` may exist if the program does not use it meanwhile, and if its
    ///   provenance and that of `address` are exposed.
    ///
    /// Safe code with the handle, or with a place that borrows it, can submit such work.
    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation>;

    /// Releases host memory, or ends the import of imported memory.
    ///
    /// - Blocks until submitted work that uses the memory is over.
    /// - The call ignores memory of another device, which stays allocated.
    fn release_host(&self, host: HostAllocation);

    /// Turns on wiping: from now on, the device overwrites memory with zeroes before it returns it to the
    /// driver or the system.
    ///
    /// - Wiping applies to all users of the device, also to memory allocated before the call: device memory,
    ///   host memory that the device allocated, and internal buffers for data of the program. The device does
    ///   not wipe the program's own memory: [imported](Self::import_host) memory, and arguments and results
    ///   of calls.
    /// - The thread that releases memory wipes it when the work that uses it is done. This takes about as
    ///   long as writing all of the memory.
    /// - The device cannot wipe memory of a lost device, the system's swap space, and a GPU's registers and
    ///   caches. Drives and file systems that move a file's blocks keep the old blocks.
    /// - Memory that cannot be wiped is released nevertheless. The device reports it to the program's
    ///   subscriber of `tracing`, or to standard error if it has none.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the device cannot wipe, which is the default; or the
    /// driver's error if it refuses a resource that wiping needs.
    fn wipe_on_release(&self) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "wipe_on_release")
            .with_detail("this device does not wipe memory")
            .with_advice("do not enable wiping, or use another device")
            .on(self.info()))
    }

    /// Makes written data durable: it survives the end of the process and a loss of power. Some or all
    /// effects of work that is not done at the call may become durable as well.
    ///
    /// - Blocks until the data is durable.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if memory of the device does not outlive the process, which is
    /// the default; else the system's error. After an error, the next call tries again.
    fn sync(&self) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "sync")
            .with_detail("the memory of this device is lost when the process ends")
            .with_advice("store persistent data in a file")
            .on(self.info()))
    }

    /// Returns the interface by which the calling thread itself reads the device's memory, if the device has
    /// it (RAM and files do). A short read then costs a copy or a system call, and no queue. The support does
    /// not change during the device's life.
    fn direct_reads(&self) -> Option<&dyn DirectReads> {
        None
    }

    /// Returns access to the addresses of the device's memory, if other libraries can use them: for RAM and
    /// NVIDIA GPUs. A wrapper that must process all writes returns `None`. The support does not change during
    /// the device's life.
    fn addresses(&self) -> Option<&dyn Addresses> {
        None
    }

    /// Returns the interface for kernels on streams of the program, if the device has it: NVIDIA GPUs. The
    /// support does not change during the device's life.
    fn stream_launcher(&self) -> Option<&dyn StreamLauncher> {
        None
    }

    /// Submits a request to a queue: copies, a fill, or work of a kernel. The variants of [`Request`] list
    /// the rules of each kind.
    ///
    /// - Returns before the work is done. The call copies all arguments except the memory before it returns.
    /// - The call checks all memory and ranges before any work starts.
    /// - Every device supports [`Request::Copies`] and [`Request::Fill`]. All other kinds are optional: a
    ///   device refuses a kind that it does not support, with the error [`Request::unsupported`].
    /// - The first call with a program or a kernel may take long, if the device must compile it
    ///   ([`prepare`](Self::prepare)).
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a range outside of its memory or a violated rule
    /// of the request, [`UnknownHandle`](ErrorKind::UnknownHandle), [`Unsupported`](ErrorKind::Unsupported)
    /// for a request that the device cannot carry out, [`Lost`](ErrorKind::Lost), or the driver's error. The
    /// error names the request's [operation](Request::operation). After an error no part of the call is or
    /// will be in flight; after the first three, no byte was changed.
    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket>;

    /// Compiles the programs and kernels of requests, so that a later [`submit`](Self::submit) does not have
    /// to. For callers that hold a lock or a page while they submit.
    ///
    /// - Blocks until the device has compiled all requests, which may take some milliseconds or more. For a
    ///   request that is already compiled, the call costs a look-up in a table. Preparing several launches at
    ///   once may cost little more than preparing one. The default does nothing.
    /// - The call uses no queue and returns no ticket. It evaluates, launches, reads and writes nothing.
    /// - A later computation profits if it has the same program (literals may differ), the same kind of
    ///   action on the same values, and sources with the same strides and start alignments. If the program
    ///   uses the index, the page length and the number of channels must be equal as well. The number of
    ///   elements does not matter, and may be 0 here.
    /// - The call ignores requests that need no compiler.
    /// - A device may evict a compiled program; `submit` then compiles it again.
    ///
    /// # Errors
    /// The errors that `submit` would return for the requests; `submit` returns them again.
    fn prepare(&self, requests: &[Request<'_>]) -> Result<()> {
        let _ = requests;
        Ok(())
    }

    /// Returns the routes (copy methods) for the copies of one call, for programs that measure them.
    ///
    /// - Empty, the default, if the device has a single route.
    fn routes(&self) -> &[Route] {
        &[]
    }

    /// Sets the table that selects the routes (copy methods) of [`submit`](Self::submit). The table replaces
    /// the device's own choice; an empty table restores that choice.
    ///
    /// - Never blocks. The table changes only the speed of copies.
    /// - A device with a single route ignores the table. A device also ignores entries with a route that it
    ///   does not have.
    fn set_routing(&self, routing: Routing) {
        let _ = routing;
    }

    /// Returns the table of routes that the program has [set](Self::set_routing); an empty table if it has
    /// set none, or if the device ignored the table.
    fn routing(&self) -> Routing {
        Routing::new()
    }

    /// Returns the properties of the code that this device compiles for a launch of a kernel.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit), and [`Unsupported`](ErrorKind::Unsupported) if the device does
    /// not report them.
    fn kernel_facts(&self, launch: &Launch<'_>) -> Result<KernelFacts> {
        let _ = launch;
        Err(Error::new(ErrorKind::Unsupported, "kernel_facts")
            .with_detail("this device does not report registers or memory of its kernels")
            .on(self.info()))
    }

    /// Returns the state of a queue's work up to the submission that returned `ticket`.
    ///
    /// - Never blocks. The call may advance the device's work if this requires no waiting.
    /// - *Done* means that all effects of the submission and of all earlier submissions to the queue are
    ///   visible to the host and to all queues.
    /// - Any result except *pending* means that none of the work will access memory any more.
    /// - After the loss of a device, no ticket stays pending.
    /// - Polling has no side effects: any number of threads may poll one ticket, at any time.
    ///
    /// # Errors
    /// The error of the work of the call that returned the ticket, on each poll and in each thread, unless
    /// the queue was [released](Self::release_queue). [`Lost`](ErrorKind::Lost) for work that was pending
    /// when the device was lost, unless the work still ends. [`UnknownHandle`](ErrorKind::UnknownHandle) for
    /// a ticket that this device did not issue.
    fn poll(&self, ticket: Ticket) -> Result<QueueProgress>;

    /// Blocks until a queue's work, up to the submission that returned `ticket`, is done.
    ///
    /// - The calling thread polls briefly, then yields its time slice, then sleeps.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll).
    fn wait(&self, ticket: Ticket) -> Result<()>;

    /// Wakes `waker` once, when the submission that returned `ticket` is done or has failed.
    ///
    /// - Wakes at once, before the call returns, if the ticket is done, failed or unknown.
    /// - Never blocks, except while it runs a waker.
    /// - A waker may call the device: the device holds no lock while it runs a waker.
    ///
    /// Use this in a task of an executor, as [`wait`](Self::wait) in a thread:
    ///
    /// ```
    /// use std::{future::poll_fn, pin::pin, task::{Context, Poll, Waker}};
    /// use backend_api::{Device, QueueProgress, Request};
    /// # let device = backend_host::HostDevice::new(1 << 20)?;
    /// # let ticket = device.submit(&device.create_queue()?, &Request::Copies(&[], None))?;
    /// let done = poll_fn(|context| match device.poll(ticket) {
    ///     Ok(QueueProgress::Pending) => {
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

    /// Returns the access of this device to the memory of another device with the properties `other`.
    ///
    /// - With [`Reach::Copies`], copies by [`Transfer::Internal`](crate::Transfer::Internal) may have a
    ///   source or a target in the other device's memory, and [`order_after`](Self::order_after) accepts the
    ///   other device's tickets. With [`Reach::Maps`], also views of [launches](Request::Launch) and elements
    ///   of [gathers](Request::Gather) and [scatters](Request::Scatter) may be in the other device's memory.
    ///   No other call accepts memory of another device.
    /// - Only `order_after`, or waiting for tickets, orders the work of two devices.
    /// - The answer does not change while both devices live. It says nothing about access in the opposite
    ///   direction. The first call for a pair of devices may take long.
    /// - The owner of the memory may release it, or drop its device, at any time: the call waits for all work
    ///   that uses the memory, including work of this device.
    /// - Work on memory of a lost device may be refused, or fail as [`CopyFailed`](ErrorKind::CopyFailed) or
    ///   [`KernelFailed`](ErrorKind::KernelFailed). Bytes from that memory are unspecified. This device
    ///   continues.
    /// - If `other` describes the same hardware, the device answers as for another object of that hardware.
    ///
    /// A broken link between devices can corrupt data without an error. Check the first copies over a link.
    fn reaches(&self, other: &DeviceInfo) -> Reach {
        let _ = other;
        Reach::No
    }

    /// Delays later submissions to `queue` until the work of `ticket` (an earlier submission) has ended. The
    /// ticket can belong to any queue of this device, or of a device that this one [reaches](Self::reaches).
    ///
    /// - Does not wait for the ticket.
    /// - Uses no ticket value of the queue.
    /// - Tickets of a dropped device are unknown.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle), [`Lost`](ErrorKind::Lost), or the driver's error.
    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()>;
}
