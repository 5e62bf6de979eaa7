//! The trait that a backend implements.

use std::fmt::Debug;
use std::ptr::NonNull;
use std::task::Waker;

use crate::kernel::KernelFacts;
use crate::{
    BufferHandle, Compute, DeviceInfo, DeviceSpan, Error, ErrorKind, Fill, Gather, HostAllocation, Launch,
    MemoryStatus, QueueHandle, Reach, Result, Route, Routing, Scatter, Search, Ticket, Transfer,
};

/// What a queue has done of the work up to a ticket.
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
    /// Not all of it yet.
    Pending,
    /// All of it.
    Done,
}

/// What kind of host memory is wanted.
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
    /// Page-locked, or [`PinRefused`](crate::ErrorKind::PinRefused).
    Pinned,
    /// Ordinary memory. Copies may be slower and may need a copy in between.
    Pageable,
}

/// How sure the memory of an allocation has to be.
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
    /// As the driver likes it: many hand out memory that they look for at first use.
    Lazy,
    /// Every part has been written to before the call returns, so that it is known to exist, and, where the
    /// backend can tell, to be on the device and not spilled to host memory.
    Proven,
}

/// How a thread reads memory of a device by itself: [`Device::direct_reads`].
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
    /// Copies bytes out of a buffer. Blocks until they are there, and is ordered to no queue: whoever calls
    /// this sees to it that no work under way writes to them, else it is unspecified which of them are new;
    /// and that the buffer is not released meanwhile, which does not wait for it. After an error `into` holds
    /// anything.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle), [`InvalidArgument`](ErrorKind::InvalidArgument) for what
    /// is not inside of the buffer, and what copies by a queue fail with.
    fn read_directly(&self, from: DeviceSpan<'_>, into: &mut [u8]) -> Result<()>;

    /// How many bytes the device reads at least, whatever is asked for: the same number, and not zero, as
    /// long as it lives.
    fn unit_bytes(&self) -> usize {
        1
    }
}

/// Whose addresses a device's memory has: [`Device::addresses`].
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
    /// The process's: what a pointer is.
    Host,
    /// CUDA's, of memory of the card of this number, whose primary context others of the process share.
    Cuda {
        /// The driver's number of the card.
        ordinal: u32,
    },
}

/// Where memory of a device lies, for other libraries of the process to use it: [`Device::addresses`].
///
/// An address is a number. Who reads or writes there sees to it that the memory is not released meanwhile,
/// and that no work of the device writes there, or, where they write, reads: queues know nothing of others.
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
    /// Whose addresses they are. It does not change while the device lives.
    fn space(&self) -> AddressSpace;

    /// The address of a place that so many bytes follow. It is the same as long as the memory is there.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle), or [`InvalidArgument`](ErrorKind::InvalidArgument) for
    /// what is not inside of the buffer.
    fn address(&self, place: DeviceSpan<'_>, bytes: u64) -> Result<u64>;

    /// Blocks until all is over that others have given to the device by now.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost), or what the driver says.
    fn synchronize(&self) -> Result<()>;
}

