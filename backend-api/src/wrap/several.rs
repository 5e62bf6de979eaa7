//! What devices of several devices have in common: requests, what they touch, and what each device calls it.

pub(super) mod host;
pub(super) mod kept;
pub(super) mod member;
pub(super) mod touches;
pub(super) mod wakers;
