//! Execution of gathers: the host reads elements of pages in RAM, and device kernels read all other elements.
//! Several kernels are in flight.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use backend_api::Device;
use parking_lot::Mutex;

use super::batch_probe;
use super::check_list;
use super::kernels::{DEPTH, GatherKernels};
use super::lanes::Lanes;
use super::places::{ListedPlace, Places};
use super::segments::Segments;
use super::spans;
use super::stage::StagePlan;
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::base::nontemporal_copy;
use crate::base::racy_slice::RacySlice;
use crate::base::scoped_threads;
use crate::engine::page::Refusal;
use crate::engine::page::state::{HOME, RESIDENT};

/// The most page-locked bytes of one call, unless the least number of stages for each thread needs more.
const STAGES_MAX_BYTES: usize = 256 << 20;
/// The cost of an element that a device writes directly: the bytes that a thread could copy in the same time.
const DIRECT_BYTES: usize = 256;
/// If a list would skip more consecutive entries than this, another kernel is started.
const GAP_MAX: usize = 64;

/// One gather call, shared by its threads.
struct GatherCall<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    lanes: Arc<Lanes<'a>>,
    /// The position in the array of index 0.
    start: usize,
    /// The number of elements from `start` on.
    len: usize,
    indices: &'a [usize],
    /// The values, one for each index. Only the thread that has begun a piece writes the values of the piece.
    into: &'a RacySlice<'a, T>,
    passes_caches: bool,
    plan: StagePlan,
    pieces: Segments,
    /// The first piece that no thread has begun.
    next: AtomicUsize,
    /// True if there is only one thread.
    is_alone: bool,
    is_over: AtomicBool,
    error: Mutex<Option<Error>>,
}

struct GatherWorker<'a, 'b, T: Element, D: Device> {
    call: &'a GatherCall<'b, T, D>,
    /// The locations of elements, as the current piece computes them.
    places: Places,
    kernels: GatherKernels<'b, T>,
    /// The number of stages opened so far.
    opened: usize,
    /// Values that are written after the kernels have ended, because kernels could overwrite them.
    late: Vec<(usize, T)>,
    /// True if the thread reads page states in batches. Batches do not help if all pages are in RAM, because
    /// a read of an element reads the state again.
    looks_ahead: bool,
}

/// Returns the number of threads for a list. Each thread needs stages of every channel.
pub(super) fn workers<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    len: usize,
    plan: &StagePlan,
) -> usize {
    let pager = array.pager();
    let lanes = pager.pool().map_or(pager.channels().len(), |pool| pool.lanes().len());
    let stages = lanes * (DEPTH + 1);
    let most = STAGES_MAX_BYTES / (stages * plan.bytes::<T>()).max(1);
    let each = if plan.is_direct() { DIRECT_BYTES } else { size_of::<T>() + size_of::<usize>() };
    super::workers(len.saturating_mul(each), most)
}

/// Reads elements by a list of indices, which count from the start of a range. Returns an error if one is
/// outside.
pub(crate) fn gather<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    range: Range<usize>,
    indices: &[usize],
    into: &mut [T],
) -> Result<()> {
    assert_eq!(indices.len(), into.len());
    gather_to(array, range, indices, &into.into())
}

