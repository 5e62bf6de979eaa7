//! The engine, which works on pages of bytes. It manages their frames in RAM (the cache) and their home slots
//! on devices, and implements the protocol of concurrent accesses.

#[cfg(not(loom))]
pub(crate) mod channel;
#[forbid(unsafe_code)]
pub(crate) mod combiner;
#[forbid(unsafe_code)]
pub(crate) mod event_count;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod evict;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod guards;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod links;
pub(crate) mod page;
#[cfg(not(loom))]
pub(crate) mod pager;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod parallel_copy;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod read_ahead;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod redundancy;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub(crate) mod shared_work;
