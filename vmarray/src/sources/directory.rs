//! The directory of a source: records for each block (1/64 of a page) if the program's memory, the device, or
//! both have the current data.
//!
//! The home of a page is in the program's memory. The device of the page's channel (share of a device) may
//! have copies of some of the page's 64 blocks. Two words with one bit for each block record the copies:
//!
//! | valid | dirty | the home | the device | meaning |
//! |---|---|---|---|---|
//! | 0 | 0 | valid | nothing | exclusive to the home, or never fetched |
//! | 1 | 0 | valid | valid | shared: both are equal |
//! | 1 | 1 | stale | valid | exclusive to the device |
//!
//! Debug builds assert these invariants after each change: a dirty block is valid, a page with a valid block
//! has a slot, and no block lies behind the end of the page. So a block is exclusive to at most one location,
//! and always has a valid copy.
//!
//! Each page has a read-write lock. A thread with the shared lock may read elements at home. A thread with
//! the exclusive lock may write elements, and change the two words. A thread that holds the shared lock and
//! the page's channel may also *set* bits in `valid`, because only threads that hold the channel look for
//! missing bits. To avoid deadlocks, a thread that holds a page does not wait for a channel. A thread that
//! holds several pages also holds their channel, or does not wait for the locks of pages.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Slot number of a page without a slot.
pub(super) const NO_SLOT: u32 = u32::MAX;
const BLOCKS: usize = 64;

/// The directory's entry of one page.
#[derive(Debug)]
pub(super) struct DirectoryEntry {
    lock: RwLock<()>,
    valid: AtomicU64,
    dirty: AtomicU64,
    slot: AtomicU32,
    /// A version, which increases with each change of the words or the slot, so that an asynchronous copy
    /// detects such a change. It never wraps in practice.
    version: AtomicU64,
}

/// The shared lock of a page. While a thread has it, no thread writes to the page's elements in the home.
#[derive(Debug)]
pub(super) struct SharedPage<'a> {
    entry: &'a DirectoryEntry,
    _guard: RwLockReadGuard<'a, ()>,
}

/// The exclusive lock of a page.
#[derive(Debug)]
pub(super) struct ExclusivePage<'a> {
    entry: &'a DirectoryEntry,
    guard: RwLockWriteGuard<'a, ()>,
}

impl SharedPage<'_> {
    pub(super) fn is_of(&self, entry: &DirectoryEntry) -> bool {
        std::ptr::eq(self.entry, entry)
    }
}

impl<'a> ExclusivePage<'a> {
    pub(super) fn is_of(&self, entry: &DirectoryEntry) -> bool {
        std::ptr::eq(self.entry, entry)
    }

    /// Turns the exclusive lock into a shared one.
    pub(super) fn downgrade(self) -> SharedPage<'a> {
        SharedPage { entry: self.entry, _guard: RwLockWriteGuard::downgrade(self.guard) }
    }
}

impl DirectoryEntry {
    pub(super) fn new() -> Self {
        Self {
            lock: RwLock::new(()),
            valid: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            slot: AtomicU32::new(NO_SLOT),
            version: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn share(&self) -> SharedPage<'_> {
        SharedPage { entry: self, _guard: self.lock.read() }
    }

    #[inline]
    pub(super) fn take(&self) -> ExclusivePage<'_> {
        ExclusivePage { entry: self, guard: self.lock.write() }
    }

    pub(super) fn try_take(&self) -> Option<ExclusivePage<'_>> {
        Some(ExclusivePage { entry: self, guard: self.lock.try_write()? })
    }

    /// Returns the blocks that are valid on the device, one bit each.
    #[inline]
    pub(super) fn valid(&self) -> u64 {
        self.valid.load(Relaxed)
    }

    /// Returns the blocks that are valid on the device only, one bit each.
    #[inline]
    pub(super) fn dirty(&self) -> u64 {
        self.dirty.load(Relaxed)
    }

    #[inline]
    pub(super) fn slot(&self) -> Option<u32> {
        Some(self.slot.load(Relaxed)).filter(|&slot| slot != NO_SLOT)
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    /// Records that blocks were copied to the device.
    #[inline]
    pub(super) fn fetched(&self, blocks: u64) {
        self.valid.fetch_or(blocks, Relaxed);
        self.check();
    }

    /// Records that the device wrote blocks.
    pub(super) fn changed_on_device(&self, blocks: u64) {
        self.valid.store(self.valid() | blocks, Relaxed);
        self.dirty.store(self.dirty() | blocks, Relaxed);
        self.rise();
    }

    /// Records that blocks were copied to the home.
    pub(super) fn flushed(&self, blocks: u64) {
        self.dirty.store(self.dirty() & !blocks, Relaxed);
        self.rise();
    }

    /// Records that the device's copies of blocks are invalid.
    pub(super) fn invalidate(&self, blocks: u64) {
        if self.valid() & blocks != 0 {
            self.dirty.store(self.dirty() & !blocks, Relaxed);
            self.valid.store(self.valid() & !blocks, Relaxed);
            self.rise();
        }
    }

    /// Assigns a slot to the page, or removes it. No block may be valid on the device.
    pub(super) fn place(&self, slot: Option<u32>) {
        debug_assert!(self.valid() == 0, "a page with valid copies on the device must keep its slot");
        self.slot.store(slot.unwrap_or(NO_SLOT), Relaxed);
        self.rise();
    }

    fn rise(&self) {
        self.version.fetch_add(1, Relaxed);
        self.check();
    }

    #[inline]
    fn check(&self) {
        debug_assert!(
            self.dirty() & !self.valid() == 0,
            "a block that is newer on the device must be valid \
                there"
        );
        debug_assert!(self.valid() == 0 || self.slot().is_some(), "valid copies on a device need a slot");
    }
}

