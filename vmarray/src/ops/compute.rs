//! Operations on the devices, by [expressions](crate::expr): elements are worked on where they lie. The
//! operations themselves are those of [`View`](crate::View) and [`ViewMut`](crate::ViewMut).

mod joined;
mod outcome;
mod plan;
mod reduce;
mod select;
mod staged;
mod store;

use std::ops::Range;

use backend_api::expr::Geometry;
use backend_api::{Compute, Device, Elements};

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::engine::channel::HomeQueues;
use crate::engine::pager::Pager;

pub use joined::{Column, Joinable, Joined, Row};
pub use plan::Plan;
pub use reduce::Reduction;
pub use select::Selected;
pub use store::{Operand, Other};

pub(crate) use outcome::{Outcome, changes_nothing};
pub(crate) use plan::Condition;
pub(crate) use reduce::{Answer, Extremes, Histogram, Total};
pub(crate) use select::Ordered;
pub(crate) use staged::StagedRows;
pub(crate) use store::STAGED_BYTES;

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// What the elements of a range come to, together with those of others beside them.
    pub(crate) fn reduce<R: Reduction>(
        &self,
        others: &[Operand<'_, D>],
        range: &Range<usize>,
        reduction: &R,
    ) -> Result<R::Whole> {
        if range.is_empty() {
            return Ok(reduction.whole(Vec::new()));
        }
        if !self.has_beside(others, range) {
            return self.rows(others, range).reduce(reduction);
        }
        self.read_together(others, range, || self.ask_all_channels(others, range, reduction))
    }

    /// Whether devices have the elements of others beside those of a range.
    pub(crate) fn has_beside(&self, others: &[Operand<'_, D>], range: &Range<usize>) -> bool {
        others.iter().all(|other| other.is_placed_as(self, range.start))
    }

    /// The elements of a range together with others, to be asked about on the first device.
    pub(crate) fn rows<'a>(&'a self, others: &[Operand<'a, D>], range: &Range<usize>) -> StagedRows<'a, D> {
        let channel = &self.pager().channels()[0];
        let copied = [&channel.counters.bytes_to_device, &channel.counters.bytes_from_device];
        StagedRows::new(self, others, range, channel.device(), copied)
    }

    /// Has `work` look at the home slots of a range, and at those of others that lie beside them.
    pub(crate) fn read_together<R>(
        &self,
        others: &[Operand<'_, D>],
        range: &Range<usize>,
        mut work: impl FnMut() -> Result<R>,
    ) -> Result<R> {
        let pages = self.touched_pages(range);
        let pagers: Vec<_> = others.iter().filter_map(|other| other.pager()).chain([self.pager()]).collect();
        read_all(&pagers, &pages, &mut work)
    }

    /// What a channel's device is to look at: elements, those of others beside them, and the channels that
    /// have these.
    pub(crate) fn beside<'a>(
        &'a self,
        others: &[Operand<'a, D>],
        channel: usize,
        within: &Range<u64>,
    ) -> (Vec<Elements<'a>>, Vec<&'a HomeQueues<D>>) {
        let elements = |pager: &'a Pager<D>, stride: usize| {
            let start = pager.channels()[channel].slot_memory().plus(within.start * stride as u64);
            Elements { start, count: within.end - within.start, stride: stride as u64 }
        };
        let mut sources = vec![elements(self.pager(), size_of::<T>())];
        let mut neighbours = Vec::new();
        for other in others {
            if let Some(pager) = other.pager() {
                sources.push(elements(pager, other.stride()));
                neighbours.push(&pager.channels()[channel].queues);
            }
        }
        (sources, neighbours)
    }

    fn ask_all_channels<R: Reduction>(
        &self,
        others: &[Operand<'_, D>],
        range: &Range<usize>,
        reduction: &R,
    ) -> Result<R::Whole> {
        let channels = self.pager().channels();
        let mut asked = Vec::with_capacity(channels.len());
        for (at, channel) in channels.iter().enumerate() {
            let within = self.elements_in_channel(at, range);
            if within.is_empty() {
                continue;
            }
            let (sources, neighbours) = self.beside(others, at, &within);
            let answer = channel.take_pinned(reduction.answer_bytes() as usize)?;
            let geometry = self.geometry_of(at, within.start);
            let (program, action) = (reduction.program(), reduction.action(answer.at(0)));
            let compute = Compute { program, sources: &sources, geometry, action };
            // Before anything is locked. What goes wrong is told by the computation itself.
            let _ = channel.device().prepare(&compute);
            let ticket = channel.queues.between_writes(&neighbours, |queue| queue.compute(&compute))?;
            asked.push((channel, geometry, ticket, answer));
        }
        let mut parts = Vec::with_capacity(asked.len());
        for (channel, geometry, ticket, memory) in asked {
            channel.queues.wait(ticket)?;
            let answer = Answer { memory: &memory, copied: &channel.counters.bytes_from_device };
            let mut part = R::Part::default();
            reduction.take(&mut part, &answer, &|number| geometry.index(number) as usize);
            parts.push(part);
            channel.put_pinned(memory);
        }
        Ok(reduction.whole(parts))
    }

    /// Which elements those of a channel are, from one of them on.
    pub(crate) fn geometry_of(&self, channel: usize, first: u64) -> Geometry {
        let channels = self.pager().channels().len() as u64;
        Geometry { first, page_len: self.page_len() as u64, channel: channel as u64, channels }
    }
}

/// Has `work` look at the same pages' home slots of several arrays.
fn read_all<D: Device, R>(
    pagers: &[&Pager<D>],
    pages: &Range<u64>,
    work: &mut dyn FnMut() -> Result<R>,
) -> Result<R> {
    match pagers.split_first() {
        None => work(),
        Some((first, others)) => first.read_settled(pages, || read_all(others, pages, work)),
    }
}
