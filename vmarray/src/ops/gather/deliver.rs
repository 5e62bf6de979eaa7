//! Scatters: writes of elements by a list of indices. The host writes to pages in RAM. The devices write to
//! all other pages, in their home slots (places in device memory), without loading them into RAM.
//!
//! - The list is cut into segments (parts of the list). Threads prepare segments concurrently, and commit
//!   them in order. A commit starts the segment's kernels, and writes to pages in RAM.
//! - If an index occurs several times, its last value remains: a segment contains only the last value of an
//!   element, and a queue runs the kernels of segments in the order of submission.
//! - If the devices of several channels (shares of devices) can access all elements, each device writes a
//!   part of a segment. Otherwise each device writes the elements in its own home slots.
//! - A scatter does not lock the pages whose home slots it writes, because two atomic operations per element
//!   would be slow. Instead `HomeQueues::scatter_home` checks when the kernel starts that all pages are
//!   absent from RAM, have contents, and are not in transfer to RAM.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use backend_api::{Device, Ticket};
use parking_lot::Mutex;
use vmarray_support::contended;

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

/// The number of segments in work for each thread: it prepares one while another waits for its commit.
const SEGMENTS_A_WORKER: usize = 2;
/// The most bytes in all stages of a call (but at least two stages for each thread). Channels keep this
/// memory for the next call.
const STAGES_MAX_BYTES: usize = 128 << 20;
/// The least number of a segment's entries for a device, if other devices can process them instead.
const SHARE_MIN: usize = if cfg!(test) { 1 } else { 1024 };
/// The duration for which a thread spins before it yields, and the limit of both. Meanwhile other threads
/// check the last indices.
const SPIN: Duration = Duration::from_micros(30);
const PATIENCE: Duration = Duration::from_secs(1);

/// One scatter call, shared by its threads.
struct ScatterCall<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    lanes: Lanes<'a>,
    places: Places,
    /// The range of the array from which indices count; an index outside is an error.
    range: Range<usize>,
    indices: &'a [usize],
    values: &'a [T],
    /// The numbers of parts of the list that a thread has begun to check, and has checked.
    to_check: AtomicUsize,
    checked: AtomicUsize,
    is_outside: AtomicBool,
    segments: Segments,
    /// The first segment that no thread has begun.
    next: AtomicUsize,
    /// The size of the stages: a stage has memory for one device's part of the longest segment.
    plan: StagePlan,
    order: InTurn<Result<Prepared<T>>>,
    stages: Vec<Mutex<ScatterStages<T>>>,
    stages_max: usize,
    /// The first position in the list whose value may not have been written, after a failure.
    failed_from: Mutex<Option<usize>>,
}

/// The stages of a channel that no thread is filling at present.
struct ScatterStages<T> {
    device: Arc<dyn Device>,
    made: usize,
    spare: Vec<GatherStage<T>>,
    /// The stages whose kernels are in flight, each with its segment, in order of submission.
    under_way: VecDeque<(usize, GatherStage<T>, Ticket)>,
}

impl<T> Drop for ScatterStages<T> {
    /// After a panic, waits for kernels in flight, because they may read the program's values.
    fn drop(&mut self) {
        for (.., ticket) in self.under_way.drain(..) {
            let _ = self.device.wait(ticket);
        }
    }
}

/// A segment that is ready for its commit: the pages of its elements were looked up.
struct Prepared<T> {
    /// The stage of each channel's kernel, and the number of page loads submitted before the lookup.
    stages: Vec<(Option<GatherStage<T>>, u64)>,
    /// Positions in the list whose pages the host must write: in RAM, being loaded, or to be saved.
    in_ram: Vec<usize>,
}

struct ScatterWorker<'a, 'b, T: Element, D: Device> {
    call: &'a ScatterCall<'b, T, D>,
    duplicates: Duplicates,
}

/// Writes elements by a list of indices, which count from the start of a range. Returns an error if one is
/// outside.
pub(crate) fn scatter<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    range: Range<usize>,
    indices: &[usize],
    values: &[T],
) -> Result<()> {
    assert_eq!(indices.len(), values.len());
    array.pager().expect_writable()?;
    let (channels, lanes) = (array.pager().channels(), Lanes::of(array));
    let plan = StagePlan::for_values::<T>(values.as_ptr().addr(), values.len(), &lanes, usize::MAX);
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
    // After a device error, some elements of the scatter are unspecified or unwritten. The host writes these
    // elements, and all later elements of the list, through the cache.
    let mut again = indices[first..].iter().zip(&values[first..]);
    again.try_for_each(|(&index, &value)| array.set(range.start + index, value))
}

