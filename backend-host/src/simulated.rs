//! [`SimulatedDevice`]: a device for tests, with delays and failures in virtual time that follow from a seed.

mod builder;
mod damage;
mod fabric;
mod link;
mod routes;
mod schedule;
mod trace;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use backend_api::wrap::Fault;
use backend_api::{
    BufferHandle, Commit, Device, DeviceInfo, DeviceSpan, Error, ErrorKind, Extents, HostAllocation,
    HostMemory, MemoryStatus, QueueHandle, QueueProgress, Reach, Request, Result, Route, Routing, Ticket,
    Transfer,
};
use parking_lot::Mutex;
use vmarray_support::Timeline;

pub use builder::SimulatedDeviceBuilder;
pub use fabric::SimulatedFabric;
pub use trace::SimulatedOperation;

use crate::handle_table::HandleTable;
use crate::job::HostSubmission;
use crate::peers::{KnownMemory, MemoryGuard, names_others};
use crate::ram::{Capacity, Ram};
use routes::Routes;
use schedule::{LinkTraffic, Schedule, lost};

/// A simulated device for tests: delays, reorders and fails work at random, determined by a seed. A
/// [`builder`](Self::builder) configures the device.
///
/// The device follows the [device contract](backend_api), and gives no guarantees beyond it. The same seed
/// and the same calls cause the same behaviour, to the byte and to the nanosecond.
///
/// **Time** is virtual. The time advances when the program [waits](Device::wait) (to the end of the work),
/// [polls](Device::poll) (a little each time, so a loop of polls ends), or calls [`advance`](Self::advance)
/// or [`run`](Self::run). There are no threads and no sleeps. Each submission first has a random latency;
/// latencies of different queues overlap. Then the submission's bytes pass the link of their direction, which
/// all queues share. So queues overtake each other, batches are cheaper than single copies, and uploads
/// overlap with downloads. Tests can assert times and orders with [`now`](Self::now) and the
/// [`trace`](Self::trace).
///
/// **Effects** happen at the virtual time at which the work is done, and not earlier. So a program that reads
/// or changes a frame too early gets wrong bytes every time. New device memory holds garbage.
///
/// **Failures** happen at given calls or at random. The device refuses a submission at once, or the
/// submission fails at its end, or the device is lost at that moment. After a failure a part of the work is
/// done, and the rest of its target has garbage.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use backend_api::{Commit, Compute, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};
/// use backend_host::SimulatedDevice;
///
/// let device = Arc::new(
///     SimulatedDevice::builder(7).latency(Duration::from_micros(10)).jitter(0.0).bandwidth(1_000_000_000).build(),
/// );
/// let memory = DeviceBuffer::new(&device, 4000, Commit::Lazy)?;
/// let host = HostBuffer::new(&device, 4000, HostMemory::Pageable)?;
/// let queues = [Queue::new(&device)?, Queue::new(&device)?];
/// let up = queues[0].submit(&[Transfer::Upload { from: host.at(0), to: memory.at(0), bytes: 2000 }])?;
/// let down = queues[1].submit(&[Transfer::Download { from: memory.at(2000), to: host.at(2000), bytes: 2000 }])?;
/// device.wait(up)?;
/// device.wait(down)?;
/// // 10 microseconds of latency and 2 of copying: the directions overlap.
/// assert_eq!(device.now(), Duration::from_micros(12));
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// A test can control time and failures:
///
/// ```
/// # use std::time::Duration;
/// use backend_api::wrap::{Fault, Operation};
/// use backend_api::{Commit, Device, ErrorKind, Request};
/// # use backend_host::SimulatedDevice;
/// let device = SimulatedDevice::builder(1).latency(Duration::from_micros(10)).jitter(0.0).trace(true).build();
/// let queue = device.create_queue()?;
/// let fault = Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(1);
/// device.inject(fault.clone());
/// let submit = || device.submit(&queue, &Request::Copies(&[], None));
/// assert_eq!(submit().unwrap_err().kind(), ErrorKind::CopyFailed);
/// device.inject(fault.reported_later());
/// let tickets = [submit()?, submit()?];
/// device.advance(Duration::from_micros(15));
/// assert_eq!(device.trace().len(), 1, "the time of the second has not come");
/// device.run();
/// assert_eq!((device.now(), device.submissions()), (Duration::from_micros(20), 3));
/// assert_eq!(device.wait(tickets[0]).unwrap_err().kind(), ErrorKind::CopyFailed);
/// device.wait(tickets[1])?;
///
/// device.wipe_on_release()?;
/// device.release(device.allocate(100, Commit::Lazy)?);
/// assert_eq!(device.wiped_bytes(), 100);
/// device.lose();
/// assert_eq!(device.create_queue().unwrap_err().kind(), ErrorKind::Lost);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct SimulatedDevice {
    registry: Arc<HandleTable<Ram, Timeline>>,
    capacity: Capacity,
    schedule: Arc<Mutex<Schedule>>,
    /// Locked by a thread that extends memory, until it has filled the new part with random bytes.
    extending: Mutex<()>,
    fabric: Option<SimulatedFabric>,
    manual_wakes: bool,
    routes: Routes,
}

