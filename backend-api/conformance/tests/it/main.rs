//! All integration tests of the crate, as one program: shared code is compiled and linked once.

mod conformance;
mod interpreter;
#[cfg(target_os = "linux")]
mod numa;
mod wrappers;
