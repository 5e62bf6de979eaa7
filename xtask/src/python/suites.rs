//! `cargo xtask python suites`: runs test suites of other projects with arrays of the Python package.

use crate::project;
use anyhow::Result;
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use xshell::{Shell, cmd};

/// Packages that the suites need: ndindex for the array API tests, scipy for tests of Dask.
pub const PACKAGES: [&str; 2] = ["ndindex>=1.8", "scipy"];

/// Runs test suites of other projects with arrays of the Python package: of NumPy, Dask and xarray as
/// installed from PyPI, and the array API tests. Fails if a suite misses the limits of
/// `vmarray/python/SUITES.md`.
#[derive(clap::Args)]
pub struct Args {
    /// The suites: `numpy`, `dask`, `xarray`, `array-api`. Default: all.
    names: Vec<String>,
    /// The folder of the array API tests with their submodule, which no package registry has. Default: the
    /// environment variable `ARRAY_API_TESTS`; if it is not set, the command skips these tests.
    #[arg(long, value_name = "FOLDER")]
    array_api: Option<Utf8PathBuf>,
    /// Writes the counts to `vmarray/python/SUITES.md`.
    #[arg(long)]
    record: bool,
}

/// Runs the suites with a Python that has the package, and writes logs to `folder`.
pub fn run(sh: &Shell, args: &Args, python: &Utf8Path, folder: &Utf8Path) -> Result<()> {
    let (program, names) = (project::root().join("vmarray/python/suites/run.py"), &args.names);
    let mut options = vec!["--logs", folder.as_str()];
    options.extend(args.array_api.iter().flat_map(|tests| ["--array-api", tests.as_str()]));
    options.extend(args.record.then_some("--record"));
    Ok(cmd!(sh, "{python} {program} {names...} {options...}").run()?)
}
