//! Searches and fills as device-side work.

use std::ops::{ControlFlow, Range};

use backend_api::{Device, Fill, HostBuffer, Search, Ticket};

use super::channel::Channel;
use super::core::Core;
use super::wave::{Access, Operation, Run};
use crate::element::Element;
use crate::error::Result;
use crate::find::Found;
use crate::memory::zeroed_vec;

/// How many indices a run lists at first; if there are more, it is asked again.
const FIRST_LIMIT: u64 = 4096;

/// A search for a value.
struct Seek<'a> {
    element_bytes: usize,
    field_offset: usize,
    value: &'a [u8],
    limit: usize,
    count_all: bool,
}

impl Seek<'_> {
    fn ask<D: Device>(&self, channel: &Channel<D>, run: &Run, limit: u64) -> Result<(Ticket, HostBuffer<D>)> {
        let limit = limit.min(run.count as u64);
        let answer = channel.buffer(Search::answer_bytes(limit) as usize)?;
        let search = Search {
            elements: run.elements(self.element_bytes),
            field_offset: self.field_offset as u64,
            value: self.value,
            limit,
            count_all: self.count_all,
            answer: answer.at(0),
        };
        match channel.kernels().search(&search) {
            Ok(ticket) => Ok((ticket, answer)),
            Err(error) => {
                channel.keep(answer);
                Err(error.into())
            }
        }
    }
}

impl<T: Element, D: Device> Operation<T, D> for Seek<'_> {
    const ACCESS: Access = Access::Read;
    type Work = HostBuffer<D>;
    type Outcome = Found;

    fn start(&self, channel: &Channel<D>, run: &Run) -> Result<Option<(Ticket, HostBuffer<D>)>> {
        self.ask(channel, run, (self.limit as u64).min(FIRST_LIMIT)).map(Some)
    }

    fn finish(
        &self,
        core: &Core<T, D>,
        channel: &Channel<D>,
        run: &Run,
        mut answer: HostBuffer<D>,
        found: &mut Found,
    ) -> Result<ControlFlow<()>> {
        let wanted = (self.limit - found.indices.len().min(self.limit)) as u64;
        let mut header = [0_u64; 2];
        loop {
            answer.read(0, bytemuck::cast_slice_mut(&mut header));
            channel.counters.bytes_from_device.add(Search::HEADER_BYTES + header[1] * 8);
            if header[1] >= header[0].min(wanted) {
                break;
            }
            // The pages are held, so the number of matches stays what it is.
            channel.keep(answer);
            let (ticket, longer) = self.ask(channel, run, header[0].min(wanted))?;
            channel.device().wait(ticket)?;
            answer = longer;
        }
        let mut indices = zeroed_vec::<u64>(header[1].min(wanted) as usize)?;
        answer.read(Search::HEADER_BYTES as usize, bytemuck::cast_slice_mut(&mut indices));
        channel.keep(answer);
        found.total += header[0] as usize;
        found.indices.extend(indices.iter().map(|&at| core.index_in_run(run, at as usize)));
        let is_enough = !self.count_all && found.indices.len() >= self.limit;
        Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}

/// Writing one value everywhere.
struct FillWith<T>(T);

impl<T: Element, D: Device> Operation<T, D> for FillWith<T> {
    const ACCESS: Access = Access::Overwrite;
    type Work = ();
    type Outcome = ();

    fn start(&self, channel: &Channel<D>, run: &Run) -> Result<Option<(Ticket, ())>> {
        let bytes = (run.count * size_of::<T>()) as u64;
        let fill = Fill { to: run.start, bytes, pattern: bytemuck::bytes_of(&self.0) };
        Ok(Some((channel.kernels().fill(&fill)?, ())))
    }

    fn finish(
        &self,
        _: &Core<T, D>,
        _: &Channel<D>,
        _: &Run,
        (): (),
        (): &mut (),
    ) -> Result<ControlFlow<()>> {
        Ok(ControlFlow::Continue(()))
    }

    fn redo(&self, at_home: &mut [T]) -> bool {
        at_home.fill(self.0);
        true
    }
}

/// Having the elements on the device, for what comes.
struct Pull;

impl<T: Element, D: Device> Operation<T, D> for Pull {
    const ACCESS: Access = Access::Read;
    type Work = ();
    type Outcome = ();

    fn start(&self, _: &Channel<D>, _: &Run) -> Result<Option<(Ticket, ())>> {
        Ok(None)
    }

    fn finish(
        &self,
        _: &Core<T, D>,
        _: &Channel<D>,
        _: &Run,
        (): (),
        (): &mut (),
    ) -> Result<ControlFlow<()>> {
        Ok(ControlFlow::Continue(()))
    }
}

impl<T: Element, D: Device> Core<T, D> {
    pub(super) fn search(
        &self,
        range: &Range<usize>,
        field_offset: usize,
        value: &[u8],
        limit: usize,
        count_all: bool,
    ) -> Result<Found> {
        let seek = Seek { element_bytes: size_of::<T>(), field_offset, value, limit, count_all };
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
