//! Questions about rows whose elements are not contiguous: they are copied to one device, a piece at a
//! time.

use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::{Commit, Device, DeviceBuffer, Elements, HostBuffer, HostMemory, Queue, Ticket, Transfer};

use super::write::STAGED_BYTES;
use super::{AskedRun, Lane, Operand, OperandStore, Question, Run, RunAccess};
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::stats::Counters;
use crate::engine::channel::PinnedPiece;

/// The alignment of each column of a piece.
const ALIGNMENT: usize = 256;

/// Rows for a question, and the channel whose device answers it.
pub(crate) struct StagedRows<'a, L> {
    lane: &'a L,
    /// The columns; the elements of the first are at the places of the range.
    columns: Vec<Operand<'a>>,
    range: Range<usize>,
}

/// A lane with an exclusive queue, for example for the copies and kernels of rows.
pub(crate) struct OwnQueue<'a, L> {
    of: &'a L,
    queue: Queue<dyn Device>,
}

impl<'a, L: Lane> OwnQueue<'a, L> {
    pub(crate) fn new(of: &'a L) -> Result<Self> {
        Ok(Self { of, queue: Queue::new(of.device())? })
    }
}

impl<L: Lane> Lane for OwnQueue<'_, L> {
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

impl<'a, L: Lane> StagedRows<'a, L> {
    /// The elements of a range of a store, together with the corresponding elements of other stores.
    pub(crate) fn new(
        lane: &'a L,
        first: &'a dyn OperandStore,
        others: &[Operand<'a>],
        range: &Range<usize>,
    ) -> Self {
        let mut columns = vec![Operand::new(first, range.start)];
        columns.extend(others);
        Self { lane, columns, range: range.clone() }
    }

    /// Asks about one piece after the other, in ascending order.
    pub(crate) fn ask<Q: Question>(&self, question: &Q) -> Result<Q::Whole> {
        let row_bytes: usize = self.columns.iter().map(Operand::stride).sum();
        let most = (STAGED_BYTES / row_bytes).clamp(1, self.range.len());
        let (mut begins, mut bytes) = (Vec::with_capacity(self.columns.len()), 0);
        for column in &self.columns {
            begins.push(bytes);
            bytes = (bytes + most * column.stride()).next_multiple_of(ALIGNMENT);
        }
        let device = self.lane.device();
        let lane = OwnQueue::new(self.lane)?;
        let host = HostBuffer::new(device, bytes, HostMemory::Pageable)?;
        let memory = DeviceBuffer::new(device, bytes as u64, Commit::Lazy)?;
        let mut part = Q::Part::default();
        for first in self.range.clone().step_by(most) {
            let count = most.min(self.range.end - first);
            let (mut columns, mut copies) = (Vec::new(), Vec::new());
            for (column, &begin) in self.columns.iter().zip(&begins) {
                let from = first - self.range.start..first - self.range.start + count;
                let to = memory.at(begin as u64);
                columns.push(Elements { start: to, count: count as u64, stride: column.stride() as u64 });
                if column.fetch_to(&from, device, to)? {
                    continue;
                }
                let mut values = zeroed_vec(count * column.stride())?;
                column.read_bytes(from, &mut values)?;
                host.write(begin, &values);
                let upload = Transfer::Upload { from: host.at(begin as u64), to, bytes: values.len() as u64 };
                copies.push(lane.queue.submit(&[upload])?);
                lane.counters().bytes_to_device.add(values.len() as u64);
                lane.counters().bytes_through_host.add(values.len() as u64);
            }
            // All copies end here, so that none is in flight when the memory is reused.
            let copied = copies.into_iter().map(|ticket| lane.wait(ticket));
            copied.reduce(backend_api::Result::and).unwrap_or(Ok(()))?;
            let run = Run { columns: &columns, geometry: Geometry::plain(first as u64) };
            let asked = AskedRun::new(&lane, question, run)?;
            lane.wait(asked.ticket)?;
            if asked.take(&lane, question, run, &mut part)?.is_break() {
                break;
            }
        }
        Ok(question.whole(vec![part]))
    }
}
