//! [`CudaDevice`]: the implementation of the trait [`Device`] for an NVIDIA GPU.

use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;

use backend_api::kernel::KernelFacts;
use backend_api::{
    AddressSpace, Addresses, BufferHandle, Commit, Compute, Device, DeviceInfo, DeviceSpan, Error, ErrorKind,
    Extents, Gather, HostAllocation, HostMemory, Launch, LaunchView, MemoryStatus, QueueHandle, QueueId,
    QueueProgress, Reach, Request, Result, Route, Routing, Scatter, StreamLauncher, Ticket,
};
use vmarray_support::backends::ram::SystemMemory;
use vmarray_support::backends::{IndexedDirection, PIN_ADVICE, check_extend, check_extensible};

use parking_lot::Mutex;

use crate::context::CudaContext;
use crate::core::CudaCore;
use crate::cublas::BlasProduct;
use crate::discovery::Card;
use crate::driver::objects::Stream;
use crate::driver::{ContextHandle, Driver, StatusCode, driver};
use crate::handle_table::HandleLookup;
use crate::host_memory::HostRange;
use crate::kernel::indexed;
use crate::kernel::launch::{KernelKey, Planned};
use crate::memory::DeviceMemory;
use crate::options::CudaOptions;
use crate::queue::CudaQueue;
use crate::{copy, kernel, peers};

const IMPORT_ADVICE: &str = "import less memory, or import it as HostMemory::Pageable, in particular memory \
                             that is page-locked already";

/// An open NVIDIA GPU.
///
/// The device uses the GPU's primary context, which it shares with the rest of the process (the CUDA runtime,
/// `cudarc`). Alternatively it uses a context of the program: see [`adopt`](Self::adopt). Any thread may call
/// all methods, with any current context.
///
/// The drop of the device waits for its work, and releases all memory, including allocations that the program
/// did not release.
///
/// ```
/// use std::sync::Arc;
/// use backend_api::{Commit, Device, DeviceBuffer, Fill, Queue};
/// use backend_cuda::{CudaDevice, CudaOptions, devices};
/// # fn main() -> backend_api::Result<()> {
/// for card in devices() {
///     let device = Arc::new(CudaDevice::open(card.index)?);
///     assert_eq!(device.card().compute_capability, card.compute_capability);
///     let queue = Queue::new(&device)?;
///     let memory = DeviceBuffer::new(&device, 1 << 20, Commit::Proven)?;
///     let ticket = queue.submit(&Fill { to: memory.at(0), bytes: 1 << 20, pattern: &[7] })?;
///     assert!(device.wait(ticket).is_ok());
/// }
/// # Ok(()) }
/// ```
///
/// To use a context of the program:
///
/// ```
/// use backend_cuda::{CudaDevice, CudaOptions, devices};
/// for card in devices() {
///     let (one, options) = (CudaDevice::open(card.index)?, CudaOptions::new().with_headroom_bytes(1 << 30));
///     let other = CudaDevice::open_with(card.index, &options)?;
///     assert_eq!(one.context(), other.context(), "both work in the card's primary context");
///     // SAFETY: the context is one of this process, and is held longer than the device.
///     let adopted = unsafe { CudaDevice::adopt(one.context(), &options)? };
///     assert_eq!(adopted.card().index, card.index);
/// }
/// // This code has no current context, and perhaps no driver.
/// assert!(CudaDevice::from_current(&CudaOptions::new()).is_err());
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// With the feature `cust`, the device takes over memory of the crate `cust` without a copy, or copies it in
/// the order of a queue:
///
/// ```
/// # #[cfg(feature = "cust")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use backend_api::{Device, Fill, Request};
/// use backend_cuda::{CudaDevice, CudaOptions};
/// use cust::memory::{CopyDestination, DeviceBuffer};
/// // Fails without a GPU or a driver.
/// if let Ok(context) = cust::quick_init() {
///     let device = CudaDevice::from_cust(&context, &CudaOptions::new())?;
///     let queue = device.create_queue()?;
///     let memory = device.import_cust(DeviceBuffer::from_slice(&[1_u32, 2, 3])?)?;
///     let mut theirs = DeviceBuffer::from_slice(&[4_u32; 3])?;
///     // SAFETY: the buffer is not touched before the ticket is done.
///     let ticket = unsafe {
///         device.copy_from_cust(&queue, &theirs, memory.at(0))?;
///         let fill = Fill { to: memory.at(4), bytes: 4, pattern: &5_u32.to_ne_bytes() };
///         device.submit(&queue, &Request::Fill(&fill))?;
///         device.copy_to_cust(&queue, memory.at(0), &mut theirs)?
///     };
///     device.wait(ticket)?;
///     let ours: DeviceBuffer<u32> = device.export_cust(memory).map_err(|(error, _)| error)?;
///     let mut back = [[0; 3]; 2];
///     ours.copy_to(&mut back[0])?;
///     theirs.copy_to(&mut back[1])?;
///     assert_eq!(back, [[4, 5, 4]; 2]);
/// }
/// # Ok(()) }
/// # #[cfg(not(feature = "cust"))]
/// # fn main() {}
/// ```
pub struct CudaDevice {
    pub(crate) core: Arc<CudaCore>,
    /// Locked by the thread that extends memory.
    extending: Mutex<()>,
}

