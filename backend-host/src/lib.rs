//! Devices of `vmarray` that need no card.
//!
//! | device | what it is | for |
//! |---|---|---|
//! | [`HostDevice`] | host RAM with a budget, queues and threads | machines without a GPU; tests at full speed |
//! | [`FileDevice`] | a file on a drive | arrays larger than RAM without a GPU |
//! | [`StoreDevice`] | a file whose contents stay | arrays that outlive the program |
//! | [`BackedDevice`] | pages that the program reads and writes by itself | whatever else has pages |
//! | [`SimulatedDevice`] | a seeded adversary in virtual time | tests of everything that can go wrong |
//!
//! All keep to the contract in [`backend_api`] and pass its conformance suite.
//!
//! # How it works
//!
//! **Who does the work.** Queues of the first two are worked off by a pool of threads, and by any thread that
//! waits for a ticket: it takes the queue over if nobody else is at it. A copy that is waited for at once
//! therefore never passes to another thread, and costs some 0.2 microseconds more than the copy itself.
//! Handing over short work wakes nobody either, as that costs more than the work: one idle thread looks by
//! itself every 0.1 ms, for some milliseconds after the last work it found. After that all threads sleep
//! until they are woken.
//!
//! **Memory that others touch.** Submitting is safe code, so two queues that race on device memory must not
//! be undefined behaviour, whatever a program submits. Memory of a [`HostDevice`] is therefore touched by
//! [racing copies](backend_api::racy) alone. A search copies blocks of a few KiB into memory of its own and
//! compares there, with vector instructions; it reaches nine tenths of the speed of the same loop over a
//! `Vec`.
//!
//! **Lifetime.** A job owns its memory and is dropped before its ticket is done. Releasing memory waits for
//! exactly the jobs that touch it. Dropping a device waits for all of its work, except that a simulation
//! simply forgets it.
//!
//! **Tiers.** Pages of a file may be cached by other devices, cards above all ([`Tier`]): below the queues,
//! which do not know of it.
//!
//! **Page-locking.** Pinned host memory is locked with `mlock` range by range rather than map by map:
//! programs can import memory that shares its first and last page with a neighbour, and the system unlocks a
//! page for all who locked it. A refusal is an [error](backend_api::ErrorKind::PinRefused) with figures; what
//! to do about it is the caller's decision.
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
// Ranges of a file are often a list of one.
#![allow(clippy::single_range_in_vec_init)]

mod backed;
mod checked;
mod engine;
mod error;
mod file;
#[forbid(unsafe_code)]
mod free;
mod host;
mod host_memory;
mod job;
mod kernel;
mod medium;
mod memory;
mod or_ram;
mod peers;
mod queue;
mod ram;
mod registry;
mod short;
mod simulated;
mod store;
mod tier;
mod worker;

pub use backed::{BackedDevice, Backing};
pub use file::{FileDevice, FileDeviceBuilder};
pub use host::{HostDevice, HostDeviceBuilder, devices};
pub use simulated::{SimulatedDevice, SimulatedDeviceBuilder, SimulatedFabric, SimulatedOperation};
pub use store::{PathLock, StoreDevice, StoreReport};
pub use tier::{LostCard, Tier, TierStatus};
