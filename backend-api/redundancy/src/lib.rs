//! Devices around other devices that detect corruption, or keep data redundantly on several devices.
//!
//! Each is a [`Device`](backend_api::Device) itself and passes the conformance suite, so they can be nested.
//!
//! | device | purpose |
//! |---|---|
//! | [`Checksummed`] | detects bits that flip on a device, or on the way there and back |
//! | [`Mirrored`] | keeps all data if a device is lost |
//! | [`ParityMember`] | the same at the cost of one device's share of three or more, instead of half of the memory |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod checksummed;
mod mirrored;
mod parity;
mod several;

pub use checksummed::Checksummed;
pub use mirrored::{Mirrored, Replica, ReplicaState};
pub use parity::{ParityGroup, ParityMember};
