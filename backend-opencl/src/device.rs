//! [`OpenClDevice`]: the implementation of the trait [`Device`] for OpenCL.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use backend_api::kernel::{KernelFacts, Report};
use backend_api::{
    BufferHandle, Commit, Device, DeviceInfo, DeviceSpan, Error, ErrorKind, Gather, HostAllocation,
    HostMemory, HostSpan, Launch, LaunchView, MemoryStatus, QueueHandle, QueueId, QueueProgress, Request,
    Result, Route, Routing, Scatter, Search, Ticket,
};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use vmarray_support::Queues;
use vmarray_support::backends::{IndexedDirection, MemoryTable};

use crate::completion::Mark;
use crate::core::OpenClCore;
use crate::discovery::Discovered;
use crate::host_memory::HostPiece;
use crate::kernel::compute::compute;
use crate::kernel::fill;
use crate::kernel::indexed::indexed;
use crate::kernel::launch::{ViewPlaces, launch};
use crate::memory::{Budget, Buffer};
use crate::options::OpenClOptions;
use crate::queue::{OpenClQueue, Statistics};

/// A device that is accessed through OpenCL 1.2.
///
/// The device has one context and any number of in-order queues. Share it as an [`Arc`]; any thread may call
/// all methods of [`Device`]. The drop of the device blocks until its work is done.
///
/// ```
/// use std::sync::Arc;
/// use backend_api::{Commit, Device, DeviceBuffer, Fill, HostBuffer, HostMemory, Queue, Transfer};
/// use backend_opencl::{OpenClDevice, OpenClOptions, devices};
///
/// // Nothing happens on a machine without OpenCL.
/// for found in devices() {
///     let device = Arc::new(OpenClDevice::open(&found, &OpenClOptions::new())?);
///     let queue = Queue::new(&device)?;
///     let memory = DeviceBuffer::new(&device, 1000, Commit::Proven)?;
///     let frame = HostBuffer::new(&device, 1000, HostMemory::Pinned)?;
///     queue.submit(&Fill { to: memory.at(0), bytes: 1000, pattern: b"abc" })?;
///     let ticket =
///         queue.submit(&[Transfer::Download { from: memory.at(0), to: frame.at(0), bytes: 1000 }])?;
///     device.wait(ticket)?;
///     let mut back = [0; 4];
///     frame.read(996, &mut back);
///     assert_eq!(&back, b"abca");
///     assert!(device.statistics().copies >= 1);
/// }
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// The features of the device depend on its driver:
///
/// ```
/// use backend_opencl::{KernelCache, OpenClDevice, OpenClOptions, devices};
/// for found in devices() {
///     let options = OpenClOptions::new().with_zero_copy(false).with_kernel_cache(KernelCache::Off);
///     let device = OpenClDevice::open(&found, &options)?;
///     println!("{}: subnormal numbers are kept: {}", found.info(), device.keeps_subnormals());
///     assert!(!device.kernels_reach_pinned_memory() && !device.kernels_were_cached());
///     assert!(device.kernel_cache_error().is_none(), "no folder is wanted");
/// }
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct OpenClDevice {
    core: Arc<OpenClCore>,
    budget: Budget,
    queues: Queues<OpenClQueue>,
    /// The counts of driver calls of released queues.
    ended: Mutex<Statistics>,
    memory: RwLock<MemoryTable<Buffer, HostPiece>>,
    /// Locked by the thread that extends a buffer.
    extending: Mutex<()>,
    /// A queue of the backend, which fills new memory.
    service: Arc<OpenClQueue>,
}

impl OpenClDevice {
    /// Opens a device: creates a context and builds the kernels. This takes up to some seconds, unless the
    /// built kernels are cached from an earlier run.
    ///
    /// # Errors
    /// `Driver` with the driver's code; `KernelFailed` with the compiler's log; `System` if the system has no
    /// thread for wakers.
    pub fn open(found: &Discovered, options: &OpenClOptions) -> Result<Self> {
        Self::of(OpenClCore::open(found, options)?, options)
    }

