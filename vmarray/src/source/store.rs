//! Writing to elements on their devices.

use std::ops::{ControlFlow, Range};

use backend_api::{Commit, Compute, Device, DeviceBuffer, Elements, HostBuffer, Queue, Ticket, Transfer};

use super::channel::SourceChannel;
use super::core::Core;
use super::wave::{Operation, RefusedRun, RunAccess, SlotRun, Started};
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::base::memory::zeroed_vec;
use crate::ops::compute::{Operand, Other, Outcome, Plan, STAGED_BYTES, StagedRows, changes_nothing};

/// Elements of something else, which were read for this.
struct ReadOperand {
    /// The index of the first.
    first: usize,
    stride: usize,
    bytes: Vec<u8>,
}

/// Elements of something else on their way to a device.
struct Staged<D: Device> {
    memory: DeviceBuffer<D>,
    host: HostBuffer<D>,
    bytes: u64,
}

impl ReadOperand {
    /// Takes memory for those that belong to a run.
    fn stage<D: Device>(&self, channel: &SourceChannel<D>, run: &SlotRun) -> Result<Staged<D>> {
        let bytes = run.count * self.stride;
        let memory = DeviceBuffer::new(channel.device(), bytes as u64, Commit::Lazy)?;
        let host = channel.buffer(bytes)?;
        for (number, index, len) in run.parts() {
            let from = (index - self.first) * self.stride;
            host.write(number * self.stride, &self.bytes[from..from + len * self.stride]);
        }
        Ok(Staged { memory, host, bytes: bytes as u64 })
    }
}

impl<D: Device> Staged<D> {
    fn upload(&self, queue: &Queue<D>) -> backend_api::Result<Ticket> {
        let (from, to) = (self.host.at(0), self.memory.at(0));
        queue.submit(&[Transfer::Upload { from, to, bytes: self.bytes }])
    }
}

/// Writes what is computed from elements, and from others beside them.
struct Change<'a> {
    plan: &'a Plan,
    access: RunAccess,
    element_bytes: usize,
    others: &'a [ReadOperand],
}

impl<T: Element, D: Device> Operation<T, D> for Change<'_> {
    type Work = Vec<Staged<D>>;
    type Outcome = Outcome;

    fn access(&self) -> RunAccess {
        self.access
    }

    fn prepare(&self, channel: &SourceChannel<D>, like: &SlotRun) {
        // Others do not begin where the target does, but are as well aligned.
        let other = |(number, other): (u64, &ReadOperand)| {
            let start = like.start.plus(8 * (number + 1));
            Elements { start, count: 0, stride: other.stride as u64 }
        };
        let mut sources = vec![like.elements(self.element_bytes)];
        sources.extend((0..).zip(self.others).map(other));
        let (program, action) = (self.plan.program(), self.plan.action());
        let compute = Compute { program, sources: &sources, geometry: like.geometry, action };
        // What goes wrong is told by the computation itself.
        let _ = channel.device().prepare(&compute);
    }

    fn start(&self, channel: &SourceChannel<D>, run: &SlotRun) -> Started<Vec<Staged<D>>> {
        let staged = self.others.iter().map(|other| other.stage(channel, run)).collect::<Result<Vec<_>>>()?;
        let mut sources = vec![run.elements(self.element_bytes)];
        sources.extend(self.others.iter().zip(&staged).map(|(other, staged)| {
            let start = staged.memory.at(0);
            Elements { start, count: run.count as u64, stride: other.stride as u64 }
        }));
        let mut tickets = Vec::with_capacity(staged.len() + 1);
        for staged in &staged {
            tickets.push(staged.upload(channel.kernels())?);
            channel.counters.bytes_to_device.add(staged.bytes);
        }
        let (program, action) = (self.plan.program(), self.plan.action());
        let compute = Compute { program, sources: &sources, geometry: run.geometry, action };
        tickets.push(channel.kernels().compute(&compute).map_err(|error| {
            let error = Error::from(error);
            RefusedRun { begun: !changes_nothing(&error), error }
        })?);
        Ok(Some((tickets, staged)))
    }

    fn finish(
        &self,
        channel: &SourceChannel<D>,
        _: &SlotRun,
        staged: Vec<Staged<D>>,
        _: &mut Outcome,
    ) -> Result<ControlFlow<()>> {
        staged.into_iter().for_each(|staged| channel.keep(staged.host));
        Ok(ControlFlow::Continue(()))
    }

    fn changed(&self, elements: Range<usize>, done: bool, outcome: &mut Outcome) {
        let list = if done { &mut outcome.written } else { &mut outcome.unspecified };
        list.push(elements);
    }
}

impl<T: Element, D: Device> Core<T, D> {
    /// Writes to a range what is computed from it and from as many elements of others. Others are read, some
    /// MiB at a time, before any page is held: that may wait for anything.
    pub(super) fn assign(&self, others: &[Operand<'_, D>], range: &Range<usize>, plan: &Plan) -> Result<()> {
        let element_bytes = size_of::<T>();
        let access = if plan.overwrites(element_bytes) { RunAccess::Overwrite } else { RunAccess::Change };
        let mut outcome = Outcome::default();
        let mut rest = range.clone();
        while outcome.failure.is_none() && !rest.is_empty() {
            let part = if others.is_empty() { rest.clone() } else { self.staged_part(others, &rest) };
            rest.start = part.end;
            match others.iter().map(|other| read(other, &part, range.start)).collect::<Result<Vec<_>>>() {
                Err(error) => outcome.failure = Some(error),
                Ok(others) => {
                    let change = Change { plan, access, element_bytes, others: &others };
                    let (outcomes, result) = self.operate_on(&part, &change);
                    outcomes.into_iter().for_each(|one| outcome.add(one));
                    outcome.failure = result.err();
                }
            }
        }
        outcome.into_result()
    }
}

fn read<D: Device>(other: &Operand<'_, D>, part: &Range<usize>, first: usize) -> Result<ReadOperand> {
    let stride = other.stride();
    let mut bytes = zeroed_vec(part.len() * stride)?;
    other.read_bytes(part.start - first..part.end - first, &mut bytes)?;
    Ok(ReadOperand { first: part.start, stride, bytes })
}

impl<T: Element, D: Device> Core<T, D> {
    /// As much of a range as is staged at once: whole pages, but at the ends.
    fn staged_part(&self, others: &[Operand<'_, D>], rest: &Range<usize>) -> Range<usize> {
        let strides = others.iter().map(|other| other.stride()).chain([size_of::<T>()]);
        let most = STAGED_BYTES / strides.max().unwrap_or(1).max(1);
        let pages = (most / self.cuts.page_len).max(1);
        let end = (rest.start / self.cuts.page_len + pages) * self.cuts.page_len;
        rest.start..end.min(rest.end)
    }
}

impl<T: Element, D: Device> Core<T, D> {
    /// The elements of a range together with others, to be asked about on the first device.
    pub(super) fn rows<'a>(&'a self, others: &[Operand<'a, D>], range: &Range<usize>) -> StagedRows<'a, D> {
        let channel = &self.channels[0];
        let copied = [&channel.counters.bytes_to_device, &channel.counters.bytes_from_device];
        StagedRows::new(self, others, range, channel.device(), copied)
    }
}

impl<T: Element, D: Device> Other<D> for Core<T, D> {
    fn stride(&self) -> usize {
        size_of::<T>()
    }

    fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        // Bytes of a buffer are not aligned for any type.
        let mut values = zeroed_vec::<T>(range.len())?;
        self.read(range.start, &mut values)?;
        into.copy_from_slice(bytemuck::cast_slice(&values));
        Ok(())
    }
}
