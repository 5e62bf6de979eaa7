//! The simplest device that keeps the contract.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

use crate::{
    BufferHandle, BufferId, Commit, Compute, Device, DeviceInfo, DeviceKind, DeviceSpan, Elements, Error,
    ErrorKind, Extents, Fill, Gather, HostAllocation, HostId, HostMemory, HostSpan, MemoryStatus, Progress,
    QueueHandle, QueueId, Result, Scatter, Search, Ticket, Timeline, Transfer, racy,
};

/// A device of ordinary memory that has done everything by the time a call returns.
///
/// It is made to be read: as an example of a backend, and as something to compare with. One lock guards all
/// of it, so it is slow. It cannot lock pages and therefore refuses pinned memory.
///
/// ```
/// use std::sync::Arc;
/// use backend_api::{Commit, DeviceBuffer, Fill, Queue, conformance::reference::ReferenceDevice};
/// let device = Arc::new(ReferenceDevice::new(1 << 20));
/// let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 1000, Commit::Lazy)?);
/// let ticket = queue.fill(&Fill { to: memory.at(0), bytes: 1000, pattern: b"abc" })?;
/// assert_eq!(ticket.value, 1);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct ReferenceDevice {
    info: DeviceInfo,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    buffers: HashMap<BufferId, Vec<u8>>,
    hosts: HashMap<HostId, HostPiece>,
    queues: HashMap<QueueId, Arc<Timeline>>,
    /// The newest ticket of each queue that was ended.
    ended: HashMap<QueueId, u64>,
    used_bytes: u64,
}

/// Host memory, ours or imported.
#[derive(Debug)]
struct HostPiece {
    address: NonNull<u8>,
    bytes: usize,
    /// How it was allocated, if it is ours.
    layout: Option<Layout>,
}

// SAFETY: it is an address; what is done through it is argued where it is done.
unsafe impl Send for HostPiece {}

impl Drop for HostPiece {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: memory of ours came from `alloc_zeroed` with this layout and is freed only here.
            unsafe { dealloc(self.address.as_ptr(), layout) }
        }
    }
}

/// What page-locked memory of a real device is aligned to.
const HOST_ALIGNMENT: usize = 4096;
/// What new device memory holds, so that nobody relies on zeroes.
const GARBAGE: u8 = 0xCD;

impl ReferenceDevice {
    /// A device with `total_bytes` bytes of memory. The memory is taken from the system when it is allocated.
    ///
    /// ```
    /// use backend_api::{Device, conformance::reference::ReferenceDevice};
    /// let device = ReferenceDevice::new(1 << 20);
    /// assert_eq!(device.memory()?.free_bytes, 1 << 20);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn new(total_bytes: u64) -> Self {
        let identity = format!("reference:{total_bytes}");
        let info = DeviceInfo::new("reference", "reference device", DeviceKind::Simulated, &identity);
        Self { info: info.with_total_bytes(total_bytes), state: Mutex::default() }
    }

    /// Checks a call, carries it out, and gives the ticket of its outcome.
    fn run(
        &self,
        queue: &QueueHandle,
        operation: &'static str,
        check: impl FnOnce(&State) -> Result<()>,
        work: impl FnOnce(&mut State) -> Result<()>,
    ) -> Result<Ticket> {
        let mut state = self.state.lock();
        let timeline = state.queues.get(&queue.id()).cloned().ok_or_else(|| unknown(operation, "queue"))?;
        check(&state).map_err(|error| error.on(&self.info))?;
        let ticket = timeline.begin()?;
        let outcome = work(&mut state).map_err(|error| error.on(&self.info));
        timeline.complete(ticket.value, outcome);
        Ok(ticket)
    }

    /// What `live` says of a living queue, or whether the ticket of an ended one was given.
    fn ask<T>(&self, ticket: Ticket, live: impl FnOnce(&Timeline) -> Result<T>, ended: T) -> Result<T> {
        let state = self.state.lock();
        if let Some(timeline) = state.queues.get(&ticket.queue).cloned() {
            drop(state);
            return live(&timeline);
        }
        match state.ended.get(&ticket.queue) {
            Some(newest) if ticket.value <= *newest => Ok(ended),
            _ => Err(unknown("poll", "ticket").on(&self.info)),
        }
    }
}

fn unknown(operation: &'static str, what: &str) -> Error {
    Error::new(ErrorKind::UnknownHandle, operation).with_detail(format!("unknown {what}"))
}

impl Extents for State {
    fn device_bytes(&self, buffer: BufferId) -> Option<u64> {
        self.buffers.get(&buffer).map(|memory| memory.len() as u64)
    }

    fn host_bytes(&self, host: HostId) -> Option<u64> {
        self.hosts.get(&host).map(|piece| piece.bytes as u64)
    }
}

// All of these are called after the check of the whole request, which proved that names are known and ranges
// inside.
impl State {
    fn device(&mut self, at: DeviceSpan<'_>, bytes: u64) -> &mut [u8] {
        let memory = self.buffers.get_mut(&at.buffer()).expect("a checked buffer");
        &mut memory[at.offset() as usize..][..bytes as usize]
    }

