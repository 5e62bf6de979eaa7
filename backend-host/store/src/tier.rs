//! [`Tier`]: a cache of file pages in the memory of GPUs, between the file and RAM.

mod card;
#[forbid(unsafe_code)]
mod map;
mod tiered;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use backend_api::Device;
use parking_lot::Mutex;
use vmarray_support::warn;

use card::{OwnedSlot, TierCard};
use map::PageMap;

pub(crate) use tiered::Tiered;

/// Default length of cached pages in bytes: long enough that the fixed cost of a copy is small.
pub(crate) const PAGE_BYTES: usize = 64 << 10;
/// Minimum length in bytes of cached pages of a store; shorter pages are combined.
const STORE_PAGE_BYTES_LEAST: usize = 4096;
/// Admission: if the GPUs are full, a page is cached at its second miss, if the misses between the two are
/// fewer than the number of slots divided by this number.
const REMEMBERED_SHARE: u32 = 2;
/// Misses of a page count as one use if the misses between them are fewer than the number of slots divided by
/// this number, because a page is often read in parts.
const APART_SHARE: u32 = 64;

/// A cache of a file's pages in the memory of GPUs. Repeated reads then run at the speed of the bus to the
/// GPU, instead of the drive's speed.
///
/// A tier can use any device: GPUs of all backends, host RAM, simulated devices. Pass the tier to a
/// [`FileDevice`](crate::FileDeviceBuilder::tier) or a [`StoreDevice`](crate::StoreDevice::with_tier). The
/// first of these devices allocates all of the tier's GPU memory; the drop of the last one releases the
/// memory. Devices with the same page length share the memory. For another page length the tier allocates the
/// same amount again. Clones refer to the same tier.
///
/// # Admission and replacement
///
/// While the GPUs have free slots (memory for one page each), each page that is read is copied to a GPU. When
/// all slots are used, a page is copied only at its second miss, if the first miss was recent. The page
/// replaces a page that was not read for a while. This is *lazy admission* (S. Huang et al., "LARC", MSST
/// 2013) before CLOCK. So a single scan of a file does not displace cached pages, and only few misses cost a
/// copy to a GPU.
///
/// A write completes when it has reached the file, as without a tier. If the page is cached, the device
/// updates the copy on the GPU. If less than 4 KiB of the page changes, it evicts the copy instead, until the
/// next read. So GPUs only hold copies of the file, and the loss of a GPU loses no data.
///
/// # Failed GPUs
///
/// If a GPU fails or has too little memory, the tier does not use it any more. Its pages are read from the
/// file, and a warning and [`TierStatus::lost`] report the reason.
///
/// # Cost
///
/// 28 bytes of RAM for each used page of the file, and 2 MiB of page-locked RAM for each active thread. A hit
/// copies the page from the GPU to the page-locked RAM, and from there to its destination.
///
/// ```
/// use std::sync::Arc;
/// use backend_api::{Commit, Device, DeviceBuffer, Fill, HostBuffer, HostMemory, Queue, Transfer};
/// use backend_host::HostDevice;
/// use vmarray_store::{FileDevice, Tier};
///
/// let card = Arc::new(HostDevice::new(1 << 20)?);
/// let tier = Tier::new([card.clone()]).bytes(512 << 10).page_bytes(4096);
/// let file = FileDevice::builder(std::env::temp_dir()).tier(&tier).create_temporary(16 << 20)?;
/// let file = Arc::new(file);
/// assert_eq!(card.memory()?.free_bytes, 512 << 10);
///
/// let (queue, memory) = (Queue::new(&file)?, DeviceBuffer::new(&file, 8 << 20, Commit::Lazy)?);
/// let host = HostBuffer::new(&file, 4096, HostMemory::Pageable)?;
/// file.wait(queue.submit(&Fill { to: memory.at(0), bytes: 8 << 20, pattern: &[7] })?)?;
/// for _ in 0..3 {
///     let read = Transfer::Download { from: memory.at(8192), to: host.at(0), bytes: 4096 };
///     file.wait(queue.submit(&[read])?)?;
/// }
/// let status = tier.status();
/// assert_eq!((status.misses, status.hits, status.bytes, status.capacity_bytes), (1, 2, 4096, 512 << 10));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tier {
    cards: Vec<Arc<dyn Device>>,
    bytes: u64,
    page_bytes: Option<usize>,
    is_checked: bool,
    /// The allocated GPU memory, by page length.
    opened: Arc<Mutex<Vec<Weak<Cards>>>>,
}

