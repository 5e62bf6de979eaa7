//! Setup of arrays: devices, placement of pages, measured profiles.

pub(crate) mod any;
#[forbid(unsafe_code)]
pub(crate) mod discovery;
#[forbid(unsafe_code)]
pub(crate) mod placement;
#[forbid(unsafe_code)]
pub(crate) mod profile;
