//! A simple device that supports all requests. Tests compare other devices with this device.
//!
//! The device keeps its memory in vectors, and completes all work of a call before the call returns.
//! Therefore no submission is ever pending. A real backend needs the other parts of this file too: tables of
//! handles, checks of requests, and tickets (numbers of submissions).

use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;

use backend_api::kernel::{Interpreter, Views};
use backend_api::{
    BufferHandle, BufferId, Commit, Compute, Device, DeviceInfo, DeviceKind, DeviceSpan, Elements, Error,
    ErrorKind, Extents, HostAllocation, HostId, HostMemory, HostSpan, LaunchView, MemoryStatus, QueueHandle,
    QueueProgress, Request, Result, Ticket, Transfer, racy,
};
use parking_lot::Mutex;
use vmarray_conformance::reference;
use vmarray_support::{IdMap, Queues, Timeline};

/// A device with its memory in RAM. Each call executes all of its work before it returns.
///
/// Use it as an example of a backend, and as a reference for comparisons. The device is slow, because one
/// lock guards all memory. It does not support pinned (page-locked) memory, because it cannot lock pages. It
/// allocates its memory from the system on demand.
///
/// ```
/// use std::sync::Arc;
/// use backend_api::{Commit, Device, DeviceBuffer, Fill, Queue};
/// use vmarray_conformance::reference::ReferenceDevice;
/// let device = Arc::new(ReferenceDevice::new(1 << 20));
/// assert_eq!(device.memory()?.free_bytes, 1 << 20);
/// let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 1000, Commit::Lazy)?);
/// let ticket = queue.submit(&Fill { to: memory.at(0), bytes: 1000, pattern: b"abc" })?;
/// assert_eq!(ticket.value, 1);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct ReferenceDevice {
    info: DeviceInfo,
    /// Each call does its work under this lock, because two calls must not access memory at the same time.
    memory: Mutex<Memory>,
    /// The queues, including released queues, because their tickets stay valid.
    queues: Queues<Timeline>,
}

/// The device's buffers and host memory, by id.
#[derive(Debug, Default)]
struct Memory {
    buffers: IdMap<BufferId, Vec<u8>>,
    /// The maximum length of each extensible buffer, in bytes.
    most: IdMap<BufferId, u64>,
    hosts: IdMap<HostId, Host>,
}

/// Host memory that the device allocated or imported.
///
/// Invariant: the `bytes` bytes from `start` on are initialised. While this value is in the device's table,
/// they are valid for reads and writes by any thread. The device makes no reference to them.
#[derive(Debug)]
struct Host {
    start: NonNull<u8>,
    bytes: usize,
    /// The memory that the device allocated (empty for imports). It stays in place when the vector moves.
    _pages: Vec<Page>,
}

// SAFETY: any thread may use the memory, by the invariant, which `allocate_host` and `import_host`
// establish.
unsafe impl Send for Host {}