impl SimulatedDevice {
    /// Virtual time since the creation of the device.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.schedule.lock().now_ns())
    }

    /// Advances the virtual time by `time`, and finishes the work that is due.
    pub fn advance(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.pass(|schedule| schedule.run_until(schedule.now_ns().saturating_add(nanoseconds)));
    }

    /// Advances the virtual time until all submitted work is done.
    pub fn run(&self) {
        self.pass(Schedule::run_all);
    }

    /// Simulates the loss of the device now: all later calls fail.
    pub fn lose(&self) {
        self.pass(Schedule::lose);
    }

    /// Adds a rule that makes later submissions fail; see [`SimulatedDeviceBuilder::fault`].
    pub fn inject(&self, fault: Fault) {
        self.schedule.lock().inject(fault);
    }

    /// Number of submissions so far, including refused ones.
    #[must_use]
    pub fn submissions(&self) -> u64 {
        self.schedule.lock().submissions()
    }

    /// Finished submissions in the order of their end; empty unless the
    /// [trace](SimulatedDeviceBuilder::trace) is enabled.
    #[must_use]
    pub fn trace(&self) -> Vec<SimulatedOperation> {
        self.schedule.lock().trace().to_vec()
    }

    /// Number of bytes of released device memory and host memory that were [wiped](Device::wipe_on_release).
    #[must_use]
    pub fn wiped_bytes(&self) -> u64 {
        self.registry.wiping().bytes()
    }

    /// Changes the schedule under its lock, then runs due wakers without the lock.
    fn pass<T>(&self, change: impl FnOnce(&mut Schedule) -> T) -> T {
        pass(&self.schedule, change)
    }

    /// Advances the time of other devices until none of their work uses these removed buffers.
    fn have_others_leave(&self, buffers: &[Arc<Ram>]) {
        let Some(fabric) = self.fabric.as_ref().filter(|_| self.registry.is_visited()) else { return };
        let schedules: Vec<_> =
            fabric.members.members().iter().map(|(_, schedule)| Arc::clone(schedule)).collect();
        // Collect the schedules first: the list of devices must not be locked while wakers run.
        for schedule in schedules {
            for buffer in buffers {
                pass(&schedule, |schedule| schedule.leave(Arc::as_ptr(buffer).cast()));
            }
        }
    }

    /// Returns bytes and costs of copies over links.
    fn passage(
        &self,
        fabric: &SimulatedFabric,
        all: &[(&Mutex<Schedule>, &MemoryGuard<'_, Ram, Timeline>)],
        transfers: &[Transfer<'_>],
    ) -> Result<LinkTraffic> {
        let mut passage = LinkTraffic::default();
        let others = all.iter().filter(|(_, (registry, _))| !std::ptr::eq(*registry, &*self.registry));
        for (schedule, (registry, memory)) in others {
            let is_there = |at: &DeviceSpan<'_>| memory.device_bytes(at.buffer()).is_some();
            let bytes = transfers.iter().map(|transfer| match transfer {
                Transfer::Internal { from, to, bytes } if is_there(from) || is_there(to) => *bytes,
                _ => 0,
            });
            let bytes = bytes.fold(0, u64::saturating_add);
            if bytes == 0 {
                continue;
            }
            if schedule.lock().is_lost() {
                let detail = format!("{} is lost", registry.info());
                return Err(Error::new(ErrorKind::CopyFailed, "submit").with_detail(detail));
            }
            passage.bytes = passage.bytes.saturating_add(bytes);
            passage.latency_ns = u64::try_from(fabric.latency.as_nanos()).unwrap_or(u64::MAX);
            passage.is_broken |= fabric.is_broken(self.registry.info(), registry.info());
        }
        Ok(passage)
    }

    fn named<T>(&self, result: Result<T>) -> Result<T> {
        self.registry.named(result)
    }

    /// Returns an error after the loss of the device.
    fn check_alive(&self, operation: &'static str) -> Result<()> {
        let is_lost = self.schedule.lock().is_lost();
        if is_lost { self.named(Err(lost(operation))) } else { Ok(()) }
    }

    /// Checks a request and submits it.
    fn start(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let operation = request.operation();
        self.check_alive(operation)?;
        let cost_ns = match request {
            Request::Copies(transfers, route) => self.routes.cost_ns(*route, transfers),
            _ => 0,
        };
        let timeline = self.registry.queue(operation, queue)?;
        let own = self.registry.memory();
        // The memory table stays locked until the work is queued. Wakers run later, without the lock.
        let start = |known: &KnownMemory<'_, _, _>, passage: LinkTraffic| {
            let work = HostSubmission::new(known, request)?;
            self.schedule.lock().submit(operation, &timeline, work, cost_ns, passage)
        };
        let may_reach = |fabric: &&SimulatedFabric| match request {
            Request::Launch(_) | Request::Gather(_) | Request::Scatter(_) => fabric.reach == Reach::Maps,
            _ => fabric.reach >= Reach::Copies,
        };
        let fabric = self.fabric.as_ref().filter(may_reach).filter(|_| names_others(&own, request));
        let started = match fabric {
            None => {
                let started = start(&KnownMemory { own: &own, others: &[] }, LinkTraffic::default());
                drop(own);
                started
            }
            Some(fabric) => {
                drop(own);
                let members = fabric.members.members();
                let all = members.memory();
                let both: Vec<_> = members.iter().map(|(_, schedule)| &**schedule).zip(&all).collect();
                let copies = if let Request::Copies(copies, _) = request { *copies } else { &[] };
                // `among` never returns `None`, because this device is in the list until its drop.
                let known = KnownMemory::among(&self.registry, &all);
                let known = known.ok_or_else(|| Error::new(ErrorKind::UnknownHandle, operation));
                known.and_then(|known| start(&known, self.passage(fabric, &both, copies)?))
            }
        };
        // Run due wakers even after a refusal, because the refused submission may have advanced the time.
        self.pass(|_| ());
        self.named(started)
    }
}

/// Changes a schedule under its lock, then runs due wakers without the lock.
fn pass<T>(schedule: &Mutex<Schedule>, change: impl FnOnce(&mut Schedule) -> T) -> T {
    let mut schedule = schedule.lock();
    let result = change(&mut schedule);
    let wakers = schedule.take_due_wakers();
    drop(schedule);
    wakers.into_iter().for_each(Waker::wake);
    result
}

impl Drop for SimulatedDevice {
    fn drop(&mut self) {
        // Leave the list of devices first, so other devices can no longer run the remaining work.
        self.fabric.iter().for_each(|fabric| fabric.members.remove(&self.registry));
        self.schedule.lock().forget_work();
        self.have_others_leave(&self.registry.remove_all());
    }
}

// SAFETY: work runs under the schedule's lock, on checked ranges and on memory that it keeps alive. Its
// ticket is done or fails only after that. A release first runs the remaining work on the memory, and work of
// a lost or dropped device never runs.
unsafe impl Device for SimulatedDevice {
    fn info(&self) -> &DeviceInfo {
        self.registry.info()
    }

    fn memory(&self) -> Result<MemoryStatus> {
        self.check_alive("memory")?;
        let free = self.capacity.free_bytes();
        Ok(MemoryStatus::new(self.capacity.total_bytes(), free, free))
    }

    fn create_queue(&self) -> Result<QueueHandle> {
        self.check_alive("create_queue")?;
        let queue = QueueHandle::unique();
        let timeline = Arc::new(Timeline::new(queue.id()));
        self.schedule.lock().add_queue(&timeline);
        self.registry.add_queue(queue.id(), timeline);
        Ok(queue)
    }

    fn release_queue(&self, queue: QueueHandle) {
        let Ok(timeline) = self.registry.queue("release_queue", &queue) else { return };
        self.pass(|schedule| schedule.end_queue(queue.id()));
        self.registry.end_queue(queue.id(), &timeline);
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        self.check_alive("allocate")?;
        let ram = self.named(Ram::new(&self.capacity, bytes, commit))?;
        self.schedule.lock().litter(&ram, 0..bytes);
        Ok(self.registry.add_buffer(Arc::new(ram)))
    }

    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        self.check_alive("allocate_extensible")?;
        let ram = self.named(Ram::extensible(&self.capacity, bytes, most, commit))?;
        self.schedule.lock().litter(&ram, 0..bytes);
        Ok(self.registry.add_buffer(Arc::new(ram)))
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, commit: Commit) -> Result<()> {
        const OPERATION: &str = "extend";
        self.check_alive(OPERATION)?;
        let _alone = self.extending.lock();
        let ram = self.named(self.registry.memory().buffer(OPERATION, buffer.id()).cloned())?;
        let added = self.named(ram.extend(&self.capacity, bytes, commit))?;
        self.schedule.lock().litter(&ram, added);
        self.registry.extend_buffer(buffer, ram)
    }

    fn release(&self, buffer: BufferHandle) {
        if let Some(memory) = self.registry.remove_buffer(&buffer) {
            self.pass(|schedule| schedule.leave(Arc::as_ptr(&memory).cast()));
            self.have_others_leave(&[memory]);
        }
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.check_alive("allocate_host")?;
        self.registry.allocate_host(bytes, kind)
    }

    unsafe fn import_host(
        &self,
        address: std::ptr::NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        self.check_alive("import_host")?;
        // SAFETY: the caller has the same obligations; `release_host` finishes all work on the piece, and
        // work that remains when the device is dropped never runs.
        unsafe { self.registry.import_host(address, bytes, kind) }
    }

    fn wipe_on_release(&self) -> Result<()> {
        self.registry.wiping().start();
        Ok(())
    }

    fn release_host(&self, host: HostAllocation) {
        if let Some(piece) = self.registry.remove_host(&host) {
            self.pass(|schedule| schedule.leave(Arc::as_ptr(&piece).cast()));
        }
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        self.start(queue, request)
    }

    fn routes(&self) -> &[Route] {
        self.routes.names()
    }

    fn set_routing(&self, routing: Routing) {
        self.routes.set_routing(routing);
    }

    fn routing(&self) -> Routing {
        self.routes.routing()
    }

    fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        let Some(timeline) = self.registry.queue_of("poll", ticket)? else { return Ok(QueueProgress::Done) };
        if matches!(timeline.poll(ticket.value), Ok(QueueProgress::Pending)) {
            self.pass(Schedule::poll_step);
        }
        self.named(timeline.poll(ticket.value))
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        let Some(timeline) = self.registry.queue_of("wait", ticket)? else { return Ok(()) };
        self.pass(|schedule| schedule.run_until_done(ticket));
        self.named(timeline.poll(ticket.value)).map(drop)
    }

    fn wake(&self, ticket: Ticket, waker: Waker) {
        if self.registry.queue_of("wake", ticket).ok().flatten().is_none() {
            return waker.wake();
        }
        self.pass(|schedule| {
            schedule.wake_at(ticket, waker);
            if !self.manual_wakes {
                schedule.run_until_done(ticket);
            }
        });
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        self.check_alive("order_after")?;
        let later = self.registry.queue("order_after", queue)?;
        match self.registry.queue_of("order_after", ticket) {
            Ok(Some(_)) => self.schedule.lock().order_after(later.queue(), ticket),
            Ok(None) => {}
            Err(unknown) => {
                let fabric = self.fabric.as_ref().filter(|fabric| fabric.reach > Reach::No);
                let found = fabric.and_then(|fabric| {
                    let members = fabric.members.members();
                    members.queue_of("order_after", ticket).map(|(schedule, _)| Arc::clone(schedule))
                });
                let schedule = found.ok_or(unknown)?;
                pass(&schedule, |schedule| schedule.run_until_done(ticket));
            }
        }
        Ok(())
    }

    fn reaches(&self, other: &DeviceInfo) -> Reach {
        let Some(fabric) = &self.fabric else { return Reach::No };
        let is_member = fabric.members.members().iter().any(|(registry, _)| **registry.info() == *other);
        if is_member { fabric.reach } else { Reach::No }
    }
}
