//! Changes of elements: what is copied to devices for them, how they are started, and what becomes of the
//! elements.

use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::{Device, DeviceSpan, Elements, HostSpan, Queue, Ticket};

use super::beside::{ReadOperand, StagedOperand};
use super::{Examination, Lane, Run, RunAccess};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::recording;
use crate::base::stats::Counters;
use crate::engine::channel::PinnedPiece;
use crate::engine::pager::Pager;
use crate::ops::sort::{ChannelShare, Dealing, DeviceOutcome, KeyOrder};

/// How many bytes of each column are copied at a time to where they are to be beside the others.
pub(crate) const STAGED_BYTES: usize = 16 << 20;

/// How elements are changed: by an assignment, or by a kernel of the program.
pub trait Change: Sync {
    /// Whether all bytes of each element of the first column are written, whatever they were before.
    fn overwrites(&self, element_bytes: usize) -> bool;

    /// Whether a device may be unable to do it, which is to be found out before any other begins.
    fn is_for_some_devices(&self) -> bool {
        false
    }

    /// Arrays of which all these pages are read where they live: on the device of every run.
    fn dealt(&self) -> Vec<(&Pager, Range<u64>)> {
        Vec::new()
    }

    /// How many bytes a device writes about a run of so many elements when it is done.
    fn report_bytes(&self, count: usize) -> usize {
        let _ = count;
        0
    }

    /// Whether something rounded comes out, so that it matters which elements are a run.
    fn is_rounded(&self) -> bool {
        false
    }

    /// How many bytes of elements a run is to have at most, one page at least.
    fn run_bytes(&self) -> usize {
        usize::MAX
    }

    /// How many bytes it copies to devices itself for each element, before a part of it begins.
    fn part_stride(&self) -> usize {
        0
    }

    /// Copies them, for the elements of a range. Nothing is held, and no run is under way.
    fn begin_part(&self, part: &Range<usize>) -> Result<()> {
        let _ = part;
        Ok(())
    }

    /// Has the device translate what it needs for runs like this one, if it does not know it yet. What goes
    /// wrong here is told by the submission itself.
    fn prepare(&self, device: &dyn Device, run: Run<'_>, report: Option<HostSpan<'_>>);

    /// Starts the change of a run: of its first column, and of those others that are written to.
    fn submit(
        &self,
        queue: &Queue<dyn Device>,
        run: Run<'_>,
        report: Option<HostSpan<'_>>,
    ) -> backend_api::Result<Ticket>;

    /// Takes in what was written about a run, as words.
    fn take_report(&self, geometry: Geometry, report: &[u64]) {
        let _ = (geometry, report);
    }
}

