//! Operations on arrays and sources (program memory): queries, assignments, searches, gathers, sorts, scans,
//! kernel launches. The devices that store the elements execute them.
//!
//! In this table, each module uses only modules above its own row. `cargo xtask tidy` checks this order, and
//! that no files depend on each other in a cycle. A new operation is an extension trait in its own module,
//! implemented for all views.
//!
//! | module | content |
//! |---|---|
//! | `sealed` | supertrait and token of the library's sealed traits |
//! | [`expr`] | typed expressions |
//! | [`executor`] | reductions, searches and writes that devices execute on their elements |
//! | [`find`] | searches |
//! | [`view`] | stores, shapes, and the core traits: elements, ranges, lists of indices |
//! | [`gather`] | gathers and scatters by lists of indices |
//! | `array_store` | arrays as stores |
//! | [`query`] | queries and assignments by expressions |
//! | [`sort`] | sorting of numbers |
//! | [`row_table`] | rows by lists of ids in the memory of a GPU |
//! | [`launch`] | kernels of the program |
//! | [`scan`] | prefix sums and reductions along an axis |
//! | `matmul` | matrix products |
//! | [`join`] | combinations of several views, element by element |
//! | [`order`] | sorting by keys, groups, joins by key |
//! | [`explain`], [`paged`], [`saved`], `shift`, `convert` | predicted costs, pages in place, files, insertions, conversions |

#[forbid(unsafe_code)]
mod array_store;
#[forbid(unsafe_code)]
mod convert;
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
#[cfg(feature = "matmul")]
pub(crate) mod matmul;
pub(crate) mod order;
#[forbid(unsafe_code)]
pub(crate) mod paged;
#[forbid(unsafe_code)]
pub(crate) mod query;
pub(crate) mod row_table;
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