/// The division of a source into pages and blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cuts {
    pub(super) len: usize,
    pub(super) page_len: usize,
    pub(super) block_len: usize,
    /// All blocks of a full page.
    all: u64,
}

impl Cuts {
    pub(super) fn new(len: usize, page_len: usize) -> Self {
        let block_len = page_len.div_ceil(BLOCKS);
        Self { len, page_len, block_len, all: bits(0, page_len.div_ceil(block_len)) }
    }

    pub(super) fn pages(&self) -> usize {
        self.len.div_ceil(self.page_len)
    }

    pub(super) fn touched_pages(&self, range: &Range<usize>) -> Range<usize> {
        if range.is_empty() { 0..0 } else { range.start / self.page_len..range.end.div_ceil(self.page_len) }
    }

    #[inline]
    pub(super) fn elements(&self, page: usize) -> usize {
        (self.len - page * self.page_len).min(self.page_len)
    }

    /// Returns the elements of a page that are in a range, which overlaps the page.
    #[inline]
    pub(super) fn within(&self, page: usize, range: &Range<usize>) -> Range<usize> {
        let first = page * self.page_len;
        range.start.max(first) - first..(range.end - first).min(self.page_len)
    }

    /// Returns the blocks that overlap a part of a page, one bit each.
    #[inline]
    pub(super) fn touched(&self, within: &Range<usize>) -> u64 {
        if within.start == 0 && within.end == self.page_len {
            return self.all;
        }
        bits(within.start / self.block_len, within.end.div_ceil(self.block_len))
    }

    /// Returns the blocks that are completely in a part of a page, one bit each.
    #[inline]
    pub(super) fn covered(&self, page: usize, within: &Range<usize>) -> u64 {
        let elements = self.elements(page);
        let end = if within.end == elements {
            elements.div_ceil(self.block_len)
        } else {
            within.end / self.block_len
        };
        bits(within.start.div_ceil(self.block_len), end)
    }

    /// Returns the elements of some blocks of a page, in as few ascending ranges as possible.
    pub(super) fn ranges(&self, page: usize, blocks: u64) -> impl Iterator<Item = Range<usize>> + use<> {
        let (block_len, elements) = (self.block_len, self.elements(page));
        let mut left = blocks;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let start = left.trailing_zeros() as usize;
            let end = start + (!(left >> start)).trailing_zeros() as usize;
            left &= !bits(start, end);
            Some(start * block_len..(end * block_len).min(elements))
        })
    }
}

/// Returns a word with the bits `start..end` set.
#[inline]
fn bits(start: usize, end: usize) -> u64 {
    if end <= start { 0 } else { (u64::MAX >> (BLOCKS - (end - start))) << start }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_their_ranges() {
        for (len, page_len) in [(1, 1), (10, 3), (640, 64), (1000, 128), (1000, 100), (70, 65), (5000, 999)] {
            let cuts = Cuts::new(len, page_len);
            for page in 0..cuts.pages() {
                let elements = cuts.elements(page);
                let of = |blocks: u64| -> Vec<usize> { cuts.ranges(page, blocks).flatten().collect() };
                assert_eq!(
                    of(u64::MAX >> (BLOCKS - elements.div_ceil(cuts.block_len))),
                    (0..elements).collect::<Vec<_>>()
                );
                let step = if backend_api::wrap::has_all_cases() { 1 } else { 7 };
                for start in (0..elements).step_by(step) {
                    for end in [start + 1, start + 2, (start + elements) / 2, elements] {
                        let part = start..end.clamp(start + 1, elements);
                        let (touched, covered) = (of(cuts.touched(&part)), of(cuts.covered(page, &part)));
                        assert!(part.clone().all(|at| touched.contains(&at)), "{len} {page_len} {part:?}");
                        assert!(touched.len() < part.len() + 2 * cuts.block_len);
                        assert!(covered.iter().all(|at| part.contains(at)), "{len} {page_len} {part:?}");
                        assert!(covered.len() + 2 * cuts.block_len > part.len());
                        assert_eq!(cuts.covered(page, &part) & !cuts.touched(&part), 0);
                    }
                }
            }
        }
    }

    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<DirectoryEntry>() <= 40);
    }

    #[test]
    fn a_version_never_comes_round() {
        let entry = DirectoryEntry::new();
        for passed in [u64::from(u32::MAX), 1 << 40] {
            entry.version.store(passed, Relaxed);
            entry.flushed(0);
            assert!(entry.version() > passed);
        }
    }
}
