//! Every combination of the features of the published crates builds.

use crate::project::{Metadata, Package};
use crate::steps::Outcome;
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use xshell::{Shell, cmd};

/// Checks the library of every published crate with every combination of its features, warnings denied.
///
/// Combinations that differ only in what another feature of the same crate turns on anyway are checked once.
pub fn run(sh: &Shell) -> Result<Outcome> {
    let metadata = Metadata::members(sh)?;
    let mut built = 0;
    let mut failed = Vec::new();
    for package in metadata.workspace().filter(|package| package.is_published()) {
        let combinations = combinations(&package.features);
        eprintln!("{}: {} combinations of features", package.name, combinations.len());
        for features in combinations {
            built += 1;
            if !check(sh, package, &features) {
                failed.push(format!("{} [{features}]", package.name));
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {built} combinations: {}", failed.len(), failed.join("; "));
    }
    Ok(Outcome::Passed(format!("{built} combinations")))
}

fn check(sh: &Shell, package: &Package, features: &str) -> bool {
    let name = &package.name;
    // `cargo rustc` hands `-D warnings` to this crate alone, so that all combinations share the checked dependencies.
    let args = ["--lib", "--profile", "check", "--no-default-features", "--features", features];
    let checked = cmd!(sh, "cargo rustc --quiet -p {name} {args...} -- -D warnings").quiet().run().is_ok();
    if !checked {
        eprintln!("{name} does not build with features [{features}]");
    }
    checked
}

/// All sets of features, as lists separated by commas: each closed under "turns on", each once, smallest first.
fn combinations(features: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let names: Vec<&str> = features.keys().map(String::as_str).filter(|name| *name != "default").collect();
    let mut sets: BTreeSet<(usize, Vec<&str>)> = BTreeSet::new();
    for mask in 0..1_u64 << names.len() {
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
        assert_eq!(combinations(&features(&[])), [""]);
        assert_eq!(combinations(&features(&[("default", &["std"]), ("std", &[])])), ["", "std"]);
    }

    #[test]
    fn independent_features_give_the_power_set() {
        let all = combinations(&features(&[("a", &["dep:x"]), ("b", &["y/z"]), ("c", &[])]));
        assert_eq!(all, ["", "a", "b", "c", "a,b", "a,c", "b,c", "a,b,c"]);
    }

    #[test]
    fn what_a_feature_turns_on_is_not_built_twice() {
        let chain = features(&[("a", &["b"]), ("b", &["c"]), ("c", &[])]);
        assert_eq!(combinations(&chain), ["", "c", "b,c", "a,b,c"]);
    }
}