impl FromIterator<Arc<dyn Device>> for Tier {
    /// Collects GPUs of several types.
    fn from_iter<I: IntoIterator<Item = Arc<dyn Device>>>(cards: I) -> Self {
        Self {
            cards: cards.into_iter().collect(),
            bytes: u64::MAX,
            page_bytes: None,
            is_checked: false,
            opened: Arc::default(),
        }
    }
}

impl Tier {
    /// Creates a tier that uses the whole memory of these GPUs. To combine several types of devices, collect
    /// an iterator of `Arc<dyn Device>` to a tier.
    #[must_use]
    pub fn new<D: Device>(cards: impl IntoIterator<Item = Arc<D>>) -> Self {
        cards.into_iter().map(|card| card as Arc<dyn Device>).collect()
    }

    /// Sets the maximum memory of the tier on each GPU, in bytes.
    #[must_use]
    pub fn bytes(self, bytes: u64) -> Self {
        Self { bytes, opened: Arc::default(), ..self }
    }

    /// Sets the length of cached pages in bytes. The page length of the array is best. The default is 64 KiB;
    /// for a store it is the store's page length, or a multiple of at least 4 KiB for shorter pages.
    ///
    /// For a store, the length is rounded up to a multiple of the store's page length. Cached pages are
    /// aligned to the start of each buffer.
    #[must_use]
    pub fn page_bytes(self, bytes: usize) -> Self {
        Self { page_bytes: Some(bytes.max(1)), opened: Arc::default(), ..self }
    }

    /// Verifies pages from GPUs with a checksum (XXH3, 64 bits, in RAM); off by default. If the checksum
    /// differs, the device reads the page from the file instead, and [`TierStatus::damaged`] counts the page.
    /// With checksums, reads transfer whole pages, even for single elements, and pass them through a
    /// processor's cache once more.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use backend_host::HostDevice;
    /// # use vmarray_store::Tier;
    /// let tier = Tier::new([Arc::new(HostDevice::new(1 << 20)?)]).checksums(true);
    /// assert_eq!(tier.status().damaged, 0);
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    #[must_use]
    pub fn checksums(self, are_kept: bool) -> Self {
        Self { is_checked: are_kept, opened: Arc::default(), ..self }
    }

    /// Returns the state of the GPUs, and the counts of all live file devices with this tier.
    #[must_use]
    pub fn status(&self) -> TierStatus {
        let opened: Vec<_> = self.opened.lock().iter().filter_map(Weak::upgrade).collect();
        let status = opened.iter().map(|cards| cards.status());
        status.reduce(TierStatus::and).unwrap_or_default()
    }

    /// Opens the tier's GPU memory for a file device.
    pub(crate) fn open(&self) -> Arc<Cards> {
        self.open_with(self.page_bytes.unwrap_or(PAGE_BYTES))
    }

    /// Opens the tier's GPU memory for a store with pages of this length in bytes.
    pub(crate) fn open_for_store(&self, store_page_bytes: usize) -> Arc<Cards> {
        let asked = self.page_bytes.unwrap_or(STORE_PAGE_BYTES_LEAST);
        self.open_with(asked.next_multiple_of(store_page_bytes))
    }

    fn open_with(&self, page_bytes: usize) -> Arc<Cards> {
        let mut opened = self.opened.lock();
        opened.retain(|cards| cards.strong_count() > 0);
        let same = opened.iter().filter_map(Weak::upgrade).find(|cards| cards.page_bytes == page_bytes);
        same.unwrap_or_else(|| {
            let cards = Cards::new(self, page_bytes);
            opened.push(Arc::downgrade(&cards));
            cards
        })
    }
}

