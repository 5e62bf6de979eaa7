//! `cargo xtask damage`: damages stored arrays, millions of times, and checks that no read is wrong.
//!
//! The cases are a test of `vmarray-store` (`store/damage.rs`). An ordinary run of this test has some
//! thousand cases; this command builds the test optimised and runs more. On machines without Rust, run the
//! test program that `cargo test --release -p vmarray-store --lib --no-run` builds:
//! `VMARRAY_DAMAGE_CASES=1000000 VMARRAY_DAMAGE_RESUME=FILE PROGRAM store::damage --nocapture`. The same
//! program also simulates losses of power: `VMARRAY_POWER_LOSSES=1000000 PROGRAM store::crash_tests`.

use crate::project;
use anyhow::Result;
use std::path::PathBuf;
use xshell::cmd;

const TEST: &str = "store::damage::damage_is_an_error_or_harmless";

/// Damages stored arrays in memory and opens them. Compares the contents with the earlier writes, writes
/// again, and reopens the arrays.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The number of all cases.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    cases: u64,
    /// A file with the number of finished cases: a later call with the same sources continues there.
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<()> {
    let sh = project::shell()?;
    let _cases = sh.push_env("VMARRAY_DAMAGE_CASES", args.cases.to_string());
    args.resume.iter().try_for_each(|file| crate::resume::begin(file))?;
    // The shell runs in the root of the repository, but the path is relative to the user's folder.
    let _resume = match args.resume {
        Some(file) => Some(sh.push_env("VMARRAY_DAMAGE_RESUME", std::path::absolute(file)?)),
        None => None,
    };
    cmd!(sh, "cargo test --release --package vmarray-store --lib --quiet -- --exact {TEST} --nocapture")
        .run()?;
    Ok(())
}
