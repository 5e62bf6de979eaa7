//! A device that exists only in a test.

mod builder;
mod damage;
mod link;
mod routes;
mod schedule;
mod trace;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use backend_api::{
    BufferHandle, Commit, Compute, Device, DeviceInfo, Error, ErrorKind, Fill, Gather, HostAllocation,
    HostMemory, MemoryStatus, Progress, QueueHandle, Result, Route, Routing, Scatter, Search, Ticket,
    Timeline, Transfer,
};
use parking_lot::Mutex;

pub use builder::SimulatedDeviceBuilder;
pub use trace::SimulatedOperation;

use crate::host_memory::Pinning;
use crate::job::Work;
use crate::ram::{Capacity, Ram};
use crate::registry::{Entries, Found, Registry};
use routes::Routes;
use schedule::Schedule;

type Names = Registry<Ram, Timeline>;

/// A device that exists only in a test: an adversary with a seed.
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
#[derive(Debug)]
pub struct SimulatedDevice {
    info: Arc<DeviceInfo>,
    names: Names,
    capacity: Arc<Capacity>,
    pinning: Arc<Pinning>,
    schedule: Mutex<Schedule>,
    manual_wakes: bool,
    routes: Routes,
}

impl SimulatedDevice {
    /// A device of one's own making; without further settings it delays and reorders, and nothing fails.
    ///
    /// ```
    /// use backend_api::Device;
    /// use backend_host::SimulatedDevice;
    /// let durations: Vec<_> = [7, 7, 8].into_iter().map(|seed| {
    ///     let device = SimulatedDevice::builder(seed).build();
    ///     let queue = device.create_queue().unwrap();
    ///     device.wait(device.submit(&queue, &[]).unwrap()).unwrap();
    ///     device.now()
    /// }).collect();
    /// assert_eq!(durations[0], durations[1], "the same seed gives the same delays");
    /// assert_ne!(durations[0], durations[2]);
    /// ```
    pub fn builder(seed: u64) -> SimulatedDeviceBuilder {
        SimulatedDeviceBuilder::new(seed)
    }

