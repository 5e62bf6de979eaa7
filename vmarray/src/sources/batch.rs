//! Device work on a range of a source (program memory), in batches of pages that fit into the device's slots
//! (page-sized buffers).
//!
//! A batch locks some pages of one channel (share of a device), assigns slots to them, copies missing
//! contents to the device, and starts the work on pages with contiguous slots. While the device works on one
//! batch, the host prepares the next. The source's directory records the new states after the work.

mod finish;

use std::collections::VecDeque;
use std::iter::Peekable;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use backend_api::expr::Geometry;
use backend_api::{Elements, Ticket};
use parking_lot::Mutex;

use super::channel::{PageBlocks, SlotPool, SourceChannel};
use super::core::SourceCore;
use super::directory::{DirectoryEntry, ExclusivePage, NO_SLOT, SharedPage};
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::base::scoped_threads;
use crate::ops::executor::{Lane as _, RefusedRun, Run, RunAccess};

const BATCH_BYTES: usize = 256 << 20;
/// Maximum number of pages of a batch, whose states fit into the second-level cache of a core.
const BATCH_PAGES: usize = 4096;
/// When a batch must copy this many bytes, it starts without further pages, so that copies and work overlap.
const COPIED_BYTES: u64 = 32 << 20;
/// Below this number of bytes, one thread serves all channels in turn.
const SMALL_BYTES: usize = 1 << 20;
/// Bytes of a group of pages, for work whose results are rounded. Such work is divided at multiples of this
/// length; each group needs a launch and has a result.
const GROUP_BYTES: usize = BATCH_BYTES;
/// Maximum number of runs of a batch whose work is in flight, because each may need memory.
const WORKS: usize = 8;

/// A run: elements of consecutive pages in contiguous slots on a device.
#[derive(Clone, Debug)]
pub(super) struct SlotRun {
    pub(super) elements: Elements<'static>,
    /// The position of the elements in the source.
    geometry: Geometry,
    /// The pages of the batch that the run contains.
    members: Range<usize>,
}

impl SlotRun {
    pub(super) fn run(&self) -> Run<'_> {
        Run { columns: std::slice::from_ref(&self.elements), geometry: self.geometry }
    }
}

/// The tickets and the state of the work on a run, or the run if the device refused it.
pub(super) type Started<W> = Result<(Vec<Ticket>, W), RefusedRun>;

/// An operation on batches of pages: starts the work on each run, and processes its result.
pub(super) trait BatchOperation<T: Element>: Sync {
    /// The state of the work on a run.
    type Work;
    /// The result of a channel.
    type Found: Default + Send;

    fn access(&self) -> RunAccess;

    /// Returns true if the rounding of results depends on the division into runs. The runs then must not
    /// depend on the blocks that are missing on the device.
    fn is_rounded(&self) -> bool {
        false
    }

    /// Makes the device prepare work on runs like this one, for example compile a kernel. The run has no
    /// elements, and the caller holds no page.
    fn prepare(&self, channel: &SourceChannel, like: &SlotRun) {
        let _ = (channel, like);
    }

    /// Starts the work on a run. The work ends when all returned tickets are done.
    fn start(&self, channel: &SourceChannel, run: &SlotRun) -> Started<Self::Work>;

    /// Processes the result of a run, in the order of the runs, while the batch holds its pages. Returns
    /// `Break` if the operation needs no further pages of the channel.
    fn finish(
        &self,
        channel: &SourceChannel,
        run: &SlotRun,
        work: Self::Work,
        found: &mut Self::Found,
    ) -> Result<ControlFlow<()>> {
        let _ = (channel, run, work, found);
        Ok(ControlFlow::Continue(()))
    }

    /// Returns the value, if the operation writes the same to all elements. The host does if a device fails.
    fn value(&self) -> Option<T> {
        None
    }

    /// Records that the work wrote elements (`done`), or that it failed and their contents are unspecified.
    fn changed(&self, elements: Range<usize>, done: bool, found: &mut Self::Found) {
        let _ = (elements, done, found);
    }
}

