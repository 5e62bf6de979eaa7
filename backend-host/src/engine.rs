//! Engine: the common parts (handles, queues, threads, host memory) of all devices that run on the processor.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use backend_api::{
    AddressSpace, Addresses, BufferHandle, BufferId, DeviceInfo, DeviceSpan, DirectReads, Error, ErrorKind,
    Extents as _, HostAllocation, HostMemory, QueueHandle, QueueProgress, Request, Result, Ticket,
};
use vmarray_support::Queues;

use parking_lot::RwLock;

use crate::error;
use crate::handle_table::HandleTable;
use crate::job::HostSubmission;
use crate::memory::Wiping;
use crate::peers::{KnownMemory, Peers, names_others};
use crate::queue::QueueLane;
use crate::storage::Storage;
use crate::worker::Pool;

/// If a read takes longer, its bytes were probably not in RAM, and the same holds for the next reads.
const LATENCY: Duration = Duration::from_micros(40);

type Queue<M> = QueueLane<HostSubmission<M>>;

/// All parts of a device except its memory: handles, queues, threads and host memory. Each device of this
/// crate and of `vmarray-store` contains an engine.
#[derive(Debug)]
pub struct Engine<M: Storage> {
    registry: Arc<HandleTable<M, Queue<M>>>,
    pool: Arc<Pool>,
    /// The list of devices that can access each other's memory, including this one.
    peers: Option<&'static EnginePeers<M>>,
}

/// Devices that can access each other.
pub(crate) type EnginePeers<M> = Peers<M, Queue<M>, Pool>;

impl<M: Storage> Engine<M> {
    /// Creates the engine of a device with up to `threads` worker threads, which start with the first queue.
    pub fn new(info: DeviceInfo, threads: usize, pinned_max_bytes: u64) -> Self {
        let pool = Self::pool(&info, threads);
        Self::with_pool(info, pool, pinned_max_bytes)
    }

    /// Creates the engine of a device whose work runs on the threads of `pool`.
    pub fn with_pool(info: DeviceInfo, pool: Arc<Pool>, pinned_max_bytes: u64) -> Self {
        Self::build(info, pool, pinned_max_bytes, None)
    }

    /// Creates the engine of a device, and adds the device to `peers`, which access each other's memory.
    pub(crate) fn with_peers(
        info: DeviceInfo,
        threads: usize,
        pinned_max_bytes: u64,
        peers: &'static EnginePeers<M>,
    ) -> Self {
        let pool = Self::pool(&info, threads);
        Self::build(info, pool, pinned_max_bytes, Some(peers))
    }

    fn pool(info: &DeviceInfo, threads: usize) -> Arc<Pool> {
        Pool::new(&format!("vmarray-{}", info.identity), threads)
    }

    fn build(
        mut info: DeviceInfo,
        pool: Arc<Pool>,
        pinned_max_bytes: u64,
        peers: Option<&'static EnginePeers<M>>,
    ) -> Self {
        info.copy_engines = u32::try_from(pool.threads_max()).unwrap_or(u32::MAX);
        let newest = |lane: &Queue<M>| lane.timeline().newest().value;
        let registry = Arc::new(HandleTable::new(info, pinned_max_bytes, newest));
        peers.inspect(|peers| peers.add(&registry, &pool));
        Self { pool, registry, peers }
    }

    /// Makes each later request lock `gate` for reading while it runs. A thread that locks `gate` for writing
    /// stops all work until it unlocks `gate`.
    pub fn pass_through(&self, gate: Arc<RwLock<()>>) {
        self.pool.pass_through(gate);
    }

    /// Returns the description of the device.
    pub fn info(&self) -> &DeviceInfo {
        self.registry.info()
    }

    /// Returns the switch for wiping of released memory, with its counter of wiped bytes.
    pub fn wiping(&self) -> &Arc<Wiping> {
        self.registry.wiping()
    }

    /// Makes the device overwrite memory with zeroes at each later release.
    pub fn wipe_on_release(&self) -> Result<()> {
        self.wiping().start();
        Ok(())
    }

