//! Settings of a new array, and the resulting devices, channels (shares of devices) and page placement.

use std::sync::Arc;

use backend_api::{Commit, Device, HostMemory};
use parking_lot::Mutex;
use vmarray_redundancy::Mirrored;

use crate::base::error::{ErrorKind, Result};
use crate::engine::channel::comparing;
use crate::engine::evict::EvictionPolicy;
use crate::engine::redundancy::{Keeper, Redundancy};
use crate::setup::placement::{Placement, expect_room};
use crate::setup::{discovery, inherited, open_devices, profile};

/// Upper bound of the default page size, in bytes.
pub(crate) const PAGE_BYTES: usize = 64 << 10;
/// The default size of the cache, in bytes.
const CACHE_BYTES: usize = 256 << 20;
/// Minimum number of pages in the cache, if pages are longer than the default.
const FRAMES_LEAST: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(super) enum Cache {
    Bytes(usize),
    FramesPerChannel(usize),
}

/// Settings that arrays and sources have in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommonSettings {
    pub(crate) placement: Placement,
    pub(crate) page_len: Option<usize>,
    pub(crate) eviction: EvictionPolicy,
    pub(crate) wipe: bool,
}

impl CommonSettings {
    /// Returns the page length in elements: the requested one, or the power of two that gives a page of at
    /// most `suited_bytes`.
    pub(crate) fn page_len(&self, len: usize, element_bytes: usize, suited_bytes: usize) -> Result<usize> {
        let page_len = self.page_len.unwrap_or_else(|| {
            let most = (suited_bytes / element_bytes).max(1);
            // Shorten the pages of a short array, so that it still spans several devices.
            (1 << most.ilog2()).min(len.max(1).checked_next_power_of_two().unwrap_or(usize::MAX))
        });
        if page_len == 0 {
            return Err(ErrorKind::ZeroPageLength.into());
        }
        let fits = page_len.checked_mul(element_bytes).is_some_and(|bytes| bytes <= isize::MAX as usize / 64);
        if fits { Ok(page_len) } else { Err(ErrorKind::PageTooLong { page_len, element_bytes }.into()) }
    }
}

/// The devices of an array or source. Their type is erased, so that dependent crates do not compile drops.
#[derive(Clone, Debug)]
pub(crate) enum Devices {
    Named(Vec<Arc<dyn Device>>),
    /// The devices of the machine, which discovery finds when the array is built.
    Found,
}

impl Devices {
    pub(crate) fn named<D: Device>(devices: impl IntoIterator<Item = Arc<D>>) -> Self {
        Self::Named(devices.into_iter().map(|device| device as _).collect())
    }

    /// Opens the devices, applies their known profiles (measured speeds), and queries their free memory.
    pub(crate) fn open(self, settings: &CommonSettings) -> Result<OpenDevices> {
        inherited::expect_own_process("build")?;
        let devices = match self {
            Self::Named(devices) => devices,
            Self::Found => discovery::devices()?.into_iter().map(|device| device as _).collect(),
        };
        settings.placement.measure(&devices)?;
        OpenDevices::of(devices, settings)
    }
}

pub(crate) struct OpenDevices {
    pub(crate) devices: Vec<Arc<dyn Device>>,
    /// Free memory of each device, in bytes.
    pub(crate) usable: Vec<u64>,
}

impl OpenDevices {
    /// Prepares the devices, and applies their known profiles (measured speeds and settings).
    pub(crate) fn of(devices: Vec<Arc<dyn Device>>, settings: &CommonSettings) -> Result<Self> {
        if settings.wipe {
            devices.iter().try_for_each(|device| device.wipe_on_release())?;
        }
        profile::apply_known(&devices);
        let usable = devices.iter().map(|device| Ok(device.memory()?.usable_bytes));
        let usable = usable.collect::<Result<_, backend_api::Error>>()?;
        Ok(Self { devices, usable })
    }

    /// Returns the device number of each channel, for an array of `pages` pages; at least one channel.
    pub(crate) fn stripe_pattern(
        &self,
        placement: &Placement,
        pages: u64,
        page_bytes: usize,
    ) -> Result<Vec<usize>> {
        placement.stripe_pattern(&self.devices, pages, page_bytes as u64, &self.usable)
    }

    /// Checks that each device has enough memory for its channels; if mirrored, both devices of a pair.
    pub(crate) fn expect_room(
        &self,
        stripe_pattern: &[usize],
        pairs: Option<&[[usize; 2]]>,
        bytes: impl Fn(usize) -> u64,
    ) -> Result<()> {
        let mut asked = vec![0; self.devices.len()];
        for (channel, device) in stripe_pattern.iter().enumerate() {
            let homes = pairs.map_or(std::slice::from_ref(device), |pairs| &pairs[channel]);
            homes.iter().for_each(|home| asked[*home] += bytes(channel));
        }
        expect_room(&self.devices, &asked, &self.usable)
    }

