//! Writes: what is copied to devices for them, how they are started, and what becomes of the elements.

use std::ops::Range;

use backend_api::expr::Geometry;
use backend_api::{Commit, Compute, Device, DeviceBuffer, Elements, Queue, Ticket, Transfer};

use super::{Kernel, Lane, Run, RunAccess};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::engine::channel::PinnedPiece;
use crate::engine::pager::Pager;
use crate::ops::compute::Plan;

/// How many bytes of each column are copied at a time to where they are to be beside the others.
pub(super) const STAGED_BYTES: usize = 16 << 20;

/// A store whose elements are only read, of any type.
pub trait OperandStore: Sync {
    /// Bytes of an element.
    fn stride(&self) -> usize;
    /// Reads elements as bytes. The calling thread must not hold pages: it may wait for anything.
    fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()>;
    /// Where pages are homed on devices, if they are.
    fn pager(&self) -> Option<&Pager> {
        None
    }
}

/// Elements of another store, beside those that an operation works on.
pub struct Operand<'a> {
    pub(crate) store: &'a dyn OperandStore,
    /// The place of the element beside the first.
    pub(crate) start: usize,
}

impl Operand<'_> {
    /// The same from a later element on.
    pub(crate) fn further(&self, by: usize) -> Self {
        Self { store: self.store, start: self.start + by }
    }

    /// Reads elements as bytes, counted from the first.
    pub(crate) fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        self.store.read_bytes(self.start + range.start..self.start + range.end, into)
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

/// Elements of another store that were read for a part of an assignment.
#[derive(Debug)]
pub(crate) struct ReadOperand {
    /// The index of the element beside which the first one belongs.
    first: usize,
    stride: usize,
    bytes: Vec<u8>,
}

/// Such elements on their way to a device.
pub(crate) struct StagedOperand {
    memory: DeviceBuffer<dyn Device>,
    host: PinnedPiece,
    stride: u64,
}

impl ReadOperand {
    fn new(operand: &Operand<'_>, part: &Range<usize>, first: usize) -> Result<Self> {
        let stride = operand.stride();
        let mut bytes = zeroed_vec(part.len() * stride)?;
        operand.read_bytes(part.start - first..part.end - first, &mut bytes)?;
        Ok(Self { first: part.start, stride, bytes })
    }

    /// Takes memory for those that belong beside a run.
    fn stage(&self, lane: &impl Lane, run: Run<'_>) -> Result<StagedOperand> {
        let bytes = run.count() * self.stride;
        let memory = DeviceBuffer::new(lane.device(), bytes as u64, Commit::Lazy)?;
        let host = lane.buffer(bytes)?;
        for (number, index, len) in run.parts() {
            let from = (index - self.first) * self.stride;
            host.write(number * self.stride, &self.bytes[from..from + len * self.stride]);
        }
        Ok(StagedOperand { memory, host, stride: self.stride as u64 })
    }
}

