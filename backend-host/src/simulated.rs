//! A device that exists only in a test.

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
    HostMemory, MemoryStatus, Progress, QueueHandle, Reach, Request, Result, Route, Routing, Ticket,
    Timeline, Transfer,
};
use parking_lot::Mutex;

pub use builder::SimulatedDeviceBuilder;
pub use fabric::SimulatedFabric;
pub use trace::SimulatedOperation;

use crate::job::Work;
use crate::peers::{Known, Locked, names_others};
use crate::ram::{Capacity, Ram};
use crate::registry::Registry;
use routes::Routes;
use schedule::{Passage, Schedule};

/// A device that exists only in a test: an adversary with a seed, made by a [`builder`](Self::builder).
///
/// It keeps to the [contract](backend_api) and to nothing beyond it. Same seed, same calls: same behaviour,
/// to the byte and to the nanosecond.
///
/// **Time** is virtual. It passes when somebody [waits](Device::wait) (up to the end of the work waited for),
/// [polls](Device::poll) (a little each time, so that a loop of polls ends) or calls
/// [`advance`](Self::advance) or [`run`](Self::run), and stands still otherwise. There are no threads and no
/// sleeping. Each submission takes a latency, drawn anew each time, which those of different queues spend at
/// the same time; then its bytes pass the link of their direction, which all queues share. So queues overtake
/// each other, batches are cheaper than single copies, and uploads overlap with downloads: all of it can be
/// asserted with [`now`](Self::now) and the [`trace`](Self::trace).
///
/// **Effects** come when the work is done in virtual time, all at once, and not a moment earlier: a program
/// that reads a frame too soon, or changes it too soon, gets wrong bytes every time. New device memory holds
/// garbage.
///
/// **Failures** come by number or by chance. A submission can be refused at once, it can fail when its time
/// has come, or the device can be lost at that moment. Each leaves a part of the work done, and garbage in
/// the rest of its target.
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
/// Time and failures as a test wants them:
///
/// ```
/// # use std::time::Duration;
/// use backend_api::wrap::{Fault, Operation};
/// use backend_api::{Commit, Device, ErrorKind};
/// # use backend_host::SimulatedDevice;
/// let device = SimulatedDevice::builder(1).latency(Duration::from_micros(10)).jitter(0.0).trace(true).build();
/// let queue = device.create_queue()?;
/// let fault = Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(1);
/// device.inject(fault.clone());
/// assert_eq!(device.submit(&queue, &[]).unwrap_err().kind(), ErrorKind::CopyFailed);
/// device.inject(fault.reported_later());
/// let tickets = [device.submit(&queue, &[])?, device.submit(&queue, &[])?];
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
    registry: Arc<Registry<Ram, Timeline>>,
    capacity: Capacity,
    schedule: Arc<Mutex<Schedule>>,
    /// Held by who extends memory: what is added is littered before anybody knows of it.
    extending: Mutex<()>,
    fabric: Option<SimulatedFabric>,
    manual_wakes: bool,
    routes: Routes,
}

impl SimulatedDevice {
    /// A device of one's own making; without further settings it delays and reorders, and nothing fails.
    pub fn builder(seed: u64) -> SimulatedDeviceBuilder {
        SimulatedDeviceBuilder::new(seed)
    }

