//! New arrays on the devices of an existing array, for results of operations and for the program.

use std::sync::Arc;

use backend_api::{Device, DeviceKind, ErrorKind, HostMemory};
use parking_lot::Mutex;

use crate::array::VirtualArray;
use crate::array::builder::{Builder, CommonSettings, Homes, OpenDevices, Settings};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::setup::any::in_ram;
use crate::setup::placement::Placement;

/// Maximum cache of an array on channels of these devices.
const CACHE_BYTES: usize = 64 << 20;
/// Elements of a page of a scratch array: whole blocks of prefix sums.
const SCRATCH_PAGE_LEN: usize = if cfg!(test) { 1 << 10 } else { 1 << 13 };
/// Cached pages of it a channel.
const SCRATCH_FRAMES: usize = 4;

/// An array of zeroes with a page length, striped over channels of these devices; RAM replaces files, which
/// hold only their own array.
pub(crate) fn array_like<U: Element, D: Device>(
    channels: &[&Arc<dyn Device>],
    page_len: usize,
    len: usize,
) -> Result<VirtualArray<U, D>> {
    of_settings(channels, page_len, len, Settings::of_result(CACHE_BYTES, HostMemory::Pinned))
}

/// As [`array_like`], for temporary data on devices: the cache is minimal and not page-locked, because
/// page-locking takes longer than sorting the same amount on a GPU.
pub(crate) fn scratch<U: Element, D: Device>(
    channels: &[&Arc<dyn Device>],
    len: usize,
) -> Result<VirtualArray<U, D>> {
    let frames = SCRATCH_FRAMES * channels.len();
    let settings = Settings::of_result(frames * SCRATCH_PAGE_LEN * size_of::<U>(), HostMemory::Pageable);
    of_settings(channels, SCRATCH_PAGE_LEN, len, settings)
}

fn of_settings<U: Element, D: Device>(
    channels: &[&Arc<dyn Device>],
    page_len: usize,
    len: usize,
    settings: Settings,
) -> Result<VirtualArray<U, D>> {
    let (mut named, mut stripe_pattern) = (Vec::<&Arc<dyn Device>>::new(), Vec::new());
    for device in channels {
        let known = named.iter().position(|other| Arc::ptr_eq(other, device));
        stripe_pattern.push(known.unwrap_or(named.len()));
        if known.is_none() {
            named.push(device);
        }
    }
    let in_place = |device: &Arc<dyn Device>| match device.info().kind {
        DeviceKind::File => in_ram(),
        _ => Ok(Arc::clone(device)),
    };
    let devices = named.into_iter().map(in_place).collect::<Result<_>>()?;
    let pages = len.div_ceil(page_len) as u64;
    let homes = Homes {
        open: OpenDevices::of(devices, &CommonSettings::default())?,
        len,
        max_len: len,
        pages_most: pages,
        is_open: false,
        page_len,
        stripe_pattern,
        redundant: None,
        is_exclusive: false,
    };
    Builder::<U, D>::build_on(settings, homes, |_| ())
}

/// Settings and devices of an array, to make another one like it.
#[derive(Debug)]
pub(crate) struct Recipe {
    settings: Settings,
    /// None for an array whose devices can hold no other one.
    devices: Mutex<Option<Vec<Arc<dyn Device>>>>,
    /// The device of each channel, also of channels that the array is too short for.
    stripe_pattern: Vec<usize>,
    /// Maximal length of a growing array, and true if only its devices limit it.
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

    /// Notes that the channels are on these devices now.
    pub(crate) fn move_to(&self, devices: &[Arc<dyn Device>]) {
        *self.devices.lock() = Some(devices.to_vec());
    }

    /// Notes that a spare has taken the place of a lost device.
    pub(crate) fn replace_lost(&self, spare: &Arc<dyn Device>) {
        let is_lost =
            |device: &Arc<dyn Device>| device.memory().is_err_and(|error| error.kind() == ErrorKind::Lost);
        let mut devices = self.devices.lock();
        if let Some(lost) = devices.as_mut().and_then(|list| list.iter_mut().find(|one| is_lost(one))) {
            *lost = Arc::clone(spare);
        }
    }

    fn homes(&self, page_len: usize, page_bytes: usize, len: usize) -> Result<Homes> {
        let devices = self.devices.lock().clone();
        let devices = match devices {
            Some(devices) => devices,
            None => vec![in_ram()?],
        };
        let redundant = self.settings.common.placement.redundant(devices.len())?;
        let stripe_pattern = match &redundant {
            Some(redundant) => (0..redundant.channels()).collect(),
            // After a move, the channels may be on fewer devices.
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
            redundant,
            is_exclusive: false,
        })
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    pub(crate) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Creates an array of `len` zeroes with the same devices, settings and page length. Both arrays store
    /// the elements of an index on the same device. Kernels, copies and sessions on both arrays therefore
    /// copy nothing through the host, unless the arrays are [movable](crate::Builder::movable) or have
    /// [checksums](crate::Builder::checksums).
    ///
    /// If this array can [grow](Self#growth), the new one can grow to the same length. Statistics are not
    /// [published](crate::Builder::publish). A file holds only one array: if this array is in files, the new
    /// one is in host RAM, on one channel, with the same cache.
    ///
    /// # Errors
    /// The errors of [`Builder::build`](crate::Builder::build).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use std::sync::Arc;
    /// use vmarray::host::HostDevice;
    /// let device = Arc::new(HostDevice::new(1 << 20)?);
    /// let array = VirtualArray::<u32>::builder(10_000).devices([device]).page_len(512).build()?;
    /// array.fill(.., 7)?;
    /// let other = array.empty_like(5000)?;
    /// assert_eq!((other.len(), other.page_len(), other.get(4999)?), (5000, 512, 0));
    /// other.copy_from(0, array.section(2500..7500)?)?;
    /// assert_eq!(other.sum(.., Field::whole())?, 35_000);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn empty_like(&self, len: usize) -> Result<Self> {
        let recipe = &self.recipe;
        let homes = recipe.homes(self.page_len(), self.pager().page_bytes(), len)?;
        Builder::<T, D>::build_on(recipe.settings.clone(), homes, |_| ())
    }
}
