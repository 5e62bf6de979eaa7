//! Bulk copies between home slots (in device memory) and the program's memory, without the cache.
//!
//! The pager copies absent pages through [staging buffers](crate::engine::channel::Stage), so it needs no
//! frames and no evictions. It reads and writes resident pages in their frames. The copying thread holds each
//! page, so no other thread writes a home slot while this one reads the slot, or reads while this one writes.
//!
//! A range is divided by channel (share of a device). A [unit](Units) consists of consecutive pages of one
//! channel, contiguous on the device, that fill a staging buffer. A single thread uses shorter units. Threads
//! take units one after another, from all channels in turn. Each thread has two units in flight: the device
//! copies one while the thread copies the other.
//!
//! A thread that holds pages waits for copies only, so holds cause no deadlock.

use std::iter::StepBy;
use std::marker::PhantomData;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::hold::{AsFound, HomeClaim, HomeShare};
use super::{Fetch, Pager, Stream};
use crate::base::error::Result;
use crate::base::nontemporal_copy;
use crate::base::scoped_threads::works_alone;
use crate::engine::channel::{Channel, CopyWay, Stage, StagedCopy};
use crate::engine::page::{State, count_hit};
use crate::engine::parallel_copy;

/// Minimum number of pages, and minimum share of all frames, of a range whose copy bypasses the cache.
/// Shorter ranges are probably used again and displace little. A cache of the whole array is not bypassed.
const BULK_PAGES_MIN: u64 = 4;
const BULK_SHARE: u64 = 16;

/// Bytes of a unit if a single thread copies; otherwise a unit fills a staging buffer.
const LONE_UNIT_BYTES: usize = 1 << 20;

/// Some pages of one channel, in ascending order.
type Pages = StepBy<Range<u64>>;

fn first(pages: &Pages) -> Option<u64> {
    pages.clone().next()
}

/// The division of a range of pages into units, which threads take one after another.
#[derive(Debug)]
struct Units {
    pages: Range<u64>,
    channels: u64,
    most: u64,
    /// The channel of the first unit, different for concurrent calls.
    first_channel: u64,
    next: AtomicU64,
}

impl Units {
    fn len(&self) -> u64 {
        let of_channel = (self.pages.end - self.pages.start).div_ceil(self.channels);
        of_channel.div_ceil(self.most) * self.channels
    }

    /// Returns the pages of a unit; no pages for some units near the end.
    fn pages(&self, unit: u64) -> Pages {
        let channel = (self.first_channel + unit) % self.channels;
        let stride = self.channels * self.most;
        let first = self.pages.start + channel + unit / self.channels * stride;
        let end = (first + stride).min(self.pages.end);
        (first.min(end)..end).step_by(self.channels as usize)
    }

    /// Takes the next unit that no thread has taken.
    fn take(&self) -> Option<Pages> {
        let unit = self.next.fetch_add(1, Ordering::Relaxed);
        (unit < self.len()).then(|| self.pages(unit))
    }

    /// Makes all later calls of `take` return `None`.
    fn stop(&self) {
        self.next.store(self.len(), Ordering::Relaxed);
    }
}

/// A range of bytes of the array, which may begin within a page.
#[derive(Clone, Copy, Debug)]
struct BulkSpan {
    start: u64,
    bytes: u64,
    page_bytes: u64,
}

impl BulkSpan {
    fn pages(&self) -> Range<u64> {
        self.start / self.page_bytes..(self.start + self.bytes).div_ceil(self.page_bytes)
    }

    /// Returns the overlap of a page with the range: the offset in the page, and the bytes in the range.
    fn part(&self, page: u64) -> (usize, Range<usize>) {
        let first = page * self.page_bytes;
        let start = self.start.max(first);
        let end = (self.start + self.bytes).min(first + self.page_bytes);
        ((start - first) as usize, (start - self.start) as usize..(end - self.start) as usize)
    }
}

/// The program's slice into which threads read different units.
#[derive(Debug)]
struct Target<'a> {
    span: BulkSpan,
    address: *mut u8,
    /// True if copies should use non-temporal stores.
    passes_caches: bool,
    slice: PhantomData<&'a mut [u8]>,
}

