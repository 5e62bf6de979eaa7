//! The entries of all pages of an array.

use std::ptr::NonNull;

use super::entry::Entry;
use crate::base::memory::{ask_for_large_pages, prefetch_write};

/// A flat table: page number to entry, 32 bytes a page.
#[derive(Debug)]
pub(crate) struct PageTable {
    entries: Box<[Entry]>,
}

impl PageTable {
    /// A table of absent pages, or `None` if there is no memory for it.
    pub(crate) fn new(pages: usize) -> Option<Self> {
        let mut entries: Vec<Entry> = Vec::new();
        entries.try_reserve_exact(pages).ok()?;
        // Looked up at random.
        ask_for_large_pages(entries.as_ptr().cast(), entries.capacity() * size_of::<Entry>());
        entries.resize_with(pages, Entry::new);
        Some(Self { entries: entries.into_boxed_slice() })
    }

    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The entry of a page.
    ///
    /// # Panics
    /// If there is no such page; callers have checked the index of the element.
    #[inline]
    pub(crate) fn entry(&self, page: u64) -> &Entry {
        &self.entries[page as usize]
    }

    /// Tells the processor that the entry of a page will change soon. Any number will do.
    #[inline(always)]
    pub(crate) fn prefetch(&self, page: u64) {
        prefetch_write(self.entries.as_ptr().wrapping_add(page as usize));
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }

    /// The first entry; dangling if there are no pages.
    pub(crate) fn first(&self) -> NonNull<Entry> {
        NonNull::from(&*self.entries).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_no_memory_has_room_for_is_refused() {
        assert!(PageTable::new(usize::MAX / size_of::<Entry>()).is_none());
    }
}
