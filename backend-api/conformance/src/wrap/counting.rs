//! [`Counting`], a wrapper for tests that counts the calls that a program makes to a device.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::task::Waker;

use parking_lot::Mutex;

use backend_api::{
    BufferHandle, BufferId, Commit, Device, HostAllocation, HostId, HostMemory, QueueHandle, QueueProgress,
    Request, Result, Ticket, Transfer,
};

use backend_api::forward;

/// Counts of the work that a device's queues have accepted.
///
/// A call that the device refuses counts only in [`refused`](Self::refused).
///
/// ```
/// use vmarray_conformance::wrap::{Counting, WorkCounts};
/// # use {backend_api::{Commit, DeviceBuffer, Fill, Queue}, backend_host::HostDevice, std::sync::Arc};
/// # let device = Arc::new(Counting::new(HostDevice::new(1 << 20)?));
/// # let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 64, Commit::Lazy)?);
/// queue.submit(&Fill { to: memory.at(0), bytes: 64, pattern: &[0] })?;
/// let mut expected = WorkCounts::default();
/// (expected.fills, expected.fill_bytes) = (1, 64);
/// assert_eq!(device.counts().work, expected, "one fill and nothing else");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkCounts {
    /// Number of copy requests; each request has any number of copies.
    pub submits: u64,
    /// Number of copies from the host to the device.
    pub uploads: u64,
    /// Bytes copied from the host to the device.
    pub upload_bytes: u64,
    /// Number of copies from the device to the host.
    pub downloads: u64,
    /// Bytes copied from the device to the host.
    pub download_bytes: u64,
    /// Number of copies within the device.
    pub internals: u64,
    /// Bytes copied within the device.
    pub internal_bytes: u64,
    /// Number of fill requests.
    pub fills: u64,
    /// Bytes that fills wrote.
    pub fill_bytes: u64,
    /// Number of search requests.
    pub searches: u64,
    /// Bytes of the elements that searches read, including unsearched fields.
    pub search_bytes: u64,
    /// Number of compute requests.
    pub computes: u64,
    /// Bytes of the elements of all sources (arrays) of the compute requests.
    pub compute_bytes: u64,
    /// Number of kernel launches.
    pub launches: u64,
    /// Bytes of the elements of all views of the launches.
    pub launch_bytes: u64,
    /// Number of gather requests.
    pub gathers: u64,
    /// Bytes of the values that gathers copied.
    pub gather_bytes: u64,
    /// Number of scatter requests.
    pub scatters: u64,
    /// Bytes of the values that scatters copied.
    pub scatter_bytes: u64,
    /// Number of calls of [`order_after`](Device::order_after).
    pub orders: u64,
    /// Number of calls of [`poll`](Device::poll).
    pub polls: u64,
    /// Number of calls of [`wait`](Device::wait).
    pub waits: u64,
    /// Number of calls of [`wake`](Device::wake).
    pub wakes: u64,
    /// Number of submissions and calls of [`order_after`](Device::order_after) that the device refused.
    pub refused: u64,
    /// Number of polls and waits that returned an error.
    pub failed: u64,
}

impl WorkCounts {
    /// Counts an accepted request.
    fn add(&mut self, request: &Request<'_>) {
        let (calls, moved, bytes) = match request {
            Request::Copies(transfers, _) => {
                self.submits += 1;
                for transfer in *transfers {
                    let (pieces, bytes) = match transfer {
                        Transfer::Upload { .. } => (&mut self.uploads, &mut self.upload_bytes),
                        Transfer::Download { .. } => (&mut self.downloads, &mut self.download_bytes),
                        Transfer::Internal { .. } => (&mut self.internals, &mut self.internal_bytes),
                    };
                    *pieces += 1;
                    *bytes += transfer.bytes();
                }
                return;
            }
            Request::Fill(fill) => (&mut self.fills, &mut self.fill_bytes, fill.bytes),
            Request::Search(search) => {
                let bytes = search.elements.count * search.elements.stride;
                (&mut self.searches, &mut self.search_bytes, bytes)
            }
            Request::Gather(gather) => {
                (&mut self.gathers, &mut self.gather_bytes, gather.count * gather.elements.stride())
            }
            Request::Scatter(scatter) => {
                (&mut self.scatters, &mut self.scatter_bytes, scatter.count * scatter.elements.stride())
            }
            Request::Compute(compute) => (&mut self.computes, &mut self.compute_bytes, compute.bytes()),
            Request::Launch(launch) => (&mut self.launches, &mut self.launch_bytes, launch.bytes()),
        };
        *calls += 1;
        *moved += bytes;
    }
}

