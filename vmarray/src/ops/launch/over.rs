//! Launches over numbers, where no elements say how many items there are.

use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::{Commit, Device, DeviceBuffer, Elements, HostBuffer, HostMemory, HostSpan, Queue, Ticket};

use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::stats::Counters;
use crate::engine::channel::HomeQueues;
use crate::engine::pager::Pager;
use crate::ops::compute::{read_all, unsettled};
use crate::ops::executor::{Change, Examination, Operand, OperandStore, Run};

/// The numbers, and the device that was named for them.
#[derive(Clone, Debug)]
pub(super) struct Over {
    pub range: Range<usize>,
    pub device: Option<Arc<dyn Device>>,
}

/// Numbers as a store, whose elements have no bytes: a part of them on each of some devices.
pub(super) struct OverStore<'a> {
    first: usize,
    devices: Vec<(Arc<dyn Device>, &'a Counters)>,
    /// Of the array that is read where it lies, and says which devices those are.
    pager: Option<&'a Pager>,
}

/// A part of the items, under way.
struct NumbersUnderWay {
    ticket: Ticket,
    queue: Queue<dyn Device>,
    report: HostBuffer<dyn Device>,
    geometry: Geometry,
    // Where elements would begin that have no bytes.
    _nothing: DeviceBuffer<dyn Device>,
}

impl<'a> OverStore<'a> {
    /// Numbers on the device that was named, else on those of what is given; `None` if that is nowhere.
    pub fn new(over: &Over, counters: &'a Counters, given: Option<&'a dyn OperandStore>) -> Option<Self> {
        let first = over.range.start;
        if let Some(device) = &over.device {
            return Some(Self { first, devices: vec![(Arc::clone(device), counters)], pager: None });
        }
        let given = given?;
        let devices = given.devices().into_iter().map(|(device, counters)| (Arc::clone(device), counters));
        Some(Self { first, devices: devices.collect(), pager: given.pager() })
    }

    /// Launches all of a range, each device a part, and waits.
    fn run(&self, range: &Range<usize>, launch: &dyn Change) -> Result<()> {
        let each = range.len().div_ceil(self.devices.len()).max(1);
        let starts = range.clone().step_by(each);
        let started = self.devices.iter().zip(starts).map(|((device, _), start)| {
            let part = start..range.end.min(start + each);
            self.start(device, &part, launch)
        });
        // All that were started are waited for, whatever the others say.
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
        part: &Range<usize>,
        launch: &dyn Change,
    ) -> Result<NumbersUnderWay> {
        let nothing = DeviceBuffer::new(device, 1, Commit::Lazy)?;
        let report = HostBuffer::new(device, launch.report_bytes(part.len()), HostMemory::Pageable)?;
        let queue = Queue::new(device)?;
        let columns = [Elements { start: nothing.at(0), count: part.len() as u64, stride: 0 }];
        let geometry = Geometry::plain((self.first + part.start) as u64);
        let submit = |queue: &Queue<dyn Device>, report: HostSpan<'_>| {
            launch.submit(queue, Run { columns: &columns, geometry }, Some(report))
        };
        let dealt = launch.dealt();
        let channels: Vec<&HomeQueues> =
            dealt.iter().flat_map(|(pager, _)| pager.channels()).map(|channel| &channel.queues).collect();
        let ticket = match channels.split_first() {
            // Between writes to what is read where it lies: in a queue of that.
            Some((first, others)) => first.between_writes(others, |queue| submit(queue, report.at(0)))?,
            None => submit(&queue, report.at(0))?,
        };
        Ok(NumbersUnderWay { ticket, queue, report, geometry, _nothing: nothing })
    }
}

impl OperandStore for OverStore<'_> {
    fn stride(&self) -> usize {
        0
    }

    fn read_bytes(&self, _: Range<usize>, _: &mut [u8]) -> Result<()> {
        Ok(())
    }

    fn pager(&self) -> Option<&Pager> {
        self.pager
    }

    fn devices(&self) -> Vec<(&Arc<dyn Device>, &Counters)> {
        self.devices.iter().map(|(device, counters)| (device, *counters)).collect()
    }

    fn examine(&self, _: &[Operand<'_>], range: &Range<usize>, by: &Examination<'_>) -> Result<()> {
        let (dealt, mut attempts) = (by.0.dealt(), 0);
        read_all(&dealt, &mut || {
            attempts += 1;
            if attempts > 1 {
                return Err(unsettled().into());
            }
            self.run(range, by.0)
        })
    }
}
