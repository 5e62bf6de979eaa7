//! The memory of a card that has pages of a file, and the ways to and from it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use backend_api::{
    Commit, Device, DeviceBuffer, Error, ErrorKind, Fill, HostBuffer, HostMemory, Queue, Result, tell,
};
use parking_lot::Mutex;
use twox_hash::XxHash3_64;

use super::map::{PageMap, Slot};

/// How much host memory a lane has at least, and so how much is moved by one submission.
pub(super) const LANE_BYTES: usize = 2 << 20;

/// Marks a slot that is to be given back by whoever is the last to read from it.
const LEFT: u32 = 1 << 31;

/// A card, with slots of the length of a page.
///
/// A thread takes the lock of the clock before those of pages, and none of them while it holds a page's.
///
/// A slot is free, or taken by a thread ([`Taken`]), or it has a page. Threads that read a page from it count
/// themselves in first, under the lock of the page's stripe ([`PageMap`]); nobody takes a slot from which
/// somebody reads.
pub(super) struct Card {
    /// Dropped before the memory that they copy to.
    lanes: Mutex<Vec<Lane>>,
    memory: DeviceBuffer<dyn Device>,
    device: Arc<dyn Device>,
    number: u32,
    page_bytes: usize,
    /// Whether pages are compared with checksums.
    is_checked: bool,
    slots: Box<[Usage]>,
    clock: Mutex<Clock>,
    /// How many slots are free, for those who must not wait for the clock.
    free: AtomicU32,
    is_lost: AtomicBool,
    reason: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
struct Usage {
    /// How many threads read from it, and whether it is [`LEFT`].
    readers: AtomicU32,
    /// Whether it was read since the hand passed.
    used: AtomicBool,
    /// Whether anything was ever written to it, or since it was wiped.
    holds_bytes: AtomicBool,
    /// The checksum of its page, if there are any; set by whoever has taken it.
    sum: AtomicU64,
}

/// Which page a slot has or is taken for.
type Owner = (Arc<PageMap>, u64);

/// **CLOCK** (F. J. Corbató, "A paging experiment with the Multics system", 1968): a hand goes around the
/// slots and leaves those alone that were read since it passed.
#[derive(Debug, Default)]
struct Clock {
    owners: Vec<Option<Owner>>,
    free: Vec<u32>,
    hand: usize,
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Card");
        debug.field("device", &self.device.info().name).field("slots", &self.slots.len());
        debug.finish_non_exhaustive()
    }
}

impl Card {
    /// Slots of `page_bytes` bytes on a device, of so many bytes at most, and of no more than it has.
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

    /// Its place among the cards of the tier.
    pub fn number(&self) -> u32 {
        self.number
    }

    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Whether a page need not go for another one.
    pub fn has_room(&self) -> bool {
        !self.is_lost() && self.free.load(Ordering::Relaxed) > 0
    }

    /// How many slots have a page, or are about to.
    pub fn slots_in_use(&self) -> usize {
        self.slots.len() - self.free.load(Ordering::Relaxed) as usize
    }

    /// Where a slot begins.
    pub fn offset(&self, at: u32) -> u64 {
        u64::from(at) * self.page_bytes as u64
    }

    /// Whether pages are read whole, and compared with what was copied to the card.
    pub fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Whether it is not used any more.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Why it is not used any more.
    pub fn reason(&self) -> Option<String> {
        self.reason.lock().clone()
    }

