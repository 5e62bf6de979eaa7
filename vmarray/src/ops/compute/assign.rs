//! Changes of elements of arrays on their devices.
//!
//! Pages that are written to are held exclusively, absent from the cache, while their device works on them:
//! accesses to them wait, accesses to all others go on. They are taken in runs of neighbouring slots, two
//! runs of each channel at a time, so that devices need not wait for pages to be taken. Of long ranges each
//! channel has a thread of its own, since to take pages and to let them go takes about as long as a card has
//! to do with them; of short ones one thread serves all channels in turn.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use backend_api::Device;

use super::array::{ArrayRun, Beside, unsettled};
use parking_lot::Mutex;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::scoped_threads;
use crate::engine::guards;
use crate::engine::pager::{Fetch, Pager};
use crate::ops::executor::{Change, Lane as _, Operand, Outcome, ReadOperand, RefusedRun, Writing, in_parts};

/// How many bytes of pages are held at once for one submission.
const RUN_BYTES: usize = 256 << 20;
/// So many submissions of a channel are under way at once.
const RUNS: usize = 2;
/// Below this, one thread serves all channels in turn.
const SMALL_BYTES: usize = if cfg!(test) { 1 } else { 16 << 20 };

/// Changes a range by what is computed from it and from as many elements of others: where these lie beside
/// it, without a copy.
pub(super) fn assign<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    others: &[Operand<'_>],
    range: &Range<usize>,
    change: &dyn Change,
) -> Result<()> {
    let (mut beside, mut staged) = (Vec::new(), Vec::new());
    let is_changed = |pager: &Pager| {
        let mut changed = others.iter().filter(|other| other.target.is_some());
        changed.any(|other| other.store.pager().is_some_and(|changed| std::ptr::eq(changed, pager)))
    };
    for (column, other) in (1..).zip(others) {
        match array.beside(other, range.start) {
            // What is changed is not to be read at another place meanwhile.
            Some(one) if one.is_alike(array.page_len()) || !is_changed(one.pager) => beside.push(one),
            _ => staged.push((column, *other)),
        }
    }
    if change.is_for_some_devices() {
        check(array, &beside, &staged, range, change)?;
    }
    if !staged.is_empty() || change.part_stride() > 0 {
        // A refusal comes before anything is written.
        Writer::new(array, &beside, &[], change, range).settle(range)?;
    }
    in_parts(change, &staged, range, array.page_len(), array, |part, read| {
        Writer::new(array, &beside, read, change, part).write(part)
    })
}

/// Asks each device, where there are several, whether it can make a change.
fn check<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    beside: &[Beside<'_>],
    staged: &[(usize, Operand<'_>)],
    range: &Range<usize>,
    change: &dyn Change,
) -> Result<()> {
    let channels = 0..array.pager().channels().len();
    let runs = channels.map(|channel| (channel, array.elements_in_channel(channel, range)));
    let mut asked = Vec::new();
    for (channel, within) in runs.filter(|(_, within)| !within.is_empty()) {
        let run = array.run(beside, channel, &(within.start..within.start));
        if asked.iter().all(|other: &ArrayRun<'_>| !Arc::ptr_eq(other.lane.device(), run.lane.device())) {
            asked.push(run);
        }
    }
    // A single one says it before it has begun.
    if asked.len() > 1 {
        for run in &asked {
            Writing::check(&run.lane, change, run.run(), staged)?;
        }
    }
    Ok(())
}

/// A run of pages of one channel that its device works on.
struct DeviceRun {
    /// The pages, by slot.
    slots: Range<u64>,
    writing: Writing,
}

/// Writes to the elements of one array.
struct Writer<'a, T: Element, D: Device> {
    target: &'a VirtualArray<T, D>,
    /// Arrays whose elements lie beside the target's.
    beside: &'a [Beside<'a>],
    /// Elements of others, which are copied there.
    read: &'a [ReadOperand<'a>],
    change: &'a dyn Change,
    /// Pages of the target all of whose bytes are written, whatever they were.
    overwritten: Range<u64>,
}

