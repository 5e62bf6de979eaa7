//! Changes of elements: the copies of operands to devices, the submissions, and the resulting state of the
//! elements.

use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::{Device, DeviceSpan, Elements, HostSpan, Queue, Ticket};

use super::operand_staging::{ReadOperand, StagedOperand};
use super::{Examination, Lane, Run, RunAccess};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::recording;
use crate::base::stats::Counters;
use crate::engine::channel::PinnedPiece;
use crate::engine::pager::Pager;
use crate::ops::sort::{ChannelShare, DeviceOutcome, KeyOrder, Striping};

/// The number of bytes of each column that are staged at a time.
pub(crate) const STAGED_BYTES: usize = 16 << 20;

/// A change of elements: an assignment, or a kernel of the program.
pub trait Change: Sync {
    /// Returns true if all bytes of each element of the first column are written without reading them.
    fn overwrites(&self, element_bytes: usize) -> bool;

    /// Returns true if some devices may be unable to make the change. All devices then check the change
    /// before any begins.
    fn is_for_some_devices(&self) -> bool {
        false
    }

    /// Number of elements in a group. Groups are counted from the start of the changed range. A run consists
    /// of whole groups; only the last group of the range may be shorter.
    fn group_len(&self) -> usize {
        1
    }

    /// Arrays that the change also reads in place, on the device of every run, each with the range of pages.
    fn striped(&self) -> Vec<(&Pager, Range<u64>)> {
        Vec::new()
    }

    /// The number of bytes that a device reports about a run of `count` elements.
    fn report_bytes(&self, count: usize) -> usize {
        let _ = count;
        0
    }

    /// Returns true if results are rounded, and therefore depend on the division into runs.
    fn is_rounded(&self) -> bool {
        false
    }

    /// The greatest size of a run in bytes of elements; a run has at least one page.
    fn run_bytes(&self) -> usize {
        usize::MAX
    }

    /// Bytes that [`begin_part`](Self::begin_part) copies to devices for each element of a part.
    fn part_stride(&self) -> usize {
        0
    }

    /// Copies additional data for the elements of a range to devices, before the change of this part. The
    /// caller holds no pages, and no run is in flight.
    fn begin_part(&self, part: &Range<usize>) -> Result<()> {
        let _ = part;
        Ok(())
    }

    /// Lets the device translate the kernel for such runs in advance, if it is new there. Errors are ignored
    /// here, because the submission returns them.
    fn prepare(&self, device: &dyn Device, run: Run<'_>, report: Option<HostSpan<'_>>);

    /// Submits the change of a run. It writes the run's first column, and some of the other columns.
    fn submit(
        &self,
        queue: &Queue<dyn Device>,
        run: Run<'_>,
        report: Option<HostSpan<'_>>,
    ) -> backend_api::Result<Ticket>;

    /// Receives a device's report about a run, as words.
    fn take_report(&self, geometry: Geometry, report: &[u64]) {
        let _ = (geometry, report);
    }
}

