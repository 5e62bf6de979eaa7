//! Division of the list of a gather or scatter among devices. Each device moves the elements in its own home
//! slots (places of pages in device memory). If every device can access all elements, the list is instead cut
//! into parts, and any device may move any part.

use std::sync::Arc;

use backend_api::{Device, DeviceSpan, Elements, LaunchView, Scatter, Ticket};

use super::places::Places;
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::engine::channel::{Channel, HomeQueues};
use crate::engine::pager::{Pager, SharedHomes};

/// The channels (devices and queues) that move the elements of an array in gathers and scatters.
#[derive(Debug)]
pub(super) struct Lanes<'a> {
    pager: &'a Pager,
    pool: Option<&'a SharedHomes>,
    /// The addresses and queues of all channels' home slots, if all devices can access them.
    bases: Vec<DeviceSpan<'a>>,
    queues: Vec<&'a HomeQueues>,
    len: usize,
    page_len: usize,
    stride: usize,
}

impl<'a> Lanes<'a> {
    pub fn of<T: Element, D: Device>(array: &'a VirtualArray<T, D>) -> Self {
        Self::with(array, array.pager().pool())
    }

    /// Returns the channels (shares of devices) for a list that is divided by devices: each device moves only
    /// the elements in its own home slots (places of pages in device memory).
    pub fn divided<T: Element, D: Device>(array: &'a VirtualArray<T, D>) -> Self {
        Self::with(array, None)
    }

    fn with<T: Element, D: Device>(array: &'a VirtualArray<T, D>, pool: Option<&'a SharedHomes>) -> Self {
        let pager = array.pager();
        Self {
            pager,
            pool,
            bases: pool.map_or_else(Vec::new, |_| pager.slot_bases()),
            queues: pool.map_or_else(Vec::new, |_| pager.home_queues()),
            len: array.len(),
            page_len: array.page_len(),
            stride: size_of::<T>(),
        }
    }

    /// Call it after a failure. Returns true if a device is lost and the list was not divided by devices. The
    /// caller must then continue with a list [`divided`](Self::divided) by devices.
    pub fn divide_if_lost(&self) -> bool {
        let is_lost = |device: &Arc<dyn Device>| {
            device.memory().is_err_and(|error| error.kind() == backend_api::ErrorKind::Lost)
        };
        self.pool.filter(|_| self.devices().any(is_lost)).inspect(|pool| pool.end()).is_some()
    }

    /// Returns true if each device moves only the elements in its own memory.
    pub fn is_divided(&self) -> bool {
        self.pool.is_none() && self.pager.channels().len() > 1
    }

    /// Returns the channels (shares of devices) whose devices can move any part of a list. A single channel
    /// can always do so.
    pub fn any_part(&self) -> &[usize] {
        self.pool.map_or(&[0], SharedHomes::lanes)
    }

    pub fn devices(&self) -> impl Iterator<Item = &Arc<dyn Device>> {
        self.pager.channels().iter().map(|channel| channel.device())
    }

    /// Returns the mapping from indices of the array to home slots (places of pages in device memory).
    pub fn homes(&self) -> Places {
        Places::new(self.len, self.page_len, self.pager.channels().len())
    }

    /// Returns the mapping from array indices to the positions of elements in [`elements`](Self::elements).
    /// If every device can move all elements, successive calls choose devices in turn.
    pub fn places(&self) -> Places {
        let places = self.homes();
        self.pool.map_or(places, |pool| places.moved_by(pool.next_lane()))
    }

    /// Returns the elements that the device of a channel (share of a device) can move: all elements, or only
    /// the channel's own.
    pub fn elements(&self, channel: usize) -> LaunchView<'_> {
        let stride = self.stride as u64;
        if self.pool.is_none() {
            let of = &self.pager.channels()[channel];
            return Elements { start: of.slot_memory(), count: of.slot_bytes() / stride, stride }.into();
        }
        LaunchView::Striped {
            bases: &self.bases,
            page_len: self.page_len as u64,
            count: self.len as u64,
            stride,
        }
    }

    /// Returns the device addresses of the elements from index `start` on, one address for each channel
    /// (share of a device). Returns `None` unless `start` is a multiple of the page length times the number
    /// of channels. A single channel has an address for any `start`.
    pub fn bases_from(&self, start: usize) -> Option<Vec<DeviceSpan<'_>>> {
        if self.pool.is_none() {
            let home = self.channel(0).slot_memory();
            return (!self.is_divided()).then(|| vec![home.plus((start * self.stride) as u64)]);
        }
        let row = self.page_len * self.bases.len();
        let before = start / row * self.page_len * self.stride;
        start.is_multiple_of(row).then(|| self.bases.iter().map(|base| base.plus(before as u64)).collect())
    }

    /// Returns a view of the first `count` elements from `bases` (see [`bases_from`](Self::bases_from)).
    pub fn elements_at<'b>(&self, bases: &'b [DeviceSpan<'b>], count: usize) -> LaunchView<'b> {
        let (page_len, count, stride) = (self.page_len as u64, count as u64, self.stride as u64);
        match bases {
            [start] => Elements { start: *start, count, stride }.into(),
            bases => LaunchView::Striped { bases, page_len, count, stride },
        }
    }

    /// Submits a gather of listed elements to a channel (share of a device), by `submit`. The gather runs
    /// after earlier writes to these elements, and before later ones.
    pub fn read(
        &self,
        channel: usize,
        submit: &mut dyn FnMut(&backend_api::Queue<dyn Device>) -> backend_api::Result<Ticket>,
    ) -> backend_api::Result<Ticket> {
        match self.pool {
            Some(_) => HomeQueues::between_writes_of_all(&self.queues, channel, submit),
            None => self.channel(channel).queues.between_writes(&[], submit),
        }
    }

    pub fn channel(&self, channel: usize) -> &'a Channel {
        &self.pager.channels()[channel]
    }

    /// Returns a count of submitted operations on the device memory that `channel` (share of a device) reads:
    /// loads of pages to RAM, and fills of pages.
    pub fn loads_begun(&self, channel: usize) -> u64 {
        match self.pool {
            Some(_) => self.queues.iter().map(|queues| queues.loads_begun()).sum(),
            None => self.channel(channel).queues.loads_begun(),
        }
    }

    /// Submits scatters to elements of pages that are not in the cache, as [`HomeQueues::scatter_home`] does
    /// with `begun` and `choose`. If all devices can access all elements, the scatters of all channels
    /// (shares of devices) run concurrently. Otherwise only the scatter of `channel` runs.
    pub fn scatter<'s>(
        &self,
        channel: usize,
        begun: u64,
        choose: impl FnOnce(bool) -> Vec<(usize, Scatter<'s>)>,
    ) -> (Vec<(usize, Ticket)>, backend_api::Result<()>) {
        if self.pool.is_some() {
            return HomeQueues::scatter_homes(&self.queues, begun, choose);
        }
        let queues = &self.channel(channel).queues;
        let chosen = |has_changed| choose(has_changed).pop().map(|(_, scatter)| scatter);
        match queues.scatter_home(begun, chosen) {
            Ok(ticket) => (ticket.map(|ticket| (channel, ticket)).into_iter().collect(), Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        }
    }

    /// Returns the number of failed write-backs to memory that the device of a channel (share of a device)
    /// may read.
    pub fn failed_write_backs(&self, channel: usize) -> u64 {
        match self.pool {
            Some(_) => self.pager.failed_write_backs(),
            None => self.channel(channel).failed_write_backs(self.pager.table()),
        }
    }
}
