//! Direct reads: the calling thread reads a page's home slot in device memory by itself, without a queue and
//! without intermediate memory. Not all devices support this. Each thread has at most one read in flight.
//!
//! The locks of pages also protect direct reads, because copies into a slot end before their page is
//! released. But a kernel may write to slots of pages that no thread holds; only queue order protects these
//! writes. So [direct reads are barred](ReadsBarred) from before the submission of such a kernel until it
//! completes.
//!
//! # Admission of pages
//!
//! For a short read of an uncached page, the thread either reads from the home slot, or fetches the whole
//! page into the cache. The fetch makes later reads cheap, but their number is unknown. The ski-rental rule
//! decides: the page is fetched when its direct reads have cost as much as the fetch (A. R. Karlin, M. S.
//! Manasse, L. Rudolph, D. D. Sleator, "Competitive snoopy caching", 1988). The cost of a fetch includes a
//! frame, the evicted page, and the processor's caches; these exceed the copy.
//!
//! This rule alone would eventually fetch every page, and evict pages of equal worth if all pages are read
//! equally often. So while few frames are free, counts are halved from time to time, as in TinyLFU (G.
//! Einziger, R. Friedman, B. Manes, "TinyLFU: a highly efficient cache admission policy", 2017). A page is
//! then fetched if it is read more than twice as often as a page in a uniform distribution over twice the
//! number of frames.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use backend_api::{Device, DeviceKind, Ticket};
use parking_lot::{RwLock, RwLockWriteGuard};

use super::{Channel, DevicePlace};
use crate::base::error::Result;
use crate::engine::page::DeferredWakes;

/// Fixed cost of a direct read, as the bytes that a device could copy in that time.
const READ_COST_BYTES: u64 = 4 << 10;
/// Total cost of short reads before a page is fetched, in copies of the page. With 2, random reads of 4 KiB
/// of a file in the system's cache were three times as slow as without fetches.
const TIMES: u64 = 8;
/// Maximum read granularity, in bytes, of a device for direct reads of parts of pages.
const PART_UNIT_BYTES: usize = 4 << 10;
/// The requested bytes must be at least this fraction of the bytes that a device reads. Sequential reads of
/// single elements are faster from a fetched page.
const UNIT_SHARE: usize = 4;
/// Counts are halved when all counted reads have cost this fraction of fetching all their pages. With uniform
/// reads, no count then exceeds twice this fraction.
const WINDOW_SHARE: u64 = 4;
/// Maximum number of counts of a channel, each for one or more pages.
const COUNTS_MAX: usize = 1 << 16;

/// The lock that threads share during direct reads of home slots, and that bars such reads.
#[derive(Debug, Default)]
pub(super) struct DirectGate {
    lock: RwLock<()>,
    /// True if threads use direct reads, so that a kernel must bar them.
    is_used: AtomicBool,
}

/// Prevents direct reads of some channels' home slots while it lives.
pub(super) struct ReadsBarred<'a> {
    gates: Vec<RwLockWriteGuard<'a, ()>>,
    /// Dropped last, because wakers may block and wait for barred reads.
    _deferral: Option<DeferredWakes>,
}

impl<'a> ReadsBarred<'a> {
    /// Bars direct reads, and waits for threads that are reading. Call this before locking queues.
    pub(super) fn begin(mut gates: Vec<&'a DirectGate>) -> Self {
        // All threads lock the gates (locks of direct reads) in address order, to avoid deadlock.
        gates.sort_by_key(|gate| std::ptr::from_ref(*gate));
        gates.dedup_by_key(|gate| std::ptr::from_ref(*gate));
        gates.retain(|gate| gate.is_used.load(Ordering::Acquire));
        let deferral = (!gates.is_empty()).then(DeferredWakes::begin);
        Self { gates: gates.into_iter().map(|gate| gate.lock.write()).collect(), _deferral: deferral }
    }

    /// Waits for work on the slots, if there is any. The owner of the ticket gets the result.
    pub(super) fn until_done(&self, device: &dyn Device, ticket: Ticket) {
        if !self.gates.is_empty() {
            let _ = device.wait(ticket);
        }
    }
}

impl DirectGate {
    /// Returns the gate for a device. Threads always read whole pages of files directly.
    pub(super) fn of(device: &Arc<dyn Device>) -> Self {
        Self { is_used: (device.info().kind == DeviceKind::File).into(), ..Self::default() }
    }

    /// Reads bytes of a home slot directly; the caller protects them from changes. Returns `None` if the
    /// device does not support this.
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

/// Recent costs of direct reads and writes, by page; some pages share a count. If the count of a page is
/// high, the page is fetched.
#[derive(Debug, Default)]
pub(super) struct ReadCosts {
    counts: OnceLock<Box<[AtomicU32]>>,
    /// Cost of all pages since the counts were last halved.
    of_all: AtomicU64,
}

impl ReadCosts {
    /// Adds the cost of an access to the page in a slot. Returns `false` if the page should be fetched.
    /// `is_full` says if the fetch would evict another page.
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
        // Fibonacci hashing: home slots (in device memory) at regular distances get separate counts.
        let place = slot.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - counts.len().ilog2());
        let count = &counts[place as usize];
        let in_units = |bytes: u64| u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX);
        let cost = in_units(READ_COST_BYTES + bytes);
        let spent = count.load(Ordering::Relaxed).saturating_add(cost);
        let price = in_units(TIMES.saturating_mul(READ_COST_BYTES + page_bytes));
        let is_enough = spent > price;
        // Two concurrent updates may lose one of the costs, which is acceptable for a heuristic.
        count.store(if is_enough { 0 } else { spent }, Ordering::Relaxed);
        let window = pages as u64 * u64::from(price) / WINDOW_SHARE;
        let of_all = self.of_all.fetch_add(cost.into(), Ordering::Relaxed) + u64::from(cost);
        // Only one of the threads that see the end of the window (a total read cost) halves the counts.
        if of_all >= window && self.of_all.swap(0, Ordering::Relaxed) >= window && is_full() {
            counts.iter().for_each(|count| count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed));
        }
        !is_enough
    }
}

