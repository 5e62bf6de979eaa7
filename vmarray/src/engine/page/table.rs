//! Page table: the length of the array, and the entries of all its pages.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::entry::Entry;
use crate::base::memory::{ask_for_large_pages, prefetch_write};

/// A flat table: page number to entry, 32 bytes a page, for the greatest number of pages. It does not move.
/// Unused entries are untouched zeroed memory.
#[derive(Debug)]
pub(crate) struct PageTable {
    /// The first entry, behind the [`Lengths`].
    first: NonNull<Entry>,
    /// The start of its memory.
    start: NonNull<u8>,
    /// Number of pages with a home.
    pages: AtomicU64,
    most: usize,
}

// SAFETY: the table owns the memory, which holds only atomic words.
unsafe impl Send for PageTable {}
// SAFETY: as above.
unsafe impl Sync for PageTable {}

/// Lengths of an array, in elements. They precede its first entry, so a hit, which has that address, needs no
/// other one. They are outside of the array itself, so the compiler may keep the array's other words in
/// registers.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Lengths {
    /// Indices below this are within bounds, are split by a shift, and are not counted; zero if the page
    /// length is no power of two, or hits are counted.
    quick: AtomicUsize,
    len: AtomicUsize,
}

impl Lengths {
    /// The lengths of the array with this first entry.
    ///
    /// # Safety
    /// The entry is the [first](PageTable::first) of a table that lives as long as `'a`.
    #[inline(always)]
    pub(crate) unsafe fn of<'a>(first: NonNull<Entry>) -> &'a Self {
        // SAFETY: the table has them right before that entry, in the same memory, zeroed at first.
        unsafe { first.cast::<Self>().sub(1).as_ref() }
    }

    /// Whether an index is inside and quick, in the array with this first entry. If so, the thread sees what
    /// was written there before the length was published.
    ///
    /// # Safety
    /// As [`of`](Self::of).
    #[inline(always)]
    pub(crate) unsafe fn has_quick(first: NonNull<Entry>, index: usize) -> bool {
        // Compared where it is, by an address that a hit has in a register: the compiler would load an atomic
        // word by an instruction of its own.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the word is there, as the caller vouches. It is read as by an acquire load: this processor
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
        // SAFETY: passed on.
        unsafe {
            index < Self::of(first).quick.load(Ordering::Acquire)
        }
    }

    /// The thread that finds an index below this sees what was written there before it was published.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Makes a greater length known. The thread has the page of the last element.
    pub(crate) fn publish(&self, len: usize, is_quick: bool) {
        // The quick length is never the greater one of an array that grows: who sees an element by it sees
        // the array so long.
        self.len.store(len, Ordering::Release);
        if is_quick {
            // Others may have gone on with the next page since.
            self.quick.fetch_max(len, Ordering::Release);
        }
    }

    /// Makes another length known, of an array that nobody else has.
    pub(crate) fn set(&self, len: usize, is_quick: bool) {
        self.len.store(len, Ordering::Release);
        self.quick.store(if is_quick { len } else { 0 }, Ordering::Release);
    }
}

impl PageTable {
    /// A table of absent pages, of which so many have a home, and so many may get one. `None` if there is no
    /// memory for it.
    pub(crate) fn new(pages: usize, most: usize) -> Option<Self> {
        assert!(pages <= most, "an array has no more pages than it may have");
        let layout = Self::layout(most)?;
        // SAFETY: the layout has the lengths at least.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let shift = start.align_offset(align_of::<Lengths>());
        assert!(shift < align_of::<Lengths>(), "a byte pointer can be aligned");
        // Looked up at random. What has no page yet is to stay untouched.
        ask_for_large_pages(start.as_ptr(), shift + size_of::<Lengths>() + pages * size_of::<Entry>());
        // SAFETY: the layout has room for the shift, the lengths and the entries; lengths are aligned to more
        // than entries are.
        let first = unsafe { start.add(shift + size_of::<Lengths>()).cast() };
        Some(Self { first, start, pages: AtomicU64::new(pages as u64), most })
    }

    /// Room for lengths and entries wherever they begin. Of no alignment of its own: allocators write zeroes
    /// to memory that is aligned to more than they do by themselves, and have it from the system otherwise.
    fn layout(most: usize) -> Option<Layout> {
        let entries = size_of::<Entry>().checked_mul(most)?;
        let bytes = entries.checked_add(size_of::<Lengths>() + align_of::<Lengths>())?;
        Layout::from_size_align(bytes, 1).ok()
    }

    pub(crate) fn lengths(&self) -> &Lengths {
        // SAFETY: the entry is the first, and the table lives as long as the reference.
        unsafe { Lengths::of(self.first) }
    }

    /// Number of pages with a home.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.pages.load(Ordering::Acquire)
    }

    /// How many pages may have one.
    pub(crate) fn most(&self) -> u64 {
        self.most as u64
    }

    /// Notes that so many pages have a home.
    pub(crate) fn lengthen(&self, pages: u64) {
        self.pages.fetch_max(pages, Ordering::AcqRel);
    }

    /// The entry of a page.
    ///
    /// # Panics
    /// If there can be no such page; callers have checked the index of the element.
    #[inline]
    pub(crate) fn entry(&self, page: u64) -> &Entry {
        assert!(page < self.most as u64, "page {page} of at most {}", self.most);
        // SAFETY: the memory has so many entries. Zeroed as it was allocated, an entry is that of an absent
        // page, as `Entry::new` makes it.
        unsafe { self.first.add(page as usize).as_ref() }
    }

    /// Tells the processor that the entry of a page will change soon. Any number will do.
    #[inline(always)]
    pub(crate) fn prefetch(&self, page: u64) {
        prefetch_write(self.first.as_ptr().wrapping_add(page as usize));
    }

    /// RAM that it takes: that of the pages which have a home.
    pub(crate) fn bytes(&self) -> usize {
        self.len() as usize * size_of::<Entry>()
    }

    /// Where the first entry is, or would be.
    pub(crate) fn first(&self) -> NonNull<Entry> {
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
    use crate::engine::page::State;

    #[test]
    fn a_table_that_no_memory_has_room_for_is_refused() {
        assert!(PageTable::new(0, usize::MAX / size_of::<Entry>()).is_none());
        assert!(PageTable::new(0, usize::MAX).is_none());
    }

    /// What no page needs is memory that nobody has written to.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_table_takes_memory_for_what_is_there() {
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
    fn entries_and_lengths_are_those_of_a_new_array() {
        for most in [0, 1, 5, 100_000] {
            let table = PageTable::new(most / 2, most).unwrap();
            assert_eq!((table.len(), table.most()), (most as u64 / 2, most as u64));
            let is_new = |page| table.entry(page).state(Ordering::Relaxed) == State(0);
            assert!((0..most as u64).all(is_new) && Entry::new().state(Ordering::Relaxed) == State(0));
            let lengths = table.lengths();
            // SAFETY: the table lives.
            let state = |at| (lengths.len(), unsafe { Lengths::has_quick(table.first(), at) });
            assert_eq!(state(0), (0, false));
            lengths.publish(7, false);
            assert_eq!(state(0), (7, false));
            lengths.publish(9, true);
            assert_eq!([0, 8, 9, usize::MAX].map(state), [(9, true), (9, true), (9, false), (9, false)]);
            // A thread that was late.
            lengths.publish(8, true);
            assert_eq!(state(8), (8, true));
            table.lengthen(most as u64);
            table.lengthen(0);
            assert_eq!(table.bytes(), most * 32);
        }
    }
}
