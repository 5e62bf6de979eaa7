//! [`Mirrored`], a device that stores all of its data on each of several devices (its members).

mod core;
mod host;
mod member;
mod memory;
mod pending_requests;
mod rebuild;
mod state;
mod submit;
mod wakers;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Waker;

use parking_lot::{Condvar, Mutex};

use backend_api::kernel::KernelFacts;
use backend_api::{
    BufferHandle, Commit, Device, DeviceInfo, Error, ErrorKind, Extents, HostAllocation, HostMemory, Launch,
    MemoryStatus, QueueHandle, QueueProgress, Request, Result, Route, Routing, Ticket,
};
use vmarray_support::links::{has_twice, is_same};

use core::{MirrorCore, links_to};
use member::{Member, MemberStatus};
use state::{Length, MirrorState};
use wakers::DeferringCall;

/// A mirror: a device that consists of several devices and stores all data on each of them. All data survives
/// if at least one device works.
///
/// - The mirror sends **writes** to all devices; a write is done when all devices have executed it. It sends
///   **reads** to the least busy device.
/// - **Computations and launches that write** run on all devices if all devices compute the same bytes.
///   Devices of one model do. An exception are kernels with atomics or group memory, whose results can depend
///   on the order of threads. Otherwise one device runs the work; the call waits, and copies the written
///   bytes to the other devices.
/// - The mirror no longer uses **a lost device**. Another device repeats its unfinished reads; the other
///   devices have executed the writes anyway. No call or ticket fails because of the loss, with one
///   exception: work that ran on one device fails if this device is lost before its results are copied to the
///   other devices. When the last device is lost, every call fails with [`Lost`](ErrorKind::Lost).
/// - **[`rebuild`](Self::rebuild)** replaces a lost device, and **[`replace`](Self::replace)** a working one,
///   while the mirror is used.
///
/// The devices' own queues order most requests. They do not order a request that changes host memory that
/// work in flight uses, or device memory that work in flight reads on only one device. The thread that
/// submits such a request waits for the work in flight. Unspecified contents (memory that was never written,
/// targets of failed work) may differ between devices, and therefore between reads.
///
/// Cost: each write uses the buses of all devices, and each byte takes memory on all devices. A submission
/// costs a lock and a search in the list of work in flight, in addition to the submission to each device. All
/// devices can use the mirror's host memory, which is page-locked if one of the devices can lock it.
///
/// ```
/// use std::sync::Arc;
/// use vmarray_conformance::wrap::Faulty;
/// use vmarray_redundancy::{Mirrored, Replica, ReplicaState};
/// use backend_api::{Commit, Device, DeviceBuffer, Fill, HostBuffer, HostMemory, Queue, Transfer};
/// # use backend_host::HostDevice;
/// let devices = [(); 2].map(|()| Arc::new(Faulty::new(HostDevice::new(1 << 20).unwrap())));
/// let mirror = Arc::new(Mirrored::new(devices.clone().map(|device| device as Arc<dyn Device>))?);
/// let (queue, memory) = (Queue::new(&mirror)?, DeviceBuffer::new(&mirror, 1000, Commit::Lazy)?);
/// mirror.wait(queue.submit(&Fill { to: memory.at(0), bytes: 1000, pattern: b"kept " })?)?;
///
/// devices[0].lose();
/// let host = HostBuffer::new(&mirror, 1000, HostMemory::Pageable)?;
/// mirror.wait(queue.submit(&[Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 1000 }])?)?;
/// let mut bytes = [0; 5];
/// host.read(995, &mut bytes);
/// assert_eq!(&bytes, b"kept ");
/// assert!(mirror.is_degraded());
///
/// let spare = Arc::new(HostDevice::new(1 << 20)?);
/// let lost = mirror.first_lost().unwrap();
/// assert!(mirror.has_lost(&lost));
/// mirror.rebuild(&lost, spare.clone())?;
/// assert!(!mirror.is_degraded());
/// let replicas: Vec<Replica> = mirror.replicas();
/// assert_eq!((&replicas[0].device, replicas[0].state), (&spare.info().to_string(), ReplicaState::Current));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct Mirrored {
    core: Arc<MirrorCore>,
}

/// The name and the state of one device of a mirror.
///
/// ```
/// use std::sync::Arc;
/// use backend_api::Device;
/// use vmarray_redundancy::{Mirrored, Replica, ReplicaState};
/// let device: Arc<dyn Device> = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// let replicas = Mirrored::new([device.clone()])?.replicas();
/// assert_eq!(replicas[0], Replica::of(&*device));
/// assert_eq!(replicas.len(), 1);
/// assert_eq!((&replicas[0].device, replicas[0].state), (&device.info().to_string(), ReplicaState::Current));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replica {
    /// Name of the device.
    pub device: String,
    /// State of the device's copy of the data.
    pub state: ReplicaState,
}

