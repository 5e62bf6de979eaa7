//! Shared code of devices that consist of several devices: requests, the memory they touch, and the names
//! on each device.

pub(super) mod access_set;
pub(super) mod host;
pub(super) mod member;
pub(super) mod pending_requests;
pub(super) mod wakers;
