//! The workloads of `cargo xtask bench`. A new family needs a file here and a line in [`FAMILIES`].

mod asynchronous;
mod bulk;
mod cached;
mod copies;
mod expressions;
#[cfg(unix)]
mod files;
mod find;
mod gather;
mod in_place;
mod joins;
mod kernels;
mod mixed;
mod peer;
mod ragged;
mod random;
mod rig;
mod rows;
mod section;
#[cfg(unix)]
mod snapshots;
mod sort;
#[cfg(unix)]
mod stored;
#[cfg(unix)]
mod tier;
mod tuning;

use super::suite::Bench;
use anyhow::Result;

/// A family of workloads: all workloads about one subject.
pub struct Family {
    /// The first part of the names of the family's workloads, such as `bulk`.
    pub name: &'static str,
    /// The subject of the family.
    pub about: &'static str,
    /// The function that measures the workloads.
    pub run: fn(&mut Bench) -> Result<()>,
}

/// All families, in the order in which they run.
pub const FAMILIES: &[Family] = &[
    Family { name: "in-place", about: "Page slices in place: no copy in RAM", run: in_place::run },
    Family { name: "bulk", about: "Ranges into and out of the caller's buffers", run: bulk::run },
    Family { name: "random", about: "Random elements of arrays far larger than the cache", run: random::run },
    Family { name: "copies", about: "From array to array", run: copies::run },
    Family { name: "gather", about: "Elements by lists of random indices", run: gather::run },
    Family { name: "rig", about: "Several devices as one memory", run: rig::run },
    #[cfg(unix)]
    Family {
        name: "files",
        about: "Files as devices, compared with plain reads and writes",
        run: files::run,
    },
    #[cfg(unix)]
    Family { name: "stored", about: "Arrays in files, compared with plain writes", run: stored::run },
    #[cfg(unix)]
    Family {
        name: "snapshots",
        about: "Snapshots, compared with plain writes and reads",
        run: snapshots::run,
    },
    #[cfg(unix)]
    Family { name: "tier", about: "Random elements of a file, with cards before it", run: tier::run },
    Family { name: "rows", about: "Short lists of table rows, and first calls", run: rows::run },
    Family { name: "ragged", about: "Rows of different lengths, compared with two `Vec`s", run: ragged::run },
    Family { name: "async", about: "Thousands of tasks on one thread", run: asynchronous::run },
    Family { name: "find", about: "Searches on the devices", run: find::run },
    Family { name: "sort", about: "Sorting, compared with sorts of a `Vec`", run: sort::run },
    Family { name: "join", about: "Joins of index sets on the devices that have them", run: joins::run },
    Family {
        name: "expressions",
        about: "Questions and writes by expressions, on the devices",
        run: expressions::run,
    },
    Family { name: "section", about: "Parts of arrays, and memory of the program", run: section::run },
    Family { name: "peer", about: "Workloads that another program of its kind runs too", run: peer::run },
    Family { name: "cached", about: "Elements whose pages are in the cache", run: cached::run },
    Family { name: "mixed", about: "Reads and writes, even and skewed by Zipf's law", run: mixed::run },
    Family { name: "kernels", about: "Kernels in Rust, compared with the same in CUDA C", run: kernels::run },
];

/// Families that compare settings of the array with each other. They take long, so they run only on request.
pub const TUNING: &[Family] = &[Family {
    name: "tuning",
    about: "Defaults (ours), compared with the advice of profiles and the best settings by hand",
    run: tuning::run,
}];
