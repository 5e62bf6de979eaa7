//! Fallback in RAM: the host executes requests that a device refuses. A device must only be able to store
//! pages; all other requests are optional.

use std::sync::Arc;

use backend_api::expr::Action;
use backend_api::kernel::Report;
use backend_api::{
    Commit, Compute, Device, DeviceBuffer, DeviceSpan, Elements, Error, ErrorKind, Gather, HostBuffer,
    HostMemory, HostSpan, LEFT_OUT, Launch, LaunchView, Queue, QueueId, Request, Result, Search, Ticket,
    Transfer,
};

use crate::base::stats::Counters;
use crate::base::trace;
use crate::setup::open_devices::in_ram;

/// The number of bytes copied to or from RAM at a time.
const PIECE_BYTES: usize = 16 << 20;

/// A device queue for the work on a run (contiguous elements on a device). If the device refuses a request as
/// unsupported, the host executes the request in RAM.
#[derive(Clone, Copy, Debug)]
pub struct WorkQueue<'q> {
    queue: &'q Queue<dyn Device>,
    counters: Option<&'q Counters>,
    /// The host memory of results, reports and lists of indices.
    host: Option<&'q HostBuffer<dyn Device>>,
    uses_ram: bool,
}

impl<'q> WorkQueue<'q> {
    /// Wraps a device queue. `host` is the host memory that requests refer to.
    pub(crate) fn new(
        queue: &'q Queue<dyn Device>,
        counters: Option<&'q Counters>,
        host: Option<&'q HostBuffer<dyn Device>>,
    ) -> Self {
        Self { queue, counters, host, uses_ram: true }
    }

    /// Sets if refused requests run in RAM; otherwise they fail.
    pub(crate) fn with_ram(self, uses_ram: bool) -> Self {
        Self { uses_ram, ..self }
    }

    pub(crate) fn device(&self) -> &'q Arc<dyn Device> {
        self.queue.device()
    }

    pub(crate) fn id(&self) -> QueueId {
        self.queue.id()
    }

    /// Submits a request. If the request runs in RAM, it has ended when the call returns.
    pub(crate) fn submit<'r>(&self, request: impl Into<Request<'r>>) -> Result<Ticket> {
        let request = request.into();
        let refusal = match self.queue.submit(request) {
            Err(error) if self.uses_ram && is_unsupported(&error) => error,
            submitted => return submitted,
        };
        match self.run_in_ram(&request) {
            Err(error) if is_unsupported(&error) => Err(refusal),
            done => done.inspect(|_| trace::work_in_ram(&refusal)),
        }
    }

    /// Executes a request in RAM. Returns an error of kind [`ErrorKind::Unsupported`] if this is impossible.
    fn run_in_ram(&self, request: &Request<'_>) -> Result<Ticket> {
        match request {
            Request::Gather(gather) => return self.copy_each(gather),
            Request::Search(search) => RamWork::new(*self)?.search(search)?,
            Request::Compute(compute) => RamWork::new(*self)?.compute(compute)?,
            Request::Launch(launch) => RamWork::new(*self)?.launch(launch)?,
            Request::Scatter(_) | Request::Copies(..) | Request::Fill(_) => return Err(unsupported()),
        }
        self.queue.submit(&[])
    }

    fn copy_each(&self, gather: &Gather<'_>) -> Result<Ticket> {
        let (mut indices, bytes) = (vec![0_u64; gather.count as usize], gather.elements.stride());
        let list = self.host_of(gather.indices)?;
        list.read(gather.indices.offset() as usize, bytemuck::cast_slice_mut(&mut indices));
        let listed = (0_u64..).zip(indices).filter(|(_, index)| *index != LEFT_OUT);
        let copies = listed.map(|(number, index)| {
            let Some((base, offset)) = gather.elements.place(index) else {
                let detail =
                    format!("index {index} is out of bounds; use indices below {}", gather.elements.count());
                return Err(Error::new(ErrorKind::KernelFailed, "gather").with_detail(detail));
            };
            let to = gather.values.plus(number * bytes);
            Ok(Transfer::Download { from: base.plus(offset), to, bytes })
        });
        self.queue.submit(&copies.collect::<Result<Vec<_>>>()?)
    }

    /// Returns the host memory that contains an address.
    fn host_of(&self, place: HostSpan<'_>) -> Result<&'q HostBuffer<dyn Device>> {
        self.host.filter(|host| host.id() == place.host()).ok_or_else(unsupported)
    }
}