    /// The virtual time since the device was made.
    ///
    /// ```
    /// use std::time::Duration;
    /// use backend_api::Device;
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).latency(Duration::from_micros(10)).jitter(0.0).build();
    /// let queue = device.create_queue()?;
    /// device.wait(device.submit(&queue, &[])?)?;
    /// assert_eq!(device.now(), Duration::from_micros(10));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.schedule.lock().now_ns())
    }

    /// Lets time pass.
    ///
    /// ```
    /// use std::time::Duration;
    /// let device = backend_host::SimulatedDevice::builder(1).build();
    /// device.advance(Duration::from_millis(3));
    /// assert_eq!(device.now(), Duration::from_millis(3));
    /// ```
    pub fn advance(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.pass(|schedule| schedule.run_until(schedule.now_ns().saturating_add(nanoseconds)));
    }

    /// Lets time pass until everything submitted is done.
    ///
    /// ```
    /// use std::time::Duration;
    /// use backend_api::{Device, Progress};
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).latency(Duration::from_micros(10)).jitter(0.0).build();
    /// let queue = device.create_queue()?;
    /// let (_first, second) = (device.submit(&queue, &[])?, device.submit(&queue, &[])?);
    /// device.run();
    /// assert_eq!(device.now(), Duration::from_micros(20));
    /// assert_eq!(device.poll(second)?, Progress::Done);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn run(&self) {
        self.pass(Schedule::run_all);
    }

    /// Loses the device now.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind};
    /// let device = backend_host::SimulatedDevice::builder(1).build();
    /// device.lose();
    /// assert_eq!(device.create_queue().unwrap_err().kind(), ErrorKind::Lost);
    /// ```
    pub fn lose(&self) {
        self.pass(Schedule::lose);
    }

    /// Has the next submission fail when its time has come.
    ///
    /// ```
    /// use backend_api::{Device, ErrorKind};
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).build();
    /// let queue = device.create_queue()?;
    /// device.fail_next();
    /// let (first, second) = (device.submit(&queue, &[])?, device.submit(&queue, &[])?);
    /// assert_eq!(device.wait(first).unwrap_err().kind(), ErrorKind::CopyFailed);
    /// assert!(device.wait(second).is_ok());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    pub fn fail_next(&self) {
        self.schedule.lock().fail_next();
    }

    /// How many submissions were made so far, refused ones among them: the number that the next one has for
    /// [`fail_at`](SimulatedDeviceBuilder::fail_at) and its sisters.
    ///
    /// ```
    /// use backend_api::Device;
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).refuse_at(1).build();
    /// let queue = device.create_queue()?;
    /// assert!(device.submit(&queue, &[]).is_ok());
    /// assert!(device.submit(&queue, &[]).is_err());
    /// assert_eq!(device.submissions(), 2);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn submissions(&self) -> u64 {
        self.schedule.lock().submissions()
    }

    /// What was done so far, in the order in which it was done; empty unless [asked
    /// for](SimulatedDeviceBuilder::trace).
    ///
    /// ```
    /// use backend_api::Device;
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(1).trace(true).build();
    /// let queue = device.create_queue()?;
    /// let ticket = device.submit(&queue, &[])?;
    /// assert!(device.trace().is_empty(), "its time has not come");
    /// device.wait(ticket)?;
    /// assert_eq!(device.trace()[0].ticket, ticket);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn trace(&self) -> Vec<SimulatedOperation> {
        self.schedule.lock().trace().to_vec()
    }

    /// How many bytes of device memory and host memory were [wiped](Device::wipe_on_release) and given back
    /// so far.
    ///
    /// ```
    /// use backend_api::{Commit, Device};
    /// use backend_host::SimulatedDevice;
    /// let device = SimulatedDevice::builder(7).build();
    /// device.release(device.allocate(100, Commit::Lazy)?);
    /// assert_eq!(device.wiped_bytes(), 0);
    /// device.wipe_on_release()?;
    /// device.release(device.allocate(100, Commit::Lazy)?);
    /// assert_eq!(device.wiped_bytes(), 100);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn wiped_bytes(&self) -> u64 {
        self.pinning.wiping().bytes()
    }

    /// Changes the schedule, then tells those who wait, when no lock is held any more.
    fn pass<T>(&self, change: impl FnOnce(&mut Schedule) -> T) -> T {
        let mut schedule = self.schedule.lock();
        let result = change(&mut schedule);
        let wakers = schedule.take_due_wakers();
        drop(schedule);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.on(&self.info))
    }

    /// Refuses everything once the device is lost.
    fn check_alive(&self, operation: &'static str) -> Result<()> {
        if self.schedule.lock().is_lost() { Err(lost(operation).on(&self.info)) } else { Ok(()) }
    }

    fn copy(&self, forced: Option<Route>, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        let cost_ns = self.routes.cost_ns(forced, transfers);
        self.start_after(cost_ns, "submit", queue, |entries| Work::copies(entries, transfers))
    }

    fn start(
        &self,
        operation: &'static str,
        queue: &QueueHandle,
        work: impl FnOnce(&Entries<Ram, Timeline>) -> Result<Work<Ram>>,
    ) -> Result<Ticket> {
        self.start_after(0, operation, queue, work)
    }

    /// Takes work in that costs so much beside its latency and its bytes.
    fn start_after(
        &self,
        cost_ns: u64,
        operation: &'static str,
        queue: &QueueHandle,
        work: impl FnOnce(&Entries<Ram, Timeline>) -> Result<Work<Ram>>,
    ) -> Result<Ticket> {
        self.check_alive(operation)?;
        let entries = self.names.read();
        let started = entries.queue(operation, queue.id()).and_then(|timeline| {
            let work = work(&entries)?;
            // The registry stays locked until the work is in its queue, as for every device; wakers run
            // afterwards.
            Ok(self.schedule.lock().submit(operation, timeline, work, cost_ns))
        });
        drop(entries);
        // A refused submission may have had to let time pass.
        self.pass(|_| ());
        self.named(started.flatten())
    }

    fn timeline(&self, operation: &'static str, ticket: Ticket) -> Result<Option<Arc<Timeline>>> {
        let entries = self.names.read();
        let found = entries.queue_of(operation, ticket).map(|found| match found {
            Found::Live(timeline) => Some(Arc::clone(timeline)),
            Found::Ended => None,
        });
        drop(entries);
        self.named(found)
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
        &self.info
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
        self.names.add_queue(queue.id(), timeline);
        Ok(queue)
    }

    fn release_queue(&self, queue: QueueHandle) {
        self.pass(|schedule| schedule.drain(queue.id()));
        self.names.remove_queue(queue.id(), |timeline| timeline.newest().value);
        self.pass(|schedule| schedule.end_queue(queue.id()));
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        self.check_alive("allocate")?;
        let ram = self.named(Ram::new(&self.capacity, bytes, commit))?;
        self.schedule.lock().litter(&ram);
        Ok(self.names.add_buffer(Arc::new(ram)))
    }

    fn release(&self, buffer: BufferHandle) {
        if let Some(memory) = self.names.remove_buffer(buffer.id()) {
            self.pass(|schedule| schedule.leave(Arc::as_ptr(&memory).cast()));
        }
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.check_alive("allocate_host")?;
        let piece = self.named(self.pinning.allocate(bytes, kind))?;
        // SAFETY: new memory, zeroed, that nobody else knows. It lives as long as its entry and any work that
        // touches it.
        Ok(unsafe { self.names.add_host(piece) })
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
        let piece = self.named(unsafe { self.pinning.import(address, bytes, kind) })?;
        // SAFETY: as the caller promises.
        Ok(unsafe { self.names.add_host(piece) })
    }

    fn wipe_on_release(&self) -> Result<()> {
        self.pinning.wiping().start();
        Ok(())
    }

    fn release_host(&self, host: HostAllocation) {
        if let Some(piece) = self.names.remove_host(host.id()) {
            self.pass(|schedule| schedule.leave(Arc::as_ptr(&piece).cast()));
        }
    }

    fn submit(&self, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        self.copy(None, queue, transfers)
    }

    fn routes(&self) -> &[Route] {
        self.routes.names()
    }

    fn submit_by(&self, route: Route, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        self.copy(Some(route), queue, transfers)
    }

    fn set_routing(&self, routing: Routing) {
        self.routes.set_routing(routing);
    }

    fn routing(&self) -> Routing {
        self.routes.routing()
    }

    fn fill(&self, queue: &QueueHandle, fill: &Fill<'_>) -> Result<Ticket> {
        self.start("fill", queue, |entries| Work::fill(entries, fill))
    }

    fn search(&self, queue: &QueueHandle, search: &Search<'_>) -> Result<Ticket> {
        self.start("search", queue, |entries| Work::search(entries, search))
    }

    fn gather(&self, queue: &QueueHandle, gather: &Gather<'_>) -> Result<Ticket> {
        self.start("gather", queue, |entries| Work::gather(entries, gather))
    }

    fn scatter(&self, queue: &QueueHandle, scatter: &Scatter<'_>) -> Result<Ticket> {
        self.start("scatter", queue, |entries| Work::scatter(entries, scatter))
    }

    fn compute(&self, queue: &QueueHandle, compute: &Compute<'_>) -> Result<Ticket> {
        self.start("compute", queue, |entries| Work::compute(entries, compute))
    }

    fn poll(&self, ticket: Ticket) -> Result<Progress> {
        let Some(timeline) = self.timeline("poll", ticket)? else { return Ok(Progress::Done) };
        if matches!(timeline.poll(ticket.value), Ok(Progress::Pending)) {
            self.pass(Schedule::poll_step);
        }
        self.named(timeline.poll(ticket.value))
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        let Some(timeline) = self.timeline("wait", ticket)? else { return Ok(()) };
        self.pass(|schedule| schedule.run_until_done(ticket));
        self.named(timeline.poll(ticket.value)).map(drop)
    }

    fn wake(&self, ticket: Ticket, waker: Waker) {
        if self.timeline("wake", ticket).ok().flatten().is_none() {
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
        const OPERATION: &str = "order_after";
        self.check_alive(OPERATION)?;
        let entries = self.names.read();
        let result = entries.queue(OPERATION, queue.id()).and_then(|later| {
            if let Found::Live(before) = entries.queue_of(OPERATION, ticket)? {
                if ticket.value > before.newest().value {
                    return Err(Error::new(ErrorKind::UnknownHandle, OPERATION)
                        .with_detail(format!("ticket {} was never given", ticket.value)));
                }
                self.schedule.lock().order_after(later.queue(), ticket);
            }
            Ok(())
        });
        drop(entries);
        self.named(result)
    }
}