fn gather_to<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    range: Range<usize>,
    indices: &[usize],
    into: &RacySlice<'_, T>,
) -> Result<()> {
    if spans::is_for(array, 1) {
        check_list(indices, range.len())?;
        return spans::read(array, range.start, indices, 1, into);
    }
    let lanes = Arc::new(Lanes::of(array));
    if super::in_place::gather(array, &lanes, &range, indices, into)? {
        return Ok(());
    }
    let plan = StagePlan::for_values::<T>(into.expose(), into.len(), &lanes, GAP_MAX);
    let workers = workers(array, indices.len(), &plan);
    let error = {
        let passes_caches = nontemporal_copy::is_worth_it(into.bytes());
        let call = GatherCall {
            array,
            lanes: Arc::clone(&lanes),
            start: range.start,
            len: range.len(),
            indices,
            into,
            passes_caches,
            pieces: Segments::new(indices.len(), plan.room, workers),
            plan,
            next: AtomicUsize::new(0),
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
        call.error.into_inner()
    };
    match error {
        None => Ok(()),
        Some(error) => {
            // Check the whole list again, so that the error names the first index that is out of bounds.
            check_list(indices, range.len())?;
            if lanes.divide_if_lost() {
                return gather_to(array, range, indices, into);
            }
            Err(error)
        }
    }
}

impl<'a, 'b, T: Element, D: Device> GatherWorker<'a, 'b, T, D> {
    fn new(call: &'a GatherCall<'b, T, D>) -> Self {
        let kernels = GatherKernels::new(&call.lanes, call.plan.clone());
        Self { call, places: call.lanes.homes(), kernels, opened: 0, late: Vec::new(), looks_ahead: true }
    }

    fn run(&mut self) -> Result<()> {
        let call = self.call;
        while !call.is_over.load(Ordering::Relaxed) {
            let piece = call.next.fetch_add(1, Ordering::Relaxed);
            let Some(Range { start: first, end }) = call.pieces.get(piece) else { break };
            // Check only this piece of the list here, because the gather reads the piece anyway.
            check_list(&call.indices[first..end], call.len)?;
            self.places = call.lanes.places();
            let mut next = first;
            while next < end {
                next = self.some(next, end)?;
            }
            // Start the kernels at the end of each piece, so that their values arrive early.
            if call.plan.is_direct() {
                // A stage (list of a kernel) whose values are read in place covers adjacent positions. The
                // next positions belong to another thread's piece, so this stage ends here.
                self.kernels.start_all()?;
            } else if let (Some(lane), false) = (self.places.lane(), call.is_alone) {
                self.kernels.start(lane)?;
            }
        }
        self.kernels.start_all()?;
        while self.finish_oldest()? {}
        for (position, value) in self.late.drain(..) {
            call.into.set(position, &value);
        }
        Ok(())
    }

    /// Reads elements from position `first` of the list on, or adds them to stages. Returns after one batch
    /// of page states, or when a stage was opened. The result is the first position not processed.
    fn some(&mut self, first: usize, end: usize) -> Result<usize> {
        let call = self.call;
        let indices = &call.indices[first..end.min(first + batch_probe::AT_ONCE)];
        if !self.looks_ahead {
            for (index, position) in indices.iter().zip(first..) {
                self.looks_ahead |= self.one(self.places.of(call.start + index), position)?;
            }
            return Ok(first + indices.len());
        }
        let at_home = batch_probe::at_home(call.array.pager(), self.places, call.start, indices, 0);
        self.looks_ahead = at_home != 0;
        let mut at = 0;
        while at < indices.len() {
            let run = (at_home >> at).trailing_ones() as usize;
            let place = self.places.of(call.start + indices[at]);
            if run > 0
                && let Some(stage) = self.kernels.open(place.channel)
            {
                let added = if self.places.lane().is_some() {
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
                // `one` has opened a new stage (list of a kernel). Stop here, because `at_home` was computed
                // before and may be outdated for this stage.
                break;
            }
        }
        Ok(first + at)
    }

    /// Reads an element in RAM, or adds it to a stage. Returns true if a kernel gathers it.
    #[inline(always)]
    fn one(&mut self, place: ListedPlace, position: usize) -> Result<bool> {
        let entry = self.call.array.pager().entry(place.page);
        loop {
            let state = entry.state(Ordering::Acquire);
            if state.has(RESIDENT) {
                if let Some(value) = self.call.array.read_resident(place.page, place.at)? {
                    self.take(position, value);
                    return Ok(false);
                }
            } else if state.has(HOME) {
                return if self.kernels.try_push(place, position) {
                    Ok(true)
                } else {
                    self.open_stage(place, position)
                };
            } else {
                self.take(position, T::zeroed());
                return Ok(false);
            }
        }
    }

    /// Writes a value to its position, immediately or after the kernels.
    #[inline(always)]
    fn take(&mut self, position: usize, value: T) {
        if self.kernels.may_leave_out() {
            self.late.push((position, value));
        } else {
            self.call.into.set(position, &value);
        }
    }

    #[cold]
    #[inline(never)]
    fn open_stage(&mut self, place: ListedPlace, position: usize) -> Result<bool> {
        self.kernels.start(place.channel)?;
        while self.kernels.is_busy(place.channel) {
            self.finish_oldest()?;
        }
        self.kernels.open_stage(place.channel)?;
        self.opened += 1;
        // Read the page's state again, because the page may have changed while this thread waited for a stage
        // (list of a kernel).
        self.one(place, position)
    }

    /// Waits for the oldest kernel, and stores its values. Returns false if no kernel is in flight.
    fn finish_oldest(&mut self) -> Result<bool> {
        let (call, Some((channel, ticket))) = (self.call, self.kernels.oldest()) else { return Ok(false) };
        call.array.pager().channels()[channel].queues.wait(ticket)?;
        self.kernels.take_oldest(|stage, is_sound| {
            if is_sound {
                stage.copy_out(call.into, call.passes_caches);
                return Ok(());
            }
            for position in stage.positions() {
                let value = call.array.get_uncached(call.start + call.indices[position])?;
                call.into.set(position, &value);
            }
            Ok(())
        })?;
        Ok(true)
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Reads an element whose page is in RAM. Waits while another thread holds the page exclusively. Returns
    /// `None` if the page is not in RAM, or left RAM meanwhile.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backend_host::SimulatedDevice;

    use super::*;
    use crate::array::testing::{host, one_channel};
    use crate::base::scoped_threads::CORES;
    use crate::prelude::*;

    #[test]
    #[cfg(unix)]
    fn pages_in_ram_are_written_after_the_kernel_for_the_rest() {
        let device = Arc::new(SimulatedDevice::builder(7).build());
        let array = one_channel::<u32, _>(&device, (8, 16), 4).build().unwrap();
        array.write(0, &(0..128).collect::<Vec<u32>>()).unwrap();
        array.evict(..).unwrap();
        array.get(20).unwrap();
        let mut values = array.register(vec![0; 3]).unwrap();
        array.gather_into(&[3, 21, 40], &mut values).unwrap();
        assert_eq!(values[..], [3, 21, 40]);
    }

    #[test]
    fn as_many_threads_gather_as_the_bytes_are_worth() {
        let array = one_channel::<u32, _>(&Arc::new(host()), (8, 16), 4).build().unwrap();
        let threads = |len| workers(&array, len, &StagePlan::new::<u32>(len, false));
        // An entry of the list takes twelve bytes: an index and a value.
        assert_eq!(threads(300_000), 1);
        assert_eq!(threads(400_000), 2.min(*CORES));
        assert_eq!(threads(usize::MAX), 34.min(*CORES), "as many stages as memory is to be had for");
    }
}
