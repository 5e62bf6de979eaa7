//! All integration tests of the crate, in one program that compiles and links shared code once.

mod conformance;
mod fused;
mod host;
mod late_calls;
mod peers;
mod simulated;