    fn elements(&mut self, elements: &Elements<'_>) -> &mut [u8] {
        self.device(elements.start, elements.count * elements.stride)
    }

    fn host(&self, at: HostSpan<'_>, bytes: usize) -> *mut u8 {
        let piece = &self.hosts[&at.host()];
        assert!(at.offset() as usize + bytes <= piece.bytes, "a checked range");
        // SAFETY: the offset is inside of the piece, which lives as long as its entry.
        unsafe { piece.address.as_ptr().add(at.offset() as usize) }
    }

    fn read(&self, from: HostSpan<'_>, bytes: u64) -> Vec<u8> {
        let mut copy = vec![0; bytes as usize];
        // SAFETY: `host` proved the range; the vector is new. Others may touch the range meanwhile as `racy`
        // allows.
        unsafe { racy::read(self.host(from, copy.len()), &mut copy) };
        copy
    }

    fn write(&self, to: HostSpan<'_>, bytes: &[u8]) {
        // SAFETY: as in `read`; `bytes` is a copy made by this device and cannot overlap.
        unsafe { racy::write(self.host(to, bytes.len()), bytes) };
    }

    fn indices(&self, at: HostSpan<'_>, count: u64) -> Vec<u64> {
        let bytes = self.read(at, count * 8);
        bytes.chunks_exact(8).map(|b| u64::from_ne_bytes(b.try_into().expect("8 bytes"))).collect()
    }

    fn transfer(&mut self, transfer: &Transfer<'_>) {
        match *transfer {
            Transfer::Upload { from, to, bytes } => {
                let copy = self.read(from, bytes);
                self.device(to, bytes).copy_from_slice(&copy);
            }
            Transfer::Download { from, to, bytes } => {
                let copy = self.device(from, bytes).to_vec();
                self.write(to, &copy);
            }
            Transfer::Internal { from, to, bytes } => {
                let copy = self.device(from, bytes).to_vec();
                self.device(to, bytes).copy_from_slice(&copy);
            }
        }
    }

    fn search(&mut self, search: &Search<'_>) {
        let stride = search.elements.stride as usize;
        let elements = self.elements(&search.elements);
        let found = super::search(elements, stride, search.field_offset as usize, search.value, search.limit);
        let header = [found.total, found.indices.len() as u64];
        let answer: Vec<u8> = header.iter().chain(&found.indices).flat_map(|n| n.to_ne_bytes()).collect();
        self.write(search.answer, &answer);
    }

    fn compute(&mut self, compute: &Compute<'_>) {
        let mut sources: Vec<Vec<u8>> =
            compute.sources.iter().map(|source| self.elements(source).to_vec()).collect();
        let answer = super::compute(compute, &mut sources);
        for (at, source) in compute.sources.iter().enumerate().filter(|(at, _)| compute.writes(*at)) {
            self.elements(source).copy_from_slice(&sources[at]);
        }
        if let Some(to) = compute.answer() {
            let bytes: Vec<u8> = answer.iter().flat_map(|word| word.to_ne_bytes()).collect();
            self.write(to, &bytes);
        }
    }

    fn gather(&mut self, gather: &Gather<'_>) -> Result<()> {
        let indices = self.indices(gather.indices, gather.count);
        let stride = gather.elements.stride as usize;
        let values = super::gather(self.elements(&gather.elements), stride, &indices);
        self.write(gather.values, &values.ok_or_else(|| outside("gather"))?);
        Ok(())
    }

    fn scatter(&mut self, scatter: &Scatter<'_>) -> Result<()> {
        let indices = self.indices(scatter.indices, scatter.count);
        let stride = scatter.elements.stride as usize;
        let values = self.read(scatter.values, scatter.count * scatter.elements.stride);
        super::scatter(self.elements(&scatter.elements), stride, &indices, &values)
            .ok_or_else(|| outside("scatter"))
    }
}

fn outside(operation: &'static str) -> Error {
    Error::index_outside(operation).with_detail("an index is outside of the elements")
}

