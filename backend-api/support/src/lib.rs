//! Parts that backends of `vmarray` share. The contract, `vmarray-backend-api`, does not depend on them.
//!
//! | part | purpose |
//! |---|---|
//! | `backends` | tables of memory by name, accounts of memory, merged copies |
//! | `links` | tested links between devices |
//! | [`private_dir`] | files and folders that belong to one user |
//! | `warn` | warnings that no call can return |

#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
pub mod backends;
#[doc(hidden)]
pub mod links;
pub mod private_dir;
#[doc(hidden)]
pub mod warn;
