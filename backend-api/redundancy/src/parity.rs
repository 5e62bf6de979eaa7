//! Parity over several devices: if a device is lost, its data is reconstructed from the other devices.

mod copies;
mod degraded;
mod locks;
mod member_queue;
mod memory;
mod parity_update;
mod rebuild;
mod requests;
mod scratch;
mod stripe_layout;
mod worker;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::several::member::{Member, MemberStatus, PlaceTranslation};
use super::several::wakers::{DeferringCall, Woken};
use super::{Replica, ReplicaState};
use backend_api::kernel::KernelFacts;
use backend_api::{
    BufferHandle, Commit, Device, DeviceInfo, Error, ErrorKind, Extents, HostAllocation, HostMemory, Launch,
    MemoryStatus, QueueHandle, QueueProgress, Request, Result, Route, Routing, Ticket,
};
use vmarray_support::links::has_twice;

use locks::Locks;
use member_queue::MemberQueue;
use scratch::Scratches;
use stripe_layout::StripeLayout;
use worker::MemberWorker;

/// A group of at least three devices that store parity for each other. If one device is lost, its data is
/// reconstructed from the other devices. With `n` devices of equal memory, one `n`th of the memory is parity.
///
/// A group makes a [`ParityMember`] of each device, which programs use instead of the device. *Parity* is the
/// XOR of the data of all members except one; the device of the excepted member stores it. A member's data is
/// on its own device. The parity of this data is distributed over the other devices.
///
/// - **Reads** go to the member's own device, as if there were no group.
/// - **Writes** of all kinds are executed by a thread of the member, in the order of submission. It reads
///   the old data, lets the device write, and adds the difference to the parities. A ticket is done when the
///   parities are up to date. A written byte therefore costs about four copies: a read and a write of the
///   data, and of the parity. The results of launches and computations are read once more. The thread needs
///   as much host memory as the request writes, or 2 MiB if it can split the request.
/// - **A lost device** is no longer used. Its member's thread executes pending and later requests with
///   reconstructed data. Searches, sums and launches run on another device, over reconstructed memory there.
///   No call or ticket fails because of the loss, with one exception: the other device may have too little
///   memory, or may not support the request.
/// - **[`rebuild`](Self::rebuild)** replaces a lost device by a spare, while the group is in use.
/// - **If two devices are lost**, their data is lost. The other devices continue without parity.
///
/// Data of finished tickets survives the loss of one device at any moment.
///
/// Buffers of different members share parity. If a member releases a buffer while buffers with the same
/// parity are in use, the memory is freed later, with those buffers, or reused by the next allocation of
/// about the same length. Only the member's own device can copy from and to the member's host memory.
///
/// ```
/// use std::sync::Arc;
/// use vmarray_conformance::wrap::Faulty;
/// use vmarray_redundancy::{ParityGroup, ReplicaState};
/// use backend_api::{Commit, Device, DeviceBuffer, Fill, HostBuffer, HostMemory, Queue, Transfer};
/// # use backend_host::HostDevice;
/// let devices = [(); 3].map(|()| Arc::new(Faulty::new(HostDevice::new(8 << 20).unwrap())));
/// let group = ParityGroup::new(devices.clone().map(|device| device as Arc<dyn Device>))?;
/// let one = group.members()[0].clone();
/// let (queue, memory) = (Queue::new(&one)?, DeviceBuffer::new(&one, 1000, Commit::Lazy)?);
/// one.wait(queue.submit(&Fill { to: memory.at(0), bytes: 1000, pattern: b"kept " })?)?;
///
/// devices[0].lose();
/// let host = HostBuffer::new(&one, 1000, HostMemory::Pageable)?;
/// one.wait(queue.submit(&[Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 1000 }])?)?;
/// let mut bytes = [0; 5];
/// host.read(995, &mut bytes);
/// assert_eq!(&bytes, b"kept ");
/// assert!(group.is_degraded() && group.has_contents(0));
///
/// let lost = group.first_lost().unwrap();
/// group.rebuild(&lost, Arc::new(HostDevice::new(8 << 20)?))?;
/// assert!(group.replicas().iter().all(|replica| replica.state == ReplicaState::Current));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct ParityGroup {
    members: Vec<Arc<ParityMember>>,
}