/// The lock of a page that a batch holds.
#[derive(Debug)]
enum Hold<'a> {
    Exclusive(ExclusivePage<'a>),
    Shared(#[expect(dead_code, reason = "held")] SharedPage<'a>),
}

/// One page of a batch.
#[derive(Debug)]
struct Member<'a> {
    page: usize,
    slot: u32,
    within: Range<usize>,
    touched: u64,
    /// The blocks that were copied to the device for this batch, one bit each.
    fetched: u64,
    hold: Option<Hold<'a>>,
}

/// The pages of a channel that are not in a batch yet.
struct RemainingPages<'r, I: Iterator<Item = usize>> {
    pages: Peekable<I>,
    /// The elements that the operation processes.
    range: &'r Range<usize>,
    most: usize,
}

/// A batch: pages of a channel that the device processes together.
struct PageBatch<'a, W> {
    channel: &'a SourceChannel,
    members: Vec<Member<'a>>,
    uploads: Vec<Ticket>,
    /// True if the copies of all missing blocks to the device were submitted and have not failed.
    is_fetched: bool,
    /// Number of pages of a group, if results depend on the division into runs.
    group: Option<usize>,
    runs: VecDeque<SlotRun>,
    works: VecDeque<(SlotRun, Vec<Ticket>, W)>,
    /// The run that the device refused, if it may have executed a part of its work.
    refused: Option<SlotRun>,
    /// The error that stopped the submission of work.
    error: Option<Error>,
}

impl<W> Drop for PageBatch<'_, W> {
    fn drop(&mut self) {
        // Wait until no device work accesses the slots (pages on the device) or the program's memory, before
        // releasing the pages.
        let works = self.works.iter().flat_map(|(_, tickets, _)| tickets);
        for ticket in self.uploads.iter().chain(works) {
            let _ = self.channel.device().wait(*ticket);
        }
    }
}

impl<T: Element> SourceCore<T> {
    /// Runs an operation on all channels with pages of a range, in parallel. Returns the result of each
    /// channel; after an error the results are partial.
    pub(super) fn operate<O: BatchOperation<T>>(
        &self,
        range: &Range<usize>,
        operation: &O,
    ) -> (Vec<O::Found>, Result<()>) {
        let pages = self.cuts.touched_pages(range);
        let busy = self.channels.len().min(pages.len());
        let threads = if range.len() * size_of::<T>() < SMALL_BYTES { 1 } else { busy };
        let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let driven: Vec<_> = (0..busy).map(|_| Mutex::new(None)).collect();
        scoped_threads::together(threads, || {
            while !has_failed.load(Relaxed) {
                let number = next.fetch_add(1, Relaxed);
                let Some(place) = driven.get(number) else { break };
                let index = (pages.start + number) % self.channels.len();
                let node = self.channels[index].device().info().numa_node;
                let (found, done) = scoped_threads::near(node, || self.drive(index, range, operation));
                has_failed.fetch_or(done.is_err(), Relaxed);
                *place.lock() = Some((found, done));
            }
        });
        let driven = driven.into_iter().filter_map(Mutex::into_inner);
        let (found, done): (Vec<_>, Vec<_>) = driven.unzip();
        (found, done.into_iter().collect())
    }

