//! Common parts of the devices whose threads do the work.

use std::sync::Arc;
use std::task::Waker;

use backend_api::{
    AddressSpace, Addresses, BufferHandle, BufferId, DeviceInfo, DeviceSpan, DirectReads, Error, ErrorKind,
    Extents as _, HostAllocation, HostMemory, Progress, QueueHandle, Queues, Request, Result, Ticket,
};

use parking_lot::RwLock;

use crate::error;
use crate::job::Work;
use crate::medium::Medium;
use crate::memory::Wiping;
use crate::peers::{Known, Peers, names_others};
use crate::queue::Lane;
use crate::registry::Registry;
use crate::worker::Pool;

type Queue<M> = Lane<Work<M>>;

/// Everything of a device except its memory: names, queues, threads, host memory.
#[derive(Debug)]
pub(crate) struct Engine<M: Medium> {
    registry: Arc<Registry<M, Queue<M>>>,
    pool: Arc<Pool>,
    /// The devices that this one can access, including itself.
    peers: Option<&'static EnginePeers<M>>,
}

/// Devices that can access each other.
pub(crate) type EnginePeers<M> = Peers<M, Queue<M>, Pool>;

impl<M: Medium> Engine<M> {
    /// Returns a device with `threads` threads, which start with the first queue.
    pub fn new(
        mut info: DeviceInfo,
        threads: usize,
        pinned_max_bytes: u64,
        peers: Option<&'static EnginePeers<M>>,
    ) -> Self {
        info.copy_engines = u32::try_from(threads).unwrap_or(u32::MAX);
        let pool = Pool::new(&format!("vmarray-{}", info.identity), threads);
        let newest = |lane: &Queue<M>| lane.timeline().newest().value;
        let registry = Arc::new(Registry::new(info, pinned_max_bytes, newest));
        peers.inspect(|peers| peers.add(&registry, &pool));
        Self { pool, registry, peers }
    }

    /// Makes each job hold `gate` shared while it runs.
    pub fn pass_through(&self, gate: Arc<RwLock<()>>) {
        self.pool.pass_through(gate);
    }

    pub fn info(&self) -> &DeviceInfo {
        self.registry.info()
    }

    /// State of memory wiping.
    pub fn wiping(&self) -> &Arc<Wiping> {
        self.registry.wiping()
    }

    pub fn wipe_on_release(&self) -> Result<()> {
        self.wiping().start();
        Ok(())
    }

    /// Adds the device to an error.
    pub fn named<T>(&self, result: Result<T>) -> Result<T> {
        self.registry.named(result)
    }

    pub fn threads(&self) -> usize {
        self.pool.threads_max()
    }

    pub fn create_queue(&self) -> Result<QueueHandle> {
        self.named(self.pool.ensure_started().map_err(|cause| {
            error::system(ErrorKind::System, "create_queue", &cause).with_detail("no thread to be had")
        }))?;
        let queue = QueueHandle::unique();
        self.registry.add_queue(queue.id(), Lane::new(queue.id(), &self.pool, self.registry.info()));
        Ok(queue)
    }

    pub fn release_queue(&self, queue: QueueHandle) {
        if let Ok(lane) = self.registry.queue("release_queue", &queue) {
            lane.end();
            // The owners of the tickets receive the errors.
            let _ = lane.wait(lane.timeline().newest().value);
            self.registry.end_queue(queue.id(), &lane);
        }
    }

    pub fn add_buffer(&self, memory: Arc<M>) -> BufferHandle {
        self.registry.add_buffer(memory)
    }

    /// Returns a buffer's memory.
    pub fn buffer(&self, operation: &'static str, buffer: BufferId) -> Result<Arc<M>> {
        self.named(self.registry.memory().buffer(operation, buffer).cloned())
    }

    /// Extends a buffer, and registers its new length.
    pub fn extend(&self, buffer: &BufferHandle, extend: impl FnOnce(&M) -> Result<()>) -> Result<()> {
        let memory = self.buffer("extend", buffer.id())?;
        self.named(extend(&memory))?;
        self.registry.extend_buffer(buffer, memory)
    }

    pub fn release(&self, buffer: BufferHandle) {
        if let Some(memory) = self.registry.remove_buffer(&buffer) {
            self.leave(Arc::as_ptr(&memory).cast());
            self.have_others_leave(std::slice::from_ref(&memory));
        }
    }

