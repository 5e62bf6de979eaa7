//! `cargo xtask test-host`: runs all tests that need no GPU.

use crate::project;
use crate::steps::{Outcome, Steps};
use crate::tools;
use anyhow::{Result, bail};
use xshell::{Shell, cmd};

/// Options of nightly runs: all tests, and the assertions that `Cargo.toml` turns off in `vmarray/tests`.
const NIGHTLY: [&str; 3] =
    ["--ignore-default-filter", "--config", "profile.test.package.vmarray-tests.debug-assertions=true"];

/// Runs unit, property and conformance tests; without a filter also the example programs, the concurrency
/// model and the examples in the documentation.
#[derive(clap::Args)]
pub struct Args {
    /// Also runs the tests that `.config/nextest.toml` leaves to nightly runs.
    #[arg(long)]
    all: bool,
    /// Excludes the examples in the documentation.
    #[arg(long)]
    no_doc: bool,
    /// Excludes the concurrency model, which is built in its own folder.
    #[arg(long)]
    no_model: bool,
    /// Names of tests, or any arguments of `cargo nextest run`. With a filter, only the tests of nextest run.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    filter: Vec<String>,
}

pub fn run(args: Args) -> Result<()> {
    let sh = project::shell()?;
    let mut steps = Steps::new();
    let is_all = args.filter.is_empty();
    let nightly: &[&str] = if args.all { &NIGHTLY } else { &[] };
    let filter: Vec<String> = nightly.iter().map(|option| option.to_string()).chain(args.filter).collect();
    steps.run("tests", || tests(&sh, &filter));
    if is_all {
        steps.run("example programs", || example_programs(&sh));
    }
    if is_all && !args.no_model {
        steps.run("concurrency model", || model(&sh));
    }
    if is_all && !args.no_doc {
        steps.run("documentation examples", || doctests(&sh));
    }
    steps.finish()
}

/// Makes the commands of `sh` compile the workspace's crates with clippy's driver, a compiler that also
/// lints. So one build serves lints and tests.
pub fn lints(sh: &Shell) -> [xshell::PushEnv<'_>; 2] {
    // Encode the lint arguments in the form in which `cargo clippy` passes them to `clippy-driver`.
    let arguments = ["-D", "warnings"].map(|argument| format!("{argument}__CLIPPY_HACKERY__")).concat();
    [sh.push_env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"), sh.push_env("CLIPPY_ARGS", arguments)]
}

/// Builds all tests and example programs.
pub fn build(sh: &Shell) -> Result<Outcome> {
    tools::need(sh, "nextest")?;
    cmd!(sh, "cargo nextest run --profile ci --workspace --all-features --no-run").run()?;
    Ok(Outcome::passed())
}

/// Runs the tests that `filter` selects, or all tests, by cargo-nextest.
pub fn tests(sh: &Shell, filter: &[String]) -> Result<Outcome> {
    let opencl = tools::opencl().map_or_else(|reason| reason, |drivers| format!("OpenCL: {drivers}"));
    eprintln!("{opencl}");
    // PoCL always has a device, so let the OpenCL tests fail if they find no device.
    let _require = opencl.contains("pocl.icd").then(|| sh.push_env("VMARRAY_REQUIRE_DEVICE", "1"));
    let which = ["--workspace", "--all-features"].into_iter().chain(filter.iter().map(String::as_str));
    nextest(sh, "ci", which)?;
    Ok(Outcome::Passed(opencl))
}

/// Checks the concurrency protocol of pages with the model checker loom, built in a separate folder.
pub fn model(sh: &Shell) -> Result<Outcome> {
    let _flags = sh.push_env("RUSTFLAGS", merged("RUSTFLAGS", " ", "--cfg loom"));
    let _target = sh.push_env("CARGO_TARGET_DIR", project::members()?.target_directory.join("loom"));
    // Do not optimise: the models run for a second, and optimising them takes minutes.
    let which = ["--cargo-profile", "dev", "-p", "vmarray-engine", "--lib", "model::"];
    nextest(sh, "model", which.into_iter())?;
    Ok(Outcome::passed())
}

/// Runs the examples in the documentation.
pub fn doctests(sh: &Shell) -> Result<Outcome> {
    if cmd!(sh, "cargo test --doc --workspace --all-features --quiet").run().is_err() {
        bail!("an example in the documentation failed; the output above names it");
    }
    Ok(Outcome::passed())
}

/// Runs the example programs, which check their own results. The build of the tests has already built them.
/// Excludes programs that only list facts of drivers.
pub fn example_programs(sh: &Shell) -> Result<Outcome> {
    let metadata = project::members()?;
    let folder = metadata.target_directory.join("debug/examples");
    let programs = metadata.packages.iter().flat_map(|package| &package.targets);
    let programs = programs.filter(|target| target.is_example() && !target.name.ends_with("_limits"));
    let (mut run, mut failed) = (0, Vec::new());
    for target in programs {
        let program = folder.join(format!("{}{}", target.name, std::env::consts::EXE_SUFFIX));
        run += 1;
        if cmd!(sh, "{program}").ignore_stdout().run().is_err() {
            failed.push(target.name.as_str());
        }
    }
    if !failed.is_empty() {
        bail!("{} of {run} examples failed: {}", failed.len(), failed.join(", "));
    }
    Ok(Outcome::Passed(format!("{run} programs")))
}

/// Runs tests by a profile of nextest.
fn nextest<'a>(sh: &Shell, profile: &str, which: impl Iterator<Item = &'a str>) -> Result<()> {
    tools::need(sh, "nextest")?;
    Ok(cmd!(sh, "cargo nextest run --profile {profile} {which...}").run()?)
}

/// Returns the options in an environment variable, followed by the options `ours`.
pub fn merged(variable: &str, separator: &str, ours: &str) -> String {
    match std::env::var(variable) {
        Ok(theirs) if !theirs.is_empty() => format!("{theirs}{separator}{ours}"),
        _ => ours.to_string(),
    }
}