/// A card, or a stand-in for one.
///
/// What holds of all methods is in the [crate's documentation](crate); what each has to do beyond that is
/// listed with it. The conformance suite checks both. Wrappers pass methods on with
/// [`forward!`](crate::forward); [`requests!`](crate::requests) writes all that submit work by one
/// expression.
///
/// - Any thread may call any method at any time. `dyn Device` is a type.
/// - No method panics on what a caller, a driver or a full card can cause.
/// - *Never blocks* is said of methods that wait for no work of a queue and for no other thread's call into a
///   driver: they take locks that are held for moments alone, and may ask the driver for what it answers at
///   once. No promise of time is meant by it.
///
/// # Safety
/// Unsafe code relies on what a device promises: an owner reads host memory at the address that the device
/// gave, and a page cache lends its frames out as slices while other frames are copied. An implementation
/// promises:
///
/// - **Host memory.** What [`allocate_host`](Self::allocate_host) gives keeps the promises of
///   [`HostAllocation::new`] until it is [released](Self::release_host) or the device is dropped, and is
///   zeroed.
/// - **Nothing else is touched.** Work reads and writes the ranges that its call names and no others. It
///   writes only to those that the call names as targets, and after the call has begun. No other call starts
///   work.
/// - **Done is over.** A ticket is answered with anything but *pending*, be it done or an error, only when
///   all of its work, reads as well as writes, is over for good. So it is for the work of a call that
///   returned an error.
/// - **Memory outlives work.** Submitted work keeps alive what it touches. Releasing host memory, device
///   memory or a queue returns when all work that touches it is over, and so does dropping the device. Work
///   of other devices counts, where they were given a place in the memory because they
///   [reach](Self::reaches) it.
/// - **Names are not mistaken.** A handle is refused, or ignored where it is released, if it is of another
///   device; so is a place or a ticket, unless that device is reached and the call says that it takes such.
/// - **Races are tolerated.** The processor copies to and from host memory, imported memory included, by
///   [`racy`](crate::racy) alone, since owners read and write there meanwhile; so it does in device memory,
///   as far as two queues can reach one range at once. No index in host memory is used to reach memory unless
///   that very reading of it was checked.
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
/// // Nobody has to wait before memory and queues are given back.
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
/// // SAFETY: the memory is longer, and nobody has a reference to it.
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

    /// How much memory the device has now.
    ///
    /// - May ask the driver.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost), or what the driver says.
    fn memory(&self) -> Result<MemoryStatus>;

    /// A new in-order queue.
    ///
    /// - Work of one queue runs in the order of submission; each call sees the effects of those before it.
    /// - Work of two queues may run at the same time and in any order.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost), or a refusal by the system or the driver.
    fn create_queue(&self) -> Result<QueueHandle>;

    /// Ends a queue.
    ///
    /// - Blocks until its work is over.
    /// - Tickets of an ended queue stay askable, but what failed is forgotten: all of them are then reported
    ///   as done. Callers who care for an outcome ask before they end the queue.
    /// - A queue of another device is ignored.
    fn release_queue(&self, queue: QueueHandle);

    /// Device memory of `bytes` bytes.
    ///
    /// - The contents are unspecified.
    /// - More than the driver gives in one piece is put together from several pieces behind one handle.
    /// - Allocations of nothing are valid.
    ///
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) with bytes asked and available,
    /// [`TooLarge`](ErrorKind::TooLarge), [`Lost`](ErrorKind::Lost).
    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle>;

    /// Device memory of `bytes` bytes that can be [extended](Self::extend) in its place, up to `most` bytes.
    ///
    /// - To all other calls it is what [`allocate`](Self::allocate) gives.
    /// - What it may grow to is no memory yet, but addresses. A device that cannot set addresses aside may
    ///   take memory in steps instead, each of an eighth of `most` at most.
    /// - `most` may be more than the device has, and is at least `bytes`. [`u64::MAX`] is for as much as it
    ///   has then; a device that takes memory in steps may refuse that as unsupported.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), for `bytes`; [`InvalidArgument`](ErrorKind::InvalidArgument) for less
    /// than that as `most`; [`Unsupported`](ErrorKind::Unsupported) if the device, or its driver, has no
    /// such memory, which is the default.
    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        let _ = commit;
        Err(Error::new(ErrorKind::Unsupported, "allocate_extensible")
            .with_bytes(bytes)
            .with_detail(format!("this device has no memory that can grow to {most} bytes"))
            .with_advice("allocate all of it at once, or use another device")
            .on(self.info()))
    }

    /// Makes [such memory](Self::allocate_extensible) so many bytes long, in its place.
    ///
    /// - Places in it stay what they are, and so do the bytes that are there. Work under way on them goes on,
    ///   and is not waited for.
    /// - The contents of what is added are unspecified.
    /// - Memory that is as long already stays as it is.
    /// - After an error it is as it was.
    ///
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) with bytes asked and available,
    /// [`TooLarge`](ErrorKind::TooLarge) for more than `most` bytes, or for memory that cannot grow,
    /// [`UnknownHandle`](ErrorKind::UnknownHandle), [`Unsupported`](ErrorKind::Unsupported),
    /// [`Lost`](ErrorKind::Lost).
    fn extend(&self, buffer: &BufferHandle, bytes: u64, commit: Commit) -> Result<()> {
        let _ = (buffer, commit);
        Err(Error::new(ErrorKind::Unsupported, "extend").with_bytes(bytes).on(self.info()))
    }

    /// Gives device memory back.
    ///
    /// - Blocks until submitted work that touches it is over.
    /// - Memory of another device is ignored, and stays there.
    fn release(&self, buffer: BufferHandle);

    /// Host memory that the device copies from and to, usable by all of its queues.
    ///
    /// - It is zeroed, aligned to at least 4096 bytes, and nobody else's.
    /// - It stays where it is until [`release_host`](Self::release_host), or until the device is dropped.
    /// - Allocations of nothing are valid.
    ///
    /// # Errors
    /// [`PinRefused`](ErrorKind::PinRefused) for pinned memory beyond what the system allows,
    /// [`OutOfMemory`](ErrorKind::OutOfMemory), [`Lost`](ErrorKind::Lost).
    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation>;

    /// Makes memory of the program known to the device, as pageable memory or, if `kind` asks for it, locked
    /// in place.
    ///
    /// - The device copies from and to the memory itself, whatever its alignment; its contents stay.
    /// - A device that cannot do so, or not for this kind, refuses it.
    /// - The call itself neither reads nor writes the memory. Work does as it does in memory of
    ///   [`allocate_host`](Self::allocate_host): by [`racy`](crate::racy), or as a card.
    /// - Releasing forgets it, wipes nothing, and leaves it to the program.
    ///
    /// # Errors
    /// [`PinRefused`](ErrorKind::PinRefused), [`Unsupported`](ErrorKind::Unsupported),
    /// [`Lost`](ErrorKind::Lost).
    ///
    /// # Safety
    /// The caller promises, until [`release_host`](Self::release_host) has returned or the device was
    /// dropped:
    ///
    /// - the `bytes` bytes from `address` on stay allocated and initialised, and may be read by any thread;
    ///   they may be written to, if any work names them as a target,
    /// - the program keeps to the rules on [races](crate#the-contract) with work that names them: while work
    ///   that writes them is in flight, it has no reference into them and reads or writes them by
    ///   [`racy`](crate::racy) alone; while work that reads them is in flight, it has no `&mut` into them,
    ///   and what it writes there it writes by `racy`. A `&` into bytes that work only reads may stay, and so
    ///   may a `&mut` that is not used meanwhile, if its provenance and that of `address` are exposed.
    ///
    /// The handle, and places borrowed from it, let safe code submit such work.
    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation>;

    /// Gives host memory back, or forgets imported memory.
    ///
    /// - Blocks until submitted work that touches it is over.
    /// - Memory of another device is ignored, and stays there.
    fn release_host(&self, host: HostAllocation);

    /// Has memory overwritten with zeroes before it goes back to the driver or the system, from now on and
    /// for as long as the device lives.
    ///
    /// - It concerns all users of the device, and memory that they have already: device memory, host memory
    ///   that the device allocated, and memory of its own through which data of the program passes. Memory of
    ///   the program is not wiped: [imported](Self::import_host) memory, and what calls take and return.
    /// - The thread that releases memory wipes it when the work that touches it is done, which takes about as
    ///   long as to write all of it; also where memory is given back because something else failed.
    /// - What cannot be reached any more is not wiped: memory of a lost device, the system's swap space,
    ///   former places of a file's blocks on drives and file systems that move them, registers and caches of
    ///   a card.
    /// - What could not be wiped is given back all the same, and told to the program's subscriber of
    ///   `tracing`, or to standard error if it has none.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the device does not do that, which is the default; or what
    /// the driver says if it refuses what wiping needs.
    fn wipe_on_release(&self) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "wipe_on_release")
            .with_detail("this device does not wipe memory")
            .with_advice("do without it, or use another device")
            .on(self.info()))
    }

    /// Has what work has written stay where the device keeps it, after the end of the process and a loss of
    /// power too. Of work that is not done when this is called some or all of it may stay.
    ///
    /// - Blocks until it does.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind};
    /// let device = backend_host::HostDevice::new(1 << 20)?;
    /// assert_eq!(device.sync().unwrap_err().kind(), ErrorKind::Unsupported);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if memory of the device does not outlive the process, which is
    /// the default; else what the system says. What does not stay is tried again by the next call.
    fn sync(&self) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "sync")
            .with_detail("the memory of this device is gone when the process ends")
            .with_advice("keep what is to stay in a file")
            .on(self.info()))
    }

    /// Reads by the calling thread itself, if memory of the device is within reach of it, as RAM and files
    /// are; then a short read costs a copy or a call of the system, and no queue. A device has them as long
    /// as it lives, or never.
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

    /// Where the device's memory lies, if other libraries can use it by its address: in RAM, and on NVIDIA's
    /// cards. A wrapper that has to know of all writes has none. A device has them as long as it lives, or
    /// never.
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

    /// Starts copies.
    ///
    /// - Returns before they are done.
    /// - All names and ranges are checked before anything starts.
    /// - The copies of one call may run in any order and at once. If one writes what another reads or writes,
    ///   the bytes there are unspecified.
    /// - Places of [`Transfer::Internal`] may be in memory of devices that this one [reaches](Self::reaches).
    /// - An empty slice gives a ticket for the work before it.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a range outside of its memory,
    /// [`UnknownHandle`](ErrorKind::UnknownHandle), [`Lost`](ErrorKind::Lost), or what the driver says. After
    /// an error no part of the call is or will be in flight; after the first two, nothing was changed.
    fn submit(&self, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket>;

    /// The ways in which the device can carry out the copies of one call, for a program that measures which
    /// is fastest.
    ///
    /// - Empty, the default, where there is one way only.
    fn routes(&self) -> &[Route] {
        &[]
    }

    /// [`submit`](Self::submit) by a given route.
    ///
    /// - Copies that the route cannot carry, and all copies on devices without it, go as `submit` sends them,
    ///   which is the default.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn submit_by(&self, route: Route, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        let _ = route;
        self.submit(queue, transfers)
    }

    /// Has the copies of [`submit`](Self::submit) take the routes of a table from now on, in the place of the
    /// device's own choice, which an empty table brings back.
    ///
    /// - Never blocks, and changes no effect of any call.
    /// - Devices with one route, and classes of the table that name a route that the device has not, ignore
    ///   it.
    fn set_routing(&self, routing: Routing) {
        let _ = routing;
    }

    /// The table that was [set](Self::set_routing); empty where none was, or where it was ignored.
    fn routing(&self) -> Routing {
        Routing::new()
    }

    /// Starts to write a pattern.
    ///
    /// - Returns before it is done. The pattern is copied before that.
    ///
    /// # Errors
    /// As [`submit`](Self::submit); an empty or overlong pattern is an invalid argument.
    fn fill(&self, queue: &QueueHandle, fill: &Fill<'_>) -> Result<Ticket>;

    /// Starts a search.
    ///
    /// - Returns before it is done. The value is copied before that.
    ///
    /// # Errors
    /// As [`submit`](Self::submit); an empty or overlong value, or a field outside of its element, is an
    /// invalid argument.
    fn search(&self, queue: &QueueHandle, search: &Search<'_>) -> Result<Ticket>;

    /// Starts to collect elements by index.
    ///
    /// - Returns before it is done.
    /// - Each index is checked by the work itself, as it was read for that purpose; nothing outside of the
    ///   elements is read.
    ///
    /// # Errors
    /// As [`submit`](Self::submit). An index outside of the elements makes the ticket fail with
    /// [`KernelFailed`](ErrorKind::KernelFailed).
    fn gather(&self, queue: &QueueHandle, gather: &Gather<'_>) -> Result<Ticket>;

    /// Starts to distribute elements by index.
    ///
    /// - Returns before it is done.
    /// - Each index is checked by the work itself, as it was read for that purpose; nothing outside of the
    ///   elements is written.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    fn scatter(&self, queue: &QueueHandle, scatter: &Scatter<'_>) -> Result<Ticket>;

    /// Starts to evaluate a program for each of some elements.
    ///
    /// - Returns before it is done. Everything but the memory is copied before that.
    /// - May take long the first time that a program is met, where it has to be translated.
    ///
    /// # Errors
    /// As [`submit`](Self::submit); whatever [`Compute`] forbids is an invalid argument;
    /// [`Unsupported`](ErrorKind::Unsupported) for types that the device does not know, such as `f64` on
    /// some: then, too, nothing was changed.
    fn compute(&self, queue: &QueueHandle, compute: &Compute<'_>) -> Result<Ticket>;

    /// Does now what [`compute`](Self::compute) would have to do first for a request like this one: has its
    /// program translated for the device. For callers that hold something while they call `compute`.
    ///
    /// - Blocks for as long as that takes, which may be some milliseconds, or more; a request that is known
    ///   costs a look into a table. By default there is nothing to be done.
    /// - No queue is concerned, and no ticket is given. Nothing is evaluated, read or written.
    /// - *Like this one* are requests with the same program, up to its literals, the same sort of action on
    ///   the same values, the same page length and number of channels if the index is used, sources of the
    ///   same strides, and starts that are as well aligned; their number of elements does not matter, and may
    ///   be 0 here.
    /// - A device may forget a translation; `compute` makes it again.
    ///
    /// # Errors
    /// Any that `compute` would give for the request; it gives them all the same.
    fn prepare(&self, compute: &Compute<'_>) -> Result<()> {
        let _ = compute;
        Ok(())
    }

    /// Starts to run a kernel.
    ///
    /// - Returns before it is done. Everything but the memory is copied before that.
    /// - May take long the first time that a kernel is met, where it has to be translated.
    ///
    /// Failures of items do not make the ticket fail: they are in the [report](crate::kernel::Report).
    ///
    /// # Errors
    /// As [`submit`](Self::submit); whatever [`Launch`] forbids is an invalid argument;
    /// [`Unsupported`](ErrorKind::Unsupported) for what the device does not know, of types, operations or
    /// views: then, too, nothing was changed. A device that runs no kernels at all supports none.
    fn launch(&self, queue: &QueueHandle, launch: &Launch<'_>) -> Result<Ticket> {
        let _ = (queue, launch);
        Err(Error::new(ErrorKind::Unsupported, "launch")
            .with_detail("this device runs no kernels of the program")
            .on(self.info()))
    }

    /// Does what launches like these would have to do once, such as translating their kernels, so that they
    /// can be started quickly. Several at once may cost little more than one. Blocks until it is done;
    /// nothing is launched. Without a word of its own a device has nothing to do.
    ///
    /// # Errors
    /// As [`launch`](Self::launch), if there is something to do.
    fn prepare_launches(&self, launches: &[Launch<'_>]) -> Result<()> {
        let _ = launches;
        Ok(())
    }

    /// What became of a kernel on this device, prepared for a launch like this.
    ///
    /// # Errors
    /// As [`launch`](Self::launch), and [`Unsupported`](ErrorKind::Unsupported) where nothing is known.
    fn kernel_facts(&self, launch: &Launch<'_>) -> Result<KernelFacts> {
        let _ = launch;
        Err(Error::new(ErrorKind::Unsupported, "kernel_facts")
            .with_detail("this device tells nothing about its kernels")
            .on(self.info()))
    }

    /// Whether the work up to a ticket is done.
    ///
    /// - Never blocks. A device may carry work on in it, as far as that does not wait.
    /// - *Done* means that all effects of the call, and of all before it in the queue, are visible to the
    ///   host and to all queues.
    /// - Any answer but *pending* means that nothing of the work will touch memory any more.
    /// - A dead device is never pending for ever.
    /// - Asking changes no answer: many threads may ask for one ticket, as often as they like.
    ///
    /// # Errors
    /// The error of the very call that gave the ticket, however often it is asked for and by however many, as
    /// long as its queue is not [ended](Self::release_queue); [`Lost`](ErrorKind::Lost) for all work that was
    /// pending when the device was lost, unless it gets done; [`UnknownHandle`](ErrorKind::UnknownHandle) for
    /// a ticket that was never given.
    fn poll(&self, ticket: Ticket) -> Result<Progress>;

    /// Blocks until the work up to a ticket is done.
    ///
    /// - Spins briefly, then yields, then sleeps.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    fn wait(&self, ticket: Ticket) -> Result<()>;

    /// Wakes `waker` once, when a ticket is done or has failed.
    ///
    /// - At once, before this returns, if that is so already or the ticket was never given.
    /// - Never blocks, but for what a waker does that is woken here.
    /// - A waker may call the device: it runs while no lock is held.
    ///
    /// What [`wait`](Self::wait) is for a thread, for a task of any executor:
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

    /// What this device can do with memory of another one, which is told by its facts.
    ///
    /// - With [`Reach::Copies`], copies by [`Transfer::Internal`] take places in the other's device memory as
    ///   source or as target, and [`order_after`](Self::order_after) takes the other's tickets. With
    ///   [`Reach::Maps`], views of [launches](Self::launch) take such places, too, and so do the elements of
    ///   [gathers](Self::gather) and [scatters](Self::scatter). No other call does.
    /// - Nothing orders work of two devices but `order_after` and waiting.
    /// - The answer stays as it is while both devices live. It holds in this direction alone. It may take
    ///   long the first time that it is asked for.
    /// - Who owns the memory may release it, or drop its device, at any time: that waits for the work that
    ///   was given a place in it, as for the device's own.
    /// - Work on memory of a device that is lost may be refused or fail, as
    ///   [`CopyFailed`](ErrorKind::CopyFailed) or [`KernelFailed`](ErrorKind::KernelFailed), and bytes from
    ///   there are unspecified. This device goes on.
    /// - What this device can do with itself need not be asked for. Its own facts may be those of another
    ///   object for the same hardware, and are answered as such.
    ///
    /// A link between devices can be broken without an error: bytes that were copied over it for the first
    /// time should be compared.
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

    /// Has work that is submitted to `queue` from now on start after `ticket`, of whichever queue of this
    /// device or of one that it [reaches](Self::reaches), is done or has failed.
    ///
    /// - Does not wait for the ticket.
    /// - Takes no ticket.
    /// - Tickets of a device that was dropped are unknown.
    ///
    /// # Errors
    /// [`UnknownHandle`](ErrorKind::UnknownHandle), [`Lost`](ErrorKind::Lost), or what the driver says.
    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()>;
}
