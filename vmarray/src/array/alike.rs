//! Result arrays on the devices of their operands.

use std::sync::Arc;

use backend_api::{Device, DeviceKind, HostMemory};

use crate::array::VirtualArray;
use crate::array::builder::{Builder, CommonSettings, Homes, OpenDevices, Settings};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::setup::any::in_ram;

/// Maximum cache of an array on channels of these devices.
const CACHE_BYTES: usize = 64 << 20;
/// Elements of a page of a scratch array: whole blocks of prefix sums.
const SCRATCH_PAGE_LEN: usize = if cfg!(test) { 1 << 10 } else { 1 << 13 };
/// Cached pages of it a channel.
const SCRATCH_FRAMES: usize = 4;

/// An array of zeroes with a page length, striped over channels of these devices; RAM replaces files, which
/// hold only their own array.
pub(crate) fn alike<U: Element, D: Device>(
    channels: &[&Arc<dyn Device>],
    page_len: usize,
    len: usize,
) -> Result<VirtualArray<U, D>> {
    of_settings(channels, page_len, len, Settings::of_result(CACHE_BYTES, HostMemory::Pinned))
}

/// As [`alike`], for temporary data on devices: the cache is minimal and not page-locked, because
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
    let (mut named, mut turns) = (Vec::<&Arc<dyn Device>>::new(), Vec::new());
    for device in channels {
        let known = named.iter().position(|other| Arc::ptr_eq(other, device));
        turns.push(known.unwrap_or(named.len()));
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
    turns.truncate((pages as usize).max(1));
    let homes = Homes {
        open: OpenDevices::of(devices, &CommonSettings::default())?,
        len,
        max_len: len,
        pages_most: pages,
        is_open: false,
        page_len,
        turns,
        redundant: None,
    };
    Builder::<U, D>::build_on(settings, homes, |_| ())
}
