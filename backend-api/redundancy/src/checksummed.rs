//! [`Checksummed`], a device that stores checksums of its data, and verifies data that it copies to the host.

mod checks;
mod table;

use std::collections::{HashMap, HashSet};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use self::checks::{Checks, HostBytes, PendingVerification, WholeUnit, checksum};
use self::table::ChecksumTable;
use super::access_set::{AccessSet, Ranges};
use backend_api::{
    BufferHandle, BufferId, Commit, Device, DeviceSpan, Extents, HostAllocation, HostId, HostMemory,
    HostSpan, LaunchView, QueueHandle, QueueProgress, Request, Result, Ticket, Transfer, forward,
};

/// A device that verifies data by checksums when it copies the data to the host. If a bit has flipped in the
/// inner device's memory or on the bus, the read fails with [`Corrupted`](backend_api::ErrorKind::Corrupted),
/// instead of returning a wrong value.
///
/// Each buffer is divided into units of a given length. When a request copies a whole unit to or from the
/// host, the wrapper stores the unit's checksum (64 bits of XXH3). A copy of a whole unit within device
/// memory copies the checksum. A write to a part of a unit, or by the device itself (fills, kernels,
/// scatters), invalidates the checksum; the next copy of the whole unit computes a new one. The wrapper does
/// not verify reads by the device itself, or copies of parts of a unit.
///
/// - The wrapper reads the bytes of whole units on the host to compute checksums: for an upload before the
///   submission, for a download in the thread that observes its end, such as in [`poll`](Device::poll). The
///   bytes of a corrupted unit do arrive in host memory. The unit is valid again after the program has
///   written all of it.
/// - Host memory that is copied to the device must not change until the copy is done. A copy of memory to
///   which unordered work writes at the same time may fail as corrupted.
/// - A unit takes 16 bytes of RAM. A scatter reads its list of indices once more on the host. The device has
///   no [direct reads](Device::direct_reads).
/// - The device verifies the data of a read before it reports that a ticket is done: the ticket of the read,
///   a later ticket of the queue, or a ticket of a queue that was [ordered after](Device::order_after) it. A
///   poll of another device's ticket does not verify the data, and neither does the call of a waker.
/// - If another device writes to this device's memory, by kernels or copies, it must be wrapped in a
///   `Checksummed`, too. All `Checksummed` devices of a process share their tables of checksums, so such a
///   write invalidates the checksums.
///
/// ```
/// use std::sync::Arc;
/// use backend_api::{Commit, Device, DeviceBuffer, ErrorKind, HostBuffer, HostMemory, Queue, Transfer};
/// use vmarray_redundancy::Checksummed;
/// let card = Arc::new(backend_host::HostDevice::new(1 << 20)?);
/// // SAFETY: handles go back to their device, and the program waits for its copies.
/// let device = Arc::new(unsafe { Checksummed::new(Arc::clone(&card), 64) });
/// let (queue, memory) = (Queue::new(&device)?, DeviceBuffer::new(&device, 640, Commit::Lazy)?);
/// let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// device.wait(queue.submit(&[Transfer::Upload { from: host.at(0), to: memory.at(128), bytes: 64 }])?)?;
///
/// // Flip a bit in the GPU's memory, as a cosmic ray would.
/// let (own, bit) = (Queue::new(&card)?, HostBuffer::new(&card, 1, HostMemory::Pageable)?);
/// bit.write(0, &[1]);
/// card.wait(own.submit(&[Transfer::Upload { from: bit.at(0), to: memory.at(130), bytes: 1 }])?)?;
///
/// let read = queue.submit(&[Transfer::Download { from: memory.at(128), to: host.at(0), bytes: 64 }])?;
/// let error = device.wait(read).unwrap_err();
/// assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupted, Some(128)));
/// assert_eq!(device.unit_bytes(), 64);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct Checksummed<D: Device + ?Sized> {
    inner: Arc<D>,
    unit_bytes: u64,
    hosts: RwLock<HashMap<HostId, HostBytes>>,
    checks: Checks,
    /// The buffers that the program has not released.
    buffers: Mutex<HashSet<BufferId>>,
}

fn forget_all(touches: &AccessSet) {
    touches.writes.iter().for_each(|(buffer, bytes)| table::forget(*buffer, bytes));
}

/// Invalidates the checksums of the elements that a scatter's list of indices names.
fn forget_listed(elements: &LaunchView<'_>, list: HostBytes) {
    let mut buffer = Vec::new();
    // SAFETY: the request borrows the memory.
    let (indices, _) = unsafe { list.read(&mut buffer) }.as_chunks();
    table::forget_listed(elements, indices.iter().map(|index| u64::from_ne_bytes(*index)));
}

