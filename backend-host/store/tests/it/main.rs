//! All integration tests of the crate, in one program that compiles and links shared code once.

mod conformance;
mod file;
#[cfg(unix)]
mod shares;
mod tier;