/// Counts of a device's calls and of its allocated memory.
///
/// ```
/// use backend_api::{Commit, Device};
/// use vmarray_conformance::wrap::Counting;
/// let device = Counting::new(backend_host::HostDevice::new(1000)?);
/// let buffer = device.allocate(600, Commit::Lazy)?;
/// device.release(buffer);
/// device.allocate(100, Commit::Lazy)?;
/// assert!(device.allocate(2000, Commit::Lazy).is_err());
/// let counts = device.counts();
/// assert_eq!((counts.allocations, counts.allocated_bytes, counts.refused), (2, 700, 1));
/// assert_eq!(counts.held_bytes, 100);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Work of all queues together.
    pub work: WorkCounts,
    /// Number of created queues.
    pub queues: u64,
    /// Number of allocations of device memory.
    pub allocations: u64,
    /// Bytes of device memory allocated so far, including extensions of buffers.
    pub allocated_bytes: u64,
    /// Number of allocations of host memory.
    pub host_allocations: u64,
    /// Bytes of host memory allocated so far.
    pub host_allocated_bytes: u64,
    /// Number of requests that [`prepare`](Device::prepare) has prepared.
    pub preparations: u64,
    /// Number of imports of host memory.
    pub imports: u64,
    /// Number of calls to allocate or import memory, or to create a queue, that the device refused.
    pub refused: u64,
    /// Bytes of device memory that are allocated now. [`Counting::reset`] does not change this number.
    pub held_bytes: u64,
    /// Bytes of host memory allocated or imported now. [`Counting::reset`] does not change this number.
    pub host_held_bytes: u64,
}

/// A device that forwards all calls to an inner device, and counts calls, copies, kernels and bytes.
///
/// Each call takes one lock for a moment. The device counts a call when the call returns, so a
/// [`wait`](Device::wait) that still blocks is not counted.
///
/// ```
/// # use std::sync::Arc;
/// use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};
/// use vmarray_conformance::wrap::Counting;
/// let device = Arc::new(Counting::new(backend_host::HostDevice::new(1 << 20)?));
/// let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 100, Commit::Lazy)?);
/// let host = HostBuffer::new(&device, 100, HostMemory::Pageable)?;
/// assert_eq!(device.reset().allocations, 1);
/// let piece = |at| Transfer::Upload { from: host.at(at), to: memory.at(at), bytes: 30 };
/// queue.submit(&[piece(0), piece(50)])?;
/// device.inner().create_queue()?; // Calls of the inner device are not counted.
/// let counts = device.counts();
/// assert_eq!((counts.work.submits, counts.work.uploads, counts.work.upload_bytes), (1, 2, 60));
/// assert_eq!((counts.allocations, counts.held_bytes, counts.queues), (0, 100, 0));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct Counting<D> {
    inner: D,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counts: Counts,
    buffers: HashMap<BufferId, u64>,
    hosts: HashMap<HostId, u64>,
}

impl<D: Device> Counting<D> {
    /// Wraps a device. All counts are zero.
    #[must_use]
    pub fn new(inner: D) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Returns the inner device.
    #[must_use]
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Returns the counts since the last reset.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Resets the counts to zero; returns the former counts.
    pub fn reset(&self) -> Counts {
        let mut state = self.state.lock();
        let former = state.counts;
        let Counts { held_bytes, host_held_bytes, .. } = former;
        state.counts = Counts { held_bytes, host_held_bytes, ..Counts::default() };
        former
    }

    fn submitted<T>(&self, result: Result<T>, add: impl FnOnce(&mut WorkCounts)) -> Result<T> {
        let work = &mut self.state.lock().counts.work;
        if result.is_ok() {
            add(work)
        } else {
            work.refused += 1
        }
        result
    }

