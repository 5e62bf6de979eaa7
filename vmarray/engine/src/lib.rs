//! The part of `vmarray` below element types and above devices: the synchronization protocol of pages,
//! eviction policies, waits of threads and tasks, errors and statistics. It depends on no backend.
//!
//! [`vmarray`](https://docs.rs/vmarray) exports the public items of this crate. Programs should not use the
//! modules directly, since they are not a stable interface.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
#[forbid(unsafe_code)]
pub mod combiner;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub mod error;
#[doc(hidden)]
#[forbid(unsafe_code)]
pub mod event_count;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub mod evict;
#[cfg(not(loom))]
#[doc(hidden)]
#[forbid(unsafe_code)]
pub mod guards;
#[cfg(not(loom))]
#[doc(hidden)]
#[forbid(unsafe_code)]
pub mod links;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod nontemporal_copy;
#[doc(hidden)]
pub mod page;
#[cfg(not(loom))]
#[doc(hidden)]
#[forbid(unsafe_code)]
pub mod parallel_copy;
#[cfg(not(loom))]
pub mod progress;
#[cfg(not(loom))]
#[doc(hidden)]
#[forbid(unsafe_code)]
pub mod read_ahead;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub mod recording;
#[cfg(not(loom))]
#[doc(hidden)]
#[forbid(unsafe_code)]
pub mod redundancy;
#[doc(hidden)]
pub mod scoped_threads;
#[cfg(not(loom))]
#[doc(hidden)]
#[forbid(unsafe_code)]
pub mod shared_work;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
pub mod stats;
#[cfg(not(loom))]
#[doc(hidden)]
#[forbid(unsafe_code)]
pub mod trace;
