//! The operations that a source runs on batches of pages: queries, assignments, fills, fetches.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use backend_api::Fill;

use super::batch::{BatchOperation, SlotRun, Started};
use super::channel::SourceChannel;
use super::core::SourceCore;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::executor::{
    AskedRun, Change, Lane as _, Operand, OperandStore as _, Question, ReadOperand, RunAccess, StagedRows,
    WriteOutcome, Writing, in_parts,
};

/// A query as an operation on batches.
struct AskRuns<'a, Q>(&'a Q);

impl<T: Element, Q: Question> BatchOperation<T> for AskRuns<'_, Q> {
    type Work = AskedRun;
    type Found = Q::Part;

    fn access(&self) -> RunAccess {
        RunAccess::Read
    }

    fn is_rounded(&self) -> bool {
        self.0.is_rounded()
    }

    fn prepare(&self, channel: &SourceChannel, like: &SlotRun) {
        AskedRun::prepare(channel, self.0, like.run());
    }

    fn start(&self, channel: &SourceChannel, run: &SlotRun) -> Started<AskedRun> {
        let asked = AskedRun::new(channel, self.0, run.run())?;
        Ok((vec![asked.ticket], asked))
    }

    fn finish(
        &self,
        channel: &SourceChannel,
        run: &SlotRun,
        asked: AskedRun,
        part: &mut Q::Part,
    ) -> Result<ControlFlow<()>> {
        asked.take(channel, self.0, run.run(), &mut |answer| self.0.take(part, answer))
    }
}

/// An assignment as an operation on batches: computes results from elements and operands, and writes them.
struct Assign<'a> {
    change: &'a dyn Change,
    access: RunAccess,
    read: &'a [ReadOperand<'a>],
}

impl<T: Element> BatchOperation<T> for Assign<'_> {
    type Work = Writing;
    type Found = WriteOutcome;

    fn access(&self) -> RunAccess {
        self.access
    }

    fn prepare(&self, channel: &SourceChannel, like: &SlotRun) {
        Writing::prepare_like(channel, self.change, like.run(), self.read);
    }

    fn start(&self, channel: &SourceChannel, run: &SlotRun) -> Started<Writing> {
        let staged = Writing::stage(channel, run.run(), self.read)?;
        let mut writing = Writing::new(channel, self.change, run.run(), staged)?;
        Ok((std::mem::take(&mut writing.tickets), writing))
    }

    fn finish(
        &self,
        channel: &SourceChannel,
        _: &SlotRun,
        writing: Writing,
        _: &mut WriteOutcome,
    ) -> Result<ControlFlow<()>> {
        writing.end(channel, self.change, self.read);
        Ok(ControlFlow::Continue(()))
    }

    fn changed(&self, elements: Range<usize>, done: bool, outcome: &mut WriteOutcome) {
        let list = if done { &mut outcome.written } else { &mut outcome.unspecified };
        list.push(elements);
    }
}

/// A fill with one value, as an operation on batches.
struct FillWith<T>(T);

impl<T: Element> BatchOperation<T> for FillWith<T> {
    type Work = ();
    type Found = ();

    fn access(&self) -> RunAccess {
        RunAccess::Overwrite
    }

    fn start(&self, channel: &SourceChannel, run: &SlotRun) -> Started<()> {
        let (to, bytes) = (run.elements.start, run.elements.count * run.elements.stride);
        let fill = Fill { to, bytes, pattern: bytemuck::bytes_of(&self.0) };
        Ok((vec![channel.kernels().submit(&fill)?], ()))
    }

    fn value(&self) -> Option<T> {
        Some(self.0)
    }
}

/// A fetch, as an operation on batches that only copies elements to the device.
struct Fetch;

impl<T: Element> BatchOperation<T> for Fetch {
    type Work = ();
    type Found = ();

    fn access(&self) -> RunAccess {
        RunAccess::Read
    }

    fn start(&self, _: &SourceChannel, _: &SlotRun) -> Started<()> {
        Ok((Vec::new(), ()))
    }
}

impl<T: Element> SourceCore<T> {
    pub(super) fn ask<Q: Question>(
        &self,
        others: &[Operand<'_>],
        range: &Range<usize>,
        question: &Q,
    ) -> Result<Q::Whole> {
        if range.is_empty() {
            return Ok(question.whole(Vec::new()));
        }
        if !others.is_empty() || !self.has_whole_groups(question.group_len(), range) {
            return StagedRows::new(&self.channels[0], self, others, range).ask(question);
        }
        let (parts, done) = self.operate(range, &AskRuns(question));
        done.map(|()| question.whole(parts))
    }

    /// Computes results from a range and from operands of the same length, and writes them to the range.
    pub(super) fn assign(
        &self,
        others: &[Operand<'_>],
        range: &Range<usize>,
        change: &dyn Change,
    ) -> Result<()> {
        if !self.has_whole_groups(change.group_len(), range) {
            return StagedRows::changed(&self.channels[0], self, others, range).change(change);
        }
        let others: Vec<_> = (1..).zip(others.iter().copied()).collect();
        if change.is_for_some_devices() {
            self.check(&others, range, change)?;
        }
        let is_overwritten = change.overwrites(size_of::<T>());
        let access = if is_overwritten { RunAccess::Overwrite } else { RunAccess::Change };
        in_parts(change, &others, range, self.cuts.page_len, self, &mut |part, read| {
            let (outcomes, done) = self.operate(part, &Assign { change, access, read });
            let mut all = WriteOutcome::default();
            outcomes.into_iter().for_each(|one| all.add(one));
            WriteOutcome { failure: done.err(), ..all }
        })
    }

    /// Checks that each device supports a change.
    fn check(
        &self,
        others: &[(usize, Operand<'_>)],
        range: &Range<usize>,
        change: &dyn Change,
    ) -> Result<()> {
        let mut asked: Vec<&SourceChannel> = Vec::new();
        for page in self.cuts.touched_pages(range).take(self.channels.len()) {
            let channel = self.channel(page);
            if asked.iter().all(|other| !Arc::ptr_eq(other.device(), channel.device())) {
                asked.push(channel);
            }
        }
        // With several devices, check support before any writes. A single device reports missing support
        // itself, before it writes.
        for channel in asked.iter().filter(|_| asked.len() > 1) {
            Writing::check(*channel, change, self.run_of(channel, 0, 0, 0).run(), others)?;
        }
        Ok(())
    }

    pub(super) fn fill(&self, range: &Range<usize>, value: T) -> Result<()> {
        if size_of::<T>() > Fill::PATTERN_MAX_BYTES {
            return self.fill_at_home(range, value);
        }
        self.operate(range, &FillWith(value)).1
    }

    pub(super) fn fetch(&self, range: &Range<usize>) -> Result<()> {
        self.operate(range, &Fetch).1
    }
}