/// A readable store with elements of any type.
pub trait OperandStore: Sync {
    /// The size of an element in bytes.
    fn stride(&self) -> usize;
    /// Reads elements as bytes. The call may wait for any other thread, so the caller must hold no pages.
    fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()>;
    /// Copies elements directly to memory of a device, if a link exists. Returns false if none does. The
    /// rules of [`read_bytes`](Self::read_bytes) apply.
    fn fetch_to(&self, range: &Range<usize>, device: &Arc<dyn Device>, to: DeviceSpan<'_>) -> Result<bool> {
        let _ = (range, device, to);
        Ok(false)
    }
    /// The pager of the store, if its pages have home slots on devices.
    fn pager(&self) -> Option<&Pager> {
        None
    }
    /// The number of channels over which the store's pages are striped.
    fn channel_count(&self) -> usize {
        1
    }
    /// Returns true if the store can divide a range into runs that cut no group.
    fn has_whole_groups(&self, group_len: usize, range: &Range<usize>) -> bool {
        let _ = (group_len, range);
        true
    }
    /// The devices that store a part of the elements, each once, with the counters of copies to each.
    fn devices(&self) -> Vec<(&Arc<dyn Device>, &Counters)>;
    /// Runs a kernel that changes no elements over a range, and the corresponding elements of other stores.
    fn examine(&self, others: &[Operand<'_>], range: &Range<usize>, by: &Examination<'_>) -> Result<()>;
}

/// Work that changes the elements of the shares of all channels. No share is empty. The work calls its last
/// argument before the first write.
pub type ShareWork<'a> = &'a mut dyn FnMut(&[ChannelShare<'_>], Striping, &mut dyn FnMut()) -> DeviceOutcome;

/// A writable store.
pub trait ResultStore: OperandStore {
    /// Writes elements as bytes. The rules of [`read_bytes`](OperandStore::read_bytes) apply.
    fn write_bytes(&self, start: usize, from: &[u8]) -> Result<()>;

    /// Changes the elements of a range, and possibly the corresponding elements of other stores.
    fn change(&self, others: &[Operand<'_>], range: &Range<usize>, change: &dyn Change) -> Result<()>;

    /// Runs work in the memory of the devices with the elements of a range, and with as many elements of
    /// another store. Returns false and changes nothing if a device cannot do the work, or the devices
    /// cannot access each other.
    fn change_on_devices(
        &self,
        range: &Range<usize>,
        companion: Option<(Operand<'_>, usize)>,
        can_do: &dyn Fn(&Arc<dyn Device>) -> bool,
        work: ShareWork<'_>,
    ) -> Result<bool> {
        let _ = (range, companion, can_do, work);
        Ok(false)
    }

    /// Sorts the elements of a range, which are numbers homed in RAM, through devices if that is possible
    /// and faster. Otherwise returns false, and leaves the elements in some order.
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

/// Elements of another store, one for each element of the range that an operation changes.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub(crate) store: &'a dyn OperandStore,
    /// The place of the element that corresponds to the first.
    pub(crate) start: usize,
    /// The same store, if its elements are changed as well.
    pub(crate) target: Option<&'a dyn ResultStore>,
    /// True if no other thread uses the store meanwhile.
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

    /// Marks the store as exclusive: no other thread uses it meanwhile.
    pub(crate) fn alone(self) -> Self {
        Self { is_alone: true, ..self }
    }

    /// Skips the first `by` elements.
    pub(crate) fn further(&self, by: usize) -> Self {
        Self { start: self.start + by, ..*self }
    }

    /// Reads elements as bytes, counted from the first.
    pub(crate) fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        self.store.read_bytes(self.start + range.start..self.start + range.end, into)
    }

    /// Copies elements, counted from the first, directly to memory of a device, if a link exists.
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

/// Returns true if no group of elements has parts in two pages, or if one page has the whole range.
pub(crate) fn are_groups_within_pages(group_len: usize, page_len: usize, range: &Range<usize>) -> bool {
    let is_in_one = || range.start / page_len == range.end.saturating_sub(1) / page_len;
    group_len <= 1
        || page_len.is_multiple_of(group_len) && range.start.is_multiple_of(group_len)
        || is_in_one()
}

/// Makes a change in parts, so that the other stores' elements of a part fit into memory. `work` receives
/// each part. `others` has their numbers among the columns of a run. They are read before any page is
/// held, and written back after all pages are released, because both may wait for other threads.
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
        // Each part consists of whole pages, except at the ends of the range.
        let end = ((rest.start / page_len).saturating_add(pages)).saturating_mul(page_len);
        // A part has whole groups, counted from the start of the range.
        let group_len = change.group_len();
        let end = (end - (end - range.start) % group_len).max(rest.start.saturating_add(group_len));
        let part = rest.start..if is_whole { rest.end } else { end.min(rest.end) };
        rest.start = part.end;
        let read = others.iter().map(|other| {
            // With several channels each run has its own copy, and the copies would have to be merged again.
            let is_fetched = other.1.target.is_none() || target.channel_count() == 1;
            let devices = if is_fetched { &devices[..] } else { &[] };
            ReadOperand::new(other, &part, range.start, devices)
        });
        let read = read.collect::<Result<Vec<_>>>();
        match change.begin_part(&part).and(read) {
            Ok(read) => outcome.add(part_done(work(&part, &read), part, &read)),
            Err(error) => outcome.failure = Some(error),
        }
    }
    outcome.into_result()
}

/// The outcome of a part, after the other stores are written back.
fn part_done(done: Outcome, part: Range<usize>, read: &[ReadOperand<'_>]) -> Outcome {
    if done.failure.is_some() {
        // The corresponding elements of the other operands were not written.
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

/// The error of a run that was not started.
pub(crate) struct RefusedRun {
    pub error: Error,
    /// True if the device may have executed a part of the change.
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

/// A change of the elements of a run, in flight.
pub(crate) struct Writing {
    /// Tickets of the copies and of the kernel, each of which may fail independently.
    pub tickets: Vec<Ticket>,
    /// Staged elements, kept until the device is done.
    staged: Vec<StagedOperand>,
    report: Option<(PinnedPiece, usize)>,
    geometry: Geometry,
    /// The parts of the run's pages, if elements must be copied back.
    parts: Vec<(usize, usize, usize)>,
}

impl Writing {
    /// Copies operands into memory that a device can access. Like [`prepare`](Self::prepare), it must run
    /// while no page is held.
    pub fn stage(lane: &impl Lane, run: Run<'_>, read: &[ReadOperand<'_>]) -> Result<Vec<StagedOperand>> {
        read.iter().map(|operand| operand.stage(lane, run)).collect()
    }

    /// Submits the change. Staged operands become columns of the run. The operands may be staged for a longer
    /// run that begins at the same element.
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
            for staged in staged.iter().filter(|staged| staged.comes_back()) {
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
        let is_changed = staged.iter().any(StagedOperand::comes_back);
        let parts = if is_changed { run.parts().collect() } else { Vec::new() };
        Ok(Self { tickets, staged, report, geometry: run.geometry, parts })
    }

    /// Asks the device to translate the kernel of the change in advance, while the thread holds no page.
    pub fn prepare(lane: &impl Lane, change: &dyn Change, run: Run<'_>, staged: &[StagedOperand]) {
        Self::translate(lane, change, &columns(run, staged), run.geometry);
    }

    /// Like [`prepare`](Self::prepare), before operands are staged for such runs.
    pub fn prepare_like(lane: &impl Lane, change: &dyn Change, like: Run<'_>, read: &[ReadOperand<'_>]) {
        let staged = read.iter().map(|operand| (operand.column, operand.stride));
        Self::translate(lane, change, &columns_like(like, 256, staged), like.geometry);
    }

    /// Checks that a device supports this change with these operands. To do so, submits a run without
    /// elements.
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

    /// Waits until all submitted work of the change is done.
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

    /// Reads the report, copies changed operands back, and releases memory. The work on the device must be
    /// over.
    pub fn end(self, lane: &impl Lane, change: &dyn Change, read: &[ReadOperand<'_>]) {
        for staged in self.staged {
            let own = read.iter().find(|operand| operand.column == staged.column);
            if let Some(operand) = own.filter(|_| staged.comes_back()) {
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

/// The columns of an empty run, and of operands to be staged: number and stride. Staged columns begin
/// `apart` bytes after one another. With 256, they are aligned like separate allocations.
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

/// Allocates memory for a device's report about a run of `count` elements. Returns it with its length in
/// bytes.
fn report(lane: &impl Lane, change: &dyn Change, count: usize) -> Result<Option<(PinnedPiece, usize)>> {
    let bytes = change.report_bytes(count);
    (bytes > 0).then(|| Ok((lane.buffer(bytes)?, bytes))).transpose()
}

/// The columns of a run, and its staged columns.
fn columns<'a>(run: Run<'a>, staged: &'a [StagedOperand]) -> Vec<Elements<'a>> {
    let staged = staged.iter().map(|staged| (staged.column, staged.elements(run)));
    merged_columns(run.columns, staged)
}

/// Merges columns: staged ones take their own numbers, which ascend, and the others fill the rest.
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

/// The state of the elements so far, as ranges of indices.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub written: Vec<Range<usize>>,
    pub unspecified: Vec<Range<usize>>,
    /// The first error of the operation.
    pub failure: Option<Error>,
}

impl Outcome {
    /// Merges the outcome of the work on other elements.
    pub fn add(&mut self, other: Self) {
        self.written.extend(other.written);
        self.unspecified.extend(other.unspecified);
        self.failure = self.failure.take().or(other.failure);
    }

    /// Returns the result of the operation.
    ///
    /// # Errors
    /// [`Interrupted`](ErrorKind::Interrupted) if the operation wrote some elements, or left them
    /// unspecified. Otherwise, and for [`KernelTime`](ErrorKind::KernelTime), the first error.
    pub fn into_result(self) -> Result<()> {
        let Some(failure) = self.failure else { return Ok(()) };
        let is_late = matches!(failure.kind(), ErrorKind::KernelTime { .. });
        if is_late || self.written.is_empty() && self.unspecified.is_empty() {
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

/// Returns true if an error of a submission means that no element was changed.
fn changes_nothing(error: &backend_api::Error) -> bool {
    use backend_api::ErrorKind::{InvalidArgument, UnknownHandle, Unsupported};
    matches!(error.kind(), InvalidArgument | UnknownHandle | Unsupported)
}

/// Sorts ranges, and merges adjacent ones.
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
