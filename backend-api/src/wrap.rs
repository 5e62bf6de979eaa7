//! Wrappers around any device: they count what it does, make it fail, or have others do it, too.
//!
//! Each is a [`Device`](crate::Device) itself and passes the conformance suite, so they can be put around
//! each other. A device on a clock of its own is `SimulatedDevice` of `vmarray-backend-host`.
//!
//! | wrapper | what it is for |
//! |---|---|
//! | [`Checksummed`] | finding bits that flip on a device, or on the way there and back |
//! | [`Counting`] | asserting what a program asked of a device: calls, copies, bytes, kernels |
//! | [`Faulty`] | seeing a program through refusals, failures that come later, and the loss of the device |
//! | [`Mirrored`] | losing a device and nothing else |
//! | [`ParityMember`] | the same for one device's share of the memory of three or more, instead of half |

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
