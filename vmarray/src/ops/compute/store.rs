//! Writing to elements on their devices.
//!
//! Pages that are written to are held exclusively, absent from the cache, while their device works on them:
//! accesses to them wait, accesses to all others go on. They are taken in runs of neighbouring slots, two
//! runs of each channel at a time, and all channels in turn, so that devices need not wait for pages to be
//! taken.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::{Commit, Compute, Device, DeviceBuffer, Elements, HostBuffer, Ticket, Transfer};

use super::{Outcome, Plan, changes_nothing};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::engine::channel::HomeQueues;
use crate::engine::pager::Pager;
use crate::ops::view::View as _;

/// How many bytes of pages are held at once for one submission.
const RUN_BYTES: usize = 256 << 20;
/// The same where elements of other arrays are copied there.
pub(crate) const STAGED_BYTES: usize = 16 << 20;
/// So many submissions of a channel are under way at once.
const RUNS: usize = 2;

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Writes to a range what is computed from it and from as many elements of others.
    pub(crate) fn assign(&self, others: &[Operand<'_, D>], range: &Range<usize>, plan: &Plan) -> Result<()> {
        let staged = !self.has_beside(others, range);
        Writer { target: self, others, first: range.start, staged }.run(range, plan)
    }
}

/// What is only read, of any element type: an array or a source.
pub trait Other<D: Device>: Sync {
    /// Bytes of an element.
    fn stride(&self) -> usize;
    /// Reads elements as bytes. Must not be called by who holds pages: it may wait for anything.
    fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()>;
    /// Where pages are homed on devices, if they are.
    fn pager(&self) -> Option<&Pager<D>> {
        None
    }
}

/// Elements of another store, beside those that an operation works on.
pub struct Operand<'a, D: Device> {
    pub(crate) other: &'a dyn Other<D>,
    /// The place of the element beside the first.
    pub(crate) start: usize,
}

impl<'a, D: Device> Operand<'a, D> {
    /// The same from a later element on.
    pub(crate) fn further(&self, by: usize) -> Self {
        Self { other: self.other, start: self.start + by }
    }

    /// Reads elements as bytes, counted from the first.
    pub(crate) fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        self.other.read_bytes(self.start + range.start..self.start + range.end, into)
    }

    pub(crate) fn stride(&self) -> usize {
        self.other.stride()
    }

    /// Where its pages are homed on devices, if they are.
    pub(crate) fn pager(&self) -> Option<&'a Pager<D>> {
        self.other.pager()
    }

    /// Whether each element lies at the same place of the same channel of the same device as the one of an
    /// array that it is beside.
    pub(crate) fn is_placed_as<T: Element>(&self, array: &VirtualArray<T, D>, first: usize) -> bool {
        let Some(pager) = self.other.pager() else { return false };
        let (one, two) = (array.pager().channels(), pager.channels());
        self.start == first
            && array.page_len() == pager.page_bytes() / self.stride()
            && one.len() == two.len()
            && one.iter().zip(two).all(|(one, two)| Arc::ptr_eq(one.device(), two.device()))
    }
}

impl<D: Device> std::fmt::Debug for Operand<'_, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operand").field("start", &self.start).finish_non_exhaustive()
    }
}

impl<T: Element, D: Device> Other<D> for VirtualArray<T, D> {
    fn stride(&self) -> usize {
        size_of::<T>()
    }

    fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        // Bytes of a buffer are not aligned for any type.
        let values = self.to_vec(range)?;
        into.copy_from_slice(bytemuck::cast_slice(&values));
        Ok(())
    }

    fn pager(&self) -> Option<&Pager<D>> {
        Some(self.pager())
    }
}

/// A run of pages of one channel that its device works on.
struct DeviceRun<D: Device> {
    /// The pages, by slot.
    slots: Range<u64>,
    /// Elements, counted in the channel.
    elements: Range<u64>,
    /// Of the work and of the copies for it: each may fail by itself.
    tickets: Vec<Ticket>,
    /// Elements of other arrays; kept until the device is done.
    _staging: Vec<OperandStaging<D>>,
}

