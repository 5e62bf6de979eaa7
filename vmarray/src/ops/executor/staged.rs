//! Staged rows: copies of elements that a device cannot process in place, because all elements, or the
//! elements of one work-group, are not contiguous on a device. The store copies them to one device piece by
//! piece, and copies changed pieces back.

use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::{Commit, Device, DeviceBuffer, Elements, HostBuffer, HostMemory, Queue, Ticket, Transfer};

use super::change::{Change, Operand, OperandStore, ResultStore};
use super::fetch::put_from;
use super::question::{AnyQuestion, AskedRun, Question, TakeAnswer};
use super::run::{Lane, Run, RunAccess};
use super::write::{RefusedRun, STAGED_BYTES, WriteOutcome, Writing};
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::base::stats::Counters;
use crate::engine::channel::PinnedPiece;

/// The alignment in bytes of each column of a piece.
const ALIGNMENT: usize = 256;

/// Rows (corresponding elements of several stores), and the channel whose device processes copies of them.
pub(crate) struct StagedRows<'a> {
    lane: &'a dyn Lane,
    /// The columns (operands) of the rows. Elements of the first column have the indices `range`.
    columns: Vec<Operand<'a>>,
    range: Range<usize>,
}

/// A channel with a queue of its own, for example for the copies and kernels of staged rows.
pub(crate) struct OwnQueue<'a> {
    of: &'a dyn Lane,
    queue: Queue<dyn Device>,
}

impl<'a> OwnQueue<'a> {
    pub(crate) fn new(of: &'a dyn Lane) -> Result<Self> {
        Ok(Self { of, queue: Queue::new(of.device())? })
    }
}

impl Lane for OwnQueue<'_> {
    fn device(&self) -> &Arc<dyn Device> {
        self.of.device()
    }

    fn counters(&self) -> &Counters {
        self.of.counters()
    }

    fn buffer(&self, bytes: usize) -> Result<PinnedPiece> {
        self.of.buffer(bytes)
    }

    fn keep(&self, memory: PinnedPiece) {
        self.of.keep(memory);
    }

    fn submit(
        &self,
        _: RunAccess,
        work: &mut dyn FnMut(&Queue<dyn Device>) -> backend_api::Result<Ticket>,
    ) -> backend_api::Result<Ticket> {
        work(&self.queue)
    }
}

/// Memory for one piece of staged rows, on the device and on the host.
struct StagedMemory<'m> {
    lane: OwnQueue<'m>,
    host: HostBuffer<dyn Device>,
    memory: DeviceBuffer<dyn Device>,
    /// Offset in bytes of each column (operand) in the memory.
    begins: Vec<usize>,
    /// The most rows in a piece.
    most: usize,
}

