//! Launches over a range of numbers, for kernels whose work-items (GPU threads) do not correspond to elements
//! of an array.

use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::{Commit, Device, DeviceBuffer, Elements, HostBuffer, HostMemory, Queue, Ticket, Transfer};

use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::stats::Counters;
use crate::engine::channel::HomeQueues;
use crate::engine::pager::Pager;
use crate::ops::executor::{
    Change, Examination, Operand, OperandStore, ResultStore, Run, STAGED_BYTES, WorkQueue, read_all,
    unsettled,
};

/// A range of numbers, and the device that runs the kernel for them, if the caller has selected one.
#[derive(Clone, Debug)]
pub(super) struct IndexDomain {
    pub range: Range<usize>,
    pub device: Option<Arc<dyn Device>>,
}

/// A range of numbers as a store, divided among devices. Its elements have no bytes. Alternatively they are
/// results in memory of one device, which are read once.
pub(crate) struct IndexDomainStore<'a> {
    first: usize,
    /// The number of consecutive numbers that must stay on one device.
    together: usize,
    devices: Vec<(Arc<dyn Device>, &'a Counters)>,
    /// The array that the kernel reads in place, and whose devices run the kernel.
    pager: Option<&'a Pager>,
    /// The memory of results, and the size of a result in bytes.
    results: Option<(DeviceBuffer<dyn Device>, usize)>,
}

/// A part of the work-items that a device is running.
struct NumbersUnderWay {
    ticket: Ticket,
    queue: Queue<dyn Device>,
    report: HostBuffer<dyn Device>,
    geometry: Geometry,
    // Keeps memory alive: its address serves as the address of a column without bytes.
    _nothing: Option<DeviceBuffer<dyn Device>>,
}

impl<'a> IndexDomainStore<'a> {
    /// Returns a range of numbers for the selected device, or else for the devices of the arguments. Returns
    /// `None` if there is no device. Each device's part is a multiple of `together` numbers.
    pub(super) fn new(
        over: &IndexDomain,
        counters: &'a Counters,
        given: Option<&'a dyn OperandStore>,
        together: usize,
    ) -> Option<Self> {
        let first = over.range.start;
        if let Some(device) = &over.device {
            let devices = vec![(Arc::clone(device), counters)];
            return Some(Self { first, together, devices, pager: None, results: None });
        }
        Some(Self { first, ..Self::colocated(given?, together) })
    }

    /// Creates a range of numbers from 0 on, divided among the devices of `store`. Each device's part is a
    /// multiple of `together` numbers.
    pub fn colocated(store: &'a dyn OperandStore, together: usize) -> Self {
        let devices = store.devices().into_iter().map(|(device, counters)| (Arc::clone(device), counters));
        let devices = devices.collect();
        Self { first: 0, together, devices, pager: store.pager(), results: None }
    }

    /// Creates a range of numbers from 0 on for the first device of `store`, and allocates memory there for
    /// `count` results of `stride` bytes each.
    pub fn with_results(store: &'a dyn OperandStore, count: usize, stride: usize) -> Result<Self> {
        let mut numbers = Self::colocated(store, 1);
        numbers.devices.truncate(1);
        if let Some((device, _)) = numbers.devices.first() {
            let memory = DeviceBuffer::new(device, (count * stride).max(1) as u64, Commit::Lazy)?;
            numbers.results = Some((memory, stride));
        }
        Ok(numbers)
    }

    /// Divides a range into one part for each device. A short range has parts only for the first devices.
    pub fn parts(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (each, range) = (range.len().div_ceil(self.devices.len()), range.clone());
        let each = each.next_multiple_of(self.together).max(1);
        range.clone().step_by(each).map(move |start| start..range.end.min(start + each))
    }

    /// Launches a range while no thread writes to elements that the kernel reads in place.
    fn run_settled(&self, range: &Range<usize>, launch: &dyn Change) -> Result<()> {
        let (striped, mut attempts) = (launch.striped(), 0);
        read_all(&striped, &mut || {
            attempts += 1;
            if attempts > 1 {
                return Err(unsettled().into());
            }
            self.run(range, launch)
        })
    }

