//! Operations on ranges of elements: copies from and to slices, fills, and cache control.

use std::ops::{Bound, Range, RangeBounds};

use backend_api::Device;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::engine::pager::{ExclusiveHold, Fetch, Pager, Stream};

/// Read-ahead of an operation on a range, in pages per channel.
const LOOKAHEAD: u64 = 8;

/// The part of a range that is in one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PagePart {
    pub(crate) page: usize,
    /// Range of the elements in the page.
    pub(crate) within: Range<usize>,
    /// Range of the elements, counted from the start of the whole range.
    pub(crate) of_range: Range<usize>,
}

/// Divides a range of elements at page boundaries.
pub(crate) fn parts(range: Range<usize>, page_len: usize) -> impl DoubleEndedIterator<Item = PagePart> {
    let pages = if range.is_empty() { 0..0 } else { range.start / page_len..range.end.div_ceil(page_len) };
    pages.map(move |page| {
        let first = page * page_len;
        let (start, end) = (range.start.max(first), range.end.min(first.saturating_add(page_len)));
        PagePart {
            page,
            within: start - first..end - first,
            of_range: start - range.start..end - range.start,
        }
    })
}

/// Checks a range of an array of `len` elements, and returns it as `start..end`.
pub(crate) fn checked(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.checked_add(1).ok_or(ErrorKind::RangeOutside { start, end, len })?,
        Bound::Excluded(&end) => end,
        // If `start` is behind the end of the array, report `start..` as outside, not as reversed.
        Bound::Unbounded => start.max(len),
    };
    if end > len {
        Err(ErrorKind::RangeOutside { start, end, len }.into())
    } else if start > end {
        Err(ErrorKind::RangeReversed { start, end }.into())
    } else {
        Ok(start..end)
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Copies elements into a slice, beginning at element `start`.
    #[inline]
    pub(crate) fn read_range(&self, start: usize, into: &mut [T]) -> Result<()> {
        if self.read_short(start, into) { Ok(()) } else { self.read_by_page(start, into) }
    }

    fn read_by_page(&self, start: usize, into: &mut [T]) -> Result<()> {
        if self.read_short_fenced(start, into) {
            return Ok(());
        }
        let range = self.range_at(start, into.len())?;
        let pages = self.touched_pages(&range);
        if self.pager().is_bulk_read(pages.end - pages.start) {
            return self.pager().read_bulk((start * size_of::<T>()) as u64, bytemuck::cast_slice_mut(into));
        }
        // A short range may be part of a sequential scan, so report it to read-ahead. A long range prefetches
        // its own pages. A read of parts may bypass the cache, so do not report such a read.
        let has_parts = self.pager().has_parts_of(size_of_val(into));
        let is_followed = pages.clone().count() <= 2 && !has_parts;
        let stream = if is_followed { Stream::Follow } else { Stream::Ignore };
        // A single page needs no read-ahead.
        let rest = if pages.clone().count() > 1 { pages } else { 0..0 };
        let mut ahead = FetchAhead::new(self.pager(), rest);
        for part in parts(range, self.page_len()) {
            ahead.go_on(part.page as u64);
            let (page, offset) = (part.page as u64, part.within.start * size_of::<T>());
            let count = part.of_range.len();
            let into = bytemuck::cast_slice_mut(&mut into[part.of_range]);
            if !self.pager().read_part(page, offset, into)? {
                let hold = self.pager().hold_shared(page, stream)?;
                hold.read(offset, into);
                if hold.is_used_again() && self.opens_for_short(count) {
                    hold.open_reads();
                }
            }
        }
        Ok(())
    }

    /// Copies a slice to elements, beginning at element `start`.
    pub(crate) fn write_range(&self, start: usize, from: &[T]) -> Result<()> {
        let range = self.range_at(start, from.len())?;
        let whole = self.whole_pages(&range);
        if self.pager().is_bulk(whole.len() as u64) {
            let middle = self.elements_of(&whole);
            let (first, rest) = from.split_at(middle.start - start);
            let (middle_of, last) = rest.split_at(middle.len());
            self.write_by_page(start, first)?;
            let bytes = bytemuck::cast_slice(middle_of);
            self.pager().write_bulk((middle.start * size_of::<T>()) as u64, bytes)?;
            return self.write_by_page(middle.end, last);
        }
        self.write_by_page(start, from)
    }

    fn write_by_page(&self, start: usize, from: &[T]) -> Result<()> {
        for part in parts(start..start + from.len(), self.page_len()) {
            let from = bytemuck::cast_slice(&from[part.of_range.clone()]);
            let offset = part.within.start * size_of::<T>();
            let is_part = part.within.len() < self.len_most(part.page);
            if !is_part || !self.pager().write_part(part.page as u64, offset, from)? {
                self.hold_part(&part)?.write(offset, from);
            }
        }
        Ok(())
    }

    /// Holds the page of a part that the caller will overwrite completely.
    fn hold_part(&self, part: &PagePart) -> Result<ExclusiveHold<'_>> {
        let whole = part.within.len() == self.len_most(part.page);
        let fetch = if whole { Fetch::Overwrite } else { Fetch::Contents };
        self.pager().hold_exclusive(part.page as u64, fetch, Stream::Ignore)
    }

    pub(crate) fn fill_range(&self, range: &Range<usize>, value: T) -> Result<()> {
        let pages = self.whole_pages(range);
        let fill_part = |part: PagePart| -> Result<()> {
            let mut page = self.hold_part(&part)?;
            bytemuck::cast_slice_mut::<_, T>(page.bytes())[part.within].fill(value);
            Ok(())
        };
        if pages.is_empty() || size_of::<T>() > backend_api::Fill::PATTERN_MAX_BYTES {
            return parts(range.clone(), self.page_len()).try_for_each(fill_part);
        }
        let middle = self.elements_of(&pages);
        parts(range.start..middle.start, self.page_len()).try_for_each(fill_part)?;
        self.pager().fill_pages(pages.start as u64..pages.end as u64, bytemuck::bytes_of(&value))?;
        parts(middle.end..range.end, self.page_len()).try_for_each(fill_part)
    }

    /// Fetches the pages of a range into the cache while frames are available.
    pub(crate) fn prefetch_range(&self, range: &Range<usize>) -> Result<()> {
        self.pager().prefetch(self.touched_pages(range)).map(drop)
    }

    pub(crate) fn flush_range(&self, range: &Range<usize>) -> Result<()> {
        self.pager().flush(&self.touched_pages(range))
    }

    /// Writes the dirty pages of a range back, and frees the frames of all its pages.
    pub(crate) fn evict_range(&self, range: &Range<usize>) -> Result<()> {
        self.pager().evict(&self.touched_pages(range))
    }

    /// Zeroes a range. Whole pages become absent, without contents on their device.
    pub(crate) fn discard_range(&self, range: &Range<usize>) -> Result<()> {
        let pages = self.whole_pages(range);
        if pages.is_empty() {
            return self.fill_range(range, T::zeroed());
        }
        let middle = self.elements_of(&pages);
        self.fill_range(&(range.start..middle.start), T::zeroed())?;
        self.pager().discard(pages.start as u64..pages.end as u64)?;
        self.fill_range(&(middle.end..range.end), T::zeroed())
    }

    pub(crate) fn range_at(&self, start: usize, count: usize) -> Result<Range<usize>> {
        let outside = |end| ErrorKind::RangeOutside { start, end, len: self.len() };
        let end = start.checked_add(count).ok_or_else(|| outside(usize::MAX))?;
        if end > self.len() { Err(outside(end).into()) } else { Ok(start..end) }
    }

    /// Returns the pages that contain elements of a range.
    pub(crate) fn touched_pages(&self, range: &Range<usize>) -> Range<u64> {
        if range.is_empty() {
            return 0..0;
        }
        (range.start / self.page_len()) as u64..range.end.div_ceil(self.page_len()) as u64
    }

    /// Returns the pages that are completely in the range. The last page counts with all elements to its
    /// maximum length, because other threads may push some before the page is held.
    pub(crate) fn whole_pages(&self, range: &Range<usize>) -> Range<usize> {
        let start = range.start.div_ceil(self.page_len());
        let end = if range.end == self.max_len() { self.page_count() } else { range.end / self.page_len() };
        start..end.max(start)
    }

    /// Returns the maximum number of elements of a page.
    fn len_most(&self, page: usize) -> usize {
        self.page_len().min(self.max_len() - page * self.page_len())
    }

    fn elements_of(&self, pages: &Range<usize>) -> Range<usize> {
        (pages.start * self.page_len()).min(self.len())..(pages.end * self.page_len()).min(self.len())
    }
}

