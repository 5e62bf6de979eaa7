//! Scattering: pages in RAM are written there, others where they live, without a frame.
//!
//! The list is cut into segments. Threads prepare them at the same time, and they are committed one after the
//! other, by the thread that has the next one: their kernels are started, and what is in RAM is written. So
//! of several values for one element the last one wins, since kernels run in the order in which they were
//! started; within a segment only the last one is looked at. Where the devices of several channels reach all
//! elements, each writes a part of a segment at the same time; else each those that live on it.
//!
//! No page is held while its home slot is written, as that would cost two atomic steps an element, and have
//! threads stand in each other's way. Instead [`Channel::scatter_home`] makes sure, at the moment at which it
//! starts the kernel, that all its pages are absent, have contents, and are not on their way to a frame.
//!
//! [`Channel::scatter_home`]: crate::engine::channel::Channel::scatter_home

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use backend_api::{Device, Ticket, contended};
use parking_lot::Mutex;

use super::batch_probe;
use super::duplicates::Duplicates;
use super::fetch::workers;
use super::homes::ensure_initialized;
use super::in_turn::InTurn;
use super::kernels::DEPTH;
use super::lanes::Lanes;
use super::places::{ListedPlace, Places};
use super::segments::Segments;
use super::stage::{GatherStage, StagePlan};
use super::{CHECKED_AT_ONCE, all_inside, check_list};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::scoped_threads;
use crate::engine::channel::Channel;
use crate::engine::page::Refusal;
use crate::engine::page::state::{EXCLUSIVE, HOME, RESIDENT, UNSAVED};

/// Segments in work at once, for each thread: one that it prepares, and one that waits for its turn.
const SEGMENTS_A_WORKER: usize = 2;
/// The memory of all stages of a call at most, as long as each thread has two: what channels keep for the
/// next call.
const STAGES_MAX_BYTES: usize = 128 << 20;
/// A device has no fewer places of a segment than this, if others can have them.
const SHARE_MIN: usize = if cfg!(test) { 1 } else { 1024 };
/// How long a thread looks without giving its time away while others check the last indices, and in all.
const SPIN: Duration = Duration::from_micros(30);
const PATIENCE: Duration = Duration::from_secs(1);

/// One call, shared by its threads.
struct ScatterCall<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    lanes: Lanes<'a>,
    places: Places,
    /// The elements that indices count from, and are to be within.
    range: Range<usize>,
    indices: &'a [usize],
    values: &'a [T],
    /// How many pieces of the list were taken to be checked, and how many were.
    to_check: AtomicUsize,
    checked: AtomicUsize,
    is_outside: AtomicBool,
    segments: Segments,
    /// The first segment that no thread has taken.
    next: AtomicUsize,
    /// What stages have in common: each takes the part of the longest segment that one device has.
    plan: StagePlan,
    order: InTurn<Result<Prepared<T>>>,
    /// For each channel.
    stages: Vec<Mutex<ScatterStages<T>>>,
    /// How many stages of a channel there are at most.
    stages_max: usize,
    /// The first place in the list that may not have been worked off.
    failed_from: Mutex<Option<usize>>,
}

/// The stages of a channel that no thread fills.
struct ScatterStages<T> {
    device: Arc<dyn Device>,
    made: usize,
    spare: Vec<GatherStage<T>>,
    /// Those that kernels work off, with their segments, in order.
    under_way: VecDeque<(usize, GatherStage<T>, Ticket)>,
}

impl<T> Drop for ScatterStages<T> {
    /// Waits for kernels that nobody has waited for, because something panicked: they may read the program's
    /// values.
    fn drop(&mut self) {
        for (.., ticket) in self.under_way.drain(..) {
            let _ = self.device.wait(ticket);
        }
    }
}

/// A segment that was looked at.
struct Prepared<T> {
    /// For each channel what its kernel is to write, and what the channel had loaded before pages were looked
    /// at.
    stages: Vec<(Option<GatherStage<T>>, u64)>,
    /// Places in the list whose pages are in RAM, or on their way, or are to be saved first.
    in_ram: Vec<usize>,
}

/// What one thread has.
struct ScatterWorker<'a, 'b, T: Element, D: Device> {
    call: &'a ScatterCall<'b, T, D>,
    duplicates: Duplicates,
}

