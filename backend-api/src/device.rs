//! The trait that a backend implements.

use std::fmt::Debug;
use std::ptr::NonNull;
use std::task::Waker;

use crate::{
    BufferHandle, Compute, DeviceInfo, Error, ErrorKind, Fill, Gather, HostAllocation, MemoryStatus,
    QueueHandle, Result, Route, Routing, Scatter, Search, Ticket, Transfer,
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
pub enum Commit {
    /// As the driver likes it: many hand out memory that they look for at first use.
    Lazy,
    /// Every part has been written to before the call returns, so that it is known to exist, and, where the
    /// backend can tell, to be on the device and not spilled to host memory.
    Proven,
}

/// A card, or a stand-in for one.
///
/// The contract is stated in the [crate's documentation](crate); the conformance suite checks it. Every
/// method can be called from any thread at any time. None panics on what a caller, a driver or a full card
/// can cause. `dyn Device` is a type. Wrappers pass most methods on with [`forward!`](crate::forward).
///
/// # Safety
/// Unsafe code relies on what a device promises: an owner reads host memory at the address that the device
/// gave, and a page cache lends its frames out as slices while other frames are copied. Whoever implements
/// the trait promises:
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
///   memory or a queue returns when all work that touches it is over, and so does dropping the device.
/// - **Names are not mistaken.** A handle or a place of another device is refused, or ignored where it is
///   released.
/// - **Races are tolerated.** The processor copies to and from host memory by [`racy`](crate::racy) alone,
///   since owners read and write there meanwhile; so it does in device memory, as far as two queues can reach
///   one range at once. No index in host memory is used to reach memory unless that very reading of it was
///   checked.
///
/// ```
/// use backend_api::{BufferHandle, Commit, Device, Result};
///
/// fn take_half(device: &dyn Device) -> Result<BufferHandle> {
///     device.allocate(device.memory()?.usable_bytes / 2, Commit::Lazy)
/// }
/// let device = backend_host::HostDevice::new(1000)?;
/// let buffer = take_half(&device)?;
/// assert_eq!(device.memory()?.free_bytes, 500);
/// device.release(buffer);
/// # Ok::<_, backend_api::Error>(())
/// ```
pub unsafe trait Device: Debug + Send + Sync + 'static {
    /// What is known of the device. Never blocks.
    ///
    /// ```
    /// use backend_api::{Device, DeviceKind};
    /// let device = backend_host::HostDevice::new(1 << 20)?;
    /// assert_eq!(device.info().kind, DeviceKind::HostMemory);
    /// assert_eq!(device.info().total_bytes, 1 << 20);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    fn info(&self) -> &DeviceInfo;

    /// How much memory there is now. May ask the driver.
    ///
    /// ```
    /// use backend_api::{Commit, Device};
    /// let device = backend_host::HostDevice::new(1000)?;
    /// let _buffer = device.allocate(300, Commit::Lazy)?;
    /// assert_eq!(device.memory()?.free_bytes, 700);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost), or what the driver says.
    fn memory(&self) -> Result<MemoryStatus>;

    /// A new in-order queue.
    ///
    /// - Work of one queue runs in the order of submission; each call sees the effects of those before it.
    /// - Work of two queues may run at the same time and in any order.
    ///
    /// ```
    /// use backend_api::Device;
    /// let device = backend_host::HostDevice::new(1 << 20)?;
    /// let (copies, kernels) = (device.create_queue()?, device.create_queue()?);
    /// // Each counts for itself.
    /// assert_eq!(device.submit(&copies, &[])?.value, 1);
    /// assert_eq!(device.submit(&kernels, &[])?.value, 1);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost), or a refusal by the system or the driver.
    fn create_queue(&self) -> Result<QueueHandle>;

    /// Ends a queue.
    ///
    /// - Blocks until its work is over.
    /// - Tickets of an ended queue stay askable, but what failed is forgotten: all of them are then reported
    ///   as done. Callers who care for an outcome ask before they end the queue.
    /// - A queue of another device is ignored.
    ///
    /// ```
    /// use backend_api::{Device, Progress};
    /// let device = backend_host::HostDevice::new(1 << 20)?;
    /// let queue = device.create_queue()?;
    /// let ticket = device.submit(&queue, &[])?;
    /// device.release_queue(queue);
    /// assert_eq!(device.poll(ticket)?, Progress::Done);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    fn release_queue(&self, queue: QueueHandle);

    /// Device memory of `bytes` bytes.
    ///
    /// - The contents are unspecified.
    /// - More than the driver gives in one piece is put together from several pieces behind one handle.
    /// - Allocations of nothing are valid.
    ///
    /// ```
    /// use backend_api::{Commit, Device, ErrorKind};
    /// let device = backend_host::HostDevice::new(1000)?;
    /// let buffer = device.allocate(600, Commit::Lazy)?;
    /// let error = device.allocate(600, Commit::Lazy).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    /// assert_eq!((error.bytes(), error.available_bytes()), (Some(600), Some(400)));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) with bytes asked and available,
    /// [`TooLarge`](crate::ErrorKind::TooLarge), [`Lost`](crate::ErrorKind::Lost).
    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle>;

    /// Gives device memory back.
    ///
    /// - Blocks until submitted work that touches it is over.
    /// - Memory of another device is ignored, and stays there.
    ///
    /// ```
    /// use backend_api::{Commit, Device};
    /// let device = backend_host::HostDevice::new(1000)?;
    /// let buffer = device.allocate(600, Commit::Lazy)?;
    /// # let other = backend_host::HostDevice::new(1000)?;
    /// # let of_the_other = other.allocate(600, Commit::Lazy)?;
    /// device.release(buffer);
    /// assert_eq!(device.memory()?.free_bytes, 1000);
    /// device.release(of_the_other); // It is unknown here, so nothing happens.
    /// assert_eq!(other.memory()?.free_bytes, 400);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    fn release(&self, buffer: BufferHandle);

    /// Host memory that the device copies from and to, usable by all of its queues.
    ///
    /// - It is zeroed, aligned to at least 4096 bytes, and nobody else's.
    /// - It stays where it is until [`release_host`](Self::release_host), or until the device is dropped.
    /// - Allocations of nothing are valid.
    ///
    /// ```
    /// use backend_api::{Device, HostMemory};
    /// let device = backend_host::HostDevice::new(1 << 20)?;
    /// let host = device.allocate_host(4096, HostMemory::Pageable)?;
    /// // SAFETY: the memory is new: no work in flight names it.
    /// let bytes = unsafe { std::slice::from_raw_parts(host.address().as_ptr(), host.bytes()) };
    /// assert!(bytes.iter().all(|&byte| byte == 0));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`PinRefused`](crate::ErrorKind::PinRefused) for pinned memory beyond what the system
    /// allows, [`OutOfMemory`](crate::ErrorKind::OutOfMemory),
    /// [`Lost`](crate::ErrorKind::Lost).
    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation>;

    /// Makes memory of the program known to the device, as pageable memory or, if `kind` asks for it, locked
    /// in place.
    ///
    /// - The device copies from and to the memory itself, whatever its alignment; its contents stay.
    /// - Releasing forgets it and leaves it to the program.
    ///
    /// ```
    /// use backend_api::{Commit, Device, HostMemory, Transfer};
    /// # let device = backend_host::HostDevice::new(1 << 20)?;
    /// # let (queue, buffer) = (device.create_queue()?, device.allocate(5, Commit::Lazy)?);
    /// let mut words = *b"there here ";
    /// let address = std::ptr::NonNull::from(&mut words).cast();
    /// // SAFETY: the array outlives the import, and is not touched before the copies are done.
    /// let host = unsafe { device.import_host(address, words.len(), HostMemory::Pageable)? };
    /// let far = buffer.at(0);
    /// device.submit(&queue, &[Transfer::Upload { from: host.at(0), to: far, bytes: 5 }])?;
    /// device.wait(device.submit(&queue, &[Transfer::Download { from: far, to: host.at(6), bytes: 5 }])?)?;
    /// device.release_host(host);
    /// assert_eq!(&words, b"there there");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`PinRefused`](crate::ErrorKind::PinRefused),
    /// [`Unsupported`](crate::ErrorKind::Unsupported), [`Lost`](crate::ErrorKind::Lost).
    ///
    /// # Safety
    /// The caller promises, until [`release_host`](Self::release_host) has returned or the device was
    /// dropped:
    ///
    /// - the `bytes` bytes from `address` on stay allocated and initialised, and may be read by any thread;
    ///   they may be written to, if any work names them as a target,
    /// - the program keeps to the rules on [races](crate#the-contract) with work that names them: no
    ///   reference into what is written to, and none that changes what is read.
    ///
    /// Whoever gets the handle, or places borrowed from it, can submit such work in safe code.
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
    ///
    /// ```
    /// use backend_api::{Commit, Device, HostMemory, Transfer};
    /// # let device = backend_host::HostDevice::new(1 << 20)?;
    /// # let (queue, buffer) = (device.create_queue()?, device.allocate(5, Commit::Lazy)?);
    /// let host = device.allocate_host(5, HostMemory::Pageable)?;
    /// let copy = Transfer::Upload { from: host.at(0), to: buffer.at(0), bytes: 5 };
    /// device.submit(&queue, &[copy])?;
    /// // Nobody has to wait for the copy before.
    /// device.release_host(host);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    fn release_host(&self, host: HostAllocation);

    /// Has memory be overwritten with zeroes before it goes back to the driver or the system, from now on and
    /// for as long as the device lives: device memory, host memory that the device allocated, and memory of
    /// its own through which data of the program passes. For all who use the device, and memory that they
    /// have already.
    ///
    /// It is done when the work that touches the memory is done, by the thread that releases it, which takes
    /// about as long as to write all of it; also where memory is given back because something else failed.
    /// What cannot be reached any more is not wiped: memory of a lost device, the system's swap space, former
    /// places of a file's blocks on drives and file systems that move them, registers and caches of a card.
    /// Nor is memory that is the program's: [imported](Self::import_host) memory, and what its calls take and
    /// return.
    ///
    /// Releasing returns no errors. What could not be wiped is given back all the same, and told to the
    /// program's subscriber of `tracing`, or to standard error if it has none.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer, Fill, Queue};
    /// use backend_host::FileDevice;
    /// # use std::sync::Arc;
    /// # let path = std::env::temp_dir().join(format!("vmarray-wipe-{}", std::process::id()));
    /// let device = Arc::new(FileDevice::create(&path, 4096)?);
    /// device.wipe_on_release()?;
    /// let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 4096, Commit::Lazy)?);
    /// device.wait(queue.fill(&Fill { to: memory.at(0), bytes: 4096, pattern: &[7] })?)?;
    /// assert_eq!(std::fs::read(&path).unwrap(), [7; 4096]);
    /// drop(memory);
    /// assert_eq!(std::fs::read(&path).unwrap(), [0; 4096]);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the device does not do that, which is the default;
    /// or what the driver says if it refuses what wiping needs.
    fn wipe_on_release(&self) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "wipe_on_release")
            .with_detail("this device does not wipe memory")
            .with_advice("do without it, or use another device")
            .on(self.info()))
    }

    /// Starts copies; returns before they are done.
    ///
    /// - All names and ranges are checked before anything starts.
    /// - The copies of one call may run in any order and at once. If one writes what another reads or writes,
    ///   the bytes there are unspecified.
    /// - An empty slice gives a ticket for the work before it.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
    /// host.write(0, b"left right ");
    /// // Two copies in one call.
    /// let piece = |from, to, bytes| Transfer::Upload { from: host.at(from), to: memory.at(to), bytes };
    /// device.submit(queue.handle(), &[piece(0, 6, 4), piece(5, 0, 6)])?;
    /// # let back = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 10 };
    /// # device.wait(queue.submit(&[back])?)?;
    /// # let mut device_memory = [0; 10];
    /// # host.read(0, &mut device_memory);
    /// assert_eq!(&device_memory, b"right left");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a range outside of its memory,
    /// [`UnknownHandle`](crate::ErrorKind::UnknownHandle),
    /// [`Lost`](crate::ErrorKind::Lost), or what the driver says. After an error no part of the call
    /// is or will be in flight; after the first two, nothing was changed.
    fn submit(&self, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket>;

    /// The ways in which the device can carry out the copies of one call, for those who want to measure which
    /// is fastest. Empty, the default, where there is one way only.
    ///
    /// ```
    /// use backend_api::{Device, Route};
    /// use backend_host::SimulatedDevice;
    /// # use std::time::Duration;
    /// # let zero = Duration::ZERO;
    /// let builder = SimulatedDevice::builder(1).route(Route::Single, zero, zero);
    /// assert_eq!(builder.build().routes(), [Route::Single]);
    /// ```
    fn routes(&self) -> &[Route] {
        &[]
    }

    /// [`submit`](Self::submit) by a given route, for those copies that it can carry; the others, and all
    /// copies on devices without it, go as `submit` sends them. The default is `submit`.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Route, Transfer};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
    /// # host.write(0, b"left right ");
    /// let piece = |from, to, bytes| Transfer::Upload { from: host.at(from), to: memory.at(to), bytes };
    /// let ticket = device.submit_by(Route::Batch, queue.handle(), &[piece(0, 6, 4), piece(5, 0, 6)])?;
    /// device.wait(ticket)?;
    /// # device.wait(queue.submit(&[Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 10 }])?)?;
    /// # let mut bytes = [0; 10];
    /// # host.read(0, &mut bytes);
    /// # assert_eq!(&bytes, b"right left");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn submit_by(&self, route: Route, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        let _ = route;
        self.submit(queue, transfers)
    }

    /// Has the copies of [`submit`](Self::submit) take the routes of a table from now on, in the place of the
    /// device's own choice, which an empty table brings back. Does not block, and changes no effect of any
    /// call. Devices with one route, and classes of the table that name a route that the device has not,
    /// ignore it.
    ///
    /// ```
    /// use backend_api::{Device, Route, Routing};
    /// use backend_host::SimulatedDevice;
    /// # use std::time::Duration;
    /// # let zero = Duration::ZERO;
    /// let builder = SimulatedDevice::builder(1).route(Route::Single, zero, zero);
    /// let device = builder.route(Route::Kernel, zero, zero).build();
    /// device.set_routing(Routing::only(Route::Kernel));
    /// assert_eq!(device.routing(), Routing::only(Route::Kernel));
    /// ```
    fn set_routing(&self, routing: Routing) {
        let _ = routing;
    }

    /// The table that was [set](Self::set_routing); empty where none was, or where it was ignored.
    ///
    /// ```
    /// use backend_api::{Device, Route, Routing};
    /// let device = backend_host::HostDevice::new(1 << 20)?;
    /// device.set_routing(Routing::only(Route::Kernel));
    /// assert!(device.routing().is_empty(), "it has one route only");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    fn routing(&self) -> Routing {
        Routing::new()
    }

    /// Starts to write a pattern; returns before it is done.
    ///
    /// - The pattern is copied before the call returns.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer, Fill, HostBuffer, HostMemory, Queue, Transfer};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
    /// let fill = Fill { to: memory.at(0), bytes: 5, pattern: b"ab" };
    /// device.fill(queue.handle(), &fill)?;
    /// let back = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 5 };
    /// device.wait(device.submit(queue.handle(), &[back])?)?;
    /// let mut bytes = [0; 5];
    /// host.read(0, &mut bytes);
    /// assert_eq!(&bytes, b"ababa");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`submit`](Self::submit); an empty or overlong pattern is an invalid argument.
    fn fill(&self, queue: &QueueHandle, fill: &Fill<'_>) -> Result<Ticket>;

    /// Starts a search; returns before it is done.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer, Elements, Fill, HostBuffer, HostMemory, Queue, Search};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// # queue.fill(&Fill { to: memory.at(0), bytes: 9, pattern: &[1, 2, 3] })?;
    /// // Device memory holds 1, 2, 3, 1, 2, 3, 1, 2, 3.
    /// let elements = Elements { start: memory.at(0), count: 9, stride: 1 };
    /// let host = HostBuffer::new(&device, Search::answer_bytes(2) as usize, HostMemory::Pageable)?;
    /// let answer = host.at(0);
    /// let search = Search { elements, field_offset: 0, value: &[2], limit: 2, count_all: true, answer };
    /// device.wait(device.search(queue.handle(), &search)?)?;
    /// let mut words = [[0; 8]; 4];
    /// host.read(0, words.as_flattened_mut());
    /// // Three match, two are listed: those at 1 and 4.
    /// assert_eq!(words.map(u64::from_ne_bytes), [3, 2, 1, 4]);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`submit`](Self::submit); an empty or overlong value, or a field outside of its element, is an
    /// invalid argument.
    fn search(&self, queue: &QueueHandle, search: &Search<'_>) -> Result<Ticket>;

    /// Starts to collect elements by index; returns before it is done.
    ///
    /// - Each index is checked by the work itself, as it was read for that purpose; nothing outside of the
    ///   elements is read.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer, Elements, Fill, Gather, HostBuffer, HostMemory, Queue};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// # queue.fill(&Fill { to: memory.at(0), bytes: 6, pattern: b"aabbcc" })?;
    /// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
    /// // Device memory holds `aabbcc`; elements 2 and 0 of two bytes each are wanted.
    /// host.write(0, [2_u64.to_ne_bytes(), 0_u64.to_ne_bytes()].as_flattened());
    /// let elements = Elements { start: memory.at(0), count: 3, stride: 2 };
    /// let gather = Gather { elements, indices: host.at(0), count: 2, values: host.at(16) };
    /// device.wait(device.gather(queue.handle(), &gather)?)?;
    /// let mut values = [0; 4];
    /// host.read(16, &mut values);
    /// assert_eq!(&values, b"ccaa");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`submit`](Self::submit). An index outside of the elements makes the ticket fail with
    /// [`KernelFailed`](crate::ErrorKind::KernelFailed).
    fn gather(&self, queue: &QueueHandle, gather: &Gather<'_>) -> Result<Ticket>;

    /// Starts to distribute elements by index; returns before it is done.
    ///
    /// - Each index is checked by the work itself, as it was read for that purpose; nothing outside of the
    ///   elements is written.
    ///
    /// ```
    /// # use backend_api::{Commit, DeviceBuffer, Fill, HostBuffer, HostMemory, Queue, Transfer};
    /// use backend_api::{Device, Elements, Scatter};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// # queue.fill(&Fill { to: memory.at(0), bytes: 6, pattern: b"aabbcc" })?;
    /// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
    /// // Device memory holds `aabbcc`; elements 2 and 0 of two bytes each get new values.
    /// host.write(0, [2_u64.to_ne_bytes(), 0_u64.to_ne_bytes()].as_flattened());
    /// host.write(16, b"xxyy");
    /// let elements = Elements { start: memory.at(0), count: 3, stride: 2 };
    /// let scatter = Scatter { elements, indices: host.at(0), count: 2, values: host.at(16) };
    /// device.wait(device.scatter(queue.handle(), &scatter)?)?;
    /// # let back = Transfer::Download { from: memory.at(0), to: host.at(32), bytes: 6 };
    /// # device.wait(queue.submit(&[back])?)?;
    /// # let mut device_memory = [0; 6];
    /// # host.read(32, &mut device_memory);
    /// assert_eq!(&device_memory, b"yybbxx");
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    fn scatter(&self, queue: &QueueHandle, scatter: &Scatter<'_>) -> Result<Ticket>;

    /// Starts to evaluate a program for each of some elements; returns before it is done.
    ///
    /// - Everything but the memory is copied before the call returns.
    /// - May take long the first time that a program is met, where it has to be translated.
    ///
    /// ```
    /// use backend_api::{Commit, Compute, Device, DeviceBuffer, Elements, Fill, HostBuffer, HostMemory, Queue};
    /// use backend_api::expr::{Action, Geometry, Instruction, Partial, Program, Type, Value};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// # queue.fill(&Fill { to: memory.at(0), bytes: 9, pattern: &[1, 2, 3] })?;
    /// // Device memory holds 1, 2, 3, 1, 2, 3, 1, 2, 3. What is their sum?
    /// let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U8 }])?;
    /// let sources = [Elements { start: memory.at(0), count: 9, stride: 1 }];
    /// let host = HostBuffer::new(&device, Compute::partials_bytes() as usize, HostMemory::Pageable)?;
    /// let action = Action::Sum { value: Value(0), filter: None, answer: host.at(0) };
    /// let compute = Compute { program: &program, sources: &sources, geometry: Geometry::plain(0), action };
    /// device.wait(device.compute(queue.handle(), &compute)?)?;
    /// let mut bytes = vec![0; host.bytes()];
    /// host.read(0, &mut bytes);
    /// let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    /// assert_eq!(Partial::sum_of_integers(&Partial::list(&words)), 18);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`submit`](Self::submit); whatever [`Compute`](crate::Compute) forbids is an invalid
    /// argument; [`Unsupported`](crate::ErrorKind::Unsupported) for types that the device does not
    /// know, such as `f64` on some: then, too, nothing was changed.
    fn compute(&self, queue: &QueueHandle, compute: &Compute<'_>) -> Result<Ticket>;

    /// Does now what [`compute`](Self::compute) would have to do first for a request like this one: has its
    /// program translated for the device. Blocks for as long as that takes, which may be some milliseconds,
    /// or more; a request that is known costs a look into a table.
    ///
    /// For those who hold something while they call `compute`: no queue is concerned, and no ticket is given.
    /// Nothing is evaluated, read or written. *Like this one* are requests with the same program, up to its
    /// literals, the same sort of action on the same values, the same page length and number of channels if
    /// the index is used, sources of the same strides, and starts that are as well aligned; their number of
    /// elements does not matter, and may be 0 here. A device may forget a translation; `compute` makes it
    /// again.
    ///
    /// By default there is nothing to be done.
    ///
    /// ```
    /// use backend_api::{Commit, Compute, Device, DeviceBuffer, Elements, HostBuffer, HostMemory, Queue};
    /// use backend_api::expr::{Action, Geometry, Instruction, Program, Type, Value};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
    /// let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U8 }])?;
    /// let sources = [Elements { start: memory.at(0), count: 9, stride: 1 }];
    /// let host = HostBuffer::new(&device, Compute::partials_bytes() as usize, HostMemory::Pageable)?;
    /// let action = Action::Sum { value: Value(0), filter: None, answer: host.at(0) };
    /// let compute = Compute { program: &program, sources: &sources, geometry: Geometry::plain(0), action };
    /// device.prepare(&compute)?;
    /// // From here on nothing waits for a compiler.
    /// let submitting = std::sync::Mutex::new(queue);
    /// device.wait(submitting.lock().unwrap().compute(&compute)?)?;
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// Any that `compute` would give for the request; it gives them all the same.
    fn prepare(&self, compute: &Compute<'_>) -> Result<()> {
        let _ = compute;
        Ok(())
    }

    /// Whether the work up to a ticket is done. Never blocks.
    ///
    /// - *Done* means that all effects of the call, and of all before it in the queue, are visible to the
    ///   host and to all queues.
    /// - Any answer but *pending* means that nothing of the work will touch memory any more.
    /// - A dead device is never pending for ever.
    /// - Asking changes nothing: many threads may ask for one ticket, as often as they like.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind, Progress, Ticket};
    /// let device = backend_host::HostDevice::new(1 << 20)?;
    /// let ticket = device.submit(&device.create_queue()?, &[])?;
    /// while device.poll(ticket)? == Progress::Pending {}
    /// let future = Ticket { value: ticket.value + 1, ..ticket };
    /// assert_eq!(device.poll(future).unwrap_err().kind(), ErrorKind::UnknownHandle);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of the very call that gave the ticket, however often it is asked for and by however many, as
    /// long as its queue is not [ended](Self::release_queue); [`Lost`](crate::ErrorKind::Lost) for all work
    /// that was pending when the device was lost, unless it gets done;
    /// [`UnknownHandle`](crate::ErrorKind::UnknownHandle) for a ticket that was never given.
    fn poll(&self, ticket: Ticket) -> Result<Progress>;

    /// Blocks until the work up to a ticket is done: spins briefly, then yields, then sleeps.
    ///
    /// ```
    /// use backend_api::{Device, Progress};
    /// let device = backend_host::HostDevice::new(1 << 20)?;
    /// let queue = device.create_queue()?;
    /// let (first, second) = (device.submit(&queue, &[])?, device.submit(&queue, &[])?);
    /// device.wait(second)?;
    /// // What came before it in the queue is done, too.
    /// assert_eq!(device.poll(first)?, Progress::Done);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    fn wait(&self, ticket: Ticket) -> Result<()>;

    /// Wakes `waker` once, when a ticket is done or has failed.
    ///
    /// - At once, before this returns, if that is so already or the ticket was never given. Never blocks.
    /// - A waker may call the device: it runs while no lock is held.
    ///
    /// ```
    /// # use std::{sync::Arc, task::{Context, Wake}, thread};
    /// use std::{future::poll_fn, task::Poll};
    /// use backend_api::{Device, Progress};
    /// # struct Unpark(thread::Thread);
    /// # impl Wake for Unpark {
    /// #     fn wake(self: Arc<Self>) { self.0.unpark() }
    /// # }
    /// # fn block_on<T>(future: impl Future<Output = T>) -> T {
    /// #     let waker = Arc::new(Unpark(thread::current())).into();
    /// #     let (mut future, mut context) = (std::pin::pin!(future), Context::from_waker(&waker));
    /// #     loop {
    /// #         match future.as_mut().poll(&mut context) {
    /// #             Poll::Ready(output) => break output,
    /// #             Poll::Pending => thread::park(),
    /// #         }
    /// #     }
    /// # }
    /// # let device = backend_host::HostDevice::new(1 << 20)?;
    /// # let ticket = device.submit(&device.create_queue()?, &[])?;
    /// // What `wait` is for a thread, for a task of any executor.
    /// let done = poll_fn(|context| match device.poll(ticket) {
    ///     Ok(Progress::Pending) => {
    ///         device.wake(ticket, context.waker().clone());
    ///         Poll::Pending
    ///     }
    ///     other => Poll::Ready(other),
    /// });
    /// assert_eq!(block_on(done)?, Progress::Done);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    fn wake(&self, ticket: Ticket, waker: Waker);

    /// Work submitted to `queue` from now on starts after `ticket`, of whichever queue of this device, is
    /// done or has failed.
    ///
    /// - Does not block the caller.
    /// - Takes no ticket.
    ///
    /// ```
    /// use backend_api::{Commit, Device, DeviceBuffer, Fill, HostBuffer, HostMemory, Queue, Transfer};
    /// # use std::sync::Arc;
    /// # let device = Arc::new(backend_host::HostDevice::new(1 << 20)?);
    /// # let memory = DeviceBuffer::new(&device, 64, Commit::Lazy)?;
    /// # let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
    /// let (fills, copies) = (Queue::new(&device)?, Queue::new(&device)?);
    /// let filled = fills.fill(&Fill { to: memory.at(0), bytes: 64, pattern: &[7] })?;
    /// device.order_after(copies.handle(), filled)?;
    /// let copy = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 64 };
    /// device.wait(copies.submit(&[copy])?)?;
    /// # let mut copied = [0; 64];
    /// # host.read(0, &mut copied);
    /// assert_eq!(copied, [7; 64]);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`UnknownHandle`](crate::ErrorKind::UnknownHandle),
    /// [`Lost`](crate::ErrorKind::Lost), or what the driver says.
    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()>;
}
