//! How fast a device is, and what suits it: a short measurement, remembered.

pub(crate) mod limits;
mod link;
mod probe;
mod store;

#[cfg(fuzzing)]
pub use store::fuzz_profile;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use backend_api::{Device, DeviceInfo, Routing};

use crate::base::error::Result;

/// Which way data goes, as seen from the program: reading copies from the device.
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
    /// From the device.
    Read,
    /// To the device.
    Write,
    /// Both at once, each carrying half.
    #[default]
    Both,
    /// Neither: within the device's own memory, as expressions and kernels read it. Measured by a search.
    OnDevice,
}

/// What was measured of a device: its bandwidth, and what suits it.
///
/// # What is measured
/// Batches of scattered pages are copied between page-locked RAM and the device, as an array copies them: 2
/// MiB a batch and two under way, from the device, to it, and both at once. Where a backend has several
/// [routes](crate::device::Route) for a batch, all of them are tried by direction, number and length of
/// pieces, beside what the backend chooses by itself. A route replaces that choice where it is faster by a
/// tenth, twice; and the table is dropped if with it both directions at once are slower than without.
///
/// The page length is the shortest of 16 KiB, 64 KiB, 256 KiB and 1 MiB whose streams are within 10 % of the
/// fastest both ways, and that keeps the bus busy for as long as the array itself takes for a page. Pages
/// longer than 64 KiB count only where a lone copy of one, which is what a random miss costs, takes at most a
/// quarter longer than that of 64 KiB.
///
/// Beside that a copy and a search within the device's memory are timed, and a copy within RAM by one
/// thread; what goes from device to device, by [`link`](Self::link).
///
/// It takes up to 32 MiB of device memory, of discrete cards for a moment 256 MiB more, whose caches hold
/// less than that, and 64 MiB of RAM, and less than a second a device. Other work of the card meanwhile
/// disturbs it. It goes by the clock of the machine: of a simulated device, whose time is its own, it says
/// nothing of use, so that tests [declare](Self::remember) a profile.
///
/// # When it is used
/// Nothing is measured that was not asked for, by [`Profile::of`] or by a [placement](crate::Placement) by
/// bandwidth. From then on the profile is *known* in this process, and arrays over the device have its
/// routes, and its page length where [none is stated](crate::Builder::page_len). Sources have its routes.
/// Without a profile, routes are what the backend assumes of all cards, and pages are 64 KiB long.
///
/// # Where it is kept
/// In the process, by the device's identity; for cards also in a file in `$XDG_CACHE_HOME/vmarray/profiles`
/// or `~/.cache/vmarray/profiles`, or in the folder that the environment variable `VMARRAY_PROFILES` names
/// (`off`: nowhere), so that a later process that asks need not measure. On Unix the folder has to be owned
/// by the user and writable by nobody else; one that is not is not used, which is told as a warning. It is
/// measured anew for another backend, driver or version of this crate. [`forget`](Self::forget) clears one,
/// deleting the folder all. [`remember`](Self::remember) declares what was not measured, and needs no file.
///
/// ```
/// use vmarray::{device::Device, host::HostDevice, prelude::*, profile::Profile};
/// use std::sync::Arc;
/// let device = Arc::new(HostDevice::new(64 << 20)?);
/// let profile = Profile::of(&device)?;
/// // Measured once only.
/// assert!(profile.read > 0 && Profile::known(device.info()) == Some(profile));
/// // What suits the device is the default from now on.
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
    /// Bytes per second from the device.
    pub read: u64,
    /// Bytes per second to the device.
    pub write: u64,
    /// Bytes per second when both ways are used at once, added up.
    pub both: u64,
    /// The length of a page that suits the device, in bytes.
    pub page_bytes: usize,
    /// What a lone copy takes beside its bytes: the submission, and the wait for its end. Zero if unknown.
    #[cfg_attr(feature = "serde", serde(default))]
    pub call: Duration,
    /// Bytes per second that the device reads and writes in its own memory, added up; 0 if unknown.
    #[cfg_attr(feature = "serde", serde(default))]
    pub device_memory: u64,
    /// Bytes per second that the device reads in its own memory while it searches there, which for a slow
    /// processor is less than it copies; 0 if unknown.
    #[cfg_attr(feature = "serde", serde(default))]
    pub search: u64,
    /// Bytes per second that one thread copies from page-locked RAM; 0 if unknown.
    #[cfg_attr(feature = "serde", serde(default))]
    pub host_memory: u64,
    /// The routes of batches that are faster than what the backend chooses by itself.
    #[cfg_attr(feature = "serde", serde(default))]
    pub routing: Routing,
}

