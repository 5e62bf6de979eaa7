//! Degraded mode: another device executes requests on a lost device's reconstructed data.

use std::ops::Range;
use std::sync::Arc;

use super::Core;
use super::copies::{If, gone};
use super::parity_update::grouped;
use super::scratch::ScratchBytes;
use super::stripe_layout::StripeTarget;
use crate::several::access_set::AccessSet;
use crate::several::member::{Adapted, Member, PlaceTranslation};
use backend_api::{
    BufferHandle, BufferId, Commit, Device, DeviceSpan, Error, ErrorKind, HostAllocation, HostId, HostMemory,
    HostSpan, Request, Result, racy,
};

/// Places keep their remainder modulo this number, the greatest alignment that can matter.
const ALIGNMENT: u64 = 256;

/// The results of a request.
pub(super) struct DegradedRun {
    /// The new bytes of the targets.
    pub(super) device: ScratchBytes,
    /// The bytes for host memory.
    pub(super) host: Vec<(HostId, u64, ScratchBytes)>,
}

/// The layout of ranges of several memories in one memory.
#[derive(Debug)]
struct Layout<K> {
    ranges: Vec<(K, Range<u64>, u64)>,
    bytes: u64,
}

impl<K: PartialEq + Copy> Layout<K> {
    fn new<'a>(ranges: impl Iterator<Item = &'a (K, Range<u64>)>) -> Self
    where
        K: 'a,
    {
        let mut bytes: u64 = 0;
        let place = |(memory, range): &(K, Range<u64>)| {
            let at = bytes.next_multiple_of(ALIGNMENT) + range.start % ALIGNMENT;
            bytes = at + (range.end - range.start);
            (*memory, range.clone(), at)
        };
        let ranges = ranges.map(place).collect();
        Self { ranges, bytes }
    }

    /// Returns the position of a place. An empty range is at the start.
    fn place(&self, memory: K, offset: u64) -> u64 {
        let has = |(other, range, _): &&(K, Range<u64>, u64)| *other == memory && range.contains(&offset);
        self.ranges.iter().find(has).map_or(0, |(_, range, at)| at + offset - range.start)
    }
}

/// Temporary memory of a device for one request.
struct BorrowedMemory<'a> {
    core: &'a Core,
    position: usize,
    member: u64,
    device: Arc<dyn Device>,
    buffer: BufferId,
    host: HostId,
}

impl<'a> BorrowedMemory<'a> {
    fn new(core: &'a Core, position: usize, bytes: u64, host_bytes: u64) -> Result<Self> {
        let (member, device) = {
            let state = core.member_queues[position].lock();
            (state.member.id, Arc::clone(&state.member.device))
        };
        let buffer = device.allocate(bytes, Commit::Lazy)?;
        let host = match device.allocate_host(host_bytes as usize, HostMemory::Pageable) {
            Ok(host) => host,
            Err(error) => {
                device.release(buffer);
                return Err(error);
            }
        };
        let borrowed = Self { core, position, member, device, buffer: buffer.id(), host: host.id() };
        let mut state = core.member_queues[position].lock();
        if state.member.id != member {
            drop(state);
            borrowed.device.release(buffer);
            borrowed.device.release_host(host);
            return Err(Error::new(ErrorKind::Lost, "parity"));
        }
        state.member.buffers.insert(borrowed.buffer, buffer);
        state.member.hosts.insert(borrowed.host, host);
        drop(state);
        Ok(borrowed)
    }
}

impl Drop for BorrowedMemory<'_> {
    fn drop(&mut self) {
        let mut state = self.core.member_queues[self.position].lock();
        if state.member.id != self.member {
            return;
        }
        let memory = (state.member.buffers.remove(&self.buffer), state.member.hosts.remove(&self.host));
        drop(state);
        memory.0.into_iter().for_each(|buffer| self.device.release(buffer));
        memory.1.into_iter().for_each(|host| self.device.release_host(host));
    }
}

/// The mapping from a request's places to temporary memory.
struct Moved<'a> {
    buffer: &'a BufferHandle,
    host: &'a HostAllocation,
    device_layout: &'a Layout<BufferId>,
    host_layout: &'a Layout<HostId>,
}

