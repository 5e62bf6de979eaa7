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
//!
//! That rule alone would fetch every page in the end, and where all frames have pages that are read as often
//! as those without one, each page that is fetched drives out one that was worth as much. So while few frames
//! are free the counts are halved from time to time, as in TinyLFU (G. Einziger, R. Friedman, B. Manes,
//! "TinyLFU: a highly efficient cache admission policy", 2017): a page is fetched if it is read more than
//! twice as often as twice as many pages as there are frames would be, if these were read evenly.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
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
/// The most bytes that a device reads at least, for parts of pages to be read where they live.
const PART_UNIT_BYTES: usize = 4 << 10;
/// The least share of what a device reads that has to be asked for. Elements that are read one by one, in
/// order, are sooner read from a page that is fetched.
const UNIT_SHARE: usize = 4;
/// Counts are halved when the reads of so many pages as there are counts for have cost this share of what it
/// takes to fetch each: evenly read, none comes beyond twice that.
const WINDOW_SHARE: u64 = 4;
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
pub(super) struct Rents {
    counts: OnceLock<Box<[AtomicU32]>>,
    /// What was spent on all pages since the counts were halved last.
    of_all: AtomicU64,
}

impl Rents {
    /// Counts so many bytes of the page in a slot. `false` if the page is to be fetched instead. `is_full`
    /// tells whether another one has to leave its frame for it.
    fn pay(
        &self,
        slot: u64,
        bytes: u64,
        page_bytes: u64,
        frames: usize,
        is_full: impl FnOnce() -> bool,
    ) -> bool {
        const UNIT_BYTES: u64 = 64;
        let pages = (2 * frames).clamp(1, COUNTS_MAX);
        let counts = self
            .counts
            .get_or_init(|| (0..pages.next_power_of_two().max(256)).map(|_| AtomicU32::new(0)).collect());
        // Fibonacci hashing: slots at regular distances have counts of their own.
        let place = slot.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - counts.len().ilog2());
        let count = &counts[place as usize];
        let in_units = |bytes: u64| u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX);
        let cost = in_units(READ_COST_BYTES + bytes);
        let spent = count.load(Ordering::Relaxed).saturating_add(cost);
        let price = in_units(TIMES.saturating_mul(READ_COST_BYTES + page_bytes));
        let is_enough = spent > price;
        // Of two threads at a time what one has spent may count.
        count.store(if is_enough { 0 } else { spent }, Ordering::Relaxed);
        let window = pages as u64 * u64::from(price) / WINDOW_SHARE;
        let of_all = self.of_all.fetch_add(cost.into(), Ordering::Relaxed) + u64::from(cost);
        // Of threads that find it over at the same time one goes on.
        if of_all >= window && self.of_all.swap(0, Ordering::Relaxed) >= window && is_full() {
            counts.iter().for_each(|count| count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed));
        }
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

    /// From how many bytes on threads may read parts of pages by themselves from now on: what the device
    /// reads beyond them is worth it then. `usize::MAX` if it reads pages as a whole. No thread has work
    /// under way on the channel.
    pub(crate) fn begin_parts(&self) -> usize {
        let unit = self.device.direct_reads().map_or(usize::MAX, |direct| direct.unit_bytes());
        if unit > PART_UNIT_BYTES.min(self.layout.page_bytes / 2).max(1) {
            return usize::MAX;
        }
        if let Some(gate) = self.queues.direct() {
            gate.is_used.store(true, Ordering::Release);
        }
        unit.div_ceil(UNIT_SHARE)
    }

    /// Whether a read or write of a page without a frame is to be made where the page lives. Counts it.
    pub(crate) fn rents(&self, page: u64, bytes: usize) -> bool {
        let slot = page / u64::from(self.layout.channels);
        let frames = self.layout.frames_max as usize;
        self.rents.pay(slot, bytes as u64, self.layout.page_bytes as u64, frames, || self.is_full())
    }

    /// Whether a page that is fetched now takes the frame of another one, or will soon: an eviction frees
    /// several frames at once.
    fn is_full(&self) -> bool {
        const FREE_SHARE: usize = 8;
        let most = self.layout.frames_max as usize;
        if self.supply.free.len() * FREE_SHARE > most {
            return false;
        }
        let shard = self.lock();
        shard.frames.full || shard.frames.list.len() >= most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_fetched_when_reads_have_cost_as_much() {
        let rents = Rents::default();
        let pay = |page| rents.pay(page, 4 << 10, 64 << 10, 10, || false);
        // 8 KiB each, against eight times 68 KiB.
        for _ in 0..3 {
            assert_eq!((0..).take_while(|_| pay(3)).count(), 68);
        }
        // Of two pages that are read in turn, whether they are counted together or not, one is fetched.
        for other in 4..2000 {
            assert!((0..140).any(|turn| !pay([3, other][turn % 2])), "{other}");
        }
        // Longer pages than can be counted.
        assert!((0..100).all(|_| rents.pay(1, 1, u64::MAX / 4, 10, || false)));
    }

    #[test]
    fn with_few_free_frames_a_page_is_fetched_if_it_is_read_more_often_than_others() {
        let mut random = backend_api::wrap::SplitMix64::new(1);
        for frames in [10, 1000] {
            let rents = Rents::default();
            let pay = |page, is_full| rents.pay(page, 4 << 10, 64 << 10, frames, || is_full);
            let mut fetched = |pages: usize, is_full| {
                (0..400 * frames).filter(|_| !pay(random.index(pages) as u64, is_full)).count()
            };
            assert!(fetched(4 * frames, false) > frames / 2, "all of them in the end");
            fetched(4 * frames, true);
            // By the cost alone it would be six times as many as there are frames.
            assert!(fetched(4 * frames, true) <= frames / 10, "few where all are read alike");
            assert!(fetched(frames / 2, true) > frames / 2, "those that would fit");
            // One has a tenth of all reads.
            let often =
                (0..400 * frames).map(|turn| if turn % 10 == 0 { 7 } else { random.index(4 * frames) });
            let fetched: Vec<usize> = often.filter(|page| !pay(*page as u64, true)).collect();
            let of_it = fetched.iter().filter(|page| **page == 7).count();
            assert!(of_it > 0 && 2 * of_it > fetched.len(), "{of_it} of {}", fetched.len());
        }
    }
}
