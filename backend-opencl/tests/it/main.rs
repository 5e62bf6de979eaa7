//! All integration tests of the crate, as one program: what they share is compiled and linked once.

mod conformance;
mod device;
mod stress;
mod wakers;
