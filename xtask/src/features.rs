//! `cargo xtask features`: checks that the published crates build with all combinations of features that a
//! dependent crate may select.

use crate::project;
use crate::steps::Outcome;
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use xshell::{Shell, cmd};

/// Checks the library of every published crate with [combinations] of its features, warnings denied. With
/// `sample`, checks only two combinations of crates that have features: no feature, and the default
/// features. The sample shares the build folder of rustdoc; another step of the same run checks all features
/// together.
pub fn check(sh: &Shell, sample: bool) -> Result<Outcome> {
    let metadata = project::members()?;
    // Use a separate build folder, because other commands would wait for the lock of the common one.
    let _target =
        (!sample).then(|| sh.push_env("CARGO_TARGET_DIR", metadata.target_directory.join("features")));
    let (mut built, mut failed) = (0, Vec::new());
    for package in project::published(&metadata) {
        let combinations =
            if sample { sampled(&package.features) } else { combinations(&package.features, 2, 2) };
        if !combinations.is_empty() {
            eprintln!("{}: {} combinations of features", package.name, combinations.len());
        }
        built += combinations.len();
        let is_program = package.targets.iter().any(|target| target.is_bin());
        let target = if is_program { "--bins" } else { "--lib" };
        failed
            .extend(combinations.into_iter().filter(|features| !builds(sh, &package.name, target, features)));
    }
    if !failed.is_empty() {
        bail!("{} of {built} combinations of features do not build: {}", failed.len(), failed.join("; "));
    }
    Ok(Outcome::Passed(format!("{built} combinations")))
}

fn builds(sh: &Shell, name: &str, target: &str, features: &str) -> bool {
    let args = [target, "--no-default-features", "--features", features];
    let checked = cmd!(sh, "cargo clippy --quiet -p {name} {args...} -- -D warnings").quiet().run().is_ok();
    if !checked {
        eprintln!("{name} does not build with features [{features}]");
    }
    checked
}

/// Returns the combinations of a sample: no feature, and the default features; nothing for a crate without
/// features, which the tests build.
fn sampled(features: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    if features.is_empty() {
        return Vec::new();
    }
    let default = features.get("default").map_or(String::new(), |list| list.join(","));
    let mut sets = vec![String::new(), default];
    sets.dedup();
    sets
}

/// Returns the sets in which at most `most_on` features are on or at most `most_off` are off, as lists
/// separated by commas, the smallest first.
///
/// A feature can turn on other features. Each set includes these, so that the command checks equal sets only
/// once.
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
    fn few_features_give_all_sets_that_differ() {
        let all = |list: &[(&str, &[&str])]| combinations(&features(list), 2, 2);
        assert_eq!(all(&[]), [""]);
        assert_eq!(all(&[("default", &["std"]), ("std", &[])]), ["", "std"]);
        let independent = all(&[("a", &["dep:x"]), ("b", &["y/z"]), ("c", &[])]);
        assert_eq!(independent, ["", "a", "b", "c", "a,b", "a,c", "b,c", "a,b,c"]);
        // If a feature turns on another one, the other one is not built twice.
        assert_eq!(all(&[("a", &["b"]), ("b", &["c"]), ("c", &[])]), ["", "c", "b,c", "a,b,c"]);
    }

    #[test]
    fn of_many_features_two_are_on_or_off() {
        let names = ["a", "b", "c", "d", "e", "f"];
        let all = combinations(&features(&names.map(|name| (name, [].as_slice()))), 2, 2);
        // Combinations: no feature, each, each pair; all features, all but one, all but two.
        assert_eq!(all.len(), 2 * (1 + 6 + 15));
        assert!(all.iter().all(|set| set.split(',').count() != 3));
        let sampled = sampled(&features(&[("default", &["b"]), ("a", &[]), ("b", &[])]));
        assert_eq!(sampled, ["", "b"]);
        assert!(super::sampled(&features(&[])).is_empty());
    }
}
