//! [`Watch`]: measures an array's work between two points of a program, and compares it with the devices'
//! limits.

use std::fmt;
use std::time::{Duration, Instant};

use backend_api::{Device, readable_bytes};

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::stats::{ChannelStats, Stats};
use crate::setup::profile::Profile;
use crate::setup::profile::limits::{LimitedBy, time_for};

/// A measurement of an array's work since the call of [`VirtualArray::watch`]. It slows no access.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u64>::builder(10_000).page_len(1000).build()?;
/// array.fill(.., 7)?;
/// array.set(5, 8)?;
/// let watch = array.watch();
/// assert_eq!(array.sum(.., Field::whole())?, 70_001);
/// let report = watch.report();
/// // The dirty page went to the device, and the elements were read there.
/// let total = report.stats.total();
/// assert_eq!((total.bytes_to_device, total.bytes_in_place), (8_000, 80_000));
/// println!("{report}");
/// // By another clock.
/// assert_eq!(watch.report_after(std::time::Duration::from_secs(1)).stats, report.stats);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "watches until it is asked for a report"]
pub struct Watch<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    before: Stats,
    began: Instant,
}

/// A report on the work of an array during a [watch](Watch).
///
/// The [used shares](ReportedDevice) of a device's bandwidths are relative to its [`Profile`] (measured
/// speeds), so they exist only with a known profile. They include the work of *this array* only.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::{device::Device, explain::{LimitedBy, WatchReport}};
/// use vmarray::profile::Profile;
/// use std::time::Duration;
/// let device = std::sync::Arc::new(vmarray::host::HostDevice::new(1 << 20)?);
/// Profile::new(8000, 8000, 8000, 4096).remember(&device.info().identity); // 8 kB/s
/// let array = VirtualArray::<u64>::builder(1000).devices([device]).page_len(100).build()?;
/// let watch = array.watch();
/// array.write(0, &[7; 1000])?;
/// array.flush(..)?;
/// let report: WatchReport = watch.report_after(Duration::from_secs(2));
/// assert_eq!(report.share_of_limit(), Some((0.5, LimitedBy::Bus)));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WatchReport {
    /// The time from the start of the watch to the report.
    pub elapsed: Duration,
    /// The increase of the array's counters during the watch.
    pub stats: Stats,
    /// The work of each device of the array.
    pub devices: Vec<ReportedDevice>,
}

/// The work of one device for an array, summed over the device's channels (shares of the device).
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::explain::ReportedDevice;
/// let array = VirtualArray::<u8>::new(100)?;
/// let watch = array.watch();
/// array.fill(.., 7)?;
/// array.flush(..)?;
/// let busiest = |devices: Vec<ReportedDevice>| devices.into_iter().max_by_key(|one| one.stats.submissions);
/// assert!(busiest(watch.report().devices).unwrap().stats.submissions > 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ReportedDevice {
    /// Name of the device, as in error messages.
    pub device: String,
    /// The increase of the device's counters during the watch.
    pub stats: ChannelStats,
    /// The used share of the bus's measured bandwidth: the time that the array's bytes need at full speed,
    /// divided by the elapsed time. 1 is the limit. `None` without a known [`Profile`] (measured speeds).
    pub bus_share: Option<f64>,
    /// The used share of the device memory's measured bandwidth, or `None`, like `bus_share`.
    pub memory_share: Option<f64>,
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Starts a watch of all work on the array, by any thread.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::builder(1000).page_len(100).build()?;
    /// let watch = array.watch();
    /// array.set(5, 7)?;
    /// assert_eq!(watch.report().stats.total().misses, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn watch(&self) -> Watch<'_, T, D> {
        Watch { array: self, before: self.pager.raw_stats(), began: Instant::now() }
    }
}

impl<T: Element, D: Device> Watch<'_, T, D> {
    /// Returns the report since the start of the watch. The numbers are exact if no operation is running.
    #[must_use]
    pub fn report(&self) -> WatchReport {
        self.report_after(self.began.elapsed())
    }

    /// Returns the [`report`](Self::report) for an elapsed time that the caller gives, for devices with
    /// virtual time, such as simulated ones.
    #[must_use]
    pub fn report_after(&self, elapsed: Duration) -> WatchReport {
        let pager = &self.array.pager;
        let mut stats = pager.raw_stats();
        stats.hits = stats.hits.map(|hits| hits.wrapping_sub(self.before.hits.unwrap_or(0)));
        for (now, before) in stats.channels.iter_mut().zip(&self.before.channels) {
            *now = *now - *before;
        }
        let mut devices: Vec<(String, ChannelStats, Option<Profile>)> = Vec::new();
        for (channel, stats) in pager.channels().iter().zip(&stats.channels) {
            let info = channel.device().info();
            let name = info.to_string();
            match devices.iter_mut().find(|(device, ..)| *device == name) {
                Some((_, sum, _)) => *sum = *sum + *stats,
                None => devices.push((name, *stats, Profile::known(info))),
            }
        }
        let share = |time: Option<Duration>| {
            Some(time?.as_secs_f64() / elapsed.as_secs_f64()).filter(|share| share.is_finite())
        };
        let devices = devices.into_iter().map(|(device, stats, profile)| ReportedDevice {
            device,
            stats,
            bus_share: profile.and_then(|profile| {
                // Ignore copies within a device or to another device, as they do not use the measured bus.
                share(profile.bus_time(stats.bytes_to_device, stats.bytes_from_device))
            }),
            memory_share: profile
                .and_then(|profile| share(time_for(stats.bytes_in_place, profile.device_memory))),
        });
        WatchReport { elapsed, devices: devices.collect(), stats }
    }
}

impl WatchReport {
    /// Returns the limit (a device's bus or memory) that the work came closest to, and the used share of its
    /// bandwidth; `None` without a known [`Profile`] (measured speeds). Near 1, this limit determines the
    /// speed. If the share is far below 1, driver calls, waits, or the program itself took the time.
    #[must_use]
    pub fn share_of_limit(&self) -> Option<(f64, LimitedBy)> {
        let shares = self.devices.iter().flat_map(|device| {
            [(device.bus_share, LimitedBy::Bus), (device.memory_share, LimitedBy::DeviceMemory)]
        });
        let known = shares.filter_map(|(share, bound)| Some((share?, bound)));
        known.max_by(|(one, _), (other, _)| one.total_cmp(other))
    }
}

impl fmt::Display for WatchReport {
    /// Writes a line for the array, and one for each device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.elapsed, self.stats)?;
        for ReportedDevice { device, stats, bus_share, memory_share } in &self.devices {
            let rate = |bytes: u64| {
                let per_second = bytes as f64 / self.elapsed.as_secs_f64().max(1e-9);
                format!("{}/s", readable_bytes(per_second as u64))
            };
            write!(
                f,
                "\n{device}: {} to it, {} from it",
                rate(stats.bytes_to_device),
                rate(stats.bytes_from_device)
            )?;
            write!(f, ", {} in place", rate(stats.bytes_in_place))?;
            for (share, of) in [(bus_share, LimitedBy::Bus), (memory_share, LimitedBy::DeviceMemory)] {
                if let Some(share) = share.filter(|share| *share > 0.0) {
                    write!(f, ", {:.1} % of {of}", 100.0 * share)?;
                }
            }
        }
        Ok(())
    }
}
