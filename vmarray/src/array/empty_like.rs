//! New zeroed arrays on the devices of an existing array, for results of operations and for `empty_like`.

use std::sync::Arc;

use backend_api::{Device, DeviceKind, HostMemory};
#[cfg(feature = "host")]
use vmarray_support::warn;

use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::array::settings::{CommonSettings, Homes, OpenDevices, Recipe, Settings};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::setup::open_devices::in_ram;

/// Maximum bytes of the cache of an array that [`array_like`] makes.
const CACHE_BYTES: usize = 64 << 20;
/// The same, if the array is in a temporary file.
#[cfg(feature = "host")]
const FILE_CACHE_BYTES: usize = 2 << 20;
/// Number of elements of a scratch array's page: whole blocks of prefix sums.
const SCRATCH_PAGE_LEN: usize = if cfg!(test) { 1 << 10 } else { 1 << 13 };
/// Number of cached pages of a scratch array, per channel.
const SCRATCH_FRAMES: usize = 4;

/// Creates an array of zeroes on channels of these devices, with this page length. A file contains only its
/// own array, so RAM replaces it, or a temporary file if elements of 8 bytes have more than `ram_bytes`
/// bytes.
pub(crate) fn array_like<U: Element, D: Device>(
    channels: &[&Arc<dyn Device>],
    page_len: usize,
    len: usize,
    ram_bytes: usize,
) -> Result<VirtualArray<U, D>> {
    // Results that belong together, such as indices of 4 and of 8 bytes, have the same place.
    if len.saturating_mul(size_of::<U>().max(8)) > ram_bytes
        && channels.iter().any(|device| device.info().kind == DeviceKind::File)
        && let Some(array) = temporary(len, page_len)?
    {
        #[cfg(feature = "host")]
        warn::warn(format!(
            "results of operations on files that are longer than half of the cache are in temporary files in {}",
            std::env::temp_dir().display(),
        ));
        return Ok(array);
    }
    of_settings(
        &without_files(channels)?,
        page_len,
        len,
        Settings::of_result(CACHE_BYTES, HostMemory::Pinned),
    )
}

/// Creates an array of zeroes in a temporary file, with a small cache. Returns `None` without the feature
/// `host`.
#[cfg(feature = "host")]
pub(crate) fn temporary<U: Element, D: Device>(
    len: usize,
    page_len: usize,
) -> Result<Option<VirtualArray<U, D>>> {
    let file = vmarray_store::FileSection::temporary((len * size_of::<U>()) as u64)?;
    let builder = VirtualArray::<U>::builder(len).cache_bytes(FILE_CACHE_BYTES);
    builder.over(file.with_page_bytes(page_len * size_of::<U>())).map(Some)
}

#[cfg(not(feature = "host"))]
#[expect(clippy::unnecessary_wraps, reason = "the function has the type of the one above")]
pub(crate) fn temporary<U: Element, D: Device>(_: usize, _: usize) -> Result<Option<VirtualArray<U, D>>> {
    Ok(None)
}

/// Creates an array as [`array_like`] for temporary data on devices. The cache is minimal and not
/// page-locked, because page-locking takes longer than sorting the same amount on a GPU.
pub(crate) fn scratch<U: Element, D: Device>(
    channels: &[&Arc<dyn Device>],
    len: usize,
) -> Result<VirtualArray<U, D>> {
    let frames = SCRATCH_FRAMES * channels.len();
    let settings = Settings::of_result(frames * SCRATCH_PAGE_LEN * size_of::<U>(), HostMemory::Pageable);
    of_settings(&without_files(channels)?, SCRATCH_PAGE_LEN, len, settings)
}

/// Returns the devices of channels, with RAM in place of files.
fn without_files(channels: &[&Arc<dyn Device>]) -> Result<Vec<Arc<dyn Device>>> {
    let replaced = |device: &&Arc<dyn Device>| match device.info().kind {
        DeviceKind::File => in_ram(),
        _ => Ok(Arc::clone(device)),
    };
    channels.iter().map(replaced).collect()
}

fn of_settings<U: Element, D: Device>(
    channels: &[Arc<dyn Device>],
    page_len: usize,
    len: usize,
    settings: Settings,
) -> Result<VirtualArray<U, D>> {
    let (mut named, mut stripe_pattern) = (Vec::<Arc<dyn Device>>::new(), Vec::new());
    for device in channels {
        let known = named.iter().position(|other| Arc::ptr_eq(other, device));
        stripe_pattern.push(known.unwrap_or(named.len()));
        if known.is_none() {
            named.push(Arc::clone(device));
        }
    }
    let pages = len.div_ceil(page_len) as u64;
    let homes = Homes {
        open: OpenDevices::of(named, &CommonSettings::default())?,
        len,
        max_len: len,
        pages_most: pages,
        is_open: false,
        page_len,
        stripe_pattern,
        pairs: None,
        is_exclusive: false,
    };
    Builder::<U, D>::build_on(settings, homes, |_| ())
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    pub(crate) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Creates an array of `len` zeroes with the same devices, settings and page length as this array. In
    /// both arrays, elements with the same index are on the same device. So copies and kernel launches on
    /// both arrays copy nothing through the host, unless the arrays are [movable](crate::Builder::movable) or
    /// have [checksums](crate::Builder::checksums).
    ///
    /// If this array can [grow](Self#growth), the new one can grow to the same length. Statistics of the new
    /// array are not [published](crate::Builder::publish). If this array is in files, the new one is in host
    /// RAM, on one channel (share of a device), with the same cache, because a file holds only one array.
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
