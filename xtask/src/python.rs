//! `cargo xtask python`: builds the Python package of `vmarray/python` as a wheel, installs the wheel to a
//! fresh environment, and tests it there.
//!
//! The first run installs maturin and zig from PyPI to a folder below the target folder. Maturin builds the
//! wheel. Zig links the wheel so that older Linux systems also load it.

mod speed;
mod suites;

use crate::project;
use crate::steps::{Outcome, Steps};
use crate::tools;
use anyhow::{Context, Result};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use xshell::{Shell, cmd};

/// The packages that build a wheel: maturin, and zig for wheels that also load on older Linux systems.
const BUILDERS: [&str; 2] = ["maturin>=1.8,<2", "ziglang"];
/// Arguments of pip. Python compiles modules when they are first imported, so pip need not compile all.
const INSTALL: [&str; 4] = ["install", "--quiet", "--disable-pip-version-check", "--no-compile"];
/// The extra of the wheel with all packages that the tests need.
const EXTRA: &str = "[test]";
const MANIFEST: &str = "vmarray/python/Cargo.toml";
/// The supported versions of Python 3.
const MINORS: std::ops::RangeInclusive<u32> = 10..=14;
/// The maximum number of processes that share the tests.
const PROCESSES: usize = 2;
/// The number of random examples of each test in a sample: a quarter of the usual number.
const EXAMPLES_OF_SAMPLE: &str = "15";
/// The maximum size of a wheel in bytes.
const WHEEL_MAX: u64 = 15 << 20;
const WHEEL_OF_SAMPLE_MAX: u64 = 24 << 20;

/// Builds the Python package, installs it to fresh environments, and tests it there.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    task: Option<Task>,
    /// A Python to test with; several are tested one after the other. By default all installed ones, from
    /// 3.10 on.
    #[arg(long = "with", value_name = "PYTHON")]
    pythons: Vec<String>,
    /// The number of random programs compared with NumPy, in total, after the tests, with the last Python.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    programs: usize,
    /// Number of census cases of each NumPy function, with the last Python; `target/python/census.log` keeps
    /// the results, and a later run resumes there.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    census: usize,
    /// Runs the sample for continuous integration: a less optimised build for this system alone, and only the
    /// tests, with one Python.
    #[arg(long)]
    sample: bool,
}

#[derive(clap::Subcommand)]
enum Task {
    Speed(speed::Args),
    Suites(suites::Args),
}

pub fn run(args: &Args) -> Result<()> {
    let (sh, mut steps) = (project::shell()?, Steps::new());
    match &args.task {
        Some(Task::Speed(args)) => steps.run("speed", || speed(&sh, args)),
        Some(Task::Suites(args)) => steps.run("suites", || suites(&sh, args)),
        None => steps.run("python", || check(&sh, args)),
    };
    steps.finish()
}

