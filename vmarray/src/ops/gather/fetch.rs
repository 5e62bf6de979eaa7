//! Gathering: what is in RAM is read there, the rest comes by one kernel after another, several at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use backend_api::{Device, Ticket};
use parking_lot::Mutex;

use super::batch_probe;
use super::check_list;
use super::places::{ListedPlace, Places};
use super::segments::Segments;
use super::stage::{GatherStage, bytes_for, room};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::base::past_caches;
use crate::base::scoped_threads;
use crate::engine::page::Refusal;
use crate::engine::page::state::{HOME, RESIDENT};

/// How many stages of each channel a thread has under way, beside the one that it fills.
pub(crate) const DEPTH: usize = 2;
/// The pinned memory that one call takes at most, as long as each thread gets its stages.
const STAGES_MAX_BYTES: usize = 256 << 20;

/// One call, shared by its threads.
struct GatherCall<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    places: Places,
    /// The element that index 0 means.
    start: usize,
    /// How many there are from there on.
    len: usize,
    indices: &'a [usize],
    /// As many elements as there are indices, each written by the thread that has its place.
    into: *mut T,
    passes_caches: bool,
    /// The pieces that threads take.
    pieces: Segments,
    /// The first one that no thread has taken.
    next: AtomicUsize,
    room: usize,
    /// Whether one thread works on it.
    is_alone: bool,
    is_over: AtomicBool,
    error: Mutex<Option<Error>>,
}

// SAFETY: `into` is written at places that one thread each has taken from `next`.
unsafe impl<T: Element, D: Device> Sync for GatherCall<'_, T, D> {}

/// A stage whose kernel was started.
struct GatherUnderWay<T, D: Device> {
    channel: usize,
    stage: GatherStage<T, D>,
    ticket: Ticket,
    /// How many write-backs of the channel had failed before the first of its elements was looked for.
    failures: u64,
}

/// What one thread has.
struct GatherWorker<'a, 'b, T: Element, D: Device> {
    call: &'a GatherCall<'b, T, D>,
    /// For each channel the stage that is being filled, and the failures before.
    open: Vec<Option<(GatherStage<T, D>, u64)>>,
    /// How many stages were opened so far.
    opened: usize,
    /// Whether pages are looked at ahead. Where all are resident that brings nothing: they are looked at
    /// again when they are read.
    looks_ahead: bool,
    under_way: VecDeque<GatherUnderWay<T, D>>,
    /// For each channel stages that were emptied.
    spare: Vec<Vec<GatherStage<T, D>>>,
}

/// How many threads work on a list: each takes stages of every channel.
pub(super) fn workers<T: Element, D: Device>(array: &VirtualArray<T, D>, len: usize, room: usize) -> usize {
    let stages = array.pager().channels().len() * (DEPTH + 1);
    let most = STAGES_MAX_BYTES / (stages * bytes_for::<T>(room)).max(1);
    super::workers(len.saturating_mul(size_of::<T>() + size_of::<usize>()), most)
}

/// Reads elements, whose indices count from the start of a range and are to be inside, into memory for as
/// many.
pub(super) fn gather<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    range: Range<usize>,
    indices: &[usize],
    into: &mut [T],
) -> Result<()> {
    assert_eq!(indices.len(), into.len());
    let room = room::<T>(indices.len(), array.pager().channels().len());
    let workers = workers(array, indices.len(), room);
    let call = GatherCall {
        array,
        places: Places::new(array.len(), array.page_len(), array.pager().channels().len()),
        start: range.start,
        len: range.len(),
        indices,
        into: into.as_mut_ptr(),
        passes_caches: past_caches::is_worth_it(size_of_val(into)),
        pieces: Segments::new(indices.len(), room, workers),
        next: AtomicUsize::new(0),
        room,
        is_alone: workers == 1,
        is_over: AtomicBool::new(false),
        error: Mutex::new(None),
    };
    scoped_threads::together(workers, || {
        if let Err(error) = GatherWorker::new(&call).run() {
            call.is_over.store(true, Ordering::Relaxed);
            call.error.lock().get_or_insert(error);
        }
    });
    match call.error.into_inner() {
        None => Ok(()),
        // Of indices outside, the first one is named.
        Some(error) => check_list(indices, range.len()).and(Err(error)),
    }
}