/// Writes elements, whose indices count from the start of a range and are to be inside.
pub(crate) fn scatter<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    range: Range<usize>,
    indices: &[usize],
    values: &[T],
) -> Result<()> {
    assert_eq!(indices.len(), values.len());
    array.pager().expect_writable()?;
    let (channels, lanes) = (array.pager().channels(), Lanes::of(array));
    let plan = StagePlan::for_values(values.as_ptr(), values.len(), &lanes, usize::MAX);
    let workers = workers(array, indices.len(), &plan);
    let stages = |channel: &Arc<Channel>| {
        let device = Arc::clone(channel.device());
        Mutex::new(ScatterStages { device, made: 0, spare: Vec::new(), under_way: VecDeque::new() })
    };
    let affordable = STAGES_MAX_BYTES / (plan.bytes::<T>() * channels.len()).max(1);
    let stages_max = ((DEPTH + 1) * workers).min(affordable).max(2 * workers);
    let call = ScatterCall {
        array,
        places: lanes.homes(),
        range: range.clone(),
        indices,
        values,
        to_check: AtomicUsize::new(0),
        checked: AtomicUsize::new(0),
        is_outside: AtomicBool::new(false),
        segments: Segments::new(indices.len(), plan.room * lanes.any_part().len(), workers),
        lanes,
        next: AtomicUsize::new(0),
        plan,
        order: InTurn::new(SEGMENTS_A_WORKER * workers),
        stages: channels.iter().map(stages).collect(),
        stages_max,
        failed_from: Mutex::new(None),
    };
    scoped_threads::together(workers, || {
        if call.check() {
            ScatterWorker { call: &call, duplicates: Duplicates::default() }.run();
        }
    });
    if call.is_outside.load(Ordering::Relaxed) {
        return check_list(indices, range.len());
    }
    let Some(first) = call.end() else { return Ok(()) };
    Lanes::of(array).divide_if_lost();
    // What a device failed to write, which leaves it unspecified, or nobody, is written in frames after all,
    // and what came after it once more.
    let mut again = indices[first..].iter().zip(&values[first..]);
    again.try_for_each(|(&index, &value)| array.set(range.start + index, value))
}

