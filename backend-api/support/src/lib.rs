//! Code that the backends of `vmarray` share. The interface, `vmarray-backend-api`, does not depend on this
//! crate.
//!
//! | part | purpose |
//! |---|---|
//! | `backends` | tables of memory by id, counts of allocated bytes, merging of copies |
//! | [`contended`] | locks under heavy contention |
//! | `gemm` | products of matrices in RAM |
//! | [`IdMap`] | hash maps from ids to objects |
//! | [`Queues`] | the table of a device's queues |
//! | [`Timeline`] | the tickets (numbers of submissions) of queues that software executes |
//! | `links` | links between devices, tested before use |
//! | [`private_dir`] | files and folders that belong to one user |
//! | `texts` | source texts of kernels in compressed form |
//! | `warn` | warnings that a call cannot return as an error |

#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
pub mod backends;
pub mod contended;
#[cfg(feature = "gemm")]
#[doc(hidden)]
pub mod gemm;
mod id_map;
#[doc(hidden)]
pub mod links;
pub mod private_dir;
mod queues;
#[doc(hidden)]
pub mod texts;
mod timeline;
#[doc(hidden)]
pub mod warn;

pub use id_map::{IdHasher, IdMap};
pub use queues::Queues;
pub use timeline::Timeline;
