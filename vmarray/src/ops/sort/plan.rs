//! The choice between the strategies of a sort.

use std::fmt;
use std::sync::Arc;

use backend_api::Device;

use super::onesweep::moves_with_keys;
use super::{on_device, ram_in_place};
use crate::engine::links::all_map;
use crate::ops::executor::ResultStore;

/// The strategy of a sort, as [`explain_sort`](crate::views::Sort::explain_sort) returns it. If the strategy
/// fails before the first change, for example because memory does not suffice, the sort runs in RAM.
///
/// ```
/// use vmarray::views::SortPlan;
/// assert_eq!(SortPlan::InRam.to_string(), "cores sort pieces in RAM, and merge them in place");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SortPlan {
    /// The devices sort the elements in their own memory: GPUs run kernels, and if the memory is RAM, the
    /// program's threads sort there.
    OnDevices,
    /// GPUs sort elements of RAM, which pass through their memory once or twice.
    ThroughDevices,
    /// Cores sort pieces in RAM, and merge them in place.
    InRam,
}

impl fmt::Display for SortPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OnDevices => "the devices sort in their own memory",
            Self::ThroughDevices => "elements of RAM pass through the memory of GPUs",
            Self::InRam => "cores sort pieces in RAM, and merge them in place",
        })
    }
}

impl SortPlan {
    /// Returns the strategy for `len` elements of a store, from the abilities of its devices.
    pub(super) fn new(
        of: &dyn ResultStore,
        len: usize,
        key_bytes: usize,
        value_bytes: Option<usize>,
    ) -> Self {
        let devices = of.devices();
        // Values of other lengths move by positions of 8 bytes.
        let with_keys = value_bytes.map(|bytes| if moves_with_keys(bytes) { bytes } else { 8 });
        let is_possible = |device: &Arc<dyn Device>| on_device::can_sort(device, key_bytes, with_keys);
        let all_possible = devices.iter().all(|(device, _)| is_possible(device));
        let [(first, _), ..] = &devices[..] else { return Self::InRam };
        match of.pager() {
            Some(_) if all_possible && all_map(devices.iter().map(|(device, _)| *device)) => Self::OnDevices,
            Some(_)
                if ram_in_place::can_sort(&***first)
                    && ram_in_place::is_worth_it(of, len, key_bytes, value_bytes) =>
            {
                Self::OnDevices
            }
            None if value_bytes.is_none() && all_possible => Self::ThroughDevices,
            _ => Self::InRam,
        }
    }
}