impl Replica {
    /// Returns the state of a device without a mirror: `Lost` if a query of its memory fails, else `Current`.
    #[must_use]
    pub fn of(device: &dyn Device) -> Self {
        let is_lost = device.memory().is_err_and(|error| error.kind() == ErrorKind::Lost);
        let state = if is_lost { ReplicaState::Lost } else { ReplicaState::Current };
        Self { device: device.info().to_string(), state }
    }
}

/// State of one device's copy of a mirror's data.
///
/// ```
/// use vmarray_redundancy::ReplicaState;
/// assert_ne!(ReplicaState::Rebuilding { missing_bytes: 0 }, ReplicaState::Current);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ReplicaState {
    /// The device has all data.
    Current,
    /// The device still lacks `missing_bytes` bytes, which `rebuild` or `replace` copies.
    Rebuilding {
        /// The number of missing bytes.
        missing_bytes: u64,
    },
    /// The device is lost and has no data.
    Lost,
}

impl Mirrored {
    /// Creates a mirror that stores all data on each of `devices`.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the list is empty or has a device twice; an error
    /// of a device if it cannot create a queue.
    pub fn new(devices: impl IntoIterator<Item = Arc<dyn Device>>) -> Result<Self> {
        let devices: Vec<_> = devices.into_iter().collect();
        if devices.is_empty() || has_twice(&devices) {
            return Err(Error::new(ErrorKind::InvalidArgument, "mirror")
                .with_detail("the list of devices is empty, or has a device twice")
                .with_advice("pass at least one device, and each device once"));
        }
        let info = info(&devices);
        let routes = devices[0].routes().to_vec();
        let members =
            devices.into_iter().zip(0..).map(|(device, id)| Member::new(id, device, MemberStatus::Current));
        let mut members = members.collect::<Result<Vec<_>>>()?;
        let all: Vec<_> = members.iter().map(|member| (member.id, Arc::clone(&member.device))).collect();
        members.iter_mut().for_each(|member| member.links = links_to(&all, &member.device));
        let next_member = AtomicU64::new(members.len() as u64);
        let core = MirrorCore {
            info,
            routes,
            state: Mutex::new(MirrorState::new(members)),
            opened: Condvar::new(),
            setup: Mutex::new(()),
            rebuilding: Mutex::new(()),
            next_member,
            own: Mutex::default(),
        };
        Ok(Self { core: Arc::new(core) })
    }

    /// Returns the name and the state of each device of the mirror.
    #[must_use]
    pub fn replicas(&self) -> Vec<Replica> {
        let state = self.core.lock();
        let replica = |member: &Member| {
            let missing_bytes = member.missing.iter().map(|(_, range)| range.end - range.start).sum();
            let state = match member.status {
                MemberStatus::Current => ReplicaState::Current,
                MemberStatus::Rebuilding => ReplicaState::Rebuilding { missing_bytes },
                MemberStatus::Lost => ReplicaState::Lost,
                MemberStatus::Leaving => return None,
            };
            Some(Replica { device: member.device.info().to_string(), state })
        };
        state.members.iter().filter_map(replica).collect()
    }

    /// Returns the devices that are not lost.
    #[must_use]
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.core.lock().devices().into_iter().map(|(_, device)| device).collect()
    }

    /// Returns true if a device of the mirror is lost or still lacks data. The mirror detects a loss only
    /// when a call of the device fails, so it does not notice the loss of an unused device.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.core.lock().members.iter().any(|member| !member.is_current())
    }

    /// Returns the first lost device, if any.
    #[must_use]
    pub fn first_lost(&self) -> Option<Arc<dyn Device>> {
        let state = self.core.lock();
        let lost = state.members.iter().find(|member| member.status == MemberStatus::Lost);
        lost.map(|member| Arc::clone(&member.device))
    }

    /// Returns true if `device` belongs to the mirror and is lost.
    #[must_use]
    pub fn has_lost(&self, device: &Arc<dyn Device>) -> bool {
        let is_it = |member: &Member| member.status == MemberStatus::Lost && is_same(&member.device, device);
        self.core.lock().members.iter().any(is_it)
    }
}