/// A page of host memory, aligned as the contract requires.
#[derive(Clone, Debug)]
#[repr(align(4096))]
struct Page(#[allow(dead_code, reason = "reached by its address")] [u8; 4096]);

/// The contents of new device memory, so that no program relies on zeroes.
const GARBAGE: u8 = 0xCD;

impl Extents for Memory {
    fn device_bytes(&self, buffer: BufferId) -> Option<u64> {
        self.buffers.get(&buffer).map(|buffer| buffer.len() as u64)
    }

    fn host_bytes(&self, host: HostId) -> Option<u64> {
        self.hosts.get(&host).map(|host| host.bytes as u64)
    }
}

/// Execution of requests that have passed [`Request::check`].
impl Memory {
    /// Executes a request; returns `None` if an index is out of bounds.
    fn run(&mut self, request: &Request<'_>) -> Option<()> {
        match *request {
            Request::Copies(transfers, _) => transfers.iter().for_each(|transfer| self.copy(transfer)),
            Request::Fill(fill) => reference::fill(self.bytes_mut(fill.to, fill.bytes), fill.pattern),
            Request::Search(search) => {
                let run = |compute: &Compute<'_>| Ok(self.run(&Request::Compute(compute)));
                search.as_compute(run).ok()??;
            }
            Request::Gather(gather) => {
                // Copy the indices before the check, because the program may change them afterwards.
                let indices = self.read_words(gather.indices, gather.count);
                let stride = size(gather.elements.stride());
                let values = reference::gather(&self.view(&gather.elements), stride, &indices)?;
                self.write(gather.values, &values);
            }
            Request::Scatter(scatter) => {
                let (view, stride) = (scatter.elements, scatter.elements.stride());
                let indices = self.read_words(scatter.indices, scatter.count);
                let values = self.read(scatter.values, scatter.count * stride);
                let mut elements = self.view(&view);
                let done = reference::scatter(&mut elements, size(stride), &indices, &values);
                for (number, element) in (0..).zip(elements.chunks_exact(size(stride))) {
                    let (base, offset) = view.place(number).expect("the view has a place for each element");
                    self.bytes_mut(base.plus(offset), stride).copy_from_slice(element);
                }
                done?;
            }
            Request::Compute(compute) => {
                let old = |of: &Elements<'_>| self.elements(of).to_vec();
                let mut sources: Vec<_> = compute.sources.iter().map(old).collect();
                let words = reference::compute(compute, &mut sources);
                if let Some(answer) = compute.answer() {
                    self.write_words(answer, &words);
                }
                for (at, new) in sources.iter().enumerate().filter(|(at, _)| compute.writes(*at)) {
                    self.bytes_mut(compute.sources[at].start, new.len() as u64).copy_from_slice(new);
                }
            }
            Request::Launch(launch) => {
                let interpreter = Interpreter {
                    params: launch.params,
                    table: launch.table,
                    budget: launch.budget,
                    private_heap_bytes: launch.private_heap_bytes,
                    ..Interpreter::new(launch.kernel, launch.items, launch.geometry)
                };
                // Reads of this device's memory cannot fail, because the memory consists of vectors.
                let report = interpreter.run(&mut Reached { memory: self, views: launch.views }).ok()?;
                self.write_words(launch.report, &report.words());
            }
        }
        Some(())
    }

    fn copy(&mut self, transfer: &Transfer<'_>) {
        let (to, bytes) = match *transfer {
            Transfer::Upload { from, to, bytes } => (to, self.read(from, bytes)),
            Transfer::Internal { from, to, bytes } => (to, self.bytes(from, bytes).to_vec()),
            Transfer::Download { from, to, bytes } => return self.write(to, self.bytes(from, bytes)),
        };
        self.bytes_mut(to, bytes.len() as u64).copy_from_slice(&bytes);
    }

    fn address(&self, at: HostSpan<'_>, bytes: u64) -> *mut u8 {
        self.check_host("copy", at, bytes).expect("the device has checked the request's range");
        self.hosts[&at.host()].start.as_ptr().wrapping_add(size(at.offset()))
    }

    fn read(&self, at: HostSpan<'_>, bytes: u64) -> Vec<u8> {
        let mut copy = vec![0; size(bytes)];
        // SAFETY: `address` has checked that the range is inside, and by the invariant of `Host` it is
        // valid. Its owner or importer keeps to the contract's rules on races. The copy belongs to this
        // call alone.
        unsafe { racy::read(self.address(at, bytes), &mut copy) };
        copy
    }

    fn write(&self, at: HostSpan<'_>, bytes: &[u8]) {
        // SAFETY: as in `read`. The request names the range as a target, so by the same rules its owner has
        // no reference to it.
        unsafe { racy::write(self.address(at, bytes.len() as u64), bytes) }
    }

    fn read_words(&self, at: HostSpan<'_>, count: u64) -> Vec<u64> {
        self.read(at, 8 * count).as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    }

    fn write_words(&self, at: HostSpan<'_>, words: &[u64]) {
        self.write(at, &words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>());
    }

    fn elements(&self, of: &Elements<'_>) -> &[u8] {
        self.bytes(of.start, of.count * of.stride)
    }

    /// Copies the elements of a view to contiguous memory.
    fn view(&self, view: &LaunchView<'_>) -> Vec<u8> {
        let places = (0..view.count()).filter_map(|element| view.place(element));
        places.flat_map(|(base, offset)| self.bytes(base.plus(offset), view.stride())).copied().collect()
    }

    fn bytes(&self, at: DeviceSpan<'_>, bytes: u64) -> &[u8] {
        &self.buffers[&at.buffer()][size(at.offset())..][..size(bytes)]
    }

    fn bytes_mut(&mut self, at: DeviceSpan<'_>, bytes: u64) -> &mut [u8] {
        let buffer = self.buffers.get_mut(&at.buffer()).expect("the device has checked the request's range");
        &mut buffer[size(at.offset())..][..size(bytes)]
    }

    fn free_bytes(&self, info: &DeviceInfo) -> u64 {
        info.total_bytes - self.buffers.values().map(|buffer| buffer.len() as u64).sum::<u64>()
    }
}

/// The interpreter's access to the views of a checked launch.
struct Reached<'a> {
    memory: &'a mut Memory,
    views: &'a [LaunchView<'a>],
}

