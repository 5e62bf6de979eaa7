//! Questions: searches and reductions, which a device executes on its runs (contiguous elements on a device)
//! without changing them. Also gathers of elements by index.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

use backend_api::expr::Partial;
use backend_api::{Compute, Device, Elements, Gather, HostSpan, Request, Search, Ticket};

use super::change::{Change, Examination};
use super::in_ram::{WorkQueue, is_unsupported};
use super::peer_copy::PeerCopy;
use super::run::{Lane, Run, RunAccess};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::recording;
use crate::base::stats::Counters;
use crate::engine::channel::PinnedPiece;
use crate::engine::pager::Pager;

/// The request of a question (search or reduction) to a device, for one run (contiguous elements on it).
#[derive(Clone, Copy)]
pub enum RunWork<'a> {
    Search(Search<'a>),
    Compute(Compute<'a>),
    /// A kernel of the program that changes no elements of the run, and the address of its report.
    Launch(&'a dyn Change, Run<'a>, HostSpan<'a>),
    /// Copies of the run's elements to memory of another device.
    PeerCopy(&'a PeerCopy<'a>, Run<'a>),
}

impl std::fmt::Debug for RunWork<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

impl RunWork<'_> {
    /// Makes the device compile the kernel in advance. The caller holds no pages. Errors are ignored here,
    /// because the submission returns them.
    fn prepare(&self, device: &dyn Device) {
        match self {
            Self::Search(_) | Self::PeerCopy(..) => {}
            Self::Compute(compute) => drop(device.prepare(&[Request::Compute(compute)])),
            Self::Launch(launch, run, report) => launch.prepare(device, *run, Some(*report)),
        }
    }

    fn submit(&self, queue: WorkQueue<'_>) -> backend_api::Result<Ticket> {
        match self {
            Self::Search(search) => queue.submit(search),
            Self::Compute(compute) => queue.submit(compute),
            Self::Launch(launch, run, report) => launch.submit(queue, *run, Some(*report)),
            Self::PeerCopy(fetch, run) => fetch.submit(queue, *run),
        }
    }
}

/// A query that devices execute on elements, such as a search or a sum. Also combines the results of several
/// runs (contiguous elements on a device) to one result.
pub trait Question: Sync {
    /// The combined results of one channel's runs, in ascending order of their elements.
    type Part: Default + Send;
    /// The combined result of all channels.
    type Whole;

    /// Returns true if results are rounded floats, which depend on the division into runs.
    fn is_rounded(&self) -> bool {
        false
    }

    /// Number of elements in a group: see [`Change::group_len`].
    fn group_len(&self) -> usize {
        1
    }

    /// Other arrays that every run reads in place, and the pages that it reads.
    fn striped(&self) -> Vec<(&Pager, Range<u64>)> {
        Vec::new()
    }

    /// Returns true if a repetition of the question gives the same result.
    fn may_be_repeated(&self) -> bool {
        true
    }

    /// The number of list entries for which the first result about `count` elements has memory.
    fn room(&self, count: u64) -> u64 {
        let _ = count;
        0
    }

    /// The size in bytes of a result with memory for `room` list entries.
    fn answer_bytes(&self, room: u64) -> u64 {
        let _ = room;
        Compute::partials_bytes()
    }

    fn kernel<'a>(&'a self, run: Run<'a>, room: u64, answer: HostSpan<'a>) -> RunWork<'a>;

    /// Adds a device's result to the combined result of its channel.
    ///
    /// # Errors
    /// An error if memory is short.
    fn take(&self, part: &mut Self::Part, answer: &Answer<'_>) -> Result<TakenAnswer>;

    /// Combines the results of all channels, which are in the order of channels.
    fn whole(&self, parts: Vec<Self::Part>) -> Self::Whole;
}

/// The methods of a [`Question`] that do not depend on the types of its results.
pub(crate) trait AnyQuestion {
    fn group_len(&self) -> usize;
    fn striped(&self) -> Vec<(&Pager, Range<u64>)>;
    fn may_be_repeated(&self) -> bool;
    fn room(&self, count: u64) -> u64;
    fn answer_bytes(&self, room: u64) -> u64;
    fn kernel<'a>(&'a self, run: Run<'a>, room: u64, answer: HostSpan<'a>) -> RunWork<'a>;
}

impl<Q: Question> AnyQuestion for Q {
    fn group_len(&self) -> usize {
        Question::group_len(self)
    }

    fn striped(&self) -> Vec<(&Pager, Range<u64>)> {
        Question::striped(self)
    }

    fn may_be_repeated(&self) -> bool {
        Question::may_be_repeated(self)
    }

    fn room(&self, count: u64) -> u64 {
        Question::room(self, count)
    }

    fn answer_bytes(&self, room: u64) -> u64 {
        Question::answer_bytes(self, room)
    }

    fn kernel<'a>(&'a self, run: Run<'a>, room: u64, answer: HostSpan<'a>) -> RunWork<'a> {
        Question::kernel(self, run, room, answer)
    }
}

