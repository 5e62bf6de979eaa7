//! The runs of an array. A run is a range of elements that is contiguous in the memory of one device.
//! Reductions and searches process all home slots (places of pages in device memory) of a channel (share of a
//! device) as one run.

use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::{Device, Elements, Queue, Reach, Ticket};
use vmarray_support::links::is_same;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::stats::Counters;
use crate::engine::channel::{Channel, HomeQueues, PinnedPiece};
use crate::engine::pager::Pager;
use crate::ops::executor::{Lane, Operand, Run, RunAccess, are_groups_within_pages, within_channel};

/// A channel that processes runs, and other channels whose home slots a run reads.
pub(super) struct ArrayLane<'a> {
    pub channel: &'a Channel,
    pub neighbours: Vec<&'a HomeQueues>,
    /// The other channels (shares of devices) whose home slots (places of pages in device memory) the run
    /// (contiguous elements) writes.
    pub written: Vec<&'a HomeQueues>,
}

/// Another array whose elements a run uses in place, because they are colocated with the run's elements.
#[derive(Clone, Copy)]
pub(super) struct Colocated<'a> {
    pub pager: &'a Pager,
    pub stride: usize,
    /// A pair of corresponding elements: index `start` in the other array, index `own_start` in the array of
    /// the run (contiguous elements on a device).
    pub start: usize,
    pub own_start: usize,
    /// True if the operation changes elements of this other array.
    pub is_changed: bool,
}

impl Colocated<'_> {
    /// Returns true if corresponding elements have the same index in both arrays, and both arrays have pages
    /// of `page_len` elements.
    pub fn is_alike(&self, page_len: usize) -> bool {
        self.start == self.own_start && page_len == self.page_len()
    }

    fn page_len(&self) -> usize {
        self.pager.page_bytes() / self.stride
    }

    /// Returns the pages of the other array with the elements that correspond to the elements in `range`.
    pub fn pages(&self, range: &Range<usize>) -> Range<u64> {
        let of = |index: usize| self.start + (index - self.own_start);
        (of(range.start) / self.page_len()) as u64..of(range.end).div_ceil(self.page_len()) as u64
    }
}

impl<'a> ArrayLane<'a> {
    /// Creates a lane: a channel (share of a device) that processes runs in its own memory.
    pub fn of(channel: &'a Channel) -> Self {
        Self { channel, neighbours: Vec::new(), written: Vec::new() }
    }

    /// Allows runs (contiguous elements) to read home slots (places of pages in device memory) of the arrays
    /// in `striped`: all slots in channels (shares of devices) that the run's device can access.
    pub fn reads_all_of(&mut self, striped: &[(&'a Pager, Range<u64>)]) {
        let own = self.channel.device();
        let channels = striped.iter().flat_map(|(pager, _)| pager.channels());
        let reached = channels.filter(|channel| {
            is_same(own, channel.device()) || own.reaches(channel.device().info()) >= Reach::Copies
        });
        self.neighbours.extend(reached.map(|channel| &channel.queues));
    }
}

impl Lane for ArrayLane<'_> {
    fn device(&self) -> &Arc<dyn Device> {
        self.channel.device()
    }

    fn counters(&self) -> &Counters {
        &self.channel.counters
    }

    fn buffer(&self, bytes: usize) -> Result<PinnedPiece> {
        self.channel.take_pinned(bytes)
    }

    fn keep(&self, memory: PinnedPiece) {
        self.channel.put_pinned(memory);
    }

    fn submit(
        &self,
        access: RunAccess,
        work: &mut dyn FnMut(&Queue<dyn Device>) -> backend_api::Result<Ticket>,
    ) -> backend_api::Result<Ticket> {
        match access {
            RunAccess::Read => self.channel.queues.between_writes(&self.neighbours, work),
            RunAccess::Change | RunAccess::Overwrite => {
                self.channel.queues.between_all_writes(&self.neighbours, &self.written, work)
            }
        }
    }

    fn wait(&self, ticket: Ticket) -> backend_api::Result<()> {
        self.channel.queues.wait(ticket)
    }
}

/// A run of one channel's elements, with the colocated elements of other arrays.
pub(super) struct ArrayRun<'a> {
    pub lane: ArrayLane<'a>,
    pub columns: Vec<Elements<'a>>,
    pub geometry: Geometry,
}