impl<'a> Reached<'a> {
    fn place(&self, view: usize, element: u64, offset: u32) -> DeviceSpan<'a> {
        let (base, before) = self.views[view].place(element).expect("the view must contain this element");
        base.plus(before + u64::from(offset))
    }
}

impl Views for Reached<'_> {
    fn count(&self, view: usize) -> u64 {
        self.views[view].count()
    }

    fn read(&mut self, view: usize, element: u64, offset: u32, to: &mut [u8]) -> Result<()> {
        to.copy_from_slice(self.memory.bytes(self.place(view, element, offset), to.len() as u64));
        Ok(())
    }

    fn write(&mut self, view: usize, element: u64, offset: u32, from: &[u8]) -> Result<()> {
        let place = self.place(view, element, offset);
        self.memory.bytes_mut(place, from.len() as u64).copy_from_slice(from);
        Ok(())
    }
}

/// Converts a length or offset to `usize`. The check has found it inside of memory, so it fits. A stride of 0
/// elements may exceed `usize`, and becomes the maximum.
fn size(bytes: u64) -> usize {
    bytes.try_into().unwrap_or(usize::MAX)
}

/// Returns `length` copies of a value, or `None` if the system has too little memory.
fn reserved<T: Clone>(length: usize, value: T) -> Option<Vec<T>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(length).ok()?;
    memory.resize(length, value);
    Some(memory)
}

impl ReferenceDevice {
    /// Creates a device with `total_bytes` bytes of memory.
    #[must_use]
    pub fn new(total_bytes: u64) -> Self {
        let identity = format!("reference:{total_bytes}");
        let mut info = DeviceInfo::new("reference", "reference device", DeviceKind::Simulated, &identity);
        info.forward_progress = true;
        let (memory, queues) = Default::default();
        Self { info: info.with_total_bytes(total_bytes), memory, queues }
    }

    /// Checks a request, executes it, and returns its ticket, which is already done.
    fn start(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let operation = request.operation();
        let mut memory = self.memory.lock();
        let timeline = self.on(self.queues.get(operation, queue.id()))?;
        self.on(request.check(&*memory))?;
        let outside = || {
            let error = Error::new(ErrorKind::KernelFailed, operation);
            error
                .with_detail("an index is outside of the elements")
                .with_advice("correct the list of indices")
        };
        let outcome = self.on(memory.run(request).ok_or_else(outside));
        // All work ends before the ticket is issued, so no caller can have registered a waker for the ticket.
        // Such a waker would run here, while the thread holds the lock.
        let ticket = timeline.begin()?;
        timeline.complete(ticket.value, outcome);
        Ok(ticket)
    }

    /// Adds the device's name to an error.
    fn on<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.on(&self.info))
    }

    /// Checks that `kind` is pageable, the only kind that this device supports.
    fn check_kind(&self, operation: &'static str, bytes: usize, kind: HostMemory) -> Result<()> {
        if kind == HostMemory::Pageable {
            return Ok(());
        }
        self.on(Err(Error::new(ErrorKind::PinRefused, operation).with_bytes(bytes as u64)))
    }
}

