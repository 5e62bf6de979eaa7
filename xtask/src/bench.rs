//! `cargo xtask bench`: measures workloads, and compares each with the hardware's limit and with other
//! software that does the same work. (`cargo bench` runs the microbenchmarks of the crates.)
//!
//! The workloads are compiled only with xtask's feature `array`. An xtask without this feature builds and
//! starts an optimised xtask with the feature. The optimised executable needs neither cargo nor sources, so
//! it also runs on other machines.

#[cfg(feature = "array")]
mod elements;
#[cfg(feature = "array")]
mod managed;
#[cfg(feature = "array")]
pub mod measure;
#[cfg(feature = "array")]
mod native;
pub mod page;
#[cfg(feature = "array")]
mod peer;
#[cfg(feature = "array")]
mod plain;
mod plot;
#[cfg(feature = "array")]
mod raw;
pub mod record;
#[cfg(feature = "array")]
mod report;
#[cfg(feature = "array")]
pub mod results;
#[cfg(feature = "array")]
mod scratch;
#[cfg(feature = "array")]
pub mod session;
#[cfg(feature = "array")]
mod setup;
#[cfg(feature = "array")]
mod suite;
#[cfg(feature = "array")]
mod workloads;

/// Returns the names of the families that may have a workload whose name begins with one of the texts `only`.
/// If `only` is empty, returns all families.
#[cfg(feature = "array")]
pub fn families(only: &[String]) -> Vec<&'static str> {
    let is_wanted = |name: &&str| {
        only.is_empty() || only.iter().any(|only| name.starts_with(only) || only.starts_with(name))
    };
    workloads::FAMILIES.iter().map(|family| family.name).filter(is_wanted).collect()
}
