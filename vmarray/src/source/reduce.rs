//! Reductions as device-side work.

use std::ops::{ControlFlow, Range};

use backend_api::{Compute, Device, HostBuffer};

use super::channel::SourceChannel;
use super::core::Core;
use super::wave::{Operation, RunAccess, SlotRun, Started};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::compute::{Answer, Reduction};

/// Asks for what elements come to.
struct Reduce<'a, R> {
    element_bytes: usize,
    reduction: &'a R,
}

impl<T: Element, D: Device, R: Reduction> Operation<T, D> for Reduce<'_, R> {
    type Work = HostBuffer<D>;
    type Outcome = R::Part;

    fn access(&self) -> RunAccess {
        RunAccess::Read
    }

    fn is_rounded(&self) -> bool {
        self.reduction.is_rounded()
    }

    fn prepare(&self, channel: &SourceChannel<D>, like: &SlotRun) {
        let Ok(answer) = channel.buffer(self.reduction.answer_bytes() as usize) else { return };
        let (program, action) = (self.reduction.program(), self.reduction.action(answer.at(0)));
        let sources = [like.elements(self.element_bytes)];
        let compute = Compute { program, sources: &sources, geometry: like.geometry, action };
        // What goes wrong is told by the computation itself.
        let _ = channel.device().prepare(&compute);
        channel.keep(answer);
    }

    fn start(&self, channel: &SourceChannel<D>, run: &SlotRun) -> Started<HostBuffer<D>> {
        let answer = channel.buffer(self.reduction.answer_bytes() as usize)?;
        let (program, action) = (self.reduction.program(), self.reduction.action(answer.at(0)));
        let sources = [run.elements(self.element_bytes)];
        let compute = Compute { program, sources: &sources, geometry: run.geometry, action };
        match channel.kernels().compute(&compute) {
            Ok(ticket) => Ok(Some((vec![ticket], answer))),
            Err(error) => {
                channel.keep(answer);
                Err(error.into())
            }
        }
    }

    fn finish(
        &self,
        channel: &SourceChannel<D>,
        run: &SlotRun,
        memory: HostBuffer<D>,
        part: &mut R::Part,
    ) -> Result<ControlFlow<()>> {
        let answer = Answer { memory: &memory, copied: &channel.counters.bytes_from_device };
        self.reduction.take(part, &answer, &|number| run.index(number));
        channel.keep(memory);
        Ok(ControlFlow::Continue(()))
    }
}

impl<T: Element, D: Device> Core<T, D> {
    pub(super) fn reduce<R: Reduction>(&self, range: &Range<usize>, reduction: &R) -> Result<R::Whole> {
        let parts = self.operate(range, &Reduce { element_bytes: size_of::<T>(), reduction })?;
        Ok(reduction.whole(parts))
    }
}
