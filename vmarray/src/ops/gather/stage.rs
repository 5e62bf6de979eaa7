//! A piece of pinned memory with a list of elements of one channel, and their values.
//!
//! Where the program's values lie in [registered](crate::access::Registered) memory, the stage has the list
//! alone, and the device moves the values from and to their places. Then entries and values follow one
//! another as in the program's list, and entries of other elements are left out.

use std::marker::PhantomData;
use std::sync::Arc;

use backend_api::{Gather, HostSpan, LEFT_OUT, Scatter, View};

use super::lanes::Lanes;
use crate::array::registered::{self, RegisteredRange};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::past_caches;
use crate::engine::channel::{Channel, PinnedPiece};

/// How much one stage holds: starting a kernel costs a card some microseconds, so longer ones are faster, but
/// what a thread fills and empties is to stay in the processor's caches. Gathers and scatters use the same
/// memory, one call after the other, and a channel keeps as much as 16 threads have of it.
const STAGE_BYTES: usize = 5 << 19;
/// With several channels, each of which has its own list.
const STAGE_OF_SEVERAL_BYTES: usize = 1 << 20;
/// The values, in bytes, and the entries that one stage lists which has no values.
const LISTED_BYTES: usize = 8 << 20;
const LISTED: usize = 1 << 16;
/// The values begin at a multiple of this.
const VALUES_ALIGN: usize = 256;
/// The shortest run that is copied past the caches.
const PAST_CACHES_FROM: usize = 512;
/// Bytes of an index.
const INDEX_BYTES: usize = 8;

/// What the stages of one call have in common.
#[derive(Clone, Debug)]
pub(crate) struct StagePlan {
    /// How many entries each takes.
    pub(crate) room: usize,
    direct: Option<DirectValues>,
}

/// Values that devices reach where the program has them.
#[derive(Clone, Debug)]
struct DirectValues {
    range: Arc<RegisteredRange>,
    /// The address of the first one.
    first: usize,
    /// How many entries in a row may be left out.
    gap_max: usize,
}

impl StagePlan {
    /// For work on so many elements, whose list is divided by channels or not.
    pub(crate) fn new<T>(elements: usize, is_divided: bool) -> Self {
        let bytes = if is_divided { STAGE_OF_SEVERAL_BYTES } else { STAGE_BYTES };
        let room = ((bytes - VALUES_ALIGN) / (INDEX_BYTES + size_of::<T>())).min(elements).max(1);
        Self { room, direct: None }
    }

    /// The same, for values that the program may have in memory which the devices know.
    pub(crate) fn for_values<T>(
        values: *const T,
        elements: usize,
        lanes: &Lanes<'_>,
        gap_max: usize,
    ) -> Self {
        // Where a list is divided each device would leave out what another one brings, and may overwrite it.
        let range = registered::find(values.cast(), elements * size_of::<T>())
            .filter(|range| !lanes.is_divided() && lanes.devices().all(|device| range.is_known_to(device)));
        match range {
            None => Self::new::<T>(elements, lanes.is_divided()),
            Some(range) => Self {
                room: (LISTED_BYTES / size_of::<T>()).min(LISTED).min(elements).max(1),
                direct: Some(DirectValues { range, first: values.addr(), gap_max }),
            },
        }
    }

    /// Whether values stay where the program has them.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// The bytes of a stage.
    pub(crate) fn bytes<T>(&self) -> usize {
        let values = if self.is_direct() { 0 } else { self.room * size_of::<T>() };
        (self.room * INDEX_BYTES).next_multiple_of(VALUES_ALIGN) + values
    }
}

/// A list of elements of one channel, with room for their values: what one kernel works off.
#[derive(Debug)]
pub(crate) struct GatherStage<T> {
    memory: PinnedPiece,
    plan: StagePlan,
    count: usize,
    /// The place of the first element in the program's list.
    first: usize,
    /// The place after that of the last element; no place if there is none.
    next: usize,
    /// Elements that stand one after the other in the program's list, too: copied at once.
    runs: Vec<StagedRun>,
    marker: PhantomData<fn(T)>,
}

/// Where neighbours begin: at which element of the stage, and how far behind the first one's place in the
/// list.
#[derive(Clone, Copy, Debug)]
struct StagedRun {
    number: u32,
    after: u32,
}

impl<T: Element> GatherStage<T> {
    /// An empty one with memory of the channel.
    pub(crate) fn new(channel: &Channel, plan: &StagePlan) -> Result<Self> {
        let memory = channel.take_pinned(plan.bytes::<T>())?;
        let (plan, runs) = (plan.clone(), Vec::new());
        Ok(Self { memory, plan, count: 0, first: 0, next: usize::MAX, runs, marker: PhantomData })
    }