impl PlaceTranslation for Moved<'_> {
    fn device_place(&self, at: DeviceSpan<'_>) -> Result<DeviceSpan<'_>> {
        Ok(self.buffer.at(self.device_layout.place(at.buffer(), at.offset())))
    }

    fn host_place(&self, at: HostSpan<'_>) -> Result<HostSpan<'_>> {
        Ok(self.host.at(self.host_layout.place(at.host(), at.offset())))
    }
}

impl Core {
    /// Executes a request of a member on another device, over memory with reconstructed data. Returns the
    /// written bytes, and writes them nowhere else. The caller has locked the stripes that the request
    /// reads.
    pub(super) fn run_degraded(
        &self,
        position: usize,
        request: &Request<'_>,
        touches: &AccessSet,
        targets: &[StripeTarget],
    ) -> Result<DegradedRun> {
        let error = self.member_queues[position].lock().lost_error(request.operation());
        let mut refusal = None;
        for other in (0..self.member_queues.len()).map(|at| (position + 1 + at) % self.member_queues.len()) {
            if other == position || !self.member_queues[other].lock().member.is_current() {
                continue;
            }
            match self.run_degraded_on((other, position), request, touches, targets, &error) {
                Ok(done) => return Ok(done),
                // Another device may support the request, so ask it.
                Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::OutOfMemory) => {
                    refusal.get_or_insert(error.with_advice(
                        "rebuild the lost device, or request less at once: another device executes its requests meanwhile",
                    ));
                }
                Err(error) => return Err(error),
            }
        }
        Err(refusal.unwrap_or(error))
    }

    fn run_degraded_on(
        &self,
        (other, position): (usize, usize),
        request: &Request<'_>,
        touches: &AccessSet,
        targets: &[StripeTarget],
        error: &Error,
    ) -> Result<DegradedRun> {
        let device_layout = Layout::new(touches.reads.iter());
        let host_ranges = || touches.host_reads.iter().chain(touches.host_writes.iter());
        let host_layout = Layout::new(host_ranges());
        let borrowed = BorrowedMemory::new(self, other, device_layout.bytes, host_layout.bytes)?;
        let moved = |target: &StripeTarget| {
            let offset = device_layout.place(target.buffer, target.offset);
            StripeTarget::new(borrowed.buffer, offset, target.bytes)
        };
        let reads: Vec<StripeTarget> = targets_of(touches.reads.iter());
        for group in grouped(&reads) {
            let mut bytes = self.scratch(group.iter().map(|target| target.bytes).sum())?;
            let segments = self.rows.lock().segments(&group);
            self.rebuild_bytes(position, &segments, &mut bytes, error)?;
            let places: Vec<_> = group.iter().map(moved).collect();
            self.write(other, If::Current, &places, &bytes)?;
        }
        for (host, range) in touches.host_reads.iter() {
            let bytes = self.read_host(position, *host, range.start, range.end - range.start)?;
            self.with_borrowed_host(&borrowed, host_layout.place(*host, range.start), |address| {
                // SAFETY: the temporary memory has room for all ranges, and no work on it is in flight.
                unsafe { racy::write(address, &bytes) };
            });
        }
        self.run(other, If::Current, |member: &Member| {
            let gone = || gone("the device was replaced");
            let buffer = member.buffers.get(&borrowed.buffer).ok_or_else(gone)?;
            let host = member.hosts.get(&borrowed.host).ok_or_else(gone)?;
            let queue = member.copies.as_ref().ok_or_else(gone)?;
            let places = Moved { buffer, host, device_layout: &device_layout, host_layout: &host_layout };
            places.start_on(&*member.device, queue, request, Adapted::default())
        })?;
        let mut device = self.scratch(targets.iter().map(|target| target.bytes).sum())?;
        let places: Vec<_> = targets.iter().map(moved).collect();
        self.read(other, If::Current, &places, &mut device)?;
        let mut written = Vec::new();
        for (host, range) in touches.host_writes.iter() {
            let mut bytes = self.scratch(range.end - range.start)?;
            self.with_borrowed_host(&borrowed, host_layout.place(*host, range.start), |address| {
                // SAFETY: the temporary memory has room for all ranges, and the work is over.
                unsafe { racy::read(address, &mut bytes) };
            });
            written.push((*host, range.start, bytes));
        }
        Ok(DegradedRun { device, host: written })
    }

    /// Calls `reach` with a place in temporary host memory.
    fn with_borrowed_host(&self, borrowed: &BorrowedMemory<'_>, offset: u64, reach: impl FnOnce(*mut u8)) {
        let state = self.member_queues[borrowed.position].lock();
        if let Some(host) = state.member.hosts.get(&borrowed.host) {
            reach(host.address().as_ptr().wrapping_add(offset as usize));
        }
    }
}

/// Converts ranges of buffers to targets.
pub(super) fn targets_of<'a>(ranges: impl Iterator<Item = &'a (BufferId, Range<u64>)>) -> Vec<StripeTarget> {
    ranges.map(|(buffer, range)| StripeTarget::new(*buffer, range.start, range.end - range.start)).collect()
}
