//! `cargo xtask test-host`: every test that runs without a GPU.

use crate::junit::{self, Counts};
use crate::project::{self, Metadata};
use crate::steps::{Outcome, Steps};
use crate::tools;
use anyhow::{Result, bail};
use xshell::{Shell, cmd};

/// Unit, property and conformance tests; with no filter also the concurrency model and the examples in the
/// documentation.
#[derive(clap::Args)]
pub struct Args {
    /// Leaves out the examples in the documentation.
    #[arg(long)]
    no_doc: bool,
    /// Leaves out the concurrency model, which is built in a folder of its own.
    #[arg(long)]
    no_model: bool,
    /// Names of tests, or any arguments of `cargo nextest run`. With a filter, only the tests of nextest run.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    filter: Vec<String>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<()> {
    let sh = project::shell()?;
    let mut steps = Steps::default();
    let counts = all(&sh, &mut steps, &args)?;
    let finished = steps.finish();
    eprintln!("tests: {} passed, {} failed", counts.run - counts.failed, counts.failed);
    finished
}

/// What continuous integration runs: everything. Answers with the counts of the tests run through nextest.
pub fn everything(sh: &Shell, steps: &mut Steps) -> Result<Counts> {
    all(sh, steps, &Args { no_doc: false, no_model: false, filter: Vec::new() })
}

fn all(sh: &Shell, steps: &mut Steps, args: &Args) -> Result<Counts> {
    tools::need_nextest(sh)?;
    let target = Metadata::members(sh)?.target_directory;
    let filter = &args.filter;
    let mut counts = Counts::default();
    steps.run("tests", || {
        let opencl = tools::opencl().map_or_else(|reason| reason, |drivers| format!("OpenCL: {drivers}"));
        eprintln!("{opencl}");
        // PoCL always has a device, so tests of OpenCL must not pass by finding none.
        let _require = opencl.contains("pocl.icd").then(|| sh.push_env("VMARRAY_REQUIRE_DEVICE", "1"));
        let report = junit::report("ci");
        let _ = sh.remove_path(&report);
        let ran = cmd!(sh, "cargo nextest run --profile ci --workspace --all-features {filter...}").run();
        counts = Counts::read(&report).unwrap_or_default();
        ran?;
        Ok(Outcome::Passed(format!("{} tests; {opencl}", counts.run)))
    });
    if !filter.is_empty() {
        return Ok(counts);
    }
    if !args.no_model {
        steps.run("concurrency model", || {
            let folder = target.join("loom");
            let report = junit::report("model");
            let _ = sh.remove_path(&report);
            let _flags = sh.push_env("RUSTFLAGS", flags("--cfg loom"));
            let _target = sh.push_env("CARGO_TARGET_DIR", &folder);
            // The models run for a second; to optimise them takes minutes.
            let model = ["--cargo-profile", "dev", "-p", "vmarray", "--lib", "model::"];
            let features = ["--no-default-features", "--features", "host"];
            let ran = cmd!(sh, "cargo nextest run --profile model {model...} {features...}").run();
            let model = Counts::read(&report).unwrap_or_default();
            counts.run += model.run;
            counts.failed += model.failed;
            ran?;
            Ok(Outcome::Passed(format!("{} tests", model.run)))
        });
    }
    if !args.no_doc {
        steps.run("documentation examples", || {
            if cmd!(sh, "cargo test --doc --workspace --all-features --quiet").run().is_err() {
                bail!("an example in the documentation failed");
            }
            Ok(Outcome::passed())
        });
    }
    Ok(counts)
}

/// `RUSTFLAGS` of the environment, then `more`.
pub fn flags(more: &str) -> String {
    match std::env::var("RUSTFLAGS") {
        Ok(flags) if !flags.is_empty() => format!("{flags} {more}"),
        _ => more.to_string(),
    }
}