/// A device of a [`ParityGroup`]. Programs use it instead of the device that it wraps.
///
/// ```
/// use std::sync::Arc;
/// use backend_api::Device;
/// use vmarray_redundancy::ParityGroup;
/// # use backend_host::HostDevice;
/// let devices = [(); 3].map(|()| Arc::new(HostDevice::new(8 << 20).unwrap()) as Arc<dyn Device>);
/// let group = ParityGroup::new(devices)?;
/// let memory = group.members()[2].memory()?;
/// assert_eq!(memory.free_bytes, 8 << 20);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct ParityMember {
    worker: Arc<MemberWorker>,
    routes: Vec<Route>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Core {
    member_queues: Vec<MemberQueue>,
    rows: Mutex<StripeLayout>,
    locks: Locks,
    /// Held during the creation of queues and memory, and while a device joins.
    setup: Mutex<()>,
    /// Held by the single thread that rebuilds.
    rebuilding: Mutex<()>,
    next_member: AtomicU64,
    /// Host memory that bytes pass through; it also knows whether to wipe memory.
    scratches: Arc<Scratches>,
}

impl ParityGroup {
    /// Creates a group of these devices.
    ///
    /// Starts a thread for each device. It sleeps while the member has no writes.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the list has fewer than three devices, or a device
    /// twice; the devices' errors at the creation of a first queue; [`System`](ErrorKind::System) if a thread
    /// cannot start.
    pub fn new(devices: impl IntoIterator<Item = Arc<dyn Device>>) -> Result<Self> {
        let devices: Vec<_> = devices.into_iter().collect();
        if devices.len() < 3 || has_twice(&devices) {
            return Err(Error::new(ErrorKind::InvalidArgument, "parity")
                .with_detail("the list has fewer than three devices, or a device twice")
                .with_advice("pass at least three devices, and each device once"));
        }
        let about: Vec<_> =
            devices.iter().map(|device| (info(device.info()), device.routes().to_vec())).collect();
        let member_queues = devices
            .into_iter()
            .zip(0..)
            .map(|(device, id)| Ok(MemberQueue::new(Member::new(id, device, MemberStatus::Current)?)));
        let member_queues = member_queues.collect::<Result<Vec<_>>>()?;
        let core = Arc::new(Core {
            next_member: AtomicU64::new(member_queues.len() as u64),
            member_queues,
            rows: Mutex::default(),
            locks: Locks::default(),
            setup: Mutex::new(()),
            rebuilding: Mutex::new(()),
            scratches: Arc::default(),
        });
        let member = |(at, (info, routes)): (usize, (DeviceInfo, Vec<Route>))| {
            let worker = Arc::new(MemberWorker { core: Arc::clone(&core), at, info });
            let work = {
                let worker = Arc::clone(&worker);
                move || worker.work()
            };
            let refused = |error: std::io::Error| {
                Error::new(ErrorKind::System, "parity").with_detail(error.to_string())
            };
            let thread =
                std::thread::Builder::new().name("vmarray-parity".into()).spawn(work).map_err(refused)?;
            Ok(Arc::new(ParityMember { worker, routes, thread: Mutex::new(Some(thread)) }))
        };
        let members = about.into_iter().enumerate().map(member).collect::<Result<Vec<_>>>()?;
        Ok(Self { members })
    }

    /// Returns the members, in the order of the devices. Programs use them instead of the devices.
    #[must_use]
    pub fn members(&self) -> &[Arc<ParityMember>] {
        &self.members
    }

    /// Returns the number of bytes of parity on each device, if each of `devices` members has `bytes` bytes
    /// of data.
    ///
    /// ```
    /// use vmarray_redundancy::ParityGroup;
    /// assert_eq!(ParityGroup::parity_bytes(3000 << 10, 4), 1000 << 10);
    /// ```
    #[must_use]
    pub fn parity_bytes(bytes: u64, devices: usize) -> u64 {
        if bytes == 0 || devices < 2 { 0 } else { stripe_layout::part_bytes(bytes, devices) }
    }