    /// Gives the memory back to the channel. No kernel may use it any more.
    pub(crate) fn give_back(self, channel: &Channel) {
        channel.put_pinned(self.memory);
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.next = usize::MAX;
        self.runs.clear();
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// How many entries it has, those that are left out included.
    fn entries(&self) -> usize {
        self.entry_at(self.next)
    }

    /// The number that the entry of an element at a place of the list gets, behind all others.
    #[inline(always)]
    fn entry_at(&self, position: usize) -> usize {
        if self.plan.is_direct() && self.count > 0 { position - self.first } else { self.count }
    }

    /// Adds an element of the channel that stands at a place of the list, after all others. False if it is
    /// full. The value follows by [`copy_in`](Self::copy_in).
    #[inline]
    pub(crate) fn try_push(&mut self, element: u64, position: usize) -> bool {
        let entry = self.entry_at(position);
        if entry >= self.plan.room {
            return false;
        }
        if position != self.next && !self.begin_run(position) {
            return false;
        }
        // SAFETY: the stage has room for this index, which is this thread's alone: no kernel was started yet.
        unsafe { self.indices().add(entry).write(element) };
        self.next = position + 1;
        self.count += 1;
        true
    }

    /// Adds neighbours in the list, from a place on, whose indices count from `start` and are those in the
    /// channel: as many as it has room for.
    #[inline]
    pub(crate) fn push_run(&mut self, start: usize, indices: &[usize], position: usize) -> usize {
        let entry = self.entry_at(position);
        let added = indices.len().min(self.plan.room.saturating_sub(entry));
        if added == 0 || (position != self.next && !self.begin_run(position)) {
            return 0;
        }
        for (number, index) in indices[..added].iter().enumerate() {
            // SAFETY: as in `try_push`, for each.
            unsafe { self.indices().add(entry + number).write((start + index) as u64) };
        }
        self.next = position + added;
        self.count += added;
        added
    }

    #[inline(never)]
    fn begin_run(&mut self, position: usize) -> bool {
        if self.count == 0 {
            self.first = position;
        } else if let Some(direct) = &self.plan.direct {
            if position - self.next > direct.gap_max {
                return false;
            }
            for entry in self.next - self.first..position - self.first {
                // SAFETY: as in `try_push`: the caller has seen that there is room for the entry behind.
                unsafe { self.indices().add(entry).write(LEFT_OUT) };
            }
        }
        let Ok(after) = u32::try_from(position - self.first) else { return false };
        self.runs.push(StagedRun { number: self.count as u32, after });
        true
    }

    /// The runs: number of the first element, its place in the list, and how many they are.
    fn runs(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let ends = self.runs.iter().skip(1).map(|run| run.number as usize).chain([self.count]);
        self.runs.iter().zip(ends).map(|(run, end)| {
            let number = run.number as usize;
            (number, self.first + run.after as usize, end - number)
        })
    }

    /// The places of all elements in the program's list.
    pub(crate) fn positions(&self) -> impl Iterator<Item = usize> {
        self.runs().flat_map(|(_, position, len)| position..position + len)
    }

    /// Copies the elements' values from the program's list, unless the device takes them there.
    pub(crate) fn copy_in(&mut self, values: &[T]) {
        if self.plan.is_direct() {
            return;
        }
        for (number, position, len) in self.runs() {
            let from = values[position..position + len].as_ptr();
            // SAFETY: the stage has room for the values of all its elements, which are this thread's alone:
            // no kernel was started yet.
            unsafe { copy_run::<T>(from.cast(), self.value(number), len) };
        }
    }

    fn indices(&self) -> *mut u64 {
        self.memory.address().as_ptr().cast()
    }

    fn values_offset(&self) -> usize {
        (self.plan.room * INDEX_BYTES).next_multiple_of(VALUES_ALIGN)
    }

    fn value(&self, number: usize) -> *mut u8 {
        assert!(number < self.plan.room && !self.plan.is_direct());
        // SAFETY: the stage has room for so many values.
        unsafe { self.memory.address().as_ptr().add(self.values_offset() + number * size_of::<T>()) }
    }

    fn values_span(&self, of: &Channel) -> HostSpan<'_> {
        match &self.plan.direct {
            Some(DirectValues { range, first, .. }) => range
                .span(of.device(), first + self.first * size_of::<T>())
                .expect("the plan has seen to that"),
            None => self.memory.at(self.values_offset() as u64),
        }
    }