impl ArrayRun<'_> {
    pub fn run(&self) -> Run<'_> {
        Run { columns: &self.columns, geometry: self.geometry }
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    pub(super) fn home_elements(&self) -> HomeElements<'_> {
        let (page_len, last) = (self.page_len(), (self.max_len(), self.page_count()));
        HomeElements { pager: self.pager(), page_len, stride: size_of::<T>(), last }
    }
}

/// An array as untyped elements in its home slots.
#[derive(Clone, Copy)]
pub(super) struct HomeElements<'h> {
    pub pager: &'h Pager,
    pub page_len: usize,
    pub stride: usize,
    /// The array's greatest length in elements, and its number of pages.
    last: (usize, usize),
}

impl<'h> HomeElements<'h> {
    pub fn channels(&self) -> &'h [Arc<Channel>] {
        self.pager.channels()
    }

    /// Returns the pages that contain elements of a range.
    pub fn touched_pages(&self, range: &Range<usize>) -> Range<u64> {
        if range.is_empty() {
            return 0..0;
        }
        (range.start / self.page_len) as u64..range.end.div_ceil(self.page_len) as u64
    }

    /// Returns the pages of which all elements lie in `range`. If `range` ends at the array's greatest
    /// length, a partial last page is included. See [`VirtualArray::whole_pages`].
    pub fn whole_pages(&self, range: &Range<usize>) -> Range<u64> {
        let (max_len, page_count) = self.last;
        let start = range.start.div_ceil(self.page_len);
        let end = if range.end == max_len { page_count } else { range.end / self.page_len };
        start as u64..end.max(start) as u64
    }

    pub fn has_whole_groups(&self, group_len: usize, range: &Range<usize>) -> bool {
        self.channels().len() == 1 || are_groups_within_pages(group_len, self.page_len, range)
    }

    /// Returns the elements of `other` that an operation can process in place, together with this array's
    /// elements from index `first` on. Returns `None` unless they are colocated: at the same offset in the
    /// same channel (share of a device). If each array has only one channel, of the same device, elements
    /// that the operation only reads may have any offset.
    pub fn colocated<'a>(&self, other: &Operand<'a>, first: usize) -> Option<Colocated<'a>> {
        let (own, pager, stride) = (self.pager, other.store.pager()?, other.stride());
        let is_changed = other.target.is_some();
        let colocated = Colocated { pager, stride, start: other.start, own_start: first, is_changed };
        // Devices may read at shifted positions only if the operation does not change the array. Otherwise
        // devices would read changed elements.
        let is_anywhere = own.channels().len() == 1 && !is_changed && !std::ptr::eq(pager, own);
        let is_beside = is_anywhere || colocated.is_alike(self.page_len);
        (is_beside && own.is_striped_like(pager)).then_some(colocated)
    }

    /// Returns the first channel (share of a device). Operations copy elements there if devices cannot
    /// process them in place.
    pub fn staging_lane(&self) -> ArrayLane<'h> {
        ArrayLane::of(&self.channels()[0])
    }

    /// Returns a run: the elements `within` of a channel (share of a device), counted from the channel's
    /// first element, and the corresponding elements of the arrays in `colocated`.
    pub fn run<'a>(&self, colocated: &[Colocated<'a>], channel: usize, within: &Range<u64>) -> ArrayRun<'a>
    where
        'h: 'a,
    {
        let others = colocated.iter().map(|other| {
            let further = (within.start + other.start as u64).wrapping_sub(other.own_start as u64);
            (other.pager, other.stride, further)
        });
        let columns = [(self.pager, self.stride, within.start)].into_iter().chain(others);
        let columns = columns.map(|(pager, stride, first)| {
            let start = pager.channels()[channel].slot_memory().plus(first * stride as u64);
            Elements { start, count: within.end - within.start, stride: stride as u64 }
        });
        let (channels, page_len) = (self.channels(), self.page_len as u64);
        let queues = |other: &Colocated<'a>| &other.pager.channels()[channel].queues;
        ArrayRun {
            columns: columns.collect(),
            geometry: Geometry {
                first: within.start,
                page_len,
                channel: channel as u64,
                channels: channels.len() as u64,
            },
            lane: ArrayLane {
                channel: &channels[channel],
                neighbours: colocated.iter().map(queues).collect(),
                written: colocated.iter().filter(|other| other.is_changed).map(queues).collect(),
            },
        }
    }

    /// Returns the elements of a range that [a channel stores](within_channel), counted from the first
    /// element of the channel (share of a device).
    pub fn elements_in_channel(&self, channel: usize, range: &Range<usize>) -> Range<u64> {
        within_channel((channel, self.channels().len()), self.page_len, range)
    }
}
