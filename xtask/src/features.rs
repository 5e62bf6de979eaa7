//! `cargo xtask features`: the published crates build with the features that a dependant may pick.

use crate::project::{self, Metadata};
use crate::steps::{Outcome, Steps};
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use xshell::{Shell, cmd};

/// How many combinations are checked at a time at most: each worker checks the dependencies anew.
const WORKERS_MAX: usize = 4;

/// Takes some minutes; a sample takes one.
#[derive(clap::Args)]
pub struct Args {
    /// Runs only what continuous integration runs: no feature, each alone, and all.
    #[arg(long)]
    sample: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<()> {
    let sh = project::shell()?;
    let mut steps = Steps::new();
    steps.run("features", || check(&sh, args.sample));
    steps.finish()
}

/// Checks the library of every published crate with [combinations] of its features, warnings denied; several
/// at a time, each in a build folder of its own, since cargo locks the folder that it builds in.
pub fn check(sh: &Shell, sample: bool) -> Result<Outcome> {
    let (most_on, most_off) = if sample { (1, 0) } else { (2, 2) };
    let metadata = Metadata::members(sh)?;
    let mut work = Vec::new();
    for package in metadata.workspace().filter(|package| package.is_published()) {
        let combinations = combinations(&package.features, most_on, most_off);
        eprintln!("{}: {} combinations of features", package.name, combinations.len());
        work.extend(combinations.into_iter().map(|features| (package.name.as_str(), features)));
    }
    let (built, next, failed) = (work.len(), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX);
    std::thread::scope(|threads| {
        let workers: Vec<_> = (0..workers)
            .map(|worker| {
                let (work, next, failed) = (&work, &next, &failed);
                let folder = metadata.target_directory.join(format!("features-{worker}"));
                threads.spawn(move || -> Result<()> {
                    let sh = project::shell()?;
                    sh.set_var("CARGO_TARGET_DIR", folder);
                    while let Some((name, features)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if !builds(&sh, name, features) {
                            failed.lock().expect("no panics").push(format!("{name} [{features}]"));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panics"))
    })?;
    let failed = failed.into_inner().expect("no panics");
    if !failed.is_empty() {
        bail!("{} of {built} combinations: {}", failed.len(), failed.join("; "));
    }
    Ok(Outcome::Passed(format!("{built} combinations")))
}

fn builds(sh: &Shell, name: &str, features: &str) -> bool {
    // `cargo rustc` hands `-D warnings` to this crate alone, so that all combinations share the checked
    // dependencies.
    let args = ["--lib", "--profile", "check", "--no-default-features", "--features", features];
    let checked = cmd!(sh, "cargo rustc --quiet -p {name} {args...} -- -D warnings").quiet().run().is_ok();
    if !checked {
        eprintln!("{name} does not build with features [{features}]");
    }
    checked
}

/// Sets of features, as lists separated by commas: at most so many that are on, or that are off.
///
/// Each is closed under "turns on", so that those which differ only in what another feature turns on anyway
/// are checked once; smallest first.
fn combinations(features: &BTreeMap<String, Vec<String>>, most_on: usize, most_off: usize) -> Vec<String> {
    let names: Vec<&str> = features.keys().map(String::as_str).filter(|name| *name != "default").collect();
    let mut sets: BTreeSet<(usize, Vec<&str>)> = BTreeSet::new();
    for mask in 0..1_u64 << names.len() {
        let on = mask.count_ones() as usize;
        if on > most_on && names.len() - on > most_off {
            continue;
        }
        let mut set: BTreeSet<&str> =
            names.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1).map(|(_, name)| *name).collect();
        loop {
            let more: BTreeSet<&str> = set
                .iter()
                .filter_map(|name| features.get(*name))
                .flatten()
                .map(String::as_str)
                .filter(|name| names.contains(name) && !set.contains(name))
                .collect();
            if more.is_empty() {
                break;
            }
            set.extend(more);
        }
        sets.insert((set.len(), set.into_iter().collect()));
    }
    sets.into_iter().map(|(_, set)| set.join(",")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(list: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
        list.iter()
            .map(|(name, on)| (name.to_string(), on.iter().map(|on| on.to_string()).collect()))
            .collect()
    }

    #[test]
    fn no_feature_is_one_combination() {
        assert_eq!(combinations(&features(&[]), 2, 2), [""]);
        assert_eq!(combinations(&features(&[("default", &["std"]), ("std", &[])]), 2, 2), ["", "std"]);
    }

    #[test]
    fn independent_features_give_the_power_set() {
        let all = combinations(&features(&[("a", &["dep:x"]), ("b", &["y/z"]), ("c", &[])]), 2, 2);
        assert_eq!(all, ["", "a", "b", "c", "a,b", "a,c", "b,c", "a,b,c"]);
    }

    #[test]
    fn of_many_features_two_are_on_or_off() {
        let names = ["a", "b", "c", "d", "e", "f"];
        let all = combinations(&features(&names.map(|name| (name, [].as_slice()))), 2, 2);
        // None, each, each pair; all, all but one, all but two.
        assert_eq!(all.len(), 2 * (1 + 6 + 15));
        assert!(all.iter().all(|set| set.split(',').count() != 3));
        let few = combinations(&features(&names.map(|name| (name, [].as_slice()))), 1, 0);
        assert_eq!(few.len(), 1 + 6 + 1);
    }

    #[test]
    fn what_a_feature_turns_on_is_not_built_twice() {
        let chain = features(&[("a", &["b"]), ("b", &["c"]), ("c", &[])]);
        assert_eq!(combinations(&chain, 2, 2), ["", "c", "b,c", "a,b,c"]);
    }
}
