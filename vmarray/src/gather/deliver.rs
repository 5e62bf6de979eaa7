//! Scattering: pages in RAM are written there, others where they live, without a frame.
//!
//! The list is cut into segments. Threads prepare them at the same time, and commit them one after the other: start
//! their kernels, and write what is in RAM. So of several values for one element the last one wins, since kernels run
//! in the order in which they were started; within a segment only the last one is looked at.
//!
//! No page is held while its home slot is written, as that would cost two atomic steps an element, and have threads
//! stand in each other's way. Instead [`Channel::scatter_home`] makes sure, at the moment at which it starts the
//! kernel, that all its pages are absent, have contents, and are not on their way to a frame.
//!
//! [`Channel::scatter_home`]: crate::channel::Channel::scatter_home

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use backend_api::{Device, Ticket};
use parking_lot::Mutex;

use super::crew::{self, Turnstile};
use super::duplicates::Duplicates;
use super::fetch::{DEPTH, workers};
use super::homes::give_homes;
use super::places::{Place, Places};
use super::stage::{Stage, room_to_scatter};
use crate::array::VirtualArray;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::page::Refusal;
use crate::page::state::{EXCLUSIVE, HOME, RESIDENT};

/// One call, shared by its threads.
struct Call<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    places: Places,
    /// The element that index 0 means.
    start: usize,
    indices: &'a [usize],
    values: &'a [T],
    /// The first segment that no thread has taken.
    next: AtomicUsize,
    /// Elements of a segment, which are as many as a stage takes.
    segment: usize,
    turnstile: Turnstile,
    is_over: AtomicBool,
    failure: Mutex<Failure>,
}

/// What went wrong.
#[derive(Default)]
struct Failure {
    /// Something that a device did not do.
    error: Option<Error>,
    /// The first segment that a device may not have worked off.
    segment: Option<usize>,
}

/// What one thread has.
struct Worker<'a, 'b, T: Element, D: Device> {
    call: &'a Call<'b, T, D>,
    duplicates: Duplicates,
    /// For each channel the stages of the segment, and what the channel had loaded before its pages were looked at.
    open: Vec<(Vec<Stage<T, D>>, u64)>,
    /// Places in the list whose pages are in RAM, or on their way.
    in_ram: Vec<usize>,
    /// Pages without contents.
    homeless: Vec<u64>,
    under_way: VecDeque<(usize, usize, Stage<T, D>, Ticket)>,
    spare: Vec<Vec<Stage<T, D>>>,
}

/// Writes elements, whose indices count from `start` and are inside.
pub(super) fn scatter<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    start: usize,
    indices: &[usize],
    values: &[T],
) -> Result<()> {
    assert_eq!(indices.len(), values.len());
    let room = room_to_scatter::<T>(indices.len());
    let workers = workers(array, indices.len(), room);
    let call = Call {
        array,
        places: Places::new(array.len(), array.page_len(), array.pager().channels().len()),
        start,
        indices,
        values,
        next: AtomicUsize::new(0),
        segment: room,
        turnstile: Turnstile::default(),
        is_over: AtomicBool::new(false),
        failure: Mutex::new(Failure::default()),
    };
    crew::together(workers, || Worker::new(&call).run());
    let Failure { error, segment } = call.failure.into_inner();
    if let Some(segment) = segment {
        // What a device failed to write, which leaves it unspecified, is written in frames after all, and what came
        // after it once more.
        let first = segment * room;
        let again = || indices[first..].iter().zip(&values[first..]);
        return again().try_for_each(|(&index, &value)| array.set(start + index, value));
    }
    error.map_or(Ok(()), Err)
}

impl<T: Element, D: Device> Call<'_, T, D> {
    /// Where the element at a place of the list lives.
    #[inline]
    fn place(&self, position: usize) -> Place {
        self.places.of(self.start + self.indices[position])
    }

    fn fail(&self, segment: usize, error: Error) {
        self.is_over.store(true, Ordering::Relaxed);
        let mut failure = self.failure.lock();
        if error.device_error().is_some() {
            failure.segment = Some(failure.segment.map_or(segment, |known| known.min(segment)));
        } else {
            failure.error.get_or_insert(error);
        }
    }
}

impl<'a, 'b, T: Element, D: Device> Worker<'a, 'b, T, D> {
    fn new(call: &'a Call<'b, T, D>) -> Self {
        let channels = call.array.pager().channels().len();
        Self {
            call,
            duplicates: Duplicates::default(),
            open: (0..channels).map(|_| (Vec::new(), 0)).collect(),
            in_ram: Vec::new(),
            homeless: Vec::new(),
            under_way: VecDeque::new(),
            spare: (0..channels).map(|_| Vec::new()).collect(),
        }
    }