    /// Adds the device's name to an error.
    pub fn named<T>(&self, result: Result<T>) -> Result<T> {
        self.registry.named(result)
    }

    /// Returns the maximum number of worker threads.
    pub fn threads(&self) -> usize {
        self.pool.threads_max()
    }

    /// Creates a queue, and starts the threads if there are none.
    pub fn create_queue(&self) -> Result<QueueHandle> {
        self.named(self.pool.ensure_started().map_err(|cause| {
            error::system(ErrorKind::System, "create_queue", &cause)
                .with_detail(format!("a worker thread cannot start: {cause}"))
                .with_advice("end threads or processes, or raise the limit of processes (`ulimit -u`)")
        }))?;
        let queue = QueueHandle::unique();
        self.registry.add_queue(queue.id(), QueueLane::new(queue.id(), &self.pool, self.registry.info()));
        Ok(queue)
    }

    /// Ends a queue, and blocks until its work is done.
    pub fn release_queue(&self, queue: QueueHandle) {
        if let Ok(lane) = self.registry.queue("release_queue", &queue) {
            lane.end();
            // Ignore errors of the work here, because waits for its tickets return them.
            let _ = lane.wait(lane.timeline().newest().value);
            self.registry.end_queue(queue.id(), &lane);
        }
    }

    /// Registers device memory under a new handle.
    pub fn add_buffer(&self, memory: Arc<M>) -> BufferHandle {
        self.registry.add_buffer(memory)
    }

    /// Returns the memory of a buffer.
    pub fn buffer(&self, operation: &'static str, buffer: BufferId) -> Result<Arc<M>> {
        self.named(self.registry.memory().buffer(operation, buffer).cloned())
    }

    /// Extends a buffer by the function `extend`, and registers its new length.
    pub fn extend(&self, buffer: &BufferHandle, extend: impl FnOnce(&M) -> Result<()>) -> Result<()> {
        let memory = self.buffer("extend", buffer.id())?;
        self.named(extend(&memory))?;
        self.registry.extend_buffer(buffer, memory)
    }

    /// Removes a buffer, and blocks until no work uses its memory.
    pub fn release(&self, buffer: BufferHandle) {
        if let Some(mut memory) = self.registry.remove_buffer(&buffer)
            && is_used(&mut memory)
        {
            self.leave(Arc::as_ptr(&memory).cast());
            self.have_others_leave(std::slice::from_ref(&memory));
        }
    }

