//! The synchronization protocol of one page: its packed atomic state, the transitions of this state, hazard
//! slots for lock-free accesses, and the waits for other threads.
//!
//! This module does not depend on devices, frames or element types. The protocol (`entry`, `hazard`,
//! `barrier`) uses the atomics of `sync`, which loom replaces when it checks the protocol.

mod barrier;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
mod deferred_wakes;
#[forbid(unsafe_code)]
mod entry;
#[forbid(unsafe_code)]
mod hazard;
#[cfg(not(loom))]
mod park;
#[forbid(unsafe_code)]
mod quiesce;
#[forbid(unsafe_code)]
mod seqlock;
#[forbid(unsafe_code)]
mod snapshot_marks;
#[forbid(unsafe_code)]
pub mod state;
#[forbid(unsafe_code)]
pub mod sync;
#[cfg(not(loom))]
mod table;
#[cfg(not(loom))]
mod threads;
#[cfg(not(loom))]
mod wakers;

// Miri does not run these tests: they would take hours, and Miri has no asymmetric barrier.
#[cfg(all(test, not(loom), not(miri)))]
mod litmus;
#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, loom))]
mod snapshot_model;

#[cfg(not(loom))]
pub use deferred_wakes::{DeferredWakes, LockScope, OutsideLocks, wake};
pub use entry::{Entry, Holder, Refusal, Sweep};
pub use hazard::HazardAccess;
#[cfg(not(loom))]
pub use park::{park, park_task, sleep, unpark};
pub use quiesce::quiesce_by;
#[cfg(not(loom))]
pub use seqlock::SeqLock;
pub use snapshot_marks::{MarkedPages, SnapshotMarks, Snapshots, unmark};
pub use state::State;
#[cfg(not(loom))]
pub use table::{Lengths, PageTable};
#[cfg(not(loom))]
pub use threads::{
    HitCounter, barrier_all, count_hit, counter, drain_all, hits, read_fenced, read_lock_free, write_fenced,
    write_lock_free,
};
#[cfg(not(loom))]
pub use wakers::{Asleep, this_thread, wake_tasks, wake_tasks_of_thread};
