//! `cargo xtask ci`: what `.ci/run` calls.

use crate::junit::Counts;
use crate::steps::{Outcome, Steps};
use crate::{examples, features, miri, misuse, project, ptx, sanitizer, supply, test_host, tidy};
use anyhow::Result;
use xshell::cmd;

/// Quick checks come first; a failed one does not stop the others.
#[derive(clap::Args)]
pub struct Args {
    /// Also installs the tools that take minutes to build (cargo-deny).
    #[arg(long)]
    install: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<()> {
    let sh = project::shell()?;
    let mut steps = Steps::default();
    steps.run("fmt", || {
        cmd!(sh, "cargo fmt --all --check").run()?;
        Ok(Outcome::passed())
    });
    steps.run("tidy", || tidy::check(&sh));
    steps.run("supply", || supply::check(&sh));
    steps.run("deny", || supply::deny(&sh, args.install));
    steps.run("ptx", || ptx::check(&sh));
    steps.run("clippy", || {
        cmd!(sh, "cargo clippy --workspace --all-targets --all-features -- -D warnings").run()?;
        Ok(Outcome::passed())
    });
    steps.run("features", || features::check(&sh, true));
    steps.run("rustdoc", || {
        let _flags = sh.push_env("RUSTDOCFLAGS", "-D warnings");
        cmd!(sh, "cargo doc --workspace --no-deps --all-features").run()?;
        Ok(Outcome::passed())
    });
    let mut counts = Counts::default();
    match test_host::everything(&sh, &mut steps) {
        Ok(more) => counts = more,
        Err(error) => {
            steps.run("tests", || Err(error));
        }
    }
    steps.run("examples", || examples::check(&sh));
    steps.run("misuse", || misuse::check(&sh));
    steps.run("Miri", || miri::check(&sh, true));
    let mut sanitized = Counts::default();
    steps.run("AddressSanitizer", || sanitizer::check(&sh, true, &mut sanitized));
    let finished = steps.finish();
    let (run, failed) = (counts.run + sanitized.run, counts.failed + sanitized.failed);
    eprintln!("tests: {} passed, {failed} failed", run - failed);
    finished
}