    fn run(mut self) {
        let call = self.call;
        while !call.is_over.load(Ordering::Relaxed) {
            let segment = call.next.fetch_add(1, Ordering::Relaxed);
            let first = segment * call.segment;
            if first >= call.indices.len() {
                break;
            }
            let end = (first + call.segment).min(call.indices.len());
            let listed = &call.indices[first..end];
            let positions: Vec<usize> = if self.duplicates.find(listed) {
                (first..end).filter(|position| !self.duplicates.is_superseded(position - first)).collect()
            } else {
                Vec::new()
            };
            let prepared = if positions.is_empty() {
                self.prepare(first..end)
            } else {
                self.prepare(positions.iter().copied())
            };
            let turn = call.turnstile.wait(segment);
            let committed = prepared.and_then(|()| {
                // After a failure nothing more is written, so that what is written again comes last.
                if call.is_over.load(Ordering::Relaxed) { Ok(()) } else { self.commit(segment) }
            });
            drop(turn);
            if let Err(error) = committed {
                call.fail(segment, error);
            }
            while self.under_way.len() > DEPTH * self.open.len() {
                self.finish_oldest();
            }
        }
        while !self.under_way.is_empty() {
            self.finish_oldest();
        }
        for ((channel, spare), (open, _)) in
            call.array.pager().channels().iter().zip(self.spare).zip(self.open)
        {
            spare.into_iter().chain(open).for_each(|stage| stage.give_back(channel));
        }
    }

    /// Looks where the elements at these places of the list are, and copies to stages what is to be written by kernels.
    fn prepare(&mut self, positions: impl Iterator<Item = usize> + Clone) -> Result<()> {
        let call = self.call;
        let pager = call.array.pager();
        self.in_ram.clear();
        loop {
            for (channel, (open, begun)) in self.open.iter_mut().enumerate() {
                *begun = pager.channels()[channel].loads_begun();
                self.spare[channel].append(open);
            }
            self.homeless.clear();
            for position in positions.clone() {
                let place = call.place(position);
                let state = pager.entry(place.page).state(Ordering::Acquire);
                if state.any(RESIDENT | EXCLUSIVE) {
                    self.in_ram.push(position);
                } else if !state.has(HOME) {
                    self.homeless.push(place.page);
                } else {
                    let open = &mut self.open[place.channel].0;
                    if open.last().is_none_or(|stage| !stage.takes(position)) {
                        let stage = match self.spare[place.channel].pop() {
                            Some(mut stage) => {
                                stage.clear();
                                stage
                            }
                            None => Stage::new(&pager.channels()[place.channel], call.segment)?,
                        };
                        open.push(stage);
                    }
                    let stage = open.last_mut().expect("there is one, or one was added");
                    stage.push_value(place.element, position, &call.values[position]);
                }
            }
            if self.homeless.is_empty() {
                return Ok(());
            }
            self.in_ram.clear();
            self.homeless.sort_unstable();
            self.homeless.dedup();
            give_homes(pager, &self.homeless)?;
        }
    }

    /// Starts the kernels of what was prepared, and writes what is in RAM.
    fn commit(&mut self, segment: usize) -> Result<()> {
        let call = self.call;
        loop {
            for channel in 0..self.open.len() {
                self.start(segment, channel)?;
            }
            let mut absent = Vec::new();
            for position in std::mem::take(&mut self.in_ram) {
                let place = call.place(position);
                if !call.array.write_resident(place.page, place.at, &call.values[position])? {
                    absent.push(position);
                }
            }
            if absent.is_empty() {
                return Ok(());
            }
            // In ascending order, as stages want them.
            absent.sort_unstable();
            self.prepare(absent.iter().copied())?;
        }
    }

    /// Starts the kernels of a channel. What is in RAM by now is noted down.
    fn start(&mut self, segment: usize, channel: usize) -> Result<()> {
        let call = self.call;
        let pager = call.array.pager();
        let of = &pager.channels()[channel];
        let (open, begun) = &mut self.open[channel];
        let begun = *begun;
        while let Some(mut stage) = open.pop() {
            let is_absent = |element: u64| {
                let state = pager.entry(call.places.page_of(channel, element)).state(Ordering::Acquire);
                state.has(HOME) && !state.any(RESIDENT | EXCLUSIVE)
            };
            let in_ram = &mut self.in_ram;
            let started = of.scatter_home(begun, |has_changed| {
                if has_changed {
                    stage.retain(is_absent, |position| in_ram.push(position));
                }
                (stage.count() > 0).then(|| stage.scatter(of.slot_memory(), of.slot_bytes()))
            })?;
            let Some(ticket) = started else {
                self.spare[channel].push(stage);
                continue;
            };
            of.counters.bytes_to_device.add((stage.count() * (8 + size_of::<T>())) as u64);
            self.under_way.push_back((segment, channel, stage, ticket));
        }
        Ok(())
    }

    fn finish_oldest(&mut self) {
        let Some((segment, channel, stage, ticket)) = self.under_way.pop_front() else { return };
        if let Err(error) = self.call.array.pager().channels()[channel].wait(ticket) {
            self.call.fail(segment, error.into());
        }
        self.spare[channel].push(stage);
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Writes an element whose page is resident, or on its way. False if it is not, or not any more. Waits while others
    /// have the page.
    #[inline]
    fn write_resident(&self, page: u64, at: usize, value: &T) -> Result<bool> {
        loop {
            match self.try_write(page, at, value, true) {
                Ok(()) => return Ok(true),
                Err(Refusal::Busy(state)) if state.any(RESIDENT | EXCLUSIVE) => {
                    self.pager().await_page(page, state, true)?;
                }
                Err(_) => return Ok(false),
            }
        }
    }
}
