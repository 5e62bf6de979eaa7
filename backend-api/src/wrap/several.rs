//! Shared code of devices that consist of several devices: requests, the memory they touch, and the names
//! on each device.

pub(super) mod host;
pub(super) mod kept;
pub(super) mod member;
pub(super) mod touches;
pub(super) mod wakers;
