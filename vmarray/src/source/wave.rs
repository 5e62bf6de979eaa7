//! Device-side work on a section of a source, in waves that fit into the slots.
//!
//! A wave holds some pages of one channel, sees to it that they have slots and what the work needs of their contents,
//! and starts the work on each run of pages whose slots follow one another. While the device works on one wave, the
//! next is prepared. What the pages are afterwards is noted in the directory when the wave's work is done, not before.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::ops::{ControlFlow, Range};

use backend_api::{Device, DeviceSpan, Elements, Ticket};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use super::channel::{Channel, PageBlocks, Pool};
use super::core::Core;
use crate::element::Element;
use crate::error::{Error, Result};

/// A wave has at most this many bytes.
const WAVE_BYTES: usize = 256 << 20;
/// A wave for which this much had to be copied is started without waiting for more, so that copies and work overlap.
const COPIED_BYTES: u64 = 32 << 20;
/// Below this, one thread serves all channels in turn.
const SMALL_BYTES: usize = 1 << 20;

/// What device-side work does with the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// It reads them: all of them must be on the device.
    Read,
    /// It overwrites all of them: nothing is fetched for blocks that lie within.
    Overwrite,
}

/// Elements in slots that follow one another on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// The place of the first element.
    pub(super) start: DeviceSpan,
    /// How many there are.
    pub(super) count: usize,
    /// The page of the first, and its place within.
    page: usize,
    at: usize,
}

impl Run {
    pub(super) fn elements(&self, element_bytes: usize) -> Elements {
        Elements { start: self.start, count: self.count as u64, stride: element_bytes as u64 }
    }
}

/// Device-side work, as seen by the waves: what is done with each run, and what becomes of its outcome.
pub(super) trait Operation<T: Element, D: Device>: Sync {
    const ACCESS: Access;
    /// What is under way for a run.
    type Work;
    /// What a channel has found out.
    type Outcome: Default + Send;

    /// Starts the work on a run; `None` if there is nothing to do.
    fn start(&self, channel: &Channel<D>, run: &Run) -> Result<Option<(Ticket, Self::Work)>>;

    /// Takes in the outcome of a run, in order, while its pages are held. Breaks if the channel's other pages are of
    /// no interest.
    fn finish(
        &self,
        core: &Core<T, D>,
        channel: &Channel<D>,
        run: &Run,
        work: Self::Work,
        outcome: &mut Self::Outcome,
    ) -> Result<ControlFlow<()>>;

    /// Does at home what the device failed to do to elements that are overwritten. False if that cannot be.
    fn redo(&self, at_home: &mut [T]) -> bool {
        let _ = at_home;
        false
    }
}

/// How a wave keeps others from a page.
#[derive(Debug)]
enum Hold<'a> {
    Exclusive(RwLockWriteGuard<'a, ()>),
    Shared(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>),
}

/// A page of a wave.
#[derive(Debug)]
struct Member<'a> {
    page: usize,
    slot: u32,
    within: Range<usize>,
    touched: u64,
    /// Blocks that are copied to the device for this wave.
    fetched: u64,
    /// Always there, but while it is exchanged.
    hold: Option<Hold<'a>>,
}

/// Pages that are worked on together.
struct Wave<'a, D: Device, W> {
    channel: &'a Channel<D>,
    members: Vec<Member<'a>>,
    uploads: Vec<Ticket>,
    works: VecDeque<(Run, Ticket, W)>,
    /// Why not all of the work was started.
    error: Option<Error>,
}

impl<D: Device, W> Drop for Wave<'_, D, W> {
    fn drop(&mut self) {
        // Nothing touches slots or home any more when the pages are let go.
        for ticket in self.uploads.iter().chain(self.works.iter().map(|(_, ticket, _)| ticket)) {
            let _ = self.channel.device().wait(*ticket);
        }
    }
}

impl<T: Element, D: Device> Core<T, D> {
    /// The array's index of an element of a run.
    pub(super) fn index_in_run(&self, run: &Run, at: usize) -> usize {
        let at = run.at + at;
        let page = run.page + at / self.cuts.page_len * self.channels.len();
        page * self.cuts.page_len + at % self.cuts.page_len
    }

