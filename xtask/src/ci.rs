//! `cargo xtask ci`: what `.ci/run` calls.

use crate::junit::{self, Counts};
use crate::steps::{Outcome, Steps};
use crate::{examples, formats, kernels, misuse, package, project, ptx, supply, test_host, tidy};
use anyhow::Result;
use xshell::cmd;

/// Commands that build in folders of their own, so that they can run beside the last steps and each other;
/// the longest first.
/// A sample of `soak` needs none: it is one of the tests of xtask.
const BESIDE: [(&str, &[&str]); 8] = [
    ("AddressSanitizer", &["sanitize", "--sample"]),
    ("python", &["python", "--sample"]),
    ("fuzz", &["fuzz", "--sample"]),
    ("features", &["features", "--sample"]),
    ("Miri", &["miri", "--sample"]),
    ("hits", &["hits"]),
    ("cross", &["cross", "--sample"]),
    ("mutants", &["mutants", "--sample"]),
];

/// Runs the command. Quick checks come first, then tests; a failed one does not stop the others.
pub fn run() -> Result<()> {
    let sh = project::shell()?;
    let mut steps = Steps::new();
    steps.run("fmt", || {
        cmd!(sh, "cargo fmt --all --check").run()?;
        Ok(Outcome::passed())
    });
    steps.run("tidy", || tidy::check(&sh));
    steps.run("supply", || supply::check(&sh));
    steps.run("deny", || supply::deny(&sh));
    steps.run("package", || package::check(&sh, true));
    steps.run("oldest Rust", || package::oldest_rust(&sh));
    steps.run("ptx", || ptx::check(&sh));
    steps.run("clippy", || {
        cmd!(sh, "cargo clippy --workspace --all-targets --all-features -- -D warnings").run()?;
        Ok(Outcome::passed())
    });
    let _ = sh.remove_path(junit::report("sanitizer"));
    let mut counts = Counts::default();
    steps.run("tests", || test_host::tests(&sh, &[], &mut counts));
    steps.run("example programs", || test_host::example_programs(&sh));
    steps.beside(&BESIDE, |steps| {
        steps.run("documentation examples", || test_host::doctests(&sh));
        steps.run("concurrency model", || test_host::model(&sh, &mut counts));
        steps.run("rustdoc, examples", || examples::check(&sh));
        steps.run("misuse", || misuse::check(&sh));
        steps.run("kernels", || kernels::sample(&sh));
        steps.run("formats", || formats::sample(&sh));
        steps.run("servers", || formats::servers_sample(&sh));
    });
    counts.add(Counts::read(&junit::report("sanitizer")).unwrap_or_default());
    let finished = steps.finish();
    eprintln!("tests: {} passed, {} failed", counts.run - counts.failed, counts.failed);
    finished
}
