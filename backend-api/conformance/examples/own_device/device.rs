//! A device that only stores pages: a template for a backend.
//!
//! The device stores its data in vectors, and finishes the work of each call before the call returns, so no
//! submission is ever pending. A real backend stores the data in its device's memory, and its `submit` starts
//! commands on the device's queue.

use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;

use backend_api::{
    BufferHandle, BufferId, Commit, Device, DeviceInfo, DeviceKind, DeviceSpan, Error, ErrorKind, Extents,
    HostAllocation, HostId, HostMemory, HostSpan, MemoryStatus, QueueHandle, QueueProgress, Request, Result,
    Ticket, Transfer, racy,
};
use parking_lot::Mutex;
use vmarray_support::{IdMap, Queues, Timeline};

#[derive(Debug)]
pub struct PageDevice {
    info: DeviceInfo,
    /// Each call does its work under this lock, because two calls must not access memory at the same time.
    memory: Mutex<Memory>,
    /// The queues, including released queues, because their tickets stay valid.
    queues: Queues<Timeline>,
}

#[derive(Debug, Default)]
struct Memory {
    buffers: IdMap<BufferId, Vec<u8>>,
    /// Addresses and lengths of host memory: allocated by the device, or imported.
    hosts: IdMap<HostId, (usize, usize)>,
    /// The host memory that the device allocated. It stays in place when the map moves its vectors.
    pages: IdMap<HostId, Vec<Page>>,
}

/// A page of host memory, aligned as the contract requires.
#[derive(Clone, Debug)]
#[repr(align(4096))]
struct Page(#[allow(dead_code, reason = "read by its address")] [u8; 4096]);

impl Extents for Memory {
    fn device_bytes(&self, buffer: BufferId) -> Option<u64> {
        self.buffers.get(&buffer).map(|buffer| buffer.len() as u64)
    }

    fn host_bytes(&self, host: HostId) -> Option<u64> {
        self.hosts.get(&host).map(|(_, bytes)| *bytes as u64)
    }
}

/// Accesses to memory, by requests that have passed [`Request::check`].
impl Memory {
    fn copy(&mut self, transfer: &Transfer<'_>) {
        // SAFETY: the check found all ranges inside of their memory. Its owner keeps to the contract's rules
        // on races, so no reference into a target exists.
        unsafe {
            match *transfer {
                Transfer::Upload { from, to, bytes } => racy::read(self.address(from), self.bytes(to, bytes)),
                Transfer::Download { from, to, bytes: n } => {
                    racy::write(self.address(to), self.bytes(from, n))
                }
                Transfer::Internal { from, to, bytes } => {
                    let from = self.bytes(from, bytes).to_vec();
                    self.bytes(to, bytes).copy_from_slice(&from);
                }
            }
        }
    }

    fn address(&self, at: HostSpan<'_>) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.hosts[&at.host()].0 + at.offset() as usize)
    }

    fn bytes(&mut self, at: DeviceSpan<'_>, bytes: u64) -> &mut [u8] {
        let buffer = self.buffers.get_mut(&at.buffer()).expect("the device has checked the request's range");
        &mut buffer[at.offset() as usize..][..bytes as usize]
    }

    fn free_bytes(&self, info: &DeviceInfo) -> u64 {
        info.total_bytes - self.buffers.values().map(|buffer| buffer.len() as u64).sum::<u64>()
    }
}

impl PageDevice {
    pub fn new(total_bytes: u64) -> Self {
        let info = DeviceInfo::new("pages", "pages", DeviceKind::Simulated, &format!("pages:{total_bytes}"));
        Self { info: info.with_total_bytes(total_bytes), memory: Mutex::default(), queues: Queues::default() }
    }

    /// Adds the device's name to an error.
    fn on<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.on(&self.info))
    }
}

// SAFETY: `allocate_host` and `import_host` provide memory that stays in the table until `release_host`. Only
// `submit` accesses memory: the ranges of a request that was checked, host memory by `racy`, device memory
// under the lock. This work is over before the call returns.
unsafe impl Device for PageDevice {
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
        let refused = |kind| Error::new(kind, "allocate").with_bytes(bytes).with_available_bytes(free);
        if bytes > free {
            let is_full = bytes <= self.info.total_bytes;
            return self.on(Err(refused(if is_full { ErrorKind::OutOfMemory } else { ErrorKind::TooLarge })));
        }
        // `vec!` gets zeroed memory cheaply, but aborts if memory is short. So test the allocation first.
        let is_there = Vec::<u8>::new().try_reserve_exact(bytes as usize);
        self.on(is_there.map_err(|_| refused(ErrorKind::OutOfMemory)))?;
        let handle = BufferHandle::unique();
        memory.buffers.insert(handle.id(), vec![0; bytes as usize]);
        Ok(handle)
    }

    fn release(&self, buffer: BufferHandle) {
        self.memory.lock().buffers.remove(&buffer.id());
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        let (count, mut pages) = (bytes.div_ceil(4096), Vec::new());
        let refused = |_| Error::new(ErrorKind::OutOfMemory, "allocate_host").with_bytes(bytes as u64);
        self.on(pages.try_reserve_exact(count).map_err(refused))?;
        pages.resize(count, Page([0; 4096]));
        // SAFETY: the pages are at least `bytes` initialised bytes, which the table keeps until
        // `release_host`.
        let host = unsafe { self.import_host(NonNull::from(pages.as_mut_slice()).cast(), bytes, kind)? };
        self.memory.lock().pages.insert(host.id(), pages);
        Ok(host)
    }

    unsafe fn import_host(&self, at: NonNull<u8>, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        if kind != HostMemory::Pageable {
            return self.on(Err(Error::new(ErrorKind::PinRefused, "import_host")));
        }
        // SAFETY: the caller's promise.
        let host = unsafe { HostAllocation::new(at, bytes, kind) };
        self.memory.lock().hosts.insert(host.id(), (at.as_ptr().expose_provenance(), bytes));
        Ok(host)
    }

    fn release_host(&self, host: HostAllocation) {
        let mut memory = self.memory.lock();
        memory.hosts.remove(&host.id());
        memory.pages.remove(&host.id());
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let mut memory = self.memory.lock();
        let timeline = self.on(self.queues.get(request.operation(), queue.id()))?;
        self.on(request.check(&*memory))?;
        match *request {
            Request::Copies(transfers, _) => transfers.iter().for_each(|transfer| memory.copy(transfer)),
            Request::Fill(fill) => {
                let bytes = memory.bytes(fill.to, fill.bytes).iter_mut();
                bytes.zip(fill.pattern.iter().cycle()).for_each(|(byte, new)| *byte = *new);
            }
            _ => return Err(request.unsupported(&self.info)),
        }
        let ticket = timeline.begin()?;
        timeline.complete(ticket.value, Ok(()));
        Ok(ticket)
    }

    fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        let timeline = self.on(self.queues.of("poll", ticket, |timeline| timeline.newest().value))?;
        timeline.map_or(Ok(QueueProgress::Done), |timeline| self.on(timeline.poll(ticket.value)))
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.poll(ticket).map(drop)
    }

    fn wake(&self, _ticket: Ticket, waker: Waker) {
        waker.wake();
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        self.on(self.queues.get("order_after", queue.id()))?;
        self.poll(ticket).map(drop)
    }
}