/// A function that adds a device's result to the combined result of its channel, as [`Question::take`] does.
pub(crate) type TakeAnswer<'a> = &'a mut dyn FnMut(&Answer<'_>) -> Result<TakenAnswer>;

/// Receives the results of several runs.
pub(crate) trait TakeParts {
    /// Discards all results. Results of `runs` runs follow.
    fn begin(&mut self, runs: usize);
    /// Receives a result of run number `run`.
    fn take(&mut self, run: usize, answer: &Answer<'_>) -> Result<TakenAnswer>;
}

/// A question, and the combined results of several runs.
pub(crate) struct AnswerParts<'a, Q: Question> {
    question: &'a Q,
    parts: Vec<Q::Part>,
}

impl<'a, Q: Question> AnswerParts<'a, Q> {
    pub(crate) fn new(question: &'a Q) -> Self {
        Self { question, parts: Vec::new() }
    }

    pub(crate) fn whole(self) -> Q::Whole {
        self.question.whole(self.parts)
    }
}

impl<Q: Question> TakeParts for AnswerParts<'_, Q> {
    fn begin(&mut self, runs: usize) {
        self.parts = std::iter::repeat_with(Q::Part::default).take(runs).collect();
    }

    fn take(&mut self, run: usize, answer: &Answer<'_>) -> Result<TakenAnswer> {
        self.question.take(&mut self.parts[run], answer)
    }
}

impl Question for Examination<'_> {
    type Part = ();
    type Whole = ();

    fn group_len(&self) -> usize {
        self.0.group_len()
    }

    fn striped(&self) -> Vec<(&Pager, Range<u64>)> {
        self.0.striped()
    }

    fn is_rounded(&self) -> bool {
        self.0.is_rounded()
    }

    fn may_be_repeated(&self) -> bool {
        false
    }

    fn room(&self, count: u64) -> u64 {
        count
    }

    fn answer_bytes(&self, count: u64) -> u64 {
        self.0.report_bytes(count as usize) as u64
    }

    fn kernel<'a>(&'a self, run: Run<'a>, _: u64, answer: HostSpan<'a>) -> RunWork<'a> {
        RunWork::Launch(self.0, run, answer)
    }

    fn take(&self, _: &mut (), answer: &Answer<'_>) -> Result<TakenAnswer> {
        let words = answer.words(0, self.0.report_bytes(answer.run.count()) / 8)?;
        self.0.take_report(answer.run.geometry, &words);
        Ok(TakenAnswer::Yes)
    }

    fn whole(&self, _: Vec<()>) {}
}

/// The state of a query after a device's result: it needs further results, is complete, or must be repeated.
#[derive(Clone, Copy, Debug)]
pub enum TakenAnswer {
    Yes,
    /// The result was received, and results of the channel's later runs are not needed.
    Enough,
    /// The list was too short: the question must be repeated from element `from` on, with a list of about
    /// `room` entries.
    TooShort {
        from: u64,
        room: u64,
    },
}

/// The host memory to which a device writes a query's result for one run (contiguous elements).
pub struct Answer<'a> {
    memory: &'a PinnedPiece,
    counters: &'a Counters,
    run: Run<'a>,
    /// The number of list entries for which the result has memory.
    pub(crate) room: u64,
}

impl Answer<'_> {
    pub(crate) fn words(&self, from: usize, count: usize) -> Result<Vec<u64>> {
        let mut words = zeroed_vec::<u64>(count)?;
        self.read_words(from, &mut words);
        Ok(words)
    }

    pub(crate) fn read_words(&self, from: usize, into: &mut [u64]) {
        self.memory.read(from * 8, bytemuck::cast_slice_mut(into));
        self.counters.bytes_from_device.add(into.len() as u64 * 8);
    }

    /// Counts the bytes of the run as copied between devices.
    pub(crate) fn note_fetched(&self) {
        self.counters.bytes_past_host.add(self.count() * self.run.columns[0].stride);
    }

    pub(crate) fn partials(&self) -> Result<Vec<Partial>> {
        let number = self.words(0, 1)?[0].min(Compute::PARTIALS_MAX);
        Ok(Partial::list(&self.words(0, 1 + number as usize * (Partial::BYTES as usize / 8))?))
    }

    /// Converts an element's number in the run to its index.
    pub(crate) fn index(&self, number: u64) -> usize {
        self.run.geometry.index(number) as usize
    }

    /// Appends the indices of elements, given their ascending numbers in the run. Divides once for each page.
    pub(crate) fn append_indices(&self, numbers: &[u64], indices: &mut Vec<usize>) {
        let geometry = self.run.geometry;
        let mut rest = numbers;
        while let (Some(&first), Some(&last)) = (rest.first(), rest.last()) {
            let within = geometry.first.wrapping_add(first) % geometry.page_len;
            let is_alone = geometry.channels == 1;
            let end = if is_alone { u64::MAX } else { first.saturating_add(geometry.page_len - within) };
            let here = if last < end { rest.len() } else { rest.partition_point(|number| *number < end) };
            let (here, others) = rest.split_at(here.max(1));
            let ahead = geometry.index(first).wrapping_sub(first);
            indices.extend(here.iter().map(|number| number.wrapping_add(ahead) as usize));
            rest = others;
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.run.count() as u64
    }
}

