//! Shared code of devices that consist of several devices: requests, the memory they touch, and the names
//! on each device.

pub(crate) mod access_set;
pub(crate) mod host;
pub(crate) mod member;
pub(crate) mod pending_requests;
pub(crate) mod wakers;