    /// Allocates `bytes` bytes of host memory, page-locked or pageable.
    pub fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.registry.allocate_host(bytes, kind)
    }

    /// Imports host memory of the program: [`import_host`](backend_api::Device::import_host).
    ///
    /// # Safety
    /// The requirements of [`import_host`](backend_api::Device::import_host).
    pub unsafe fn import_host(
        &self,
        address: std::ptr::NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        // SAFETY: the caller has the same obligations; `release_host` and the drop of the device wait for all
        // work on the piece.
        unsafe { self.registry.import_host(address, bytes, kind) }
    }

    /// Releases host memory, and blocks until no work uses it.
    pub fn release_host(&self, host: HostAllocation) {
        if let Some(mut piece) = self.registry.remove_host(&host)
            && is_used(&mut piece)
        {
            self.leave(Arc::as_ptr(&piece).cast());
        }
    }

    /// Waits for all work on memory that was removed from the table.
    fn leave(&self, memory: *const ()) {
        leave(&self.registry.live_queues(), memory);
    }

    /// Waits for all work of other devices on buffers that were removed from the table.
    fn have_others_leave(&self, buffers: &[Arc<M>]) {
        let Some(peers) = self.peers.filter(|_| self.registry.is_visited()) else { return };
        // Collect the queues first: the list of devices must not stay locked during the wait.
        let lanes: Vec<_> = peers.members().iter().flat_map(|(other, _)| other.live_queues()).collect();
        buffers.iter().for_each(|buffer| leave(&lanes, Arc::as_ptr(buffer).cast()));
    }

    /// Checks a request, and submits it to a queue. Returns its ticket, by which callers poll or wait.
    pub fn start(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let operation = request.operation();
        let lane = self.registry.queue(operation, queue)?;
        let own = self.registry.memory();
        let start = |known: &KnownMemory<'_, _, _>| {
            HostSubmission::new(known, request).and_then(|work| lane.push(operation, work))
        };
        let Some(peers) = self.peers.filter(|_| names_others(&own, request)) else {
            let started = start(&KnownMemory { own: &own, others: &[] });
            drop(own);
            return self.named(started);
        };
        drop(own);
        let members = peers.members();
        let all = members.memory();
        // `among` never returns `None`, because this device is in the list until its drop.
        let known = KnownMemory::among(&self.registry, &all);
        let started =
            known.map_or_else(|| Err(Queues::<Queue<M>>::unknown(operation)), |known| start(&known));
        drop(all);
        drop(members);
        self.named(started)
    }

    /// Returns the progress of a submission without blocking.
    pub fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        match self.registry.queue_of("poll", ticket)? {
            Some(lane) => self.named(lane.timeline().poll(ticket.value)),
            None => Ok(QueueProgress::Done),
        }
    }

    /// Blocks until a submission is done.
    pub fn wait(&self, ticket: Ticket) -> Result<()> {
        match self.registry.queue_of("wait", ticket)? {
            Some(lane) => self.named(lane.wait(ticket.value)),
            None => Ok(()),
        }
    }

    /// Calls `waker` when a submission is done; at once if it is done already or unknown.
    pub fn wake(&self, ticket: Ticket, waker: Waker) {
        match self.registry.queue_of("wake", ticket) {
            Ok(Some(lane)) => lane.wake_at(ticket.value, waker),
            // Wake the task at once: the work is done, or the next poll returns the error.
            Ok(None) | Err(_) => waker.wake(),
        }
    }

    /// Makes later work of a queue wait for a submission to another queue.
    pub fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        const OPERATION: &str = "order_after";
        let lane = self.registry.queue(OPERATION, queue)?;
        let before = self.registry.queue_of(OPERATION, ticket).or_else(|unknown| {
            let found = self.peers.and_then(|peers| Some(peers.members().queue_of(OPERATION, ticket)?.1));
            found.ok_or(unknown)
        })?;
        if let Some(before) = before {
            lane.order_after(&before, ticket.value);
        }
        Ok(())
    }
}

impl<M: Storage> DirectReads for Engine<M> {
    fn read_directly(&self, from: DeviceSpan<'_>, into: &mut [u8]) -> Result<()> {
        const OPERATION: &str = "read_directly";
        let known = self.registry.memory();
        let found = known
            .check_device(OPERATION, from, into.len() as u64)
            .and_then(|()| known.buffer(OPERATION, from.buffer()).cloned());
        drop(known);
        // Lock the pool's gate (`enter`), as each queued request does, so a thread that locks the gate to
        // stop all work also waits for this read.
        let _inside = self.pool.enter();
        // SAFETY: the range was checked to be inside the memory, which is kept alive here.
        self.named(found.and_then(|memory| unsafe { memory.read_into(OPERATION, from.offset(), into) }))
    }

