//! `cargo xtask bench`: microbenchmarks by criterion, then workloads. Each is compared with the hardware's
//! limit and with peers: other software that does the same work.
//!
//! Workloads are part of xtask only with its feature `array`; without it xtask starts an optimised xtask
//! that has it. That binary needs neither cargo nor the source tree, so it can run on another machine.

mod micro;

#[cfg(feature = "array")]
mod elements;
#[cfg(feature = "array")]
mod lru;
#[cfg(feature = "array")]
mod managed;
#[cfg(feature = "array")]
mod mapped_file;
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
mod session;
#[cfg(feature = "array")]
mod setup;
#[cfg(feature = "array")]
mod workloads;

use anyhow::Result;
use std::path::PathBuf;

/// Runs the microbenchmarks (if cargo and the sources exist), then the workloads.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Devices to use, as a list: cuda, opencl, host, gpu, cpu, all, cuda:0, or part of a name. Default:
    /// every GPU, else host RAM.
    #[arg(long, value_name = "LIST")]
    devices: Option<String>,
    /// Uses host RAM, and runs only the microbenchmarks that need no GPU.
    #[arg(long, conflicts_with = "devices")]
    host: bool,
    /// Small arrays and few repetitions: within 90 seconds on two cores and host RAM, once everything is
    /// built.
    #[arg(long)]
    quick: bool,
    /// Stores all numbers, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Stores all numbers as a record in docs/benchmarks, of which `cargo xtask report` makes BENCHMARKS.md.
    #[arg(long, conflicts_with = "json")]
    record: bool,
    /// Runs only workloads whose names begin with this, and no microbenchmarks. Can be given several
    /// times. `list` lists the families, and the names of other contenders.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Another program to measure on the workloads of the family `peer`, as a command for the shell. It
    /// prints lines of `name value unit`, one per repetition. `{threads}`, `{bytes}` (size of arrays) and
    /// `{seconds}` (of a repetition) are replaced.
    #[arg(long, value_name = "COMMAND")]
    peer: Option<String>,
    /// Threads that use the array. Default: one per core.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Measures only the array, each time that a driver asks for it: for `cargo xtask gate` and `compare`.
    #[arg(long, conflicts_with_all = ["peer", "json", "record"])]
    in_turns: bool,
    /// Builds the arrays with checksums of pages.
    #[arg(long)]
    checksums: bool,
    /// Runs only the microbenchmarks.
    #[arg(long, conflicts_with = "only")]
    micro: bool,
    /// Runs only the workloads.
    #[arg(long, conflicts_with = "micro")]
    workloads: bool,
    /// Compares only the defaults with other page lengths, numbers of channels and read-ahead, set by
    /// hand, and with the advice of the devices' profiles. Runs no microbenchmarks.
    #[arg(long, conflicts_with_all = ["only", "micro", "peer"])]
    tuning: bool,
    /// Fails if a ratio of the microbenchmarks is outside of its bound. For a quiet machine.
    #[arg(long)]
    check: bool,
    /// Arguments for criterion: a filter, `--save-baseline NAME` …
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Runs `cargo xtask bench`.
pub fn run(args: Args) -> Result<()> {
    if !args.workloads && !args.tuning && !args.in_turns && args.only.is_empty() {
        if has_sources() {
            let mut arguments = args.arguments.clone();
            if args.quick {
                arguments.push("--quick".into());
            }
            micro::run(args.host, args.check, &arguments)?;
        } else {
            println!("No sources here: the microbenchmarks are left out.");
        }
    }
    if args.micro { Ok(()) } else { run_workloads(args) }
}

/// Returns the names of the families of workloads that have a row whose name begins with one of `only`, or of
/// all families if that is empty.
#[cfg(feature = "array")]
pub fn families(only: &[String]) -> Vec<&'static str> {
    let is_wanted = |name: &&str| {
        only.is_empty() || only.iter().any(|only| name.starts_with(only) || only.starts_with(name))
    };
    workloads::FAMILIES.iter().map(|family| family.name).filter(is_wanted).collect()
}

/// Returns true if cargo and the sources exist.
fn has_sources() -> bool {
    crate::tools::find("cargo").is_some() && crate::project::root().join("Cargo.toml").is_file()
}

#[cfg(feature = "array")]
fn run_workloads(args: Args) -> Result<()> {
    session::run(args)
}

#[cfg(not(feature = "array"))]
fn run_workloads(args: Args) -> Result<()> {
    // The microbenchmarks have run already.
    crate::arrays::again("array", if args.workloads { &[] } else { &["--workloads"] })
}
