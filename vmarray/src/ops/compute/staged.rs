//! Questions about rows whose elements do not lie side by side: they are copied to one device, a piece at a
//! time.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::{
    Commit, Compute, Device, DeviceBuffer, Elements, HostBuffer, HostMemory, Queue, Search, Transfer,
};

use super::store::{Operand, Other, STAGED_BYTES};
use super::{Answer, Reduction};
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::stats::Counter;
use crate::ops::find::{Found, Listed, What};

/// Where each column of a piece begins is a multiple of this.
const ALIGNMENT: usize = 256;

/// Rows that are to be asked about, and the device that is to answer.
pub(crate) struct StagedRows<'a, D: Device> {
    device: &'a Arc<D>,
    /// What copies to the device and back are counted by.
    copied: [&'a Counter; 2],
    /// The columns, the first one's elements at the places of the range.
    columns: Vec<Operand<'a, D>>,
    range: Range<usize>,
}

impl<'a, D: Device> StagedRows<'a, D> {
    /// The elements of a range of a store, together with those of others beside them.
    pub(crate) fn new(
        first: &'a dyn Other<D>,
        others: &[Operand<'a, D>],
        range: &Range<usize>,
        device: &'a Arc<D>,
        copied: [&'a Counter; 2],
    ) -> Self {
        let mut columns = vec![Operand { other: first, start: range.start }];
        columns.extend(others.iter().map(|other| other.further(0)));
        Self { device, copied, columns, range: range.clone() }
    }

    /// Has a question asked about each piece, in ascending order.
    fn ask(
        &self,
        answer_bytes: impl FnOnce(u64) -> u64,
        mut ask: impl FnMut(&Queue<D>, &[Elements<'_>], Geometry, &HostBuffer<D>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        if self.range.is_empty() {
            return Ok(());
        }
        let row_bytes: usize = self.columns.iter().map(|column| column.stride()).sum();
        let most = (STAGED_BYTES / row_bytes).clamp(1, self.range.len());
        let (mut begins, mut bytes) = (Vec::with_capacity(self.columns.len()), 0);
        for column in &self.columns {
            begins.push(bytes);
            bytes = (bytes + most * column.stride()).next_multiple_of(ALIGNMENT);
        }
        let queue = Queue::new(self.device)?;
        let host = HostBuffer::new(self.device, bytes, HostMemory::Pageable)?;
        let memory = DeviceBuffer::new(self.device, bytes as u64, Commit::Lazy)?;
        let answer = HostBuffer::new(self.device, answer_bytes(most as u64) as usize, HostMemory::Pageable)?;
        for first in self.range.clone().step_by(most) {
            let count = most.min(self.range.end - first);
            let (mut sources, mut copies) = (Vec::new(), Vec::new());
            for (column, &begin) in self.columns.iter().zip(&begins) {
                let mut values = zeroed_vec(count * column.stride())?;
                let from = first - self.range.start;
                column.read_bytes(from..from + count, &mut values)?;
                host.write(begin, &values);
                let (from, to) = (host.at(begin as u64), memory.at(begin as u64));
                copies.push(queue.submit(&[Transfer::Upload { from, to, bytes: values.len() as u64 }])?);
                self.copied[0].add(values.len() as u64);
                sources.push(Elements { start: to, count: count as u64, stride: column.stride() as u64 });
            }
            // All of them, so that nothing is under way any more when the memory is used again.
            let copied = copies.into_iter().map(|ticket| self.device.wait(ticket));
            copied.reduce(backend_api::Result::and).unwrap_or(Ok(()))?;
            if ask(&queue, &sources, Geometry::plain(first as u64), &answer)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// What the rows come to.
    pub(crate) fn reduce<R: Reduction>(&self, reduction: &R) -> Result<R::Whole> {
        let mut part = R::Part::default();
        self.ask(
            |_| reduction.answer_bytes(),
            |queue, sources, geometry, memory| {
                let (program, action) = (reduction.program(), reduction.action(memory.at(0)));
                let ticket = queue.compute(&Compute { program, sources, geometry, action })?;
                self.device.wait(ticket)?;
                let answer = Answer { memory, copied: self.copied[1] };
                reduction.take(&mut part, &answer, &|number| geometry.index(number) as usize);
                Ok(ControlFlow::Continue(()))
            },
        )?;
        Ok(reduction.whole(vec![part]))
    }

    /// The first `limit` rows that are looked for.
    pub(crate) fn search(&self, what: &What<'_>, limit: usize, count_all: bool) -> Result<Found> {
        let mut found = Found::default();
        self.ask(
            |rows| Search::answer_bytes(rows.min(limit as u64)),
            |queue, sources, geometry, memory| {
                let wanted = (limit - found.indices.len()).min(sources[0].count as usize) as u64;
                let ticket = what.ask(queue, sources, geometry, (wanted, count_all), memory.at(0))?;
                self.device.wait(ticket)?;
                let listed = Listed::read(memory, self.copied[1])?;
                found.total += listed.total as usize;
                found.indices.extend(listed.numbers.iter().map(|number| geometry.index(*number) as usize));
                let is_enough = !count_all && found.indices.len() >= limit;
                Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            },
        )?;
        Ok(found)
    }
}