    /// Limits a number of pages to one more than all devices could hold, so that devices report the shortage.
    pub(crate) fn pages_most(&self, pages: u64, page_bytes: u64) -> u64 {
        let totals = self.devices.iter().map(|device| device.info().total_bytes);
        let bytes = totals.fold(0, u64::saturating_add).min(isize::MAX as u64 - page_bytes);
        pages.min(bytes / page_bytes + 1)
    }

    /// Returns the layer for mirrors or migration of pages, with one wrapped device for each channel.
    pub(super) fn redundancy(
        &self,
        pairs: Option<&[[usize; 2]]>,
        stripe_pattern: &[usize],
        is_movable: bool,
    ) -> Result<Redundancy> {
        let device = |at: usize| Arc::clone(&self.devices[at]);
        let keeper = match pairs {
            None if is_movable => {
                let movable = stripe_pattern.iter().map(|turn| Ok(Arc::new(Mirrored::new([device(*turn)])?)));
                Keeper::Movable(movable.collect::<Result<_>>()?)
            }
            None => Keeper::None,
            Some(pairs) => {
                let mirrors =
                    pairs[..stripe_pattern.len()].iter().map(|pair| Mirrored::new(pair.map(device)));
                Keeper::Mirrors(mirrors.map(|mirror| Ok(Arc::new(mirror?))).collect::<Result<_>>()?)
            }
        };
        Ok(keeper.into())
    }

    /// Returns the device of each channel. With checksums of pages, channels of one device share a wrapped
    /// device that compares them.
    pub(super) fn channel_devices(
        &self,
        redundancy: &Redundancy,
        stripe_pattern: &[usize],
        checked_bytes: Option<usize>,
    ) -> Vec<Arc<dyn Device>> {
        let mut compared: Vec<Option<Arc<dyn Device>>> = vec![None; self.devices.len()];
        let device = |(index, device): (usize, &usize)| {
            let plain = || Arc::clone(&self.devices[*device]);
            match (redundancy.device(index), checked_bytes) {
                (Some(own), Some(page_bytes)) => comparing(own, page_bytes),
                (Some(own), None) => own,
                (None, Some(page_bytes)) => {
                    Arc::clone(compared[*device].get_or_insert_with(|| comparing(plain(), page_bytes)))
                }
                (None, None) => plain(),
            }
        };
        stripe_pattern.iter().enumerate().map(device).collect()
    }
}

/// Settings of an array that do not depend on its element and device types.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) common: CommonSettings,
    pub(super) cache: Cache,
    pub(super) memory: HostMemory,
    pub(super) fall_back: bool,
    pub(crate) checksums: bool,
    pub(super) commit: Commit,
    pub(super) read_ahead: bool,
    pub(super) counts_hits: bool,
    pub(super) movable: bool,
    /// True if the cache is allocated before its first use.
    pub(super) is_ahead: bool,
    /// The name under which the array publishes statistics.
    pub(crate) published: Option<String>,
    /// The GPUs that cache pages of files.
    #[cfg(feature = "host")]
    pub(crate) tier: Option<vmarray_store::Tier>,
    /// The program's text in the description of new files.
    #[cfg(feature = "host")]
    pub(crate) annotation: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            common: CommonSettings::default(),
            cache: Cache::Bytes(CACHE_BYTES),
            memory: HostMemory::Pinned,
            fall_back: true,
            checksums: false,
            commit: Commit::Lazy,
            read_ahead: true,
            counts_hits: false,
            movable: false,
            is_ahead: true,
            published: None,
            #[cfg(feature = "host")]
            tier: None,
            #[cfg(feature = "host")]
            annotation: String::new(),
        }
    }
}

impl Settings {
    /// Returns settings of a result array, which perhaps only devices read: host memory comes on demand.
    pub(crate) fn of_result(cache_bytes: usize, memory: HostMemory) -> Self {
        Self { cache: Cache::Bytes(cache_bytes), memory, is_ahead: false, ..Self::default() }
    }