/// A store whose elements are read, of any type.
pub trait OperandStore: Sync {
    /// Bytes of an element.
    fn stride(&self) -> usize;
    /// Reads elements as bytes. The calling thread must not hold pages: it may wait for anything.
    fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()>;
    /// Copies elements to memory of a device past the host, if there is a way, or says that there is none.
    /// Else on the terms of [`read_bytes`](Self::read_bytes).
    fn fetch_to(&self, range: &Range<usize>, device: &Arc<dyn Device>, to: DeviceSpan<'_>) -> Result<bool> {
        let _ = (range, device, to);
        Ok(false)
    }
    /// Where pages are homed on devices, if they are.
    fn pager(&self) -> Option<&Pager> {
        None
    }
    /// The devices that have parts of it, each once, and where copies to them are counted.
    fn devices(&self) -> Vec<(&Arc<dyn Device>, &Counters)>;
    /// Runs a kernel that changes nothing of the elements of a range and of those of others beside them.
    fn examine(&self, others: &[Operand<'_>], range: &Range<usize>, by: &Examination<'_>) -> Result<()>;
}

/// Changes what channels have of elements, none of which is without any, and says before when it is about to.
pub type ShareWork<'a> = &'a mut dyn FnMut(&[ChannelShare<'_>], Dealing, &mut dyn FnMut()) -> DeviceOutcome;

/// A store whose elements are changed.
pub trait ResultStore: OperandStore {
    /// Writes elements as bytes, on the same terms.
    fn write_bytes(&self, start: usize, from: &[u8]) -> Result<()>;

    /// Changes the elements of a range, with those of others beside them.
    fn change(&self, others: &[Operand<'_>], range: &Range<usize>, change: &dyn Change) -> Result<()>;

    /// Has work done in the memory of the devices that have the elements of a range, and so many of another
    /// store beside them, if they are such that can do it and reach each other; else changes nothing, and
    /// says so.
    fn change_on_devices(
        &self,
        range: &Range<usize>,
        beside: Option<(Operand<'_>, usize)>,
        can_do: &dyn Fn(&Arc<dyn Device>) -> bool,
        work: ShareWork<'_>,
    ) -> Result<bool> {
        let _ = (range, beside, can_do, work);
        Ok(false)
    }

    /// Sorts the elements of a range, which are numbers at home in RAM, by way of devices, if these are such
    /// that can do it and it is worth it; else says that it did not, and has the elements in some order.
    fn sort_by_way_of_cards(
        &self,
        range: &Range<usize>,
        order: KeyOrder,
        can_sort: &dyn Fn(&Arc<dyn Device>) -> bool,
    ) -> Result<bool> {
        let _ = (range, order, can_sort);
        Ok(false)
    }
}

/// Elements of another store, beside those that an operation works on.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub(crate) store: &'a dyn OperandStore,
    /// The place of the element beside the first.
    pub(crate) start: usize,
    /// The same store, if its elements are changed as well.
    pub(crate) target: Option<&'a dyn ResultStore>,
    /// Whether nobody else uses the store meanwhile.
    pub(crate) is_alone: bool,
}

impl<'a> Operand<'a> {
    /// Elements that are read.
    pub(crate) fn new(store: &'a dyn OperandStore, start: usize) -> Self {
        Self { store, start, target: None, is_alone: false }
    }

    /// Elements that are changed.
    pub(crate) fn changed(store: &'a dyn ResultStore, start: usize) -> Self {
        Self { store, start, target: Some(store), is_alone: false }
    }

    /// The same of a store that nobody else uses meanwhile.
    pub(crate) fn alone(self) -> Self {
        Self { is_alone: true, ..self }
    }

    /// The same from a later element on.
    pub(crate) fn further(&self, by: usize) -> Self {
        Self { start: self.start + by, ..*self }
    }

    /// Reads elements as bytes, counted from the first.
    pub(crate) fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        self.store.read_bytes(self.start + range.start..self.start + range.end, into)
    }

    /// Copies elements, counted from the first, to memory of a device past the host, if there is a way.
    pub(crate) fn fetch_to(
        &self,
        range: &Range<usize>,
        device: &Arc<dyn Device>,
        to: DeviceSpan<'_>,
    ) -> Result<bool> {
        self.store.fetch_to(&(self.start + range.start..self.start + range.end), device, to)
    }

    pub(crate) fn stride(&self) -> usize {
        self.store.stride()
    }
}

impl std::fmt::Debug for Operand<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operand").field("start", &self.start).finish_non_exhaustive()
    }
}

/// Carries out a change in parts, so that what others have beside a part fits into memory; `work` is given
/// it. Others come with their number among the columns of a run. They are read before anything is held, and
/// written back when nothing is any more: that may wait for anything.
pub(crate) fn in_parts(
    change: &dyn Change,
    others: &[(usize, Operand<'_>)],
    range: &Range<usize>,
    page_len: usize,
    target: &dyn OperandStore,
    mut work: impl FnMut(&Range<usize>, &[ReadOperand<'_>]) -> Outcome,
) -> Result<()> {
    let (stride, devices) = (target.stride(), target.devices());
    let devices: Vec<_> = devices.into_iter().map(|(device, _)| Arc::clone(device)).collect();
    let longest =
        others.iter().map(|(_, other)| other.stride()).fold(stride.max(change.part_stride()), usize::max);
    let is_whole = others.is_empty() && change.part_stride() == 0;
    let pages = (STAGED_BYTES / (longest * page_len).max(1)).max(1);
    let mut outcome = Outcome::default();
    let mut rest = range.clone();
    while outcome.failure.is_none() && !rest.is_empty() {
        // Whole pages, but at the ends.
        let end = ((rest.start / page_len).saturating_add(pages)).saturating_mul(page_len);
        let part = rest.start..if is_whole { rest.end } else { end.min(rest.end) };
        rest.start = part.end;
        let read = others.iter().map(|other| ReadOperand::new(other, &part, range.start, &devices));
        let read = read.collect::<Result<Vec<_>>>();
        match change.begin_part(&part).and(read) {
            Ok(read) => outcome.add(part_done(work(&part, &read), part, &read)),
            Err(error) => outcome.failure = Some(error),
        }
    }
    outcome.into_result()
}

/// What has become of a part, once others are written back.
fn part_done(done: Outcome, part: Range<usize>, read: &[ReadOperand<'_>]) -> Outcome {
    if done.failure.is_some() {
        // What belongs to it elsewhere was not written.
        let others_miss = read.iter().any(|other| other.is_changed());
        let Outcome { mut written, mut unspecified, failure } = done;
        if others_miss {
            unspecified.append(&mut written);
        }
        return Outcome { written, unspecified, failure };
    }
    match read.iter().try_for_each(ReadOperand::write_back) {
        Ok(()) => Outcome { written: vec![part], ..done },
        Err(error) => Outcome { unspecified: vec![part], failure: Some(error), ..Outcome::default() },
    }
}

/// Why the work on a run was not started.
pub(crate) struct RefusedRun {
    pub error: Error,
    /// Whether a part of it may be carried out all the same.
    pub begun: bool,
}

impl From<Error> for RefusedRun {
    fn from(error: Error) -> Self {
        Self { error, begun: false }
    }
}

impl From<backend_api::Error> for RefusedRun {
    fn from(error: backend_api::Error) -> Self {
        Error::from(error).into()
    }
}

/// A change of the elements of a run, under way.
pub(crate) struct Writing {
    /// Of the copies and of the kernel: each may fail by itself.
    pub tickets: Vec<Ticket>,
    /// Kept until the device is done.
    staged: Vec<StagedOperand>,
    report: Option<(PinnedPiece, usize)>,
    geometry: Geometry,
    /// The parts of the run's pages, if something is to be taken back.
    parts: Vec<(usize, usize, usize)>,
}

impl Writing {
    /// Puts what was read beside a run into memory that a device can copy from. To be done, as
    /// [`prepare`](Self::prepare), while nothing is held.
    pub fn stage(lane: &impl Lane, run: Run<'_>, read: &[ReadOperand<'_>]) -> Result<Vec<StagedOperand>> {
        read.iter().map(|operand| operand.stage(lane, run)).collect()
    }

    /// Starts it. Those that were staged stand among the run's own columns by their numbers; the run may be
    /// the first part of what they were staged for.
    pub fn new(
        lane: &impl Lane,
        change: &dyn Change,
        run: Run<'_>,
        staged: Vec<StagedOperand>,
    ) -> Result<Self, RefusedRun> {
        let report = report(lane, change, run.count())?;
        let columns = columns(run, &staged);
        let (mut tickets, mut begun) = (Vec::with_capacity(staged.len() + 1), false);
        let submitted = lane.submit(RunAccess::Change, &mut |queue| {
            for staged in &staged {
                tickets.extend(staged.begin(queue, run, lane.counters())?);
            }
            begun = true;
            let run = Run { columns: &columns, geometry: run.geometry };
            let mut last = change.submit(queue, run, report.as_ref().map(|(report, _)| report.at(0)))?;
            for staged in staged.iter().filter(|staged| staged.is_changed) {
                tickets.push(last);
                let bytes = run.count() as u64 * staged.stride;
                last = staged.download(queue, bytes)?;
                lane.counters().bytes_from_device.add(bytes);
            }
            Ok(last)
        });
        match submitted {
            Ok(ticket) => {
                let bytes: u64 = run.columns.iter().map(|of| of.count * of.stride).sum();
                lane.counters().bytes_in_place.add(2 * bytes);
                recording::sized(ticket, 1, || 2 * bytes);
                tickets.push(ticket);
            }
            Err(error) => {
                let begun = begun && !changes_nothing(&error);
                return Err(RefusedRun { error: error.into(), begun });
            }
        }
        let is_changed = staged.iter().any(|staged| staged.is_changed);
        let parts = if is_changed { run.parts().collect() } else { Vec::new() };
        Ok(Self { tickets, staged, report, geometry: run.geometry, parts })
    }

    /// Has the device translate what the change of a run needs, while nothing is held.
    pub fn prepare(lane: &impl Lane, change: &dyn Change, run: Run<'_>, staged: &[StagedOperand]) {
        Self::translate(lane, change, &columns(run, staged), run.geometry);
    }

    /// As [`prepare`](Self::prepare), before anything is staged beside runs like this one.
    pub fn prepare_like(lane: &impl Lane, change: &dyn Change, like: Run<'_>, read: &[ReadOperand<'_>]) {
        let staged = read.iter().map(|operand| (operand.column, operand.stride));
        Self::translate(lane, change, &columns_like(like, 256, staged), like.geometry);
    }

    /// Asks a device whether it can change runs like this one, which has no elements, with others beside.
    pub fn check(
        lane: &impl Lane,
        change: &dyn Change,
        like: Run<'_>,
        others: &[(usize, Operand<'_>)],
    ) -> Result<()> {
        let staged = others.iter().map(|(column, other)| (*column, other.stride()));
        let (columns, report) = (columns_like(like, 0, staged), report(lane, change, 0)?);
        let run = Run { columns: &columns, geometry: like.geometry };
        let ticket = lane.submit(RunAccess::Read, &mut |queue| {
            change.submit(queue, run, report.as_ref().map(|(report, _)| report.at(0)))
        })?;
        lane.wait(ticket)?;
        report.into_iter().for_each(|(report, _)| lane.keep(report));
        Ok(())
    }

    fn translate(lane: &impl Lane, change: &dyn Change, columns: &[Elements<'_>], geometry: Geometry) {
        if let Ok(report) = report(lane, change, 0) {
            let place = report.as_ref().map(|(report, _)| report.at(0));
            change.prepare(&**lane.device(), Run { columns, geometry }, place);
            report.into_iter().for_each(|(report, _)| lane.keep(report));
        }
    }

    /// Waits until nothing of it is under way any more.
    pub fn wait(
        self,
        lane: &impl Lane,
        change: &dyn Change,
        read: &[ReadOperand<'_>],
    ) -> backend_api::Result<()> {
        let waits = self.tickets.iter().map(|ticket| lane.wait(*ticket));
        waits.reduce(backend_api::Result::and).unwrap_or(Ok(()))?;
        self.end(lane, change, read);
        Ok(())
    }

    /// Takes in what the device has given, and gives memory back, when the device is done.
    pub fn end(self, lane: &impl Lane, change: &dyn Change, read: &[ReadOperand<'_>]) {
        for staged in self.staged {
            let own = read.iter().find(|operand| operand.column == staged.column);
            if let Some(operand) = own.filter(|_| staged.is_changed) {
                operand.unstage(&staged, &self.parts);
            }
            staged.end(lane);
        }
        if let Some((report, bytes)) = self.report {
            let mut words = vec![0_u64; bytes / 8];
            report.read(0, bytemuck::cast_slice_mut(&mut words));
            change.take_report(self.geometry, &words);
            lane.keep(report);
        }
    }
}

/// The columns of a run without elements, and others that are to be staged beside it: number and stride.
/// Those begin so many bytes apart: 256, and they are as well aligned as memory of its own.
fn columns_like<'a>(
    like: Run<'a>,
    apart: u64,
    staged: impl ExactSizeIterator<Item = (usize, usize)>,
) -> Vec<Elements<'a>> {
    let start = like.columns[0].start;
    let staged = staged.enumerate().map(|(number, (column, stride))| {
        let start = start.plus(apart * (number as u64 + 1));
        (column, Elements { start, count: like.count() as u64, stride: stride as u64 })
    });
    merged_columns(like.columns, staged)
}

/// Memory for what a device writes about a run of so many elements, and how many bytes that is.
fn report(lane: &impl Lane, change: &dyn Change, count: usize) -> Result<Option<(PinnedPiece, usize)>> {
    let bytes = change.report_bytes(count);
    (bytes > 0).then(|| Ok((lane.buffer(bytes)?, bytes))).transpose()
}

/// The columns of a run, and those that were staged beside it.
fn columns<'a>(run: Run<'a>, staged: &'a [StagedOperand]) -> Vec<Elements<'a>> {
    let staged = staged.iter().map(|staged| (staged.column, staged.elements(run)));
    merged_columns(run.columns, staged)
}

/// Columns in the order of their numbers: those that say theirs, in ascending order, and the others.
fn merged_columns<'a>(
    own: &[Elements<'a>],
    staged: impl ExactSizeIterator<Item = (usize, Elements<'a>)>,
) -> Vec<Elements<'a>> {
    let all = own.len() + staged.len();
    let (mut own, mut staged): (_, Peekable<_>) = (own.iter(), staged.peekable());
    let column = |number| match staged.next_if(|(own, _)| *own == number) {
        Some((_, elements)) => Some(elements),
        None => own.next().copied(),
    };
    (0..all).filter_map(column).collect()
}

/// What has become of the elements so far, as ranges of indices.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub written: Vec<Range<usize>>,
    pub unspecified: Vec<Range<usize>>,
    /// The first trouble.
    pub failure: Option<Error>,
}

impl Outcome {
    /// Takes in what has become of other elements.
    pub fn add(&mut self, other: Self) {
        self.written.extend(other.written);
        self.unspecified.extend(other.unspecified);
        self.failure = self.failure.take().or(other.failure);
    }

    /// # Errors
    /// [`Interrupted`](ErrorKind::Interrupted) if some were written or are unspecified; else the trouble
    /// itself.
    pub fn into_result(self) -> Result<()> {
        let Some(failure) = self.failure else { return Ok(()) };
        if self.written.is_empty() && self.unspecified.is_empty() {
            return Err(failure);
        }
        let cause = match failure.kind() {
            ErrorKind::Device(cause) => cause.clone(),
            other => backend_api::Error::new(backend_api::ErrorKind::KernelFailed, "compute")
                .with_detail(other.to_string()),
        };
        let (written, unspecified) = (merged(self.written), merged(self.unspecified));
        Err(ErrorKind::Interrupted { written, unspecified, cause }.into())
    }
}

/// Whether an error of a submission says that nothing was changed.
fn changes_nothing(error: &backend_api::Error) -> bool {
    use backend_api::ErrorKind::{InvalidArgument, UnknownHandle, Unsupported};
    matches!(error.kind(), InvalidArgument | UnknownHandle | Unsupported)
}

/// Ranges in ascending order, those that touch as one.
fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut all: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => all.push(range),
        }
    }
    all
}
