//! What devices can do with each other's memory.

use std::sync::Arc;

use backend_api::{Device, Reach, links};

use crate::base::trace;

/// What a device can do with memory of another: nothing where the link between them is broken. As
/// [`links::reach`]: the first use of a link tries it. The calling thread holds no lock of a channel.
pub(crate) fn reach(from: &Arc<dyn Device>, to: &Arc<dyn Device>) -> Reach {
    links::reach(from, to, |from, to, error| match error {
        None => trace::link_broken(from.info(), to.info()),
        Some(error) => trace::link_untried(from.info(), to.info(), error),
    })
}
