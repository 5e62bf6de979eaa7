//! Wrappers around any device for tests: they count its work, or inject failures.
//!
//! Each wrapper is a [`Device`](backend_api::Device) itself and passes the conformance suite, so wrappers can
//! be nested. For simulated time see `SimulatedDevice` in `vmarray-backend-host`. Wrappers that detect
//! corruption or store data redundantly are in `vmarray-redundancy`.
//!
//! | wrapper | purpose |
//! |---|---|
//! | [`Counting`] | counts a program's calls, copies, bytes and kernels, for assertions |
//! | [`Faulty`] | injects failures: refused calls, failures of submitted work, and the loss of the device |

mod counting;
mod faulty;

pub use counting::{Counting, Counts, WorkCounts};
pub use faulty::Faulty;