impl CudaDevice {
    /// Opens a GPU in its primary context. Takes some tenths of a second if the process has no primary
    /// context on it yet.
    ///
    /// # Errors
    /// [`Driver`](ErrorKind::Driver) if there is no driver or no such GPU; else the driver's error.
    pub fn open(index: u32) -> Result<Self> {
        Self::open_with(index, &CudaOptions::new())
    }

    /// Opens a GPU in its primary context, with options.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_with(index: u32, options: &CudaOptions) -> Result<Self> {
        let driver = driver().map_err(|missing| missing.error("open"))?;
        let ordinal = i32::try_from(index).map_err(|_| {
            Error::new(ErrorKind::InvalidArgument, "open").with_detail(format!("GPU {index} does not exist"))
        })?;
        let card = Card::describe(driver, ordinal).map_err(|code| refused(code, "open"))?;
        let context =
            CudaContext::primary(driver, ordinal).map_err(|code| refused(code, "open").on(&card.info))?;
        Ok(Self::new(card, context, options))
    }

    /// Opens the GPU whose primary context is current on the calling thread. `cudarc`, `cust` and the CUDA
    /// runtime make it current.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), and [`InvalidArgument`](ErrorKind::InvalidArgument) if no context
    /// is current, or if the current context is not a primary context. For a context that the program
    /// created, use [`adopt`](Self::adopt).
    pub fn from_current(options: &CudaOptions) -> Result<Self> {
        const OPERATION: &str = "from_current";
        Self::in_context(OPERATION, options, |driver| {
            let context = CudaContext::current(driver).map_err(|code| refused(code, OPERATION))?;
            context.ok_or_else(|| {
                Error::new(ErrorKind::InvalidArgument, OPERATION)
                    .with_detail("no primary context of a GPU is current on this thread")
            })
        })
    }

    /// Opens the GPU of a context that the program created. The device uses that context.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    ///
    /// # Safety
    /// `context` must be a `CUcontext` of this process's driver. If the program destroys the context before
    /// the device is dropped, the device is lost. The program must then not access pinned memory of the
    /// device any more.
    pub unsafe fn adopt(context: *mut c_void, options: &CudaOptions) -> Result<Self> {
        Self::in_context("adopt", options, |driver| {
            // SAFETY: the caller guarantees the context.
            let adopted = unsafe { CudaContext::adopted(driver, ContextHandle(context)) };
            adopted.map_err(|code| refused(code, "adopt"))
        })
    }

    fn in_context(
        operation: &'static str,
        options: &CudaOptions,
        context: impl FnOnce(&'static Driver) -> Result<CudaContext>,
    ) -> Result<Self> {
        let driver = driver().map_err(|missing| missing.error(operation))?;
        let context = context(driver)?;
        let card = Card::describe(driver, context.ordinal()).map_err(|code| refused(code, operation))?;
        Ok(Self::new(card, context, options))
    }

    pub(crate) fn new(card: Card, context: CudaContext, options: &CudaOptions) -> Self {
        let headroom = options.headroom_bytes.unwrap_or_else(|| {
            CudaOptions::default_headroom_bytes(card.info.total_bytes, card.drives_display)
        });
        let core = Arc::new(CudaCore::new(card, context, headroom, options.route));
        if options.is_without_cublas {
            core.cublas.use_library(None);
        }
        peers::add(&core);
        Self { core, extending: Mutex::default() }
    }

    /// Description of the GPU, as [`devices`](crate::devices) returns it.
    #[must_use]
    pub fn card(&self) -> &Card {
        &self.core.card
    }

    /// The `CUcontext` of the device, for use with other libraries. The handle is valid until the device is
    /// dropped.
    #[must_use]
    pub fn context(&self) -> *mut c_void {
        self.core.context.handle().0
    }

    fn wait_and_drop<T>(&self, memory: Option<T>) {
        if memory.is_some() {
            self.core.block_all();
        }
    }

    /// Checks a request, and submits it with addresses in place of handles.
    fn start(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let operation = request.operation();
        let elsewhere = |buffer| {
            let queue = self.core.queues.get(operation, queue.id()).ok()?;
            peers::visit(&self.core, buffer, Some(&queue))
        };
        let names = match request {
            Request::Copies(..) | Request::Launch(_) | Request::Gather(_) | Request::Scatter(_) => {
                self.core.memory.lookup_with(&elsewhere)
            }
            _ => self.core.memory.lookup(),
        };
        let checked = match request {
            Request::Copies(transfers, _) => names.check_transfers(transfers),
            _ => request.check(&names),
        };
        checked.map_err(|error| self.core.here(error))?;
        let planned = match request {
            Request::Launch(launch) => Some(self.plan(operation, &names, launch)?),
            _ => None,
        };
        let mut foreign_error = None;
        let submitted = self.core.enqueue(operation, queue.id(), |work| match *request {
            Request::Copies(transfers, route) => copy::start(work, &names, transfers, route),
            Request::Fill(fill) => {
                kernel::fill::run(work, names.device_address(fill.to), fill.bytes, fill.pattern)
            }
            Request::Search(search) => {
                let (start, answer) =
                    (names.device_address(search.elements.start), names.host_address(search.answer));
                let run =
                    |compute: &Compute<'_>| Ok(kernel::compute::run(work, compute, &[start], Some(answer)));
                search.as_compute(run).unwrap_or_else(|error| {
                    foreign_error = Some(error);
                    Err(StatusCode::NOT_SUPPORTED)
                })
            }
            Request::Gather(&Gather { elements, indices, count, values })
            | Request::Scatter(&Scatter { elements, indices, count, values }) => {
                let request = indexed::IndexedRequest {
                    direction: IndexedDirection::of(request),
                    bases: elements.bases().iter().map(|base| names.device_address(*base)).collect(),
                    page_len: elements.page_len(),
                    elements_count: elements.count(),
                    stride: elements.stride(),
                    indices: names.host_address(indices),
                    count,
                    values: names.host_address(values),
                };
                indexed::run(work, &request)
            }
            Request::Compute(compute) => {
                let answer = compute.answer().map(|answer| names.host_address(answer));
                kernel::compute::run(work, compute, &starts(&names, compute), answer)
            }
            Request::Launch(launch) => {
                let report = names.host_address(launch.report);
                planned.map_or(Ok(()), |planned| {
                    kernel::launch::run(work, planned, launch, report, &mut foreign_error)
                })
            }
        });
        // The loss of the device explains other errors, such as the status of a library.
        submitted.map_err(|error| self.core.check_lost(operation).err().or(foreign_error).unwrap_or(error))
    }

    /// Plans a checked launch.
    fn plan(
        &self,
        operation: &'static str,
        names: &HandleLookup<'_>,
        launch: &Launch<'_>,
    ) -> Result<Planned> {
        let places = launch.views.iter().flat_map(LaunchView::bases);
        let bases = places.map(|base| names.device_address(*base)).collect();
        let planned = self.core.kernels.launches.plan(operation, launch, bases);
        planned.map_err(|error| self.core.here(error))
    }

    /// Checks launches, and returns the keys of their kernels.
    fn shapes(&self, operation: &'static str, launches: &[Launch<'_>]) -> Result<Vec<KernelKey>> {
        // `None`: this call submits no work, so the device that owns the buffer need not record a use.
        let elsewhere = |buffer| peers::visit(&self.core, buffer, None);
        let names = self.core.memory.lookup_with(&elsewhere);
        let shape = |launch| {
            Request::Launch(launch).check(&names).map_err(|error| self.core.here(error))?;
            self.plan(operation, &names, launch).map(|planned| planned.shape)
        };
        launches.iter().map(shape).collect()
    }

    /// Returns true if cuBLAS computes a launch. The context must be current.
    fn is_for_cublas(&self, launch: &Launch<'_>) -> bool {
        BlasProduct::of_launch(launch).is_some() && self.core.cublas.is_ready(&self.core.context)
    }

    /// Waits for the work of a queue and ends it.
    fn end_queue(&self, id: QueueId) {
        let Ok(queue) = self.core.queue("release_queue", id) else { return };
        let newest = {
            let mut order = queue.order.lock();
            order.ended = true;
            queue.newest()
        };
        self.core.block(&queue, newest);
        queue.deliver(u64::MAX);
        self.core.queues.end(queue.id, newest);
    }

    /// Checks that an allocation does not exceed the GPU's memory, and returns the GPU's total bytes.
    fn expect_room(&self, operation: &'static str, bytes: u64) -> Result<u64> {
        let status = self.memory()?;
        if bytes > status.total_bytes {
            return Err(self.core.here(
                Error::new(ErrorKind::TooLarge, operation)
                    .with_bytes(bytes)
                    .with_available_bytes(status.total_bytes),
            ));
        }
        if bytes > status.usable_bytes {
            return Err(self.core.here(
                Error::new(ErrorKind::OutOfMemory, operation)
                    .with_bytes(bytes)
                    .with_available_bytes(status.usable_bytes)
                    .with_detail(format!(
                        "{} bytes are free; {} of them are reserved for the driver and other programs",
                        status.free_bytes, self.core.headroom_bytes
                    )),
            ));
        }
        Ok(status.total_bytes)
    }

    /// Adds the available memory to the driver's error about a shortage.
    fn out_of_memory(&self, operation: &'static str, bytes: u64, code: StatusCode) -> Error {
        let error = self.core.error(operation, code).with_bytes(bytes);
        match self.memory() {
            Ok(status) => error.with_available_bytes(status.usable_bytes),
            Err(_) => error,
        }
    }

    /// If the caller requires proof that new memory exists, writes to a part of it.
    fn prove(
        &self,
        operation: &'static str,
        memory: &DeviceMemory,
        part: Range<u64>,
        commit: Commit,
    ) -> Result<()> {
        let bytes = part.end - part.start;
        if commit != Commit::Proven || bytes == 0 {
            return Ok(());
        }
        let fail = |code: StatusCode| self.out_of_memory(operation, bytes, code);
        let stream = Stream::new(&self.core.context).map_err(fail)?;
        memory.clear(part, stream.raw()).and_then(|()| stream.synchronize()).map_err(fail)
    }
}