    /// Runs an operation on all channels that have pages of a range, at the same time; gives what each has found.
    pub(super) fn operate<O: Operation<T, D>>(
        &self,
        range: &Range<usize>,
        operation: &O,
    ) -> Result<Vec<O::Outcome>> {
        let pages = self.cuts.touched_pages(range);
        let busy = self.channels.len().min(pages.len());
        let channel_of = |page: usize| page % self.channels.len();
        let channels: Vec<usize> = (pages.start..pages.start + busy).map(channel_of).collect();
        if busy <= 1 || range.len() * size_of::<T>() < SMALL_BYTES {
            return channels.into_iter().map(|channel| self.drive(channel, range, operation)).collect();
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = channels[1..]
                .iter()
                .map(|&channel| {
                    let drive = move || self.drive(channel, range, operation);
                    (channel, std::thread::Builder::new().spawn_scoped(scope, drive))
                })
                .collect();
            let mut outcomes = vec![self.drive(channels[0], range, operation)];
            for (channel, thread) in threads {
                outcomes.push(match thread {
                    Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                    // No thread was to be had.
                    Err(_) => self.drive(channel, range, operation),
                });
            }
            outcomes.into_iter().collect()
        })
    }

    /// Runs an operation on one channel's pages of a range.
    fn drive<O: Operation<T, D>>(
        &self,
        index: usize,
        range: &Range<usize>,
        operation: &O,
    ) -> Result<O::Outcome> {
        let channel = &self.channels[index];
        let mut pool = channel.pool.lock();
        let mut pages = self.pages_of_channel(index, range).peekable();
        // Two waves at a time have to fit.
        let most = (pool.slots() / 2).min(WAVE_BYTES / self.page_bytes()).max(1);
        let overlaps = pool.slots() >= 2 * most;
        let mut outcome = O::Outcome::default();
        let mut former: Option<Wave<'_, D, O::Work>> = None;
        let mut result = Ok(ControlFlow::Continue(()));
        while pages.peek().is_some() && matches!(result, Ok(ControlFlow::Continue(()))) {
            let wave = self.start(channel, &mut pool, &mut pages, most, range, operation);
            let due = if overlaps { former.replace(wave) } else { Some(wave) };
            if let Some(due) = due {
                result = self.finish(due, operation, &mut outcome);
            }
        }
        if let Some(last) = former {
            let last = self.finish(last, operation, &mut outcome);
            result = result.and(last);
        }
        result.map(|_| outcome)
    }

    /// The pages of a range that belong to a channel.
    pub(super) fn pages_of_channel(
        &self,
        index: usize,
        range: &Range<usize>,
    ) -> impl Iterator<Item = usize> + use<T, D> {
        let (count, pages) = (self.channels.len(), self.cuts.touched_pages(range));
        let first = pages.start + (index + count - pages.start % count) % count;
        (first..pages.end).step_by(count)
    }

    fn start<'a, O: Operation<T, D>>(
        &'a self,
        channel: &'a Channel<D>,
        pool: &mut Pool<D>,
        pages: &mut Peekable<impl Iterator<Item = usize>>,
        most: usize,
        range: &Range<usize>,
        operation: &O,
    ) -> Wave<'a, D, O::Work> {
        let mut wave =
            Wave { channel, members: Vec::new(), uploads: Vec::new(), works: VecDeque::new(), error: None };
        let mut copied = 0;
        while wave.members.len() < most && copied < COPIED_BYTES {
            let Some(page) = pages.next() else { break };
            let entry = &self.entries[page];
            let hold = entry.take();
            let within = self.cuts.within(page, range);
            let touched = self.cuts.touched(&within);
            let needed = match O::ACCESS {
                Access::Read => touched,
                Access::Overwrite => touched & !self.cuts.covered(page, &within),
            };
            let fetched = needed & !entry.valid();
            copied += self.cuts.ranges(page, fetched).map(|r| r.len() * size_of::<T>()).sum::<usize>() as u64;
            if fetched == 0 {
                self.hits.add(1);
            } else {
                channel.counters.misses.add(1);
            }
            // Slots are given to all at once, so that they follow one another.
            let slot = entry.slot();
            if let Some(slot) = slot {
                pool.touched(slot);
            }
            let slot = slot.unwrap_or(u32::MAX);
            wave.members.push(Member {
                page,
                slot,
                within,
                touched,
                fetched,
                hold: Some(Hold::Exclusive(hold)),
            });
        }
        wave.error = self.prepare(&mut wave, pool).and_then(|()| self.launch(&mut wave, operation)).err();
        wave
    }

    /// Gives the members slots, and starts to fetch what is missing there.
    fn prepare<W>(&self, wave: &mut Wave<'_, D, W>, pool: &mut Pool<D>) -> Result<()> {
        let absent = wave.members.iter().filter(|member| self.entries[member.page].slot().is_none()).count();
        let mut slots = wave.channel.allocate(pool, &self.entries, absent)?.into_iter();
        for member in &mut wave.members {
            let entry = &self.entries[member.page];
            if entry.slot().is_none()
                && let Some(slot) = slots.next()
            {
                entry.place(Some(slot));
                pool.adopt(slot, member.page);
                member.slot = slot;
            }
        }
        let missing: Vec<_> = wave
            .members
            .iter()
            .filter(|member| member.fetched != 0)
            .map(|member| PageBlocks { page: member.page, slot: member.slot, blocks: member.fetched })
            .collect();
        wave.channel.fetch(&mut pool.staging, &missing, &mut wave.uploads)?;
        Ok(())
    }

    /// Starts the work on each run.
    fn launch<O: Operation<T, D>>(&self, wave: &mut Wave<'_, D, O::Work>, operation: &O) -> Result<()> {
        if let Some(last) = wave.uploads.last() {
            wave.channel.kernels().order_after(*last)?;
        }
        for run in self.runs(wave) {
            wave.channel.counters.submissions.add(1);
            if let Some((ticket, work)) = operation.start(wave.channel, &run)? {
                wave.works.push_back((run, ticket, work));
            }
        }
        if O::ACCESS == Access::Read {
            // Others may read at home meanwhile.
            for member in &mut wave.members {
                member.hold = match member.hold.take() {
                    Some(Hold::Exclusive(guard)) => Some(Hold::Shared(RwLockWriteGuard::downgrade(guard))),
                    hold => hold,
                };
            }
        }
        Ok(())
    }

    /// Members whose slots follow one another.
    fn runs<W>(&self, wave: &Wave<'_, D, W>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut next = None;
        for member in &wave.members {
            match runs.last_mut() {
                Some(run) if next == Some((member.page, member.slot)) => run.count += member.within.len(),
                _ => runs.push(Run {
                    start: wave.channel.place(member.slot, member.within.start),
                    count: member.within.len(),
                    page: member.page,
                    at: member.within.start,
                }),
            }
            next = Some((member.page + self.channels.len(), member.slot + 1));
        }
        runs
    }

    /// Waits for a wave, notes what its pages are now, and takes in what was found.
    fn finish<O: Operation<T, D>>(
        &self,
        mut wave: Wave<'_, D, O::Work>,
        operation: &O,
        outcome: &mut O::Outcome,
    ) -> Result<ControlFlow<()>> {
        let mut result = wave.error.take().map_or(Ok(()), Err);
        // If the fetches were not all started, who knows which; what came is fetched again.
        let mut arrived = result.is_ok();
        for ticket in std::mem::take(&mut wave.uploads) {
            if let Err(error) = wave.channel.device().wait(ticket) {
                arrived = false;
                result = result.and(Err(error.into()));
            }
        }
        if arrived {
            wave.members.iter().for_each(|member| self.entries[member.page].fetched(member.fetched));
        }
        let mut flow = ControlFlow::Continue(());
        while let Some((run, ticket, work)) = wave.works.pop_front() {
            let done = wave.channel.device().wait(ticket).map_err(Error::from);
            if result.is_err() {
                continue;
            }
            match done.and_then(|()| {
                if flow.is_break() {
                    Ok(flow)
                } else {
                    operation.finish(self, wave.channel, &run, work, outcome)
                }
            }) {
                Ok(next) => flow = next,
                Err(error) => result = Err(error),
            }
        }
        if O::ACCESS == Access::Overwrite {
            result = self.note_overwritten(&wave, operation, result);
        }
        result.map(|()| flow)
    }

    fn note_overwritten<O: Operation<T, D>>(
        &self,
        wave: &Wave<'_, D, O::Work>,
        operation: &O,
        result: Result<()>,
    ) -> Result<()> {
        let Err(error) = result else {
            wave.members.iter().for_each(|m| self.entries[m.page].changed_on_device(m.touched));
            return Ok(());
        };
        for member in &wave.members {
            let entry = &self.entries[member.page];
            let covered = self.cuts.covered(member.page, &member.within);
            // The device holds anything there now; what lies beside it is as it was.
            entry.invalidate(covered);
            let beside = member.touched & !covered;
            let newer = entry.dirty() & beside;
            if newer != 0 {
                let blocks = PageBlocks { page: member.page, slot: member.slot, blocks: newer };
                wave.channel.bring_page_home(blocks).map_err(|_| error.clone())?;
            }
            entry.invalidate(beside);
            // SAFETY: the page is this wave's alone, and nothing of its work is under way any more.
            let at_home = unsafe { self.elements_at_home(member.page, &member.within) };
            if !operation.redo(at_home) {
                return Err(error);
            }
        }
        Ok(())
    }
}
