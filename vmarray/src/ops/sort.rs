//! Sorts of numbers: in the memory of the devices that store the elements if possible, otherwise in RAM.

#[forbid(unsafe_code)]
mod external;
mod external_merge;
mod in_place;
mod kernels;
mod keys;
mod look_back;
mod merge;
mod on_device;
mod on_devices;
mod on_host;
#[forbid(unsafe_code)]
mod onesweep;
mod plan;
mod ram_in_place;
#[cfg(test)]
pub(crate) mod tests;
mod view;

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use backend_api::Device;

use self::external::ExternalPlan;
pub(crate) use self::external_merge::bytes_in_ram;
pub(crate) use self::kernels::{
    HAS_CARRIES, IS_EXCLUSIVE, LOOK_BACK_TILE, ROW_BLOCK, SUMS_ONLY, accumulation_kernel, extreme_kernels,
    scan_kernel,
};
pub use self::keys::{KeyBits, KeyOrder, SortKey};
pub(crate) use self::look_back::{LookBack, TileState, TileStates, look_back};
use self::on_device::can_sort;
pub(crate) use self::on_device::refusal;
pub(crate) use self::on_devices::of_each;
use self::on_devices::sort_on_devices;
pub(crate) use self::on_host::{sort as sort_in_ram, sort_pairs as sort_pairs_in_ram};
pub(crate) use self::onesweep::{is_unsupported, moves_with_keys};
pub use self::plan::SortPlan;
#[cfg(test)]
pub(crate) use self::tests::InterpretedGpu;
pub use self::view::Sort;
pub(crate) use self::view::{check_values, sort_with_values};
use crate::base::error::Result;
use crate::ops::executor::{DeviceOutcome, Operand, ResultStore};
use crate::ops::view::{INTERNAL, StoreMut};

/// Sorts the elements of a range of a store, and permutes optional values in the same way.
pub(crate) fn sort<T: SortKey, S: StoreMut<Element = T>>(
    store: &S,
    range: &Range<usize>,
    values: Option<Operand<'_>>,
    is_descending: bool,
) -> Result<()> {
    let (order, target) = (KeyOrder::of::<T>(is_descending), store.as_target(INTERNAL));
    if range.len() < 2 {
        return Ok(());
    }
    // Check the keys' and the values' array before the first write, so that an error leaves both unchanged.
    for pager in [target.pager(), values.and_then(|values| values.store.pager())].into_iter().flatten() {
        pager.expect_writable()?;
        pager.expect_no_guards()?;
    }
    let value_bytes = values.map(|values| values.stride());
    let is_done = match SortPlan::new(target, range.len(), size_of::<T>(), value_bytes) {
        SortPlan::OnDevices if value_bytes.is_none_or(moves_with_keys) => {
            let companion = values.map(|values| (values, range.len()));
            let all = |_: &Arc<dyn Device>| true;
            target.change_on_devices(range, companion, &all, &mut |shares, striping, begin_write| {
                if can_sort(shares[0].lane.device(), size_of::<T>(), value_bytes) {
                    sort_on_devices(shares, striping, order, begin_write)
                } else {
                    ram_in_place::sort::<T::KeyBits>(shares, order, begin_write)
                }
            })?
        }
        SortPlan::ThroughDevices => sort_through_devices::<T>(target, range, order)?,
        _ => false,
    };
    if is_done { Ok(()) } else { external_merge::sort::<T, S>(store, range, values, order) }
}

/// Sorts elements in the program's memory through the memory of devices. Returns false if that is impossible
/// or slower; the elements may then be reordered.
fn sort_through_devices<T: SortKey>(
    target: &dyn ResultStore,
    range: &Range<usize>,
    order: KeyOrder,
) -> Result<bool> {
    let can_sort = |device: &Arc<dyn Device>| can_sort(device, size_of::<T>(), None);
    let plan = Cell::new(None);
    let mut choose = |rooms: &[usize]| {
        plan.set(ExternalPlan::new(range.len(), size_of::<T>(), rooms));
        plan.get().is_some()
    };
    target.change_through_devices(range, &can_sort, &mut choose, &mut |home| match plan.get() {
        Some(plan) => external::sort(home, order, plan),
        None => DeviceOutcome::Unsupported,
    })
}
