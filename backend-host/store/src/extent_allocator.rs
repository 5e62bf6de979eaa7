//! Extent allocator: allocates and frees ranges of numbered units, such as page-sized parts of a store's
//! file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use backend_api::{Error, ErrorKind, Result};
use parking_lot::Mutex;

/// Allocator of numbered places. Places from `end` on were never used.
#[derive(Debug)]
pub(crate) struct ExtentAllocator {
    /// Start -> length of free runs; adjacent runs are merged.
    runs: BTreeMap<u64, u64>,
    end: u64,
}

impl ExtentAllocator {
    /// Creates an allocator of numbered places (units), in which all except `used` are free. `used` must be
    /// sorted and without duplicates.
    pub fn except(used: impl IntoIterator<Item = u64>) -> Self {
        let (mut runs, mut end) = (BTreeMap::new(), 0);
        for place in used {
            if place > end {
                runs.insert(end, place - end);
            }
            end = place + 1;
        }
        Self { runs, end }
    }

    /// Number of allocated places (units of the allocator).
    pub fn taken(&self) -> u64 {
        self.end - self.count()
    }

    /// Number of free places (units of the allocator) below the end.
    pub fn count(&self) -> u64 {
        self.runs.values().sum()
    }

    /// Allocates up to `count` consecutive places (units), at least one, from the lowest free range.
    pub fn take(&mut self, count: u64) -> Range<u64> {
        if let Some((start, length)) = self.runs.pop_first() {
            let taken = length.min(count);
            if taken < length {
                self.runs.insert(start + taken, length - taken);
            }
            return start..start + taken;
        }
        self.take_new(count)
    }

    /// Allocates exactly `count` consecutive places (units of the allocator).
    pub fn take_together(&mut self, count: u64) -> Range<u64> {
        let run =
            self.runs.iter().find(|(_, length)| **length >= count).map(|(start, length)| (*start, *length));
        let Some((start, length)) = run else { return self.take_new(count) };
        self.runs.remove(&start);
        if count < length {
            self.runs.insert(start + count, length - count);
        }
        start..start + count
    }

    fn take_new(&mut self, count: u64) -> Range<u64> {
        let start = self.end;
        self.end += count;
        start..self.end
    }

    /// Frees allocated places (units of the allocator).
    pub fn give_back(&mut self, places: Range<u64>) {
        let Range { mut start, mut end } = places;
        if start == end {
            return;
        }
        if let Some((&before, &length)) = self.runs.range(..start).next_back() {
            debug_assert!(before + length <= start, "a range was released twice");
            if before + length == start {
                self.runs.remove(&before);
                start = before;
            }
        }
        if let Some(length) = self.runs.remove(&end) {
            end += length;
        }
        if end == self.end {
            self.end = start;
        } else {
            self.runs.insert(start, end - start);
        }
    }
}

/// Consecutive places that one buffer owns, released on drop.
#[derive(Debug)]
pub(crate) struct Claimed {
    claims: Arc<Mutex<ExtentAllocator>>,
    places: Range<u64>,
}

impl Claimed {
    /// Allocates consecutive pages for a buffer of `bytes` bytes: the lowest pages that no other buffer has.
    /// The device has `pages` pages.
    pub fn take(
        claims: &Arc<Mutex<ExtentAllocator>>,
        pages: u64,
        page_bytes: usize,
        bytes: u64,
    ) -> Result<Self> {
        let count = bytes.div_ceil(page_bytes as u64);
        let refused = |kind, pages: u64| {
            let available = pages * page_bytes as u64;
            Err(Error::new(kind, "allocate").with_bytes(bytes).with_available_bytes(available))
        };
        if count > pages {
            return refused(ErrorKind::TooLarge, pages);
        }
        let mut free = claims.lock();
        let places = free.take_together(count);
        if places.end > pages {
            free.give_back(places);
            return refused(ErrorKind::OutOfMemory, pages - free.taken());
        }
        Ok(Self { claims: Arc::clone(claims), places })
    }

    /// Number of the buffer's first page.
    pub fn first(&self) -> u64 {
        self.places.start
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.claims.lock().give_back(self.places.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_lowest_first_and_put_together_again() {
        let mut free = ExtentAllocator::except([1, 2, 5]);
        assert_eq!((free.end, free.count()), (6, 3));
        assert_eq!((free.take(4), free.take_together(2), free.take(9)), (0..1, 3..5, 6..15));
        free.give_back(3..4);
        free.give_back(5..6);
        assert_eq!(free.take_together(2), 15..17, "the two do not touch");
        free.give_back(4..5);
        assert_eq!(free.take(7), 3..6);
        for places in [15..17, 6..9, 9..15] {
            free.give_back(places);
        }
        assert_eq!((free.end, free.count()), (6, 0), "the end comes back");
    }
}
