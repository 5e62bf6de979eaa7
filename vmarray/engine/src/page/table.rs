//! The page table of an array: the array's length, and one entry for each page.

#![allow(clippy::len_without_is_empty, reason = "callers compare indices with the length")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::entry::Entry;
use crate::memory::{ask_for_large_pages, prefetch_write};

/// The page table: a flat array with an entry of 32 bytes for each page, reserved for the maximal number of
/// pages. It never moves. Unused entries are untouched zeroed memory.
#[derive(Debug)]
pub struct PageTable {
    /// The first entry; the [`Lengths`] precede it.
    first: NonNull<Entry>,
    start: NonNull<u8>,
    /// Number of pages that have a home slot.
    pages: AtomicU64,
    most: usize,
}

// SAFETY: the table owns the memory, which holds only atomic words.
unsafe impl Send for PageTable {}
// SAFETY: as above.
unsafe impl Sync for PageTable {}

/// The lengths of an array, in elements. They precede the first entry in memory, so a hit needs no second
/// address. Because they are no fields of the array, the array's fields can stay in registers.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Lengths {
    /// Indices below this value are in bounds, their page follows by a shift, and hits are not counted. Zero
    /// if the page length is not a power of two, or the array counts hits.
    quick: AtomicUsize,
    len: AtomicUsize,
}

impl Lengths {
    /// Returns the lengths that precede the first entry of a page table.
    ///
    /// # Safety
    /// The entry is the [first](PageTable::first) of a table that lives as long as `'a`.
    #[inline(always)]
    pub unsafe fn of<'a>(first: NonNull<Entry>) -> &'a Self {
        // SAFETY: the table stores them right before that entry, in the same memory, initially zero.
        unsafe { first.cast::<Self>().sub(1).as_ref() }
    }

    /// Returns true if an index is in bounds in the array with this first entry, and the array allows the
    /// quick path (page by shift, hits not counted). Then the thread also sees all writes before the
    /// publication of the length.
    ///
    /// # Safety
    /// As [`of`](Self::of).
    #[inline(always)]
    pub unsafe fn has_quick(first: NonNull<Entry>, index: usize) -> bool {
        // Compare the index with the length in memory, addressed from the entries' address, which a hit
        // already has in a register. For an atomic load the compiler would emit a separate instruction.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the word exists, as the caller guarantees. The read acts as an acquire load: this processor
        // keeps loads in order, and the compiler moves no access across the block.
        unsafe {
            std::arch::asm!(
                "cmp {index}, qword ptr [{first} - {before}]",
                "jae {outside}",
                index = in(reg) index,
                first = in(reg) first.as_ptr(),
                before = const size_of::<Self>() - std::mem::offset_of!(Self, quick),
                outside = label { return false },
                options(nostack),
            );
            true
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        // SAFETY: the caller has the same obligations.
        unsafe {
            index < Self::of(first).quick.load(Ordering::Acquire)
        }
    }

    /// Returns the length of the array in elements. A thread that finds an index below this length sees all
    /// writes before the length's publication.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Publishes a greater length in elements; if `is_quick`, also for the quick path (page by shift, hits
    /// not counted). The caller holds the page of the last element.
    #[inline]
    pub fn publish(&self, len: usize, is_quick: bool) {
        // Store `len` before `quick`: a thread that finds an index below `quick` then also sees this `len`.
        self.len.store(len, Ordering::Release);
        if is_quick {
            // Keep the maximum, because other threads may have published elements of the next page meanwhile.
            self.quick.fetch_max(len, Ordering::Release);
        }
    }

    /// Sets another length, in elements. If `is_quick`, accesses may take the quick path (page by shift, hits
    /// not counted). No other thread may use the array.
    #[inline]
    pub fn set(&self, len: usize, is_quick: bool) {
        self.len.store(len, Ordering::Release);
        self.quick.store(if is_quick { len } else { 0 }, Ordering::Release);
    }
}

impl PageTable {
    /// Returns a table of absent pages. `pages` of them have a home slot (place in device memory) now, and
    /// the array can grow to `most` pages. Returns `None` if there is not enough memory.
    pub fn new(pages: usize, most: usize) -> Option<Self> {
        assert!(pages <= most, "a new table must not have more pages than its maximum");
        let layout = Self::layout(most)?;
        // SAFETY: the layout contains at least the lengths.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let shift = start.align_offset(align_of::<Lengths>());
        assert!(
            shift < align_of::<Lengths>(),
            "the shift that aligns the lengths must be below their alignment"
        );
        // Random lookups are faster with large pages. Unused entries stay untouched, so they take no memory.
        ask_for_large_pages(start.as_ptr(), shift + size_of::<Lengths>() + pages * size_of::<Entry>());
        // SAFETY: the layout has room for the shift, the lengths and the entries; the alignment of lengths
        // covers that of entries.
        let first = unsafe { start.add(shift + size_of::<Lengths>()).cast() };
        Some(Self { first, start, pages: AtomicU64::new(pages as u64), most })
    }

