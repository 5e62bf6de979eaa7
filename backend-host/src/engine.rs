//! What the devices that carry out their work with threads have in common.

use std::sync::Arc;
use std::task::Waker;

use backend_api::{
    BufferHandle, BufferId, Compute, DeviceInfo, Error, ErrorKind, Fill, Gather, HostAllocation, HostMemory,
    Progress, QueueHandle, Result, Scatter, Search, Ticket, Transfer,
};

use crate::error;
use crate::host_memory::{Piece, Pinning};
use crate::job::Work;
use crate::medium::Medium;
use crate::memory::Wiping;
use crate::queue::Lane;
use crate::registry::{Entries, Found, Registry};
use crate::worker::Pool;

type Queue<M> = Lane<Work<M>>;

/// Everything of a device but its memory: names, queues, threads, host memory.
#[derive(Debug)]
pub(crate) struct Engine<M: Medium> {
    info: Arc<DeviceInfo>,
    registry: Registry<M, Queue<M>>,
    pinning: Arc<Pinning>,
    pool: Arc<Pool>,
}

impl<M: Medium> Engine<M> {
    /// A device of these facts, with `threads` threads, none of which is started yet.
    pub fn new(info: DeviceInfo, threads: usize, pinned_max_bytes: u64) -> Self {
        Self {
            pool: Pool::new(&format!("vmarray-{}", info.identity), threads),
            info: Arc::new(info),
            registry: Registry::new(),
            pinning: Pinning::new(pinned_max_bytes),
        }
    }

    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Whether memory of the device is wiped.
    pub fn wiping(&self) -> &Arc<Wiping> {
        self.pinning.wiping()
    }

    pub fn wipe_on_release(&self) -> Result<()> {
        self.wiping().start();
        Ok(())
    }

