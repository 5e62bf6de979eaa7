//! All integration tests of the crate, as one program: what they share is compiled and linked once.

#![cfg(feature = "conformance")]

mod conformance;
mod wrappers;
