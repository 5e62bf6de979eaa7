//! The lowest layer of the crate, which does not depend on arrays: element types, registered memory, and the
//! engine's errors, statistics and threads.

pub(crate) use vmarray_engine::{
    error, memory, nontemporal_copy, progress, recording, scoped_threads, stats,
};

pub(crate) mod element;
pub(crate) mod racy_slice;
#[cfg(all(test, feature = "host", feature = "tracing"))]
mod recording_tests;
pub(crate) mod registered_memory;
#[forbid(unsafe_code)]
pub(crate) mod scratch_pool;
#[forbid(unsafe_code)]
pub(crate) mod stats_export;
#[forbid(unsafe_code)]
pub(crate) mod trace;
