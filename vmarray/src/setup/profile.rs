//! [`Profile`]: the measured speed of a device, and the best settings for it.

pub(crate) mod limits;
mod link;
mod probe;
mod registry;
mod store;

#[cfg(fuzzing)]
pub use store::fuzz_profile;

use std::fmt;
use std::time::Duration;

use backend_api::{Device, Routing};

pub(crate) use registry::{apply_known, suited_page_bytes};

/// The direction of copies, as seen by the program: a read copies from the device to the host.
///
/// ```
/// use vmarray::{prelude::*, profile::Direction, Placement};
/// let placement = Placement::Balanced(Direction::Read);
/// let array = VirtualArray::<u32>::builder(1 << 16).placement(placement).build()?;
/// assert_eq!(array.get(5)?, 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Direction {
    /// Copies from the device.
    Read,
    /// Copies to the device.
    Write,
    /// Copies in both directions at once, half of the bytes each.
    #[default]
    Both,
    /// Work within the device's own memory, as in expressions and kernels. Measured by a search.
    OnDevice,
}

/// The measured bandwidth of a device, and its best settings.
///
/// # Measurement
/// The measurement copies batches of scattered pages between page-locked RAM and the device, as an array
/// does, with 2 MiB in a batch and two batches in flight: from the device, to the device, and in both
/// directions at once.
///
/// - *Routes*: A backend may have several [routes](crate::device::Route) for a batch, such as copy engines or
///   kernels. The measurement compares each route with the backend's default route, by direction, number and
///   length of the copies. The profile contains a route if the route was faster by a tenth in two
///   measurements, but no routes if they slow down simultaneous copies in both directions.
/// - *Page length*: the shortest of 16 KiB, 64 KiB, 256 KiB and 1 MiB that meets three conditions. The
///   bandwidth is within 10 % of the greatest in both directions. The copy of a page takes at least as long
///   as the array's own work for a miss. The copy of a single page longer than 64 KiB takes at most a quarter
///   longer than the copy of 64 KiB.
/// - *Other values*: a copy and a search within the device's memory, and a copy within RAM by one thread.
///   [`link`](Self::link) measures copies between devices.
///
/// The measurement of a device takes less than a second. It needs up to 32 MiB of device memory and 64 MiB of
/// RAM. On discrete GPUs it briefly needs 256 MiB more, to exceed the caches of the GPU. Concurrent work on
/// the GPU distorts the results. For simulated devices the results are meaningless, because the machine's
/// clock measures the times. Tests [declare](Self::remember) a profile instead.
///
/// # Use
/// The library measures a device only for [`Profile::of`], or for a [placement](crate::Placement) by
/// bandwidth. From then on the profile is *known* in this process. Arrays and sources on the device use the
/// routes of the profile. Arrays also use its page length, unless the program [sets
/// one](crate::Builder::page_len). Without a profile, the backend chooses the routes, and pages have 64 KiB.
///
/// # Storage
/// The process keeps profiles by the device's identity. For GPUs, later processes find them in a file in
/// `$XDG_CACHE_HOME/vmarray/profiles` or `~/.cache/vmarray/profiles`, or in the folder of the environment
/// variable `VMARRAY_PROFILES` (`off`: no file). On Unix the folder must belong to the user, and no other
/// user may write to it; otherwise the library warns and does not use it. A change of the backend, the driver
/// or the version of this crate makes a stored profile invalid. [`forget`](Self::forget) deletes one profile.
/// To delete all of them, delete the folder. [`remember`](Self::remember) declares a profile without a
/// measurement or a file.
///
/// ```
/// use vmarray::{device::Device, host::HostDevice, prelude::*, profile::Profile};
/// use std::sync::Arc;
/// let device = Arc::new(HostDevice::new(64 << 20)?);
/// let profile = Profile::of(&device)?;
/// // Measured only once.
/// assert!(profile.read > 0 && Profile::known(device.info()) == Some(profile));
/// // The best settings of the device are the default from now on.
/// let array = VirtualArray::<u8>::builder(8 << 20).devices([device.clone()]).build()?;
/// assert_eq!(array.page_len(), profile.page_bytes);
/// Profile::forget(&*device);
/// assert_eq!(Profile::known(device.info()), None);
/// // Declared instead of measured.
/// let imagined = Profile::new(3_000_000_000, 2_000_000_000, 4_000_000_000, 65_536);
/// imagined.remember(&device.info().identity);
/// assert_eq!(Profile::of(&device)?, imagined);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Profile {
    /// Bandwidth of copies from the device to the host, in bytes per second.
    pub read: u64,
    /// Bandwidth of copies from the host to the device, in bytes per second.
    pub write: u64,
    /// Total bandwidth of simultaneous copies in both directions, in bytes per second.
    pub both: u64,
    /// The best page length of the device, in bytes.
    pub page_bytes: usize,
    /// The fixed time of a single copy in addition to the transfer of its bytes, for the submission and the
    /// wait. Zero if unknown.
    #[cfg_attr(feature = "serde", serde(default))]
    pub call: Duration,
    /// The bandwidth of the device's own memory, reads plus writes, in bytes per second; 0 if unknown.
    #[cfg_attr(feature = "serde", serde(default))]
    pub device_memory: u64,
    /// Bytes per second that the device reads from its own memory during a search; 0 if unknown. On a device
    /// with slow processors this is less than [`device_memory`](Self::device_memory).
    #[cfg_attr(feature = "serde", serde(default))]
    pub search: u64,
    /// Bytes per second that one thread copies from page-locked RAM; 0 if unknown.
    #[cfg_attr(feature = "serde", serde(default))]
    pub host_memory: u64,
    /// Copy routes that are faster than the backend's default, by direction, number and length of copies.
    #[cfg_attr(feature = "serde", serde(default))]
    pub routing: Routing,
}