/// A channel's part of the work.
struct ChannelWork {
    channel: usize,
    /// Elements, counted in the channel.
    within: Range<u64>,
    /// The slots that were not taken yet.
    rest: Range<u64>,
    runs: VecDeque<DeviceRun>,
    /// Slots of the runs that are done. Their elements are listed only if others fail.
    written: Vec<Range<u64>>,
}

impl<'a, T: Element, D: Device> Writer<'a, T, D> {
    /// What writes to a range.
    fn new(
        target: &'a VirtualArray<T, D>,
        beside: &'a [Beside<'a>],
        read: &'a [ReadOperand<'a>],
        change: &'a dyn Change,
        range: &Range<usize>,
    ) -> Self {
        let is_read = beside.iter().any(|other| std::ptr::eq(other.pager, target.pager()));
        // Of a kernel that reports, items may fail, and those write nothing.
        let is_overwritten = !is_read && change.overwrites(size_of::<T>()) && change.report_bytes(1) == 0;
        let whole = if is_overwritten { target.whole_pages(range) } else { 0..0 };
        Self { target, beside, read, change, overwritten: whole.start as u64..whole.end as u64 }
    }

    fn write(&self, range: &Range<usize>) -> Outcome {
        let mut outcome = Outcome::default();
        let failed_before = self.failed_write_backs();
        if let Err(error) = self.settle(range) {
            outcome.failure = Some(error);
            return outcome;
        }
        let page_len = self.target.page_len() as u64;
        let channels = 0..self.target.pager().channels().len();
        let works = channels.map(|channel| {
            let within = self.target.elements_in_channel(channel, range);
            let first = within.start / page_len;
            let end = if within.is_empty() { first } else { within.end.div_ceil(page_len) };
            ChannelWork { channel, within, rest: first..end, runs: VecDeque::new(), written: Vec::new() }
        });
        let mut works: Vec<_> = works.filter(|work| !work.rest.is_empty()).collect();
        let is_short = range.len() * size_of::<T>() < SMALL_BYTES;
        // Other threads could not know that they must not wait for the guards of this one.
        let of_each = if is_short || guards::held() { works.len().max(1) } else { 1 };
        let (has_failed, parts) = (AtomicBool::new(false), Mutex::new(works.chunks_mut(of_each)));
        let outcomes = Mutex::new(&mut outcome);
        let threads = parts.lock().len();
        scoped_threads::together(threads, || {
            loop {
                let Some(part) = parts.lock().next() else { break };
                let node = match part {
                    [one] => self.target.pager().channels()[one.channel].device().info().numa_node,
                    _ => None,
                };
                let done = scoped_threads::near(node, || self.write_channels(part, &has_failed));
                outcomes.lock().add(done);
            }
        });
        if self.failed_write_backs() != failed_before {
            // It may have been read what a failed copy had left in a home slot. Not to be done once more: the
            // target's elements may be computed from themselves.
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

    /// Has some channels work on all that is theirs, unless others have failed.
    fn write_channels(&self, works: &mut [ChannelWork], has_failed: &AtomicBool) -> Outcome {
        let mut outcome = Outcome::default();
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
                // Nothing needs zeroes where all is overwritten.
                pager.settle(&(pages.start..start))?;
                pager.settle(&(end..pages.end))?;
            }
            pager.evict(&pages)?;
        }
        self.beside.iter().try_for_each(|other| other.pager.settle(&other.pages(range)))?;
        self.change.dealt().iter().try_for_each(|(pager, pages)| pager.settle(pages))
    }

    /// Elements of a channel, to be worked on.
    fn run(&self, channel: usize, within: &Range<u64>) -> ArrayRun<'_> {
        let mut run = self.target.run(self.beside, channel, within);
        run.lane.reads_all_of(&self.change.dealt());
        run
    }

    /// The array that is written to, and those beside it that are, too.
    fn targets(&self) -> impl Iterator<Item = &Pager> {
        let others = self.beside.iter().filter(|other| other.is_changed).map(|other| other.pager);
        std::iter::once(self.target.pager()).chain(others)
    }

    /// How many write-backs of the arrays beside have failed so far.
    fn failed_write_backs(&self) -> u64 {
        let beside: u64 = self.beside.iter().map(|other| other.pager.failed_write_backs()).sum();
        beside + self.change.dealt().iter().map(|(pager, _)| pager.failed_write_backs()).sum::<u64>()
    }

    /// Has a channel work on one more run.
    fn step(&self, works: &mut [ChannelWork], number: usize, outcome: &mut Outcome) -> Result<()> {
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
        let most = (bytes / self.target.pager().page_bytes()).max(1) as u64;
        let wanted = first..work.rest.end.min(first + most);
        // While nothing of it is held yet.
        let like = self.run(channel, &self.elements_of(work, &wanted));
        let staged = Writing::stage(&like.lane, like.run(), self.read)?;
        Writing::prepare(&like.lane, self.change, like.run(), &staged);
        let mut end = self.claim(channel, wanted)?;
        if end == first {
            // The thread that has the page may wait for those that this thread holds.
            self.finish_all(works, outcome);
            if outcome.failure.is_some() {
                return Ok(());
            }
            self.claim_waiting(self.page(channel, first))?;
            end = first + 1;
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
                // A part of it may have been carried out.
                self.let_go_written(channel, &slots);
                self.list(work, &slots, &mut outcome.unspecified);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Holds the pages of slots, from the first on, as long as that can be had at once; says where it ends.
    /// On an error none is held.
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

    /// Holds a page of all targets, if that can be had at once; else none, and says which target's is in use.
    fn try_claim(&self, page: u64) -> Result<Option<usize>> {
        self.try_claim_others(page, usize::MAX)
    }

    /// As [`try_claim`](Self::try_claim), while the page of one of them is held already.
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

    /// Holds a page of all targets, waiting for threads that use it. The caller holds no page, and none is
    /// held while this waits.
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

    /// Whether a page of one of the targets needs contents.
    fn fetch(&self, number: usize, page: u64) -> Fetch {
        match number == 0 && self.overwritten.contains(&page) {
            true => Fetch::Overwrite,
            false => Fetch::Contents,
        }
    }

    fn page(&self, channel: usize, slot: u64) -> u64 {
        slot * self.target.pager().channels().len() as u64 + channel as u64
    }

    fn let_go(&self, channel: usize, slots: Range<u64>) {
        for slot in slots {
            self.targets().for_each(|pager| pager.release_unchanged(self.page(channel, slot)));
        }
    }

    /// Lets the pages of slots go whose device has written to them.
    fn let_go_written(&self, channel: usize, slots: &Range<u64>) {
        for slot in slots.clone() {
            self.targets().for_each(|pager| pager.release_written(self.page(channel, slot)));
        }
    }

    /// Lists the elements of slots.
    fn list(&self, work: &ChannelWork, slots: &Range<u64>, list: &mut Vec<Range<usize>>) {
        let run = self.target.run(&[], work.channel, &self.elements_of(work, slots));
        list.extend(run.run().parts().map(|(_, index, len)| index..index + len));
    }

    fn elements_of(&self, work: &ChannelWork, slots: &Range<u64>) -> Range<u64> {
        let (within, page_len) = (&work.within, self.target.page_len() as u64);
        within.start.max(slots.start * page_len)..within.end.min(slots.end * page_len)
    }

    /// Waits for the oldest run of a channel and lets its pages go.
    fn finish_one(&self, work: &mut ChannelWork, outcome: &mut Outcome) {
        let Some(DeviceRun { slots, writing }) = work.runs.pop_front() else { return };
        let lane = self.target.run(&[], work.channel, &(0..0)).lane;
        // On an error, too, the slots have contents: whichever.
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

    fn finish_all(&self, works: &mut [ChannelWork], outcome: &mut Outcome) {
        for work in works {
            while !work.runs.is_empty() {
                self.finish_one(work, outcome);
            }
        }
    }
}
