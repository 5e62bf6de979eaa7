//! Operations on elements in place: queries and assignments by expressions, searches, gathers by lists of
//! indices.

#[forbid(unsafe_code)]
mod array_store;
#[forbid(unsafe_code)]
mod convert;
#[forbid(unsafe_code)]
pub(crate) mod executor;
#[forbid(unsafe_code)]
pub(crate) mod explain;
#[forbid(unsafe_code)]
pub mod expr;
#[forbid(unsafe_code)]
pub(crate) mod find;
#[cfg(all(test, feature = "host", target_os = "linux", not(miri)))]
mod forked;
pub(crate) mod gather;
#[forbid(unsafe_code)]
pub(crate) mod join;
#[forbid(unsafe_code)]
pub(crate) mod launch;
pub(crate) mod order;
#[forbid(unsafe_code)]
pub(crate) mod paged;
#[forbid(unsafe_code)]
pub(crate) mod query;
#[cfg(feature = "host")]
#[forbid(unsafe_code)]
pub(crate) mod saved;
#[forbid(unsafe_code)]
pub(crate) mod scan;
#[forbid(unsafe_code)]
pub(crate) mod sealed;
#[forbid(unsafe_code)]
mod shift;
pub(crate) mod sort;
#[forbid(unsafe_code)]
pub(crate) mod view;
