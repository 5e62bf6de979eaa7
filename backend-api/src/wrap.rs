//! Building blocks for devices that wrap other devices: [forwarding](crate::forward) of methods to the inner
//! device, and fault injection.
//!
//! `vmarray-conformance` has wrappers for tests. `vmarray-redundancy` has wrappers that detect corruption or
//! store data redundantly.

mod fault;
mod forward;
mod random;

pub use fault::{Fault, FaultPlan, Operation, Strike};
pub use random::{SplitMix64, has_all_cases, random_cases};