    /// Runs an operation on the pages of a range that belong to one channel.
    fn drive<O: BatchOperation<T>>(
        &self,
        index: usize,
        range: &Range<usize>,
        operation: &O,
    ) -> (O::Found, Result<()>) {
        let channel = &self.channels[index];
        operation.prepare(channel, &self.run_of(channel, 0, index, 0));
        let mut pool = channel.pool.lock();
        // Limit a batch to half of the slots (pages in device memory), because two batches are in flight.
        let most = (pool.slots() / 2).min(BATCH_BYTES / self.page_bytes()).clamp(1, BATCH_PAGES);
        let mut rest = RemainingPages { pages: self.pages_of_channel(index, range).peekable(), range, most };
        let overlaps = pool.slots() >= 2 * most;
        let mut outcome = O::Found::default();
        let mut former: Option<PageBatch<'_, O::Work>> = None;
        let (mut result, mut failed) = (Ok(ControlFlow::Continue(())), false);
        while rest.pages.peek().is_some() && !failed && matches!(result, Ok(ControlFlow::Continue(()))) {
            let batch = self.start(channel, &mut pool, &mut rest, operation);
            // After an error stop, unless all elements get one `value`: the host can write it to the pages.
            failed = batch.error.is_some() && operation.value().is_none();
            let due = if overlaps { former.replace(batch) } else { Some(batch) };
            if let Some(due) = due {
                result = self.finish(due, operation, &mut outcome);
            }
        }
        if let Some(last) = former {
            let last = self.finish(last, operation, &mut outcome);
            result = result.and(last);
        }
        (outcome, result.map(drop))
    }

    /// Returns the pages of a range that belong to one channel.
    pub(super) fn pages_of_channel(
        &self,
        index: usize,
        range: &Range<usize>,
    ) -> impl Iterator<Item = usize> + use<T> {
        let (count, pages) = (self.channels.len(), self.cuts.touched_pages(range));
        let first = pages.start + (index + count - pages.start % count) % count;
        (first..pages.end).step_by(count)
    }

    /// Returns true for the first page of a group.
    fn begins(&self, page: usize, group: Option<usize>) -> bool {
        group.is_none_or(|group| (page / self.channels.len()).is_multiple_of(group))
    }

