//! The lowest layer, which does not depend on arrays: elements, errors, statistics, memory, threads.

#[cfg(not(loom))]
pub(crate) mod element;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod error;
#[cfg(not(loom))]
pub(crate) mod memory;
pub(crate) mod nontemporal_copy;
#[cfg(not(loom))]
pub(crate) mod progress;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod recording;
#[cfg(not(loom))]
pub(crate) mod registered_memory;
pub(crate) mod scoped_threads;
#[cfg(not(loom))]
pub(crate) mod scratch_pool;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod stats;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod stats_export;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod trace;