/// The error for a GPU or a context that cannot be used.
fn refused(code: StatusCode, operation: &'static str) -> Error {
    code.error_of(ErrorKind::Driver, operation)
}

/// Returns the addresses of a checked computation's sources.
fn starts(names: &HandleLookup<'_>, compute: &Compute<'_>) -> Vec<u64> {
    compute.sources.iter().map(|source| names.device_address(source.start)).collect()
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDevice({})", self.core.card.info)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        peers::remove(&self.core);
        for queue in self.core.queues.live() {
            self.end_queue(queue.id);
        }
        self.core.memory.remove_all_device().iter().for_each(DeviceMemory::await_visitors);
        self.core.watch.stop();
    }
}

impl Addresses for CudaDevice {
    fn space(&self) -> AddressSpace {
        AddressSpace::Cuda { ordinal: self.core.context.ordinal().unsigned_abs() }
    }

    fn address(&self, place: DeviceSpan<'_>, bytes: u64) -> Result<u64> {
        let names = self.core.memory.lookup();
        names.check_device("address", place, bytes).map_err(|error| self.core.here(error))?;
        Ok(names.device_address(place))
    }

    fn synchronize(&self) -> Result<()> {
        const OPERATION: &str = "synchronize";
        let _current = self.core.enter(OPERATION)?;
        self.core.context.synchronize().map_err(|code| self.core.error(OPERATION, code))
    }
}

