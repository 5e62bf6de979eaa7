//! Assignments to elements of arrays, executed by the devices that store the elements.
//!
//! The operation first claims the pages: it evicts them from the cache in RAM, and locks them. Other threads
//! that access a claimed page wait until the operation releases the page. Each claim covers a run: adjacent
//! home slots (places of pages in device memory). Two runs of each channel (share of a device) are in flight,
//! because a device would otherwise idle between runs. For a long range, each channel has a thread, because
//! claims and releases of pages take about as long as a GPU's work on the pages. For a short range, one
//! thread serves all channels in turn.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

use super::runs::{ArrayRun, Colocated, HomeElements};
use crate::base::error::Result;
use crate::base::scoped_threads::{self, works_alone};
use crate::engine::pager::{Fetch, Pager};
use crate::ops::executor::{
    Change, Lane as _, Operand, ReadOperand, RefusedRun, ResultStore, StagedRows, WriteOutcome, Writing,
    in_parts, unsettled,
};

/// The most bytes of pages that one submission holds.
const RUN_BYTES: usize = 256 << 20;
/// The number of submissions in flight on each channel.
const RUNS: usize = 2;
/// If an assignment changes fewer bytes, one thread serves all channels in turn.
const SMALL_BYTES: usize = if cfg!(test) { 1 } else { 16 << 20 };

