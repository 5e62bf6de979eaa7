//! Reads of home slots by the thread that wants them, where the device has its memory within reach of
//! threads: no queue, no memory in between, and as many at once as there are threads.
//!
//! What keeps pages from changing keeps them from changing here, too: copies into a slot are done before its
//! page is let go of. Only kernels that write to slots of pages that nobody holds are ordered by queues
//! alone. So [`DirectReads`] are kept away from before such a kernel is submitted until it is done.
//!
//! # When it pays to fetch a page
//!
//! A short read of a page that has no frame can be made where the page lives, again and again; or the page is
//! fetched, once, for all reads to come, of which nothing is known. It is fetched when the reads so far have
//! cost twice as much as fetching it would have: the rule for renting or buying skis, by which nobody pays
//! more than three times the best that could have been done (A. R. Karlin, M. S. Manasse, L. Rudolph, D. D.
//! Sleator, "Competitive snoopy caching", 1988). A file's own cache in the system makes short reads cheap, so
//! fetching is put off twice as long as by that rule.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::{Device, DeviceKind};
use parking_lot::{RwLock, RwLockWriteGuard};

use super::{Channel, DevicePlace};
use crate::base::error::Result;
use crate::engine::page::Deferral;

/// How many bytes could be copied in the time that a read takes beside its copy.
const READ_COST_BYTES: u64 = 4 << 10;
/// How many times the cost of fetching is spent on short reads before a page is fetched.
const TIMES: u64 = 2;
/// For how many pages that is counted at most, a channel.
const COUNTED_PAGES_MAX: usize = 1 << 16;

/// Whether threads may read home slots by themselves now.
#[derive(Debug, Default)]
pub(super) struct DirectGate(RwLock<()>);

/// While a thread has this no thread reads certain home slots by itself.
pub(super) struct ReadsBarred<'a> {
    gates: Vec<RwLockWriteGuard<'a, ()>>,
    /// Dropped last: wakers may block, and wait for what is barred.
    _deferral: Deferral,
}

impl<'a> ReadsBarred<'a> {
    /// Shuts gates, after threads that are in them. To be called before any lock of queues is taken.
    pub(super) fn begin(mut gates: Vec<&'a DirectGate>) -> Self {
        // Always in this order, so that two threads do not wait for each other.
        gates.sort_by_key(|gate| std::ptr::from_ref(*gate));
        gates.dedup_by_key(|gate| std::ptr::from_ref(*gate));
        let deferral = Deferral::begin();
        Self { gates: gates.into_iter().map(|gate| gate.0.write()).collect(), _deferral: deferral }
    }

    /// Whether there are any such slots.
    pub(super) fn is_any(&self) -> bool {
        !self.gates.is_empty()
    }
}

impl DirectGate {
    /// Reads bytes of a home slot that the caller keeps from changing; `None` if the device has none within
    /// reach.
    pub(super) fn read(
        &self,
        device: &dyn Device,
        from: DevicePlace,
        into: &mut [u8],
    ) -> Option<backend_api::Result<()>> {
        let direct = device.direct_reads()?;
        let _inside = self.0.read();
        Some(direct.read_directly(from, into))
    }
}

/// What was spent lately on reads of pages without a frame, by page: as many pages as there is room for, the
/// newer one in the place of an older one.
#[derive(Debug, Default)]
pub(super) struct Rents(OnceLock<Box<[AtomicU64]>>);

impl Rents {
    /// Counts a read of so many bytes of a page. `false` if the page is to be fetched instead.
    fn pay(&self, page: u64, bytes: u64, page_bytes: u64, frames: usize) -> bool {
        /// The lower bits of an entry are what was spent, the others whose.
        const SPENT_BITS: u32 = 32;
        const UNIT_BYTES: u64 = 64;
        let entries = self.0.get_or_init(|| {
            let count = (2 * frames).next_power_of_two().clamp(256, COUNTED_PAGES_MAX);
            (0..count).map(|_| AtomicU64::new(0)).collect()
        });
        let entry = &entries[page as usize % entries.len()];
        let owner = (page / entries.len() as u64 + 1) << SPENT_BITS;
        let before = entry.load(Ordering::Relaxed);
        let spent =
            if before >> SPENT_BITS == owner >> SPENT_BITS { before & (owner - 1) & 0xFFFF_FFFF } else { 0 };
        let spent = spent + (READ_COST_BYTES + bytes) / UNIT_BYTES;
        let is_enough = spent * UNIT_BYTES > TIMES * (READ_COST_BYTES + page_bytes);
        // Of two threads at a time the reads of one may count.
        entry.store(if is_enough { 0 } else { owner | spent }, Ordering::Relaxed);
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

    /// Whether a thread that misses a page loads it by itself, and so on. Cards, and RAM in their place, are
    /// given several pages at a time instead.
    pub(crate) fn loads_directly(&self) -> bool {
        self.queues.direct().is_some() && self.device.info().kind == DeviceKind::File
    }

    /// Whether a read or write of a page without a frame is to be made where the page lives: if the device
    /// moves no more than is asked for. Counts it.
    pub(crate) fn rents(&self, page: u64, bytes: usize) -> bool {
        let can = self.queues.direct().is_some()
            && self.device.direct_reads().is_some_and(|direct| direct.unit_bytes() <= bytes.max(1));
        let frames = self.layout.frames_max as usize;
        can && self.rents.pay(page, bytes as u64, self.layout.page_bytes as u64, frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_fetched_when_reads_have_cost_twice_as_much() {
        let rents = Rents::default();
        let pay = |page| rents.pay(page, 4 << 10, 64 << 10, 10);
        // 8 KiB each, against twice 68 KiB.
        let reads = (0..).take_while(|_| pay(3)).count();
        assert_eq!(reads, 17);
        // Then it is counted anew; and so it is after another page of the same place.
        assert!((0..17).all(|_| pay(3)));
        assert!(pay(3 + 256) && (0..17).all(|_| pay(3)) && !pay(3));
        // Others have places of their own.
        assert!((4..100).all(pay));
    }
}
