//! Memory of a GPU that caches file pages for a tier, and copies between this memory and host memory.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use backend_api::{
    Commit, Device, DeviceBuffer, Error, ErrorKind, Fill, HostBuffer, HostMemory, Queue, Result,
};
use parking_lot::Mutex;
use twox_hash::XxHash3_64;
use vmarray_support::warn;

use super::map::{PageMap, TierSlot};

/// Minimum host memory of a lane in bytes, which limits the length of one submission.
pub(super) const LANE_BYTES: usize = 2 << 20;

/// Flag of a slot whose page was removed: its last reader must release the slot.
const LEFT: u32 = 1 << 31;

/// Memory of a GPU, divided into slots of the length of a page.
///
/// Lock order: the clock before pages. A thread locks at most one page.
///
/// A slot is free, or owned by a thread ([`OwnedSlot`]), or caches a page. A thread that reads from a slot
/// first increments its reader count, under the lock of the page's stripe ([`PageMap`]). A slot with readers
/// cannot be taken.
pub(super) struct TierCard {
    /// Declared first, so lanes are dropped before the memory that they copy to.
    lanes: Mutex<Vec<TierLane>>,
    memory: DeviceBuffer<dyn Device>,
    device: Arc<dyn Device>,
    number: u32,
    page_bytes: usize,
    /// True if pages from the GPU are verified by checksums.
    is_checked: bool,
    slots: Box<[Usage]>,
    clock: Mutex<Clock>,
    /// Number of free slots, which threads read without the clock's lock.
    free: AtomicU32,
    is_lost: AtomicBool,
    reason: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
struct Usage {
    /// Number of threads that read the slot, and the flag [`LEFT`].
    readers: AtomicU32,
    /// True if the slot was read since the clock's hand last passed it.
    used: AtomicBool,
    /// True if the slot was written since it was last wiped.
    holds_bytes: AtomicBool,
    /// Checksum of the cached page, if enabled; the owner of the slot sets it.
    sum: AtomicU64,
}

/// The page that a slot caches, or for which a thread has taken it.
type Owner = (Arc<PageMap>, u64);

/// **CLOCK** (F. J. Corbató, "A paging experiment with the Multics system", 1968): a hand circles over the
/// slots to find a page to replace, and skips slots that were read since it last passed them.
#[derive(Debug, Default)]
struct Clock {
    owners: Vec<Option<Owner>>,
    free: Vec<u32>,
    hand: usize,
}

impl fmt::Debug for TierCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Card");
        debug.field("device", &self.device.info().name).field("slots", &self.slots.len());
        debug.finish_non_exhaustive()
    }
}

impl TierCard {
    /// Allocates slots (memory for one page of `page_bytes` bytes each) on a device: at most `bytes_max`
    /// bytes in all, and at most the device's free memory.
    pub fn new(
        device: &Arc<dyn Device>,
        number: u32,
        page_bytes: usize,
        bytes_max: u64,
        is_checked: bool,
    ) -> Result<Self> {
        let usable = device.memory()?.usable_bytes.min(bytes_max);
        let slots = (usable / page_bytes as u64).min(u64::from(u32::MAX));
        if slots == 0 {
            return Err(Error::new(ErrorKind::OutOfMemory, "allocate")
                .with_bytes(page_bytes as u64)
                .with_available_bytes(usable)
                .on(device.info()));
        }
        let memory = DeviceBuffer::new(device, slots * page_bytes as u64, Commit::Proven)?;
        let slots = slots as u32;
        let clock = Clock { owners: vec![None; slots as usize], free: (0..slots).rev().collect(), hand: 0 };
        Ok(Self {
            lanes: Mutex::default(),
            memory,
            device: Arc::clone(device),
            number,
            page_bytes,
            is_checked,
            slots: (0..slots).map(|_| Usage::default()).collect(),
            clock: Mutex::new(clock),
            free: AtomicU32::new(slots),
            is_lost: AtomicBool::new(false),
            reason: Mutex::default(),
        })
    }

    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub fn memory(&self) -> &DeviceBuffer<dyn Device> {
        &self.memory
    }

    /// Index of the GPU in its tier.
    pub fn number(&self) -> u32 {
        self.number
    }

    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if the GPU has memory for one more page, so a page can be cached without a replacement.
    pub fn has_room(&self) -> bool {
        !self.is_lost() && self.free.load(Ordering::Relaxed) > 0
    }

