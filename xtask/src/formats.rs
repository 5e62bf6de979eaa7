//! `cargo xtask formats`: files of vmarray-formats beside NumPy, zarr-python and xarray, which read what it
//! writes and write what it reads.
//!
//! The test `python` of that crate makes random files and asks Python, by `vmarray/formats/tests/peer.py`.
//! What Python needs is installed to the target folder, once.

use crate::project;
use crate::steps::{Outcome, Steps};
use crate::tools;
use anyhow::Result;
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use xshell::{Shell, cmd};

/// What Python needs.
const PACKAGES: [&str; 3] = ["numpy>=2", "zarr>=3", "xarray>=2025"];
/// How many files of each kind a sample has: each type of element twice.
const SAMPLE: usize = 26;

/// Has random files read and written by NumPy, zarr-python and xarray.
#[derive(clap::Args)]
pub struct Args {
    /// How many files of each kind.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    count: usize,
    /// The first file's seed; later ones count up from it.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let (sh, mut steps) = (project::shell()?, Steps::new());
    steps.run("formats", || check(&sh, args.seed, args.count));
    steps.finish()
}

/// A sample as a step.
pub fn sample(sh: &Shell) -> Result<Outcome> {
    check(sh, 1, SAMPLE)
}

fn check(sh: &Shell, seed: u64, count: usize) -> Result<Outcome> {
    let folder = project::members()?.target_directory.join("formats-python");
    let python = match environment(sh, &folder) {
        Ok(python) => python,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let _python = sh.push_env("VMARRAY_FORMATS_PYTHON", python);
    let _seed = sh.push_env("VMARRAY_FORMATS_SEED", seed.to_string());
    let _count = sh.push_env("VMARRAY_FORMATS_COUNT", count.to_string());
    let test = "python::others_read_what_is_written_and_write_what_is_read";
    cmd!(sh, "cargo test -p vmarray-formats --all-features --test it --quiet -- --ignored --exact {test}")
        .run()?;
    Ok(Outcome::Passed(format!("{count} files of each kind, from seed {seed} on")))
}

/// The Python that has all packages, which are installed if need be; else why there is none.
fn environment(sh: &Shell, folder: &Utf8Path) -> Result<Utf8PathBuf, String> {
    let bin = folder.join(if cfg!(windows) { "Scripts" } else { "bin" });
    let python = bin.join("python");
    if cmd!(sh, "{python} -c 'import numpy, xarray, zarr'").quiet().ignore_stderr().run().is_ok() {
        return Ok(python);
    }
    if tools::find("python3").is_none() {
        return Err("there is no python3".into());
    }
    cmd!(sh, "python3 -m venv {folder}")
        .run()
        .map_err(|error| format!("no environment of Python: {error}"))?;
    cmd!(sh, "{python} -m pip install --quiet --disable-pip-version-check {PACKAGES...}")
        .run()
        .map_err(|error| format!("NumPy, zarr and xarray cannot be installed: {error}"))?;
    Ok(python)
}