/// Counts and state of a [tier](Tier). A page that is read in parts counts once for each part.
///
/// ```
/// # use std::sync::Arc;
/// # use backend_host::HostDevice;
/// # use vmarray_store::{FileDevice, Tier};
/// let tier = Tier::new([Arc::new(HostDevice::new(1000)?)]);
/// let file = FileDevice::builder(std::env::temp_dir()).tier(&tier).create_temporary(1 << 20)?;
/// let status = tier.status();
/// assert_eq!((status.hit_share(), status.lost.len()), (0.0, 1));
/// assert!(status.lost[0].reason.contains("memory"), "not one page of 64 KiB: {}", status.lost[0].reason);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierStatus {
    /// Number of pages read from GPUs.
    pub hits: u64,
    /// Number of pages read from the file.
    pub misses: u64,
    /// Number of pages that were copied to a GPU after a read.
    pub admitted: u64,
    /// Number of cached pages that were replaced by other pages.
    pub evicted: u64,
    /// Number of pages that failed their [checksum](Tier::checksums), and were read from the file.
    pub damaged: u64,
    /// Number of bytes of file pages that the GPUs cache now.
    pub bytes: u64,
    /// Capacity of the tier's GPU memory in bytes.
    pub capacity_bytes: u64,
    /// GPUs that the tier does not use, or no longer uses, with the reason.
    pub lost: Vec<LostCard>,
}

impl TierStatus {
    /// Fraction of read pages that came from GPUs, from 0 to 1; 0 if no page was read.
    #[must_use]
    pub fn hit_share(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }

    /// Adds the counts of the same tier for another page length.
    fn and(mut self, other: Self) -> Self {
        self.hits += other.hits;
        self.misses += other.misses;
        self.admitted += other.admitted;
        self.evicted += other.evicted;
        self.damaged += other.damaged;
        self.bytes += other.bytes;
        self.capacity_bytes += other.capacity_bytes;
        self.lost.extend(other.lost);
        self
    }
}

/// A GPU that a [tier](Tier) does not use.
///
/// ```
/// # use std::sync::Arc;
/// use backend_host::HostDevice;
/// use vmarray_store::{FileDevice, LostCard, Tier};
/// let tier = Tier::new([Arc::new(HostDevice::new(100)?)]);
/// let file = FileDevice::builder(std::env::temp_dir()).tier(&tier).create_temporary(1 << 20)?;
/// for LostCard { device, reason, .. } in &tier.status().lost {
///     println!("{device} is not used: {reason}");
/// }
/// assert_eq!(tier.status().lost.len(), 1);
/// # drop(file);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostCard {
    /// Name and backend of the GPU.
    pub device: String,
    /// Text of the error that made the tier give up the GPU.
    pub reason: String,
}

/// Memory of all GPUs of a tier for one page length, and its counts.
#[derive(Debug)]
pub(crate) struct Cards {
    cards: Vec<TierCard>,
    /// GPUs on which the tier could not allocate memory.
    refused: Vec<LostCard>,
    page_bytes: usize,
    /// True if pages from GPUs are verified by checksums.
    is_checked: bool,
    /// Position of the round robin over the GPUs.
    turn: AtomicU64,
    counts: Counts,
    /// Number of misses, which may wrap around. It is the clock of the admission.
    clock: AtomicU32,
}

#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    admitted: AtomicU64,
    evicted: AtomicU64,
    damaged: AtomicU64,
}

