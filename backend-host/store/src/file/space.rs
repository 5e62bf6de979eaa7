//! Allocator of byte ranges in the file of a file device.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use backend_api::{Error, ErrorKind, Result};
use parking_lot::Mutex;

const OPERATION: &str = "allocate";

/// Allocator of the bytes of a file. Equal sequences of requests give equal ranges.
#[derive(Debug)]
pub(super) struct FileSpace {
    bytes: u64,
    /// Start -> end in bytes of allocated ranges, without empty ranges and overlaps.
    taken: Mutex<BTreeMap<u64, u64>>,
}

/// Allocated ranges of a file, released on drop.
#[derive(Debug)]
pub(super) struct AllocatedRanges {
    space: Arc<FileSpace>,
    ranges: Vec<Range<u64>>,
}

impl AllocatedRanges {
    /// The byte ranges of the file, in the order in which they make up a buffer.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }
}

impl Drop for AllocatedRanges {
    fn drop(&mut self) {
        let mut taken = self.space.taken.lock();
        for range in &self.ranges {
            taken.remove(&range.start);
        }
    }
}

impl FileSpace {
    /// Creates an allocator for a file of `bytes` bytes, all free.
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { bytes, taken: Mutex::default() })
    }

    /// Number of free bytes in the file.
    pub fn free_bytes(&self) -> u64 {
        self.bytes - self.taken.lock().iter().map(|(start, end)| end - start).sum::<u64>()
    }

    /// Allocates `bytes` bytes in the lowest free range that is long enough, or else in the lowest free
    /// ranges that are long enough in total.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<AllocatedRanges> {
        if bytes > self.bytes {
            return Err(Error::new(ErrorKind::TooLarge, OPERATION)
                .with_bytes(bytes)
                .with_available_bytes(self.bytes));
        }
        let mut taken = self.taken.lock();
        let holes = self.holes(&taken);
        let free: u64 = holes.iter().map(|hole| hole.end - hole.start).sum();
        if bytes > free {
            return Err(Error::new(ErrorKind::OutOfMemory, OPERATION)
                .with_bytes(bytes)
                .with_available_bytes(free));
        }
        let mut ranges = Vec::new();
        if let Some(hole) = holes.iter().find(|hole| hole.end - hole.start >= bytes) {
            ranges.push(hole.start..hole.start + bytes);
        } else {
            let mut left = bytes;
            for hole in holes {
                let part = left.min(hole.end - hole.start);
                if part > 0 {
                    ranges.push(hole.start..hole.start + part);
                    left -= part;
                }
            }
        }
        ranges.retain(|range| !range.is_empty());
        taken.extend(ranges.iter().map(|range| (range.start, range.end)));
        Ok(AllocatedRanges { space: Arc::clone(self), ranges })
    }

    fn holes(&self, taken: &BTreeMap<u64, u64>) -> Vec<Range<u64>> {
        let ends = std::iter::once(0).chain(taken.values().copied());
        let starts = taken.keys().copied().chain([self.bytes]);
        ends.zip(starts).map(|(end, start)| end..start).filter(|hole| !hole.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_order_gives_the_same_places() {
        for _ in 0..2 {
            let space = FileSpace::new(1000);
            let first = space.take(100).unwrap();
            let second = space.take(300).unwrap();
            assert_eq!((first.ranges(), second.ranges()), (&[0..100][..], &[100..400][..]));
        }
    }

    #[test]
    fn holes_are_used_lowest_first_and_put_together_if_need_be() {
        let space = FileSpace::new(1000);
        let all: Vec<AllocatedRanges> = (0..10).map(|_| space.take(100).unwrap()).collect();
        let mut all: Vec<Option<AllocatedRanges>> = all.into_iter().map(Some).collect();
        (all[2], all[5], all[6]) = (None, None, None);
        assert_eq!(space.free_bytes(), 300);
        assert_eq!(space.take(101).unwrap().ranges(), [500..601]);
        assert_eq!(space.take(100).unwrap().ranges(), [200..300]);
        assert_eq!(space.take(250).unwrap().ranges(), [200..300, 500..650]);
        let error = space.take(301).unwrap_err();
        assert_eq!((error.kind(), error.available_bytes()), (ErrorKind::OutOfMemory, Some(300)));
        assert_eq!(space.take(1001).unwrap_err().kind(), ErrorKind::TooLarge);
        assert_eq!(space.free_bytes(), 300);
    }
}