impl<T: Element, D: Device> ScatterCall<'_, T, D> {
    /// Returns the location of the element that an entry of the list names.
    #[inline]
    fn place(&self, position: usize) -> ListedPlace {
        self.places.of(self.range.start + self.indices[position])
    }

    /// Checks parts of the list, and waits until threads have checked all, because no value may be written
    /// before. Returns true if all indices are in bounds.
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
        // Wait until other threads have checked their parts of the list.
        while !contended::spin_while(SPIN, PATIENCE, || self.checked.load(Ordering::Acquire) < pieces) {}
        !self.is_outside.load(Ordering::Relaxed)
    }

    /// Records that a segment may not have been written, and stops the commit of later segments.
    fn fail(&self, segment: usize) {
        self.order.end();
        let first = self.segments.get(segment).map_or(0, |places| places.start);
        let mut from = self.failed_from.lock();
        *from = Some(from.map_or(first, |known| known.min(first)));
    }

    /// Returns an empty stage. If all stages are in use, waits for a kernel.
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

    /// Prepares a segment: looks up the pages of its elements, and copies values for kernels to stages. The
    /// pieces of the segment are in ascending order. A set bit in a piece's mask skips an entry.
    fn prepare(
        &self,
        segment: Range<usize>,
        pieces: impl Iterator<Item = (Range<usize>, u64)> + Clone,
    ) -> Result<Prepared<T>> {
        let lanes = self.lanes.any_part();
        // Divide the entries of this segment (part of the list) evenly among the devices, but at least
        // `SHARE_MIN` to each.
        let share = segment.len().div_ceil(lanes.len()).max(SHARE_MIN.min(self.plan.room));
        let pager = self.array.pager();
        let stages = pager.channels().iter().map(|_| (None, 0)).collect();
        let (mut prepared, mut homeless) = (Prepared { stages, in_ram: Vec::new() }, Vec::new());
        loop {
            for (channel, (stage, begun)) in prepared.stages.iter_mut().enumerate() {
                *begun = self.lanes.loads_begun(channel);
                if let Some(stage) = stage {
                    GatherStage::clear(stage);
                }
            }
            prepared.in_ram.clear();
            homeless.clear();
            for piece in pieces.clone() {
                self.stage_piece(piece, (segment.start, share), &mut prepared, &mut homeless)?;
            }
            if homeless.is_empty() {
                break;
            }
            homeless.sort_unstable();
            ensure_initialized(pager, &homeless)?;
        }
        let stages = prepared.stages.iter_mut().filter_map(|(stage, _)| stage.as_mut());
        stages.for_each(|stage| stage.copy_in(self.values));
        Ok(prepared)
    }

    /// Prepares a piece of the segment that begins at `start`. Adds each entry to a stage, or to the list of
    /// pages in RAM or without contents. Each device gets `share` entries of the segment.
    #[inline]
    fn stage_piece(
        &self,
        (positions, left_out): (Range<usize>, u64),
        (start, share): (usize, usize),
        prepared: &mut Prepared<T>,
        homeless: &mut Vec<u64>,
    ) -> Result<()> {
        let (first, origin, pager) = (positions.start, self.range.start, self.array.pager());
        let indices = &self.indices[positions];
        let at_home = batch_probe::at_home(pager, self.places, origin, indices, UNSAVED) & !left_out;
        let mut at = 0;
        while at < indices.len() {
            if left_out >> at & 1 != 0 {
                at += 1;
                continue;
            }
            let run = (at_home >> at).trailing_ones() as usize;
            let part = (first + at - start) / share;
            let run = run.min(start + (part + 1) * share - (first + at));
            let places = match self.lanes.is_divided() {
                true => self.places,
                false => self.places.moved_by(self.lanes.any_part()[part]),
            };
            let place = places.of(origin + indices[at]);
            if run == 0 {
                let state = pager.entry(place.page).state(Ordering::Acquire);
                if state.any(RESIDENT | EXCLUSIVE | UNSAVED) {
                    prepared.in_ram.push(first + at);
                    at += 1;
                    continue;
                } else if !state.has(HOME) {
                    homeless.push(place.page);
                    at += 1;
                    continue;
                }
            }
            let stage = match &mut prepared.stages[place.channel].0 {
                Some(stage) => stage,
                none => none.insert(self.take_stage(place.channel)?),
            };
            let added = if run > 0 && places.lane().is_some() {
                stage.push_run(origin, &indices[at..at + run], first + at)
            } else {
                usize::from(stage.try_push(place.element, first + at))
            };
            assert!(added > 0, "a new stage has no room for any element; please report this bug");
            at += added;
        }
        Ok(())
    }

    /// Commits a prepared segment: starts its kernels, and writes to pages in RAM.
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
            // Sort the positions, because a kernel's list must be in ascending order.
            absent.sort_unstable();
            let around = absent[0]..absent[absent.len() - 1] + 1;
            prepared = self.prepare(around, absent.iter().map(|&position| (position..position + 1, 0)))?;
        }
    }

    /// Starts the kernels of several channels together. Appends entries whose pages have entered RAM
    /// meanwhile to `in_ram`.
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

    /// Waits for all kernels. After a failure, returns the position in the list from which to write again.
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
            // `prepare` may panic, for example in a device implemented by the program. Other threads would
            // then wait for this part of the list forever, so end the ordered work for all threads.
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
                // After a failure, commit no later segments (parts of the list): the host repeats their
                // writes at the end.
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
    /// Writes an element whose page is in RAM or is being loaded. Waits while another thread holds the page.
    /// Returns false if the page is not in RAM, or left RAM meanwhile.
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