/// The longest list in one result. Longer lists are requested in parts, which limits their memory. With a
/// header of two words a list takes 16 MiB.
const LISTED_MAX: u64 = if cfg!(test) { 16 } else { (1 << 21) - 2 };
/// The least list length for a part, even if fewer entries are expected.
const LISTED_MIN: u64 = if cfg!(test) { 4 } else { 4096 };
/// If a device refuses a question, this number of bytes is copied to RAM at a time.
const IN_RAM_BYTES: u64 = if cfg!(test) { 256 } else { 64 << 20 };
/// The number of parts in flight: the device processes a part while the thread reads the result of another.
const PARTS_AHEAD: usize = 2;

/// A question about a run that a device is processing.
pub(crate) struct AskedRun {
    pub ticket: Ticket,
    /// The memory of the result; `None` if the device refused the question as unsupported.
    memory: Option<PinnedPiece>,
    room: u64,
    /// True if RAM answers the refused question. The run then has parts, each of which fits into RAM.
    in_ram: bool,
}

impl AskedRun {
    /// Submits a query on a run (contiguous elements on a device) to this device. If the device does not
    /// support the query, [`take`](Self::take) executes the query in RAM.
    pub fn new(lane: &dyn Lane, question: &dyn AnyQuestion, run: Run<'_>) -> Result<Self> {
        match Self::with_room(lane, question, run, (question.room(run.count() as u64), false)) {
            Err(error) if error.device_error().is_some_and(is_unsupported) => {
                let ticket = lane.submit(RunAccess::Read, &mut |queue| queue.submit(&[]))?;
                Ok(Self { ticket, memory: None, room: 0, in_ram: true })
            }
            asked => asked,
        }
    }

    /// Submits a question with memory for `room` list entries. With `in_ram`, RAM answers if the device
    /// refuses.
    fn with_room(
        lane: &dyn Lane,
        question: &dyn AnyQuestion,
        run: Run<'_>,
        (room, in_ram): (u64, bool),
    ) -> Result<Self> {
        let memory = lane.buffer(question.answer_bytes(room) as usize)?;
        let kernel = question.kernel(run, room, memory.at(0));
        kernel.prepare(&**lane.device());
        let ticket = lane.submit(RunAccess::Read, &mut |queue| {
            let work = WorkQueue::new(queue, Some(lane.counters()), Some(memory.memory()));
            kernel.submit(work.with_ram(in_ram))
        })?;
        if !in_ram && !matches!(kernel, RunWork::PeerCopy(..)) {
            let bytes = run.columns.iter().map(|of| of.count * of.stride).sum();
            lane.counters().bytes_in_place.add(bytes);
            recording::sized(ticket, 1, || bytes);
        }
        Ok(Self { ticket, memory: Some(memory), room, in_ram })
    }

    /// Makes the device compile the query's kernels in advance, for runs (contiguous elements on a device)
    /// like `like`. Otherwise this thread would wait for the compiler later, while it locks pages for which
    /// other threads wait.
    pub fn prepare(lane: &dyn Lane, question: &dyn AnyQuestion, like: Run<'_>) {
        if let Ok(memory) = lane.buffer(question.answer_bytes(0) as usize) {
            question.kernel(like, 0, memory.at(0)).prepare(&**lane.device());
            lane.keep(memory);
        }
    }