    /// Uses it no more; its pages are in the file.
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
        tell::warn(format!("{name} no longer caches pages of a file, which are read from there: {error}"));
    }

    /// Counts a thread in that reads from a slot. The caller holds the lock of the page that the slot has.
    pub fn enter(&self, at: u32) -> Reading<'_> {
        let usage = &self.slots[at as usize];
        usage.readers.fetch_add(1, Ordering::Relaxed);
        // Threads that read the same page share the line as long as none writes to it.
        if !usage.used.load(Ordering::Relaxed) {
            usage.used.store(true, Ordering::Relaxed);
        }
        Reading { card: self, at }
    }

    /// Takes the slot of a page that has just left it, unless somebody reads there: then the last one gives
    /// it back. The caller holds the lock of the page.
    pub fn take_left(&self, at: u32) -> Option<Taken<'_>> {
        let usage = &self.slots[at as usize];
        if usage.readers.fetch_or(LEFT, Ordering::AcqRel) != 0 {
            return None;
        }
        usage.readers.store(0, Ordering::Relaxed);
        Some(Taken::new(self, at))
    }

    /// A slot for a page: a free one, or that of a page that was not read for a while. Also tells whether a
    /// page had to go. None if all are being read from, or the card is lost.
    pub fn take(&self, owner: Owner) -> Option<(Taken<'_>, bool)> {
        if self.is_lost() {
            return None;
        }
        let mut clock = self.clock.lock();
        let clock = &mut *clock;
        if let Some(at) = clock.free.pop() {
            self.free.store(clock.free.len() as u32, Ordering::Relaxed);
            self.slots[at as usize].holds_bytes.store(true, Ordering::Relaxed);
            clock.owners[at as usize] = Some(owner);
            return Some((Taken::new(self, at), false));
        }
        // Once to find all of them used, and once to find one that is not.
        for _ in 0..2 * self.slots.len() {
            let at = clock.hand;
            clock.hand = (at + 1) % self.slots.len();
            let usage = &self.slots[at];
            if usage.used.swap(false, Ordering::Relaxed) {
                continue;
            }
            let slot = Slot { card: self.number, at: at as u32 };
            let Some((map, page)) = &clock.owners[at] else { continue };
            let has_left = map.with(*page, |entry| {
                // Nobody begins to read while the page's lock is held.
                usage.readers.load(Ordering::Acquire) == 0 && entry.leave(slot)
            });
            if has_left {
                clock.owners[at] = Some(owner);
                return Some((Taken::new(self, at as u32), true));
            }
        }
        None
    }

    /// Has a slot free again, which no page has any more.
    pub fn give_back(&self, at: u32) {
        let mut clock = self.clock.lock();
        clock.owners[at as usize] = None;
        clock.free.push(at);
        self.free.store(clock.free.len() as u32, Ordering::Relaxed);
    }

    /// Zeroes what is left in slots that are free.
    pub fn wipe_free(&self) -> Result<()> {
        // Nobody else takes them meanwhile.
        let clock = self.clock.lock();
        let lane = self.lane()?;
        let mut last = None;
        for &at in &clock.free {
            if self.slots[at as usize].holds_bytes.swap(false, Ordering::Relaxed) {
                let (to, bytes) = (self.memory.at(self.offset(at)), self.page_bytes as u64);
                last = Some(lane.queue.fill(&Fill { to, bytes, pattern: &[0] })?);
            }
        }
        last.map_or(Ok(()), |ticket| self.device.wait(ticket))
    }

    /// How many pages the memory of a lane has room for.
    pub fn lane_pages(&self) -> usize {
        (LANE_BYTES / self.page_bytes).max(1)
    }

    /// A queue, and host memory that is copied to and from by it, for the calling thread.
    pub fn lane(&self) -> Result<LaneGuard<'_>> {
        let lane = self.lanes.lock().pop();
        let lane = lane.map_or_else(|| Lane::new(&self.device, LANE_BYTES.max(self.page_bytes)), Ok)?;
        Ok(LaneGuard { lane: Some(lane), card: self })
    }
}

/// A thread that reads from a slot, which keeps its page meanwhile.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    pub card: &'a Card,
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
    /// Whether these bytes are those that were copied to the slot.
    pub fn is_sound(&self, bytes: &[u8]) -> bool {
        self.card.slots[self.at as usize].sum.load(Ordering::Relaxed) == checksum(bytes)
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// A slot that a thread has for itself; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    pub card: &'a Card,
    pub at: u32,
    is_settled: bool,
}

impl<'a> Taken<'a> {
    fn new(card: &'a Card, at: u32) -> Self {
        Self { card, at, is_settled: false }
    }

    pub fn slot(&self) -> Slot {
        Slot { card: self.card.number, at: self.at }
    }

    /// Notes what its page has, for those who read it.
    pub fn expect(&self, bytes: &[u8]) {
        self.card.slots[self.at as usize].sum.store(checksum(bytes), Ordering::Relaxed);
    }

    /// Leaves the slot to the page that it was taken for, which has it by now.
    pub fn settle(mut self) {
        self.is_settled = true;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.card.give_back(self.at);
        }
    }
}

/// A queue of a card, and host memory, page-locked if possible.
#[derive(Debug)]
pub(super) struct Lane {
    /// Dropped first, which waits for copies.
    pub queue: Queue<dyn Device>,
    pub host: HostBuffer<dyn Device>,
}

impl Lane {
    fn new(device: &Arc<dyn Device>, bytes: usize) -> Result<Self> {
        let host = HostBuffer::new(device, bytes, HostMemory::Pinned).or_else(|error| {
            if error.kind() != ErrorKind::PinRefused {
                return Err(error);
            }
            tracing::debug!(%error, "pages are copied to and from a card by way of pageable memory");
            HostBuffer::new(device, bytes, HostMemory::Pageable)
        })?;
        Ok(Self { queue: Queue::new(device)?, host })
    }
}

/// A lane that goes back to its card. Whoever has it waits for what he submitted, unless he panics.
#[derive(Debug)]
pub(super) struct LaneGuard<'a> {
    lane: Option<Lane>,
    card: &'a Card,
}

impl std::ops::Deref for LaneGuard<'_> {
    type Target = Lane;

    fn deref(&self) -> &Lane {
        self.lane.as_ref().expect("it is there until the drop")
    }
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take().filter(|_| !self.card.is_lost() && !std::thread::panicking()) {
            self.card.lanes.lock().push(lane);
        }
    }
}