// SAFETY: names and ranges are checked before the driver is called, and `HandleLookup` keeps the memory alive
// meanwhile. A release removes the name. It then waits until every queue has done its work (`block_all`),
// and until the queues of other devices that use a place in the memory have (`await_visitors`). A ticket
// is done when the GPU has passed an event behind all of its work. The driver fails all remaining work of
// a lost context, which is never recovered, so none of it runs any more. The processor copies by `racy`.
unsafe impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.core.card.info
    }

    fn memory(&self) -> Result<MemoryStatus> {
        self.core.check_lost("memory")?;
        let (free, total) = self.core.context.memory().map_err(|code| self.core.error("memory", code))?;
        Ok(MemoryStatus::new(total, free, free.saturating_sub(self.core.headroom_bytes)))
    }

    fn create_queue(&self) -> Result<QueueHandle> {
        const OPERATION: &str = "create_queue";
        self.core.check_lost(OPERATION)?;
        let handle = QueueHandle::unique();
        let queue = CudaQueue::new(handle.id(), &self.core.context)
            .map_err(|code| self.core.error(OPERATION, code))?;
        self.core.queues.add(handle.id(), Arc::new(queue));
        // If the device was lost meanwhile, the loss handler has not seen this queue, so remove it here.
        self.core.check_lost(OPERATION).inspect_err(|_| self.core.queues.remove(handle.id()))?;
        Ok(handle)
    }

    fn release_queue(&self, queue: QueueHandle) {
        self.end_queue(queue.id());
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        const OPERATION: &str = "allocate";
        self.expect_room(OPERATION, bytes)?;
        let memory = DeviceMemory::new(&self.core.context, bytes);
        let memory = memory.map_err(|code| self.out_of_memory(OPERATION, bytes, code))?;
        self.prove(OPERATION, &memory, 0..bytes, commit)?;
        Ok(self.core.memory.add_device(memory))
    }

    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        const OPERATION: &str = "allocate_extensible";
        check_extensible(bytes, most).map_err(|error| self.core.here(error))?;
        let total = self.expect_room(OPERATION, bytes)?;
        // Reserve at most as many addresses as the GPU has memory, because the buffer cannot be longer.
        let memory = DeviceMemory::extensible(&self.core.context, bytes, most, most.min(total));
        let memory = memory.map_err(|code| match code {
            StatusCode::NOT_SUPPORTED => self.core.here(
                Error::new(ErrorKind::Unsupported, OPERATION)
                    .with_detail("the driver or the GPU does not manage virtual memory")
                    .with_advice("install a newer driver, or allocate memory of a fixed length"),
            ),
            code => self.out_of_memory(OPERATION, bytes, code),
        })?;
        self.prove(OPERATION, &memory, 0..bytes, commit)?;
        Ok(self.core.memory.add_device(memory))
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, commit: Commit) -> Result<()> {
        const OPERATION: &str = "extend";
        self.core.check_lost(OPERATION)?;
        let _alone = self.extending.lock();
        let unknown = || {
            self.core.here(
                Error::new(ErrorKind::UnknownHandle, OPERATION)
                    .with_detail("the buffer is released, or belongs to another device"),
            )
        };
        let memory = self.core.memory.device(buffer.id()).ok_or_else(unknown)?;
        let now = memory.bytes();
        let most = memory.reserved().map_or(now, |(_, most)| *most);
        let is_longer = check_extend(now, bytes, most).map_err(|error| self.core.here(error))?;
        let Some((reserved, _)) = memory.reserved().filter(|_| is_longer) else { return Ok(()) };
        let missing = reserved.missing_bytes(bytes);
        self.expect_room(OPERATION, missing).map_err(|error| match error.kind() {
            ErrorKind::TooLarge => self.core.here(
                Error::new(ErrorKind::OutOfMemory, OPERATION)
                    .with_bytes(missing)
                    .with_available_bytes(error.available_bytes().unwrap_or(0)),
            ),
            _ => error,
        })?;
        reserved.extend(bytes).map_err(|code| self.out_of_memory(OPERATION, missing, code))?;
        self.prove(OPERATION, &memory, now..bytes, commit)?;
        memory.lengthen(bytes);
        Ok(())
    }

    fn wipe_on_release(&self) -> Result<()> {
        const OPERATION: &str = "wipe_on_release";
        self.core.check_lost(OPERATION)?;
        self.core.context.start_wiping().map_err(|code| self.core.error(OPERATION, code))
    }

    fn release(&self, buffer: BufferHandle) {
        let memory = self.core.memory.remove_device(buffer.id());
        self.wait_and_drop(memory.as_ref());
        memory.iter().for_each(DeviceMemory::await_visitors);
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        const OPERATION: &str = "allocate_host";
        self.core.check_lost(OPERATION)?;
        let range = match kind {
            HostMemory::Pinned => {
                let refused = || {
                    Error::new(ErrorKind::PinRefused, OPERATION)
                        .with_bytes(bytes as u64)
                        .with_advice(PIN_ADVICE)
                };
                // Check the free RAM, because page-locked memory cannot be swapped out. If it exceeds the
                // free memory, Linux may kill a process instead of refusing the request. If the free memory
                // is unknown, let the driver decide.
                let available = SystemMemory::of_linux().map(|memory| memory.available_bytes);
                if let Some(available) = available
                    && bytes as u64 > available
                {
                    let detail = "the request exceeds the free RAM";
                    return Err(self
                        .core
                        .here(refused().with_available_bytes(available).with_detail(detail)));
                }
                HostRange::pinned(&self.core.context, bytes).map_err(|code| {
                    let error = self.core.error(OPERATION, code);
                    if error.kind() == ErrorKind::Lost {
                        return error;
                    }
                    let error = code
                        .error_of(ErrorKind::PinRefused, OPERATION)
                        .with_bytes(bytes as u64)
                        .with_advice(PIN_ADVICE);
                    self.core.here(match available {
                        Some(available) => error.with_available_bytes(available),
                        None => error,
                    })
                })?
            }
            HostMemory::Pageable => HostRange::pageable(&self.core.context, bytes).map_err(|error| {
                self.core.here(
                    Error::new(ErrorKind::OutOfMemory, OPERATION)
                        .with_bytes(bytes as u64)
                        .with_detail(error.to_string()),
                )
            })?,
            _ => return Err(self.core.here(Error::new(ErrorKind::Unsupported, OPERATION))),
        };
        // SAFETY: new, zeroed memory that no other code knows; it lives until its release, which waits for
        // work.
        Ok(unsafe { self.core.memory.add_host(range, kind) })
    }

    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        const OPERATION: &str = "import_host";
        self.core.check_lost(OPERATION)?;
        let range = match kind {
            HostMemory::Pageable => HostRange::foreign(&self.core.context, address, bytes),
            // SAFETY: the caller keeps the range allocated until it is released.
            HostMemory::Pinned => unsafe { HostRange::registered(&self.core.context, address, bytes) }
                .map_err(|code| {
                    let error = self.core.error(OPERATION, code);
                    if matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unsupported) {
                        return error;
                    }
                    let error = code.error_of(ErrorKind::PinRefused, OPERATION);
                    self.core.here(error.with_bytes(bytes as u64).with_advice(IMPORT_ADVICE))
                })?,
            _ => return Err(self.core.here(Error::new(ErrorKind::Unsupported, OPERATION))),
        };
        // SAFETY: guaranteed by the caller.
        Ok(unsafe { self.core.memory.add_host(range, kind) })
    }

    fn release_host(&self, host: HostAllocation) {
        self.wait_and_drop(self.core.memory.remove_host(host.id()).as_ref());
    }

    fn addresses(&self) -> Option<&dyn Addresses> {
        // Offer addresses only in the primary context, because other code of the process uses only that
        // context.
        self.core.context.is_primary().then_some(self)
    }

    fn stream_launcher(&self) -> Option<&dyn StreamLauncher> {
        // StreamLauncher of the program belong to the primary context, too.
        self.core.context.is_primary().then_some(self)
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        self.start(queue, request)
    }

    fn prepare(&self, requests: &[Request<'_>]) -> Result<()> {
        const OPERATION: &str = "prepare";
        let (mut launches, mut computations) = (Vec::new(), Vec::new());
        for request in requests {
            match request {
                Request::Launch(launch) if kernel::launch::is_translated(launch) => launches.push(**launch),
                Request::Compute(compute) => {
                    let names = self.core.memory.lookup();
                    names.check_compute(compute).map_err(|error| self.core.here(error))?;
                    computations.push((compute, starts(&names, compute)));
                }
                _ => {}
            }
        }
        let shapes = self.shapes(OPERATION, &launches)?;
        let (core, _current) = (&self.core, self.core.enter(OPERATION)?);
        let shapes = launches.iter().zip(shapes).filter(|(launch, _)| !self.is_for_cublas(launch));
        let kernels = core.kernels.launches.prepare(&core.context, shapes.map(|(_, shape)| shape).collect());
        let mut programs = computations
            .iter()
            .map(|(compute, starts)| core.kernels.programs.prepare(&core.context, compute, starts));
        kernels
            .and_then(|()| programs.try_for_each(|outcome| outcome))
            .map_err(|code| core.error(OPERATION, code))
    }

    fn routes(&self) -> &[Route] {
        if self.core.context.driver.table.has_batch_copies() {
            &[Route::Single, Route::Batch, Route::Kernel]
        } else {
            &[Route::Single, Route::Kernel]
        }
    }

    fn set_routing(&self, routing: Routing) {
        *self.core.routing.write() = routing;
    }

    fn routing(&self) -> Routing {
        *self.core.routing.read()
    }

    fn kernel_facts(&self, launch: &Launch<'_>) -> Result<KernelFacts> {
        const OPERATION: &str = "kernel_facts";
        let shapes = self.shapes(OPERATION, std::slice::from_ref(launch))?;
        let (core, _current) = (&self.core, self.core.enter(OPERATION)?);
        if self.is_for_cublas(launch) {
            let mut facts = KernelFacts::default();
            facts.library = Some("cuBLAS");
            return Ok(facts);
        }
        let facts = shapes.into_iter().map(|shape| core.kernels.launches.facts(&core.context, shape)).next();
        facts.unwrap_or(Ok(KernelFacts::default())).map_err(|code| core.error(OPERATION, code))
    }

    fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        const OPERATION: &str = "poll";
        let Some(queue) = self.core.queue_of(OPERATION, ticket)? else { return Ok(QueueProgress::Done) };
        if !queue.is_reached(ticket.value) {
            self.core.was_pending(&queue);
            if !queue.is_reached(ticket.value) {
                self.core.check_lost(OPERATION)?;
                return Ok(QueueProgress::Pending);
            }
        }
        queue.outcome(ticket.value).map_err(|error| self.core.here(error))?;
        Ok(QueueProgress::Done)
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        const OPERATION: &str = "wait";
        let Some(queue) = self.core.queue_of(OPERATION, ticket)? else { return Ok(()) };
        self.core.block(&queue, ticket.value);
        if !queue.is_reached(ticket.value) {
            self.core.check_lost(OPERATION)?;
        }
        queue.outcome(ticket.value).map_err(|error| self.core.here(error))
    }

    fn wake(&self, ticket: Ticket, waker: Waker) {
        match self.core.queue_of("wake", ticket) {
            Ok(Some(queue)) => self.core.wake(&queue, ticket.value, waker),
            // Wake the task at once: the work has ended, or the ticket is unknown, so no later event would
            // wake the task.
            Ok(None) | Err(_) => waker.wake(),
        }
    }

    fn reaches(&self, other: &DeviceInfo) -> Reach {
        peers::reach(&self.core, other)
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        const OPERATION: &str = "order_after";
        self.core.check_lost(OPERATION)?;
        let later = self.core.queue(OPERATION, queue.id())?;
        let earlier = self.core.queue_of(OPERATION, ticket);
        let earlier = earlier.or_else(|_| peers::queue_of(&self.core, OPERATION, ticket))?;
        let Some(earlier) = earlier else { return Ok(()) };
        if later.id == earlier.id || earlier.is_reached(ticket.value) {
            return Ok(());
        }
        let _current = self.core.enter(OPERATION)?;
        let order = later.order.lock();
        if order.ended {
            return Err(self.core.unknown_queue(OPERATION));
        }
        earlier.order_before(&later.stream, ticket.value).map_err(|code| self.core.error(OPERATION, code))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use backend_api::waker;
    use backend_api::{DeviceBuffer, Transfer};

    use super::*;
    use crate::fake::{self, FakeScene, driven};

    #[test]
    fn a_shortage_is_no_loss_of_the_device() {
        let scene = FakeScene::new(0);
        // The submission fails. At first, the wait for its end fails as well.
        driven(|driven| (driven.short_records, driven.short_questions) = (1, 5));
        let left = || {
            let driven = driven(|_| ());
            driven.short_records + driven.short_questions
        };
        assert_eq!(scene.queue.submit(&[]).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!(left(), 0);
        let ticket = scene.submit();
        driven(|driven| driven.short_questions = 1);
        scene.device.core.examine(&scene.device.core.queue("test", ticket.queue).unwrap());
        assert_eq!(left(), 0);
        scene.device.wait(ticket).unwrap();
    }

    #[test]
    fn tickets_are_done_when_their_event_is_reached_and_not_before() {
        let scene = FakeScene::new(0);
        scene.stream().open(0);
        let tickets: Vec<Ticket> = (0..100).map(|_| scene.submit()).collect();
        let done =
            || tickets.iter().filter(|ticket| scene.device.poll(**ticket) == Ok(QueueProgress::Done)).count();
        assert_eq!(done(), 0);
        scene.stream().open(37);
        assert_eq!(done(), 37);
        scene.stream().open(100);
        scene.device.wait(tickets[99]).unwrap();
        assert_eq!(done(), 100);
    }

    #[test]
    fn one_question_answers_for_all_tickets_before() {
        let scene = FakeScene::new(0);
        (0..499).for_each(|_| _ = scene.submit());
        let last = scene.submit();
        let before = scene.stream().queries();
        scene.device.wait(last).unwrap();
        assert_eq!(scene.stream().queries() - before, 1);
    }

    #[test]
    fn events_do_not_pile_up_without_polls() {
        let scene = FakeScene::new(0);
        (0..1024).for_each(|_| _ = scene.submit());
        let before = scene.stream().queries();
        (0..5000).for_each(|_| _ = scene.submit());
        // `record` has polled from time to time by binary search, so all reached events were reused.
        let queries = scene.stream().queries() - before;
        assert!((5000 / 1024..5000 / 8).contains(&queries), "{queries} questions");
    }

    #[test]
    fn a_waker_may_submit_wait_and_release() {
        let scene = FakeScene::new(4096);
        scene.stream().open(0);
        scene.host.write(0, &[7; 4096]);
        let ticket = scene.queue.submit(&[scene.upload(4096)]).unwrap();
        let FakeScene { device, queue, memory, host } = scene;
        let (stream, queue) = (fake::stream(&device, queue.id()), Arc::new(queue));
        let (sender, receiver) = mpsc::channel();
        let buffers = Mutex::new(Some((memory, host)));
        let waker = waker({
            let (device, queue) = (Arc::clone(&device), Arc::clone(&queue));
            move || {
                let (memory, host) = buffers.lock().take().unwrap();
                let back = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 4096 };
                host.write(0, &[0; 4096]);
                let outcome = queue.submit(&[back]).and_then(|ticket| device.wait(ticket));
                let mut found = [0; 4096];
                host.read(0, &mut found);
                drop((memory, host));
                sender.send((outcome, found)).unwrap();
            }
        });
        device.wake(ticket, waker);
        assert!(receiver.try_recv().is_err());
        stream.open(u64::MAX);
        let (outcome, found) = receiver.recv().unwrap();
        outcome.unwrap();
        assert_eq!(found, [7; 4096]);
    }

    #[test]
    fn a_waker_may_let_go_of_the_device_and_another_may_panic() {
        let FakeScene { device, queue, .. } = FakeScene::new(0);
        let stream = fake::stream(&device, queue.id());
        stream.open(0);
        let ticket = queue.submit(&[]).unwrap();
        let (sender, receiver) = mpsc::channel();
        device.wake(ticket, waker(|| panic!("on purpose, in a waker")));
        let last = Mutex::new(Some((Arc::clone(&device), queue)));
        let waker = waker(move || {
            drop(last.lock().take());
            sender.send(()).unwrap();
        });
        device.wake(ticket, waker);
        stream.open(u64::MAX);
        drop(device);
        receiver.recv().unwrap();
    }

    #[test]
    fn a_lost_device_wakes_fails_and_releases() {
        let scene = FakeScene::new(4096);
        scene.stream().open(0);
        let ticket = scene.queue.submit(&[scene.upload(4096)]).unwrap();
        let FakeScene { device, queue, memory, host } = scene;
        let (stream, queue) = (fake::stream(&device, queue.id()), Arc::new(queue));
        let (sender, receiver) = mpsc::channel();
        let calls = Arc::new(AtomicUsize::new(0));
        let waker = waker({
            let (device, queue, calls) = (Arc::clone(&device), Arc::clone(&queue), Arc::clone(&calls));
            move || {
                calls.fetch_add(1, Ordering::SeqCst);
                // Submit here, because a waker that ran under the lock of submissions would deadlock.
                sender.send((device.poll(ticket), queue.submit(&[]))).unwrap();
            }
        });
        device.wake(ticket, waker);
        let sleeper = std::thread::spawn({
            let device = Arc::clone(&device);
            move || device.wait(ticket)
        });
        stream.fail();
        assert_eq!(sleeper.join().unwrap().unwrap_err().kind(), ErrorKind::Lost);
        let (polled, submitted) = receiver.recv().unwrap();
        assert_eq!(polled.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(submitted.unwrap_err().kind(), ErrorKind::Lost);
        drop((memory, host));
        drop((queue, device));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn an_event_that_is_late_is_no_loss() {
        let scene = FakeScene::new(0);
        let ticket = scene.submit();
        driven(|driven| driven.late_events = 20);
        let core = &scene.device.core;
        core.examine(&core.queue("test", ticket.queue).unwrap());
        assert_eq!(driven(|_| ()).late_events, 0, "the thread polled until it was reached");
        scene.device.wait(ticket).unwrap();
    }

    #[test]
    fn many_threads_wait_for_tickets_of_one_queue() {
        let scene = FakeScene::new(0);
        scene.stream().open(0);
        let tickets: Vec<Ticket> = (0..16).map(|_| scene.submit()).collect();
        std::thread::scope(|scope| {
            for &ticket in &tickets {
                scope.spawn({
                    let device = &scene.device;
                    move || device.wait(ticket).unwrap()
                });
            }
            for (reached, ticket) in (1..).zip(&tickets) {
                scene.stream().open(reached);
                scene.device.wait(*ticket).unwrap();
            }
        });
    }

    #[test]
    fn a_long_list_of_pages_takes_few_launches_and_waits_for_the_first_lists() {
        let count = 65_536_u64;
        let scene = FakeScene::new(2 * count as usize * 16);
        let (memory, host) = (&scene.memory, &scene.host);
        let transfers: Vec<Transfer> = (0..count)
            .map(|i| Transfer::Upload { from: host.at(i * 32), to: memory.at(i * 16), bytes: 16 })
            .collect();
        scene.device.wait(scene.queue.submit(&transfers).unwrap()).unwrap();
        // The first launches take 128, 768 and 2304 copies, all later ones 4096.
        let launches = 3 + (65_536 - 128 - 768 - 2304_usize).div_ceil(4096);
        assert_eq!(scene.stream().started(), [0, 0, launches]);
    }

    #[test]
    fn a_bad_piece_anywhere_in_a_list_is_refused_before_anything_starts() {
        let scene = FakeScene::new(4096);
        let FakeScene { device, queue, memory, host } = &scene;
        let buffer = || DeviceBuffer::new(device, 100, Commit::Lazy).unwrap();
        // SAFETY: the device must refuse this place.
        let (other, gone) = (buffer(), unsafe { buffer().at(0).detach() });
        let piece = |from, to, bytes| Transfer::Upload { from: host.at(from), to, bytes };
        let fine: Vec<Transfer> = (0..300).map(|i| piece(i * 2, memory.at(i * 3), 1)).collect();
        let bad = [
            (piece(0, memory.at(4090), 7), ErrorKind::InvalidArgument),
            (piece(4090, memory.at(0), 7), ErrorKind::InvalidArgument),
            (piece(u64::MAX, memory.at(0), 2), ErrorKind::InvalidArgument),
            (piece(0, memory.at(2), u64::MAX), ErrorKind::InvalidArgument),
            (piece(0, other.at(99), 2), ErrorKind::InvalidArgument),
            (piece(0, gone, 2), ErrorKind::UnknownHandle),
            (
                Transfer::Internal { from: memory.at(0), to: other.at(0), bytes: 101 },
                ErrorKind::InvalidArgument,
            ),
        ];
        for (transfer, kind) in bad {
            for place in [0, 1, 299] {
                let mut transfers = fine.clone();
                transfers.insert(place, transfer);
                assert_eq!(queue.submit(&transfers).unwrap_err().kind(), kind, "{transfer:?} at {place}");
            }
        }
        assert_eq!(scene.stream().started(), [0; 3]);
        let edges =
            [piece(4096, memory.at(4096), 0), piece(0, other.at(99), 1), piece(4095, memory.at(4095), 1)];
        device.wait(queue.submit(&edges).unwrap()).unwrap();
    }
}
