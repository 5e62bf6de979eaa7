//! `cargo xtask formats`: tests vmarray-formats with NumPy, zarr-python and xarray, which read the crate's
//! files and write files for the crate; and tests the crate's stores with servers of the S3 protocol.
//!
//! The test `python` of the crate generates random files, and calls Python by
//! `vmarray/formats/tests/peer.py`. The command installs the Python packages once, in the target folder. The
//! package `vmarray/formats/servers` starts the servers: moto (in Python), and a server built with the Rust
//! crate s3s-fs.

use crate::project;
use crate::steps::{Outcome, Steps};
use crate::tools;
use anyhow::Result;
use cargo_metadata::camino::Utf8PathBuf;
use xshell::{Shell, cmd};

/// The Python packages that read and write files.
const PACKAGES: &[&str] = &["numpy>=2", "zarr>=3", "xarray>=2025"];
/// The Python packages of a server that speaks S3, and of its client. They take a minute to install.
const SERVER_PACKAGES: &[&str] = &["zarr>=3", "moto[server]>=5", "s3fs>=2025"];
/// The number of files of each kind in a sample: each type of element twice.
const SAMPLE: usize = 26;

/// The number of files that each random test program writes to a server.
const FILES_OF_PROGRAM: usize = 100;

/// Checks random files with NumPy, zarr-python and xarray, and stores on servers that speak S3.
#[derive(clap::Args)]
pub struct Args {
    /// The number of files of each kind.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    count: usize,
    /// The first file's seed; later files count up from it.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

pub fn run(args: &Args) -> Result<()> {
    let (sh, mut steps) = (project::shell()?, Steps::new());
    steps.run("formats", || check(&sh, args.seed, args.count));
    steps.run("servers", || servers(&sh, args.count.div_ceil(FILES_OF_PROGRAM), true));
    steps.finish()
}

/// Runs a sample of `cargo xtask formats`: few files, and no servers.
pub fn sample(sh: &Shell) -> Result<Outcome> {
    check(sh, 1, SAMPLE)
}

/// Runs a sample of the tests of stores on servers. It uses only the server moto, because the other server
/// takes a minute to build.
pub fn servers_sample(sh: &Shell) -> Result<Outcome> {
    servers(sh, 1, false)
}

fn servers(sh: &Shell, programs: usize, with_s3s: bool) -> Result<Outcome> {
    let (python, without) = match environment(sh, SERVER_PACKAGES, "import moto, s3fs, zarr") {
        Ok(python) => (Some(python), None),
        Err(reason) if !with_s3s => return Ok(Outcome::Skipped(reason)),
        Err(reason) => (None, Some(reason)),
    };
    let _python = python.map(|python| sh.push_env("VMARRAY_FORMATS_PYTHON", python));
    let _programs = sh.push_env("VMARRAY_FORMATS_PROGRAMS", programs.to_string());
    let features: &[&str] = if with_s3s { &[] } else { &["--no-default-features"] };
    let (manifest, folder) = ("vmarray/formats/servers/Cargo.toml", project::members()?.target_directory);
    // Run four tests at a time, because they mostly wait for servers.
    cmd!(sh, "cargo test --manifest-path {manifest} --target-dir {folder} --locked --quiet {features...}")
        .args(["--", "--test-threads", "4"])
        .run()?;
    Ok(Outcome::Passed(match without {
        _ if !with_s3s => "on moto".into(),
        None => "on moto and s3s-fs".into(),
        Some(reason) => format!("on s3s-fs, without moto: {reason}"),
    }))
}

fn check(sh: &Shell, seed: u64, count: usize) -> Result<Outcome> {
    let python = match environment(sh, PACKAGES, "import numpy, xarray, zarr") {
        Ok(python) => python,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let _python = sh.push_env("VMARRAY_FORMATS_PYTHON", python);
    let _seed = sh.push_env("VMARRAY_FORMATS_SEED", seed.to_string());
    let _count = sh.push_env("VMARRAY_FORMATS_COUNT", count.to_string());
    let test = "python::python_libraries_and_vmarray_read_each_others_files";
    // Use the packages and features of the other tests, so that cargo builds nothing anew.
    cmd!(sh, "cargo test --workspace --all-features --test it --quiet -- --ignored --exact {test}").run()?;
    Ok(Outcome::Passed(format!("{count} files of each kind, from seed {seed} on")))
}

/// Returns the Python that has all packages, and installs them if needed; else returns why it cannot.
fn environment(sh: &Shell, packages: &[&str], test: &str) -> Result<Utf8PathBuf, String> {
    let members = project::members().map_err(|error| format!("cannot find the target folder: {error:#}"))?;
    let folder = members.target_directory.join("formats-python");
    let bin = folder.join(if cfg!(windows) { "Scripts" } else { "bin" });
    let python = bin.join("python");
    if cmd!(sh, "{python} -c {test}").quiet().ignore_stderr().run().is_ok() {
        return Ok(python);
    }
    if tools::find("python3").is_none() {
        return Err("python3 is not installed".into());
    }
    cmd!(sh, "python3 -m venv {folder}")
        .run()
        .map_err(|error| format!("cannot create a virtual environment of Python: {error}"))?;
    cmd!(sh, "{python} -m pip install --quiet --disable-pip-version-check --no-compile {packages...}")
        .run()
        .map_err(|error| format!("{} cannot be installed: {error}", packages.join(", ")))?;
    Ok(python)
}
