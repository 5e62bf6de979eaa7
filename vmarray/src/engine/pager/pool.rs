//! Device pools: arrays whose devices can all access the memory of each other. A list of indices can then be
//! split anywhere: each device processes its part, even if another device stores the elements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use backend_api::{DeviceSpan, Gather, HostBuffer, HostMemory, LaunchView, Queue, Result};

use super::Pager;
use crate::engine::channel::HomeQueues;
use crate::engine::links::all_map;

/// The devices of an array with several channels, if each can access the home slots of all channels.
#[derive(Debug)]
pub(crate) struct SharedHomes {
    /// One channel of each device; its queues and host memory serve the device's work.
    lanes: Vec<usize>,
    /// Number of the next lane, so that short lists do not all go to the first device.
    next: AtomicUsize,
    /// True if a device's work on another device's elements has failed.
    has_failed: AtomicBool,
}

impl SharedHomes {
    pub(crate) fn lanes(&self) -> &[usize] {
        &self.lanes
    }

    /// Returns the channel whose device gets the next part.
    pub(crate) fn next_lane(&self) -> usize {
        self.lanes[self.next.fetch_add(1, Ordering::Relaxed) % self.lanes.len()]
    }

    /// Ends the pool: from now on each device works on its own elements only, so one loss affects no others.
    pub(crate) fn end(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }
}

impl Pager {
    /// Returns the pool, if there are several channels whose devices can all access all home slots. The first
    /// call tests the links, without locks.
    pub(crate) fn pool(&self) -> Option<&SharedHomes> {
        let pool = self.pool.get_or_init(|| self.find_pool()).as_ref();
        pool.filter(|pool| !pool.has_failed.load(Ordering::Relaxed))
    }

    fn find_pool(&self) -> Option<SharedHomes> {
        let channels = &self.channels;
        if !(2..=LaunchView::BASES_MAX).contains(&channels.len()) || !self.redundancy.is_none() {
            return None;
        }
        let mut lanes: Vec<usize> = Vec::new();
        for (number, channel) in channels.iter().enumerate() {
            if lanes.iter().all(|lane| !Arc::ptr_eq(channels[*lane].device(), channel.device())) {
                lanes.push(number);
            }
        }
        let is_reached = all_map(lanes.iter().map(|lane| channels[*lane].device()));
        (is_reached && lanes.iter().all(|lane| self.takes_pages(*lane).is_ok())).then(|| SharedHomes {
            lanes,
            next: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
        })
    }

    /// Tests if a device accepts lists of indices of elements that are striped over all channels.
    fn takes_pages(&self, lane: usize) -> Result<()> {
        let device = self.channels[lane].device();
        let (queue, host) = (Queue::new(device)?, HostBuffer::new(device, 8, HostMemory::Pageable)?);
        let bases = self.slot_bases();
        let elements =
            LaunchView::Striped { bases: &bases, page_len: self.page_bytes as u64, count: 0, stride: 1 };
        let nothing = Gather { elements, indices: host.at(0), count: 0, values: host.at(0) };
        device.wait(queue.submit(&nothing)?)
    }

    /// Returns the address of the first home slot of each channel.
    pub(crate) fn slot_bases(&self) -> Vec<DeviceSpan<'static>> {
        self.channels.iter().map(|channel| channel.slot_memory()).collect()
    }

    pub(crate) fn home_queues(&self) -> Vec<&HomeQueues> {
        self.channels.iter().map(|channel| &channel.queues).collect()
    }
}