/// Returns true if a device refused a request as unsupported, and executed no part of it.
pub(super) fn is_unsupported(error: &Error) -> bool {
    error.kind() == ErrorKind::Unsupported
}

fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, "submit")
}

/// A request that is executed on copies of its elements in RAM.
struct RamWork<'a> {
    /// The queue of the device that stores the elements.
    home: WorkQueue<'a>,
    /// A queue of the RAM device, which all arrays share.
    ram: Queue<dyn Device>,
    copies: Vec<RamCopy<'a>>,
}

struct RamCopy<'a> {
    home: DeviceSpan<'a>,
    bytes: u64,
    memory: DeviceBuffer<dyn Device>,
    is_written: bool,
}

impl<'a> RamWork<'a> {
    fn new(home: WorkQueue<'a>) -> Result<Self> {
        let ram = in_ram().map_err(|_| unsupported())?;
        Ok(Self { home, ram: Queue::new(&ram)?, copies: Vec::new() })
    }

    fn search(mut self, search: &Search<'a>) -> Result<()> {
        self.copy_elements(&search.elements, false)?;
        let elements = self.elements(0, &search.elements);
        let bytes = Search::answer_bytes(search.limit.min(elements.count));
        self.answer(bytes, search.answer, |queue, answer| {
            queue.submit(&Search { elements, answer, ..*search })
        })
    }

    fn compute(mut self, compute: &Compute<'a>) -> Result<()> {
        let sources = compute.sources.iter().enumerate();
        let numbers = sources.map(|(number, source)| self.copy_elements(source, compute.writes(number)));
        let numbers = numbers.collect::<Result<Vec<_>>>()?;
        let sources = numbers.into_iter().zip(compute.sources);
        let sources: Vec<_> = sources.map(|(number, source)| self.elements(number, source)).collect();
        let Some(place) = compute.answer() else {
            self.ram.device().wait(self.ram.submit(&Compute { sources: &sources, ..*compute })?)?;
            return self.write_back();
        };
        self.answer(compute.answer_bytes(), place, |queue, to| {
            let mut action = compute.action;
            if let Action::Find { answer, .. }
            | Action::Sum { answer, .. }
            | Action::Extremes { answer, .. }
            | Action::Histogram { answer, .. } = &mut action
            {
                *answer = to;
            }
            queue.submit(&Compute { sources: &sources, action, ..*compute })
        })
    }

    fn launch(mut self, launch: &Launch<'a>) -> Result<()> {
        let mut numbers = Vec::with_capacity(launch.views.len());
        for (number, view) in launch.views.iter().enumerate() {
            let ranges = view.ranges().map(|(base, bytes)| self.copy(base, bytes, launch.writes(number)));
            numbers.push(ranges.collect::<Result<Vec<_>>>()?);
        }
        let places = |numbers: &Vec<usize>| numbers.iter().map(|number| self.place(*number)).collect();
        let bases: Vec<Vec<_>> = numbers.iter().map(places).collect();
        let views = launch.views.iter().zip(&bases).map(|(view, bases)| match *view {
            LaunchView::Run(elements) => LaunchView::Run(Elements { start: bases[0], ..elements }),
            LaunchView::Striped { page_len, count, stride, .. } => {
                LaunchView::Striped { bases, page_len, count, stride }
            }
        });
        let views: Vec<_> = views.collect();
        self.answer(Report::BYTES, launch.report, |queue, report| {
            queue.submit(&Launch { views: &views, report, ..*launch })
        })?;
        self.write_back()
    }

    fn copy_elements(&mut self, elements: &Elements<'a>, is_written: bool) -> Result<usize> {
        self.copy(elements.start, elements.count * elements.stride, is_written)
    }

    /// Copies device memory to RAM unless a copy exists. Returns the index of the copy.
    fn copy(&mut self, home: DeviceSpan<'a>, bytes: u64, is_written: bool) -> Result<usize> {
        let is_same = |copy: &RamCopy<'_>| (copy.home, copy.bytes) == (home, bytes);
        if let Some(number) = self.copies.iter().position(is_same) {
            self.copies[number].is_written |= is_written;
            return Ok(number);
        }
        let memory = DeviceBuffer::new(self.ram.device(), bytes.max(1), Commit::Lazy)?;
        copy_bytes((self.home.queue, home), (&self.ram, memory.at(0)), bytes)?;
        if let Some(counters) = self.home.counters {
            counters.bytes_from_device.add(bytes);
        }
        self.copies.push(RamCopy { home, bytes, memory, is_written });
        Ok(self.copies.len() - 1)
    }

