//! Predictions of an operation before it runs: its pages, bytes, data path, and least duration.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use backend_api::{Device, readable_bytes};

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::engine::page::state::{DIRTY, HOME, RESIDENT};
use crate::ops::gather::{check_list, spans};
use crate::setup::profile::Profile;
use crate::setup::profile::limits::{LimitedBy, time_for};

/// The kind of an operation (read, write, gather, …) whose cost [`explain`](crate::views::PagedView::explain)
/// predicts.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::explain::Work;
/// let array = VirtualArray::<u32>::builder(1000).page_len(100).build()?;
/// array.write(0, &[1; 1000])?;
/// array.evict(..)?;
/// // Three elements of an array that is not cached: three numbers there, three elements back.
/// let plan = array.explain(.., Work::Gather(&[5, 700, 5]))?;
/// assert_eq!((plan.pages, plan.bytes_to_device(), plan.bytes_from_device()), (2, 24, 12));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Work<'l> {
    /// The program reads the elements, for example by `read`, `to_vec`, `map` or an iterator.
    Read,
    /// The program overwrites the elements by `write`. The devices receive the elements immediately, or later
    /// when their pages are flushed or evicted.
    Write,
    /// Devices read the elements, for example by `find`, `count_where`, `sum`, and kernels with
    /// [`Own`](crate::kernel::Own) parameters.
    Ask,
    /// Devices change the elements, for example by `transform`, `assign_where`, or as results of kernels.
    Change,
    /// The program reads single elements by `gather`, with this list of indices.
    Gather(&'l [usize]),
}

/// The path of the elements between the program's memory and the devices: through the cache, or past it.
///
/// ```
/// use vmarray::explain::PlannedRoute;
/// assert_eq!(PlannedRoute::PastCache.to_string(), "past the cache");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PlannedRoute {
    /// The pages enter the cache in RAM, and are evicted later.
    ThroughCache,
    /// Elements of pages outside the cache pass through page-locked memory. The cache is unchanged.
    PastCache,
    /// Devices work on the elements in place, after dirty pages have been written back from the cache.
    OnDevices,
    /// Devices gather single elements from pages outside the cache.
    Collected,
    /// Threads read single elements from files in the order of their places, near ones together.
    Merged,
}

impl fmt::Display for PlannedRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ThroughCache => "through the cache",
            Self::PastCache => "past the cache",
            Self::OnDevices => "on the devices, in place",
            Self::Collected => "collected by the devices",
            Self::Merged => "from the files, near elements together",
        })
    }
}

/// The predicted cost of an operation on a view, if no other operation runs. Returned by
/// [`explain`](crate::views::PagedView::explain).
///
/// The byte counts equal the increase of [`ChannelStats`](crate::stats::ChannelStats) after the operation and
/// a flush. They omit the few bytes of query results. The time is a lower bound from the devices'
/// [profiles](crate::profile::Profile). An operation may take longer, for example because it waits for other
/// threads.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::explain::{Explained, Work};
/// let array = VirtualArray::<u32>::builder(1000).page_len(100).build()?;
/// let plan: Explained = array.explain(.., Work::Read)?;
/// assert!(plan.to_string().starts_with("10 pages (0 cached, 0 of them dirty), through the cache"), "{plan}");
/// // Pages that were never written are not stored.
/// assert_eq!((plan.bytes_to_device(), plan.bytes_from_device(), plan.bytes_in_place()), (0, 0, 0));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explained {
    /// The number of pages that contain elements of the operation.
    pub pages: u64,
    /// The number of the operation's pages that are in the cache.
    pub resident: u64,
    /// The number of the operation's dirty pages: pages in the cache that are newer than the copy on their
    /// device.
    pub dirty: u64,
    /// The path of the elements between the program's memory and the devices.
    pub route: PlannedRoute,
    /// Bytes that the calling thread copies in RAM, to or from the cache.
    pub bytes_in_ram: u64,
    /// The predicted work of each device.
    pub devices: Vec<PlannedDevice>,
    /// Lower bound of the duration. `None` if the measured speed of a device with work is not known.
    pub time: Option<Duration>,
    /// The resource (bus, device memory, …) that determines the largest part of [`time`](Self::time).
    pub bound: Option<LimitedBy>,
}

/// The predicted work of one device, summed over its channels (shares of the device).
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::explain::{PlannedDevice, Work};
/// let array = VirtualArray::<u32>::builder(1000).page_len(100).build()?;
/// let devices: Vec<PlannedDevice> = array.explain(.., Work::Change)?.devices;
/// assert_eq!(devices.iter().map(|device| device.bytes_in_place).sum::<u64>(), 8000);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedDevice {
    /// The name of the device, as error messages show it.
    pub device: String,
    /// Bytes that the operation copies to the device.
    pub bytes_to_device: u64,
    /// Bytes that the operation copies from the device.
    pub bytes_from_device: u64,
    /// Bytes that the device reads or writes in its own memory. A changed byte counts twice (read and write).
    pub bytes_in_place: u64,
}

