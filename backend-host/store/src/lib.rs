//! Devices of `vmarray` whose memory is a file, or storage that the program provides.
//!
//! | device | memory | purpose |
//! |---|---|---|
//! | [`FileDevice`] | a file on a drive | arrays larger than RAM without a GPU |
//! | [`StoreDevice`] | a file that keeps its contents | arrays that outlive the program |
//! | [`BackedDevice`] | pages that the program stores | compressed files, servers, databases, files of other programs |
//!
//! All implement the device contract in [`backend_api`] and pass its conformance suite. Queues and threads
//! are the same as in [`HostDevice`](backend_host::HostDevice).
//!
//! **Tiers.** Other devices, usually GPUs, can cache pages of a file: see [`Tier`]. The file device copies to
//! and from the cache when it executes a request.
//!
//! ```
//! use backend_api::Device;
//! let device = vmarray_store::FileDevice::builder(std::env::temp_dir()).create_temporary(1 << 20)?;
//! assert_eq!(device.memory()?.free_bytes, 1 << 20);
//! # Ok::<_, backend_api::Error>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
// Allow a list with a single range, because lists of file ranges often have only one.
#![allow(clippy::single_range_in_vec_init)]

mod backed;
mod checked;
mod error;
#[forbid(unsafe_code)]
mod extent_allocator;
mod file;
mod ram_fallback;
#[forbid(unsafe_code)]
mod section;
mod store;
mod tier;

pub use backed::{BackedDevice, Backing};
pub use file::{FileDevice, FileDeviceBuilder};
pub use section::{FileAccess, FileSection};
pub use store::{PathLock, StoreDevice, StoreFile, StoreReport};
pub use tier::{LostCard, Tier, TierStatus};
