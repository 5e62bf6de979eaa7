//! Helpers of tests: sources of a few small pages, on a device that counts copies.

use std::sync::Arc;

use vmarray::device::Device;
use vmarray::host::HostDevice;
use vmarray::source::{Home, SourceBuilder};
use vmarray::{Placement, Source};
use vmarray_conformance::wrap::Counting;

use super::{as_any, host};

/// Bytes of a page and of a block: 128 `u32` and 2.
pub const PAGE: u64 = 512;
pub const BLOCK: u64 = 8;
pub const PAGES: usize = 10;
pub const LEN: usize = PAGES * 128;

pub type Counted = Counting<HostDevice>;

pub fn described<H: Home<u32>, D: Device>(home: H, device: &Arc<D>) -> SourceBuilder<u32, H> {
    Source::builder(home).devices([as_any(device)]).placement(Placement::Ratios(vec![1])).page_len(128)
}

pub fn counted(home: Vec<u32>) -> (Source<u32>, Arc<Counted>) {
    let device = Arc::new(Counting::new(host()));
    (described(home, &device).build().unwrap(), device)
}

/// Bytes copied to and from the device since the last call, without results, as the device counts them.
pub fn moved<D: Device>(device: &Counting<D>) -> (u64, u64) {
    let work = device.reset().work;
    (work.upload_bytes, work.download_bytes)
}
