//! Stages of gathers and scatters: a stage is page-locked memory with a kernel's list of elements, and
//! usually with their values.
//!
//! If the program's values are in [registered](crate::access::Registered) memory, a stage has only the list,
//! and the device reads or writes the values in place. The list then has an entry for each index in one part
//! of the program's list. The host marks the entries whose elements it moves itself, such as elements in the
//! cache, and the kernel skips these entries.

use std::marker::PhantomData;
use std::sync::Arc;

use backend_api::{Device, Gather, HostBuffer, HostSpan, LEFT_OUT, LaunchView, Scatter};

use super::lanes::Lanes;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::racy_slice::RacySlice;
use crate::base::registered_memory::RegisteredRange;
use crate::engine::channel::{Channel, PinnedPiece};

/// The size of a stage in bytes. Long stages are faster, because a GPU takes some microseconds to start a
/// kernel. On the other hand, the data that a thread fills and empties should fit into the processor's
/// caches. A channel keeps the memory for later gathers and scatters, as much as 16 threads use.
const STAGE_BYTES: usize = 5 << 19;
/// The size of a stage in bytes if there are several channels, because each has its own list.
const STAGE_OF_SEVERAL_BYTES: usize = 1 << 20;
/// The most bytes of values, and the most entries, for which a stage without values has a list.
const LISTED_BYTES: usize = 8 << 20;
const LISTED: usize = 1 << 16;
/// The alignment in bytes of a stage's first value.
const VALUES_ALIGN: usize = 256;
/// The length in bytes from which copies of a run bypass the processor's caches.
const PAST_CACHES_FROM: usize = 512;
const INDEX_BYTES: usize = 8;
/// The number of list entries that a thread writes at once.
const LISTED_AT_ONCE: usize = 16;

/// The parameters that all stages of one gather or scatter have in common.
#[derive(Clone, Debug)]
pub(crate) struct StagePlan {
    /// The most entries in a stage.
    pub(crate) room: usize,
    direct: Option<DirectValues>,
}

/// The program's values in registered memory, which devices access in place.
#[derive(Clone, Debug)]
struct DirectValues {
    range: Arc<RegisteredRange>,
    /// The address of the first value.
    first: usize,
    /// The most consecutive entries that a stage may skip.
    gap_max: usize,
}

impl StagePlan {
    /// Creates a plan for `elements` elements. `is_divided` is true if each device moves its own elements.
    pub(crate) fn new<T>(elements: usize, is_divided: bool) -> Self {
        let bytes = if is_divided { STAGE_OF_SEVERAL_BYTES } else { STAGE_BYTES };
        let room = ((bytes - VALUES_ALIGN) / (INDEX_BYTES + size_of::<T>())).min(elements).max(1);
        Self { room, direct: None }
    }

    /// Creates a plan for values at an address. If the devices can access them, stages have no values.
    pub(crate) fn for_values<T>(values: usize, elements: usize, lanes: &Lanes<'_>, gap_max: usize) -> Self {
        // If the list is divided among devices, they must not write values in place: a device may overwrite
        // the values of entries that it skips.
        let range = RegisteredRange::find(values, elements * size_of::<T>())
            .filter(|range| !lanes.is_divided() && lanes.devices().all(|device| range.is_known_to(device)));
        match range {
            None => Self::new::<T>(elements, lanes.is_divided()),
            Some(range) => Self {
                room: (LISTED_BYTES / size_of::<T>()).min(LISTED).min(elements).max(1),
                direct: Some(DirectValues { range, first: values, gap_max }),
            },
        }
    }

    /// Returns true if devices access the values in the program's memory.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    pub(crate) fn bytes<T>(&self) -> usize {
        let values = if self.is_direct() { 0 } else { self.room * size_of::<T>() };
        (self.room * INDEX_BYTES).next_multiple_of(VALUES_ALIGN) + values
    }
}