impl Explained {
    /// Bytes that the operation copies to devices, in total.
    #[must_use]
    pub fn bytes_to_device(&self) -> u64 {
        self.devices.iter().map(|device| device.bytes_to_device).sum()
    }

    /// Bytes that the operation copies from devices, in total.
    #[must_use]
    pub fn bytes_from_device(&self) -> u64 {
        self.devices.iter().map(|device| device.bytes_from_device).sum()
    }

    /// Bytes that the devices read or write in their own memory, in total.
    #[must_use]
    pub fn bytes_in_place(&self) -> u64 {
        self.devices.iter().map(|device| device.bytes_in_place).sum()
    }
}

impl fmt::Display for Explained {
    /// Formats one line for the operation, and one for each device with work.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pages, resident, dirty, route, .. } = self;
        write!(f, "{pages} pages ({resident} cached, {dirty} of them dirty), {route}")?;
        if self.bytes_in_ram > 0 {
            write!(f, ", {} in RAM", readable_bytes(self.bytes_in_ram))?;
        }
        match (self.time, self.bound) {
            (Some(time), Some(bound)) => write!(f, "; {time:.1?} at best, most of it for {bound}")?,
            (Some(_), None) => f.write_str("; nothing to do")?,
            (None, _) => f.write_str("; time unknown: a device has no complete profile")?,
        }
        for device in self.devices.iter().filter(|device| device.is_used()) {
            let PlannedDevice { device, bytes_to_device, bytes_from_device, bytes_in_place } = device;
            let bytes = |bytes: &u64| readable_bytes(*bytes);
            let (to, from, there) = (bytes(bytes_to_device), bytes(bytes_from_device), bytes(bytes_in_place));
            write!(f, "\n{device}: {to} to it, {from} from it, {there} in its memory")?;
        }
        Ok(())
    }
}

impl PlannedDevice {
    fn is_used(&self) -> bool {
        self.bytes_to_device + self.bytes_from_device + self.bytes_in_place > 0
    }
}

/// A predicted duration, split by the resources (bus, memory, …) that cause it.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    bus: Duration,
    device_memory: Duration,
    host_memory: Duration,
    calls: Duration,
}

impl Parts {
    /// Returns the total duration. Copies in RAM by the thread overlap with transfers on the bus.
    fn total(&self) -> Duration {
        self.bus.max(self.host_memory) + self.device_memory + self.calls
    }

    fn bound(&self) -> Option<LimitedBy> {
        let parts = [
            (self.bus, LimitedBy::Bus),
            (self.device_memory, LimitedBy::DeviceMemory),
            (self.host_memory, LimitedBy::HostMemory),
            (self.calls, LimitedBy::Calls),
        ];
        let (time, bound) = parts.into_iter().max_by_key(|(time, _)| *time)?;
        (!time.is_zero()).then_some(bound)
    }
}

/// Predicts an operation on a range of an array. The indices of a gather count from the start of the range.
pub(crate) fn explain<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    range: Range<usize>,
    work: Work<'_>,
) -> Result<Explained> {
    let mut plan = Explained {
        pages: 0,
        resident: 0,
        dirty: 0,
        route: route(array, &range, work),
        bytes_in_ram: 0,
        devices: devices(array),
        time: None,
        bound: None,
    };
    if let Work::Gather(list) = work {
        check_list(list, range.len())?;
        plan_list(array, range.start, list, &mut plan);
    } else {
        plan_range(array, &range, work, &mut plan);
    }
    let parts = array.pager().channels().iter().try_fold(Parts::default(), |most, channel| {
        let info = channel.device().info();
        let name = info.to_string();
        let demand = plan.devices.iter().find(|device| device.device == name)?;
        let (profile, is_used) = (Profile::known(info), demand.is_used());
        let parts = match profile {
            Some(profile) => Parts {
                bus: profile.bus_time(demand.bytes_to_device, demand.bytes_from_device)?,
                device_memory: time_for(demand.bytes_in_place, profile.device_memory)?,
                host_memory: time_for(plan.bytes_in_ram, profile.host_memory)?,
                calls: profile.call * demand.calls_in_turn(),
            },
            None if is_used || plan.bytes_in_ram > 0 => return None,
            None => Parts::default(),
        };
        // The devices work concurrently, so the slowest one determines the time.
        Some(if parts.total() > most.total() { parts } else { most })
    });
    plan.time = parts.map(|parts| parts.total());
    plan.bound = parts.and_then(|parts| parts.bound());
    Ok(plan)
}

impl PlannedDevice {
    /// The number of submissions that wait for one another. Batches of copies overlap, so one counts.
    fn calls_in_turn(&self) -> u32 {
        u32::from(self.bytes_to_device + self.bytes_from_device > 0) + u32::from(self.bytes_in_place > 0)
    }
}

