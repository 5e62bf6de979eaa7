//! The lowest layer, which does not depend on arrays: elements, errors, statistics, memory, threads.

#[cfg(not(loom))]
pub(crate) mod element;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod error;
#[cfg(not(loom))]
pub(crate) mod imported;
#[cfg(not(loom))]
pub(crate) mod memory;
pub(crate) mod past_caches;
#[cfg(not(loom))]
pub(crate) mod progress;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod published;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod recording;
#[cfg(not(loom))]
pub(crate) mod reused;
pub(crate) mod scoped_threads;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod stats;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod trace;