    /// Passes the completed result to the query through `take`. Repeats the query for the rest of the run if
    /// the list was too short. Returns `Break` if the query needs no later results.
    pub fn take(
        self,
        lane: &dyn Lane,
        question: &dyn AnyQuestion,
        run: Run<'_>,
        take: TakeAnswer<'_>,
    ) -> Result<ControlFlow<()>> {
        let (Self { memory, room, in_ram, .. }, counters) = (self, lane.counters());
        let Some(memory) = memory else { return Self::take_in_ram(lane, question, run, take) };
        let taken = take(&Answer { memory: &memory, counters, run, room })?;
        lane.keep(memory);
        match taken {
            TakenAnswer::Yes => Ok(ControlFlow::Continue(())),
            TakenAnswer::Enough => Ok(ControlFlow::Break(())),
            TakenAnswer::TooShort { from, room } => {
                Self::take_rest(lane, question, run, (from, room, in_ram), take)
            }
        }
    }

    /// Answers a refused question in RAM, one part of the run after the other.
    fn take_in_ram(
        lane: &dyn Lane,
        question: &dyn AnyQuestion,
        run: Run<'_>,
        take: TakeAnswer<'_>,
    ) -> Result<ControlFlow<()>> {
        let (count, group_len) = (run.count() as u64, question.group_len() as u64);
        let row_bytes: u64 = run.columns.iter().map(|of| of.stride).sum();
        let each = (IN_RAM_BYTES / row_bytes.max(1) / group_len).max(1) * group_len;
        for first in (0..count).step_by(each as usize) {
            let (columns, geometry) = run.part(first..count.min(first + each));
            let run = Run { columns: &columns, geometry };
            let asked = Self::with_room(lane, question, run, (question.room(columns[0].count), true))?;
            lane.wait(asked.ticket)?;
            if asked.take(lane, question, run, take)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Repeats the question for the rest of a run, one part at a time, and receives the results. `room` is
    /// the expected number of entries in all lists together.
    fn take_rest(
        lane: &dyn Lane,
        question: &dyn AnyQuestion,
        run: Run<'_>,
        (from, room, in_ram): (u64, u64, bool),
        take: TakeAnswer<'_>,
    ) -> Result<ControlFlow<()>> {
        let count = run.count() as u64;
        // If matches are spread evenly, the matches of a part fill half of its list. If the list of a part is
        // too short, the part is divided further until all its matches fit.
        let each = ((count - from) / 2 / room.div_ceil(LISTED_MAX).max(1)).max(LISTED_MAX);
        let mut firsts = (from..count).step_by(each as usize);
        let mut ahead = VecDeque::new();
        loop {
            while ahead.len() < PARTS_AHEAD
                && let Some(first) = firsts.next()
            {
                let count = each.min(count - first);
                let (columns, geometry) = run.part(first..first + count);
                let asked_about = Run { columns: &columns, geometry };
                let room = room.clamp(LISTED_MIN, LISTED_MAX).min(count);
                let asked = Self::with_room(lane, question, asked_about, (room, in_ram))?;
                ahead.push_back((asked, columns, geometry));
            }
            let Some((asked, columns, geometry)) = ahead.pop_front() else {
                return Ok(ControlFlow::Continue(()));
            };
            lane.wait(asked.ticket)?;
            if asked.take(lane, question, Run { columns: &columns, geometry }, take)?.is_break() {
                break;
            }
        }
        for (asked, ..) in ahead {
            lane.wait(asked.ticket)?;
            asked.memory.into_iter().for_each(|memory| lane.keep(memory));
        }
        Ok(ControlFlow::Break(()))
    }
}

/// A gather of elements, by their numbers in a channel, that a device is processing.
pub(crate) struct Collecting {
    ticket: Ticket,
    memory: PinnedPiece,
    count: usize,
}

impl Collecting {
    pub fn new(lane: &dyn Lane, elements: Elements<'_>, numbers: &[u64]) -> Result<Self> {
        let count = numbers.len();
        let memory = lane.buffer(count * (8 + elements.stride as usize))?;
        memory.write(0, bytemuck::cast_slice(numbers));
        let (indices, values) = (memory.at(0), memory.at(8 * count as u64));
        let gather = Gather { elements: elements.into(), indices, count: count as u64, values };
        let ticket = lane.submit(RunAccess::Read, &mut |queue| {
            WorkQueue::new(queue, Some(lane.counters()), Some(memory.memory())).submit(&gather)
        })?;
        Ok(Self { ticket, memory, count })
    }

    /// Waits for the device to gather the elements, and returns them.
    pub fn values<T: Element>(self, lane: &dyn Lane) -> Result<Vec<T>> {
        lane.wait(self.ticket)?;
        let mut values = zeroed_vec(self.count)?;
        self.memory.read(8 * self.count, bytemuck::cast_slice_mut(&mut values));
        lane.counters().bytes_from_device.add(size_of_val(&values[..]) as u64);
        lane.keep(self.memory);
        Ok(values)
    }
}
