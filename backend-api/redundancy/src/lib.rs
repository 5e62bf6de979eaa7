//! Devices that wrap other devices to detect corruption, or to store data redundantly on several devices.
//!
//! Each wrapper is a [`Device`](backend_api::Device) itself and passes the conformance suite, so wrappers can
//! be nested.
//!
//! | device | purpose |
//! |---|---|
//! | [`Checksummed`] | detects bits that flip in a device's memory or on the bus |
//! | [`Mirrored`] | stores all data on each of several devices, and survives the loss of all but one |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod access_set;
mod checksummed;
mod mirrored;

pub use checksummed::Checksummed;
pub use mirrored::{Mirrored, Replica, ReplicaState};
