//! What arrays are built of: devices, how pages are placed on them, what was measured of them.

pub(crate) mod any;
#[forbid(unsafe_code)]
pub(crate) mod discovery;
#[forbid(unsafe_code)]
pub(crate) mod placement;
#[forbid(unsafe_code)]
pub(crate) mod profile;
