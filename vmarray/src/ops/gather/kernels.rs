//! The kernels that one gather submits to devices, for the elements of pages that are not in RAM.

use std::collections::VecDeque;

use std::sync::Arc;

use backend_api::Ticket;

use super::lanes::Lanes;
use super::places::ListedPlace;
use super::stage::{GatherStage, StagePlan};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::executor::WorkQueue;

/// The number of stages in flight on each channel, in addition to the stage that the thread is filling.
pub(super) const DEPTH: usize = 2;

/// A stage whose kernel is in flight.
struct UnderWay<T> {
    channel: usize,
    stage: GatherStage<T>,
    ticket: Ticket,
    /// The channel's number of failed write-backs before the first element of the stage was looked up.
    failures: u64,
}

/// The stages of one thread of a gather: it fills them, submits them in order, and reuses them.
pub(super) struct GatherKernels<'a, T: Element> {
    lanes: Arc<Lanes<'a>>,
    plan: StagePlan,
    /// The stage of each channel that is being filled, and the number of failed write-backs before.
    open: Vec<Option<(GatherStage<T>, u64)>>,
    under_way: VecDeque<UnderWay<T>>,
    spare: Vec<Vec<GatherStage<T>>>,
}

impl<'a, T: Element> GatherKernels<'a, T> {
    pub(super) fn new(lanes: &Arc<Lanes<'a>>, plan: StagePlan) -> Self {
        let channels = lanes.devices().count();
        Self {
            lanes: Arc::clone(lanes),
            plan,
            open: (0..channels).map(|_| None).collect(),
            under_way: VecDeque::new(),
            spare: (0..channels).map(|_| Vec::new()).collect(),
        }
    }

    /// Returns the stage of a channel that is being filled at present.
    #[inline]
    pub(super) fn open(&mut self, channel: usize) -> Option<&mut GatherStage<T>> {
        self.open[channel].as_mut().map(|(stage, _)| stage)
    }

    /// Adds an element that is only in its home slot. Returns false if the stage is full. The kernel reads
    /// the element's present value, or a value that another thread writes meanwhile. If neither is true, the
    /// number of failed write-backs has grown.
    #[inline]
    pub(super) fn try_push(&mut self, place: ListedPlace, position: usize) -> bool {
        self.open(place.channel).is_some_and(|stage| stage.try_push(place.element, position))
    }

    /// Returns true if a kernel may skip entries of the list after the last element, and overwrite their
    /// values.
    #[inline]
    pub(super) fn may_leave_out(&self) -> bool {
        self.plan.is_direct() && self.open.iter().flatten().any(|(stage, _)| stage.count() > 0)
    }

    /// Returns true if the maximum number of stages is in flight on a channel.
    pub(super) fn is_busy(&self, channel: usize) -> bool {
        self.under_way.iter().filter(|work| work.channel == channel).count() >= DEPTH
    }

    /// Opens a new stage of a channel that is not busy. The caller must look up the pages of the stage's
    /// elements after this call.
    pub(super) fn open_stage(&mut self, channel: usize) -> Result<()> {
        let of = self.lanes.channel(channel);
        let mut stage = match self.spare[channel].pop() {
            Some(stage) => stage,
            None => GatherStage::new(of, &self.plan)?,
        };
        let failures = self.lanes.failed_write_backs(channel);
        stage.clear();
        self.open[channel] = Some((stage, failures));
        Ok(())
    }

    /// Submits the kernel of the stage that is being filled, if there is one.
    pub(super) fn start(&mut self, channel: usize) -> Result<()> {
        let Some((stage, failures)) = self.open[channel].take() else { return Ok(()) };
        if stage.count() == 0 {
            self.spare[channel].push(stage);
            return Ok(());
        }
        let of = self.lanes.channel(channel);
        let gather = stage.gather(of, self.lanes.elements(channel));
        let ticket = self.lanes.read(channel, &mut |queue| {
            WorkQueue::new(queue, Some(&of.counters), Some(stage.host())).submit(&gather)
        })?;
        of.counters.bytes_to_device.add(8 * stage.count() as u64);
        self.under_way.push_back(UnderWay { channel, stage, ticket, failures });
        Ok(())
    }

    pub(super) fn start_all(&mut self) -> Result<()> {
        (0..self.open.len()).try_for_each(|channel| self.start(channel))
    }

    /// Returns the oldest kernel in flight: its channel and its ticket.
    pub(super) fn oldest(&self) -> Option<(usize, Ticket)> {
        self.under_way.front().map(|work| (work.channel, work.ticket))
    }

    /// Removes the oldest kernel, which has ended, and passes its stage to `take`. The flag is true if the
    /// values are valid. They are invalid if a write-back has failed meanwhile, because the home of a page
    /// loaded since then may have undefined contents.
    pub(super) fn take_oldest(
        &mut self,
        take: impl FnOnce(&GatherStage<T>, bool) -> Result<()>,
    ) -> Result<()> {
        let Some(UnderWay { channel, stage, failures, .. }) = self.under_way.pop_front() else {
            return Ok(());
        };
        let of = self.lanes.channel(channel);
        of.counters.bytes_from_device.add((stage.count() * size_of::<T>()) as u64);
        let taken = take(&stage, self.lanes.failed_write_backs(channel) == failures);
        self.spare[channel].push(stage);
        taken
    }
}

impl<T: Element> Drop for GatherKernels<'_, T> {
    fn drop(&mut self) {
        for UnderWay { channel, stage, ticket, .. } in self.under_way.drain(..) {
            // The values are not needed, but wait: the kernel must end before its memory is reused, and
            // before its queue counts as idle.
            if self.lanes.channel(channel).queues.wait(ticket).is_ok() {
                self.spare[channel].push(stage);
            }
        }
        for (channel, (spare, open)) in self.spare.iter_mut().zip(&mut self.open).enumerate() {
            let open = open.take().map(|(stage, _)| stage);
            let of = self.lanes.channel(channel);
            spare.drain(..).chain(open).for_each(|stage| stage.give_back(of));
        }
    }
}