/// Changes a range by values that devices compute from its elements and from corresponding elements of other
/// arrays. Colocated elements are read in place; others are copied.
pub(super) fn assign(
    store: &dyn ResultStore,
    array: HomeElements<'_>,
    others: &[Operand<'_>],
    range: &Range<usize>,
    change: &dyn Change,
) -> Result<()> {
    if !array.has_whole_groups(change.group_len(), range) {
        return StagedRows::changed(&array.staging_lane(), store, others, range).change(change);
    }
    let (mut colocated, mut staged) = (Vec::new(), Vec::new());
    let is_changed = |pager: &Pager| {
        let mut changed = others.iter().filter(|other| other.target.is_some());
        changed.any(|other| other.store.pager().is_some_and(|changed| std::ptr::eq(changed, pager)))
    };
    for (column, other) in (1..).zip(others) {
        match array.colocated(other, range.start) {
            // Do not read an array in place at shifted positions if the operation also changes this array:
            // devices would read changed elements. The array is staged (copied first) instead.
            Some(one) if one.is_alike(array.page_len) || !is_changed(one.pager) => colocated.push(one),
            _ => staged.push((column, *other)),
        }
    }
    if change.is_for_some_devices() {
        check(array, &colocated, &staged, range, change)?;
    }
    if !staged.is_empty() || change.part_stride() > 0 {
        // Prepare the pages of all parts first (write back, zero-fill, evict), so that an error of this step
        // leaves the elements unchanged.
        Writer::new(array, &colocated, &[], change, range).settle(range)?;
    }
    in_parts(change, &staged, range, array.page_len, store, &mut |part, read| {
        Writer::new(array, &colocated, read, change, part).write(part)
    })
}

/// Checks that each of several devices supports a change, before any of them begins.
fn check(
    array: HomeElements<'_>,
    colocated: &[Colocated<'_>],
    staged: &[(usize, Operand<'_>)],
    range: &Range<usize>,
    change: &dyn Change,
) -> Result<()> {
    let channels = 0..array.channels().len();
    let runs = channels.map(|channel| (channel, array.elements_in_channel(channel, range)));
    let mut asked = Vec::new();
    for (channel, within) in runs.filter(|(_, within)| !within.is_empty()) {
        let run = array.run(colocated, channel, &(within.start..within.start));
        if asked.iter().all(|other: &ArrayRun<'_>| !Arc::ptr_eq(other.lane.device(), run.lane.device())) {
            asked.push(run);
        }
    }
    // With several devices, check each of them first: otherwise one device could refuse the change after
    // another device has begun it. A single device refuses before it begins.
    if asked.len() > 1 {
        for run in &asked {
            Writing::check(&run.lane, change, run.run(), staged)?;
        }
    }
    Ok(())
}

/// A submitted change of some pages of one channel.
struct DeviceRun {
    slots: Range<u64>,
    writing: Writing,
}

/// The execution of a change on one array.
struct Writer<'a> {
    target: HomeElements<'a>,
    /// Arrays that the change uses in place, because their elements are colocated with the target's elements.
    colocated: &'a [Colocated<'a>],
    /// Operands from other stores, which are copied to the device.
    read: &'a [ReadOperand<'a>],
    change: &'a dyn Change,
    /// Pages of the target that the change overwrites as a whole without reading them.
    overwritten: Range<u64>,
}

/// The part of the change on one channel.
struct ChannelWork {
    channel: usize,
    /// The elements to change, counted from the channel's first slot.
    within: Range<u64>,
    /// The slots that no submission covers yet.
    rest: Range<u64>,
    runs: VecDeque<DeviceRun>,
    /// The slots of finished submissions. Their elements are reported only if another submission fails.
    written: Vec<Range<u64>>,
}

impl<'a> Writer<'a> {
    fn new(
        target: HomeElements<'a>,
        colocated: &'a [Colocated<'a>],
        read: &'a [ReadOperand<'a>],
        change: &'a dyn Change,
        range: &Range<usize>,
    ) -> Self {
        let is_read = colocated.iter().any(|other| std::ptr::eq(other.pager, target.pager));
        // If the change reports failures, pages are not overwritten as a whole: a failed work-item (GPU
        // thread) writes nothing, so its old element must stay readable.
        let is_overwritten = !is_read && change.overwrites(target.stride) && change.report_bytes(1) == 0;
        let overwritten = if is_overwritten { target.whole_pages(range) } else { 0..0 };
        Self { target, colocated, read, change, overwritten }
    }

    fn write(&self, range: &Range<usize>) -> WriteOutcome {
        let mut outcome = WriteOutcome::default();
        let failed_before = self.failed_write_backs();
        if let Err(error) = self.settle(range) {
            outcome.failure = Some(error);
            return outcome;
        }
        let page_len = self.target.page_len as u64;
        let channels = 0..self.target.channels().len();
        let works = channels.map(|channel| {
            let within = self.target.elements_in_channel(channel, range);
            let first = within.start / page_len;
            let end = if within.is_empty() { first } else { within.end.div_ceil(page_len) };
            ChannelWork { channel, within, rest: first..end, runs: VecDeque::new(), written: Vec::new() }
        });
        let mut works: Vec<_> = works.filter(|work| !work.rest.is_empty()).collect();
        let is_short = range.len() * self.target.stride < SMALL_BYTES;
        let of_each = if is_short || works_alone() { works.len().max(1) } else { 1 };
        let (has_failed, parts) = (AtomicBool::new(false), Mutex::new(works.chunks_mut(of_each)));
        let outcomes = Mutex::new(&mut outcome);
        let threads = parts.lock().len();
        scoped_threads::together(threads, || {
            loop {
                let Some(part) = parts.lock().next() else { break };
                let node = match part {
                    [one] => self.target.channels()[one.channel].device().info().numa_node,
                    _ => None,
                };
                let done = scoped_threads::near(node, || self.write_channels(part, &has_failed));
                outcomes.lock().add(done);
            }
        });
        if self.failed_write_backs() != failed_before {
            // A failed write-back may have left undefined contents in a page's home slot (place in device
            // memory), which devices may have read. The change may compute elements from their own old
            // values, so it cannot be repeated. Return an error instead.
            outcome.failure.get_or_insert_with(|| unsettled().into());
            for work in &mut works {
                for slots in std::mem::take(&mut work.written) {
                    self.list(work, &slots, &mut outcome.unspecified);
                }
            }
        }
        if outcome.failure.is_some() {
            for work in &works {
                work.written.iter().for_each(|slots| self.list(work, slots, &mut outcome.written));
            }
        }
        outcome
    }

    /// Changes all elements of some channels. Stops early if another channel fails.
    fn write_channels(&self, works: &mut [ChannelWork], has_failed: &AtomicBool) -> WriteOutcome {
        let mut outcome = WriteOutcome::default();
        while !has_failed.load(Relaxed) && works.iter().any(|work| !work.rest.is_empty()) {
            for number in 0..works.len() {
                if outcome.failure.is_none()
                    && let Err(error) = self.step(works, number, &mut outcome)
                {
                    outcome.failure.get_or_insert(error);
                }
            }
            has_failed.fetch_or(outcome.failure.is_some(), Relaxed);
        }
        self.finish_all(works, &mut outcome);
        has_failed.fetch_or(outcome.failure.is_some(), Relaxed);
        outcome
    }

    fn settle(&self, range: &Range<usize>) -> Result<()> {
        let pages = self.target.touched_pages(range);
        let Range { start, end } = self.overwritten;
        for (number, pager) in self.targets().enumerate() {
            if number > 0 || start == end {
                pager.settle(&pages)?;
            } else {
                // Settle (initialize) only the pages at both ends: only these pages keep old elements.
                pager.settle(&(pages.start..start))?;
                pager.settle(&(end..pages.end))?;
            }
            pager.evict(&pages)?;
        }
        self.colocated.iter().try_for_each(|other| other.pager.settle(&other.pages(range)))?;
        self.change.striped().iter().try_for_each(|(pager, pages)| pager.settle(pages))
    }

    /// Returns elements of a channel as a run, for a submission.
    fn run(&self, channel: usize, within: &Range<u64>) -> ArrayRun<'_> {
        let mut run = self.target.run(self.colocated, channel, within);
        run.lane.reads_all_of(&self.change.striped());
        run
    }

    /// Returns the arrays that the change writes: the target, and colocated arrays.
    fn targets(&self) -> impl Iterator<Item = &Pager> {
        let others = self.colocated.iter().filter(|other| other.is_changed).map(|other| other.pager);
        std::iter::once(self.target.pager).chain(others)
    }

    /// Counts the failed write-backs of the colocated arrays so far.
    fn failed_write_backs(&self) -> u64 {
        let colocated: u64 = self.colocated.iter().map(|other| other.pager.failed_write_backs()).sum();
        colocated + self.change.striped().iter().map(|(pager, _)| pager.failed_write_backs()).sum::<u64>()
    }

    /// Submits the change of the next run of a channel.
    fn step(&self, works: &mut [ChannelWork], number: usize, outcome: &mut WriteOutcome) -> Result<()> {
        let work = &mut works[number];
        let channel = work.channel;
        if work.rest.is_empty() {
            return Ok(());
        }
        if work.runs.len() >= RUNS {
            self.finish_one(work, outcome);
        }
        let first = work.rest.start;
        let bytes = RUN_BYTES.min(self.change.run_bytes());
        let most = (bytes / self.target.pager.page_bytes()).max(1) as u64;
        let wanted = first..self.cut_near(work, work.rest.end.min(first + most));
        // Fill the staging buffers before this thread locks pages: the copies may wait for pages of other
        // threads, and these threads may wait for pages that this thread has locked.
        let like = self.run(channel, &self.elements_of(work, &wanted));
        let staged = Writing::stage(&like.lane, like.run(), self.read)?;
        Writing::prepare(&like.lane, self.change, like.run(), &staged);
        let claimed = self.claim(channel, wanted)?;
        let mut end = self.cut_down(work, claimed);
        self.let_go(channel, end..claimed);
        if end == first {
            // Before waiting for a page, finish all work and release its pages: another thread may have
            // locked the page, and wait for pages that this thread has locked.
            self.finish_all(works, outcome);
            if outcome.failure.is_some() {
                return Ok(());
            }
            end = self.cut_up(&works[number], first + 1);
            self.claim_all(channel, first..end)?;
        }
        let work = &mut works[number];
        work.rest.start = end;
        let slots = first..end;
        let run = self.run(channel, &self.elements_of(work, &slots));
        match Writing::new(&run.lane, self.change, run.run(), staged) {
            Ok(writing) => work.runs.push_back(DeviceRun { slots, writing }),
            Err(RefusedRun { error, begun: false }) => {
                self.let_go(channel, slots);
                return Err(error);
            }
            Err(RefusedRun { error, begun: true }) => {
                // Record the elements in these slots as unspecified, because the device may have changed some
                // of them.
                self.let_go_written(channel, &slots);
                self.list(work, &slots, &mut outcome.unspecified);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Claims the pages of slots one by one, until a page is in use by another thread. Returns the end of the
    /// claimed slots. After an error, no page is claimed.
    fn claim(&self, channel: usize, slots: Range<u64>) -> Result<u64> {
        for slot in slots.clone() {
            match self.try_claim(self.page(channel, slot)) {
                Ok(None) => {}
                Ok(Some(_)) => return Ok(slot),
                Err(error) => {
                    self.let_go(channel, slots.start..slot);
                    return Err(error);
                }
            }
        }
        Ok(slots.end)
    }

    /// Returns true if a run may end before this slot, because no group crosses the boundary. With several
    /// channels, groups are within pages.
    fn is_cut(&self, work: &ChannelWork, slot: u64) -> bool {
        let group_len = self.change.group_len() as u64;
        let is_single = self.target.channels().len() == 1;
        let before = (slot * self.target.page_len as u64).saturating_sub(work.within.start);
        slot == work.rest.end || !is_single || before.is_multiple_of(group_len)
    }

    /// Returns the last slot at or before `slot` at which a run may end. If there is none, returns the first
    /// slot that no submission covers.
    fn cut_down(&self, work: &ChannelWork, slot: u64) -> u64 {
        let first = work.rest.start;
        (first + 1..=slot).rev().find(|slot| self.is_cut(work, *slot)).unwrap_or(first)
    }

    /// Returns the first slot from `slot` on at which a run may end.
    fn cut_up(&self, work: &ChannelWork, slot: u64) -> u64 {
        (slot..work.rest.end).find(|slot| self.is_cut(work, *slot)).unwrap_or(work.rest.end)
    }

    /// Returns the last slot at or before `slot` at which a run may end, or else the first one after it.
    fn cut_near(&self, work: &ChannelWork, slot: u64) -> u64 {
        Some(self.cut_down(work, slot))
            .filter(|end| *end > work.rest.start)
            .unwrap_or_else(|| self.cut_up(work, slot))
    }

    /// Claims the pages of all slots. The caller must hold no page. While this thread waits, it holds none.
    fn claim_all(&self, channel: usize, slots: Range<u64>) -> Result<()> {
        if slots.end - slots.start == 1 {
            return self.claim_waiting(self.page(channel, slots.start));
        }
        loop {
            let claimed = self.claim(channel, slots.clone())?;
            if claimed == slots.end {
                return Ok(());
            }
            self.let_go(channel, slots.start..claimed);
            self.claim_waiting(self.page(channel, claimed))?;
            self.let_go(channel, claimed..claimed + 1);
        }
    }

    /// Claims a page of every target array if no thread uses any of them. Otherwise claims none, and returns
    /// the number of the array whose page is in use.
    fn try_claim(&self, page: u64) -> Result<Option<usize>> {
        self.try_claim_others(page, usize::MAX)
    }

    /// Like [`try_claim`](Self::try_claim), if this thread already holds the page of array number `held`.
    fn try_claim_others(&self, page: u64, held: usize) -> Result<Option<usize>> {
        for (number, pager) in self.targets().enumerate().filter(|(number, _)| *number != held) {
            let claimed = pager.try_claim_home(page, self.fetch(number, page));
            if !matches!(claimed, Ok(true)) {
                let before =
                    self.targets().enumerate().filter(|(other, _)| *other < number || *other == held);
                before.for_each(|(_, pager)| pager.release_unchanged(page));
                return claimed.map(|_| Some(number));
            }
        }
        Ok(None)
    }

    /// Claims a page of every target array, and waits for threads that use it. The caller must hold no page.
    /// While this thread waits, it holds none.
    fn claim_waiting(&self, page: u64) -> Result<()> {
        let mut busy = 0;
        loop {
            let Some(pager) = self.targets().nth(busy) else { return Ok(()) };
            pager.claim_home(page, self.fetch(busy, page))?;
            match self.try_claim_others(page, busy)? {
                None => return Ok(()),
                Some(other) => busy = other,
            }
        }
    }

    /// Determines if the claim of a target's page must fetch the page's contents.
    fn fetch(&self, number: usize, page: u64) -> Fetch {
        match number == 0 && self.overwritten.contains(&page) {
            true => Fetch::Overwrite,
            false => Fetch::Contents,
        }
    }

    fn page(&self, channel: usize, slot: u64) -> u64 {
        slot * self.target.channels().len() as u64 + channel as u64
    }

    fn let_go(&self, channel: usize, slots: Range<u64>) {
        for slot in slots {
            self.targets().for_each(|pager| pager.release_unchanged(self.page(channel, slot)));
        }
    }

    /// Releases the pages of slots after their device has written them.
    fn let_go_written(&self, channel: usize, slots: &Range<u64>) {
        for slot in slots.clone() {
            self.targets().for_each(|pager| pager.release_written(self.page(channel, slot)));
        }
    }

    /// Appends the elements of slots to a list of ranges.
    fn list(&self, work: &ChannelWork, slots: &Range<u64>, list: &mut Vec<Range<usize>>) {
        let run = self.target.run(&[], work.channel, &self.elements_of(work, slots));
        list.extend(run.run().parts().map(|(_, index, len)| index..index + len));
    }

    fn elements_of(&self, work: &ChannelWork, slots: &Range<u64>) -> Range<u64> {
        let (within, page_len) = (&work.within, self.target.page_len as u64);
        within.start.max(slots.start * page_len)..within.end.min(slots.end * page_len)
    }

    /// Waits for the oldest submission of a channel, and releases its pages.
    fn finish_one(&self, work: &mut ChannelWork, outcome: &mut WriteOutcome) {
        let Some(DeviceRun { slots, writing }) = work.runs.pop_front() else { return };
        let lane = self.target.run(&[], work.channel, &(0..0)).lane;
        // Release the pages as written even after an error, because the device may have changed some
        // elements.
        let done = writing.wait(&lane, self.change, self.read);
        self.let_go_written(work.channel, &slots);
        match done {
            Ok(()) => work.written.push(slots),
            Err(error) => {
                outcome.failure.get_or_insert_with(|| error.into());
                self.list(work, &slots, &mut outcome.unspecified);
            }
        }
    }

    fn finish_all(&self, works: &mut [ChannelWork], outcome: &mut WriteOutcome) {
        for work in works {
            while !work.runs.is_empty() {
                self.finish_one(work, outcome);
            }
        }
    }
}
