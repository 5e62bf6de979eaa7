//! The part of a source that does not depend on the type of the program's memory (the home): the directory,
//! the channels (shares of devices), and the program's accesses to elements.

use std::ops::Range;

use super::channel::{PageBlocks, SourceChannel};
use super::directory::{Cuts, DirectoryEntry, ExclusivePage, SharedPage};
use super::home::HomeMemory;
use crate::array::range::{PagePart, parts};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::racy_slice::ExclusiveMemory;
use crate::base::stats::{Baseline, Counter, Stats};
use crate::base::trace;
use crate::engine::channel::PinnedPiece;
use crate::ops::executor::Lane as _;

#[derive(Debug)]
pub(super) struct SourceCore<T: Element> {
    // Declared first, so that Rust drops the channels before `home`: the channels' drop waits for copies.
    pub(super) channels: Vec<SourceChannel>,
    pub(super) entries: Box<[DirectoryEntry]>,
    pub(super) cuts: Cuts,
    home: HomeMemory<T>,
    /// Number of pages whose data a device-side operation found on the device.
    pub(super) hits: Counter,
    baseline: Baseline,
}

impl<T: Element> SourceCore<T> {
    pub(super) fn new(
        home: HomeMemory<T>,
        entries: Box<[DirectoryEntry]>,
        channels: Vec<SourceChannel>,
    ) -> Self {
        let core = Self {
            channels,
            entries,
            cuts: home.cuts(),
            home,
            hits: Counter::default(),
            baseline: Baseline::default(),
        };
        core.reset_stats();
        core
    }

    pub(super) fn page_bytes(&self) -> usize {
        self.cuts.page_len * size_of::<T>()
    }

    pub(super) fn channel(&self, page: usize) -> &SourceChannel {
        &self.channels[page % self.channels.len()]
    }