    /// Opens a device as [`open`](Self::open) does, with `sys` as the table of driver functions.
    #[cfg(test)]
    pub(crate) fn open_by(
        sys: &'static crate::driver::Sys,
        found: &Discovered,
        options: &OpenClOptions,
    ) -> Result<Self> {
        Self::of(OpenClCore::open_by(sys, found, options)?, options)
    }

    fn of(core: Arc<OpenClCore>, options: &OpenClOptions) -> Result<Self> {
        let service = OpenClQueue::new(QueueHandle::unique().id(), &core)
            .map_err(|status| core.fail("open", ErrorKind::Driver, status))?;
        Ok(Self {
            budget: Budget::new(&core, options.budget_bytes),
            queues: Queues::default(),
            ended: Mutex::default(),
            memory: RwLock::default(),
            extending: Mutex::default(),
            service,
            core,
        })
    }

    /// Returns true if kernels access pinned host memory in place, as [`OpenClOptions::zero_copy`] requests.
    /// Kernels can if device and host share memory, or if a trial of NVIDIA's host buffers succeeded when the
    /// device was opened.
    #[must_use]
    pub fn kernels_reach_pinned_memory(&self) -> bool {
        self.core.traits.shares_fine_grained || self.core.host_buffers_nv
    }

    /// Returns true if arithmetic on `f32` keeps subnormal numbers (`CL_FP_DENORM`); arithmetic on `f64`
    /// always does. Copies, searches, loads and stores keep subnormal numbers on every device.
    #[must_use]
    pub fn keeps_subnormals(&self) -> bool {
        self.core.traits.keeps_subnormals
    }

    /// Returns true if the device loaded its built kernels from the cache on disk.
    #[must_use]
    pub fn kernels_were_cached(&self) -> bool {
        self.core.kernels.cached
    }

    /// The error of the [`KernelCache`](crate::KernelCache), for example because other users can write to its
    /// folder; `None` if there was no error, or if caching is off. After an error the device builds its
    /// kernels each time it is opened, which takes some seconds.
    #[must_use]
    pub fn kernel_cache_error(&self) -> Option<&std::io::Error> {
        self.core.kernels.cache_error.as_ref()
    }