    /// Opens the devices of an array of `len` elements that can grow to `max_len`, and places its pages.
    pub(super) fn homes(
        &self,
        (len, max_len): (usize, usize),
        devices: Devices,
        element_bytes: usize,
    ) -> Result<Homes> {
        #[cfg(feature = "host")]
        if self.tier.is_some() {
            let reason = "only files have a tier; create the array by `create`, or give a `FileDevice` its tier when you make it";
            return Err(ErrorKind::FileRefused { reason }.into());
        }
        let open = devices.open(&self.common)?;
        let room = match self.cache {
            Cache::Bytes(bytes) => bytes / FRAMES_LEAST,
            Cache::FramesPerChannel(_) => usize::MAX,
        };
        let suited = profile::suited_page_bytes(&open.devices, PAGE_BYTES).min(room.max(PAGE_BYTES));
        let page_len = self.common.page_len(len.max(max_len), element_bytes, suited)?;
        let page_bytes = page_len * element_bytes;
        let pages = len.div_ceil(page_len) as u64;
        let pairs = self.common.placement.mirrored_pairs(open.devices.len())?;
        let pages_most = open.pages_most(max_len.div_ceil(page_len) as u64, page_bytes as u64).max(pages);
        let is_open = max_len == usize::MAX;
        // Reduce the greatest length to the memory of the devices, but not below the initial length: for
        // that, a lack of memory is an error.
        let max_len = max_len.min((pages_most as usize).saturating_mul(page_len)).max(len);
        let stripe_pattern = match &pairs {
            Some(pairs) => (0..pairs.len()).collect(),
            None => open.stripe_pattern(&self.common.placement, pages_most, page_bytes)?,
        };
        Ok(Homes {
            open,
            len,
            max_len,
            pages_most,
            is_open,
            page_len,
            stripe_pattern,
            pairs,
            is_exclusive: false,
        })
    }
}

/// The planned placement of an array's pages.
pub(crate) struct Homes {
    pub(crate) open: OpenDevices,
    pub(crate) len: usize,
    pub(crate) max_len: usize,
    /// The greatest number of pages to which the array can grow.
    pub(crate) pages_most: u64,
    /// True if only the devices limit the greatest length.
    pub(crate) is_open: bool,
    pub(crate) page_len: usize,
    /// The device of each channel.
    pub(crate) stripe_pattern: Vec<usize>,
    /// The two devices of each channel of a mirrored array.
    pub(crate) pairs: Option<Vec<[usize; 2]>>,
    /// True if the devices can store no other array, as files.
    pub(crate) is_exclusive: bool,
}

/// The settings and devices of an array, to create another one like it.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(super) settings: Settings,
    /// `None` for an array whose devices can store no other array.
    devices: Mutex<Option<Vec<Arc<dyn Device>>>>,
    /// The device number of each channel, also of channels for which the array is too short.
    stripe_pattern: Vec<usize>,
    /// Greatest length of a growing array, and true if only its devices limit it.
    growth: Option<(usize, bool)>,
}

impl Recipe {
    pub(crate) fn of(settings: &Settings, homes: &Homes) -> Self {
        let devices = (!homes.is_exclusive).then(|| homes.open.devices.clone());
        let grows = devices.is_some() && homes.max_len > homes.len;
        let mut settings = settings.clone();
        settings.published = None;
        if homes.is_exclusive {
            settings.common.placement = Placement::Equal;
        }
        #[cfg(feature = "host")]
        {
            settings.tier = None;
        }
        Self {
            settings,
            devices: Mutex::new(devices),
            stripe_pattern: homes.stripe_pattern.clone(),
            growth: grows.then_some((homes.max_len, homes.is_open)),
        }
    }

    /// Records the devices to which the channels have moved.
    pub(crate) fn move_to(&self, devices: &[Arc<dyn Device>]) {
        *self.devices.lock() = Some(devices.to_vec());
    }

    /// Records the spare device that replaces the lost one.
    pub(crate) fn replace_lost(&self, spare: &Arc<dyn Device>) {
        let is_lost = |device: &Arc<dyn Device>| {
            device.memory().is_err_and(|error| error.kind() == backend_api::ErrorKind::Lost)
        };
        let mut devices = self.devices.lock();
        if let Some(lost) = devices.as_mut().and_then(|list| list.iter_mut().find(|one| is_lost(one))) {
            *lost = Arc::clone(spare);
        }
    }

    pub(super) fn homes(&self, page_len: usize, page_bytes: usize, len: usize) -> Result<Homes> {
        let devices = self.devices.lock().clone();
        let devices = match devices {
            Some(devices) => devices,
            None => vec![open_devices::in_ram()?],
        };
        let pairs = self.settings.common.placement.mirrored_pairs(devices.len())?;
        let stripe_pattern = match &pairs {
            Some(pairs) => (0..pairs.len()).collect(),
            // After a move the array may have fewer devices than its pattern names, so distribute in turn.
            None => self.stripe_pattern.iter().map(|turn| turn % devices.len()).collect(),
        };
        let (max_len, is_open) = self.growth.unwrap_or_default();
        let open = OpenDevices::of(devices, &self.settings.common)?;
        let pages = |len: usize| len.div_ceil(page_len) as u64;
        Ok(Homes {
            pages_most: open.pages_most(pages(max_len), page_bytes as u64).max(pages(len)),
            open,
            len,
            max_len: max_len.max(len),
            is_open,
            page_len,
            stripe_pattern,
            pairs,
            is_exclusive: false,
        })
    }
}