impl Profile {
    /// Creates a profile from three bandwidths in bytes per second and a page length in bytes. `read` is the
    /// bandwidth from the device, `write` to the device, and `both` in both directions at once. The routes
    /// are the backend's defaults, and all other numbers are unknown.
    #[must_use]
    pub fn new(read: u64, write: u64, both: u64, page_bytes: usize) -> Self {
        let (call, device_memory, search, host_memory) = (Duration::ZERO, 0, 0, 0);
        let routing = Routing::new();
        Self { read, write, both, page_bytes, call, device_memory, search, host_memory, routing }
    }

    pub(crate) fn bytes_per_second(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Read => self.read,
            Direction::Write => self.write,
            Direction::Both => self.both,
            Direction::OnDevice => self.search,
        }
    }

    /// Sets the copy routes of a device, unless the program has set a table itself.
    pub(crate) fn apply<D: Device + ?Sized>(&self, device: &D) {
        if !self.routing.is_empty() && device.routing().is_empty() {
            device.set_routing(self.routing);
        }
    }
}

impl fmt::Display for Profile {
    /// Writes one line: bandwidths, page length, and the number of classes of batches with a route.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gigabytes = |bytes: u64| bytes as f64 / 1e9;
        let routed = |route: &dyn Fn(usize, u64) -> bool| {
            classes().filter(|(pieces, bytes)| route(*pieces, *bytes)).count()
        };
        write!(
            f,
            "read {:.1}, write {:.1}, both {:.1} GB/s, pages of {} KiB, routes for {} classes of reads and {} of writes",
            gigabytes(self.read),
            gigabytes(self.write),
            gigabytes(self.both),
            self.page_bytes >> 10,
            routed(&|pieces, bytes| self.routing.download(pieces, pieces as u64 * bytes).is_some()),
            routed(&|pieces, bytes| self.routing.upload(pieces, pieces as u64 * bytes).is_some()),
        )
    }
}

/// Returns all classes of batches, by length and number of copies.
fn classes() -> impl Iterator<Item = (usize, u64)> {
    Routing::PIECE_BYTES
        .into_iter()
        .flat_map(|bytes| Routing::PIECES.into_iter().map(move |pieces| (pieces, bytes)))
}