fn check(sh: &Shell, args: &Args) -> Result<Outcome> {
    let folder = project::members()?.target_directory.join("python");
    let Some(maturin) = builder(sh, &folder, args.sample) else {
        return Ok(Outcome::Skipped("no python3 can install maturin from PyPI".into()));
    };
    cmd!(sh, "cargo fmt --check --manifest-path {MANIFEST}").run()?;
    if !args.sample {
        cmd!(sh, "cargo clippy --manifest-path {MANIFEST} --target-dir {folder} --locked -- -D warnings")
            .run()?;
    }
    let wheel = build(sh, &folder, &maturin, args.sample)?;
    let bytes = std::fs::metadata(&wheel)?.len();
    let most = if args.sample { WHEEL_OF_SAMPLE_MAX } else { WHEEL_MAX };
    anyhow::ensure!(bytes <= most, "the wheel has {bytes} bytes, but the limit is {most}; remove files");
    let programs = if args.sample { 0 } else { args.programs };
    let mut tested = Vec::new();
    let pythons = pythons(sh, args);
    for python in &pythons {
        let python = match args.sample && args.pythons.is_empty() {
            // To save time, a sample tests in maturin's environment, which has the packages of earlier runs.
            true => maturin.clone(),
            false => {
                let environment = folder.join("environment");
                cmd!(sh, "{python} -m venv --clear {environment}").run()?;
                inside(&environment)
            }
        };
        cmd!(sh, "{python} -m pip {INSTALL...} --force-reinstall --no-deps {wheel}").run()?;
        cmd!(sh, "{python} -m pip {INSTALL...} {wheel}{EXTRA}").run()?;
        cmd!(sh, "{python} -m ruff check --quiet vmarray/python").run()?;
        let _examples = args.sample.then(|| sh.push_env("VMARRAY_PYTHON_EXAMPLES", EXAMPLES_OF_SAMPLE));
        // Run in the tests' folder, so that Python does not import from the sources in the parent folder.
        let _bounds = [("VMARRAY_BOUNDS_MIB", "4096"), ("VMARRAY_BOUNDS_CACHE_MIB", "64")]
            .map(|(name, mib)| (!args.sample).then(|| sh.push_env(name, mib)));
        let _folder = sh.push_dir("vmarray/python/tests");
        tests(sh, &python)?;
        if tested.len() + 1 == pythons.len() && programs > 0 {
            let programs = programs.to_string();
            cmd!(sh, "{python} -m pytest --quiet -p no:cacheprovider --programs {programs} .").run()?;
            census(sh, &python, &folder, args.census)?;
        }
        tested.push(cmd!(sh, "{python} --version").quiet().read()?);
    }
    let mib = bytes as f64 / f64::from(1 << 20);
    Ok(Outcome::Passed(format!("{}; {programs} programs; a wheel of {mib:.1} MiB", tested.join(", "))))
}

/// Installs a less optimised wheel to maturin's environment, and runs the suites there.
fn suites(sh: &Shell, args: &suites::Args) -> Result<Outcome> {
    let folder = project::members()?.target_directory.join("python");
    let Some(python) = builder(sh, &folder, true) else {
        return Ok(Outcome::Skipped("no python3 can install maturin from PyPI".into()));
    };
    let (wheel, packages) = (build(sh, &folder, &python, true)?, suites::PACKAGES);
    cmd!(sh, "{python} -m pip {INSTALL...} --force-reinstall --no-deps {wheel}").run()?;
    cmd!(sh, "{python} -m pip {INSTALL...} {wheel}{EXTRA} {packages...}").run()?;
    suites::run(sh, args, &python, &folder)?;
    Ok(Outcome::passed())
}

/// Installs a release wheel to maturin's environment, and measures it there.
fn speed(sh: &Shell, args: &speed::Args) -> Result<Outcome> {
    let folder = project::members()?.target_directory.join("python");
    let Some(python) = builder(sh, &folder, false) else {
        return Ok(Outcome::Skipped("no python3 can install maturin from PyPI".into()));
    };
    let (wheel, packages) = (build(sh, &folder, &python, false)?, speed::PACKAGES);
    cmd!(sh, "{python} -m pip {INSTALL...} --force-reinstall --no-deps {wheel}").run()?;
    cmd!(sh, "{python} -m pip {INSTALL...} {wheel} {packages...}").run()?;
    speed::run(sh, args, &python)?;
    Ok(Outcome::passed())
}

/// Builds the wheel with the Python program `maturin`, and returns its path.
fn build(sh: &Shell, folder: &Utf8Path, maturin: &Utf8Path, is_sample: bool) -> Result<PathBuf> {
    let wheels = folder.join("wheels");
    sh.remove_path(&wheels)?;
    let options: &[&str] = match is_sample {
        true => &["--profile", "dev"],
        false => &["--release", "--zig", "--compatibility", "manylinux_2_28"],
    };
    // Put the environment first in `PATH`, because maturin starts zig by `python3`.
    let before = std::env::var("PATH").unwrap_or_default();
    let builder = maturin.parent().context("the Python program has no parent folder")?;
    let path = sh.push_env("PATH", format!("{builder}{}{before}", if cfg!(windows) { ";" } else { ":" }));
    cmd!(
        sh,
        "{maturin} -m maturin build --manifest-path {MANIFEST} --out {wheels} --locked --quiet {options...}"
    )
    .args(["--target-dir", folder.as_str()])
    .run()?;
    drop(path);
    sh.read_dir(&wheels)?.pop().context("maturin has built no wheel")
}