    pub fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.registry.allocate_host(bytes, kind)
    }

    /// # Safety
    /// As [`import_host`](backend_api::Device::import_host).
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

    pub fn release_host(&self, host: HostAllocation) {
        if let Some(piece) = self.registry.remove_host(&host) {
            self.leave(Arc::as_ptr(&piece).cast());
        }
    }

    /// Waits for all work on memory whose name is already removed.
    fn leave(&self, memory: *const ()) {
        leave(&self.registry.live_queues(), memory);
    }

    /// Waits for all work of other devices on buffers whose names are already removed.
    fn have_others_leave(&self, buffers: &[Arc<M>]) {
        let Some(peers) = self.peers.filter(|_| self.registry.is_visited()) else { return };
        // The list of members is not locked during the wait.
        let lanes: Vec<_> = peers.members().iter().flat_map(|(other, _)| other.live_queues()).collect();
        buffers.iter().for_each(|buffer| leave(&lanes, Arc::as_ptr(buffer).cast()));
    }

    /// Checks work, and submits it to its queue.
    pub fn start(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let operation = request.operation();
        let lane = self.registry.queue(operation, queue)?;
        let own = self.registry.memory();
        let start =
            |known: &Known<'_, _, _>| Work::new(known, request).and_then(|work| lane.push(operation, work));
        let Some(peers) = self.peers.filter(|_| names_others(&own, request)) else {
            let started = start(&Known { own: &own, others: &[] });
            drop(own);
            return self.named(started);
        };
        drop(own);
        let members = peers.members();
        let all = members.memory();
        // This device is a member until its drop.
        let known = Known::among(&self.registry, &all);
        let started =
            known.map_or_else(|| Err(Queues::<Queue<M>>::unknown(operation)), |known| start(&known));
        drop(all);
        drop(members);
        self.named(started)
    }

    pub fn poll(&self, ticket: Ticket) -> Result<Progress> {
        match self.registry.queue_of("poll", ticket)? {
            Some(lane) => self.named(lane.timeline().poll(ticket.value)),
            None => Ok(Progress::Done),
        }
    }

    pub fn wait(&self, ticket: Ticket) -> Result<()> {
        match self.registry.queue_of("wait", ticket)? {
            Some(lane) => self.named(lane.wait(ticket.value)),
            None => Ok(()),
        }
    }

    pub fn wake(&self, ticket: Ticket, waker: Waker) {
        match self.registry.queue_of("wake", ticket) {
            Ok(Some(lane)) => lane.wake_at(ticket.value, waker),
            // Done, or an error that the next poll returns.
            Ok(None) | Err(_) => waker.wake(),
        }
    }

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

impl<M: Medium> DirectReads for Engine<M> {
    fn read_directly(&self, from: DeviceSpan<'_>, into: &mut [u8]) -> Result<()> {
        const OPERATION: &str = "read_directly";
        let known = self.registry.memory();
        let found = known
            .check_device(OPERATION, from, into.len() as u64)
            .and_then(|()| known.buffer(OPERATION, from.buffer()).cloned());
        drop(known);
        // Holds the gate of the pool, like a job.
        let _inside = self.pool.enter();
        // SAFETY: the range was checked to be inside the memory, which is kept alive here.
        self.named(found.and_then(|memory| unsafe { memory.read_into(OPERATION, from.offset(), into) }))
    }
}

impl<M: Medium> Addresses for Engine<M> {
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

/// Waits until no work of these queues uses the memory.
fn leave<M: Medium>(lanes: &[Arc<Queue<M>>], memory: *const ()) {
    for lane in lanes {
        if let Some(value) = lane.last_touching(memory) {
            // The owners of the tickets receive the errors.
            let _ = lane.wait(value);
        }
    }
}

impl<M: Medium> Drop for Engine<M> {
    fn drop(&mut self) {
        self.peers.inspect(|peers| peers.remove(&self.registry));
        // Imported memory is only guaranteed to exist while the device exists.
        for lane in self.registry.live_queues() {
            lane.end();
            let _ = lane.wait(lane.timeline().newest().value);
        }
        self.have_others_leave(&self.registry.remove_all());
        self.pool.stop();
    }
}
