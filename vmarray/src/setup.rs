//! Setup of arrays: devices, placement of pages, measured profiles.

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