    /// Returns the address of a copy in RAM.
    fn place(&self, copy: usize) -> DeviceSpan<'_> {
        self.copies[copy].memory.at(0)
    }

    /// Returns elements of a device as elements of their copy in RAM.
    fn elements(&self, copy: usize, elements: &Elements<'_>) -> Elements<'_> {
        Elements { start: self.place(copy), count: elements.count, stride: elements.stride }
    }

    /// Executes a request in RAM, and copies its result to the host memory of the device's result.
    fn answer(
        &self,
        bytes: u64,
        to: HostSpan<'_>,
        submit: impl FnOnce(&Queue<dyn Device>, HostSpan<'_>) -> Result<Ticket>,
    ) -> Result<()> {
        let host = self.home.host_of(to)?;
        let answer = HostBuffer::new(self.ram.device(), bytes as usize, HostMemory::Pageable)?;
        self.ram.device().wait(submit(&self.ram, answer.at(0))?)?;
        let mut answered = vec![0; bytes as usize];
        answer.read(0, &mut answered);
        host.write(to.offset() as usize, &answered);
        Ok(())
    }

    /// Copies changed elements from RAM back to their device.
    fn write_back(&self) -> Result<()> {
        for copy in self.copies.iter().filter(|copy| copy.is_written) {
            copy_bytes((&self.ram, copy.memory.at(0)), (self.home.queue, copy.home), copy.bytes)?;
            if let Some(counters) = self.home.counters {
                counters.bytes_to_device.add(copy.bytes);
            }
        }
        Ok(())
    }
}

/// Copies bytes between two devices through the host, after the earlier work of both queues.
fn copy_bytes(
    (from_queue, from): (&Queue<dyn Device>, DeviceSpan<'_>),
    (to_queue, to): (&Queue<dyn Device>, DeviceSpan<'_>),
    bytes: u64,
) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let (from_device, to_device) = (from_queue.device(), to_queue.device());
    let mut piece = vec![0; PIECE_BYTES.min(bytes as usize)];
    let from_host = HostBuffer::new(from_device, piece.len(), HostMemory::Pageable)?;
    let to_host = HostBuffer::new(to_device, piece.len(), HostMemory::Pageable)?;
    for first in (0..bytes).step_by(piece.len()) {
        let bytes = (bytes - first).min(piece.len() as u64);
        let piece = &mut piece[..bytes as usize];
        let download = Transfer::Download { from: from.plus(first), to: from_host.at(0), bytes };
        from_device.wait(from_queue.submit(&[download])?)?;
        from_host.read(0, piece);
        to_host.write(0, piece);
        let upload = Transfer::Upload { from: to_host.at(0), to: to.plus(first), bytes };
        to_device.wait(to_queue.submit(&[upload])?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backend_api::ErrorKind;
    use backend_api::wrap::{Fault, Operation};
    use vmarray_conformance::wrap::Faulty;

    use crate::array::testing::{host, one_channel};
    use crate::prelude::*;

    #[test]
    fn refused_questions_are_answered_in_parts() {
        let device = Arc::new(Faulty::new(host()));
        for operation in [Operation::Search, Operation::Compute] {
            device.inject(Fault::new(operation, ErrorKind::Unsupported).from_call(1));
        }
        let array = one_channel::<u32, _>(&device, (100, 10), 4).build().unwrap();
        let numbers: Vec<u32> = (0..1000).map(|i| i * 7919 % 10).collect();
        array.write(0, &numbers).unwrap();
        let value = Field::whole();
        let places = |of: u32| (0..1000).filter(|i| numbers[*i] == of).collect::<Vec<_>>();
        assert_eq!(array.find(value, &3).unwrap(), places(3));
        assert_eq!(array.position(.., value, &3).unwrap(), places(3).first().copied());
        assert_eq!(array.count_where(.., value.lt(4)).unwrap(), 400);
        assert_eq!(array.find_where(.., value.lt(10), 950).unwrap().indices, (0..950).collect::<Vec<_>>());
        assert_eq!(array.sum(.., value).unwrap(), 4500);
        assert_eq!(array.arg_max(5.., value).unwrap(), Some((11, 9)));
        let stats = array.stats().total();
        assert_eq!(stats.bytes_in_place, 0);
        assert!(stats.bytes_from_device > 5 * 4000);
    }
}