    /// Returns the elements of a part of a page, in the home.
    pub(super) fn elements<'g>(
        &self,
        held: &'g SharedPage<'_>,
        page: usize,
        within: &Range<usize>,
    ) -> &'g [T] {
        self.home.elements((&self.entries, held), page, within)
    }

    /// Returns the mutable elements of a part of a page, in the home. The caller holds the page exclusively.
    /// The home must be writable; elements of a read-only home are never newer on a device.
    pub(super) fn elements_mut<'g>(
        &self,
        held: &'g mut ExclusivePage<'_>,
        page: usize,
        within: &Range<usize>,
    ) -> &'g mut [T] {
        self.home.elements_mut((&self.entries, held), page, within)
    }

    /// Returns elements in the home for exclusive use; the caller holds all their pages. Not for a read-only
    /// home.
    pub(super) fn exclusive<'g>(
        &self,
        held: &'g mut [ExclusivePage<'_>],
        range: &Range<usize>,
    ) -> ExclusiveMemory<'g> {
        self.home.exclusive((&self.entries, held), range)
    }

    /// Returns elements in the home, for a caller with exclusive access to the source.
    pub(super) fn slice(&mut self, range: &Range<usize>) -> &[T] {
        self.home.slice(range)
    }

    /// Returns mutable elements in the home, for a caller with exclusive access. The home must be writable.
    pub(super) fn slice_mut(&mut self, range: &Range<usize>) -> &mut [T] {
        self.home.slice_mut(range)
    }

    /// Writes elements, beginning at index `place`. The home must be writable.
    pub(super) fn write(&self, place: usize, from: &[T]) -> Result<()> {
        parts(place..place + from.len(), self.cuts.page_len).try_for_each(|part| {
            let from = &from[part.of_range.clone()];
            self.with_exclusive(&part, true, |to| (to.copy_from_slice(from), true))
        })
    }

    /// Copies the newer ones of some blocks of a page to the home.
    pub(super) fn settle(&self, held: &mut ExclusivePage<'_>, page: usize, blocks: u64) -> Result<()> {
        let entry = &self.entries[page];
        let blocks = entry.dirty() & blocks;
        let Some(slot) = entry.slot().filter(|_| blocks != 0) else { return Ok(()) };
        let channel = self.channel(page);
        if let Err(error) = self.bring_page_home(held, PageBlocks { page, slot, blocks }) {
            channel.counters.failed_write_backs.add(1);
            return Err(error);
        }
        channel.counters.write_backs.add(1);
        entry.flushed(blocks);
        Ok(())
    }

    /// Copies blocks of a page from the device to the home, and waits. Uses no staging memory.
    pub(super) fn bring_page_home(&self, held: &mut ExclusivePage<'_>, page: PageBlocks) -> Result<()> {
        let channel = self.channel(page.page);
        if let Some(done) = channel.bring_home_directly(&[page]) {
            return done;
        }
        let (buffer, ticket) = channel.start_to_read(page)?;
        let arrived = channel.wait(ticket);
        if arrived.is_ok() {
            self.land(held, &buffer, page);
        }
        channel.keep(buffer);
        Ok(arrived?)
    }

    /// Copies the buffer of a completed [`start_to_read`](SourceChannel::start_to_read) to the home.
    pub(super) fn land(&self, held: &mut ExclusivePage<'_>, buffer: &PinnedPiece, page: PageBlocks) {
        let mut at = 0;
        for range in self.cuts.ranges(page.page, page.blocks) {
            let home: &mut [u8] = bytemuck::cast_slice_mut(self.elements_mut(held, page.page, &range));
            buffer.read(at, home);
            at += home.len();
        }
        self.channel(page.page).counters.bytes_from_device.add(at as u64);
    }

    /// Runs a closure on a part of a page in the home. It is valid, and no thread writes to it meanwhile.
    pub(super) fn with_shared<R>(&self, part: &PagePart, run: impl FnOnce(&[T]) -> R) -> Result<R> {
        let entry = &self.entries[part.page];
        let blocks = self.cuts.touched(&part.within);
        let mut shared = entry.share();
        if entry.dirty() & blocks != 0 {
            drop(shared);
            let mut held = entry.take();
            self.settle(&mut held, part.page, blocks)?;
            shared = held.downgrade();
        }
        Ok(run(self.elements(&shared, part.page, &part.within)))
    }

    /// Runs a closure that changes a part of a page in the home, and invalidates the device copy. If the
    /// closure overwrites the whole part, only newer neighbouring elements in the same blocks are first
    /// copied to the home.
    ///
    /// The closure must neither panic nor use the source.
    pub(super) fn with_exclusive<R>(
        &self,
        part: &PagePart,
        overwrite: bool,
        run: impl FnOnce(&mut [T]) -> (R, bool),
    ) -> Result<R> {
        let entry = &self.entries[part.page];
        let touched = self.cuts.touched(&part.within);
        let mut held = entry.take();
        let kept = if overwrite { touched & !self.cuts.covered(part.page, &part.within) } else { touched };
        self.settle(&mut held, part.page, kept)?;
        let (result, changed) = run(self.elements_mut(&mut held, part.page, &part.within));
        if changed {
            entry.invalidate(touched);
        }
        Ok(result)
    }

    /// Returns the part of a page that consists of one element. The index must be within the source.
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

    /// Writes one value to all elements of a range, in the home.
    pub(super) fn fill_at_home(&self, range: &Range<usize>, value: T) -> Result<()> {
        parts(range.clone(), self.cuts.page_len)
            .try_for_each(|part| self.with_exclusive(&part, true, |to| (to.fill(value), true)))
    }

    pub(super) fn stats(&self) -> Stats {
        self.baseline.since(|| self.raw_stats())
    }

    pub(super) fn reset_stats(&self) {
        self.baseline.reset(|| self.raw_stats());
    }

    fn raw_stats(&self) -> Stats {
        let channels = self.channels.iter().map(|channel| channel.counters.snapshot()).collect();
        Stats::new(Some(self.hits.get()), channels)
    }
}

impl<T: Element> Drop for SourceCore<T> {
    fn drop(&mut self) {
        // This is the last owner of the source, and no work is in flight.
        if let Err(error) = self.flush(&(0..self.cuts.len)) {
            trace::not_brought_home(&error);
        }
    }
}