/// The work of one kernel: a list of elements of one channel, and memory for their values.
#[derive(Debug)]
pub(crate) struct GatherStage<T> {
    memory: PinnedPiece,
    plan: StagePlan,
    count: usize,
    /// The position of the first element in the program's list.
    first: usize,
    /// The position in the program's list after the last element; `usize::MAX` if the stage is empty.
    next: usize,
    /// Runs of elements that are contiguous in the program's list, to be copied at once.
    runs: Vec<StagedRun>,
    marker: PhantomData<fn(T)>,
}

/// The start of a run: its number among the stage's elements, and its position in the list relative to the
/// stage's first element.
#[derive(Clone, Copy, Debug)]
struct StagedRun {
    number: u32,
    after: u32,
}

impl<T: Element> GatherStage<T> {
    /// Creates an empty stage in page-locked memory of the channel.
    pub(crate) fn new(channel: &Channel, plan: &StagePlan) -> Result<Self> {
        let memory = channel.take_pinned(plan.bytes::<T>())?;
        let (plan, runs) = (plan.clone(), Vec::new());
        Ok(Self { memory, plan, count: 0, first: 0, next: usize::MAX, runs, marker: PhantomData })
    }

    /// Returns the memory to the channel. No kernel may use the stage any more.
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

    /// The number of entries in the list, including skipped entries.
    fn entries(&self) -> usize {
        self.entry_at(self.next)
    }

    /// Returns the number of the new last entry, for an element at a position of the program's list.
    #[inline(always)]
    fn entry_at(&self, position: usize) -> usize {
        if self.plan.is_direct() && self.count > 0 { position - self.first } else { self.count }
    }

    /// Appends an element of the channel. `position` is its position in the program's list. Returns false if
    /// the stage is full. [`copy_in`](Self::copy_in) copies the value later.
    #[inline]
    pub(crate) fn try_push(&mut self, element: u64, position: usize) -> bool {
        let entry = self.entry_at(position);
        if entry >= self.plan.room {
            return false;
        }
        if position != self.next && !self.begin_run(position) {
            return false;
        }
        self.list(entry, element);
        self.next = position + 1;
        self.count += 1;
        true
    }

