//! `cargo xtask python speed`: measures arrays of the Python package in RAM, next to NumPy and numba.

use crate::project;
use anyhow::Result;
use cargo_metadata::camino::Utf8Path;
use xshell::{Shell, cmd};

/// The package that is a peer, besides NumPy.
pub const PACKAGES: [&str; 1] = ["numba"];

/// Measures functions of arrays in RAM with all cores, and prints the times divided by the times of the
/// faster peer: NumPy or numba.
#[derive(clap::Args)]
pub struct Args {
    /// The functions, named as in `vmarray/python/SPEED.md`. Default: all.
    names: Vec<String>,
    /// The number of items of an array, a multiple of 2500.
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    items: usize,
    /// Writes the table to `vmarray/python/SPEED.md`.
    #[arg(long)]
    record: bool,
}

/// Runs the measurement with a Python that has the package.
pub fn run(sh: &Shell, args: &Args, python: &Utf8Path) -> Result<()> {
    let (program, names) = (project::root().join("vmarray/python/benches/on_host.py"), &args.names);
    let items = args.items.to_string();
    let options = args.record.then_some("--record");
    Ok(cmd!(sh, "{python} {program} --items {items} {options...} {names...}").run()?)
}