// SAFETY: the value represents a `&mut [u8]`, which is `Sync`, and `part` returns disjoint parts of it.
unsafe impl Sync for Target<'_> {}

impl<'a> Target<'a> {
    fn new(span: BulkSpan, into: &'a mut [u8]) -> Self {
        debug_assert_eq!(span.bytes, into.len() as u64);
        let passes_caches = nontemporal_copy::is_worth_it(into.len());
        Self { span, address: into.as_mut_ptr(), passes_caches, slice: PhantomData }
    }

    /// Returns the offset in the page of its part in the range, and the slice for this part.
    ///
    /// # Safety
    /// The calling thread has taken the page's unit, and no longer uses an earlier result for this page.
    unsafe fn part(&self, page: u64) -> (usize, &'a mut [u8]) {
        let (offset, part) = self.span.part(page);
        // SAFETY: the part is within the slice, which is borrowed for `'a`. Parts of different pages do not
        // overlap. Each page belongs to a single unit, which a single thread has taken.
        (offset, unsafe { std::slice::from_raw_parts_mut(self.address.add(part.start), part.len()) })
    }

    /// Returns the [`part`](Self::part) of consecutive pages.
    ///
    /// # Safety
    /// The requirements of [`part`](Self::part), for each page.
    unsafe fn parts(&self, pages: Range<u64>) -> (usize, &'a mut [u8]) {
        let ((offset, first), (_, last)) = (self.span.part(pages.start), self.span.part(pages.end - 1));
        let part = first.start..last.end;
        // SAFETY: as in `part`. The parts of all other pages are between the parts of the first and the last
        // page.
        (offset, unsafe { std::slice::from_raw_parts_mut(self.address.add(part.start), part.len()) })
    }
}

/// Pages that the device is copying through a staging buffer, with holds `H`.
struct Flight<'a, H> {
    channel: &'a Channel,
    // Declared first, so that Rust drops the buffer before the pages: the buffer's drop waits for the copy.
    stage: Stage,
    pages: Vec<H>,
    copy: Arc<StagedCopy>,
}

/// The reason why a thread cannot start copies of a unit's remaining pages yet.
enum Obstacle {
    /// Another thread uses the unit's next page.
    Busy(State),
    NoStage,
}

