//! `cargo xtask ci`: runs the checks that block a change; the script `.ci/run` calls it.
//!
//! `cargo xtask nightly` runs all checks in full, with sanitizers, fuzzing and mutants.

use crate::steps::{Outcome, Steps};
use crate::{examples, features, formats, kernels, misuse, package, project, ptx, test_host, tidy, tools};
use anyhow::Result;
use xshell::{Shell, cmd};

/// Commands with their own build folders, which run at the same time as all other steps; longest first. They
/// take the core that steps with one thread leave idle, such as `tidy` and the last part of a build.
const SIDE: [(&str, &[&str]); 2] = [("python", &["python", "--sample"]), ("hits", &["hits"])];

/// A function that runs one check. It returns an error if the check fails.
type Check = fn(&Shell) -> Result<Outcome>;

/// Checks that run only if the change touches one of their paths.
const BY_PATH: [(&str, &[&str], Check); 7] = [
    ("supply", &["Cargo.lock", "deny.toml"], |sh| match tools::has(sh, &["deny"]) {
        true => supply(sh),
        false => Ok(Outcome::Skipped("cargo-deny is not installed; `cargo xtask nightly` builds it".into())),
    }),
    (
        "misuse",
        &["vmarray/macros", "vmarray/kernel", "vmarray/tests/misuse", "xtask/src/misuse"],
        misuse::check,
    ),
    ("kernels", &["vmarray/macros", "vmarray/kernel", "backend-api", "xtask/src/kernels"], kernels::sample),
    ("formats", &["vmarray/formats", "xtask/src/formats"], formats::sample),
    (
        "servers",
        &[
            "vmarray/formats/servers",
            "vmarray/formats/src/zarr/location.rs",
            "vmarray/formats/src/zarr/objects.rs",
        ],
        formats::servers_sample,
    ),
    ("ptx", &["backend-cuda/kernels", "vmarray/src/ops/sort/onesweep", "xtask/src/ptx"], ptx::check),
    ("package", &["Cargo.toml", "*/Cargo.toml"], |sh| package::check(sh, true)),
];
/// The start of the change that is checked, as a time; `VMARRAY_CI_BASE` names a commit instead.
const CHANGE_SINCE: &str = "24 hours ago";

/// Runs `cargo xtask ci`: quick checks first, then tests. A failed check does not stop the other checks.
pub fn run() -> Result<()> {
    let sh = project::shell()?;
    let mut steps = Steps::new();
    steps.beside(&SIDE, |steps| {
        steps.run("fmt", || {
            cmd!(sh, "cargo fmt --all --check").run()?;
            Ok(Outcome::passed())
        });
        steps.run("tidy", || tidy::check(&sh));
        let lints = test_host::lints(&sh);
        // If a lint fails, use a build without lints for the next steps, so that the tests still run.
        let lints = steps.run("clippy, build of tests", || test_host::build(&sh)).then_some(lints);
        steps.run("tests", || test_host::tests(&sh, &[]));
        steps.run("example programs", || test_host::example_programs(&sh));
        steps.run("documentation examples", || test_host::doctests(&sh));
        for (name, paths, check) in BY_PATH {
            steps.run(name, || match is_changed(&sh, paths) {
                true => check(&sh),
                false => Ok(Outcome::Passed("not touched; whole by `cargo xtask nightly`".into())),
            });
        }
        // Restore the normal build settings, because the steps below use other build settings.
        drop(lints);
        steps.run("concurrency model", || test_host::model(&sh));
        steps.run("rustdoc, examples", || examples::check(&sh));
        steps.run("features", || features::check(&sh, true));
    });
    steps.finish()
}

/// Checks licences, sources and bans of all dependencies by cargo-deny.
pub fn supply(sh: &Shell) -> Result<Outcome> {
    tools::need(sh, "deny")?;
    cmd!(sh, "cargo deny --log-level error --all-features check bans licenses sources").run()?;
    Ok(Outcome::passed())
}

/// Returns true if the change touches one of the paths, or if git cannot answer.
fn is_changed(sh: &Shell, paths: &[&str]) -> bool {
    let base = std::env::var("VMARRAY_CI_BASE").ok().filter(|base| !base.is_empty()).or_else(|| {
        cmd!(sh, "git rev-list -1 --before={CHANGE_SINCE} HEAD").quiet().ignore_stderr().read().ok()
    });
    let Some(base) = base.filter(|base| !base.is_empty()) else { return true };
    let changed = cmd!(sh, "git diff --name-only {base} -- {paths...}").quiet().ignore_stderr().read();
    changed.map_or(true, |files| !files.is_empty())
}
