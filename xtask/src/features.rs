//! `cargo xtask features`: builds the published crates with the combinations of features that a dependent
//! crate may select.

use crate::project;
use crate::steps::Outcome;
use crate::tools;
use anyhow::Result;
use xshell::{Shell, cmd};

/// Checks each published crate by cargo-hack, with warnings as errors: without features, with each feature,
/// and with each pair of features. With `sample`, checks only crates that have features: without features,
/// and with the default features. The sample reuses the build folder of the rustdoc check.
pub fn check(sh: &Shell, sample: bool) -> Result<Outcome> {
    let metadata = project::members()?;
    let published = project::published(&metadata);
    if sample {
        let with_features = published.iter().filter(|package| !package.features.is_empty());
        for package in with_features.clone() {
            let name = package.name.as_str();
            cmd!(sh, "cargo clippy --quiet -p {name} --no-default-features -- -D warnings").run()?;
            if package.features.contains_key("default") {
                cmd!(sh, "cargo clippy --quiet -p {name} -- -D warnings").run()?;
            }
        }
        return Ok(Outcome::Passed(format!("{} crates", with_features.count())));
    }
    tools::need(sh, "hack")?;
    // Use a separate build folder, because other commands would wait for the lock of the common one.
    let _target = sh.push_env("CARGO_TARGET_DIR", metadata.target_directory.join("features"));
    let packages = published.iter().flat_map(|package| ["-p", package.name.as_str()]);
    let options = ["--feature-powerset", "--depth", "2", "--keep-going"];
    cmd!(sh, "cargo hack clippy {packages...} {options...} -- -D warnings").run()?;
    Ok(Outcome::passed())
}