    fn asked<T>(&self, result: Result<T>, add: impl FnOnce(&mut WorkCounts)) -> Result<T> {
        let work = &mut self.state.lock().counts.work;
        add(work);
        work.failed += u64::from(result.is_err());
        result
    }

    /// Counts the result of a call that allocates memory or creates a queue: calls `add` if it succeeded,
    /// else counts it as refused.
    fn granted<T>(&self, result: Result<T>, add: impl FnOnce(&mut State, &T)) -> Result<T> {
        let mut state = self.state.lock();
        match &result {
            Ok(given) => add(&mut state, given),
            Err(_) => state.counts.refused += 1,
        }
        result
    }
}

impl State {
    fn hold(&mut self, buffer: &BufferHandle, bytes: u64) {
        self.buffers.insert(buffer.id(), bytes);
        self.counts.allocations += 1;
        self.counts.allocated_bytes += bytes;
        self.counts.held_bytes += bytes;
    }

    fn hold_host(&mut self, host: HostId, bytes: usize) {
        self.hosts.insert(host, bytes as u64);
        self.counts.host_held_bytes += bytes as u64;
    }
}

// SAFETY: every call is forwarded to the inner device, before or after it is counted; so the promises of
// that device hold for this one.
unsafe impl<D: Device> Device for Counting<D> {
    forward! { self => self.inner;
        info memory release_queue routes routing set_routing wipe_on_release sync kernel_facts
        reaches
    }

    fn create_queue(&self) -> Result<QueueHandle> {
        self.granted(self.inner.create_queue(), |state, _| state.counts.queues += 1)
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        self.granted(self.inner.allocate(bytes, commit), |state, buffer| state.hold(buffer, bytes))
    }

    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        self.granted(self.inner.allocate_extensible(bytes, most, commit), |state, buffer| {
            state.hold(buffer, bytes);
        })
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, commit: Commit) -> Result<()> {
        self.granted(self.inner.extend(buffer, bytes, commit), |state, ()| {
            // If threads extend the buffer concurrently, the longest request determines the buffer's length.
            let held = state.buffers.entry(buffer.id()).or_default();
            let more = bytes.saturating_sub(*held);
            *held += more;
            state.counts.allocated_bytes += more;
            state.counts.held_bytes += more;
        })
    }

    fn release(&self, buffer: BufferHandle) {
        let id = buffer.id();
        self.inner.release(buffer);
        let mut state = self.state.lock();
        let bytes = state.buffers.remove(&id).unwrap_or(0);
        state.counts.held_bytes -= bytes;
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.granted(self.inner.allocate_host(bytes, kind), |state, allocation| {
            state.counts.host_allocations += 1;
            state.counts.host_allocated_bytes += bytes as u64;
            state.hold_host(allocation.id(), bytes);
        })
    }

    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        // SAFETY: guaranteed by the caller.
        let imported = unsafe { self.inner.import_host(address, bytes, kind) };
        self.granted(imported, |state, allocation| {
            state.counts.imports += 1;
            state.hold_host(allocation.id(), bytes);
        })
    }

    fn release_host(&self, host: HostAllocation) {
        let id = host.id();
        self.inner.release_host(host);
        let mut state = self.state.lock();
        let bytes = state.hosts.remove(&id).unwrap_or(0);
        state.counts.host_held_bytes -= bytes;
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        self.submitted(self.inner.submit(queue, request), |work| work.add(request))
    }

    fn prepare(&self, requests: &[Request<'_>]) -> Result<()> {
        let prepared = self.inner.prepare(requests);
        self.granted(prepared, |state, ()| state.counts.preparations += requests.len() as u64)
    }

    fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        self.asked(self.inner.poll(ticket), |work| work.polls += 1)
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.asked(self.inner.wait(ticket), |work| work.waits += 1)
    }

    fn wake(&self, ticket: Ticket, waker: Waker) {
        self.state.lock().counts.work.wakes += 1;
        self.inner.wake(ticket, waker);
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        self.submitted(self.inner.order_after(queue, ticket), |work| work.orders += 1)
    }
}