impl Channel {
    /// Reads bytes of a page's home slot directly; the caller protects them from changes. Returns `None` if
    /// the device does not support this.
    pub(crate) fn read_home_directly(&self, page: u64, offset: usize, into: &mut [u8]) -> Option<Result<()>> {
        let gate = self.queues.direct()?;
        let outcome = gate.read(&*self.device, self.home(page).plus(offset as u64), into)?;
        if outcome.is_ok() {
            self.counters.bytes_from_device.add(into.len() as u64);
        }
        Some(outcome.map_err(Into::into))
    }

    /// Reads parts of several pages' home slots directly, each with its page and its offset in the page; the
    /// caller protects them from changes. The channel [loads pages directly](Self::loads_directly).
    pub(crate) fn read_homes_directly(&self, parts: Vec<(u64, usize, &mut [u8])>) -> Result<()> {
        let bytes: usize = parts.iter().map(|(_, _, into)| into.len()).sum();
        let reads = parts.into_iter();
        let mut reads: Vec<_> =
            reads.map(|(page, offset, into)| (self.home(page).plus(offset as u64), into)).collect();
        let gate = self.queues.direct().expect("the channel loads pages directly");
        let direct = self.device.direct_reads().expect("the device has a gate for direct reads");
        let inside = gate.lock.read();
        direct.read_all_directly(&mut reads)?;
        drop(inside);
        self.counters.bytes_from_device.add(bytes as u64);
        Ok(())
    }

    /// Records that a thread will read and write its claimed page, so that scatters check the page again.
    pub(crate) fn note_load(&self) {
        drop(self.queues.begin_loads());
    }

    /// Returns true if a thread with a miss reads the page itself. On GPUs, and on RAM in place of GPUs,
    /// submissions with several pages load it instead.
    pub(crate) fn loads_directly(&self) -> bool {
        self.queues.direct().is_some() && self.device.info().kind == DeviceKind::File
    }

    /// Sets and returns the minimum bytes of direct reads of parts of pages, from the device's granularity;
    /// `usize::MAX` if it reads only whole pages. No work may be in flight on the channel.
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

    /// Returns true if an access to an uncached page should use its home slot, and adds its cost.
    pub(crate) fn prefers_direct_read(&self, page: u64, bytes: usize) -> bool {
        let slot = page / u64::from(self.layout.channels);
        let frames = self.layout.frames_max as usize;
        self.read_costs.pay(slot, bytes as u64, self.layout.page_bytes as u64, frames, || self.is_full())
    }

    /// Returns true if a fetch evicts another page now or soon; an eviction frees several frames at once.
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
        let read_costs = ReadCosts::default();
        let pay = |page| read_costs.pay(page, 4 << 10, 64 << 10, 10, || false);
        // A direct read costs 8 KiB; a page is fetched when its reads have cost eight times 68 KiB.
        for _ in 0..3 {
            assert_eq!((0..).take_while(|_| pay(3)).count(), 68);
        }
        // If two pages are read in turn, the array fetches one of them, with shared counts or not.
        for other in 4..2000 {
            assert!((0..140).any(|turn| !pay([3, other][turn % 2])), "{other}");
        }
        // The cost of these pages exceeds the range of the counts.
        assert!((0..100).all(|_| read_costs.pay(1, 1, u64::MAX / 4, 10, || false)));
    }

    #[test]
    fn with_few_free_frames_a_page_is_fetched_if_it_is_read_more_often_than_others() {
        let mut random = backend_api::wrap::SplitMix64::new(1);
        for frames in [10, 1000] {
            let read_costs = ReadCosts::default();
            let pay = |page, is_full| read_costs.pay(page, 4 << 10, 64 << 10, frames, || is_full);
            let mut fetched = |pages: usize, is_full| {
                (0..400 * frames).filter(|_| !pay(random.index(pages) as u64, is_full)).count()
            };
            assert!(fetched(4 * frames, false) > frames / 2, "all of them in the end");
            fetched(4 * frames, true);
            // By the cost of reads alone, the array would fetch six times as many pages as there are frames.
            assert!(fetched(4 * frames, true) <= frames / 10, "few where all are read alike");
            assert!(fetched(frames / 2, true) > frames / 2, "more pages than would fit");
            // One page has a tenth of all reads.
            let often =
                (0..400 * frames).map(|turn| if turn % 10 == 0 { 7 } else { random.index(4 * frames) });
            let fetched: Vec<usize> = often.filter(|page| !pay(*page as u64, true)).collect();
            let of_it = fetched.iter().filter(|page| **page == 7).count();
            assert!(of_it > 0 && 2 * of_it > fetched.len(), "{of_it} of {}", fetched.len());
        }
    }
}
