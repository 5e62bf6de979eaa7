//! Peer access: tests by a copy if a device can access the memory of another device.

use std::sync::Arc;

use backend_api::{Device, Reach};
use vmarray_support::links;

use crate::trace;

/// Returns true if each device maps the memory of all of them. Tests links as [`reach`] does.
pub fn all_map<'a>(devices: impl Iterator<Item = &'a Arc<dyn Device>> + Clone) -> bool {
    devices.clone().all(|from| devices.clone().all(|to| reach(from, to) == Reach::Maps))
}

/// Returns the kind of access that a device has to the memory of another device: none if the link between
/// them is broken. As in [`links::reach`], the first use of a link tests it. The calling thread must hold no
/// lock of a channel (share of a device).
pub fn reach(from: &Arc<dyn Device>, to: &Arc<dyn Device>) -> Reach {
    links::reach(from, to, |from, to, error| match error {
        None => trace::link_broken(from.info(), to.info()),
        Some(error) => trace::link_untried(from.info(), to.info(), error),
    })
}