impl<'a> StagedRows<'a> {
    /// Creates rows that are read: a range of one store, and the corresponding elements of others.
    pub(crate) fn new(
        lane: &'a dyn Lane,
        first: &'a dyn OperandStore,
        others: &[Operand<'a>],
        range: &Range<usize>,
    ) -> Self {
        let mut columns = vec![Operand::new(first, range.start)];
        columns.extend(others);
        Self { lane, columns, range: range.clone() }
    }

    /// Creates rows whose first column (operand) is changed.
    pub(crate) fn changed(
        lane: &'a dyn Lane,
        first: &'a dyn ResultStore,
        others: &[Operand<'a>],
        range: &Range<usize>,
    ) -> Self {
        let mut columns = vec![Operand::changed(first, range.start)];
        columns.extend(others);
        Self { lane, columns, range: range.clone() }
    }

    /// Allocates memory for pieces of whole groups. Each row takes `more_bytes` in other memory.
    fn memory(&self, group_len: usize, more_bytes: usize) -> Result<StagedMemory<'a>> {
        let row_bytes: usize = self.columns.iter().map(Operand::stride).sum();
        let most = (STAGED_BYTES / row_bytes.max(more_bytes)).max(1);
        let most = (most / group_len).max(1).saturating_mul(group_len).min(self.range.len());
        let (mut begins, mut bytes) = (Vec::with_capacity(self.columns.len()), 0);
        for column in &self.columns {
            begins.push(bytes);
            bytes = (bytes + most * column.stride()).next_multiple_of(ALIGNMENT);
        }
        let device = self.lane.device();
        Ok(StagedMemory {
            lane: OwnQueue::new(self.lane)?,
            host: HostBuffer::new(device, bytes, HostMemory::Pageable)?,
            memory: DeviceBuffer::new(device, bytes as u64, Commit::Lazy)?,
            begins,
            most,
        })
    }

    /// Copies a piece of rows to the device.
    fn stage<'m>(&self, at: &'m StagedMemory<'_>, piece: &Range<usize>) -> Result<Vec<Elements<'m>>> {
        let from = piece.start - self.range.start..piece.end - self.range.start;
        let (mut columns, mut copies) = (Vec::new(), Vec::new());
        for (column, &begin) in self.columns.iter().zip(&at.begins) {
            let (to, stride) = (at.memory.at(begin as u64), column.stride());
            columns.push(Elements { start: to, count: piece.len() as u64, stride: stride as u64 });
            if column.fetch_to(&from, at.lane.device(), to)? {
                continue;
            }
            let mut values = zeroed_vec(piece.len() * stride)?;
            column.read_bytes(from.clone(), &mut values)?;
            at.host.write(begin, &values);
            let upload = Transfer::Upload { from: at.host.at(begin as u64), to, bytes: values.len() as u64 };
            copies.push(at.lane.queue.submit(&[upload])?);
            at.lane.counters().bytes_to_device.add(values.len() as u64);
            at.lane.counters().bytes_through_host.add(values.len() as u64);
        }
        // Wait for all copies even after a failure, because the memory is reused afterwards.
        let copied = copies.into_iter().map(|ticket| at.lane.wait(ticket));
        copied.reduce(backend_api::Result::and).unwrap_or(Ok(()))?;
        Ok(columns)
    }

    fn pieces(&self, most: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let Range { start, end } = self.range;
        (start..end).step_by(most).map(move |first| first..end.min(first + most))
    }

    /// Runs a question on one piece after the other, in ascending order.
    pub(crate) fn ask<Q: Question>(&self, question: &Q) -> Result<Q::Whole> {
        let mut part = Q::Part::default();
        self.ask_pieces(question, &mut |answer| question.take(&mut part, answer))?;
        Ok(question.whole(vec![part]))
    }

    /// Like [`ask`](Self::ask), with a function that receives the results.
    pub(crate) fn ask_pieces(&self, question: &dyn AnyQuestion, take: TakeAnswer<'_>) -> Result<()> {
        let at = self.memory(question.group_len(), 0)?;
        for piece in self.pieces(at.most) {
            let columns = self.stage(&at, &piece)?;
            let run = Run { columns: &columns, geometry: Geometry::plain(piece.start as u64) };
            let asked = AskedRun::new(&at.lane, question, run)?;
            at.lane.wait(asked.ticket)?;
            if asked.take(&at.lane, question, run, take)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Changes one piece after the other, in ascending order. If the change of a piece fails, its stored
    /// elements are unchanged.
    pub(crate) fn change(&self, change: &dyn Change) -> Result<()> {
        let at = self.memory(change.group_len(), change.part_stride())?;
        let mut outcome = WriteOutcome::default();
        for piece in self.pieces(at.most) {
            let done = change.begin_part(&piece).and_then(|()| self.change_piece(&at, &piece, change));
            match done.and_then(|()| self.put_back(&at, &piece, &mut outcome)) {
                Ok(()) => outcome.written.push(piece),
                Err(error) => {
                    outcome.failure = Some(error);
                    break;
                }
            }
        }
        outcome.into_result()
    }

    fn change_piece(&self, at: &StagedMemory<'_>, piece: &Range<usize>, change: &dyn Change) -> Result<()> {
        let columns = self.stage(at, piece)?;
        let run = Run { columns: &columns, geometry: Geometry::plain(piece.start as u64) };
        Writing::prepare(&at.lane, change, run, &[]);
        let writing =
            Writing::new(&at.lane, change, run, Vec::new()).map_err(|RefusedRun { error, .. }| error);
        // After an error, wait for the queue, because a part of the change may still be running.
        let rest = || at.lane.queue.submit(&[]).and_then(|ticket| at.lane.wait(ticket));
        let writing = writing.inspect_err(|_| drop(rest()))?;
        Ok(writing.wait(&at.lane, change, &[])?)
    }

    /// Copies the changed columns (operands) of a piece back to their stores.
    fn put_back(
        &self,
        at: &StagedMemory<'_>,
        piece: &Range<usize>,
        outcome: &mut WriteOutcome,
    ) -> Result<()> {
        let first = piece.start - self.range.start;
        for (column, &begin) in self.columns.iter().zip(&at.begins) {
            let Some(target) = column.target else { continue };
            let to = column.start + first..column.start + first + piece.len();
            let put =
                put_from(target, &to, at.lane.device(), at.memory.at(begin as u64)).and_then(|is_put| {
                    if is_put { Ok(()) } else { self.put_through_host(at, begin, target, &to) }
                });
            if let Err(error) = put {
                // The piece's elements are unspecified, because the device may have written some of them.
                outcome.unspecified.push(piece.clone());
                return Err(match error.kind() {
                    ErrorKind::Interrupted { cause, .. } => cause.clone().into(),
                    _ => error,
                });
            }
        }
        Ok(())
    }

    fn put_through_host(
        &self,
        at: &StagedMemory<'_>,
        begin: usize,
        target: &dyn ResultStore,
        to: &Range<usize>,
    ) -> Result<()> {
        let mut values = zeroed_vec(to.len() * target.stride())?;
        let (from, host, bytes) = (at.memory.at(begin as u64), at.host.at(begin as u64), values.len() as u64);
        at.lane.wait(at.lane.queue.submit(&[Transfer::Download { from, to: host, bytes }])?)?;
        at.host.read(begin, &mut values);
        at.lane.counters().bytes_from_device.add(bytes);
        at.lane.counters().bytes_through_host.add(bytes);
        target.write_bytes(to.start, &values)
    }
}