    fn core(&self) -> &Core {
        &self.members[0].worker.core
    }

    /// Returns the devices with the state of each.
    #[must_use]
    pub fn replicas(&self) -> Vec<Replica> {
        let replica = |member_queue: &MemberQueue| {
            let state = member_queue.lock();
            let device = state.member.device.info().to_string();
            let missing_bytes = state.missing_bytes;
            let state = match state.member.status {
                MemberStatus::Current => ReplicaState::Current,
                MemberStatus::Rebuilding => ReplicaState::Rebuilding { missing_bytes },
                MemberStatus::Leaving | MemberStatus::Lost => ReplicaState::Lost,
            };
            Replica { device, state }
        };
        self.core().member_queues.iter().map(replica).collect()
    }

    /// Returns true if a device is lost or still lacks data. The group learns of a loss from a device's
    /// answers, so it does not see the loss of an unused device.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.core().member_queues.iter().any(|member_queue| !member_queue.lock().member.is_current())
    }

    /// Returns true if the data of the member at index `member` can be read, from its own device or by
    /// reconstruction.
    ///
    /// # Panics
    /// If the group has no member with this index.
    #[must_use]
    pub fn has_contents(&self, member: usize) -> bool {
        let is_current = |member_queue: &MemberQueue| member_queue.lock().member.is_current();
        let member_queues = &self.core().member_queues;
        is_current(&member_queues[member])
            || member_queues.iter().filter(|member_queue| !is_current(member_queue)).count() == 1
    }

    /// Returns the first lost device, if any.
    #[must_use]
    pub fn first_lost(&self) -> Option<Arc<dyn Device>> {
        let lost = |member_queue: &MemberQueue| {
            let member = &member_queue.lock().member;
            (!member.is_there()).then(|| Arc::clone(&member.device))
        };
        self.core().member_queues.iter().find_map(lost)
    }

    /// Replaces a lost device by a spare, and reconstructs all data on it. The group can be used meanwhile:
    /// writes go to the spare from the beginning. A write to bytes that are being reconstructed waits, for at
    /// most 2 MiB. Returns when the spare has all data.
    ///
    /// Before it starts, waits until the work of the lost device is over. One thread rebuilds at a time;
    /// other callers wait. The rebuild reads all data of the other devices, through host memory.
    ///
    /// # Errors
    /// - [`InvalidArgument`](ErrorKind::InvalidArgument) if `lost` is not a lost device of the group, or if
    ///   the spare already belongs to the group.
    /// - The spare's error, such as [`OutOfMemory`](ErrorKind::OutOfMemory); the group is then unchanged.
    /// - [`Lost`](ErrorKind::Lost) if the spare is lost (try another spare), or if another device is lost,
    ///   too, so that the data cannot be reconstructed.
    pub fn rebuild(&self, lost: &Arc<dyn Device>, spare: Arc<dyn Device>) -> Result<()> {
        let _call = DeferringCall::begin();
        let worker: Vec<_> = self.members.iter().map(|member| Arc::clone(&member.worker)).collect();
        self.core().rebuild(&worker, lost, spare)
    }
}

/// Returns the facts of a device in a group.
fn info(of: &DeviceInfo) -> DeviceInfo {
    let mut info = of.clone();
    info.backend = "parity".into();
    info.name = format!("{} with parity", of.name);
    info.identity = format!("parity:{}", of.identity);
    info.aliases = Vec::new();
    info
}

impl Drop for ParityMember {
    fn drop(&mut self) {
        let member_queue = self.worker.member_queue();
        {
            let _call = DeferringCall::begin();
            self.worker.wait_for_all(|_| true);
        }
        let mut state = member_queue.lock();
        state.is_closed = true;
        state.work.notify_one();
        // Do not wait for a running waker: it may hold the last reference, or wait for a lock of the caller.
        while !state.is_waking && !state.has_ended {
            member_queue.done.wait(&mut state);
        }
        let has_ended = state.has_ended;
        drop(state);
        if has_ended && let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        self.worker.release_all();
    }
}