/// Elements of another array on their way to the target's device.
struct OperandStaging<D: Device> {
    memory: DeviceBuffer<D>,
    host: HostBuffer<D>,
}

/// Writes to the elements of one array.
struct Writer<'a, T: Element, D: Device> {
    target: &'a VirtualArray<T, D>,
    /// What is read, of the same length.
    others: &'a [Operand<'a, D>],
    /// The element that those of the others are counted from.
    first: usize,
    /// Whether these lie elsewhere, so that their elements are copied to the target's devices.
    staged: bool,
}

/// What a device is asked to work on for one run.
struct AskedRun<'a, D: Device> {
    /// Elements, counted in the channel.
    elements: Range<u64>,
    sources: Vec<Elements<'a>>,
    geometry: Geometry,
    /// The other channels in whose slots some of them lie.
    neighbours: Vec<&'a HomeQueues<D>>,
}

/// A channel's part of the work.
struct Lane<D: Device> {
    /// Elements, counted in the channel.
    within: Range<u64>,
    /// The next slot to be taken, and the end.
    next: u64,
    end: u64,
    runs: VecDeque<DeviceRun<D>>,
    /// Slots and elements of the runs that are done. They are listed only if others fail.
    written: Vec<(Range<u64>, Range<u64>)>,
}

impl<T: Element, D: Device> Writer<'_, T, D> {
    fn run(&self, range: &Range<usize>, plan: &Plan) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (pager, pages) = (self.target.pager(), self.target.touched_pages(range));
        pager.settle(&pages)?;
        pager.evict(&pages)?;
        if !self.staged {
            for other in self.others.iter().filter_map(|other| other.pager()) {
                other.settle(&pages)?;
            }
        }
        let page_len = self.target.page_len() as u64;
        let mut lanes: Vec<Lane<D>> = (0..pager.channels().len())
            .map(|channel| {
                let within = self.target.elements_in_channel(channel, range);
                let (next, end) = (within.start / page_len, within.end.div_ceil(page_len));
                let end = if within.is_empty() { next } else { end };
                Lane { next, end, within, runs: VecDeque::new(), written: Vec::new() }
            })
            .collect();
        let mut outcome = Outcome::default();
        while outcome.failure.is_none() && lanes.iter().any(|lane| lane.next < lane.end) {
            for channel in 0..lanes.len() {
                if let Err(error) = self.step(&mut lanes, channel, plan, &mut outcome) {
                    outcome.failure.get_or_insert(error);
                }
                if outcome.failure.is_some() {
                    break;
                }
            }
        }
        self.finish_all(&mut lanes, &mut outcome);
        if outcome.failure.is_some() {
            for (channel, lane) in lanes.iter().enumerate() {
                for (slots, elements) in &lane.written {
                    self.list(channel, slots, elements, &mut outcome.written);
                }
            }
        }
        outcome.into_result()
    }

    /// Has a channel work on one more run.
    fn step(&self, lanes: &mut [Lane<D>], channel: usize, plan: &Plan, outcome: &mut Outcome) -> Result<()> {
        if lanes[channel].next >= lanes[channel].end {
            return Ok(());
        }
        if lanes[channel].runs.len() >= RUNS {
            self.finish_one(&mut lanes[channel], channel, outcome);
        }
        let mut staging = Vec::new();
        let mut most = lanes[channel].end - lanes[channel].next;
        most = most.min(self.run_pages());
        if self.staged {
            // Reading others may wait for anything, so nothing is held meanwhile.
            self.finish_all(lanes, outcome);
            let lane = &lanes[channel];
            staging = self.stage(channel, lane.next..lane.next + most, &lane.within)?;
        }
        let first = lanes[channel].next;
        let within = lanes[channel].within.clone();
        // While nothing of it is held yet. What goes wrong is told by the computation itself.
        let asked = self.asked(channel, &(first..first + most), &within, &staging, first);
        let (sources, geometry) = (&asked.sources, asked.geometry);
        let compute = Compute { program: plan.program(), sources, geometry, action: plan.action() };
        let _ = self.target.pager().channels()[channel].device().prepare(&compute);
        let mut end = self.claim(channel, first..first + most)?;
        if end == first || (self.staged && end < first + most) {
            self.let_go(channel, first..end);
            // Whoever has the next page may wait for those that this thread holds.
            self.finish_all(lanes, outcome);
            if outcome.failure.is_some() {
                return Ok(());
            }
            self.target.pager().claim_home(self.page(channel, first))?;
            end = first + 1;
        }
        lanes[channel].next = end;
        let slots = first..end;
        let mut begun = false;
        match self.submit(channel, &slots, &within, plan, &staging, first, &mut begun) {
            Ok((elements, tickets)) => {
                lanes[channel].runs.push_back(DeviceRun { slots, elements, tickets, _staging: staging });
                Ok(())
            }
            Err(error) => {
                if begun && !changes_nothing(&error) {
                    // A part of it may have been carried out.
                    self.let_go_written(channel, &slots);
                    self.list(channel, &slots, &within, &mut outcome.unspecified);
                } else {
                    self.let_go(channel, slots);
                }
                Err(error)
            }
        }
    }

    /// How many pages are worked on at a time.
    fn run_pages(&self) -> u64 {
        let page_bytes = self.target.pager().page_bytes();
        if !self.staged {
            return (RUN_BYTES / page_bytes).max(1) as u64;
        }
        // Those of the others are in staging memory, however long their elements are.
        let longest = self.others.iter().map(|other| other.stride() * self.target.page_len());
        (STAGED_BYTES / longest.fold(page_bytes, usize::max)).max(1) as u64
    }

    /// Holds the pages of slots, from the first on, as long as that can be had at once; says where it ends.
    /// On an error none is held.
    fn claim(&self, channel: usize, slots: Range<u64>) -> Result<u64> {
        let pager = self.target.pager();
        for slot in slots.clone() {
            match pager.try_claim_home(self.page(channel, slot)) {
                Ok(true) => {}
                Ok(false) => return Ok(slot),
                Err(error) => {
                    self.let_go(channel, slots.start..slot);
                    return Err(error);
                }
            }
        }
        Ok(slots.end)
    }

    fn page(&self, channel: usize, slot: u64) -> u64 {
        slot * self.target.pager().channels().len() as u64 + channel as u64
    }

    fn let_go(&self, channel: usize, slots: Range<u64>) {
        slots.for_each(|slot| self.target.pager().release_unchanged(self.page(channel, slot)));
    }

    /// Lets the pages of slots go whose device has written to them.
    fn let_go_written(&self, channel: usize, slots: &Range<u64>) {
        slots.clone().for_each(|slot| self.target.pager().release_written(self.page(channel, slot)));
    }

    /// Lists the elements of slots.
    fn list(&self, channel: usize, slots: &Range<u64>, within: &Range<u64>, list: &mut Vec<Range<usize>>) {
        for slot in slots.clone() {
            let part = self.elements_of(&(slot..slot + 1), within);
            let first = self.target.index_in_channel(channel, part.start);
            list.push(first..first + (part.end - part.start) as usize);
        }
    }

    fn elements_of(&self, slots: &Range<u64>, within: &Range<u64>) -> Range<u64> {
        let page_len = self.target.page_len() as u64;
        within.start.max(slots.start * page_len)..within.end.min(slots.end * page_len)
    }

    /// What the device is asked to work on.
    fn asked<'b>(
        &'b self,
        channel: usize,
        slots: &Range<u64>,
        within: &Range<u64>,
        staging: &'b [OperandStaging<D>],
        staged_from: u64,
    ) -> AskedRun<'b, D> {
        let elements = self.elements_of(slots, within);
        let count = elements.end - elements.start;
        let (mut sources, mut neighbours) = self.target.beside(&[], channel, &elements);
        if self.staged {
            let begin = self.elements_of(&(staged_from..slots.end), within).start;
            sources.extend(self.others.iter().zip(staging).map(|(other, staging)| {
                let stride = other.stride() as u64;
                Elements {
                    start: staging.memory.at(0).plus((elements.start - begin) * stride),
                    count,
                    stride,
                }
            }));
        } else {
            (sources, neighbours) = self.target.beside(self.others, channel, &elements);
        }
        let geometry = self.target.geometry_of(channel, elements.start);
        AskedRun { elements, sources, geometry, neighbours }
    }

    /// Starts the work on slots whose pages are held. Says whether the device was asked to write, also if
    /// that failed.
    #[allow(clippy::too_many_arguments, reason = "all of them are about this one run")]
    fn submit(
        &self,
        channel: usize,
        slots: &Range<u64>,
        within: &Range<u64>,
        plan: &Plan,
        staging: &[OperandStaging<D>],
        staged_from: u64,
        begun: &mut bool,
    ) -> Result<(Range<u64>, Vec<Ticket>)> {
        let AskedRun { elements, sources, geometry, neighbours } =
            self.asked(channel, slots, within, staging, staged_from);
        let count = elements.end - elements.start;
        let home = &self.target.pager().channels()[channel];
        let compute = Compute { program: plan.program(), sources: &sources, geometry, action: plan.action() };
        let mut tickets = Vec::with_capacity(staging.len() + 1);
        let ticket = home.queues.between_all_writes(&neighbours, |queue| {
            for (other, staging) in self.others.iter().zip(staging) {
                let bytes = count * other.stride() as u64;
                let (from, to) = (staging.host.at(0), staging.memory.at(0));
                tickets.push(queue.submit(&[Transfer::Upload { from, to, bytes }])?);
                home.counters.bytes_to_device.add(bytes);
            }
            *begun = true;
            queue.compute(&compute)
        })?;
        tickets.push(ticket);
        Ok((elements, tickets))
    }

    /// Reads the elements of other arrays that belong to these slots.
    fn stage(
        &self,
        channel: usize,
        slots: Range<u64>,
        within: &Range<u64>,
    ) -> Result<Vec<OperandStaging<D>>> {
        let home = &self.target.pager().channels()[channel];
        let mut all = Vec::new();
        for other in self.others {
            let elements = self.elements_of(&slots, within);
            let stride = other.stride();
            let bytes = (elements.end - elements.start) as usize * stride;
            let memory = DeviceBuffer::new(home.device(), bytes as u64, Commit::Lazy)?;
            let host = home.host_memory(bytes)?;
            for slot in slots.clone() {
                let part = self.elements_of(&(slot..slot + 1), within);
                let first = self.target.index_in_channel(channel, part.start);
                let indices = first..first + (part.end - part.start) as usize;
                let mut page = zeroed_vec(indices.len() * stride)?;
                other.read_bytes(indices.start - self.first..indices.end - self.first, &mut page)?;
                host.write((part.start - elements.start) as usize * stride, &page);
            }
            all.push(OperandStaging { memory, host });
        }
        Ok(all)
    }

    /// Waits for the oldest run of a channel and lets its pages go.
    fn finish_one(&self, lane: &mut Lane<D>, channel: usize, outcome: &mut Outcome) {
        let Some(run) = lane.runs.pop_front() else { return };
        let channel_of = &self.target.pager().channels()[channel];
        // All of them, so that nothing is under way any more.
        let waits = run.tickets.iter().map(|ticket| channel_of.queues.wait(*ticket));
        let done = waits.reduce(Result::and).unwrap_or(Ok(()));
        // On an error, too, the slots have contents: whichever.
        self.let_go_written(channel, &run.slots);
        match done {
            Ok(()) => lane.written.push((run.slots, run.elements)),
            Err(error) => {
                outcome.failure.get_or_insert_with(|| error.into());
                self.list(channel, &run.slots, &run.elements, &mut outcome.unspecified);
            }
        }
    }

    fn finish_all(&self, lanes: &mut [Lane<D>], outcome: &mut Outcome) {
        for (channel, lane) in lanes.iter_mut().enumerate() {
            while !lane.runs.is_empty() {
                self.finish_one(lane, channel, outcome);
            }
        }
    }
}
