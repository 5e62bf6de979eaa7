//! `cargo xtask fuzz`: runs the fuzz targets of vmarray/fuzz, with libFuzzer and AddressSanitizer.
//!
//! The command needs no cargo-fuzz, because it passes the flags that cargo-fuzz would pass. If cargo-fuzz is
//! installed, `cargo fuzz run` works in that folder as well.

use crate::project;
use crate::steps::{Outcome, Steps};
use crate::tools::{self, SANITIZER_TARGET};
use anyhow::{Context, Result};
use xshell::{Shell, cmd};

const FLAGS: &str = "--cfg fuzzing --cfg portable_copy -Zsanitizer=address -Cpasses=sancov-module -Ccodegen-units=1 \
                     -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";
const TARGETS: [&str; 4] = ["programs", "stored_files", "file_devices", "device_filters"];
/// The run time of each target in a sample, in seconds.
const SAMPLE_SECONDS: u32 = 8;

/// Runs the fuzz targets. Stores the inputs that reach new code; a later call begins with them.
#[derive(clap::Args)]
pub struct Args {
    /// Runs only this target: programs, stored_files, file_devices, device_filters.
    #[arg(long)]
    only: Vec<String>,
    /// The run time of each target in seconds.
    #[arg(long, default_value_t = 600)]
    seconds: u32,
    /// Runs a sample, which takes a minute in total.
    #[arg(long, conflicts_with = "seconds")]
    sample: bool,
}

/// Builds the targets, and runs each for some time.
pub fn run(args: Args) -> Result<()> {
    let sh = project::shell()?;
    let mut steps = Steps::new();
    let seconds = if args.sample { SAMPLE_SECONDS } else { args.seconds };
    // Optimise little, because optimising takes longer than the run of a sample.
    let _little = args.sample.then(|| sh.push_env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"));
    steps.run("fuzz", || check(&sh, &args.only, seconds));
    steps.finish()
}

fn check(sh: &Shell, only: &[String], seconds: u32) -> Result<Outcome> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Ok(Outcome::Skipped(format!("this machine is no {SANITIZER_TARGET}")));
    }
    if !tools::has_address_sanitizer(sh)? {
        let reason = "the toolchain in use has no run-time library of AddressSanitizer";
        return Ok(Outcome::Skipped(reason.into()));
    }
    if tools::find("c++").is_none() {
        return Ok(Outcome::Skipped("there is no C++ compiler, which builds libFuzzer".into()));
    }
    // The variable permits unstable flags on the stable compiler.
    let _bootstrap = sh.push_env("RUSTC_BOOTSTRAP", "1");
    let folder = project::members()?.target_directory.join("fuzz");
    {
        let _flags = sh.push_env("RUSTFLAGS", FLAGS);
        let manifest = "vmarray/fuzz/Cargo.toml";
        cmd!(
            sh,
            "cargo build --release --manifest-path {manifest} --target {SANITIZER_TARGET} --target-dir {folder}"
        )
        .run()?;
    }
    let seconds = seconds.to_string();
    for target in TARGETS.into_iter().filter(|name| only.is_empty() || only.iter().any(|only| only == name)) {
        let binary = folder.join(SANITIZER_TARGET).join("release").join(target);
        let corpus = folder.join("corpus").join(target);
        sh.create_dir(&corpus)?;
        let artifacts = format!("-artifact_prefix={}/", folder);
        cmd!(
            sh,
            "{binary} -max_total_time={seconds} -rss_limit_mb=4096 -timeout=20 -print_final_stats=1 {artifacts} {corpus}"
        )
        .quiet()
        .run()
        .with_context(|| format!("{target} failed; its input is in {}", folder))?;
    }
    Ok(Outcome::Passed(format!("{seconds} s for each target")))
}
