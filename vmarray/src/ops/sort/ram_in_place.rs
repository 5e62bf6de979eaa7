//! Sorting in RAM where elements lie, of devices whose memory that is: nothing is copied there and back.

use std::ptr::NonNull;

use backend_api::{AddressSpace, Device, Elements};
use bytemuck::Pod;

use super::external_merge::bytes_in_ram;
use super::on_device::refusal;
use super::on_host::{HomeSlice, sort_at_home};
use super::onesweep::is_unsupported;
use super::{ChannelShare, DeviceOutcome, KeyBits, KeyOrder};
use crate::base::error::{ErrorKind, Result};
use crate::base::progress::in_steps;
use crate::base::scoped_threads::CORES;
use crate::ops::executor::{ResultStore, RunAccess};

/// Whether threads can reach the memory of a device.
pub(super) fn can_sort(device: &dyn Device) -> bool {
    device.addresses().is_some_and(|addresses| addresses.space() == AddressSpace::Host)
}

/// Whether so many keys of a store lie side by side, with values that rows are made of, and as much memory
/// beside them is as much as pieces and what is beside these take.
pub(super) fn is_worth_it(
    of: &dyn ResultStore,
    len: usize,
    key_bytes: usize,
    value_bytes: Option<usize>,
) -> bool {
    of.pager().is_some_and(|pager| pager.channels().len() == 1)
        && matches!(value_bytes, None | Some(4 | 8))
        && len * (key_bytes + value_bytes.unwrap_or(0)) <= 2 * bytes_in_ram()
}

/// Sorts keys, and their values, that lie side by side; says when they are about to be written to. Devices
/// are such that threads reach their memory, and of shares nobody else writes to what they have.
pub(super) fn sort<K: KeyBits>(
    shares: &[ChannelShare<'_>],
    order: KeyOrder,
    begin_write: &mut dyn FnMut(),
) -> DeviceOutcome {
    let [share] = shares else { return DeviceOutcome::Unsupported };
    let sorted = match share.values.map(|values| values.stride) {
        None => sort_share::<K, ()>(share, order, begin_write),
        Some(4) => sort_share::<K, u32>(share, order, begin_write),
        Some(8) => sort_share::<K, u64>(share, order, begin_write),
        Some(_) => return DeviceOutcome::Unsupported,
    };
    match sorted {
        Ok(()) => DeviceOutcome::Done,
        Err(error) if matches!(error.kind(), ErrorKind::NoMemory { .. }) => DeviceOutcome::Unsupported,
        Err(error) if error.device_error().is_some_and(is_unsupported) => DeviceOutcome::Unsupported,
        Err(error) => DeviceOutcome::Failed(error),
    }
}

fn sort_share<K: KeyBits, V: Pod + Send + Sync>(
    share: &ChannelShare<'_>,
    order: KeyOrder,
    begin_write: &mut dyn FnMut(),
) -> Result<()> {
    let count = share.keys.count;
    in_steps(count * share.bytes_of_each(), |steps| {
        steps.report(0)?;
        // What was submitted before is over then.
        let all_before = share.lane.submit(RunAccess::Change, &mut |queue| queue.submit(&[]))?;
        share.lane.wait(all_before)?;
        let nothing = Elements { stride: 0, ..share.keys };
        // SAFETY: by the caller's word, work that writes is over, and the device's memory is touched by
        // racing copies alone.
        let (keys, values) =
            unsafe { (home::<K>(share, share.keys)?, home::<V>(share, share.values.unwrap_or(nothing))?) };
        sort_at_home(keys, values, order, *CORES, steps, begin_write)
    })
}

/// Elements of a share where they lie.
///
/// # Safety
/// As [`HomeSlice::new`], but for where that is.
unsafe fn home<'a, T: Pod>(share: &ChannelShare<'a>, of: Elements<'a>) -> Result<HomeSlice<'a, T>> {
    let addresses = share.lane.device().addresses().ok_or_else(refusal)?;
    let start = addresses.address(of.start, of.count * of.stride)? as usize;
    let start = NonNull::new(std::ptr::with_exposed_provenance_mut::<T>(start));
    let start = start.filter(|start| start.is_aligned()).ok_or_else(refusal)?;
    // SAFETY: by the caller's word; the device has said that so many bytes are there.
    Ok(unsafe { HomeSlice::new(start.as_ptr(), of.count as usize) })
}