    /// Returns counts of the driver calls in all queues of this device, including released queues; for tests
    /// and tuning.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        // Hold this lock, because a queue that ends meanwhile must be counted exactly once.
        let ended = self.ended.lock();
        let mut sum = *ended;
        self.queues.live().iter().for_each(|queue| sum += queue.statistics());
        sum.translations = self.core.kernels.translations.load(Ordering::Relaxed);
        sum
    }

    fn queue(&self, queue: QueueId, operation: &'static str) -> Result<Arc<OpenClQueue>> {
        self.queues.get(operation, queue).map_err(|error| self.named(error))
    }

    #[cfg(test)]
    pub(crate) fn core(&self) -> &OpenClCore {
        &self.core
    }

    /// If the caller requires proof that new memory exists, writes to a part of it.
    fn prove(
        &self,
        operation: &'static str,
        buffer: &Arc<Buffer>,
        part: Range<u64>,
        commit: Commit,
    ) -> Result<()> {
        let bytes = part.end - part.start;
        if commit != Commit::Proven || bytes == 0 {
            return Ok(());
        }
        let prove = || {
            let mut submission = self.service.begin(operation, ErrorKind::OutOfMemory)?;
            fill::fill(&mut submission, buffer, part.start, bytes, &[0])?;
            let ticket = submission.finish()?;
            self.service.track.wait(ticket.value)
        };
        prove().map_err(|error| match error.kind() {
            ErrorKind::OutOfMemory => {
                error.with_bytes(bytes).with_available_bytes(self.budget.status(&self.core).usable_bytes)
            }
            _ => error,
        })
    }

    /// Releases device memory after its work has ended. If that is unknown, keeps the memory for ever.
    fn end_buffer(&self, buffer: Arc<Buffer>) {
        if !buffer.uses.wait() {
            self.core.keep(buffer, true);
        }
    }

    /// Releases host memory after its work has ended. If the end is unknown, keeps the memory for ever,
    /// unless it belongs to the program.
    fn end_host(&self, host: Arc<HostPiece>) {
        if !host.uses.wait() {
            let is_wiped = host.is_ours();
            self.core.keep(host, is_wiped);
        }
    }

    fn named(&self, error: Error) -> Error {
        error.on(&self.core.info)
    }

    /// Returns the queue of an issued ticket; `None` if the queue has ended.
    fn history(&self, ticket: Ticket, operation: &'static str) -> Result<Option<Arc<OpenClQueue>>> {
        let newest = |queue: &OpenClQueue| queue.track.timeline.newest().value;
        self.queues.of(operation, ticket, newest).map_err(|error| self.named(error))
    }

    /// Checks a launch, and returns the memory of its views.
    fn placed(&self, operation: &'static str, launch: &Launch<'_>) -> Result<Vec<ViewPlaces>> {
        let memory = self.memory.read();
        Request::Launch(launch).check(&*memory).map_err(|error| self.named(error))?;
        placed(launch, |at| memory.buffer(operation, at.buffer()).map(Arc::clone))
    }

    /// Checks a request, records the memory that it uses, and executes it.
    fn start(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let operation = request.operation();
        let queue = self.queue(queue.id(), operation)?;
        let is_copy = matches!(request, Request::Copies(..));
        let kind = if is_copy { ErrorKind::CopyFailed } else { ErrorKind::KernelFailed };
        let mut submission = queue.begin(operation, kind)?;
        let value = submission.value();
        let memory = UsedMemory { table: self.memory.read(), operation, queue: &queue, value };
        request.check(&*memory.table).map_err(|error| self.named(error))?;
        match *request {
            Request::Copies(transfers, route) => {
                let mut batch = submission.take_batch();
                let added = batch.add(&memory.table, transfers, &submission);
                drop(memory);
                let enqueued = added.and_then(|()| batch.enqueue(&mut submission, route));
                submission.put_batch(batch);
                enqueued?;
            }
            Request::Fill(request) => {
                let buffer = memory.buffer(request.to)?;
                drop(memory);
                fill::fill(&mut submission, &buffer, request.to.offset(), request.bytes, request.pattern)?;
            }
            Request::Search(request) => {
                let (buffers, answer) =
                    ([memory.buffer(request.elements.start)?], memory.host(request.answer)?);
                drop(memory);
                let answer_bytes = Search::answer_bytes(request.limit.min(request.elements.count));
                answer.will_be_written(&queue, value, request.answer.offset(), answer_bytes);
                let answer = (&*answer, request.answer.offset());
                request.as_compute(|request| compute(&mut submission, request, &buffers, Some(answer)))?;
            }
            Request::Gather(&Gather { elements, indices, count, values })
            | Request::Scatter(&Scatter { elements, indices, count, values }) => {
                let LaunchView::Run(elements) = elements else {
                    return Err(self.named(pages_unsupported(operation)));
                };
                let (buffer, list, packed) =
                    (memory.buffer(elements.start)?, memory.host(indices)?, memory.host(values)?);
                drop(memory);
                let (list, packed) = ((&*list, indices.offset()), (&*packed, values.offset()));
                let direction = IndexedDirection::of(request);
                indexed(&mut submission, direction, (&buffer, elements), list, count, packed)?;
            }
            Request::Compute(request) => {
                let buffers = request.sources.iter().map(|source| memory.buffer(source.start));
                let buffers = buffers.collect::<Result<Vec<_>>>()?;
                let answer = request.answer().map(|at| Ok((memory.host(at)?, at.offset()))).transpose()?;
                drop(memory);
                let answer = answer.as_ref().map(|(piece, at)| (&**piece, *at));
                if let Some((piece, at)) = answer {
                    piece.will_be_written(&queue, value, at, request.answer_bytes());
                }
                compute(&mut submission, request, &buffers, answer)?;
            }
            Request::Launch(request) => {
                let views = placed(request, |at| memory.buffer(at))?;
                let piece = memory.host(request.report)?;
                drop(memory);
                piece.will_be_written(&queue, value, request.report.offset(), Report::BYTES);
                launch(&mut submission, request, &views, (&*piece, request.report.offset()))?;
            }
        }
        submission.finish()
    }
}

