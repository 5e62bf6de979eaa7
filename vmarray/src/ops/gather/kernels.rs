//! The kernels that gather what one thread, or one task, has found to be in home slots alone.

use std::collections::VecDeque;

use std::sync::Arc;

use backend_api::Ticket;

use super::lanes::Lanes;
use super::places::ListedPlace;
use super::stage::{GatherStage, StagePlan};
use crate::base::element::Element;
use crate::base::error::Result;

/// How many stages of each channel are under way at once, beside the one that is filled.
pub(super) const DEPTH: usize = 2;

/// A stage whose kernel was started.
struct UnderWay<T> {
    channel: usize,
    stage: GatherStage<T>,
    ticket: Ticket,
    /// How many write-backs of the channel had failed before the first of its elements was looked for.
    failures: u64,
}

/// Stages that are filled, worked off in order, and used again.
pub(super) struct GatherKernels<'a, T: Element> {
    lanes: Arc<Lanes<'a>>,
    plan: StagePlan,
    /// For each channel the stage that is being filled, and the failures before.
    open: Vec<Option<(GatherStage<T>, u64)>>,
    under_way: VecDeque<UnderWay<T>>,
    /// For each channel stages that were emptied.
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

    /// The stage of a channel that is being filled.
    #[inline]
    pub(super) fn open(&mut self, channel: usize) -> Option<&mut GatherStage<T>> {
        self.open[channel].as_mut().map(|(stage, _)| stage)
    }

    /// Adds an element that is in its home slot alone. From here on to the kernel's end the slot holds the
    /// element as it is now, or as somebody writes it meanwhile; or there are more failures to write it back
    /// than before. False if there is no room for it.
    #[inline]
    pub(super) fn try_push(&mut self, place: ListedPlace, position: usize) -> bool {
        self.open(place.channel).is_some_and(|stage| stage.try_push(place.element, position))
    }

    /// Whether a kernel may leave out places of the list behind the last element that was added, and so
    /// overwrite their values.
    #[inline]
    pub(super) fn may_leave_out(&self) -> bool {
        self.plan.is_direct() && self.open.iter().flatten().any(|(stage, _)| stage.count() > 0)
    }

    /// Whether as many stages of a channel are under way as may be.
    pub(super) fn is_busy(&self, channel: usize) -> bool {
        self.under_way.iter().filter(|work| work.channel == channel).count() >= DEPTH
    }

    /// Opens a new stage of a channel, which is not busy. Its next element is to be looked for after this.
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

    /// Starts the kernel of the stage that is being filled, if there is one.
    pub(super) fn start(&mut self, channel: usize) -> Result<()> {
        let Some((stage, failures)) = self.open[channel].take() else { return Ok(()) };
        if stage.count() == 0 {
            self.spare[channel].push(stage);
            return Ok(());
        }
        let of = self.lanes.channel(channel);
        let gather = stage.gather(of, self.lanes.elements(channel));
        let ticket = self.lanes.read(channel, |queue| queue.gather(&gather))?;
        of.counters.bytes_to_device.add(8 * stage.count() as u64);
        self.under_way.push_back(UnderWay { channel, stage, ticket, failures });
        Ok(())
    }

    pub(super) fn start_all(&mut self) -> Result<()> {
        (0..self.open.len()).try_for_each(|channel| self.start(channel))
    }

    /// The oldest kernel that is under way: its channel and its ticket.
    pub(super) fn oldest(&self) -> Option<(usize, Ticket)> {
        self.under_way.front().map(|work| (work.channel, work.ticket))
    }

    /// Takes in the values of the oldest kernel, which is done: `take` is given its stage, and whether the
    /// values are sound. If a page could not be written back meanwhile, one that was loaded since may have
    /// got garbage for a home.
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
            // What the kernel reads is of no use, but it has to end, and its queue to look idle then.
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
