//! Code that the backends of `vmarray` share. The interface, `vmarray-backend-api`, does not depend on this
//! crate.
//!
//! | part | purpose |
//! |---|---|
//! | `backends` | tables of memory by id, counts of allocated bytes, merging of copies |
//! | `links` | links between devices, tested before use |
//! | [`private_dir`] | files and folders that belong to one user |
//! | `warn` | warnings that a call cannot return as an error |

#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
pub mod backends;
#[doc(hidden)]
pub mod links;
pub mod private_dir;
#[doc(hidden)]
pub mod warn;