// SAFETY: all memory is behind one lock, and a call does all of its work before it returns, on ranges that
// were checked: nothing is ever in flight. Host memory lives as long as its entry, which only its handle
// removes, and is reached by `racy` alone.
unsafe impl Device for ReferenceDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryStatus> {
        let free = self.info.total_bytes - self.state.lock().used_bytes;
        Ok(MemoryStatus::new(self.info.total_bytes, free, free))
    }

    fn create_queue(&self) -> Result<QueueHandle> {
        let queue = QueueHandle::unique();
        self.state.lock().queues.insert(queue.id(), Arc::new(Timeline::new(queue.id())));
        Ok(queue)
    }

    fn release_queue(&self, queue: QueueHandle) {
        let mut state = self.state.lock();
        if let Some(timeline) = state.queues.remove(&queue.id()) {
            state.ended.insert(queue.id(), timeline.newest().value);
        }
    }

    fn allocate(&self, bytes: u64, _commit: Commit) -> Result<BufferHandle> {
        let mut state = self.state.lock();
        let free = self.info.total_bytes - state.used_bytes;
        let refused = |kind| {
            let error = Error::new(kind, "allocate").with_bytes(bytes);
            Err(error.with_available_bytes(free).on(&self.info))
        };
        if bytes > self.info.total_bytes {
            return refused(ErrorKind::TooLarge);
        }
        let mut memory = Vec::new();
        if bytes > free || memory.try_reserve_exact(bytes as usize).is_err() {
            return refused(ErrorKind::OutOfMemory);
        }
        memory.resize(bytes as usize, GARBAGE);
        let buffer = BufferHandle::unique();
        state.used_bytes += bytes;
        state.buffers.insert(buffer.id(), memory);
        Ok(buffer)
    }

    fn release(&self, buffer: BufferHandle) {
        let mut state = self.state.lock();
        if let Some(memory) = state.buffers.remove(&buffer.id()) {
            state.used_bytes -= memory.len() as u64;
        }
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        let refused = |kind| Error::new(kind, "allocate_host").with_bytes(bytes as u64).on(&self.info);
        if kind == HostMemory::Pinned {
            return Err(refused(ErrorKind::PinRefused));
        }
        // An allocation of nothing has an address of its own, too.
        let layout = Layout::from_size_align(bytes.max(1), HOST_ALIGNMENT);
        let layout = layout.map_err(|_| refused(ErrorKind::OutOfMemory))?;
        // SAFETY: the layout is not empty.
        let address = unsafe { alloc_zeroed(layout) };
        let address = NonNull::new(address).ok_or_else(|| refused(ErrorKind::OutOfMemory))?;
        // SAFETY: the memory is zeroed, is nobody else's, and lives until its entry goes.
        let host = unsafe { HostAllocation::new(address, bytes, kind) };
        self.state.lock().hosts.insert(host.id(), HostPiece { address, bytes, layout: Some(layout) });
        Ok(host)
    }

    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        if kind == HostMemory::Pinned {
            let error = Error::new(ErrorKind::PinRefused, "import_host").with_bytes(bytes as u64);
            return Err(error.on(&self.info));
        }
        // SAFETY: the caller's promise.
        let host = unsafe { HostAllocation::new(address, bytes, kind) };
        self.state.lock().hosts.insert(host.id(), HostPiece { address, bytes, layout: None });
        Ok(host)
    }

    fn release_host(&self, host: HostAllocation) {
        self.state.lock().hosts.remove(&host.id());
    }

    fn submit(&self, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        self.run(
            queue,
            "submit",
            |state| transfers.iter().try_for_each(|transfer| state.check_transfer(transfer)),
            |state| {
                transfers.iter().for_each(|transfer| state.transfer(transfer));
                Ok(())
            },
        )
    }

    fn fill(&self, queue: &QueueHandle, fill: &Fill<'_>) -> Result<Ticket> {
        self.run(
            queue,
            "fill",
            |state| state.check_fill(fill),
            |state| {
                super::fill(state.device(fill.to, fill.bytes), fill.pattern);
                Ok(())
            },
        )
    }

    fn search(&self, queue: &QueueHandle, search: &Search<'_>) -> Result<Ticket> {
        self.run(
            queue,
            "search",
            |state| state.check_search(search),
            |state| {
                state.search(search);
                Ok(())
            },
        )
    }

    fn gather(&self, queue: &QueueHandle, gather: &Gather<'_>) -> Result<Ticket> {
        self.run(queue, "gather", |state| state.check_gather(gather), |state| state.gather(gather))
    }

    fn scatter(&self, queue: &QueueHandle, scatter: &Scatter<'_>) -> Result<Ticket> {
        self.run(queue, "scatter", |state| state.check_scatter(scatter), |state| state.scatter(scatter))
    }

    fn compute(&self, queue: &QueueHandle, compute: &Compute<'_>) -> Result<Ticket> {
        self.run(
            queue,
            "compute",
            |state| state.check_compute(compute),
            |state| {
                state.compute(compute);
                Ok(())
            },
        )
    }

    fn poll(&self, ticket: Ticket) -> Result<Progress> {
        self.ask(ticket, |timeline| timeline.poll(ticket.value), Progress::Done)
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.ask(ticket, |timeline| timeline.wait(ticket.value), ())
    }

    fn wake(&self, _ticket: Ticket, waker: Waker) {
        // Nothing is ever pending. The lock is not held: wakers are foreign code.
        waker.wake();
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        if !self.state.lock().queues.contains_key(&queue.id()) {
            return Err(unknown("order_after", "queue").on(&self.info));
        }
        // Nothing is ever pending, so there is nothing to wait for; but the ticket has to exist.
        match self.poll(ticket) {
            Err(error) if error.kind() == ErrorKind::UnknownHandle => Err(error),
            _ => Ok(()),
        }
    }
}