    /// The virtual time since the device was made.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.schedule.lock().now_ns())
    }

    /// Lets time pass.
    pub fn advance(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.pass(|schedule| schedule.run_until(schedule.now_ns().saturating_add(nanoseconds)));
    }

    /// Lets time pass until everything submitted is done.
    pub fn run(&self) {
        self.pass(Schedule::run_all);
    }

    /// Loses the device now.
    pub fn lose(&self) {
        self.pass(Schedule::lose);
    }

    /// Adds a rule by which submissions fail from now on; see [`SimulatedDeviceBuilder::fault`].
    pub fn inject(&self, fault: Fault) {
        self.schedule.lock().inject(fault);
    }

    /// How many submissions were made so far, refused ones among them.
    #[must_use]
    pub fn submissions(&self) -> u64 {
        self.schedule.lock().submissions()
    }

    /// What was done so far, in the order in which it was done; empty unless [asked
    /// for](SimulatedDeviceBuilder::trace).
    #[must_use]
    pub fn trace(&self) -> Vec<SimulatedOperation> {
        self.schedule.lock().trace().to_vec()
    }

    /// How many bytes of device memory and host memory were [wiped](Device::wipe_on_release) and given back
    /// so far.
    #[must_use]
    pub fn wiped_bytes(&self) -> u64 {
        self.registry.wiping().bytes()
    }

    /// Changes the schedule, then tells those who wait, when no lock is held any more.
    fn pass<T>(&self, change: impl FnOnce(&mut Schedule) -> T) -> T {
        pass(&self.schedule, change)
    }

    /// Lets time pass on other devices until none of their work touches these buffers, whose names are
    /// forgotten.
    fn have_others_leave(&self, buffers: &[Arc<Ram>]) {
        let Some(fabric) = self.fabric.as_ref().filter(|_| self.registry.is_visited()) else { return };
        let schedules: Vec<_> =
            fabric.members.members().iter().map(|(_, schedule)| Arc::clone(schedule)).collect();
        // The list is not kept while wakers run.
        for schedule in schedules {
            for buffer in buffers {
                pass(&schedule, |schedule| schedule.leave(Arc::as_ptr(buffer).cast()));
            }
        }
    }

    /// What copies bring over links, and what that costs.
    fn passage(
        &self,
        fabric: &SimulatedFabric,
        all: &[(&Mutex<Schedule>, &Locked<'_, Ram, Timeline>)],
        transfers: &[Transfer<'_>],
    ) -> Result<Passage> {
        let mut passage = Passage::default();
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

    /// Refuses everything once the device is lost.
    fn check_alive(&self, operation: &'static str) -> Result<()> {
        let is_lost = self.schedule.lock().is_lost();
        if is_lost { self.named(Err(lost(operation))) } else { Ok(()) }
    }

    /// Checks work and takes it in.
    fn start(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let operation = request.operation();
        self.check_alive(operation)?;
        let cost_ns = match request {
            Request::Copies(transfers, route) => self.routes.cost_ns(*route, transfers),
            _ => 0,
        };
        let timeline = self.registry.queue(operation, queue)?;
        let own = self.registry.memory();
        // Memory stays locked until the work is in its queue, as for every device; wakers run afterwards.
        let start = |known: &Known<'_, _, _>, passage: Passage| {
            let work = Work::new(known, request)?;
            self.schedule.lock().submit(operation, &timeline, work, cost_ns, passage)
        };
        let may_reach = |fabric: &&SimulatedFabric| match request {
            Request::Launch(_) | Request::Gather(_) | Request::Scatter(_) => fabric.reach == Reach::Maps,
            _ => fabric.reach >= Reach::Copies,
        };
        let fabric = self.fabric.as_ref().filter(may_reach).filter(|_| names_others(&own, request));
        let started = match fabric {
            None => {
                let started = start(&Known { own: &own, others: &[] }, Passage::default());
                drop(own);
                started
            }
            Some(fabric) => {
                drop(own);
                let members = fabric.members.members();
                let all = members.memory();
                let both: Vec<_> = members.iter().map(|(_, schedule)| &**schedule).zip(&all).collect();
                let copies = if let Request::Copies(copies, _) = request { *copies } else { &[] };
                // It is on the list until it is dropped.
                let known = Known::among(&self.registry, &all);
                let known = known.ok_or_else(|| Error::new(ErrorKind::UnknownHandle, operation));
                known.and_then(|known| start(&known, self.passage(fabric, &both, copies)?))
            }
        };
        // A refused submission may have had to let time pass.
        self.pass(|_| ());
        self.named(started)
    }
}

/// Changes a schedule, then tells those who wait, when no lock is held any more.
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
        // Who lets this one's time pass does no work any more that is left.
        self.fabric.iter().for_each(|fabric| fabric.members.remove(&self.registry));
        self.schedule.lock().forget_work();
        self.have_others_leave(&self.registry.remove_all());
    }
}

fn lost(operation: &'static str) -> Error {
    Error::new(ErrorKind::Lost, operation).with_detail("the simulation has lost it")
}

// SAFETY: work is carried out under the schedule's lock, by whoever lets time pass, on ranges that were
// checked and on memory that the work keeps alive. A ticket is done, or has failed, only after that;
// releasing carries out what is left of the work that touches the memory, and work of a lost or dropped
// device is never carried out.
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
        // SAFETY: passed on; `release_host` ends all work that touches the piece, and work that is still
        // there when the device is dropped is never carried out.
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

    backend_api::requests! { self, queue, request => self.start(queue, &request) }

    fn routes(&self) -> &[Route] {
        self.routes.names()
    }

    fn set_routing(&self, routing: Routing) {
        self.routes.set_routing(routing);
    }

    fn routing(&self) -> Routing {
        self.routes.routing()
    }

    fn poll(&self, ticket: Ticket) -> Result<Progress> {
        let Some(timeline) = self.registry.queue_of("poll", ticket)? else { return Ok(Progress::Done) };
        if matches!(timeline.poll(ticket.value), Ok(Progress::Pending)) {
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
