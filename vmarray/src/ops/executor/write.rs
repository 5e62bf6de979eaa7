//! Execution of a change (an assignment or a kernel) on runs (contiguous elements on a device): copies
//! operands to the device, submits the change, and records the elements that a failure leaves unspecified.

use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::{Device, Elements, Queue, Ticket};

use super::change::{Change, Operand, OperandStore};
use super::in_ram::WorkQueue;
use super::operand_staging::{ReadOperand, StagedOperand};
use super::run::{Lane, Run, RunAccess};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::recording;
use crate::engine::channel::PinnedPiece;

/// The number of bytes of each column (operand) that are staged at a time.
pub(crate) const STAGED_BYTES: usize = 16 << 20;
/// The same for changes of files, which are read and written no faster by longer parts.
const FILE_STAGED_BYTES: usize = 2 << 20;

/// Makes a change part by part, because the operands of a part must fit into memory. Calls `work` for each
/// part. `others` are the operands with their column numbers. They are read before any page is held, and
/// written back after all pages are released, because both may wait for other threads.
pub(crate) fn in_parts(
    change: &dyn Change,
    others: &[(usize, Operand<'_>)],
    range: &Range<usize>,
    page_len: usize,
    target: &dyn OperandStore,
    work: &mut dyn FnMut(&Range<usize>, &[ReadOperand<'_>]) -> WriteOutcome,
) -> Result<()> {
    let (stride, devices) = (target.stride(), target.devices());
    let devices: Vec<_> = devices.into_iter().map(|(device, _)| Arc::clone(device)).collect();
    let longest =
        others.iter().map(|(_, other)| other.stride()).fold(stride.max(change.part_stride()), usize::max);
    let is_whole = others.is_empty() && change.part_stride() == 0;
    let staged = if target.is_in_files() { FILE_STAGED_BYTES } else { STAGED_BYTES };
    let pages = (staged / (longest * page_len).max(1)).max(1);
    let mut outcome = WriteOutcome::default();
    let mut rest = range.clone();
    while outcome.failure.is_none() && !rest.is_empty() {
        // A part consists of whole pages (except at both ends of the range), because a page that is
        // overwritten as a whole need not be read.
        let end = ((rest.start / page_len).saturating_add(pages)).saturating_mul(page_len);
        // A part also consists of whole work-groups, counted from the start of the range.
        let group_len = change.group_len();
        let end = (end - (end - range.start) % group_len).max(rest.start.saturating_add(group_len));
        let part = rest.start..if is_whole { rest.end } else { end.min(rest.end) };
        rest.start = part.end;
        let read = others.iter().map(|other| {
            // A changed operand gets a device copy of the whole part only if there is one channel (share of a
            // device). With several channels, each channel would change another copy, and the copies would
            // have to be merged.
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

/// Writes the operands of a part back, and returns the outcome of the part.
fn part_done(done: WriteOutcome, part: Range<usize>, read: &[ReadOperand<'_>]) -> WriteOutcome {
    if done.failure.is_some() {
        // After a failure, changed operands are not written back. Written ranges then count as unspecified,
        // because the operands lack the results of these ranges.
        let others_miss = read.iter().any(|other| other.is_changed());
        let WriteOutcome { mut written, mut unspecified, failure } = done;
        if others_miss {
            unspecified.append(&mut written);
        }
        return WriteOutcome { written, unspecified, failure };
    }
    match read.iter().try_for_each(ReadOperand::write_back) {
        Ok(()) => WriteOutcome { written: vec![part], ..done },
        Err(error) => {
            WriteOutcome { unspecified: vec![part], failure: Some(error), ..WriteOutcome::default() }
        }
    }
}

/// An error because of which a run was not completed.
pub(crate) struct RefusedRun {
    pub error: Error,
    /// True if the device may have executed a part of the change before the error.
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

/// A change of a run that a device is processing.
pub(crate) struct Writing {
    /// Tickets of the submitted copies and of the kernel. Each submission may fail independently.
    pub tickets: Vec<Ticket>,
    /// Staged operands, kept until the device has finished.
    staged: Vec<StagedOperand>,
    report: Option<(PinnedPiece, usize)>,
    geometry: Geometry,
    /// The parts of the run's pages, needed only if elements must be copied back.
    parts: Vec<(usize, usize, usize)>,
}

impl Writing {
    /// Stages the operands of a run (contiguous elements on a device): copies them to memory that the run's
    /// device can access. Call it while the thread has locked no page, because the copies may wait for pages.
    pub fn stage(lane: &dyn Lane, run: Run<'_>, read: &[ReadOperand<'_>]) -> Result<Vec<StagedOperand>> {
        read.iter().map(|operand| operand.stage(lane, run)).collect()
    }

    /// Submits a change (an assignment or a kernel) of a run (contiguous elements on a device), with the
    /// operands `staged` (copied to the device). They may be staged for a longer run with the same first
    /// element.
    pub fn new(
        lane: &dyn Lane,
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
            let mut last = submit(lane, change, queue, run, report.as_ref())?;
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

    /// Makes the device compile the kernel of `change` in advance, for runs like `run`. Call it while the
    /// thread has locked no page, because compilation is slow and other threads may wait for the page.
    pub fn prepare(lane: &dyn Lane, change: &dyn Change, run: Run<'_>, staged: &[StagedOperand]) {
        Self::translate(lane, change, &columns(run, staged), run.geometry);
    }

    /// Compiles like [`prepare`](Self::prepare), but before the operands `read` are copied to the device.
    /// `like` is a run (contiguous elements on a device) like the runs that follow.
    pub fn prepare_like(lane: &dyn Lane, change: &dyn Change, like: Run<'_>, read: &[ReadOperand<'_>]) {
        let staged = read.iter().map(|operand| (operand.column, operand.stride));
        Self::translate(lane, change, &columns_like(like, 256, staged), like.geometry);
    }

    /// Checks that the device supports the change with operands `others`, by a submission for no elements.
    pub fn check(
        lane: &dyn Lane,
        change: &dyn Change,
        like: Run<'_>,
        others: &[(usize, Operand<'_>)],
    ) -> Result<()> {
        let staged = others.iter().map(|(column, other)| (*column, other.stride()));
        let (columns, report) = (columns_like(like, 0, staged), report(lane, change, 0)?);
        let run = Run { columns: &columns, geometry: like.geometry };
        let ticket =
            lane.submit(RunAccess::Read, &mut |queue| submit(lane, change, queue, run, report.as_ref()))?;
        lane.wait(ticket)?;
        report.into_iter().for_each(|(report, _)| lane.keep(report));
        Ok(())
    }

    fn translate(lane: &dyn Lane, change: &dyn Change, columns: &[Elements<'_>], geometry: Geometry) {
        if let Ok(report) = report(lane, change, 0) {
            let place = report.as_ref().map(|(report, _)| report.at(0));
            change.prepare(&**lane.device(), Run { columns, geometry }, place);
            report.into_iter().for_each(|(report, _)| lane.keep(report));
        }
    }

    /// Waits until the device has finished the change, and then calls [`end`](Self::end) unless it failed.
    pub fn wait(
        self,
        lane: &dyn Lane,
        change: &dyn Change,
        read: &[ReadOperand<'_>],
    ) -> backend_api::Result<()> {
        let waits = self.tickets.iter().map(|ticket| lane.wait(*ticket));
        waits.reduce(backend_api::Result::and).unwrap_or(Ok(()))?;
        self.end(lane, change, read);
        Ok(())
    }

    /// Reads the report, copies changed operands to `read`, releases memory. The device must have finished.
    pub fn end(self, lane: &dyn Lane, change: &dyn Change, read: &[ReadOperand<'_>]) {
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

/// Returns the columns of an empty run, including `staged` columns (number and stride) that begin `apart`
/// bytes after one another. If `apart` is 256, they are aligned like separate allocations.
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

/// Allocates host memory for a device's report about a run of `count` elements. Returns the memory, and the
/// report's length in bytes.
fn report(lane: &dyn Lane, change: &dyn Change, count: usize) -> Result<Option<(PinnedPiece, usize)>> {
    let bytes = change.report_bytes(count);
    (bytes > 0).then(|| Ok((lane.buffer(bytes)?, bytes))).transpose()
}

/// Submits the change of a run, with the memory for its report.
fn submit(
    lane: &dyn Lane,
    change: &dyn Change,
    queue: &Queue<dyn Device>,
    run: Run<'_>,
    report: Option<&(PinnedPiece, usize)>,
) -> backend_api::Result<Ticket> {
    let report = report.map(|(report, _)| report);
    let work = WorkQueue::new(queue, Some(lane.counters()), report.map(PinnedPiece::memory));
    change.submit(work, run, report.map(|report| report.at(0)))
}

/// Returns the columns (operands) of a run, including its staged columns.
fn columns<'a>(run: Run<'a>, staged: &'a [StagedOperand]) -> Vec<Elements<'a>> {
    let staged = staged.iter().map(|staged| (staged.column, staged.elements(run)));
    merged_columns(run.columns, staged)
}

/// Merges two sets of operands: staged operands have given, ascending numbers; the others fill the gaps.
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

/// The elements that an operation has written or left unspecified so far, as ranges of indices.
#[derive(Debug, Default)]
pub(crate) struct WriteOutcome {
    pub written: Vec<Range<usize>>,
    pub unspecified: Vec<Range<usize>>,
    /// The first error of the operation.
    pub failure: Option<Error>,
}

impl WriteOutcome {
    /// Merges the outcome of another part of the operation into this outcome.
    pub fn add(&mut self, other: Self) {
        self.written.extend(other.written);
        self.unspecified.extend(other.unspecified);
        self.failure = self.failure.take().or(other.failure);
    }

    /// Converts the outcome to the result of the operation.
    ///
    /// # Errors
    /// [`Interrupted`](ErrorKind::Interrupted) if some elements were written or are unspecified. If there are
    /// no such elements, and for [`KernelTime`](ErrorKind::KernelTime), the first error of a device.
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

/// Sorts ranges, and joins adjacent ones.
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
