//! `cargo xtask cross`: the published crates for other systems and processors.

use crate::project;
use crate::steps::{Outcome, Steps};
use crate::tools;
use anyhow::Result;
use xshell::{Shell, cmd};

/// A system that the crates are checked for, and what runs its programs here.
struct Foreign {
    target: &'static str,
    /// Linker and emulator, and the names of their Debian packages, where Debian has them.
    runs_by: Option<(&'static str, &'static str, &'static str)>,
}

const FOREIGN: [Foreign; 5] = [
    Foreign {
        target: "x86_64-pc-windows-gnu",
        runs_by: Some(("x86_64-w64-mingw32-gcc", "wine", "gcc-mingw-w64-x86-64 wine64 wine")),
    },
    Foreign { target: "aarch64-apple-darwin", runs_by: None },
    Foreign {
        target: "aarch64-unknown-linux-gnu",
        runs_by: Some((
            "aarch64-linux-gnu-gcc",
            "qemu-aarch64",
            "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user",
        )),
    },
    Foreign { target: "aarch64-unknown-linux-musl", runs_by: None },
    Foreign { target: "x86_64-unknown-linux-musl", runs_by: None },
];

/// The tests that are run: those of the host's part and of the array on it, without what measures or counts
/// on many cores.
const RUN: [&str; 2] = ["vmarray-backend-host", "vmarray"];

/// Takes some minutes; with `--run` half an hour.
#[derive(clap::Args)]
pub struct Args {
    /// Runs the tests of the host's part too, under Wine and qemu.
    #[arg(long)]
    run: bool,
    /// Only these targets.
    #[arg(long, value_name = "TARGET")]
    only: Vec<String>,
    /// One system of each kind.
    #[arg(long, conflicts_with_all = ["run", "only"])]
    sample: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<()> {
    let sh = project::shell()?;
    let mut steps = Steps::new();
    let is_wanted = |target: &str| args.only.is_empty() || args.only.iter().any(|only| only == target);
    for foreign in FOREIGN.iter().filter(|foreign| is_wanted(foreign.target)) {
        if args.sample && foreign.target == "aarch64-unknown-linux-gnu" {
            // The form for musl differs from it by the C library alone.
            continue;
        }
        steps.run(foreign.target, || check(&sh, foreign));
        if args.run {
            steps.run("  its tests", || test(&sh, foreign));
        }
    }
    steps.finish()
}

/// Checks the crates with clippy, all features on.
fn check(sh: &Shell, foreign: &Foreign) -> Result<Outcome> {
    let Foreign { target, .. } = foreign;
    if let Some(reason) = missing(sh, target) {
        return Ok(Outcome::Skipped(reason));
    }
    let metadata = project::members()?;
    let published = project::published(&metadata);
    let packages: Vec<&str> = published.iter().flat_map(|package| ["-p", package.name.as_str()]).collect();
    let folder = metadata.target_directory.join("cross");
    cmd!(
        sh,
        "cargo clippy {packages...} --all-features --target {target} --target-dir {folder} -- -D warnings"
    )
    .run()?;
    Ok(Outcome::passed())
}

fn test(sh: &Shell, foreign: &Foreign) -> Result<Outcome> {
    let Some((linker, emulator, packages)) = foreign.runs_by else {
        return Ok(Outcome::Skipped("nothing here runs its programs".into()));
    };
    for program in [linker, emulator] {
        if tools::find(program).is_none() {
            return Ok(Outcome::Skipped(format!("no {program}: apt-get install {packages}")));
        }
    }
    let target = foreign.target;
    let name = target.to_uppercase().replace('-', "_");
    let folder = project::members()?.target_directory.join("cross");
    let _linker = sh.push_env(format!("CARGO_TARGET_{name}_LINKER"), linker);
    let _runner = sh.push_env(format!("CARGO_TARGET_{name}_RUNNER"), emulator);
    let _libraries = sh.push_env("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu");
    let _cases = sh.push_env("PROPTEST_CASES", "8");
    for package in RUN {
        cmd!(
            sh,
            "cargo test -p {package} --no-default-features --lib --target {target} --target-dir {folder}"
        )
        .args((package == "vmarray").then_some(["--features", "host"]).into_iter().flatten())
        .run()?;
    }
    Ok(Outcome::Passed(format!("unit tests of {} by {emulator}", RUN.join(" and "))))
}

/// Why the compiler cannot build for a target, if it cannot.
fn missing(sh: &Shell, target: &str) -> Option<String> {
    if tools::find("rustup").is_none() {
        return Some("no rustup to add the target with".into());
    }
    let added = cmd!(sh, "rustup target add {target}").quiet().ignore_stderr().run();
    added.is_err().then(|| "rustup could not add the target".into())
}