/// What is known of devices in this process.
#[derive(Debug, Default)]
struct Known {
    /// By identity.
    declared: HashMap<String, Profile>,
    /// By [`key`].
    measured: HashMap<String, Profile>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

fn known() -> MutexGuard<'static, Known> {
    // Nothing panics while it is held.
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything of a device that a measurement depends on, in one line.
fn key(info: &DeviceInfo) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let text =
        [&info.identity, &info.backend, &info.driver, &info.name].map(|part| part.replace(['\n', '\r'], " "));
    format!("{} / vmarray {version}", text.join(" / "))
}

impl Profile {
    /// What is known of a device, in this process or from an earlier one; measures it if that is nothing,
    /// which blocks for less than a second. The device copies by what was found from now on.
    ///
    /// # Errors
    /// [`Device`](crate::ErrorKind::Device): refused memory, failed copies.
    pub fn of<D: Device>(device: &Arc<D>) -> Result<Self> {
        let info = device.info();
        if let Some(profile) = Self::known(info) {
            profile.apply(&**device);
            return Ok(profile);
        }
        let (key, kept) = (key(info), store::open(info));
        let profile = match kept.as_ref().and_then(|kept| kept.load(&key)) {
            Some(profile) => profile,
            None => {
                let start = Instant::now();
                let profile = probe::measure(device, &|| start.elapsed())?;
                if let Some(kept) = kept {
                    kept.keep(&key, &profile);
                }
                profile
            }
        };
        // Two threads may measure the same device; the first to be done is believed.
        let profile = *known().measured.entry(key).or_insert(profile);
        profile.apply(&**device);
        Ok(profile)
    }

    /// What is known of a device in this process, without a measurement.
    #[must_use]
    pub fn known(info: &DeviceInfo) -> Option<Self> {
        let known = known();
        known.declared.get(&info.identity).or_else(|| known.measured.get(&key(info))).copied()
    }

    /// Declares what is known of a device, instead of a measurement. Arrays that are built from now on have
    /// it.
    pub fn remember(self, identity: &str) {
        known().declared.insert(identity.into(), self);
    }

    /// Forgets what is known of a device, here and in the file, and has this one copy by its own choice
    /// again.
    pub fn forget<D: Device>(device: &D) {
        let info = device.info();
        let key = key(info);
        let mut known = known();
        known.declared.remove(&info.identity);
        known.measured.remove(&key);
        drop(known);
        if let Some(kept) = store::open(info) {
            kept.delete(&key);
        }
        device.set_routing(Routing::new());
    }

    /// A profile of these figures: bytes per second from and to the device and both ways at once, and the
    /// length of a page in bytes. Routes are left to the device, and what else there is is unknown.
    #[must_use]
    pub fn new(read: u64, write: u64, both: u64, page_bytes: usize) -> Self {
        let (call, device_memory, search, host_memory) = (Duration::ZERO, 0, 0, 0);
        let routing = Routing::new();
        Self { read, write, both, page_bytes, call, device_memory, search, host_memory, routing }
    }

    /// The bandwidth in a direction.
    pub(crate) fn bytes_per_second(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Read => self.read,
            Direction::Write => self.write,
            Direction::Both => self.both,
            Direction::OnDevice => self.search,
        }
    }

    /// Has a device copy by what was found, unless the program has given it a table itself.
    pub(crate) fn apply<D: Device + ?Sized>(&self, device: &D) {
        if !self.routing.is_empty() && device.routing().is_empty() {
            device.set_routing(self.routing);
        }
    }
}

/// Has devices copy by what is known of them.
pub(crate) fn apply_known<D: Device + ?Sized>(devices: &[Arc<D>]) {
    for device in devices {
        if let Some(profile) = Profile::known(device.info()) {
            profile.apply(&**device);
        }
    }
}

/// The page length that suits all of some devices, in bytes: the longest of those that suit each, where
/// `otherwise` suits those of which nothing is known.
pub(crate) fn suited_page_bytes(devices: &[Arc<dyn Device>], otherwise: usize) -> usize {
    let suits = |device: &Arc<dyn Device>| {
        Profile::known(device.info()).map_or(otherwise, |profile| profile.page_bytes)
    };
    devices.iter().map(suits).max().unwrap_or(otherwise).max(1)
}

impl fmt::Display for Profile {
    /// One line for people: bandwidths, page length, and how many classes of batches have a route of their
    /// own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gigabytes = |bytes: u64| bytes as f64 / 1e9;
        let routed = |route: &dyn Fn(usize, u64) -> bool| {
            store::classes().filter(|(pieces, bytes)| route(*pieces, *bytes)).count()
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
