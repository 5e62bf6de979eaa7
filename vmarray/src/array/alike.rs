//! Arrays that results are written to, on the devices of what they are made from.

use std::sync::Arc;

use backend_api::{Device, DeviceKind};

use crate::array::VirtualArray;
use crate::array::builder::{Builder, CommonSettings, Homes, OpenDevices, Settings};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::setup::any::in_ram;

/// How much of an array on channels of these devices is cached in RAM, at most.
const CACHE_BYTES: usize = 1 << 20;

/// An array of zeroes whose pages, of so many elements each, are dealt out to channels of these devices: in
/// RAM in the place of files, which hold what they were made for and nothing else.
pub(crate) fn alike<U: Element, D: Device>(
    channels: &[&Arc<dyn Device>],
    page_len: usize,
    len: usize,
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
    let settings = Settings::cached(CACHE_BYTES);
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