/// Carries out an assignment in parts, so that what others have beside a part fits into memory; `work` is
/// given it. Others are read before anything is held: that may wait for anything.
pub(crate) fn in_parts(
    others: &[Operand<'_>],
    range: &Range<usize>,
    page_len: usize,
    stride: usize,
    mut work: impl FnMut(&Range<usize>, &[ReadOperand]) -> Outcome,
) -> Result<()> {
    let longest = others.iter().map(Operand::stride).fold(stride, usize::max);
    let pages = (STAGED_BYTES / (longest * page_len).max(1)).max(1);
    let mut outcome = Outcome::default();
    let mut rest = range.clone();
    while outcome.failure.is_none() && !rest.is_empty() {
        // Whole pages, but at the ends.
        let end = ((rest.start / page_len).saturating_add(pages)).saturating_mul(page_len);
        let part = rest.start..if others.is_empty() { rest.end } else { end.min(rest.end) };
        rest.start = part.end;
        let read = others.iter().map(|other| ReadOperand::new(other, &part, range.start));
        match read.collect::<Result<Vec<_>>>() {
            Ok(read) => {
                let done = work(&part, &read);
                let is_whole = done.failure.is_none();
                outcome.add(if is_whole { Outcome { written: vec![part], ..done } } else { done });
            }
            Err(error) => outcome.failure = Some(error),
        }
    }
    outcome.into_result()
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

/// An assignment to the elements of a run, under way.
pub(crate) struct Writing {
    /// Of the copies and of the kernel: each may fail by itself.
    pub tickets: Vec<Ticket>,
    /// Kept until the device is done.
    staged: Vec<StagedOperand>,
}

impl Writing {
    /// Puts what was read beside a run into memory that a device can copy from. To be done, as
    /// [`prepare`](Self::prepare), while nothing is held.
    pub fn stage(lane: &impl Lane, run: Run<'_>, read: &[ReadOperand]) -> Result<Vec<StagedOperand>> {
        read.iter().map(|operand| operand.stage(lane, run)).collect()
    }

    /// Starts it. The run's own columns come first, then those that were staged, of which the run may be the
    /// first part.
    pub fn new(
        lane: &impl Lane,
        plan: &Plan,
        run: Run<'_>,
        staged: Vec<StagedOperand>,
    ) -> Result<Self, RefusedRun> {
        let columns = columns(run, &staged);
        let (mut tickets, mut begun) = (Vec::with_capacity(staged.len() + 1), false);
        let submitted = lane.submit(RunAccess::Change, &mut |queue| {
            for staged in &staged {
                let bytes = run.count() as u64 * staged.stride;
                tickets.push(staged.upload(queue, bytes)?);
                lane.counters().bytes_to_device.add(bytes);
            }
            begun = true;
            queue.compute(&plan.compute(Run { columns: &columns, geometry: run.geometry }))
        });
        match submitted {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => {
                let begun = begun && !changes_nothing(&error);
                return Err(RefusedRun { error: error.into(), begun });
            }
        }
        Ok(Self { tickets, staged })
    }

    /// Has the device translate what the assignment to a run needs, while nothing is held.
    pub fn prepare(lane: &impl Lane, plan: &Plan, run: Run<'_>, staged: &[StagedOperand]) {
        Self::translate(lane, plan, &columns(run, staged), run.geometry);
    }

    /// As [`prepare`](Self::prepare), before anything is staged beside runs like this one.
    pub fn prepare_like(lane: &impl Lane, plan: &Plan, like: Run<'_>, read: &[ReadOperand]) {
        let mut columns = like.columns.to_vec();
        let start = like.columns[0].start;
        columns.extend((1..).zip(read).map(|(number, operand): (u64, _)| Elements {
            // As well aligned as memory of its own.
            start: start.plus(256 * number),
            count: like.count() as u64,
            stride: operand.stride as u64,
        }));
        Self::translate(lane, plan, &columns, like.geometry);
    }

    fn translate(lane: &impl Lane, plan: &Plan, columns: &[Elements<'_>], geometry: Geometry) {
        let compute: Compute<'_> = plan.compute(Run { columns, geometry });
        Kernel::Compute(compute).prepare(&**lane.device());
    }

    /// Waits until nothing of it is under way any more.
    pub fn wait(self, lane: &impl Lane) -> backend_api::Result<()> {
        let waits = self.tickets.iter().map(|ticket| lane.wait(*ticket));
        waits.reduce(backend_api::Result::and).unwrap_or(Ok(()))?;
        self.end(lane);
        Ok(())
    }

    /// Gives memory back when the device is done.
    pub fn end(self, lane: &impl Lane) {
        self.staged.into_iter().for_each(|staged| lane.keep(staged.host));
    }
}

/// The columns of a run, then those that were staged beside it.
fn columns<'a>(run: Run<'a>, staged: &'a [StagedOperand]) -> Vec<Elements<'a>> {
    let mut columns = run.columns.to_vec();
    columns.extend(staged.iter().map(|staged| Elements {
        start: staged.memory.at(0),
        count: run.count() as u64,
        stride: staged.stride,
    }));
    columns
}

impl StagedOperand {
    fn upload(&self, queue: &Queue<dyn Device>, bytes: u64) -> backend_api::Result<Ticket> {
        let (from, to) = (self.host.at(0), self.memory.at(0));
        queue.submit(&[Transfer::Upload { from, to, bytes }])
    }
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