    fn read_all_directly(&self, reads: &mut [(DeviceSpan<'_>, &mut [u8])]) -> Result<()> {
        const OPERATION: &str = "read_directly";
        let known = self.registry.memory();
        let found: Result<Vec<_>> = reads
            .iter()
            .map(|(from, into)| {
                known.check_device(OPERATION, *from, into.len() as u64)?;
                known.buffer(OPERATION, from.buffer()).cloned()
            })
            .collect();
        drop(known);
        let _inside = self.pool.enter();
        let mut is_announced = false;
        self.named(found.and_then(|found| {
            for at in 0..reads.len() {
                let begin = Instant::now();
                let (from, into) = &mut reads[at];
                // SAFETY: as in `read_directly`.
                unsafe { found[at].read_into(OPERATION, from.offset(), into) }?;
                if !is_announced && begin.elapsed() > LATENCY {
                    is_announced = true;
                    for ((from, into), memory) in reads.iter().zip(&found).skip(at + 1) {
                        memory.announce(from.offset(), into.len());
                    }
                }
            }
            Ok(())
        }))
    }
}

impl<M: Storage> Addresses for Engine<M> {
    fn space(&self) -> AddressSpace {
        AddressSpace::Host
    }

    fn address(&self, place: DeviceSpan<'_>, bytes: u64) -> Result<u64> {
        const OPERATION: &str = "address";
        let known = self.registry.memory();
        let checked = known.check_device(OPERATION, place, bytes);
        let start = checked.and_then(|()| known.buffer(OPERATION, place.buffer()).map(|own| own.address()));
        drop(known);
        let start = self.named(start)?.ok_or_else(|| Error::new(ErrorKind::Unsupported, OPERATION));
        Ok(self.named(start)?.expose_provenance() as u64 + place.offset())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

/// Returns true if work may still access memory that was removed from the table, because such work shares its
/// ownership. A device queries its queues only in this case.
fn is_used<M>(memory: &mut Arc<M>) -> bool {
    // `get_mut` also synchronises with the drop of the last other reference.
    Arc::get_mut(memory).is_none()
}

/// Waits until no work of these queues uses the memory at this address.
fn leave<M: Storage>(lanes: &[Arc<Queue<M>>], memory: *const ()) {
    for lane in lanes {
        if let Some(value) = lane.last_touching(memory) {
            // Ignore errors of the work here, because waits for its tickets return them.
            let _ = lane.wait(value);
        }
    }
}

impl<M: Storage> Drop for Engine<M> {
    fn drop(&mut self) {
        self.peers.inspect(|peers| peers.remove(&self.registry));
        // Wait for all work, because imported memory may end after the drop of the device.
        for lane in self.registry.live_queues() {
            lane.end();
            let _ = lane.wait(lane.timeline().newest().value);
        }
        self.have_others_leave(&self.registry.remove_all());
        self.pool.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};

    use crate::HostDevice;

    /// Each array has its own queues and memory on a device that several arrays share. The end of one array
    /// asks no queue of another.
    #[test]
    fn memory_that_is_not_in_use_is_released_without_a_look_at_queues() {
        let device = Arc::new(HostDevice::builder().bytes(1 << 20).threads(1).build().unwrap());
        let arrays: Vec<_> = (0..20)
            .map(|_| {
                let (reads, writes) = (Queue::new(&device).unwrap(), Queue::new(&device).unwrap());
                let memory = DeviceBuffer::new(&device, 64, Commit::Lazy).unwrap();
                let host = HostBuffer::new(&device, 64, HostMemory::Pageable).unwrap();
                let upload = Transfer::Upload { from: host.at(0), to: memory.at(0), bytes: 64 };
                device.wait(writes.submit(&[upload]).unwrap()).unwrap();
                (reads, writes, memory, host)
            })
            .collect();
        let queues = device.engine.registry.live_queues();
        assert_eq!(queues.len(), 40);
        drop(arrays);
        let looks = || queues.iter().map(|queue| queue.looks.load(Ordering::Relaxed)).sum::<usize>();
        assert_eq!(looks(), 0);
        assert!(device.engine.registry.live_queues().is_empty());
        // The release waits for work in progress.
        let (queue, memory) = (Queue::new(&device).unwrap(), DeviceBuffer::new(&device, 64, Commit::Lazy));
        let host = HostBuffer::new(&device, 64, HostMemory::Pageable).unwrap();
        let (memory, gate) = (memory.unwrap(), Arc::new(parking_lot::RwLock::new(())));
        device.engine.pass_through(Arc::clone(&gate));
        let is_shut = gate.write();
        let upload = Transfer::Upload { from: host.at(0), to: memory.at(0), bytes: 64 };
        let ticket = queue.submit(&[upload]).unwrap();
        let own = device.engine.registry.live_queues().pop().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(memory));
            while own.looks.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            drop(is_shut);
        });
        device.wait(ticket).unwrap();
    }
}