impl<T: Element, D: Device> ScatterCall<'_, T, D> {
    /// Where the element at a place of the list lives.
    #[inline]
    fn place(&self, position: usize) -> ListedPlace {
        self.places.of(self.range.start + self.indices[position])
    }

    /// Checks pieces of the list, and waits until all are checked: nothing is written before. Whether all
    /// indices are inside.
    fn check(&self) -> bool {
        let pieces = self.indices.len().div_ceil(CHECKED_AT_ONCE);
        loop {
            let piece = self.to_check.fetch_add(1, Ordering::Relaxed);
            let Some(indices) = self.indices.chunks(CHECKED_AT_ONCE).nth(piece) else { break };
            if !all_inside(indices, self.range.len()) {
                self.is_outside.store(true, Ordering::Relaxed);
            }
            self.checked.fetch_add(1, Ordering::Release);
        }
        // The thread that has a piece is checking it.
        while !contended::spin_while(SPIN, PATIENCE, || self.checked.load(Ordering::Acquire) < pieces) {}
        !self.is_outside.load(Ordering::Relaxed)
    }

    /// Notes that a segment may not have been worked off, and has no other begun.
    fn fail(&self, segment: usize) {
        self.order.end();
        let first = self.segments.get(segment).map_or(0, |places| places.start);
        let mut from = self.failed_from.lock();
        *from = Some(from.map_or(first, |known| known.min(first)));
    }

    /// An empty stage. Waits for a kernel if there are enough of them.
    fn take_stage(&self, channel: usize) -> Result<GatherStage<T>> {
        let of = &self.array.pager().channels()[channel];
        let mut stages = self.stages[channel].lock();
        if let Some(stage) = stages.spare.pop() {
            return Ok(stage);
        }
        if stages.made >= self.stages_max
            && let Some((segment, mut stage, ticket)) = stages.under_way.pop_front()
        {
            drop(stages);
            if of.queues.wait(ticket).is_err() {
                self.fail(segment);
            }
            stage.clear();
            return Ok(stage);
        }
        stages.made += 1;
        drop(stages);
        GatherStage::new(of, &self.plan)
    }

    /// Looks where listed elements are, and copies to stages what is to be written by kernels. Of pieces of
    /// a segment, in ascending order, with a bit for each place that is left out.
    fn prepare(
        &self,
        segment: Range<usize>,
        pieces: impl Iterator<Item = (Range<usize>, u64)> + Clone,
    ) -> Result<Prepared<T>> {
        let lanes = self.lanes.any_part();
        // How many places of the list each device has, if it has any.
        let share = segment.len().div_ceil(lanes.len()).max(SHARE_MIN.min(self.plan.room));
        let pager = self.array.pager();
        let channels = pager.channels();
        let mut stages: Vec<_> = channels.iter().map(|_| (None, 0)).collect();
        let (mut in_ram, mut homeless) = (Vec::new(), Vec::new());
        loop {
            for (channel, (stage, begun)) in stages.iter_mut().enumerate() {
                *begun = self.lanes.loads_begun(channel);
                if let Some(stage) = stage {
                    GatherStage::clear(stage);
                }
            }
            in_ram.clear();
            homeless.clear();
            for (positions, left_out) in pieces.clone() {
                let (first, start) = (positions.start, self.range.start);
                let indices = &self.indices[positions];
                let at_home = batch_probe::at_home(pager, self.places, start, indices, UNSAVED) & !left_out;
                let mut at = 0;
                while at < indices.len() {
                    if left_out >> at & 1 != 0 {
                        at += 1;
                        continue;
                    }
                    let run = (at_home >> at).trailing_ones() as usize;
                    let part = (first + at - segment.start) / share;
                    let run = run.min(segment.start + (part + 1) * share - (first + at));
                    let places = match self.lanes.is_divided() {
                        true => self.places,
                        false => self.places.moved_by(lanes[part]),
                    };
                    let place = places.of(start + indices[at]);
                    if run == 0 {
                        let state = pager.entry(place.page).state(Ordering::Acquire);
                        if state.any(RESIDENT | EXCLUSIVE | UNSAVED) {
                            in_ram.push(first + at);
                            at += 1;
                            continue;
                        } else if !state.has(HOME) {
                            homeless.push(place.page);
                            at += 1;
                            continue;
                        }
                    }
                    let stage = match &mut stages[place.channel].0 {
                        Some(stage) => stage,
                        none => none.insert(self.take_stage(place.channel)?),
                    };
                    let added = if run > 0 && places.lane().is_some() {
                        stage.push_run(start, &indices[at..at + run], first + at)
                    } else {
                        usize::from(stage.try_push(place.element, first + at))
                    };
                    assert!(added > 0, "a stage has room for a segment");
                    at += added;
                }
            }
            if homeless.is_empty() {
                break;
            }
            homeless.sort_unstable();
            ensure_initialized(pager, &homeless)?;
        }
        stages
            .iter_mut()
            .filter_map(|(stage, _)| stage.as_mut())
            .for_each(|stage| stage.copy_in(self.values));
        Ok(Prepared { stages, in_ram })
    }

    /// Starts the kernels of what was prepared, and writes what is in RAM.
    fn commit(&self, segment: usize, mut prepared: Prepared<T>) -> Result<()> {
        loop {
            let Prepared { stages, mut in_ram } = prepared;
            let begun: Vec<_> = stages.iter().map(|(_, begun)| *begun).collect();
            let mut stages: Vec<_> =
                (0..).zip(stages).filter_map(|(channel, (stage, _))| Some((channel, stage?))).collect();
            if self.lanes.is_divided() {
                for (channel, stage) in stages {
                    self.start(segment, vec![(channel, stage)], begun[channel], &mut in_ram)?;
                }
            } else if let Some((channel, _)) = stages.first() {
                let begun = begun[*channel];
                self.start(segment, std::mem::take(&mut stages), begun, &mut in_ram)?;
            }
            let mut absent = Vec::new();
            for position in in_ram {
                let place = self.place(position);
                if !self.array.write_resident(place.page, place.at, &self.values[position])? {
                    absent.push(position);
                }
            }
            if absent.is_empty() {
                return Ok(());
            }
            // In ascending order, as stages want them.
            absent.sort_unstable();
            let around = absent[0]..absent[absent.len() - 1] + 1;
            prepared = self.prepare(around, absent.iter().map(|&position| (position..position + 1, 0)))?;
        }
    }

    /// Starts the kernels of channels together. What is in RAM by now is noted down.
    fn start(
        &self,
        segment: usize,
        mut stages: Vec<(usize, GatherStage<T>)>,
        begun: u64,
        in_ram: &mut Vec<usize>,
    ) -> Result<()> {
        let pager = self.array.pager();
        let first = stages[0].0;
        let places = match self.lanes.is_divided() {
            true => self.places,
            false => self.places.moved_by(first),
        };
        let listed = &mut stages;
        let (started, outcome) = self.lanes.scatter(first, begun, |has_changed| {
            for (channel, stage) in listed.iter_mut().filter(|_| has_changed) {
                let is_absent = |element: u64| {
                    let state = pager.entry(places.page_of(*channel, element)).state(Ordering::Acquire);
                    state.has(HOME) && !state.any(RESIDENT | EXCLUSIVE | UNSAVED)
                };
                stage.retain(is_absent, |position| in_ram.push(position));
            }
            let mut scatters = Vec::with_capacity(listed.len());
            for (channel, stage) in &*listed {
                if stage.count() > 0 {
                    let scatter = stage.scatter(self.lanes.channel(*channel), self.lanes.elements(*channel));
                    scatters.push((*channel, scatter));
                }
            }
            scatters
        });
        for (channel, mut stage) in stages {
            let mut of_channel = self.stages[channel].lock();
            match started.iter().find(|(lane, _)| *lane == channel) {
                Some((_, ticket)) => {
                    let bytes = (stage.count() * (8 + size_of::<T>())) as u64;
                    self.lanes.channel(channel).counters.bytes_to_device.add(bytes);
                    of_channel.under_way.push_back((segment, stage, *ticket));
                }
                None => {
                    stage.clear();
                    of_channel.spare.push(stage);
                }
            }
        }
        Ok(outcome?)
    }

    /// Waits for all kernels. From which place in the list on it is to be written again.
    fn end(self) -> Option<usize> {
        for (channel, of) in self.array.pager().channels().iter().enumerate() {
            let under_way = std::mem::take(&mut self.stages[channel].lock().under_way);
            for (segment, stage, ticket) in under_way {
                if of.queues.wait(ticket).is_err() {
                    self.fail(segment);
                }
                stage.give_back(of);
            }
        }
        let channels = self.array.pager().channels();
        for (of, stages) in channels.iter().zip(self.stages) {
            std::mem::take(&mut stages.into_inner().spare).into_iter().for_each(|stage| stage.give_back(of));
        }
        for prepared in self.order.into_left().flatten() {
            let stages = channels.iter().zip(prepared.stages);
            stages.for_each(|(of, (stage, _))| stage.into_iter().for_each(|stage| stage.give_back(of)));
        }
        self.failed_from.into_inner()
    }
}