// SAFETY: the device keeps the promises of `Device`, which this list has in its order. The table keeps host
// memory until `release_host` or the end of the device. Only `start` executes work. The work accesses only
// the ranges of its request, which `start` has checked, and is over before its ticket is issued. Releasing
// memory takes the lock of the work, and a queue is not released while a call borrows its handle. Names are
// unique, and the tables have the names of this device alone. Host memory is accessed by `racy` alone, device
// memory under the lock; indices are copied, and checked in the copy.
unsafe impl Device for ReferenceDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryStatus> {
        let free = self.memory.lock().free_bytes(&self.info);
        Ok(MemoryStatus::new(self.info.total_bytes, free, free))
    }

    fn create_queue(&self) -> Result<QueueHandle> {
        let queue = QueueHandle::unique();
        self.queues.add(queue.id(), Arc::new(Timeline::new(queue.id())));
        Ok(queue)
    }

    fn release_queue(&self, queue: QueueHandle) {
        if let Ok(timeline) = self.queues.get("release_queue", queue.id()) {
            self.queues.end(queue.id(), timeline.newest().value);
        }
    }

    fn allocate(&self, bytes: u64, _commit: Commit) -> Result<BufferHandle> {
        let mut memory = self.memory.lock();
        let free = memory.free_bytes(&self.info);
        let kind = if bytes > self.info.total_bytes { ErrorKind::TooLarge } else { ErrorKind::OutOfMemory };
        let refused = Error::new(kind, "allocate").with_bytes(bytes).with_available_bytes(free);
        let buffer = if bytes > free { None } else { reserved(size(bytes), GARBAGE) };
        let (handle, buffer) = (BufferHandle::unique(), self.on(buffer.ok_or(refused))?);
        memory.buffers.insert(handle.id(), buffer);
        Ok(handle)
    }

    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        if bytes > most {
            return self.on(Err(Error::new(ErrorKind::InvalidArgument, "allocate_extensible")));
        }
        let handle = self.allocate(bytes, commit)?;
        self.memory.lock().most.insert(handle.id(), most);
        Ok(handle)
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, _commit: Commit) -> Result<()> {
        let refused = |kind| Error::new(kind, "extend").with_bytes(bytes);
        let mut memory = self.memory.lock();
        let free = memory.free_bytes(&self.info);
        let most = memory.most.get(&buffer.id()).copied();
        let Some(extended) = memory.buffers.get_mut(&buffer.id()) else {
            return self.on(Err(refused(ErrorKind::UnknownHandle)));
        };
        let now = extended.len() as u64;
        let most = most.unwrap_or(now);
        if bytes > most {
            return self.on(Err(refused(ErrorKind::TooLarge).with_available_bytes(most)));
        }
        let more = bytes.saturating_sub(now);
        if more > free || extended.try_reserve_exact(size(more)).is_err() {
            return self.on(Err(refused(ErrorKind::OutOfMemory).with_available_bytes(free)));
        }
        // The vector may move, because no code keeps its address: each call looks up the buffer by its id.
        extended.resize(size(now + more), GARBAGE);
        Ok(())
    }

    fn release(&self, buffer: BufferHandle) {
        let mut memory = self.memory.lock();
        memory.buffers.remove(&buffer.id());
        memory.most.remove(&buffer.id());
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.check_kind("allocate_host", bytes, kind)?;
        let refused = Error::new(ErrorKind::OutOfMemory, "allocate_host").with_bytes(bytes as u64);
        let mut pages = self.on(reserved(bytes.div_ceil(4096), Page([0; 4096])).ok_or(refused))?;
        let start = NonNull::from(pages.as_mut_slice()).cast();
        // SAFETY: the pages are at least `bytes` initialised bytes. They stay in the table until
        // `release_host` or the end of the device, and all accesses go through the table or the handle.
        let handle = unsafe { HostAllocation::new(start, bytes, kind) };
        self.memory.lock().hosts.insert(handle.id(), Host { start, bytes, _pages: pages });
        Ok(handle)
    }

    unsafe fn import_host(&self, at: NonNull<u8>, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.check_kind("import_host", bytes, kind)?;
        // SAFETY: the caller keeps the memory valid until `release_host`, which removes it from the table.
        let handle = unsafe { HostAllocation::new(at, bytes, kind) };
        self.memory.lock().hosts.insert(handle.id(), Host { start: at, bytes, _pages: Vec::new() });
        Ok(handle)
    }

    fn release_host(&self, host: HostAllocation) {
        self.memory.lock().hosts.remove(&host.id());
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        self.start(queue, request)
    }

    fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        let newest = |timeline: &Timeline| timeline.newest().value;
        let timeline = self.on(self.queues.of("poll", ticket, newest))?;
        timeline.map_or(Ok(QueueProgress::Done), |timeline| self.on(timeline.poll(ticket.value)))
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.poll(ticket).map(|_| ())
    }

    fn wake(&self, _ticket: Ticket, waker: Waker) {
        // Wake at once: issued tickets are already done, and unknown tickets never end.
        waker.wake();
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        self.on(self.queues.get("order_after", queue.id()))?;
        // All issued tickets are already done, so the only possible error is an unknown ticket.
        let unknown = self.poll(ticket).err().filter(|error| error.kind() == ErrorKind::UnknownHandle);
        unknown.map_or(Ok(()), Err)
    }
}
