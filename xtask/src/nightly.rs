//! `cargo xtask nightly`: runs all checks in full, and resumes after an interruption.
//!
//! `ci` runs only the checks that block a change. All checks take hours on two cores, so
//! `target/nightly.json` records each passed check with its commit. A later call at the same commit skips
//! these checks.

use crate::project;
use crate::steps::Steps;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The checks: a name, and the arguments of the xtask command that runs it, with `{target}` for the target
/// folder. Short ones first.
const CHECKS: &[(&str, &[&str])] = &[
    ("supply", &["supply"]),
    ("misuse", &["misuse"]),
    ("ptx", &["ptx", "--check"]),
    ("package", &["package"]),
    ("examples", &["examples"]),
    ("tests", &["test-host", "--all"]),
    ("features", &["features"]),
    ("cross", &["cross"]),
    ("miri", &["miri"]),
    ("formats", &["formats"]),
    ("kernels", &["kernels"]),
    ("fuzz", &["fuzz"]),
    ("sanitize", &["sanitize"]),
    ("damage", &["damage", "--cases", "1000000", "--resume", "{target}/nightly-damage.txt"]),
    ("kills", &["kills", "--count", "1000", "--resume", "{target}/nightly-kills.json"]),
    ("soak", &["soak", "--operations", "1000000000", "--resume", "{target}/nightly-soak.json"]),
    ("python", &["python"]),
    ("suites", &["python", "suites", "dask"]),
    ("mutants", &["mutants"]),
];

/// Runs all checks completely, without samples, and records each check that has passed.
#[derive(clap::Args)]
pub struct Args {
    /// Runs only the named checks. Default: all.
    #[arg(value_name = "CHECK")]
    only: Vec<String>,
    /// Lists the checks and whether each has passed at this commit, and runs none.
    #[arg(long)]
    list: bool,
}

/// The checks that have passed at one commit, each with its seconds.
#[derive(Default, Serialize, Deserialize)]
struct Passed {
    commit: String,
    seconds: BTreeMap<String, f64>,
}

impl Passed {
    /// Reads the record, or starts an empty one if the file is missing or of another commit.
    fn read(file: &Path, commit: String) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let record = serde_json::from_str::<Self>(&text).ok();
        let is_clean = !commit.is_empty() && !commit.ends_with("-dirty");
        record
            .filter(|record| is_clean && record.commit == commit)
            .unwrap_or(Self { commit, ..Self::default() })
    }

    fn write(&self, file: &Path) -> Result<()> {
        std::fs::write(file, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("cannot write {}", file.display()))
    }
}

pub fn run(args: &Args) -> Result<()> {
    let unknown = args.only.iter().find(|only| CHECKS.iter().all(|(name, _)| name != only));
    ensure!(unknown.is_none(), "unknown check {unknown:?}; `cargo xtask nightly --list` names them");
    let target = project::members()?.target_directory;
    let file = target.join("nightly.json");
    let mut passed = Passed::read(file.as_ref(), project::commit().unwrap_or_default());
    if args.list {
        for (name, arguments) in CHECKS {
            let state = passed.seconds.get(*name).map_or("not run".into(), |s| format!("passed in {s:.0} s"));
            println!(
                "{name:10} {state:18} cargo xtask {}",
                arguments.join(" ").replace("{target}", "target")
            );
        }
        return Ok(());
    }
    let (program, mut steps) = (std::env::current_exe()?, Steps::new());
    for (name, arguments) in CHECKS {
        let is_chosen = args.only.is_empty() || args.only.iter().any(|only| only == name);
        if !is_chosen || passed.seconds.contains_key(*name) {
            continue;
        }
        let start = std::time::Instant::now();
        let has_passed = steps.run(name, || {
            let mut command = Command::new(&program);
            // Run all random cases with optimised tests; `ci` runs a quarter of the cases, not optimised.
            command.env("VMARRAY_ALL_CASES", "1").env("CARGO_PROFILE_TEST_OPT_LEVEL", "1");
            let completed = arguments.iter().map(|argument| argument.replace("{target}", target.as_str()));
            let status = command.args(completed).current_dir(project::root()).status()?;
            ensure!(status.success(), "`cargo xtask {}` ended with {status}", arguments.join(" "));
            Ok(crate::steps::Outcome::passed())
        });
        if has_passed {
            passed.seconds.insert((*name).into(), start.elapsed().as_secs_f64());
            passed.write(file.as_ref())?;
        }
    }
    steps.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_at_its_commit_alone() {
        let folder = project::root().join("target");
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("nightly-test-{}.json", std::process::id()));
        let mut record = Passed::read(&file, "a".into());
        record.seconds.insert("tests".into(), 1.5);
        record.write(&file).unwrap();
        assert_eq!(Passed::read(&file, "a".into()).seconds.len(), 1);
        assert!(Passed::read(&file, "b".into()).seconds.is_empty());
        // Two trees with uncommitted changes may differ.
        let dirty = Passed { commit: "a-dirty".into(), ..record };
        dirty.write(&file).unwrap();
        assert!(Passed::read(&file, "a-dirty".into()).seconds.is_empty());
        std::fs::remove_file(file).unwrap();
    }
}