/// The table of memory during a submission; its look-ups record the memory that the request uses.
struct UsedMemory<'a> {
    table: RwLockReadGuard<'a, MemoryTable<Buffer, HostPiece>>,
    operation: &'static str,
    queue: &'a Arc<OpenClQueue>,
    value: u64,
}

impl UsedMemory<'_> {
    fn buffer(&self, at: DeviceSpan<'_>) -> Result<Arc<Buffer>> {
        let buffer = self.table.buffer(self.operation, at.buffer())?;
        buffer.uses.note(self.queue, self.value);
        Ok(Arc::clone(buffer))
    }

    fn host(&self, at: HostSpan<'_>) -> Result<Arc<HostPiece>> {
        let host = self.table.host(self.operation, at.host())?;
        host.uses.note(self.queue, self.value);
        Ok(Arc::clone(host))
    }
}

/// Returns the error for elements in several memory ranges: a buffer of OpenCL 1.2 has no address that a
/// kernel could receive in a list.
fn pages_unsupported(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, operation)
        .with_detail("the device does not support elements in several ranges of memory")
}

/// Returns the memory of a checked launch's views; `buffer` looks up a buffer.
fn placed(
    launch: &Launch<'_>,
    buffer: impl Fn(DeviceSpan<'_>) -> Result<Arc<Buffer>>,
) -> Result<Vec<ViewPlaces>> {
    let view = |view: &LaunchView<'_>| -> Result<ViewPlaces> {
        let buffers = view.bases().iter().map(|base| buffer(*base)).collect::<Result<_>>()?;
        Ok(ViewPlaces::new(view.ranges(), buffers))
    };
    launch.views.iter().map(view).collect()
}

impl Drop for OpenClDevice {
    fn drop(&mut self) {
        for queue in self.queues.live() {
            queue.close();
        }
        self.service.close();
        if self.core.is_lost() {
            let (buffers, hosts) = std::mem::take(self.memory.get_mut()).all();
            buffers.for_each(|buffer| self.end_buffer(buffer));
            hosts.for_each(|host| self.end_host(host));
        }
        self.core.await_callbacks();
    }
}

// SAFETY: under one lock, names and ranges are checked and each use of memory is recorded, before a
// command is enqueued. `Uses` and the queue's record keep the memory of a command alive. A release removes
// the name and waits for the recorded uses. A ticket ends when the driver reports that the last command is
// done or has failed, or that the device is gone, which executes no work any more. A driver that does not
// answer for long counts as gone for tickets. In all cases, memory is released only if the driver has
// reported the end of its work. The processor copies by `racy`.
unsafe impl Device for OpenClDevice {
    fn info(&self) -> &DeviceInfo {
        &self.core.info
    }

    fn memory(&self) -> Result<MemoryStatus> {
        self.core.alive("memory")?;
        Ok(self.budget.status(&self.core))
    }

    fn create_queue(&self) -> Result<QueueHandle> {
        const OPERATION: &str = "create_queue";
        self.core.alive(OPERATION)?;
        let handle = QueueHandle::unique();
        let queue = OpenClQueue::new(handle.id(), &self.core)
            .map_err(|status| self.core.fail(OPERATION, ErrorKind::Driver, status))?;
        self.queues.add(handle.id(), queue);
        Ok(handle)
    }