impl<'a, 'b, T: Element, D: Device> GatherWorker<'a, 'b, T, D> {
    fn new(call: &'a GatherCall<'b, T, D>) -> Self {
        let channels = call.array.pager().channels().len();
        Self {
            call,
            open: (0..channels).map(|_| None).collect(),
            opened: 0,
            looks_ahead: true,
            under_way: VecDeque::new(),
            spare: (0..channels).map(|_| Vec::new()).collect(),
        }
    }

    fn run(&mut self) -> Result<()> {
        let call = self.call;
        while !call.is_over.load(Ordering::Relaxed) {
            let piece = call.next.fetch_add(1, Ordering::Relaxed);
            let Some(Range { start: first, end }) = call.pieces.get(piece) else { break };
            // Here, where they come to the processor's cache anyway.
            check_list(&call.indices[first..end], call.len)?;
            let mut next = first;
            while next < end {
                next = self.some(next, end)?;
            }
            // A short piece is short so that its kernel begins, or its values come, early.
            if call.places.is_one_channel() && !call.is_alone {
                self.start(0)?;
            }
        }
        for channel in 0..self.open.len() {
            self.start(channel)?;
        }
        while !self.under_way.is_empty() {
            self.finish_oldest()?;
        }
        Ok(())
    }

    /// Reads the elements from a place of the list on, or has them fetched: as many as are looked for at
    /// once, or those until a stage was opened. The first one that was not looked for.
    fn some(&mut self, first: usize, end: usize) -> Result<usize> {
        let call = self.call;
        let indices = &call.indices[first..end.min(first + batch_probe::AT_ONCE)];
        if !self.looks_ahead {
            for (index, position) in indices.iter().zip(first..) {
                self.looks_ahead |= self.one(call.places.of(call.start + index), position)?;
            }
            return Ok(first + indices.len());
        }
        let at_home = batch_probe::at_home(call.array.pager(), call.places, call.start, indices);
        self.looks_ahead = at_home != 0;
        let mut at = 0;
        while at < indices.len() {
            let run = (at_home >> at).trailing_ones() as usize;
            let place = call.places.of(call.start + indices[at]);
            if run > 0
                && let Some((stage, _)) = &mut self.open[place.channel]
            {
                let added = if call.places.is_one_channel() {
                    stage.push_run(call.start, &indices[at..at + run], first + at)
                } else {
                    usize::from(stage.try_push(place.element, first + at))
                };
                if added > 0 {
                    at += added;
                    continue;
                }
            }
            let opened = self.opened;
            self.one(place, first + at)?;
            at += 1;
            if self.opened != opened {
                // What pages were before that does not count.
                break;
            }
        }
        Ok(first + at)
    }

    /// Reads an element, or has it fetched. Whether it is fetched.
    #[inline(always)]
    fn one(&mut self, place: ListedPlace, position: usize) -> Result<bool> {
        let entry = self.call.array.pager().entry(place.page);
        loop {
            let state = entry.state(Ordering::Acquire);
            if state.has(RESIDENT) {
                if let Some(value) = self.call.array.read_resident(place.page, place.at)? {
                    // SAFETY: the place of the list is this thread's.
                    unsafe { self.call.into.add(position).write(value) };
                    return Ok(false);
                }
            } else if state.has(HOME) {
                // From here on to the kernel's end, the home slot holds the element as it is now, or as
                // somebody writes it meanwhile; or there are more failures to write it back than before.
                return self.push(place, position);
            } else {
                // SAFETY: as above.
                unsafe { self.call.into.add(position).write(T::zeroed()) };
                return Ok(false);
            }
        }
    }