impl<T: Element, D: Device> ScatterWorker<'_, '_, T, D> {
    fn run(mut self) {
        let call = self.call;
        loop {
            let segment = call.next.fetch_add(1, Ordering::Relaxed);
            let Some(Range { start: first, end }) = call.segments.get(segment) else { break };
            if !call.order.wait_for_room(segment) {
                break;
            }
            let duplicates = &mut self.duplicates;
            // A device of the program's own may panic.
            let prepared = call.order.end_if_it_panics(|| {
                duplicates.find(&call.indices[first..end]);
                let pieces = (first..end).step_by(batch_probe::AT_ONCE).enumerate();
                call.prepare(
                    first..end,
                    pieces.map(|(word, piece)| {
                        (piece..end.min(piece + batch_probe::AT_ONCE), duplicates.superseded_in(word))
                    }),
                )
            });
            call.order.leave(segment, prepared, |segment, prepared| {
                // After a failure nothing more is written, so that what is written again comes last.
                if !call.order.is_over()
                    && prepared.and_then(|prepared| call.commit(segment, prepared)).is_err()
                {
                    call.fail(segment);
                }
            });
        }
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Writes an element whose page is resident, or on its way. False if it is not, or not any more. Waits
    /// while others have the page.
    #[inline]
    fn write_resident(&self, page: u64, at: usize, value: &T) -> Result<bool> {
        loop {
            match self.try_write(page, at, value) {
                Ok(()) => return Ok(true),
                Err(Refusal::Busy(state)) if state.any(RESIDENT | EXCLUSIVE | UNSAVED) => {
                    self.pager().await_page(page, state, true)?;
                }
                Err(_) => return Ok(false),
            }
        }
    }
}
