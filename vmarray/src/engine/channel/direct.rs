//! Reads of home slots by the thread that wants them, where the device has its memory within reach of
//! threads: no queue, no memory in between, and as many at once as there are threads.
//!
//! What keeps pages from changing keeps them from changing here, too: copies into a slot are done before its
//! page is let go of. Only kernels that write to slots of pages that nobody holds are ordered by queues
//! alone. So [such reads](ReadsBarred) are kept away from before such a kernel is submitted until it is done.
//!
//! # When it pays to fetch a page
//!
//! A short read of a page that has no frame can be made where the page lives, again and again; or the page is
//! fetched, once, for all reads to come, of which nothing is known. It is fetched when the reads so far have
//! cost as much as fetching it would: the rule for renting or buying skis (A. R. Karlin, M. S. Manasse, L.
//! Rudolph, D. D. Sleator, "Competitive snoopy caching", 1988). What fetching costs beside the copy (a frame,
//! the page that has to leave it, the processor's caches) is more than the copy.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use backend_api::{Device, DeviceKind, Ticket};
use parking_lot::{RwLock, RwLockWriteGuard};

use super::{Channel, DevicePlace};
use crate::base::error::Result;
use crate::engine::page::Deferral;

/// How many bytes could be copied in the time that a read takes beside its copy.
const READ_COST_BYTES: u64 = 4 << 10;
/// How many times the copy of a page may be spent on short reads of it before it is fetched. With 2, reads of
/// 4 KiB at random of a file that the system had in RAM were three times as slow as with none fetched.
const TIMES: u64 = 8;
/// How many counts a channel has at most.
const COUNTS_MAX: usize = 1 << 16;

/// Whether threads may read home slots by themselves now.
#[derive(Debug, Default)]
pub(super) struct DirectGate {
    lock: RwLock<()>,
    /// Whether any does at all.
    is_used: AtomicBool,
}

/// While a thread has this no thread reads certain home slots by itself.
pub(super) struct ReadsBarred<'a> {
    gates: Vec<RwLockWriteGuard<'a, ()>>,
    /// Dropped last: wakers may block, and wait for what is barred.
    _deferral: Option<Deferral>,
}

impl<'a> ReadsBarred<'a> {
    /// Shuts gates, after threads that are in them. To be called before any lock of queues is taken.
    pub(super) fn begin(mut gates: Vec<&'a DirectGate>) -> Self {
        // Always in this order, so that two threads do not wait for each other.
        gates.sort_by_key(|gate| std::ptr::from_ref(*gate));
        gates.dedup_by_key(|gate| std::ptr::from_ref(*gate));
        gates.retain(|gate| gate.is_used.load(Ordering::Acquire));
        let deferral = (!gates.is_empty()).then(Deferral::begin);
        Self { gates: gates.into_iter().map(|gate| gate.lock.write()).collect(), _deferral: deferral }
    }

    /// Waits for work on such slots, if there are any. How it ends is told to the thread that has the ticket.
    pub(super) fn until_done(&self, device: &dyn Device, ticket: Ticket) {
        if !self.gates.is_empty() {
            let _ = device.wait(ticket);
        }
    }
}

impl DirectGate {
    /// That of a device. From files threads read whole pages, whatever else they read.
    pub(super) fn of(device: &Arc<dyn Device>) -> Self {
        Self { is_used: (device.info().kind == DeviceKind::File).into(), ..Self::default() }
    }

    /// Reads bytes of a home slot that the caller keeps from changing; `None` if the device has none within
    /// reach.
    pub(super) fn read(
        &self,
        device: &dyn Device,
        from: DevicePlace,
        into: &mut [u8],
    ) -> Option<backend_api::Result<()>> {
        let direct = device.direct_reads()?;
        let _inside = self.lock.read();
        Some(direct.read_directly(from, into))
    }
}

/// What was spent lately on reads and writes of pages without a frame, for some pages together: one of those
/// that are used most will be the one that is fetched.
#[derive(Debug, Default)]
pub(super) struct Rents(OnceLock<Box<[AtomicU32]>>);

impl Rents {
    /// Counts so many bytes of the page in a slot. `false` if the page is to be fetched instead.
    fn pay(&self, slot: u64, bytes: u64, page_bytes: u64, frames: usize) -> bool {
        const UNIT_BYTES: u64 = 64;
        let counts = self.0.get_or_init(|| {
            let count = (2 * frames).next_power_of_two().clamp(256, COUNTS_MAX);
            (0..count).map(|_| AtomicU32::new(0)).collect()
        });
        // Fibonacci hashing: slots at regular distances have counts of their own.
        let place = slot.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - counts.len().ilog2());
        let count = &counts[place as usize];
        let in_units = |bytes: u64| u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX);
        let spent = count.load(Ordering::Relaxed).saturating_add(in_units(READ_COST_BYTES + bytes));
        let is_enough = spent > in_units(TIMES.saturating_mul(READ_COST_BYTES + page_bytes));
        // Of two threads at a time what one has spent may count.
        count.store(if is_enough { 0 } else { spent }, Ordering::Relaxed);
        !is_enough
    }
}

impl Channel {
    /// Reads bytes of a page's home slot, which the caller keeps from changing, by this thread itself. `None`
    /// if the device has its memory out of reach.
    pub(crate) fn read_home_directly(&self, page: u64, offset: usize, into: &mut [u8]) -> Option<Result<()>> {
        let gate = self.queues.direct()?;
        let outcome = gate.read(&*self.device, self.home(page).plus(offset as u64), into)?;
        if outcome.is_ok() {
            self.counters.bytes_from_device.add(into.len() as u64);
        }
        Some(outcome.map_err(Into::into))
    }

    /// Notes that a page is about to be read by a thread that has claimed it, and will write to it: scatters
    /// look again whether it is theirs.
    pub(crate) fn note_load(&self) {
        drop(self.queues.begin_loads());
    }

    /// Whether a thread that misses a page loads it by itself, and so on. Cards, and RAM in their place, are
    /// given several pages at a time instead.
    pub(crate) fn loads_directly(&self) -> bool {
        self.queues.direct().is_some() && self.device.info().kind == DeviceKind::File
    }

    /// Whether the device reads no more than is asked for. If so threads may read parts of pages by
    /// themselves from now on; nobody has work under way on the channel.
    pub(crate) fn begin_parts(&self) -> bool {
        let can = self.device.direct_reads().is_some_and(|direct| direct.unit_bytes() == 1);
        if let Some(gate) = self.queues.direct().filter(|_| can) {
            gate.is_used.store(true, Ordering::Release);
        }
        can
    }

    /// Whether a read or write of a page without a frame is to be made where the page lives. Counts it.
    pub(crate) fn rents(&self, page: u64, bytes: usize) -> bool {
        let slot = page / u64::from(self.layout.channels);
        let frames = self.layout.frames_max as usize;
        self.rents.pay(slot, bytes as u64, self.layout.page_bytes as u64, frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_fetched_when_reads_have_cost_as_much() {
        let rents = Rents::default();
        let pay = |page| rents.pay(page, 4 << 10, 64 << 10, 10);
        // 8 KiB each, against eight times 68 KiB.
        for _ in 0..3 {
            assert_eq!((0..).take_while(|_| pay(3)).count(), 68);
        }
        // Of two pages that are read in turn, whether they are counted together or not, one is fetched.
        for other in 4..2000 {
            assert!((0..140).any(|turn| !pay([3, other][turn % 2])), "{other}");
        }
        // Longer pages than can be counted.
        assert!((0..100).all(|_| rents.pay(1, 1, u64::MAX / 4, 10)));
    }
}