fn route<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    range: &Range<usize>,
    work: Work<'_>,
) -> PlannedRoute {
    let pager = array.pager();
    let is_bulk = match work {
        Work::Read => {
            let pages = array.touched_pages(range);
            pager.is_bulk_read(pages.end - pages.start)
        }
        Work::Write => pager.is_bulk(array.whole_pages(range).len() as u64),
        Work::Ask | Work::Change => return PlannedRoute::OnDevices,
        Work::Gather(_) if spans::is_for(array, 1) => return PlannedRoute::Merged,
        Work::Gather(_) => return PlannedRoute::Collected,
    };
    if is_bulk { PlannedRoute::PastCache } else { PlannedRoute::ThroughCache }
}

/// Returns a plan entry without work for each device.
fn devices<T: Element, D: Device>(array: &VirtualArray<T, D>) -> Vec<PlannedDevice> {
    let mut devices: Vec<PlannedDevice> = Vec::new();
    for channel in array.pager().channels() {
        let device = channel.device().info().to_string();
        if devices.iter().all(|known| known.device != device) {
            devices.push(PlannedDevice { device, ..PlannedDevice::default() });
        }
    }
    devices
}

impl Explained {
    /// Counts a page of the operation by its state.
    fn note(&mut self, state: crate::engine::page::State) {
        self.pages += 1;
        self.resident += u64::from(state.any(RESIDENT));
        self.dirty += u64::from(state.any(DIRTY));
    }
}

/// Returns for each channel the index of its device in the plan.
fn device_numbers<T: Element, D: Device>(array: &VirtualArray<T, D>, plan: &Explained) -> Vec<usize> {
    let number = |name: String| plan.devices.iter().position(|device| device.device == name).unwrap_or(0);
    array.pager().channels().iter().map(|channel| number(channel.device().info().to_string())).collect()
}

fn plan_range<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    range: &Range<usize>,
    work: Work<'_>,
    plan: &mut Explained,
) {
    let (pager, numbers) = (array.pager(), device_numbers(array, plan));
    let (page_bytes, whole) = (pager.page_bytes() as u64, array.whole_pages(range));
    for page in array.touched_pages(range) {
        let state = pager.entry(page).state(Ordering::Acquire);
        plan.note(state);
        let device = &mut plan.devices[numbers[page as usize % numbers.len()]];
        let of_page = array.page_range(page as usize);
        let shown = of_page.start.max(range.start)..of_page.end.min(range.end);
        let bytes = shown.len() as u64 * size_of::<T>() as u64;
        let is_fetched = state.any(HOME) && !state.any(RESIDENT);
        match work {
            Work::Read | Work::Gather(_) => {
                plan.bytes_in_ram += bytes;
                device.bytes_from_device += if is_fetched { page_bytes } else { 0 };
            }
            Work::Write => {
                plan.bytes_in_ram += bytes;
                let is_whole = whole.contains(&(page as usize));
                device.bytes_from_device += if is_fetched && !is_whole { page_bytes } else { 0 };
                device.bytes_to_device += page_bytes;
            }
            Work::Ask | Work::Change => {
                let times = if work == Work::Change { 2 } else { 1 };
                device.bytes_in_place += times * bytes;
                device.bytes_to_device += if state.any(DIRTY) { page_bytes } else { 0 };
            }
        }
    }
}

/// Predicts a gather. Each index goes to a device and an element comes back, unless the page is in the cache
/// or was never written, or threads read files.
fn plan_list<T: Element, D: Device>(
    array: &VirtualArray<T, D>,
    start: usize,
    list: &[usize],
    plan: &mut Explained,
) {
    let (pager, numbers) = (array.pager(), device_numbers(array, plan));
    let mut pages: Vec<u64> = Vec::with_capacity(list.len());
    let mut read = Vec::new();
    for index in list {
        let page = array.page_of(start + index) as u64;
        let state = pager.entry(page).state(Ordering::Acquire);
        pages.push(page);
        if state.any(HOME) && !state.any(RESIDENT) && plan.route == PlannedRoute::Merged {
            read.push(start + index);
        } else if state.any(HOME) && !state.any(RESIDENT) {
            let device = &mut plan.devices[numbers[page as usize % numbers.len()]];
            device.bytes_to_device += size_of::<u64>() as u64;
            device.bytes_from_device += size_of::<T>() as u64;
        } else {
            plan.bytes_in_ram += size_of::<T>() as u64;
        }
    }
    for (page, bytes) in spans::bytes_of(array, read) {
        plan.devices[numbers[page % numbers.len()]].bytes_from_device += bytes;
    }
    pages.sort_unstable();
    pages.dedup();
    for page in pages {
        plan.note(pager.entry(page).state(Ordering::Acquire));
    }
}

#[cfg(all(test, feature = "host"))]
mod tests;