    /// Launches a range, one part on each device, and waits for all parts.
    fn run(&self, range: &Range<usize>, launch: &dyn Change) -> Result<()> {
        let parts = self.devices.iter().zip(self.parts(range));
        let started = parts.map(|((device, counters), part)| self.start(device, counters, &part, launch));
        // Wait for all started parts even if other parts have failed, because devices still use their memory.
        let started: Vec<Result<NumbersUnderWay>> = started.collect();
        let ends = started.into_iter().map(|started| {
            let NumbersUnderWay { ticket, queue, report, geometry, .. } = started?;
            queue.device().wait(ticket)?;
            let mut words = zeroed_vec::<u64>(report.bytes() / 8)?;
            report.read(0, bytemuck::cast_slice_mut(&mut words));
            launch.take_report(geometry, &words);
            Ok(())
        });
        ends.fold(Ok(()), Result::and)
    }

    fn start(
        &self,
        device: &Arc<dyn Device>,
        counters: &Counters,
        part: &Range<usize>,
        launch: &dyn Change,
    ) -> Result<NumbersUnderWay> {
        let nothing = match self.results {
            Some(_) => None,
            None => Some(DeviceBuffer::new(device, 1, Commit::Lazy)?),
        };
        let report = HostBuffer::new(device, launch.report_bytes(part.len()), HostMemory::Pageable)?;
        let queue = Queue::new(device)?;
        let count = part.len() as u64;
        let elements = match (&self.results, &nothing) {
            (Some((memory, stride)), _) => {
                let stride = *stride as u64;
                Some(Elements { start: memory.at(part.start as u64 * stride), count, stride })
            }
            (None, Some(nothing)) => Some(Elements { start: nothing.at(0), count, stride: 0 }),
            (None, None) => None,
        };
        let Some(elements) = elements else { unreachable!("the launch has either elements or memory") };
        let columns = [elements];
        let geometry = Geometry::plain((self.first + part.start) as u64);
        let mut submit = |queue: &Queue<dyn Device>| {
            let work = WorkQueue::new(queue, Some(counters), Some(&report));
            launch.submit(work, Run { columns: &columns, geometry }, Some(report.at(0)))
        };
        let striped = launch.striped();
        let channels: Vec<&HomeQueues> =
            striped.iter().flat_map(|(pager, _)| pager.channels()).map(|channel| &channel.queues).collect();
        let ticket = match channels.split_first() {
            // If the kernel reads elements in place, submit it to a queue of the channel (share of a device)
            // that stores them, after earlier writes to them and before later ones.
            Some((first, others)) => first.between_writes(others, &mut submit)?,
            None => submit(&queue)?,
        };
        Ok(NumbersUnderWay { ticket, queue, report, geometry, _nothing: nothing })
    }
}

impl ResultStore for IndexDomainStore<'_> {
    fn write_bytes(&self, _: usize, _: &[u8]) -> Result<()> {
        unreachable!("only kernels write to results")
    }

    fn change(&self, _: &[Operand<'_>], range: &Range<usize>, change: &dyn Change) -> Result<()> {
        change.begin_part(range)?;
        self.run_settled(range, change)
    }
}

impl OperandStore for IndexDomainStore<'_> {
    fn stride(&self) -> usize {
        self.results.as_ref().map_or(0, |(_, stride)| *stride)
    }

    fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        let (Some((memory, stride)), Some((device, counters))) = (&self.results, self.devices.first()) else {
            return Ok(());
        };
        let queue = Queue::new(device)?;
        let host = HostBuffer::new(device, into.len().clamp(1, STAGED_BYTES), HostMemory::Pageable)?;
        let mut from = (range.start * stride) as u64;
        for piece in into.chunks_mut(host.bytes()) {
            let bytes = piece.len() as u64;
            let download = Transfer::Download { from: memory.at(from), to: host.at(0), bytes };
            device.wait(queue.submit(&[download])?)?;
            host.read(0, piece);
            counters.bytes_from_device.add(bytes);
            from += bytes;
        }
        Ok(())
    }

    fn pager(&self) -> Option<&Pager> {
        self.pager
    }

    fn devices(&self) -> Vec<(&Arc<dyn Device>, &Counters)> {
        self.devices.iter().map(|(device, counters)| (device, *counters)).collect()
    }

    fn examine(&self, _: &[Operand<'_>], range: &Range<usize>, by: &Examination<'_>) -> Result<()> {
        self.run_settled(range, by.0)
    }
}
