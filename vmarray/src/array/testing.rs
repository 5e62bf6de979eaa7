//! Small arrays in host RAM, for unit tests of arrays and of the engine.

use std::sync::Arc;

use backend_api::Device;
use backend_host::HostDevice;

use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::base::element::Element;
use crate::setup::placement::Placement;

pub(crate) fn host() -> HostDevice {
    HostDevice::builder().bytes(64 << 20).threads(1).build().unwrap()
}

/// Returns an array with one channel of `frames` frames, without read-ahead.
pub(crate) fn one_channel<T: Element, D: Device>(
    device: &Arc<D>,
    (pages, page_len): (usize, usize),
    frames: usize,
) -> Builder<T, D> {
    VirtualArray::builder(pages * page_len)
        .devices([device.clone()])
        .placement(Placement::Ratios(vec![1]))
        .page_len(page_len)
        .frames_per_channel(frames)
        .read_ahead(false)
}
