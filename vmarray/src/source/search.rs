//! Searches and fills as device-side work.

use std::ops::{ControlFlow, Range};

use backend_api::{Device, Fill, HostBuffer, Search, Ticket};

use super::channel::SourceChannel;
use super::core::Core;
use super::wave::{Operation, RunAccess, SlotRun, Started};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::find::{Found, Listed, What, first_limit};

/// A search.
struct Seek<'a> {
    element_bytes: usize,
    what: &'a What<'a>,
    limit: usize,
    count_all: bool,
}

impl Seek<'_> {
    fn ask<D: Device>(
        &self,
        channel: &SourceChannel<D>,
        run: &SlotRun,
        limit: u64,
    ) -> Result<(Ticket, HostBuffer<D>)> {
        let limit = limit.min(run.count as u64);
        let answer = channel.buffer(Search::answer_bytes(limit) as usize)?;
        let (sources, wanted) = ([run.elements(self.element_bytes)], (limit, self.count_all));
        match self.what.ask(channel.kernels(), &sources, run.geometry, wanted, answer.at(0)) {
            Ok(ticket) => Ok((ticket, answer)),
            Err(error) => {
                channel.keep(answer);
                Err(error.into())
            }
        }
    }
}

impl<T: Element, D: Device> Operation<T, D> for Seek<'_> {
    type Work = HostBuffer<D>;
    type Outcome = Found;

    fn access(&self) -> RunAccess {
        RunAccess::Read
    }

    fn prepare(&self, channel: &SourceChannel<D>, like: &SlotRun) {
        let Ok(answer) = channel.buffer(Search::answer_bytes(0) as usize) else { return };
        let (sources, wanted) = ([like.elements(self.element_bytes)], (0, self.count_all));
        self.what.prepare(&**channel.device(), &sources, like.geometry, wanted, answer.at(0));
        channel.keep(answer);
    }

    fn start(&self, channel: &SourceChannel<D>, run: &SlotRun) -> Started<HostBuffer<D>> {
        let (ticket, answer) = self.ask(channel, run, first_limit(self.limit as u64, self.count_all))?;
        Ok(Some((vec![ticket], answer)))
    }

    fn finish(
        &self,
        channel: &SourceChannel<D>,
        run: &SlotRun,
        answer: HostBuffer<D>,
        found: &mut Found,
    ) -> Result<ControlFlow<()>> {
        let wanted = (self.limit - found.indices.len().min(self.limit)) as u64;
        let mut listed = Listed::read(&answer, &channel.counters.bytes_from_device)?;
        channel.keep(answer);
        if self.count_all && (listed.numbers.len() as u64) < listed.total.min(wanted) {
            // The pages are held, so the number of matches stays what it is.
            let (ticket, longer) = self.ask(channel, run, listed.total.min(wanted))?;
            channel.device().wait(ticket)?;
            listed = Listed::read(&longer, &channel.counters.bytes_from_device)?;
            channel.keep(longer);
        }
        found.total += listed.total as usize;
        let first = listed.numbers.iter().take(usize::try_from(wanted).unwrap_or(usize::MAX));
        found.indices.extend(first.map(|&number| run.index(number)));
        let is_enough = !self.count_all && found.indices.len() >= self.limit;
        Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}

/// Writing one value everywhere.
struct FillWith<T>(T);

impl<T: Element, D: Device> Operation<T, D> for FillWith<T> {
    type Work = ();
    type Outcome = ();

    fn access(&self) -> RunAccess {
        RunAccess::Overwrite
    }

    fn start(&self, channel: &SourceChannel<D>, run: &SlotRun) -> Started<()> {
        let bytes = (run.count * size_of::<T>()) as u64;
        let fill = Fill { to: run.start, bytes, pattern: bytemuck::bytes_of(&self.0) };
        Ok(Some((vec![channel.kernels().fill(&fill)?], ())))
    }

    fn finish(&self, _: &SourceChannel<D>, _: &SlotRun, (): (), (): &mut ()) -> Result<ControlFlow<()>> {
        Ok(ControlFlow::Continue(()))
    }

    fn value(&self) -> Option<T> {
        Some(self.0)
    }
}

/// Having the elements on the device, for what comes.
struct Pull;

impl<T: Element, D: Device> Operation<T, D> for Pull {
    type Work = ();
    type Outcome = ();

    fn access(&self) -> RunAccess {
        RunAccess::Read
    }

    fn start(&self, _: &SourceChannel<D>, _: &SlotRun) -> Started<()> {
        Ok(None)
    }

    fn finish(&self, _: &SourceChannel<D>, _: &SlotRun, (): (), (): &mut ()) -> Result<ControlFlow<()>> {
        Ok(ControlFlow::Continue(()))
    }
}

impl<T: Element, D: Device> Core<T, D> {
    pub(super) fn search(
        &self,
        range: &Range<usize>,
        what: &What<'_>,
        limit: usize,
        count_all: bool,
    ) -> Result<Found> {
        let seek = Seek { element_bytes: size_of::<T>(), what, limit, count_all };
        let mut found = Found::default();
        for part in self.operate(range, &seek)? {
            found.total += part.total;
            found.indices.extend(part.indices);
        }
        found.indices.sort_unstable();
        found.indices.truncate(limit);
        Ok(found)
    }

    pub(super) fn fill(&self, range: &Range<usize>, value: T) -> Result<()> {
        if size_of::<T>() > Fill::PATTERN_MAX_BYTES {
            return self.fill_at_home(range, value);
        }
        self.operate(range, &FillWith(value)).map(drop)
    }

    pub(super) fn pull(&self, range: &Range<usize>) -> Result<()> {
        self.operate(range, &Pull).map(drop)
    }
}
