//! Shared code of devices that combine several devices (members): stored requests, the memory that a request
//! accesses, and the ids on each member.

pub(crate) mod access_set;
pub(crate) mod host;
pub(crate) mod member;
pub(crate) mod pending_requests;
pub(crate) mod wakers;
