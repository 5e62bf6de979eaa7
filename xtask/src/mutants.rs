//! `cargo xtask mutants`: mutation tests of the engine. cargo-mutants changes the code in small ways, and
//! checks that a test fails. `.cargo/mutants.toml` lists the tests and the accepted survivors.

use crate::project;
use crate::steps::{Outcome, Steps};
use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use xshell::{Shell, cmd};

/// The files whose mutants the tests must detect.
const FILES: [&str; 11] = [
    "vmarray/engine/src/evict.rs",
    "vmarray/engine/src/evict/**",
    "vmarray/engine/src/guards.rs",
    "vmarray/engine/src/guards/**",
    "vmarray/engine/src/page.rs",
    "vmarray/engine/src/page/**",
    "vmarray/src/engine/**",
    "vmarray/src/ops/gather.rs",
    "vmarray/src/ops/gather/**",
    "vmarray/src/shapes/boundary/modes.rs",
    "vmarray/src/shapes/nd/{geometry,region}.rs",
];
/// Minimum share of mutants that tests must detect.
const KILLED_AT_LEAST: f64 = 0.9;
/// Number of parts of all mutants. A run without options tests one part: the next one each day.
const PARTS: u64 = 200;
/// Number of cases of each random test.
const CASES: &str = "32";

/// Changes the code in small ways (mutants), and checks that tests detect the changes. Each mutant costs a
/// build and a run of the tests, some minutes on two cores.
#[derive(clap::Args)]
pub struct Args {
    /// Mutates only code that was changed since this commit.
    #[arg(long, value_name = "COMMIT")]
    since: Option<String>,
    /// Options of cargo-mutants, such as `--file PATH`, `--re NAME`, `--shard 0/8`, `--list`. Without options
    /// and without `--since`: one of 200 parts of all mutants, about 20, and the next part on the next day.
    #[arg(last = true)]
    options: Vec<String>,
}

/// The part of the results of cargo-mutants that the command reads.
#[derive(Deserialize)]
struct Outcomes {
    caught: u32,
    missed: u32,
    timeout: u32,
    unviable: u32,
}

pub fn run(args: &Args) -> Result<()> {
    let (sh, mut steps) = (project::shell()?, Steps::new());
    steps.run("mutants", || check(&sh, args));
    steps.finish()
}

fn check(sh: &Shell, args: &Args) -> Result<Outcome> {
    tools::need(sh, "mutants")?;
    let folder = project::members()?.target_directory;
    let mut options = args.options.clone();
    if let Some(commit) = &args.since {
        let diff = folder.join("mutants.diff");
        sh.write_file(&diff, cmd!(sh, "git diff {commit}").read()? + "\n")?;
        options.extend(["--in-diff".into(), diff.into_string()]);
    } else if options.is_empty() {
        let day = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / (24 * 60 * 60);
        options.extend(["--sharding", "round-robin", "--shard"].map(Into::into));
        options.push(format!("{}/{PARTS}", day % PARTS));
    }
    if !options.iter().any(|option| ["-f", "--file"].contains(&option.as_str())) {
        options.extend(FILES.iter().flat_map(|file| ["--file".to_string(), file.to_string()]));
    }
    let _cases = sh.push_env("PROPTEST_CASES", CASES);
    let _devices = sh.push_env("VMARRAY_TEST_DEVICES", "host");
    let results = folder.join("mutants.out/outcomes.json");
    sh.remove_path(&results)?;
    let status = Command::from(cmd!(sh, "cargo mutants --output {folder} {options...}")).status()?;
    // Accept the exit codes 2 (a mutant survives) and 3 (a test does not end), but no other failure.
    ensure!(matches!(status.code(), Some(0 | 2 | 3)), "`cargo mutants` ended with {status}");
    let Ok(text) = sh.read_file(&results) else {
        return Ok(Outcome::Passed("no mutant to test".into()));
    };
    let found: Outcomes = serde_json::from_str(&text).context("mutants.out/outcomes.json")?;
    let killed = found.caught + found.timeout;
    let tested = killed + found.missed;
    let note = format!("{killed} of {tested} mutants killed, {} more do not compile", found.unviable);
    if f64::from(killed) < KILLED_AT_LEAST * f64::from(tested) {
        bail!("{note}; mutants.out/missed.txt in the target folder lists the survivors");
    }
    Ok(Outcome::Passed(note))
}
