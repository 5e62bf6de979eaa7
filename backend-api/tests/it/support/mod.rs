//! Devices for tests of the suite and of the wrappers.

pub mod deferred;