/// Prefetch of the pages of a range while an operation uses them one after the other.
#[derive(Debug)]
pub(crate) struct FetchAhead<'a> {
    pager: &'a Pager,
    /// Pages that were not requested yet.
    rest: Range<u64>,
    /// Number of pages in flight, including the one in use: at most a quarter of the frames. Below two, none.
    window: u64,
}

impl<'a> FetchAhead<'a> {
    pub(crate) fn new(pager: &'a Pager, rest: Range<u64>) -> Self {
        let window = (LOOKAHEAD * pager.channels().len() as u64).min(pager.frames() / 4);
        Self { pager, rest, window }
    }

    /// Prefetches the pages after `page`, which the caller is about to use.
    pub(crate) fn go_on(&mut self, page: u64) {
        let end = self.rest.end.min(page + self.window);
        if self.window > 1 && page + self.window / 2 >= self.rest.start && end > self.rest.start.max(page) {
            let ahead = self.rest.start.max(page)..end;
            self.rest.start = end;
            if let Err(error) = self.pager.prefetch(ahead) {
                crate::base::trace::read_ahead_failed(&error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::result_large_err, reason = "the test compares kinds of errors")]
    fn ranges_end_where_they_say() {
        let kind = |range: Result<Range<usize>>| range.map_err(|error| error.kind().clone());
        let outside = |start, end| Err(ErrorKind::RangeOutside { start, end, len: 10 });
        assert_eq!(kind(checked(.., 10)), Ok(0..10));
        assert_eq!(kind(checked(3..=9, 10)), Ok(3..10));
        assert_eq!(kind(checked(10.., 10)), Ok(10..10));
        assert_eq!(kind(checked(20.., 10)), outside(20, 20));
        assert_eq!(kind(checked(3..=10, 10)), outside(3, 11));
        assert_eq!(kind(checked(3..=usize::MAX, 10)), outside(3, usize::MAX));
        let beyond = (Bound::Excluded(usize::MAX), Bound::Unbounded);
        assert_eq!(kind(checked(beyond, 10)), outside(usize::MAX, usize::MAX));
        let reversed = (Bound::Included(7), Bound::Excluded(3));
        assert_eq!(kind(checked(reversed, 10)), Err(ErrorKind::RangeReversed { start: 7, end: 3 }));
    }

    #[test]
    fn parts_cover_a_range_once() {
        for (start, end, page_len) in [(0, 0, 4), (0, 1, 4), (3, 5, 4), (4, 8, 4), (1, 23, 7), (6, 7, 1)] {
            let parts: Vec<PagePart> = parts(start..end, page_len).collect();
            let indices: Vec<usize> =
                parts.iter().flat_map(|p| p.within.clone().map(|at| p.page * page_len + at)).collect();
            assert_eq!(indices, (start..end).collect::<Vec<_>>());
            let places: Vec<usize> = parts.iter().flat_map(|p| p.of_range.clone()).collect();
            assert_eq!(places, (0..end - start).collect::<Vec<_>>());
        }
    }
}