/// Combines the properties of several devices to the properties of their mirror.
fn info(devices: &[Arc<dyn Device>]) -> DeviceInfo {
    let infos: Vec<&DeviceInfo> = devices.iter().map(|device| device.info()).collect();
    let listed = |of: fn(&DeviceInfo) -> &str| infos.iter().map(|info| of(info)).collect::<Vec<_>>();
    let name = listed(|info| &info.name).join(" and ");
    let identity = format!("mirror:{}", listed(|info| &info.identity).join("+"));
    let mut info = DeviceInfo::new("mirror", &name, infos[0].kind, &identity);
    info.vendor.clone_from(&infos[0].vendor);
    info.total_bytes = infos.iter().map(|info| info.total_bytes).min().unwrap_or(0);
    let largest = infos.iter().map(|info| info.largest_allocation_bytes).min();
    info.largest_allocation_bytes = largest.unwrap_or(0);
    info.copy_engines = infos[0].copy_engines;
    info.forward_progress = infos.iter().all(|info| info.forward_progress);
    info.numa_node = infos[0].numa_node.filter(|node| infos.iter().all(|info| info.numa_node == Some(*node)));
    info
}

// SAFETY: each device keeps the contract for its part of the work. A ticket ends when the parts of all
// devices are over, including lost ones. All devices release memory before the mirror returns it to its
// owner, and the mirror's own allocations outlive the devices' use of them. Names are the mirror's own,
// and are looked up for each device; an unknown name is refused.
unsafe impl Device for Mirrored {
    fn info(&self) -> &DeviceInfo {
        &self.core.info
    }

    fn memory(&self) -> Result<MemoryStatus> {
        let least = Mutex::new(MemoryStatus::new(u64::MAX, u64::MAX, u64::MAX));
        self.core.on_each("memory", |member| {
            let status = member.device.memory()?;
            let mut least = least.lock();
            *least = MemoryStatus::new(
                least.total_bytes.min(status.total_bytes),
                least.free_bytes.min(status.free_bytes),
                least.usable_bytes.min(status.usable_bytes),
            );
            Ok(())
        })?;
        Ok(least.into_inner())
    }

    fn create_queue(&self) -> Result<QueueHandle> {
        self.core.create_queue()
    }

    fn release_queue(&self, queue: QueueHandle) {
        self.core.release_queue(&queue);
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        self.core.allocate(Length { bytes, most: None }, commit)
    }

    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        self.core.allocate(Length { bytes, most: Some(most) }, commit)
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, commit: Commit) -> Result<()> {
        self.core.extend(buffer, bytes, commit)
    }

    fn release(&self, buffer: BufferHandle) {
        self.core.release(&buffer);
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.core.allocate_host(bytes, kind)
    }

    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.core.import_host("import_host", address, bytes, kind) }
    }

    fn release_host(&self, host: HostAllocation) {
        self.core.release_host(host);
    }

    fn wipe_on_release(&self) -> Result<()> {
        self.core.on_each("wipe_on_release", |member| member.device.wipe_on_release())?;
        self.core.own.lock().wipes = true;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.devices().iter().try_for_each(|device| device.sync())
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        self.core.start(queue, request)
    }

    fn routes(&self) -> &[Route] {
        &self.core.routes
    }

    fn set_routing(&self, routing: Routing) {
        self.core.lock().members.iter().for_each(|member| member.device.set_routing(routing));
    }

    fn routing(&self) -> Routing {
        self.core
            .lock()
            .members
            .iter()
            .find(|member| member.is_there())
            .map_or_else(Routing::new, |member| member.device.routing())
    }

    fn prepare(&self, requests: &[Request<'_>]) -> Result<()> {
        for request in requests {
            request.check(&*self.core.lock()).map_err(|error| error.on(&self.core.info))?;
            self.core.on_each("prepare", |member| member.prepare(request))?;
        }
        Ok(())
    }

    fn kernel_facts(&self, launch: &Launch<'_>) -> Result<KernelFacts> {
        let _call = DeferringCall::begin();
        let state = self.core.lock();
        state.check_launch(launch).map_err(|error| error.on(&self.core.info))?;
        let first = state.members.iter().find(|member| member.is_current());
        let Some(member) = first else { return Err(state.all_lost("kernel_facts")) };
        member.with_launch(launch, None, |launch| member.device.kernel_facts(launch))
    }

    fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        self.core.poll(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.core.wait(ticket)
    }

    fn wake(&self, ticket: Ticket, waker: Waker) {
        self.core.wake(ticket, waker);
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        self.core.order_after(queue, ticket)
    }
}