/// Runs all tests of the current folder, shared by processes.
fn tests(sh: &Shell, python: &Utf8Path) -> Result<()> {
    let count = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(PROCESSES));
    let mut processes = Vec::new();
    for number in 0..count {
        let part = format!("{number}/{count}");
        let tests = cmd!(
            sh,
            "{python} -m pytest --quiet --durations 12 --durations-min 2 -p no:cacheprovider --part {part} ."
        );
        eprintln!("$ {tests}");
        let mut command = Command::from(tests);
        if number > 0 {
            // Capture this process's output, and print it after the output of the first process.
            command.stdout(Stdio::piped());
        }
        processes.push(command.spawn().with_context(|| format!("cannot start {python}"))?);
    }
    let mut failed = Vec::new();
    for (number, process) in processes.into_iter().enumerate() {
        let output = process.wait_with_output()?;
        std::io::stdout().write_all(&output.stdout)?;
        if !output.status.success() {
            failed.push(format!("part {number}/{count}: {}", output.status));
        }
    }
    anyhow::ensure!(failed.is_empty(), "tests of the Python package failed: {}", failed.join(", "));
    Ok(())
}

/// Compares each function with NumPy's: `count` cases by the pinned NumPy, a sample by the newest.
fn census(sh: &Shell, python: &Utf8Path, folder: &Utf8Path, count: usize) -> Result<()> {
    let (count, log) = (count.to_string(), folder.join("census.log"));
    let tests = ["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "test_census.py"];
    // With a fixed seed, a run can resume an earlier run with the same sources.
    crate::resume::begin(log.as_std_path())?;
    cmd!(sh, "{python} {tests...} --census {count} --census-seed 1 --census-log {log}").run()?;
    cmd!(sh, "{python} -m pip {INSTALL...} --upgrade numpy").run()?;
    cmd!(sh, "{python} {tests...} -k test_a_function").run()?;
    Ok(())
}

/// Returns the Pythons to test with: the given ones, or the installed ones.
fn pythons(sh: &Shell, args: &Args) -> Vec<String> {
    if !args.pythons.is_empty() {
        return args.pythons.clone();
    }
    let usual = || vec!["python3".to_owned()];
    if args.sample {
        return usual();
    }
    let runs = |python: &String| {
        cmd!(sh, "{python} --version").quiet().ignore_stdout().ignore_stderr().run().is_ok()
    };
    let found: Vec<String> = MINORS.map(|minor| format!("python3.{minor}")).filter(runs).collect();
    if found.is_empty() { usual() } else { found }
}

/// Returns the Python interpreter with the packages that build wheels, for this system alone or for all, and
/// installs them if needed.
fn builder(sh: &Shell, folder: &Utf8Path, is_native: bool) -> Option<Utf8PathBuf> {
    let environment = folder.join("builder");
    let python = inside(&environment);
    let (packages, modules) = match is_native {
        true => (&BUILDERS[..1], "import maturin"),
        false => (&BUILDERS[..], "import maturin, ziglang"),
    };
    if cmd!(sh, "{python} -c {modules}").quiet().ignore_stderr().run().is_ok() {
        return Some(python);
    }
    tools::find("python3")?;
    cmd!(sh, "python3 -m venv {environment}").run().ok()?;
    cmd!(sh, "{python} -m pip {INSTALL...} {packages...}").run().ok()?;
    Some(python)
}

/// Returns the path of the Python interpreter in a virtual environment.
fn inside(environment: &Utf8Path) -> Utf8PathBuf {
    environment.join(if cfg!(windows) { "Scripts" } else { "bin" }).join("python")
}