/// The direction of a bulk copy: read or write.
trait BulkCopy<'a>: Sync {
    /// The hold of a page while the device copies it.
    type Hold;

    /// Copies the resident ones of a unit's first pages, and starts copies of the absent ones, up to an
    /// obstacle. Removes all these pages from `pages`.
    fn begin(&self, pages: &mut Pages) -> (Option<Flight<'a, Self::Hold>>, Option<Obstacle>);

    /// Waits for copies, and releases their pages. Returns pages whose copy failed; the thread copies them in
    /// frames when it holds no page.
    fn end(&self, flight: Flight<'a, Self::Hold>) -> Result<Vec<u64>>;

    /// Copies a page in its cache frame. The thread holds no other page.
    fn copy_in_frame(&self, page: u64) -> Result<()>;

    /// Waits for a page that another thread uses; this thread holds no page. True if it copied the page.
    fn wait(&self, page: u64, state: State) -> Result<bool>;
}

struct BulkRead<'a, 't> {
    pager: &'a Pager,
    target: Target<'t>,
}

struct BulkWrite<'a, 'f> {
    pager: &'a Pager,
    span: BulkSpan,
    from: &'f [u8],
}

impl Pager {
    /// Returns true if the copy of a range of this number of pages bypasses the cache.
    pub(crate) fn is_bulk(&self, pages: u64) -> bool {
        pages >= (self.frames / BULK_SHARE).max(BULK_PAGES_MIN) && self.table.len() > self.frames
    }

    /// Returns [`is_bulk`](Self::is_bulk) for a read. Pages of files are read through the cache of the
    /// system, where a read costs little more than a copy, unless the array must compare checksums.
    pub(crate) fn is_bulk_read(&self, pages: u64) -> bool {
        let least = match self.has_exact_parts() {
            true => BULK_PAGES_MIN,
            false => (LONE_UNIT_BYTES / self.page_bytes).max(BULK_PAGES_MIN as usize) as u64,
        };
        let is_long = pages >= least && self.table.len() > self.frames;
        self.is_bulk(pages) || is_long && self.channels.iter().all(|channel| channel.loads_directly())
    }

    /// Copies bytes of the array into a slice, beginning at byte `start`. Several threads copy a long slice.
    ///
    /// # Errors
    /// Device errors. Each page of the slice then has either its old contents or the bytes of the array.
    pub(crate) fn read_bulk(&self, start: u64, into: &mut [u8]) -> Result<()> {
        let span = BulkSpan { start, bytes: into.len() as u64, page_bytes: self.page_bytes as u64 };
        self.copy_bulk(span, &BulkRead { pager: self, target: Target::new(span, into) })
    }

    /// Copies a slice of whole pages to the array, beginning at byte `start`. Several threads copy long ones.
    ///
    /// # Errors
    /// Device errors, if the cache has no frame for the page either. Some pages are then written; pages whose
    /// copy failed have unspecified contents.
    pub(crate) fn write_bulk(&self, start: u64, from: &[u8]) -> Result<()> {
        self.expect_writable()?;
        let span = BulkSpan { start, bytes: from.len() as u64, page_bytes: self.page_bytes as u64 };
        self.copy_bulk(span, &BulkWrite { pager: self, span, from })
    }

    fn units(&self, span: &BulkSpan) -> Units {
        let (pages, bytes) = (span.pages(), span.bytes);
        let channels = self.channels.len() as u64;
        // A lone thread copies one unit (pages that fill a staging buffer) while the device copies another
        // unit. Several threads need no such division: each copies while the device works for the others.
        let unit_bytes =
            if parallel_copy::is_shared(bytes) && !works_alone() { usize::MAX } else { LONE_UNIT_BYTES };
        let staged = self.channels.iter().map(|channel| channel.stage_pages()).min().unwrap_or(1);
        let most = (unit_bytes / self.page_bytes).clamp(1, staged) as u64;
        Units {
            pages,
            channels,
            most,
            first_channel: self.bulk_copies.fetch_add(1, Ordering::Relaxed) % channels,
            next: AtomicU64::new(0),
        }
    }

    fn copy_bulk<'a, C: BulkCopy<'a>>(&'a self, span: BulkSpan, copy: &C) -> Result<()> {
        let units = self.units(&span);
        parallel_copy::run(span.bytes, self.buses, || {
            let mut under_way = None;
            let outcome = self.copy_units(&units, copy, &mut under_way);
            if outcome.is_err() {
                units.stop();
            }
            // Also after an error, end the copies in flight, because `under_way` still holds their pages.
            let failed = under_way.map_or(Ok(Vec::new()), |flight| copy.end(flight));
            let failed =
                failed.and_then(|pages| pages.into_iter().try_for_each(|page| copy.copy_in_frame(page)));
            outcome.and(failed)
        })
    }

    fn copy_units<'a, C: BulkCopy<'a>>(
        &'a self,
        units: &Units,
        copy: &C,
        under_way: &mut Option<Flight<'a, C::Hold>>,
    ) -> Result<()> {
        while let Some(mut pages) = units.take() {
            while first(&pages).is_some() {
                let (flight, obstacle) = copy.begin(&mut pages);
                let had_one = under_way.is_some();
                let mut failed = match mem::replace(under_way, flight) {
                    Some(earlier) => copy.end(earlier)?,
                    None => Vec::new(),
                };
                if obstacle.is_none() && failed.is_empty() {
                    continue;
                }
                // Finish this thread's copy first: the thread that holds the next page may wait for a page
                // that this thread holds.
                let is_held = under_way.is_some();
                if let Some(flight) = under_way.take() {
                    failed.extend(copy.end(flight)?);
                }
                failed.into_iter().try_for_each(|page| copy.copy_in_frame(page))?;
                let (Some(obstacle), Some(page)) = (obstacle, first(&pages)) else { continue };
                let is_copied = match obstacle {
                    Obstacle::Busy(state) => copy.wait(page, state)?,
                    // This thread may itself have held the last staging buffers until now, so try again.
                    Obstacle::NoStage if had_one || is_held || self.channel(page).await_stage() => false,
                    Obstacle::NoStage => copy.copy_in_frame(page).map(|()| true)?,
                };
                if is_copied {
                    pages.next();
                }
            }
        }
        Ok(())
    }
}

impl BulkRead<'_, '_> {
    /// Reads pages directly by the calling thread, and releases them; contiguous pages need one read. Leaves
    /// pages to the device: all of them if the thread cannot read, and failed ones, for which the device then
    /// reports the error.
    fn read_directly(&self, wanted: &mut Vec<HomeShare<'_>>) {
        let channels = self.pager.channels.len() as u64;
        let Some(first) = wanted.first().map(HomeShare::page) else { return };
        let channel = self.pager.channel(first);
        if !channel.loads_directly() {
            return;
        }
        let mut run = 0;
        while run < wanted.len() {
            let (page, mut end) = (wanted[run].page(), run + 1);
            // With a single channel (share of a device), adjacent pages are contiguous on the device, so copy
            // them as one.
            while channels == 1
                && wanted.get(end).is_some_and(|next| next.page() == page + (end - run) as u64)
            {
                end += 1;
            }
            // SAFETY: the pages belong to a unit taken by this thread.
            let (offset, into) = unsafe { self.target.parts(page..page + (end - run) as u64) };
            if !matches!(channel.read_home_directly(page, offset, into), Some(Ok(()))) {
                break;
            }
            run = end;
        }
        wanted.drain(..run);
    }
}

impl<'a> BulkCopy<'a> for BulkRead<'a, '_> {
    type Hold = HomeShare<'a>;

    fn begin(&self, pages: &mut Pages) -> (Option<Flight<'a, HomeShare<'a>>>, Option<Obstacle>) {
        let (pager, target) = (self.pager, &self.target);
        let mut wanted = Vec::new();
        let mut obstacle = None;
        let mut rest = pages.clone();
        while let Some(page) = first(&rest) {
            match pager.try_share_as_found(page) {
                Ok(AsFound::Resident(hold)) => {
                    // SAFETY: the page belongs to a unit taken by this thread.
                    let (offset, into) = unsafe { target.part(page) };
                    hold.read(offset, into);
                }
                Ok(AsFound::Absent(home)) if home.has_contents() => wanted.push(home),
                Ok(AsFound::Absent(_)) => {
                    // SAFETY: the page belongs to a unit taken by this thread.
                    unsafe { target.part(page) }.1.fill(0);
                }
                Err(state) => {
                    obstacle = Some(Obstacle::Busy(state));
                    break;
                }
            }
            rest.next();
        }
        self.read_directly(&mut wanted);
        let Some(missing) = wanted.first().map(HomeShare::page) else {
            *pages = rest;
            return (None, obstacle);
        };
        let channel = pager.channel(missing);
        let Some(stage) = channel.take_stage() else {
            while first(pages).is_some_and(|page| page < missing) {
                pages.next();
            }
            return (None, Some(Obstacle::NoStage));
        };
        *pages = rest;
        let numbers: Vec<u64> = wanted.iter().map(HomeShare::page).collect();
        let copy = channel.copy_staged(CopyWay::Fetch, &numbers, &stage);
        (Some(Flight { channel, pages: wanted, stage, copy }), obstacle)
    }

    fn end(&self, flight: Flight<'a, HomeShare<'a>>) -> Result<Vec<u64>> {
        let Flight { channel, pages, stage, copy } = flight;
        let outcome = channel.await_staged(&copy);
        for (at, home) in pages.into_iter().enumerate() {
            if outcome.is_ok() {
                // SAFETY: the page belongs to a unit taken by this thread.
                let (offset, into) = unsafe { self.target.part(home.page()) };
                stage.read(at * self.pager.page_bytes + offset, into, self.target.passes_caches);
            }
        }
        channel.put_stage(stage);
        outcome?;
        Ok(Vec::new())
    }

    fn copy_in_frame(&self, page: u64) -> Result<()> {
        let held = self.pager.hold_shared(page, Stream::Ignore)?;
        // SAFETY: the page belongs to a unit taken by this thread.
        let (offset, into) = unsafe { self.target.part(page) };
        held.read(offset, into);
        Ok(())
    }

    fn wait(&self, page: u64, state: State) -> Result<bool> {
        self.pager.await_page(page, state, false).map(|()| false)
    }
}

impl<'a> BulkCopy<'a> for BulkWrite<'a, '_> {
    type Hold = HomeClaim<'a>;

    fn begin(&self, pages: &mut Pages) -> (Option<Flight<'a, HomeClaim<'a>>>, Option<Obstacle>) {
        let mut filled: Option<Stage> = None;
        let mut held: Vec<HomeClaim<'_>> = Vec::new();
        let mut obstacle = None;
        let Some(page) = first(pages) else { return (None, None) };
        let channel = self.pager.channel(page);
        while let Some(page) = first(pages) {
            let (offset, part) = self.span.part(page);
            match self.pager.try_own_as_found(page) {
                Ok(AsFound::Resident(mut hold)) => {
                    count_hit(self.pager.counter);
                    hold.write(offset, &self.from[part]);
                }
                Ok(AsFound::Absent(claim)) => {
                    filled = filled.or_else(|| channel.take_stage());
                    let Some(stage) = &mut filled else {
                        obstacle = Some(Obstacle::NoStage);
                        break;
                    };
                    claim.begin_write();
                    stage.write(held.len() * self.pager.page_bytes + offset, &self.from[part]);
                    held.push(claim);
                }
                Err(state) => {
                    obstacle = Some(Obstacle::Busy(state));
                    break;
                }
            }
            pages.next();
        }
        let Some(stage) = filled else { return (None, obstacle) };
        let numbers: Vec<u64> = held.iter().map(HomeClaim::page).collect();
        let copy = channel.copy_staged(CopyWay::WriteBack, &numbers, &stage);
        (Some(Flight { channel, pages: held, stage, copy }), obstacle)
    }

    fn end(&self, flight: Flight<'a, HomeClaim<'a>>) -> Result<Vec<u64>> {
        let Flight { channel, mut pages, stage, copy } = flight;
        let is_written = channel.await_staged(&copy).is_ok();
        channel.put_stage(stage);
        if is_written {
            pages.iter_mut().for_each(HomeClaim::end_write);
            return Ok(Vec::new());
        }
        Ok(pages.into_iter().map(|claim| claim.page()).collect())
    }

    fn copy_in_frame(&self, page: u64) -> Result<()> {
        let (offset, part) = self.span.part(page);
        self.pager.hold_exclusive(page, Fetch::Overwrite, Stream::Ignore)?.write(offset, &self.from[part]);
        Ok(())
    }

    fn wait(&self, page: u64, _: State) -> Result<bool> {
        self.copy_in_frame(page).map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_pages_and_of_ranges() {
        let span = BulkSpan { start: 25, bytes: 30, page_bytes: 10 };
        assert_eq!(span.pages(), 2..6);
        assert_eq!(span.part(2), (5, 0..5));
        assert_eq!(span.part(3), (0, 5..15));
        assert_eq!(span.part(5), (0, 25..30));
    }

    #[test]
    fn units_are_of_one_channel_and_have_each_page_once() {
        for (start, len, channels, most) in
            [(0, 64, 1, 16), (5, 100, 3, 4), (7, 1, 4, 8), (2, 9, 4, 2), (11, 40, 5, 1)]
        {
            for first_channel in 0..channels {
                let pages = start..start + len;
                let next = AtomicU64::new(0);
                let units = Units { pages: pages.clone(), channels, most, first_channel, next };
                let mut seen = Vec::new();
                while let Some(unit) = units.take() {
                    assert!(unit.clone().count() as u64 <= most);
                    let channel = first(&unit).map(|page| page % channels);
                    assert!(unit.clone().all(|page| Some(page % channels) == channel));
                    seen.extend(unit);
                }
                seen.sort_unstable();
                assert_eq!(seen, pages.collect::<Vec<u64>>());
            }
        }
    }

    #[test]
    fn no_unit_is_taken_after_a_stop() {
        let units = Units { pages: 0..100, channels: 2, most: 4, first_channel: 0, next: AtomicU64::new(0) };
        assert!(units.take().is_some());
        units.stop();
        assert!(units.take().is_none());
    }
}
