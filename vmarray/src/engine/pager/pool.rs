//! Arrays whose home slots each of their devices reaches: then a list of elements is cut anywhere, and each
//! device moves its part, whichever of them the elements live on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use backend_api::{DeviceSpan, Gather, HostBuffer, HostMemory, Queue, Reach, Result, View};

use super::Pager;
use crate::engine::channel::HomeQueues;
use crate::engine::links::reach;

/// The devices that reach all home slots of an array with several channels.
#[derive(Debug)]
pub(crate) struct SharedHomes {
    /// For each device one of its channels, whose queues and host memory it works with.
    lanes: Vec<usize>,
    /// So that short lists do not all go to the first device.
    next: AtomicUsize,
    /// Whether work failed that a device did for others.
    has_failed: AtomicBool,
}

impl SharedHomes {
    pub(crate) fn lanes(&self) -> &[usize] {
        &self.lanes
    }

    /// The channel whose device is to do the next part of some work.
    pub(crate) fn next_lane(&self) -> usize {
        self.lanes[self.next.fetch_add(1, Ordering::Relaxed) % self.lanes.len()]
    }

    /// From now on each device works for itself: a lost one is to take no more than its own elements.
    pub(crate) fn end(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }
}

impl Pager {
    /// The devices that reach all home slots, if they do so, and there are several channels. Links are tried
    /// when this is asked for the first time, with no lock held.
    pub(crate) fn pool(&self) -> Option<&SharedHomes> {
        let pool = self.pool.get_or_init(|| self.find_pool()).as_ref();
        pool.filter(|pool| !pool.has_failed.load(Ordering::Relaxed))
    }

    fn find_pool(&self) -> Option<SharedHomes> {
        let channels = &self.channels;
        if !(2..=View::BASES_MAX).contains(&channels.len()) || !self.redundancy.is_none() {
            return None;
        }
        let mut lanes: Vec<usize> = Vec::new();
        for (number, channel) in channels.iter().enumerate() {
            if lanes.iter().all(|lane| !Arc::ptr_eq(channels[*lane].device(), channel.device())) {
                lanes.push(number);
            }
        }
        let devices = || lanes.iter().map(|lane| channels[*lane].device());
        let is_reached = devices().all(|from| devices().all(|to| reach(from, to) == Reach::Maps));
        (is_reached && lanes.iter().all(|lane| self.takes_pages(*lane).is_ok())).then(|| SharedHomes {
            lanes,
            next: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
        })
    }

    /// Asks a device whether it takes lists of elements that are dealt out to all channels.
    fn takes_pages(&self, lane: usize) -> Result<()> {
        let device = self.channels[lane].device();
        let (queue, host) = (Queue::new(device)?, HostBuffer::new(device, 8, HostMemory::Pageable)?);
        let bases = self.slot_bases();
        let elements = View::Dealt { bases: &bases, page_len: self.page_bytes as u64, count: 0, stride: 1 };
        let nothing = Gather { elements, indices: host.at(0), count: 0, values: host.at(0) };
        device.wait(queue.gather(&nothing)?)
    }

    /// Where the home slots of each channel begin.
    pub(crate) fn slot_bases(&self) -> Vec<DeviceSpan<'static>> {
        self.channels.iter().map(|channel| channel.slot_memory()).collect()
    }

    /// The queues of all channels.
    pub(crate) fn home_queues(&self) -> Vec<&HomeQueues> {
        self.channels.iter().map(|channel| &channel.queues).collect()
    }
}