impl Cards {
    fn new(tier: &Tier, page_bytes: usize) -> Arc<Self> {
        let (mut cards, mut refused) = (Vec::new(), Vec::new());
        for device in &tier.cards {
            match TierCard::new(device, cards.len() as u32, page_bytes, tier.bytes, tier.is_checked) {
                Ok(card) => cards.push(card),
                Err(error) => {
                    let device = device.info().to_string();
                    warn::warn(format!("{device} cannot cache pages of a file: {error}"));
                    refused.push(LostCard { device, reason: error.to_string() });
                }
            }
        }
        Arc::new(Self {
            cards,
            refused,
            page_bytes,
            is_checked: tier.is_checked,
            turn: AtomicU64::new(0),
            counts: Counts::default(),
            // Start at 1, because 0 in an entry means "never".
            clock: AtomicU32::new(1),
        })
    }

    pub fn wipe_on_release(&self) -> backend_api::Result<()> {
        // Skip lost GPUs, which have no memory to wipe.
        self.in_use().try_for_each(|card| card.device().wipe_on_release())
    }

    pub fn status(&self) -> TierStatus {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let bytes = |slots: usize| slots as u64 * self.page_bytes as u64;
        let lost = self.cards.iter().filter_map(|card| {
            Some(LostCard { device: card.device().info().to_string(), reason: card.reason()? })
        });
        TierStatus {
            hits: count(&self.counts.hits),
            misses: count(&self.counts.misses),
            admitted: count(&self.counts.admitted),
            evicted: count(&self.counts.evicted),
            damaged: count(&self.counts.damaged),
            bytes: self.in_use().map(|card| bytes(card.slots_in_use())).sum(),
            capacity_bytes: self.in_use().map(|card| bytes(card.slots())).sum(),
            lost: self.refused.iter().cloned().chain(lost).collect(),
        }
    }

    fn in_use(&self) -> impl Iterator<Item = &TierCard> {
        self.cards.iter().filter(|card| !card.is_lost())
    }

    fn slots(&self) -> usize {
        self.in_use().map(|card| card.slots()).sum()
    }

    /// Number of misses.
    fn now(&self) -> u32 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Adds the hits and misses of a batch of reads to the counts.
    fn count(&self, hits: usize, misses: usize) {
        self.clock.fetch_add(misses as u32, Ordering::Relaxed);
        self.counts.hits.fetch_add(hits as u64, Ordering::Relaxed);
        self.counts.misses.fetch_add(misses as u64, Ordering::Relaxed);
    }

    /// Records a miss of a page, number `number` of a batch that began at `start`. Returns true if the page
    /// should be copied to a GPU. Misses of one batch count as one use, because a list of indices has several
    /// elements of each page.
    fn wants(&self, entry: &mut map::TierEntry, start: u32, number: usize) -> bool {
        let slots = self.slots() as u32;
        if slots == 0 {
            return false;
        }
        let apart = (slots / APART_SHARE).max(1);
        let is_remembered = |ago: u32| ago >= apart && ago <= (slots / REMEMBERED_SHARE).max(1);
        let at = start.wrapping_add(number as u32);
        let is_hot = entry.miss(start, at, apart).is_some_and(is_remembered) || entry.is_due();
        is_hot || self.in_use().any(|card| card.has_room())
    }

    /// Allocates a slot for a page: a free one, else one on the next GPU, in proportion to the GPUs' memory.
    fn take(&self, map: &Arc<PageMap>, page: u64) -> Option<OwnedSlot<'_>> {
        let cards: Vec<&TierCard> = self.in_use().collect();
        let slots = cards.iter().map(|card| card.slots() as u64).sum::<u64>().max(1);
        let number = self.turn.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mut left = number % slots;
        let turn = cards.iter().position(|card| {
            let is_it = left < card.slots() as u64;
            left = left.saturating_sub(card.slots() as u64);
            is_it
        });
        let mut in_turn = cards.iter().cycle().skip(turn?).take(cards.len());
        let card = in_turn.clone().find(|card| card.has_room());
        let owner = || (Arc::clone(map), page);
        let taken = card.and_then(|card| card.take(owner()));
        let (taken, had_to_go) = taken.or_else(|| in_turn.find_map(|card| card.take(owner())))?;
        if had_to_go {
            self.counts.evicted.fetch_add(1, Ordering::Relaxed);
        }
        Some(taken)
    }
}
