//! What a source is apart from the type of its home: directory, channels, and access of the program to its
//! elements.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use backend_api::Device;
use parking_lot::Mutex;

use super::channel::{PageBlocks, SourceChannel};
use super::directory::{Cuts, DirectoryEntry};
use crate::array::range::{PagePart, parts};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::stats::{Counter, Stats};
use crate::base::trace;

#[derive(Debug)]
pub(super) struct Core<T: Element, D: Device> {
    // Declared first, dropped first: copies from and to the home end with their channels.
    pub(super) channels: Vec<SourceChannel<D>>,
    pub(super) entries: Box<[DirectoryEntry]>,
    pub(super) cuts: Cuts,
    first: NonNull<T>,
    /// Pages of device-side operations that had all that was needed on their device.
    pub(super) hits: Counter,
    baseline: Mutex<Stats>,
    marker: PhantomData<fn(T) -> T>,
}

// SAFETY: the home's elements are `Send + Sync` plain data, reached by the directory's locks only.
unsafe impl<T: Element, D: Device> Send for Core<T, D> {}
// SAFETY: as above.
unsafe impl<T: Element, D: Device> Sync for Core<T, D> {}

impl<T: Element, D: Device> Core<T, D> {
    pub(super) fn new(
        first: NonNull<T>,
        cuts: Cuts,
        entries: Box<[DirectoryEntry]>,
        channels: Vec<SourceChannel<D>>,
    ) -> Self {
        let core = Self {
            channels,
            entries,
            cuts,
            first,
            hits: Counter::default(),
            baseline: Mutex::default(),
            marker: PhantomData,
        };
        core.reset_stats();
        core
    }

    pub(super) fn page_bytes(&self) -> usize {
        self.cuts.page_len * size_of::<T>()
    }

    pub(super) fn channel(&self, page: usize) -> &SourceChannel<D> {
        &self.channels[page % self.channels.len()]
    }

    /// # Safety
    /// The page's elements at home may be written to by the caller alone: it has the page exclusively.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the page's lock")]
    pub(super) unsafe fn elements_at_home(&self, page: usize, within: &Range<usize>) -> &mut [T] {
        // SAFETY: the part is within the home, whose memory is initialised; exclusive by the caller's word.
        unsafe {
            let first = self.first.add(page * self.cuts.page_len + within.start);
            std::slice::from_raw_parts_mut(first.as_ptr(), within.len())
        }
    }

    /// # Safety
    /// Nobody writes to these elements at home while the slice lives.
    pub(super) unsafe fn range_at_home(&self, range: &Range<usize>) -> &[T] {
        // SAFETY: the range is within the home, whose memory is initialised.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr().add(range.start), range.len()) }
    }

    /// # Safety
    /// Nobody else touches these elements at home while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the caller's word")]
    pub(super) unsafe fn range_at_home_mut(&self, range: &Range<usize>) -> &mut [T] {
        // SAFETY: as in `range_at_home`.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr().add(range.start), range.len()) }
    }

    /// Brings blocks of a page home of which the device has newer copies. The caller has the page
    /// exclusively.
    pub(super) fn settle(&self, page: usize, blocks: u64) -> Result<()> {
        let entry = &self.entries[page];
        let blocks = entry.dirty() & blocks;
        let Some(slot) = entry.slot().filter(|_| blocks != 0) else { return Ok(()) };
        let channel = self.channel(page);
        if let Err(error) = channel.bring_page_home(PageBlocks { page, slot, blocks }) {
            channel.counters.failed_write_backs.add(1);
            return Err(error);
        }
        channel.counters.write_backs.add(1);
        entry.flushed(blocks);
        Ok(())
    }

    /// Runs code on a part of a page that is valid at home and that nobody writes to meanwhile.
    pub(super) fn with_shared<R>(&self, part: &PagePart, run: impl FnOnce(&[T]) -> R) -> Result<R> {
        let entry = &self.entries[part.page];
        let blocks = self.cuts.touched(&part.within);
        let first = part.page * self.cuts.page_len;
        let range = first + part.within.start..first + part.within.end;
        let guard = entry.share();
        if entry.dirty() & blocks == 0 {
            // SAFETY: writers take the page exclusively, which is shared.
            return Ok(run(unsafe { self.range_at_home(&range) }));
        }
        drop(guard);
        let _guard = entry.take();
        self.settle(part.page, blocks)?;
        // SAFETY: the page is this thread's alone.
        Ok(run(unsafe { self.range_at_home(&range) }))
    }

    /// Runs code that changes a part of a page at home; what the device has of it is void afterwards. If all
    /// of the part will be overwritten, only what lies beside it is brought home.
    ///
    /// The code must not panic or use the source.
    pub(super) fn with_exclusive<R>(
        &self,
        part: &PagePart,
        overwrite: bool,
        run: impl FnOnce(&mut [T]) -> (R, bool),
    ) -> Result<R> {
        let entry = &self.entries[part.page];
        let touched = self.cuts.touched(&part.within);
        let _guard = entry.take();
        let kept = if overwrite { touched & !self.cuts.covered(part.page, &part.within) } else { touched };
        self.settle(part.page, kept)?;
        // SAFETY: the page is this thread's alone.
        let (result, changed) = run(unsafe { self.elements_at_home(part.page, &part.within) });
        if changed {
            entry.invalidate(touched);
        }
        Ok(result)
    }

    /// An element that is there.
    pub(super) fn part_of(&self, index: usize) -> PagePart {
        let (page, at) = (index / self.cuts.page_len, index % self.cuts.page_len);
        PagePart { page, within: at..at + 1, of_range: 0..1 }
    }

    pub(super) fn set(&self, index: usize, value: T) -> Result<()> {
        self.with_exclusive(&self.part_of(index), true, |element| (element[0] = value, true))
    }

    pub(super) fn read(&self, start: usize, into: &mut [T]) -> Result<()> {
        parts(start..start + into.len(), self.cuts.page_len).try_for_each(|part| {
            let into = &mut into[part.of_range.clone()];
            self.with_shared(&part, |from| into.copy_from_slice(from))
        })
    }

    /// Writes one value to all elements of a range, at home.
    pub(super) fn fill_at_home(&self, range: &Range<usize>, value: T) -> Result<()> {
        parts(range.clone(), self.cuts.page_len)
            .try_for_each(|part| self.with_exclusive(&part, true, |to| (to.fill(value), true)))
    }

    pub(super) fn stats(&self) -> Stats {
        let baseline = self.baseline.lock();
        let mut stats = self.raw_stats();
        stats.hits = stats.hits.wrapping_sub(baseline.hits);
        for (now, before) in stats.channels.iter_mut().zip(&baseline.channels) {
            *now = *now - *before;
        }
        stats
    }

    pub(super) fn reset_stats(&self) {
        let mut baseline = self.baseline.lock();
        *baseline = self.raw_stats();
    }

    fn raw_stats(&self) -> Stats {
        Stats {
            hits: self.hits.get(),
            channels: self.channels.iter().map(|channel| channel.counters.snapshot()).collect(),
        }
    }
}

impl<T: Element, D: Device> Drop for Core<T, D> {
    fn drop(&mut self) {
        // Nobody else has it any more, and nothing is under way.
        if let Err(error) = self.flush(&(0..self.cuts.len)) {
            trace::not_brought_home(&error);
        }
    }
}