    fn release_queue(&self, queue: QueueHandle) {
        let Ok(live) = self.queue(queue.id(), "release_queue") else { return };
        let newest = live.close();
        let mut ended = self.ended.lock();
        self.queues.end(queue.id(), newest);
        *ended += live.statistics();
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        self.core.alive("allocate")?;
        let buffer = Arc::new(Buffer::new(&self.core, &self.budget, bytes)?);
        self.prove("allocate", &buffer, 0..bytes, commit)?;
        Ok(self.memory.write().add_buffer(bytes, buffer))
    }

    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        self.core.alive("allocate_extensible")?;
        let buffer = Arc::new(Buffer::extensible(&self.core, &self.budget, bytes, most)?);
        self.prove("allocate_extensible", &buffer, 0..bytes, commit)?;
        Ok(self.memory.write().add_buffer(bytes, buffer))
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, commit: Commit) -> Result<()> {
        const OPERATION: &str = "extend";
        self.core.alive(OPERATION)?;
        let _alone = self.extending.lock();
        let present = self.memory.read().buffer(OPERATION, buffer.id()).cloned();
        let present = present.map_err(|error| self.named(error))?;
        if let Some(extended) = present.extended(&self.core, &self.budget, bytes)? {
            let extended = Arc::new(extended);
            self.prove(OPERATION, &extended, present.bytes..bytes, commit)?;
            let extended = self.memory.write().extend_buffer(buffer, bytes, extended);
            extended.map_err(|error| self.named(error))?;
        }
        Ok(())
    }

    fn wipe_on_release(&self) -> Result<()> {
        self.core.wipes.store(true, Ordering::Release);
        Ok(())
    }

    fn release(&self, buffer: BufferHandle) {
        let removed = self.memory.write().remove_buffer(&buffer);
        removed.into_iter().for_each(|buffer| self.end_buffer(buffer));
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.core.alive("allocate_host")?;
        let piece = HostPiece::allocate(&self.core, bytes, kind)?;
        // SAFETY: new, zeroed memory that no other code knows; it lives as long as its entry and any work
        // that uses it.
        let allocation = unsafe { HostAllocation::new(piece.address, bytes, kind) };
        self.memory.write().add_host(&allocation, Arc::new(piece));
        Ok(allocation)
    }

    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        const OPERATION: &str = "import_host";
        self.core.alive(OPERATION)?;
        if kind == HostMemory::Pinned {
            return Err(self.named(
                Error::new(ErrorKind::Unsupported, OPERATION)
                    .with_bytes(bytes as u64)
                    .with_detail("OpenCL cannot page-lock memory of the program"),
            ));
        }
        // SAFETY: guaranteed by the caller.
        let allocation = unsafe { HostAllocation::new(address, bytes, kind) };
        self.memory.write().add_host(&allocation, Arc::new(HostPiece::imported(address, bytes)));
        Ok(allocation)
    }

    fn release_host(&self, host: HostAllocation) {
        let removed = self.memory.write().remove_host(&host);
        removed.into_iter().for_each(|piece| self.end_host(piece));
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        self.start(queue, request)
    }

    fn routes(&self) -> &[Route] {
        &[Route::Single, Route::Kernel]
    }

    fn set_routing(&self, routing: Routing) {
        *self.core.routing.write() = routing;
    }

    fn routing(&self) -> Routing {
        *self.core.routing.read()
    }

    fn prepare(&self, requests: &[Request<'_>]) -> Result<()> {
        const OPERATION: &str = "prepare";
        self.core.alive(OPERATION)?;
        let mut launches = Vec::new();
        for request in requests {
            match request {
                Request::Launch(launch) => launches.push((*launch, self.placed(OPERATION, launch)?)),
                Request::Compute(compute) => {
                    request.check(&*self.memory.read()).map_err(|error| self.named(error))?;
                    self.core.prepare_program(compute)?;
                }
                _ => {}
            }
        }
        self.core.prepare_kernels(&launches)
    }

    fn kernel_facts(&self, launch: &Launch<'_>) -> Result<KernelFacts> {
        self.core.alive("kernel_facts")?;
        let views = self.placed("kernel_facts", launch)?;
        self.core.kernel_facts(launch, &views)
    }

    fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        match self.history(ticket, "poll")? {
            Some(queue) => queue.track.poll(ticket.value),
            None => Ok(QueueProgress::Done),
        }
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        match self.history(ticket, "wait")? {
            Some(queue) => queue.track.wait(ticket.value),
            None => Ok(()),
        }
    }

    fn wake(&self, ticket: Ticket, waker: Waker) {
        match self.history(ticket, "wake") {
            Ok(Some(queue)) => queue.track.wake(ticket.value, waker),
            _ => waker.wake(),
        }
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        const OPERATION: &str = "order_after";
        let queue = self.queue(queue.id(), OPERATION)?;
        self.core.alive(OPERATION)?;
        let Some(other) = self.history(ticket, OPERATION)? else { return Ok(()) };
        let mark: Option<Arc<Mark>> = other.track.find(ticket.value).filter(|mark| mark.status() > 0);
        match mark {
            Some(mark) if !Arc::ptr_eq(&queue, &other) => queue.order_after(&mark),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use backend_api::waker;
    use backend_api::{Fill, Transfer};

    use super::*;
    use crate::options::KernelCache;

    fn open() -> Vec<OpenClDevice> {
        let options = OpenClOptions::new().with_kernel_cache(KernelCache::Off);
        crate::devices().iter().map(|found| OpenClDevice::open(found, &options).unwrap()).collect()
    }

    #[test]
    fn neither_submitting_nor_ordering_runs_wakers() {
        let own = thread::current().id();
        for device in open() {
            let [one, two] = [(); 2].map(|()| device.create_queue().unwrap());
            let memory = device.allocate(1 << 24, Commit::Lazy).unwrap();
            let to = memory.at(0);
            // Submits work whose waker sends a message. If `end` is kept, the waker then waits. The waker
            // must not run in this thread.
            let awaited = || loop {
                let ticket =
                    device.submit(&one, &Request::Fill(&Fill { to, bytes: 1 << 24, pattern: &[1] })).unwrap();
                if device.poll(ticket).unwrap() == QueueProgress::Pending {
                    let ((sender, receiver), (end, may_end)) = (mpsc::sync_channel(1), mpsc::channel::<()>());
                    let may_end = Mutex::new(may_end);
                    // Sends a message when woken. Then blocks any other thread than this one, until `end`
                    // releases it.
                    let keep = move || {
                        let here = thread::current().id();
                        // If the wake-up came too early, no receiver is left.
                        if sender.send(here).is_ok() && here != own {
                            let _ = may_end.lock().recv();
                        }
                    };
                    device.wake(ticket, waker(keep));
                    if receiver.try_recv().is_err() {
                        break (ticket, receiver, end);
                    }
                }
            };
            let (_, receiver, end) = awaited();
            assert_ne!(receiver.recv().unwrap(), own);
            // From here on the completion thread is blocked in the first waker.
            let (ticket, second_receiver, no_end) = awaited();
            drop(no_end);
            let track = &device.queue(one.id(), "test").unwrap().track;
            while track.find(ticket.value).is_some_and(|mark| mark.status() > 0) {
                thread::yield_now();
            }
            device.order_after(&two, ticket).unwrap();
            (0..200).for_each(|_| _ = device.submit(&one, &Request::Copies(&[], None)).unwrap());
            assert!(second_receiver.try_recv().is_err());
            drop(end);
            assert_ne!(second_receiver.recv().unwrap(), own);
        }
    }

    #[test]
    fn a_lost_device_fails_everything_at_once_and_gives_memory_back() {
        for device in open() {
            let queue = device.create_queue().unwrap();
            let buffer = device.allocate(1 << 20, Commit::Lazy).unwrap();
            let host = device.allocate_host(1 << 20, HostMemory::Pinned).unwrap();
            let (there, here) = (buffer.at(0), host.at(0));
            let done = device
                .submit(
                    &queue,
                    &Request::Copies(&[Transfer::Upload { from: here, to: there, bytes: 8 }], None),
                )
                .unwrap();
            device.wait(done).unwrap();
            let pending = device
                .submit(&queue, &Request::Fill(&Fill { to: there, bytes: 1 << 20, pattern: &[1] }))
                .unwrap();
            let count = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&count);
            device.wake(pending, waker(move || _ = counted.fetch_add(1, Ordering::SeqCst)));

            device.core.lose(crate::error::driver("fill", ErrorKind::Lost, -2), true);

            let is_lost = |error: Error| {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                assert_eq!(error.driver().unwrap().name, "CL_DEVICE_NOT_AVAILABLE");
            };
            device.poll(done).unwrap();
            // The wait may also succeed, because the work may have ended before the loss.
            if let Err(error) = device.wait(pending) {
                is_lost(error);
            }
            assert_ne!(device.poll(pending), Ok(QueueProgress::Pending));
            is_lost(device.submit(&queue, &Request::Copies(&[], None)).unwrap_err());
            is_lost(device.create_queue().unwrap_err());
            is_lost(device.allocate(1, Commit::Lazy).unwrap_err());
            is_lost(device.allocate_host(1, HostMemory::Pageable).unwrap_err());
            is_lost(device.memory().unwrap_err());
            is_lost(device.order_after(&queue, done).unwrap_err());
            // The completion thread runs the waker, because the caller of `lose` may hold a lock.
            while count.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            device.release(buffer);
            device.release_host(host);
            device.release_queue(queue);
            let (buffers, hosts) = std::mem::take(&mut *device.memory.write()).all();
            assert_eq!(buffers.count() + hosts.count(), 0);
        }
    }

    #[test]
    fn a_doubtful_code_on_a_sound_device_is_no_loss() {
        for device in open() {
            let error = device.core.fail("submit", ErrorKind::CopyFailed, -5);
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            let error = device.core.fail("submit", ErrorKind::CopyFailed, -14);
            assert_eq!(error.kind(), ErrorKind::CopyFailed);
            device.core.alive("submit").unwrap();
            let error = device.core.fail("submit", ErrorKind::CopyFailed, -9999);
            assert_eq!(error.kind(), ErrorKind::Lost);
            assert_eq!(device.memory().unwrap_err().kind(), ErrorKind::Lost);
        }
    }

    #[test]
    fn tickets_do_not_pile_up_without_polls() {
        for device in open() {
            let queue = device.create_queue().unwrap();
            let buffer = device.allocate(64, Commit::Lazy).unwrap();
            let to = buffer.at(0);
            let track = Arc::clone(&device.queue(queue.id(), "test").unwrap().track);
            for round in 0..20 {
                for _ in 0..100 {
                    device
                        .submit(&queue, &Request::Fill(&Fill { to, bytes: 64, pattern: &[round] }))
                        .unwrap();
                }
                // A slow device may leave unfinished submissions; finished ones must be removed at the
                // next poll.
                let last = device.submit(&queue, &Request::Copies(&[], None)).unwrap();
                device.wait(last).unwrap();
                assert_eq!(track.backlog(), 0);
            }
            for _ in 0..10_000 {
                device.submit(&queue, &Request::Copies(&[], None)).unwrap();
            }
            let handle = queue;
            let queue = device.queue(handle.id(), "test").unwrap();
            queue.begin("test", ErrorKind::Driver).unwrap().drain().unwrap();
            while !track.backlog().is_multiple_of(64) || track.backlog() == 0 {
                device.submit(&handle, &Request::Copies(&[], None)).unwrap();
            }
            assert!(track.backlog() < 10_000);
        }
    }

    #[test]
    fn a_panicking_waker_harms_no_other_work() {
        for device in open() {
            let queue = device.create_queue().unwrap();
            let buffer = device.allocate(32 << 20, Commit::Lazy).unwrap();
            let to = buffer.at(0);
            let ticket =
                device.submit(&queue, &Request::Fill(&Fill { to, bytes: 32 << 20, pattern: &[1] })).unwrap();
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // If the work is done already, this call runs the waker.
                device.wake(ticket, waker(|| panic!("a waker that panics, as the test wants")));
                device.wait(ticket)
            }));
            if let Ok(outcome) = result {
                outcome.unwrap();
            }
            let after = device.submit(&queue, &Request::Copies(&[], None)).unwrap();
            device.wait(after).unwrap();
        }
    }
}