    /// Returns the layout of lengths and entries with minimal alignment; the caller aligns them. Allocators
    /// clear over-aligned memory by writes, but get other zeroed memory from the system.
    fn layout(most: usize) -> Option<Layout> {
        let entries = size_of::<Entry>().checked_mul(most)?;
        let bytes = entries.checked_add(size_of::<Lengths>() + align_of::<Lengths>())?;
        Layout::from_size_align(bytes, 1).ok()
    }

    #[inline]
    pub fn lengths(&self) -> &Lengths {
        // SAFETY: the entry is the first, and the table lives as long as the reference.
        unsafe { Lengths::of(self.first) }
    }

    /// Returns the number of pages that have a home slot (place in device memory).
    #[inline]
    pub fn len(&self) -> u64 {
        self.pages.load(Ordering::Acquire)
    }

    /// Returns the maximal number of pages to which the array can grow.
    #[inline]
    pub fn most(&self) -> u64 {
        self.most as u64
    }

    /// Increases the number of pages that have a home slot (place in device memory) to `pages`.
    #[inline]
    pub fn lengthen(&self, pages: u64) {
        self.pages.fetch_max(pages, Ordering::AcqRel);
    }

    /// Returns the entry of a page.
    ///
    /// # Panics
    /// If `page` is at least the maximal number of pages; callers have checked the index of the element.
    #[inline]
    pub fn entry(&self, page: u64) -> &Entry {
        assert!(page < self.most as u64, "page {page} must be below the table's {}", self.most);
        // SAFETY: the memory has `most` entries. A zeroed entry equals the entry of an absent page from
        // `Entry::new`.
        unsafe { self.first.add(page as usize).as_ref() }
    }

    /// Prefetches the entry of a page into the processor's cache for a write. Any page number is allowed.
    #[inline(always)]
    pub fn prefetch(&self, page: u64) {
        prefetch_write(self.first.as_ptr().wrapping_add(page as usize));
    }

    /// Returns the bytes of the entries of pages that have a home slot (place in device memory).
    #[inline]
    pub fn bytes(&self) -> usize {
        self.len() as usize * size_of::<Entry>()
    }

    /// Returns the address of the first entry, even if the table has no pages.
    #[inline]
    pub fn first(&self) -> NonNull<Entry> {
        self.first
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        let Some(layout) = Self::layout(self.most) else { return };
        // SAFETY: allocated with this layout. Entries and lengths have nothing to drop.
        unsafe { dealloc(self.start.as_ptr(), layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::State;

    #[test]
    fn a_table_that_no_memory_has_room_for_is_refused() {
        assert!(PageTable::new(0, usize::MAX / size_of::<Entry>()).is_none());
        assert!(PageTable::new(0, usize::MAX).is_none());
    }

    /// Entries without pages are untouched memory.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_table_takes_memory_for_existing_pages() {
        let resident = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        let before = resident();
        let table = PageTable::new(10, 1 << 25).unwrap();
        table.entry(9).set_writer_pending();
        assert!(resident() < before + (256 << 20), "a GiB was asked for");
    }

    #[test]
    fn entries_and_lengths_equal_a_new_arrays() {
        for most in [0, 1, 5, 100_000] {
            let table = PageTable::new(most / 2, most).unwrap();
            assert_eq!((table.len(), table.most()), (most as u64 / 2, most as u64));
            let is_new = |page| table.entry(page).state(Ordering::Relaxed) == State(0);
            assert!((0..most as u64).all(is_new) && Entry::absent().state(Ordering::Relaxed) == State(0));
            let lengths = table.lengths();
            // SAFETY: the table lives.
            let state = |at| (lengths.len(), unsafe { Lengths::has_quick(table.first(), at) });
            assert_eq!(state(0), (0, false));
            lengths.publish(7, false);
            assert_eq!(state(0), (7, false));
            lengths.publish(9, true);
            assert_eq!([0, 8, 9, usize::MAX].map(state), [(9, true), (9, true), (9, false), (9, false)]);
            // A late thread publishes a shorter length.
            lengths.publish(8, true);
            assert_eq!(state(8), (8, true));
            table.lengthen(most as u64);
            table.lengthen(0);
            assert_eq!(table.bytes(), most * 32);
        }
    }
}
