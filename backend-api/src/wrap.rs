//! Wrappers around any device: they count what it does, make it fail, or put it on a clock of its own.
//!
//! Each is a [`Device`](crate::Device) itself and passes the conformance suite, so they can be put around
//! each other: a `Faulty<Delayed<D>>` fails, and its failures come when its clock says so.
//!
//! | wrapper | what it is for |
//! |---|---|
//! | [`Counting`] | asserting what a program asked of a device: calls, copies, bytes, kernels |
//! | [`Faulty`] | seeing a program through refusals, failures that come later, and the loss of the device |
//! | [`Delayed`] | asserting in virtual time that work overlaps, without a stopwatch |

mod counting;
mod delayed;
mod faulty;
mod forward;
pub(crate) mod random;

pub use counting::{Counting, Counts, Work};
pub use delayed::{Delayed, Engines, Span, Speed};
pub use faulty::{Fault, Faulty, Operation};