    #[inline]
    fn push(&mut self, place: ListedPlace, position: usize) -> Result<bool> {
        if let Some((stage, _)) = &mut self.open[place.channel]
            && stage.try_push(place.element, position)
        {
            return Ok(true);
        }
        self.open_stage(place, position)
    }

    #[cold]
    #[inline(never)]
    fn open_stage(&mut self, place: ListedPlace, position: usize) -> Result<bool> {
        self.start(place.channel)?;
        let channel = &self.call.array.pager().channels()[place.channel];
        while self.under_way.iter().filter(|work| work.channel == place.channel).count() >= DEPTH {
            self.finish_oldest()?;
        }
        let mut stage = match self.spare[place.channel].pop() {
            Some(stage) => stage,
            None => GatherStage::new(channel, self.call.room)?,
        };
        let failures = channel.failed_write_backs(self.call.array.pager().table());
        stage.clear();
        self.open[place.channel] = Some((stage, failures));
        self.opened += 1;
        // Its page is looked at again: what it was when there was no stage yet does not count.
        self.one(place, position)
    }

    /// Starts the kernel of the stage that is being filled, if there is one.
    fn start(&mut self, channel: usize) -> Result<()> {
        let Some((stage, failures)) = self.open[channel].take() else { return Ok(()) };
        if stage.count() == 0 {
            self.spare[channel].push(stage);
            return Ok(());
        }
        let of = &self.call.array.pager().channels()[channel];
        let gather = stage.gather(of.slot_memory(), of.slot_bytes());
        let ticket = of.queues.between_writes(&[], |queue| queue.gather(&gather))?;
        of.counters.bytes_to_device.add(8 * stage.count() as u64);
        self.under_way.push_back(GatherUnderWay { channel, stage, ticket, failures });
        Ok(())
    }

    fn finish_oldest(&mut self) -> Result<()> {
        let Some(work) = self.under_way.pop_front() else { return Ok(()) };
        let GatherUnderWay { channel, stage, ticket, failures } = work;
        let pager = self.call.array.pager();
        let of = &pager.channels()[channel];
        of.queues.wait(ticket)?;
        of.counters.bytes_from_device.add((stage.count() * size_of::<T>()) as u64);
        if of.failed_write_backs(pager.table()) == failures {
            // SAFETY: the kernel is done; the places of the list are this thread's.
            unsafe { stage.copy_out(self.call.into, self.call.passes_caches) };
        } else {
            // A page that was loaded meanwhile may have got garbage for a home. Each is looked at for itself.
            for position in stage.positions() {
                let index = self.call.start + self.call.indices[position];
                let value = self.call.array.get_uncached(index)?;
                // SAFETY: as above.
                unsafe { self.call.into.add(position).write(value) };
            }
        }
        self.spare[channel].push(stage);
        Ok(())
    }
}

impl<T: Element, D: Device> Drop for GatherWorker<'_, '_, T, D> {
    fn drop(&mut self) {
        let channels = self.call.array.pager().channels();
        for GatherUnderWay { channel, stage, ticket, .. } in self.under_way.drain(..) {
            // After an error: what the kernel reads is of no use, but it has to end, and its queue to look
            // idle then.
            if channels[channel].queues.wait(ticket).is_ok() {
                self.spare[channel].push(stage);
            }
        }
        for ((channel, spare), open) in channels.iter().zip(&mut self.spare).zip(&mut self.open) {
            let open = open.take().map(|(stage, _)| stage);
            spare.drain(..).chain(open).for_each(|stage| stage.give_back(channel));
        }
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Reads an element whose page is resident. `None` if it is not, or not any more. Waits while somebody
    /// has the page exclusively.
    #[inline]
    fn read_resident(&self, page: u64, at: usize) -> Result<Option<T>> {
        loop {
            match self.try_read(page, at) {
                Ok(value) => return Ok(Some(value)),
                Err(Refusal::Busy(state)) if state.has(RESIDENT) => {
                    self.pager().await_page(page, state, false)?;
                }
                Err(_) => return Ok(None),
            }
        }
    }
}