/// Records a copy within device memory: copies the checksums of whole units, and invalidates partial units.
fn begin_internal((from, to, bytes): (DeviceSpan<'_>, DeviceSpan<'_>, u64), parts: &mut Vec<WholeUnit>) {
    let Some(table) = ChecksumTable::of(to.buffer()) else { return };
    table.forget(to.offset(), bytes);
    let Some(source) =
        ChecksumTable::of(from.buffer()).filter(|source| source.unit_bytes == table.unit_bytes)
    else {
        return;
    };
    for unit in table.whole(to.offset(), bytes) {
        let at = from.offset() + (unit * table.unit_bytes - to.offset());
        let Some(sum) = source.sum_at(at) else { break };
        let word = table.set(unit, sum);
        parts.push(WholeUnit { table: Arc::clone(&table), unit, word, to: None });
    }
}

/// Treats all memory as infinitely long, because the inner device checks lengths.
struct Lengths;

impl Extents for Lengths {
    fn device_bytes(&self, _: BufferId) -> Option<u64> {
        Some(u64::MAX)
    }

    fn host_bytes(&self, _: HostId) -> Option<u64> {
        Some(u64::MAX)
    }
}

impl<D: Device + ?Sized> Checksummed<D> {
    /// Wraps a device. Each checksum covers `unit_bytes` bytes, at least 1.
    ///
    /// # Safety
    /// Host memory that this device allocates or imports must be released by this device, not by the inner
    /// one. The program must treat work as unfinished, by the rules on [races](crate#the-contract), until a
    /// poll of this device has reported that the work is done. Until then the device may read host memory
    /// that the work has written.
    #[must_use]
    pub unsafe fn new(inner: Arc<D>, unit_bytes: usize) -> Self {
        Self {
            inner,
            unit_bytes: unit_bytes.max(1) as u64,
            hosts: RwLock::default(),
            checks: Checks::default(),
            buffers: Mutex::default(),
        }
    }

    /// Returns the number of bytes that one checksum covers.
    #[must_use]
    pub fn unit_bytes(&self) -> usize {
        self.unit_bytes as usize
    }

    /// Creates the checksum table of a new buffer.
    fn note(&self, operation: &'static str, buffer: BufferHandle, bytes: u64) -> Result<BufferHandle> {
        match ChecksumTable::new(operation, self.unit_bytes, bytes) {
            Ok(table) => {
                self.buffers.lock().insert(buffer.id());
                table.put(buffer.id());
                Ok(buffer)
            }
            Err(error) => {
                self.inner.release(buffer);
                Err(error.on(self.inner.info()))
            }
        }
    }

    fn note_host(&self, host: &HostAllocation) {
        let place = HostBytes { address: host.address(), bytes: host.bytes() };
        self.hosts.write().insert(host.id(), place);
    }

    /// Returns the address of host memory that a request names.
    fn host_place(&self, at: HostSpan<'_>, bytes: u64) -> Option<HostBytes> {
        let memory = *self.hosts.read().get(&at.host())?;
        memory.part(at.offset(), bytes)
    }

    /// Updates the checksums for a request before its submission, because later submissions depend on them.
    /// Returns the units that the request copies as a whole.
    fn begin(&self, request: &Request<'_>, touches: &AccessSet) -> Vec<WholeUnit> {
        // While pending work writes to the host memory, checksums of its contents cannot be computed.
        let is_known = || !self.checks.writes_to(&touches.host_reads);
        match request {
            Request::Copies(transfers, _) => {
                let (mut parts, mut buffer) = (Vec::new(), Vec::new());
                let is_known = is_known();
                for transfer in *transfers {
                    match *transfer {
                        Transfer::Upload { from, to, bytes } => {
                            self.begin_upload((from, to, bytes), is_known, &mut parts, &mut buffer);
                        }
                        Transfer::Download { from, to, bytes } => {
                            self.begin_download((from, to, bytes), &mut parts);
                        }
                        Transfer::Internal { from, to, bytes } => {
                            begin_internal((from, to, bytes), &mut parts);
                        }
                    }
                }
                parts
            }
            Request::Scatter(scatter) => {
                let list = self.host_place(scatter.indices, scatter.count.saturating_mul(8));
                match list.filter(|_| is_known()) {
                    Some(list) => forget_listed(&scatter.elements, list),
                    None => forget_all(touches),
                }
                Vec::new()
            }
            _ => {
                forget_all(touches);
                Vec::new()
            }
        }
    }

    fn begin_upload(
        &self,
        (from, to, bytes): (HostSpan<'_>, DeviceSpan<'_>, u64),
        is_known: bool,
        parts: &mut Vec<WholeUnit>,
        buffer: &mut Vec<u8>,
    ) {
        let Some(table) = ChecksumTable::of(to.buffer()) else { return };
        table.forget(to.offset(), bytes);
        for unit in table.whole(to.offset(), bytes).filter(|_| is_known) {
            let ahead = unit * table.unit_bytes - to.offset();
            let Some(place) = self.host_place(from.plus(ahead), table.unit_bytes) else { break };
            // SAFETY: the request borrows the memory.
            let word = table.set(unit, checksum(unsafe { place.read(buffer) }));
            parts.push(WholeUnit { table: Arc::clone(&table), unit, word, to: None });
        }
    }

