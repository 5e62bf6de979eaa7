//! Functions on channels (shares of a device): the elements of a range that each channel stores, and the
//! distinct devices of several channels.

use std::ops::Range;
use std::sync::Arc;

use backend_api::Device;

use crate::base::error::Result;
use crate::base::stats::Counters;
use crate::engine::pager::Pager;

/// The devices of some channels, each once.
pub(crate) fn distinct<'a>(
    channels: impl Iterator<Item = (&'a Arc<dyn Device>, &'a Counters)>,
) -> Vec<(&'a Arc<dyn Device>, &'a Counters)> {
    let mut devices: Vec<(&Arc<dyn Device>, &Counters)> = Vec::new();
    for (device, counters) in channels {
        if devices.iter().all(|(other, _)| !Arc::ptr_eq(other, device)) {
            devices.push((device, counters));
        }
    }
    devices
}

/// The elements of a range that are homed in a channel, one of `count`. They are counted from the
/// channel's first slot. Slots are contiguous, so the elements are one run.
pub(crate) fn within_channel(
    (channel, count): (usize, usize),
    page_len: usize,
    range: &Range<usize>,
) -> Range<u64> {
    // Returns how many elements before `index` the channel (share of a device) stores.
    let before = |index: usize| -> u64 {
        let (page, at) = (index / page_len, index % page_len);
        let slots = (page + count - 1 - channel) / count;
        let within = if page % count == channel { at } else { 0 };
        (slots * page_len + within) as u64
    };
    before(range.start)..before(range.end)
}

/// Returns true if no group of elements has parts in two pages, or if one page has the whole range.
pub(crate) fn are_groups_within_pages(group_len: usize, page_len: usize, range: &Range<usize>) -> bool {
    let is_in_one = || range.start / page_len == range.end.saturating_sub(1) / page_len;
    group_len <= 1
        || page_len.is_multiple_of(group_len) && range.start.is_multiple_of(group_len)
        || is_in_one()
}

/// The error if a device read pages whose contents a failed copy may have left undefined.
pub(crate) fn unsettled() -> backend_api::Error {
    backend_api::Error::new(backend_api::ErrorKind::CopyFailed, "compute").with_detail(
        "a page of another array could not be written back before the read; repeat the operation",
    )
}

/// Runs `work` on the home slots of pages of several arrays.
pub(crate) fn read_all<R>(all: &[(&Pager, Range<u64>)], work: &mut dyn FnMut() -> Result<R>) -> Result<R> {
    match all.split_first() {
        None => work(),
        Some(((first, pages), others)) => first.read_settled(pages, || read_all(others, work)),
    }
}
