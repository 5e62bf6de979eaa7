//! Devices of `vmarray` that need no GPU.
//!
//! | device | memory | purpose |
//! |---|---|---|
//! | [`HostDevice`] | host RAM with a limit, queues and threads | machines without a GPU; tests at full speed |
//! | [`SimulatedDevice`] | host RAM; seeded delays and failures in virtual time | tests of failures and orders |
//!
//! Both implement the device contract in [`backend_api`] and pass its conformance suite. The crate
//! `vmarray-store` has devices that store their memory in files.
//!
//! # How it works
//!
//! **Threads.** A pool of threads processes the queues of all devices but the simulated one. A thread that
//! waits for a submission processes the queue itself if no other thread does. A copy with an immediate wait
//! therefore stays on its thread, and costs some 0.2 microseconds more than the copy itself. A submission of
//! short work wakes no thread, because the wake-up costs more than the work. Instead one idle thread polls
//! every 0.1 ms, for some milliseconds after it last found work. After that all threads sleep until a
//! submission wakes them.
//!
//! **Races.** Submission is safe code, so two queues that race on device memory must not cause undefined
//! behaviour. A [`HostDevice`] therefore accesses its memory only by [racing copies](backend_api::racy). A
//! search copies blocks of a few KiB into private memory, and compares the copies with vector instructions. A
//! search reaches nine tenths of the speed of the same loop over a `Vec`.
//!
//! **Lifetime.** A queued request keeps its memory alive, and is dropped before its ticket is done. A release
//! of memory waits only for the requests that use the memory. The drop of a device waits for all its work; a
//! simulated device discards its work instead.
//!
//! **Page-locking.** `mlock` locks pinned host memory. The devices count the locks of each page, because two
//! imported ranges can share a page, and `munlock` would unlock the page for both. If the system refuses to
//! lock memory, the [error](backend_api::ErrorKind::PinRefused) has the limits, and the caller decides on a
//! fallback.
//!
//! ```
//! use backend_api::Device;
//! for info in backend_host::devices() {
//!     println!("{info}: {} MiB", info.total_bytes >> 20);
//! }
//! let device = backend_host::HostDevice::builder().bytes(64 << 20).threads(2).build()?;
//! assert_eq!(device.memory()?.free_bytes, 64 << 20);
//! # Ok::<_, backend_api::Error>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod engine;
mod error;
mod handle_table;
mod host;
mod host_memory;
mod job;
mod kernel;
mod memory;
mod peers;
mod queue;
mod racy_word;
mod ram;
mod simulated;
mod storage;
mod worker;

pub use host::{HostDevice, HostDeviceBuilder, devices};
pub use simulated::{SimulatedDevice, SimulatedDeviceBuilder, SimulatedFabric, SimulatedOperation};

/// Parts of a device with queues and worker threads, which the crate `vmarray-store` reuses.
#[doc(hidden)]
pub mod parts {
    pub use crate::engine::Engine;
    pub use crate::error::system;
    pub use crate::host::default_threads;
    pub use crate::memory::{Passage, Wiping};
    pub use crate::ram::{Capacity, Ram};
    pub use crate::storage::{ReadRange, Storage};
    pub use crate::worker::Pool;
}