    /// Appends elements that are neighbours in the program's list, as many as fit into the stage. Their
    /// indices, plus `start`, are their numbers in the channel.
    #[inline]
    pub(crate) fn push_run(&mut self, start: usize, indices: &[usize], position: usize) -> usize {
        let entry = self.entry_at(position);
        let added = indices.len().min(self.plan.room.saturating_sub(entry));
        if added == 0 || (position != self.next && !self.begin_run(position)) {
            return 0;
        }
        for (number, indices) in indices[..added].chunks(LISTED_AT_ONCE).enumerate() {
            let mut elements = [0_u64; LISTED_AT_ONCE];
            elements.iter_mut().zip(indices).for_each(|(element, index)| *element = (start + index) as u64);
            let first = (entry + number * LISTED_AT_ONCE) * INDEX_BYTES;
            self.memory.write(first, bytemuck::cast_slice(&elements[..indices.len()]));
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
                self.list(entry, LEFT_OUT);
            }
        }
        let Ok(after) = u32::try_from(position - self.first) else { return false };
        self.runs.push(StagedRun { number: self.count as u32, after });
        true
    }

    /// Returns the runs: number of the first element, its position in the program's list, and length.
    fn runs(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let ends = self.runs.iter().skip(1).map(|run| run.number as usize).chain([self.count]);
        self.runs.iter().zip(ends).map(|(run, end)| {
            let number = run.number as usize;
            (number, self.first + run.after as usize, end - number)
        })
    }

    /// Returns the positions of all elements in the program's list.
    pub(crate) fn positions(&self) -> impl Iterator<Item = usize> {
        self.runs().flat_map(|(_, position, len)| position..position + len)
    }

    /// Copies the values from the program's list to the stage, unless the device reads them in place.
    pub(crate) fn copy_in(&mut self, values: &[T]) {
        if self.plan.is_direct() {
            return;
        }
        for (number, position, len) in self.runs() {
            let offset = self.value_offset(number);
            // With several channels (shares of devices), most runs (contiguous values) of a random list have
            // one element. Treat them separately, because the compiler inlines a copy of constant length.
            match &values[position..position + len] {
                [value] => self.memory.write(offset, bytemuck::bytes_of(value)),
                values => self.memory.write(offset, bytemuck::cast_slice(values)),
            }
        }
    }

    #[inline(always)]
    fn list(&self, entry: usize, element: u64) {
        self.memory.write(entry * INDEX_BYTES, &element.to_ne_bytes());
    }

    fn values_offset(&self) -> usize {
        (self.plan.room * INDEX_BYTES).next_multiple_of(VALUES_ALIGN)
    }

    /// Returns the offset of an element's value in the stage's memory, in bytes.
    fn value_offset(&self, number: usize) -> usize {
        assert!(number < self.plan.room && !self.plan.is_direct());
        self.values_offset() + number * size_of::<T>()
    }

    fn values_span(&self, of: &Channel) -> HostSpan<'_> {
        match &self.plan.direct {
            Some(DirectValues { range, first, .. }) => range
                .span(of.device(), first + self.first * size_of::<T>())
                .expect("the plan has checked that the memory is registered"),
            None => self.memory.at(self.values_offset() as u64),
        }
    }

    pub(crate) fn host(&self) -> &HostBuffer<dyn Device> {
        self.memory.memory()
    }

    /// Returns the request that gathers the listed elements from `elements` by the channel's device.
    pub(crate) fn gather<'a>(&'a self, of: &'a Channel, elements: LaunchView<'a>) -> Gather<'a> {
        Gather {
            elements,
            indices: self.memory.at(0),
            count: self.entries() as u64,
            values: self.values_span(of),
        }
    }

    /// Returns the request that scatters the values to the listed elements.
    pub(crate) fn scatter<'a>(&'a self, of: &'a Channel, elements: LaunchView<'a>) -> Scatter<'a> {
        Scatter {
            elements,
            indices: self.memory.at(0),
            count: self.entries() as u64,
            values: self.values_span(of),
        }
    }

    /// Copies the gathered values to their positions in the program's memory, unless the device has written
    /// them there. The kernel must have ended, and other threads must use other positions. With
    /// `passes_caches` the copy bypasses the processor's caches, because the values are unlikely to be read
    /// soon.
    ///
    /// # Panics
    /// If a place is outside of `into`.
    pub(crate) fn copy_out(&self, into: &RacySlice<'_, T>, passes_caches: bool) {
        if self.plan.is_direct() {
            return;
        }
        for (number, position, len) in self.runs() {
            let passes_caches = passes_caches && len * size_of::<T>() >= PAST_CACHES_FROM;
            self.memory.read_elements(self.value_offset(number), (into, position), len, passes_caches);
        }
    }

    /// Copies the values of a completed gather to their positions in the caller's slice.
    pub(crate) fn copy_to(&self, into: &mut [T]) {
        self.copy_out(&into.into(), false);
    }

    /// Removes the elements for which `keep` returns false, and passes their positions in the program's list
    /// to `dropped`. The kernel must not have been submitted yet.
    pub(crate) fn retain(&mut self, keep: impl Fn(u64) -> bool, mut dropped: impl FnMut(usize)) {
        let positions: Vec<usize> = self.positions().collect();
        let (first, is_direct) = (self.first, self.plan.is_direct());
        self.clear();
        let mut value = vec![0; if is_direct { 0 } else { size_of::<T>() }];
        for (number, position) in positions.into_iter().enumerate() {
            // Read this entry from the old list: the loop has rewritten only earlier entries.
            let entry = if is_direct { position - first } else { number };
            let mut element = [0; INDEX_BYTES];
            self.memory.read(entry * INDEX_BYTES, &mut element);
            let element = u64::from_ne_bytes(element);
            if !keep(element) {
                dropped(position);
                continue;
            }
            if self.count != number && !is_direct {
                self.memory.read(self.value_offset(number), &mut value);
                self.memory.write(self.value_offset(self.count), &value);
            }
            self.try_push(element, position);
        }
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
            let plan =
                StagePlan::for_values::<u32>(values.as_ptr().addr(), values.len(), &Lanes::of(&array), 64);
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
