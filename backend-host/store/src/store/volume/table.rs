//! Page table of a volume: maps each page to its offset on the disk (as a place number). Grows with the
//! volume.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::Result;
use parking_lot::Mutex;

use super::zeroes;

/// Log2 of the number of pages in the first segment. Each later segment has as many as all before it, so a
/// small store needs little memory.
const FIRST_BITS: u32 = 6;
const SEGMENTS: usize = (u64::BITS - FIRST_BITS) as usize + 1;

/// Page table: two words for each page. Existing words never move when the table grows, and unused entries
/// are memory that the system has not committed.
#[derive(Debug)]
pub(super) struct WordTable {
    segments: [OnceLock<Vec<[AtomicU64; 2]>>; SEGMENTS],
    pages: AtomicU64,
    /// Locked by a thread that grows the table.
    growing: Mutex<()>,
}

/// Returns the segment that contains a page, and the page's index in it.
fn locate(page: u64) -> (usize, usize) {
    match (page >> FIRST_BITS).checked_ilog2() {
        None => (0, page as usize),
        Some(doublings) => (doublings as usize + 1, (page - (1 << (FIRST_BITS + doublings))) as usize),
    }
}

impl WordTable {
    /// Creates a page table for `pages` pages of zeroes.
    pub fn new(operation: &'static str, pages: u64) -> Result<Self> {
        let segments = std::array::from_fn(|_| OnceLock::new());
        let table = Self { segments, pages: AtomicU64::new(0), growing: Mutex::default() };
        table.lengthen(operation, pages)?;
        Ok(table)
    }

    pub fn pages(&self) -> u64 {
        self.pages.load(Ordering::Acquire)
    }

    /// Grows the page table to at least `pages` pages. After an error the table is unchanged.
    pub fn lengthen(&self, operation: &'static str, pages: u64) -> Result<()> {
        if pages <= self.pages() {
            return Ok(());
        }
        let _alone = self.growing.lock();
        let last = locate(pages - 1).0;
        // Allocate the longest part of the table first, because its allocation is the likeliest to fail.
        for (segment, memory) in self.segments[..=last].iter().enumerate().rev() {
            if memory.get().is_none() {
                let length = 1 << (FIRST_BITS as usize + segment.saturating_sub(1));
                // Ignore the result: the lock excludes other threads that grow the table.
                let _ = memory.set(zeroes(operation, length)?);
            }
        }
        self.pages.fetch_max(pages, Ordering::AcqRel);
        Ok(())
    }

    fn words(&self, page: u64) -> &[AtomicU64; 2] {
        let (segment, at) = locate(page);
        let segment = self.segments[segment].get();
        &segment.expect("callers must pass a page below the number of pages")[at]
    }

    /// Entry of a page: the number of its place (page-sized range of the file) plus one; 0 for a page of
    /// zeroes.
    pub fn word(&self, page: u64) -> &AtomicU64 {
        &self.words(page)[0]
    }

    /// Checksum of a page.
    pub fn sum(&self, page: u64) -> &AtomicU64 {
        &self.words(page)[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_where_they_are_when_there_are_more() {
        let table = WordTable::new("test", 0).unwrap();
        let mut known: Vec<*const AtomicU64> = Vec::new();
        for pages in [1, 4096, 4097, 8192, 8193, 50_000] {
            table.lengthen("test", pages).unwrap();
            assert_eq!(table.pages(), pages);
            for page in known.len() as u64..pages {
                assert_eq!(table.word(page).swap(page + 1, Ordering::Relaxed), 0, "page {page} is new");
                assert_eq!(table.sum(page).load(Ordering::Relaxed), 0);
                known.push(table.word(page));
            }
        }
        table.lengthen("test", 7).unwrap();
        assert_eq!(table.pages(), 50_000);
        for (page, known) in (0..).zip(known) {
            assert!(std::ptr::eq(table.word(page), known));
            assert_eq!(table.word(page).load(Ordering::Relaxed), page + 1);
        }
        assert!(table.lengthen("test", 1 << 62).is_err() && table.pages() == 50_000);
    }
}
