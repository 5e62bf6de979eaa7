//! Setup of arrays: the search for devices, the placement of pages on them, and their measured speed.

pub(crate) mod any;
#[forbid(unsafe_code)]
pub(crate) mod discovery;
#[forbid(unsafe_code)]
pub(crate) mod inherited;
#[forbid(unsafe_code)]
pub(crate) mod open_devices;
#[forbid(unsafe_code)]
pub(crate) mod placement;
#[forbid(unsafe_code)]
pub(crate) mod profile;