// SAFETY: the member's device keeps the contract for its requests. The thread's work consists of requests
// to devices, and of copies to and from host memory by `racy`, within checked ranges. A ticket ends when
// all of that is over. All devices release memory before the member returns it to its owner, and the
// member's own allocations outlive that. Names are the member's own; an unknown name is refused.
unsafe impl Device for ParityMember {
    fn info(&self) -> &DeviceInfo {
        &self.worker.info
    }

    fn memory(&self) -> Result<MemoryStatus> {
        let _call = DeferringCall::begin();
        let core = &self.worker.core;
        let own = self.worker.at;
        let mut refusal = None;
        // For a lost device, report the free memory of another device.
        for at in (0..core.member_queues.len()).map(|next| (own + next) % core.member_queues.len()) {
            let (id, device, is_there) = {
                let state = core.member_queues[at].lock();
                (state.member.id, Arc::clone(&state.member.device), state.member.is_there())
            };
            if !is_there {
                continue;
            }
            match device.memory() {
                Err(error) if error.kind() == ErrorKind::Lost => {
                    core.lose(at, id, &error);
                    refusal = Some(error);
                }
                other => return other,
            }
        }
        Err(refusal.unwrap_or_else(|| core.member_queues[own].lock().lost_error("memory")))
    }

    fn create_queue(&self) -> Result<QueueHandle> {
        self.worker.create_queue()
    }

    fn release_queue(&self, queue: QueueHandle) {
        self.worker.release_queue(queue.id());
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        self.worker.allocate(bytes, commit)
    }

    fn release(&self, buffer: BufferHandle) {
        self.worker.release(buffer.id());
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.worker.allocate_host(bytes, kind)
    }

    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.worker.import_host(address, bytes, kind) }
    }

    fn release_host(&self, host: HostAllocation) {
        self.worker.release_host(host.id());
    }

    fn wipe_on_release(&self) -> Result<()> {
        let _call = DeferringCall::begin();
        let core = &self.worker.core;
        let _setup = core.setup.lock();
        for position in 0..core.member_queues.len() {
            core.make(position, |device| device.wipe_on_release(), |_, ()| ())?;
        }
        core.scratches.wipes.store(true, Ordering::Release);
        Ok(())
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        self.worker.start(queue, request)
    }

    fn routes(&self) -> &[Route] {
        &self.routes
    }

    fn set_routing(&self, routing: Routing) {
        self.worker.member_queue().lock().member.device.set_routing(routing);
    }

    fn routing(&self) -> Routing {
        self.worker.member_queue().lock().member.device.routing()
    }

    fn prepare(&self, requests: &[Request<'_>]) -> Result<()> {
        let _call = DeferringCall::begin();
        let state = self.worker.member_queue().lock();
        for request in requests {
            request.check(&*state).map_err(|error| error.on(&self.worker.info))?;
            if state.member.is_current() {
                let prepared = state.member.prepare(request);
                prepared
                    .or_else(|error| if error.kind() == ErrorKind::Lost { Ok(()) } else { Err(error) })?;
            }
        }
        Ok(())
    }

    fn kernel_facts(&self, launch: &Launch<'_>) -> Result<KernelFacts> {
        let _call = DeferringCall::begin();
        let state = self.worker.member_queue().lock();
        state.check_launch(launch).map_err(|error| error.on(&self.worker.info))?;
        if !state.member.is_current() {
            return Err(state.lost_error("kernel_facts"));
        }
        state.member.with_launch(launch, None, |launch| state.member.device.kernel_facts(launch))
    }

    fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        self.worker.poll(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.worker.wait(ticket)
    }

    fn wake(&self, ticket: Ticket, waker: Waker) {
        self.worker.wake(ticket, waker);
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        self.worker.order_after(queue, ticket)
    }
}
