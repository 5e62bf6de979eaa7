//! Wrappers around any device: they count its work, inject failures, detect corruption, or keep data
//! redundantly on several devices.
//!
//! Each is a [`Device`](crate::Device) itself and passes the conformance suite, so wrappers can be nested.
//! A device on a clock of its own is `SimulatedDevice` of `vmarray-backend-host`.
//!
//! | wrapper | purpose |
//! |---|---|
//! | [`Checksummed`] | detects bits that flip on a device, or on the way there and back |
//! | [`Counting`] | counts a program's calls, copies, bytes and kernels, for assertions |
//! | [`Faulty`] | tests a program against refusals, deferred failures, and the loss of the device |
//! | [`Mirrored`] | keeps all data if a device is lost |
//! | [`ParityMember`] | the same at the cost of one device's share of three or more, instead of half of the memory |

mod checksummed;
mod counting;
mod fault;
mod faulty;
mod forward;
mod mirrored;
mod parity;
mod random;
mod several;

pub use checksummed::Checksummed;
pub use counting::{Counting, Counts, Work};
pub use fault::{Fault, FaultPlan, Operation, Strike};
pub use faulty::Faulty;
pub use mirrored::{Mirrored, Replica, ReplicaState};
pub use parity::{ParityGroup, ParityMember};
pub use random::SplitMix64;