    fn start<'a, O: BatchOperation<T>>(
        &'a self,
        channel: &'a SourceChannel,
        pool: &mut SlotPool,
        rest: &mut RemainingPages<'_, impl Iterator<Item = usize>>,
        operation: &O,
    ) -> PageBatch<'a, O::Work> {
        let RemainingPages { pages, range, most } = rest;
        let most = *most;
        let group = operation.is_rounded().then(|| (GROUP_BYTES / self.page_bytes()).clamp(1, most));
        let mut batch = PageBatch {
            channel,
            members: Vec::new(),
            uploads: Vec::new(),
            is_fetched: false,
            group,
            runs: VecDeque::new(),
            works: VecDeque::new(),
            refused: None,
            error: None,
        };
        batch.members.reserve(pages.size_hint().0.min(most));
        let (mut copied, mut hits) = (0, 0);
        while let Some(&page) = pages.peek() {
            let is_full = batch.members.len() + group.unwrap_or(1) > most || copied >= COPIED_BYTES;
            if is_full && !batch.members.is_empty() && self.begins(page, group) {
                break;
            }
            pages.next();
            let entry = &self.entries[page];
            let within = self.cuts.within(page, range);
            let touched = self.cuts.touched(&within);
            let needed = match operation.access() {
                RunAccess::Read | RunAccess::Change => touched,
                RunAccess::Overwrite => touched & !self.cuts.covered(page, &within),
            };
            let hold = self.hold(entry, operation.access(), needed);
            let fetched = needed & !entry.valid();
            if fetched == 0 {
                hits += 1;
            } else {
                let bytes = |r: Range<usize>| r.len() * size_of::<T>();
                copied += self.cuts.ranges(page, fetched).map(bytes).sum::<usize>() as u64;
                channel.counters.misses.add(1);
            }
            // Pages without a slot (in device memory) get theirs later, all in one step, so that these slots
            // are contiguous.
            let slot = entry.slot();
            if let Some(slot) = slot {
                pool.touched(slot);
            }
            let slot = slot.unwrap_or(NO_SLOT);
            batch.members.push(Member { page, slot, within, touched, fetched, hold: Some(hold) });
        }
        self.hits.add(hits);
        batch.error = self.prepare(&mut batch, pool, operation).err();
        batch
    }

    /// Locks a page: shared if the work only reads it and the device has all necessary blocks, otherwise
    /// exclusively. The caller holds the channel, so valid blocks remain valid.
    fn hold<'a>(&self, entry: &'a DirectoryEntry, access: RunAccess, needed: u64) -> Hold<'a> {
        if access == RunAccess::Read {
            let shared = entry.share();
            if needed & !entry.valid() == 0 {
                return Hold::Shared(shared);
            }
        }
        Hold::Exclusive(entry.take())
    }

    /// Assigns slots to the pages of a batch, starts the copies of missing data, and starts the work.
    fn prepare<O: BatchOperation<T>>(
        &self,
        batch: &mut PageBatch<'_, O::Work>,
        pool: &mut SlotPool,
        operation: &O,
    ) -> Result<()> {
        let absent = batch.members.iter().filter(|member| member.slot == NO_SLOT).count();
        if absent > 0 {
            let slots = batch.channel.allocate(pool, &self.entries, absent)?;
            let without = batch.members.iter_mut().filter(|member| member.slot == NO_SLOT);
            for (member, slot) in without.zip(slots) {
                self.entries[member.page].place(Some(slot));
                pool.policy_insert(slot, member.page);
                member.slot = slot;
            }
        }
        let missing: Vec<_> = batch
            .members
            .iter()
            .filter(|member| member.fetched != 0)
            .map(|member| PageBlocks { page: member.page, slot: member.slot, blocks: member.fetched })
            .collect();
        batch.channel.fetch(&mut pool.staging, &missing, &mut batch.uploads)?;
        batch.is_fetched = true;
        if let Some(last) = batch.uploads.last() {
            batch.channel.kernels().order_after(*last)?;
        }
        batch.runs = self.runs(batch).into();
        self.launch(batch, operation)?;
        if operation.access() == RunAccess::Read {
            // The operation only reads, so let other threads read the pages in program memory.
            for member in &mut batch.members {
                member.hold = match member.hold.take() {
                    Some(Hold::Exclusive(page)) => Some(Hold::Shared(page.downgrade())),
                    hold => hold,
                };
            }
        }
        Ok(())
    }

    /// Starts the work on runs up to the limit [`WORKS`]. After an error it starts no further runs.
    fn launch<O: BatchOperation<T>>(&self, batch: &mut PageBatch<'_, O::Work>, operation: &O) -> Result<()> {
        while batch.works.len() < WORKS
            && let Some(run) = batch.runs.pop_front()
        {
            batch.channel.counters.submissions.add(1);
            match operation.start(batch.channel, &run) {
                Ok((tickets, work)) => batch.works.push_back((run, tickets, work)),
                Err(RefusedRun { error, begun }) => {
                    batch.runs.clear();
                    batch.refused = Some(run).filter(|_| begun);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Returns a run without elements, which begins at an element of a page with a slot.
    pub(super) fn run_of(&self, channel: &SourceChannel, slot: u32, page: usize, at: usize) -> SlotRun {
        let (page_len, channels) = (self.cuts.page_len, self.channels.len());
        SlotRun {
            elements: Elements { start: channel.place(slot, at), count: 0, stride: size_of::<T>() as u64 },
            geometry: Geometry {
                first: (page / channels * page_len + at) as u64,
                page_len: page_len as u64,
                channel: (page % channels) as u64,
                channels: channels as u64,
            },
            members: 0..0,
        }
    }

    /// Returns the runs of a batch: consecutive pages with contiguous slots.
    fn runs<W>(&self, batch: &PageBatch<'_, W>) -> Vec<SlotRun> {
        let mut runs: Vec<SlotRun> = Vec::new();
        let mut next = None;
        let channels = self.channels.len();
        for (number, member) in batch.members.iter().enumerate() {
            let is_cut = batch.group.is_some() && self.begins(member.page, batch.group);
            match runs.last_mut() {
                Some(_) if next == Some((member.page, member.slot)) && !is_cut => {}
                _ => runs.push(SlotRun {
                    members: number..number,
                    ..self.run_of(batch.channel, member.slot, member.page, member.within.start)
                }),
            }
            if let Some(run) = runs.last_mut() {
                run.elements.count += member.within.len() as u64;
                run.members.end += 1;
            }
            next = Some((member.page + channels, member.slot + 1));
        }
        runs
    }
}