    /// Number of slots (memory for one page each) of the GPU that cache a page.
    pub fn slots_in_use(&self) -> usize {
        self.slots.len() - self.free.load(Ordering::Relaxed) as usize
    }

    /// Byte offset of slot `at` (memory for one page) in the GPU's buffer.
    pub fn offset(&self, at: u32) -> u64 {
        u64::from(at) * self.page_bytes as u64
    }

    /// Returns true if reads transfer whole pages and verify their checksums.
    pub fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Returns true if the tier no longer uses this GPU.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Text of the error that made the tier give up this GPU; `None` if the tier still uses it.
    pub fn reason(&self) -> Option<String> {
        self.reason.lock().clone()
    }

    /// Makes the tier give up this GPU. No data is lost, because the file has all pages.
    #[cold]
    pub fn lose(&self, error: &Error) {
        let mut reason = self.reason.lock();
        if reason.is_some() {
            return;
        }
        *reason = Some(error.to_string());
        self.is_lost.store(true, Ordering::Release);
        drop(reason);
        let name = self.device.info();
        warn::warn(format!(
            "{name} no longer caches pages of a file, so they are read from the file: {error}"
        ));
    }

    /// Counts a thread that reads a slot (memory for one page): no page replaces the slot's page meanwhile.
    /// The caller has locked the page's entry in the page table.
    pub fn enter(&self, at: u32) -> Reading<'_> {
        let usage = &self.slots[at as usize];
        usage.readers.fetch_add(1, Ordering::Relaxed);
        // Store only if the flag is not set yet: a store takes the flag's cache line away from other
        // processors.
        if !usage.used.load(Ordering::Relaxed) {
            usage.used.store(true, Ordering::Relaxed);
        }
        Reading { card: self, at }
    }

    /// Takes over a slot (memory for one page) whose page was removed from the page table. Returns `None` if
    /// threads still read the slot; the last of these threads then releases it. The caller has locked the
    /// page's entry in the page table.
    pub fn take_left(&self, at: u32) -> Option<OwnedSlot<'_>> {
        let usage = &self.slots[at as usize];
        if usage.readers.fetch_or(LEFT, Ordering::AcqRel) != 0 {
            return None;
        }
        usage.readers.store(0, Ordering::Relaxed);
        Some(OwnedSlot::new(self, at))
    }

    /// Takes a slot (memory for one page): a free slot, or the slot of a page that was not read for a while.
    /// The returned bool is true if a page was replaced. Returns `None` if all slots have readers, or if the
    /// GPU is lost.
    pub fn take(&self, owner: Owner) -> Option<(OwnedSlot<'_>, bool)> {
        if self.is_lost() {
            return None;
        }
        let mut clock = self.clock.lock();
        let clock = &mut *clock;
        if let Some(at) = clock.free.pop() {
            self.free.store(clock.free.len() as u32, Ordering::Relaxed);
            self.slots[at as usize].holds_bytes.store(true, Ordering::Relaxed);
            clock.owners[at as usize] = Some(owner);
            return Some((OwnedSlot::new(self, at), false));
        }
        // Two revolutions of the CLOCK hand: the first may find all slots marked as used, and clears the
        // marks. The second then finds an unmarked slot.
        for _ in 0..2 * self.slots.len() {
            let at = clock.hand;
            clock.hand = (at + 1) % self.slots.len();
            let usage = &self.slots[at];
            if usage.used.swap(false, Ordering::Relaxed) {
                continue;
            }
            let slot = TierSlot { card: self.number, at: at as u32 };
            let Some((map, page)) = &clock.owners[at] else { continue };
            let has_left = map.with(*page, |entry| {
                // Check under the lock of the page's entry, so no other thread starts to read the page.
                usage.readers.load(Ordering::Acquire) == 0 && entry.leave(slot)
            });
            if has_left {
                clock.owners[at] = Some(owner);
                return Some((OwnedSlot::new(self, at as u32), true));
            }
        }
        None
    }

    /// Releases a slot (memory for one page) that caches no page.
    pub fn give_back(&self, at: u32) {
        let mut clock = self.clock.lock();
        clock.owners[at as usize] = None;
        clock.free.push(at);
        self.free.store(clock.free.len() as u32, Ordering::Relaxed);
    }

    /// Zeroes all free slots (memory for one page each) on the GPU.
    pub fn wipe_free(&self) -> Result<()> {
        // Lock the list of free slots (memory for one page each), so no other thread takes a slot meanwhile.
        let clock = self.clock.lock();
        let lane = self.lane()?;
        let mut last = None;
        for &at in &clock.free {
            if self.slots[at as usize].holds_bytes.swap(false, Ordering::Relaxed) {
                let (to, bytes) = (self.memory.at(self.offset(at)), self.page_bytes as u64);
                last = Some(lane.queue.submit(&Fill { to, bytes, pattern: &[0] })?);
            }
        }
        last.map_or(Ok(()), |ticket| self.device.wait(ticket))
    }

    /// Number of pages that fit in the host memory of a lane (a queue with host memory, for one thread).
    pub fn lane_pages(&self) -> usize {
        (LANE_BYTES / self.page_bytes).max(1)
    }

    /// Borrows a lane for the calling thread: a queue of the GPU with host memory for its copies.
    pub fn lane(&self) -> Result<LaneGuard<'_>> {
        let lane = self.lanes.lock().pop();
        let lane = lane.map_or_else(|| TierLane::new(&self.device, LANE_BYTES.max(self.page_bytes)), Ok)?;
        Ok(LaneGuard { lane: Some(lane), card: self })
    }
}

