//! Sort in place on devices whose memory is host RAM: the host's threads sort in this memory, without copies.

use backend_api::{AddressSpace, Device, Elements};
use bytemuck::Pod;

use super::external_merge::bytes_in_ram;
use super::keys::{KeyBits, KeyOrder};
use super::on_device::refusal;
use super::on_host::sort_at_home;
use super::onesweep::{is_unsupported, moves_with_keys};
use crate::base::error::{ErrorKind, Result};
use crate::base::progress::in_steps;
use crate::base::racy_slice::HomeSlice;
use crate::base::scoped_threads::CORES;
use crate::ops::executor::{ChannelShare, DeviceOutcome, ResultStore, RunAccess};

/// Returns true if host threads can access the memory of a device.
pub(super) fn can_sort(device: &dyn Device) -> bool {
    device.addresses().is_some_and(|addresses| addresses.space() == AddressSpace::Host)
}

/// Returns true if the keys are contiguous, the sort supports their values, and it needs no more scratch
/// memory than a sort of pieces in RAM.
pub(super) fn is_worth_it(
    of: &dyn ResultStore,
    len: usize,
    key_bytes: usize,
    value_bytes: Option<usize>,
) -> bool {
    of.pager().is_some_and(|pager| pager.channels().len() == 1)
        && value_bytes.is_none_or(moves_with_keys)
        && len * (key_bytes + value_bytes.unwrap_or(0)) <= 2 * bytes_in_ram(of)
}

/// Sorts a channel's contiguous keys, with their values. Calls `begin_write` before the first write. Host
/// threads must be able to access the device's memory, and no other thread may write to the share.
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
        // Wait for all earlier device work on the keys, because this function's threads access the memory
        // without the queue.
        let all_before = share.lane.submit(RunAccess::Change, &mut |queue| queue.submit(&[]))?;
        share.lane.wait(all_before)?;
        let nothing = Elements { stride: 0, ..share.keys };
        // SAFETY: the executor holds all pages of the share for this change, and the earlier work has ended.
        // So no work writes to the share. The device uses racy copies only.
        let (keys, values) =
            unsafe { (home::<K>(share, share.keys)?, home::<V>(share, share.values.unwrap_or(nothing))?) };
        sort_at_home(keys, values, order, *CORES, steps, begin_write)
    })
}

/// Returns the elements of a share in device memory as a slice.
///
/// # Safety
/// No work writes to the elements while the slice exists.
unsafe fn home<'a, T: Pod>(share: &'a ChannelShare<'_>, of: Elements<'a>) -> Result<HomeSlice<'a, T>> {
    // SAFETY: the caller guarantees it; memory of a device that keeps elements is initialised.
    let slice = unsafe { HomeSlice::on_device(&**share.lane.device(), of.start, of.count) }?;
    Ok(slice.ok_or_else(refusal)?)
}