    /// The gather of the listed elements, which are among `elements`, by a channel's device.
    pub(crate) fn gather<'a>(&'a self, of: &'a Channel, elements: View<'a>) -> Gather<'a> {
        Gather {
            elements,
            indices: self.memory.at(0),
            count: self.entries() as u64,
            values: self.values_span(of),
        }
    }

    /// The scatter to the listed elements, likewise.
    pub(crate) fn scatter<'a>(&'a self, of: &'a Channel, elements: View<'a>) -> Scatter<'a> {
        Scatter {
            elements,
            indices: self.memory.at(0),
            count: self.entries() as u64,
            values: self.values_span(of),
        }
    }

    /// Copies the values to their places in the program's memory, unless the device has put them there: past
    /// the processor's caches if the caller thinks that nobody will find them there.
    ///
    /// # Safety
    /// The gather is done. `into` is writable at all places of the stage, and nobody else touches those.
    pub(crate) unsafe fn copy_out(&self, into: *mut T, passes_caches: bool) {
        if self.plan.is_direct() {
            return;
        }
        for (number, position, len) in self.runs() {
            let bytes = len * size_of::<T>();
            // SAFETY: vouched for by the caller; the stage has the values of all its elements.
            unsafe {
                let (from, to) = (self.value(number), into.add(position).cast());
                if passes_caches && bytes >= PAST_CACHES_FROM {
                    past_caches::copy_raw(from, to, bytes);
                } else {
                    copy_run::<T>(from, to, len);
                }
            }
        }
    }

    /// Copies the values of a gather that is done to their places in the caller's slice.
    pub(crate) fn copy_to(&self, into: &mut [T]) {
        assert!(self.runs().all(|(_, position, len)| position + len <= into.len()));
        // SAFETY: the slice is the caller's alone, and all places are inside.
        unsafe { self.copy_out(into.as_mut_ptr(), false) };
    }

    /// Takes elements out that `keep` does not hold of, and tells `dropped` the places they had in the list.
    /// Before any kernel was started.
    pub(crate) fn retain(&mut self, keep: impl Fn(u64) -> bool, mut dropped: impl FnMut(usize)) {
        let positions: Vec<usize> = self.positions().collect();
        let (first, is_direct) = (self.first, self.plan.is_direct());
        self.clear();
        for (number, position) in positions.into_iter().enumerate() {
            let entry = if is_direct { position - first } else { number };
            // SAFETY: so many indices were written, and no kernel was started. Those that were written anew
            // are before this one.
            let element = unsafe { self.indices().add(entry).read() };
            if !keep(element) {
                dropped(position);
                continue;
            }
            if self.count != number && !is_direct {
                // SAFETY: both are inside; a value does not overlap with its own new place.
                unsafe { self.value(number).copy_to_nonoverlapping(self.value(self.count), size_of::<T>()) };
            }
            self.try_push(element, position);
        }
    }
}

/// Copies neighbouring values.
///
/// # Safety
/// There are so many at both places, which do not overlap.
#[inline]
unsafe fn copy_run<T>(from: *const u8, to: *mut u8, len: usize) {
    // Of random elements on several channels most stand alone: known lengths are copied in place.
    if len == 1 {
        // SAFETY: vouched for by the caller.
        unsafe { from.copy_to_nonoverlapping(to, size_of::<T>()) };
    } else {
        // SAFETY: as above.
        unsafe { from.copy_to_nonoverlapping(to, len * size_of::<T>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::testing::{host, one_channel};

    #[test]
    fn stages_take_as_much_memory_as_they_may() {
        for (is_divided, most) in [(false, STAGE_BYTES), (true, STAGE_OF_SEVERAL_BYTES)] {
            let bytes = StagePlan::new::<u64>(usize::MAX, is_divided).bytes::<u64>();
            assert!((most - VALUES_ALIGN..=most).contains(&bytes), "{bytes}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn elements_that_are_taken_out_leave_the_others_in_their_places() {
        let array = one_channel::<u32, _>(&Arc::new(host()), (8, 16), 4).build().unwrap();
        let channel = &array.pager().channels()[0];
        let plain: Vec<u32> = (0..40).collect();
        let registered = array.register(plain.clone()).unwrap();
        const OUT: u64 = LEFT_OUT;
        let cases: [(&[u32], &[u64]); 2] =
            [(&plain, &[104, 107, 109]), (&registered, &[104, OUT, OUT, 107, OUT, 109])];
        for (values, listed) in cases {
            let plan = StagePlan::for_values(values.as_ptr(), values.len(), &Lanes::of(&array), 64);
            assert_eq!(plan.is_direct(), listed.len() == 6);
            let mut stage = GatherStage::<u32>::new(channel, &plan).unwrap();
            for position in [3, 4, 7, 8, 9] {
                assert!(stage.try_push(100 + position as u64, position));
            }
            stage.copy_in(values);
            let mut dropped = Vec::new();
            stage.retain(|element| ![103, 108].contains(&element), |position| dropped.push(position));
            assert_eq!((dropped, stage.count()), (vec![3, 8], 3));
            assert_eq!(stage.positions().collect::<Vec<_>>(), [4, 7, 9]);
            let mut indices = vec![0_u64; stage.entries()];
            stage.memory.read(0, bytemuck::cast_slice_mut(&mut indices));
            assert_eq!(indices, listed);
            let mut kept = [0; 10];
            stage.copy_to(&mut kept);
            assert_eq!(kept, if plan.is_direct() { [0; 10] } else { [0, 0, 0, 0, 4, 0, 0, 7, 0, 9] });
            stage.give_back(channel);
        }
    }
}