    fn begin_download(
        &self,
        (from, to, bytes): (DeviceSpan<'_>, HostSpan<'_>, u64),
        parts: &mut Vec<WholeUnit>,
    ) {
        let Some(table) = ChecksumTable::of(from.buffer()) else { return };
        for unit in table.whole(from.offset(), bytes) {
            let to = to.plus(unit * table.unit_bytes - from.offset());
            let Some(place) = self.host_place(to, table.unit_bytes) else { break };
            let to = Some((to.host(), to.offset()..to.offset() + table.unit_bytes, place));
            parts.push(WholeUnit { table: Arc::clone(&table), unit, word: table.word(unit), to });
        }
    }

    /// Verifies the data of all work that has ended with a finished ticket, and returns the ticket's outcome.
    fn settle(&self, ticket: Ticket) -> Result<()> {
        self.checks.settle(ticket, self.inner.info(), |ticket| match self.inner.poll(ticket) {
            Ok(QueueProgress::Pending) => None,
            Ok(QueueProgress::Done) => Some(false),
            Err(_) => Some(true),
        })
    }

    /// Waits for submissions. Ignores their errors, because polls of their tickets return them.
    fn wait_for(&self, tickets: Vec<Ticket>) {
        tickets.into_iter().for_each(|ticket| drop(self.wait(ticket)));
    }
}

// SAFETY: every call is forwarded to the inner device. In addition, this device reads host memory by `racy`:
// when a request that names the memory is submitted, and after work has written it. The second read comes
// before the work is reported as over, and before the memory is released. The caller of `new` promises that
// programs observe the end of work through this device only.
unsafe impl<D: Device + ?Sized> Device for Checksummed<D> {
    forward! { self => self.inner;
        info memory create_queue routes set_routing routing wipe_on_release sync prepare
        kernel_facts wake reaches
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        if request.check(&Lengths).is_err() {
            // The request is invalid, so let the inner device refuse it.
            return self.inner.submit(queue, request);
        }
        let touches = AccessSet::of(request);
        self.checks.supersede(&touches.host_writes);
        let mut check = PendingVerification::new(self.begin(request, &touches), touches.host_writes);
        let ticket = self.inner.submit(queue, request).inspect_err(|_| check.forget())?;
        if !check.is_nothing() {
            self.checks.add(ticket, check);
        }
        Ok(ticket)
    }

    fn release_queue(&self, queue: QueueHandle) {
        let id = queue.id();
        // Wait for the work first, because after the release the device no longer returns failures of the
        // work.
        self.wait_for(self.checks.waiting(|of, _| of == id));
        self.inner.release_queue(queue);
        self.checks.end_queue(id);
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        self.note("allocate", self.inner.allocate(bytes, commit)?, bytes)
    }

    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        let buffer = self.inner.allocate_extensible(bytes, most, commit)?;
        self.note("allocate_extensible", buffer, bytes)
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, commit: Commit) -> Result<()> {
        self.inner.extend(buffer, bytes, commit)?;
        match ChecksumTable::of(buffer.id()) {
            Some(table) => table.grow("extend", bytes).map_err(|error| error.on(self.inner.info())),
            None => Ok(()),
        }
    }

    fn release(&self, buffer: BufferHandle) {
        let id = buffer.id();
        if let Some(table) = ChecksumTable::of(id) {
            let is_of = |part: &WholeUnit| Arc::ptr_eq(&part.table, &table);
            self.wait_for(self.checks.waiting(|_, check| check.concerns(is_of)));
        }
        self.inner.release(buffer);
        if self.buffers.lock().remove(&id) {
            ChecksumTable::remove(id);
        }
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.inner.allocate_host(bytes, kind).inspect(|host| self.note_host(host))
    }

    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.inner.import_host(address, bytes, kind) }.inspect(|host| self.note_host(host))
    }

    fn release_host(&self, host: HostAllocation) {
        let id = host.id();
        let is_there = |part: &WholeUnit| part.to.as_ref().is_some_and(|(of, ..)| *of == id);
        self.wait_for(self.checks.waiting(|_, check| check.concerns(is_there)));
        // From here on no verification may read this host memory, because the next steps release it.
        self.checks.supersede(&Ranges::all_of(id));
        self.hosts.write().remove(&id);
        self.inner.release_host(host);
    }

    fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        match self.inner.poll(ticket) {
            Ok(QueueProgress::Pending) => Ok(QueueProgress::Pending),
            polled => self.settle(ticket).and(polled),
        }
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        let waited = self.inner.wait(ticket);
        self.settle(ticket).and(waited)
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        self.inner.order_after(queue, ticket)?;
        self.checks.order_after(queue.id(), ticket);
        Ok(())
    }
}

impl<D: Device + ?Sized> Drop for Checksummed<D> {
    fn drop(&mut self) {
        // Removes the checksum tables of buffers that the program did not release.
        self.buffers.get_mut().drain().for_each(ChecksumTable::remove);
    }
}
