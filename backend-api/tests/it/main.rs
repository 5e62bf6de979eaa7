//! All integration tests of the crate, as one program: shared code is compiled and linked once.

#![cfg(feature = "conformance")]

mod conformance;
mod wrappers;
