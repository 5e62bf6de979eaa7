//! All integration tests of the crate, as one program: what they share is compiled and linked once.

mod conformance;
mod file;
mod fused;
mod host;
mod peers;
#[cfg(unix)]
mod shares;
mod simulated;
mod tier;