/// Guard of a thread that reads a slot; the slot caches the same page meanwhile.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    pub card: &'a TierCard,
    pub at: u32,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let usage = &self.card.slots[self.at as usize];
        if usage.readers.fetch_sub(1, Ordering::AcqRel) == LEFT | 1 {
            usage.readers.store(0, Ordering::Relaxed);
            self.card.give_back(self.at);
        }
    }
}

impl Reading<'_> {
    /// Returns true if `bytes` match the checksum that was stored when the page was copied to this GPU
    /// memory.
    pub fn is_sound(&self, bytes: &[u8]) -> bool {
        self.card.slots[self.at as usize].sum.load(Ordering::Relaxed) == checksum(bytes)
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// A slot that a thread owns, released on drop.
#[derive(Debug)]
pub(super) struct OwnedSlot<'a> {
    pub card: &'a TierCard,
    pub at: u32,
    is_settled: bool,
}

impl<'a> OwnedSlot<'a> {
    fn new(card: &'a TierCard, at: u32) -> Self {
        Self { card, at, is_settled: false }
    }

    pub fn slot(&self) -> TierSlot {
        TierSlot { card: self.card.number, at: self.at }
    }

    /// Stores the checksum of the page that this slot (memory for one page) caches.
    pub fn expect(&self, bytes: &[u8]) {
        self.card.slots[self.at as usize].sum.store(checksum(bytes), Ordering::Relaxed);
    }

    /// Keeps the page in this slot (memory for one page) of the GPU. Without this call, the drop releases the
    /// slot.
    pub fn settle(mut self) {
        self.is_settled = true;
    }
}

impl Drop for OwnedSlot<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.card.give_back(self.at);
        }
    }
}

/// Lane: a queue of a GPU, and host memory, page-locked if possible, for one thread at a time.
#[derive(Debug)]
pub(super) struct TierLane {
    /// GPU queue of one thread's copies. The first field, so its drop waits for copies before the drop of
    /// `host`.
    pub queue: Queue<dyn Device>,
    pub host: HostBuffer<dyn Device>,
}

impl TierLane {
    fn new(device: &Arc<dyn Device>, bytes: usize) -> Result<Self> {
        let host = HostBuffer::new(device, bytes, HostMemory::Pinned).or_else(|error| {
            if error.kind() != ErrorKind::PinRefused {
                return Err(error);
            }
            tracing::debug!(%error, "pages are copied to and from a GPU through pageable memory");
            HostBuffer::new(device, bytes, HostMemory::Pageable)
        })?;
        Ok(Self { queue: Queue::new(device)?, host })
    }
}

/// A borrowed lane. Its thread waits for all its submissions, unless it panics.
#[derive(Debug)]
pub(super) struct LaneGuard<'a> {
    lane: Option<TierLane>,
    card: &'a TierCard,
}

impl std::ops::Deref for LaneGuard<'_> {
    type Target = TierLane;

    fn deref(&self) -> &TierLane {
        self.lane.as_ref().expect("the value exists until the drop")
    }
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take().filter(|_| !self.card.is_lost() && !std::thread::panicking()) {
            self.card.lanes.lock().push(lane);
        }
    }
}