    /// Names the device in an error.
    pub fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.on(&self.info))
    }

    pub fn threads(&self) -> usize {
        self.pool.threads_max()
    }

    pub fn create_queue(&self) -> Result<QueueHandle> {
        self.named(self.pool.ensure_started().map_err(|cause| {
            error::system(ErrorKind::System, "create_queue", &cause).with_detail("no thread to be had")
        }))?;
        let queue = QueueHandle::unique();
        self.registry.add_queue(queue.id(), Lane::new(queue.id(), &self.pool, &self.info));
        Ok(queue)
    }

    pub fn release_queue(&self, queue: QueueHandle) {
        if let Some(lane) = self.registry.live_queue(queue.id()) {
            lane.end();
            let newest = lane.timeline().newest().value;
            // Failures were or were not asked for by those who hold the tickets.
            let _ = lane.wait(newest);
            self.registry.remove_queue(queue.id(), |lane| lane.timeline().newest().value);
        }
    }

    pub fn add_buffer(&self, memory: Arc<M>) -> BufferHandle {
        self.registry.add_buffer(memory)
    }

    /// A buffer's memory.
    pub fn buffer(&self, operation: &'static str, buffer: BufferId) -> Result<Arc<M>> {
        self.named(self.registry.read().buffer(operation, buffer).map(Arc::clone))
    }

    pub fn release(&self, buffer: BufferHandle) {
        if let Some(memory) = self.registry.remove_buffer(buffer.id()) {
            self.leave(Arc::as_ptr(&memory).cast());
        }
    }

    pub fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        let piece = self.named(self.pinning.allocate(bytes, kind))?;
        // SAFETY: new memory, zeroed, that nobody else knows. It lives as long as its entry and any work that
        // touches it.
        Ok(unsafe { self.registry.add_host(piece) })
    }

    /// # Safety
    /// As [`import_host`](backend_api::Device::import_host).
    pub unsafe fn import_host(
        &self,
        address: std::ptr::NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        // SAFETY: passed on; `release_host` and the drop of the device wait until no work touches the piece.
        let piece: Piece = self.named(unsafe { self.pinning.import(address, bytes, kind) })?;
        // SAFETY: as the caller promises.
        Ok(unsafe { self.registry.add_host(piece) })
    }

    pub fn release_host(&self, host: HostAllocation) {
        if let Some(piece) = self.registry.remove_host(host.id()) {
            self.leave(Arc::as_ptr(&piece).cast());
        }
    }

    /// Waits until no work touches this memory, whose name is forgotten already.
    fn leave(&self, memory: *const ()) {
        for lane in self.registry.all_queues() {
            if let Some(value) = lane.last_touching(memory) {
                // How the work ends concerns those who hold its ticket.
                let _ = lane.wait(value);
            }
        }
    }

    /// Checks work and puts it into its queue.
    fn start(
        &self,
        operation: &'static str,
        queue: &QueueHandle,
        work: impl FnOnce(&Entries<M, Queue<M>>) -> Result<Work<M>>,
    ) -> Result<Ticket> {
        let entries = self.registry.read();
        let started =
            entries.queue(operation, queue.id()).and_then(|lane| lane.push(operation, work(&entries)?));
        drop(entries);
        self.named(started)
    }

    pub fn submit(&self, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        self.start("submit", queue, |entries| Work::copies(entries, transfers))
    }

    pub fn fill(&self, queue: &QueueHandle, fill: &Fill<'_>) -> Result<Ticket> {
        self.start("fill", queue, |entries| Work::fill(entries, fill))
    }

    pub fn search(&self, queue: &QueueHandle, search: &Search<'_>) -> Result<Ticket> {
        self.start("search", queue, |entries| Work::search(entries, search))
    }

    pub fn gather(&self, queue: &QueueHandle, gather: &Gather<'_>) -> Result<Ticket> {
        self.start("gather", queue, |entries| Work::gather(entries, gather))
    }

    pub fn scatter(&self, queue: &QueueHandle, scatter: &Scatter<'_>) -> Result<Ticket> {
        self.start("scatter", queue, |entries| Work::scatter(entries, scatter))
    }

    pub fn compute(&self, queue: &QueueHandle, compute: &Compute<'_>) -> Result<Ticket> {
        self.start("compute", queue, |entries| Work::compute(entries, compute))
    }

    /// The queue of a ticket, if it has not ended.
    fn lane(&self, operation: &'static str, ticket: Ticket) -> Result<Option<Arc<Queue<M>>>> {
        let entries = self.registry.read();
        let found = entries.queue_of(operation, ticket).map(|found| match found {
            Found::Live(lane) => Some(Arc::clone(lane)),
            Found::Ended => None,
        });
        drop(entries);
        self.named(found)
    }

    pub fn poll(&self, ticket: Ticket) -> Result<Progress> {
        match self.lane("poll", ticket)? {
            Some(lane) => self.named(lane.timeline().poll(ticket.value)),
            None => Ok(Progress::Done),
        }
    }

    pub fn wait(&self, ticket: Ticket) -> Result<()> {
        match self.lane("wait", ticket)? {
            Some(lane) => self.named(lane.wait(ticket.value)),
            None => Ok(()),
        }
    }

    pub fn wake(&self, ticket: Ticket, waker: Waker) {
        match self.lane("wake", ticket) {
            Ok(Some(lane)) => lane.wake_at(ticket.value, waker),
            // Done long ago, or an error, which the next poll tells.
            Ok(None) | Err(_) => waker.wake(),
        }
    }

    pub fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        const OPERATION: &str = "order_after";
        let entries = self.registry.read();
        let result = entries.queue(OPERATION, queue.id()).and_then(|lane| {
            if let Found::Live(before) = entries.queue_of(OPERATION, ticket)? {
                if ticket.value > before.timeline().newest().value {
                    return Err(Error::new(ErrorKind::UnknownHandle, OPERATION)
                        .with_detail(format!("ticket {} was never given", ticket.value)));
                }
                lane.order_after(before, ticket.value);
            }
            Ok(())
        });
        drop(entries);
        self.named(result)
    }
}

impl<M: Medium> Drop for Engine<M> {
    fn drop(&mut self) {
        // Imported memory is only promised to exist as long as the device does.
        for lane in self.registry.all_queues() {
            lane.end();
            let _ = lane.wait(lane.timeline().newest().value);
        }
        self.pool.stop();
    }
}
