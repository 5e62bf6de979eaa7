//! `cargo xtask package`: checks the published crates in the form in which a registry and its users receive
//! them. It publishes nothing.

use crate::project;
use crate::steps::{Outcome, Steps};
use crate::tools;
use anyhow::{Context, Result};
use cargo_metadata::Metadata;
use xshell::{Shell, cmd};

pub fn run(sample: bool) -> Result<()> {
    let (sh, mut steps) = (project::shell()?, Steps::new());
    steps.run("package", || check(&sh, sample));
    steps.run("oldest Rust", || oldest_rust(&sh));
    steps.finish()
}

/// Packs the published crates as for a registry. Also builds the packages, unless `sample` is true.
pub fn check(sh: &Shell, sample: bool) -> Result<Outcome> {
    let packed = project::published(&project::members()?).len();
    let verify: &[&str] = if sample { &["--no-verify"] } else { &[] };
    cmd!(sh, "cargo publish --workspace --dry-run --locked --allow-dirty {verify...}").run()?;
    let built = if sample { "" } else { " and built" };
    Ok(Outcome::Passed(format!("{packed} crates packed{built}")))
}

/// Checks the published crates with the oldest compiler that they support.
pub fn oldest_rust(sh: &Shell) -> Result<Outcome> {
    let metadata = project::members()?;
    let oldest = oldest(&metadata).context("no crate states its `rust-version`")?;
    let used = cmd!(sh, "rustc --version").quiet().read()?;
    if is_of(&used, &oldest) {
        return Ok(Outcome::Passed(format!("{oldest} is in use: all other steps check it")));
    }
    if tools::find("rustup").is_none() {
        return Ok(Outcome::Skipped(format!(
            "rustup is missing, which would install Rust {oldest}; this is \
                                            {used}"
        )));
    }
    cmd!(sh, "rustup toolchain install {oldest} --profile minimal --no-self-update").run()?;
    // Use a separate build folder, because other commands would wait for the lock of the common one.
    let _target = sh.push_env("CARGO_TARGET_DIR", metadata.target_directory.join("oldest"));
    // The wrapper `cargo` of rustup exports its toolchain's name to child processes. Override the name here.
    let _toolchain = sh.push_env("RUSTUP_TOOLCHAIN", &oldest);
    let packages = project::published(&metadata);
    let packages = packages.iter().flat_map(|package| ["-p", package.name.as_str()]);
    cmd!(sh, "rustup run {oldest} cargo check --quiet --locked --all-features --lib --bins {packages...}")
        .run()?;
    Ok(Outcome::Passed(format!("Rust {oldest}, libraries and programs, all features")))
}

/// Returns the oldest Rust version that the published crates support, as major and minor.
fn oldest(metadata: &Metadata) -> Option<String> {
    let versions =
        project::published(metadata).into_iter().filter_map(|package| package.rust_version.clone());
    versions.max().map(|version| format!("{}.{}", version.major, version.minor))
}

/// Returns true if a compiler's version output is a release of this version.
fn is_of(used: &str, version: &str) -> bool {
    let used = used.split(' ').nth(1).unwrap_or_default();
    used.strip_prefix(version).is_some_and(|patch| patch.starts_with('.') && !patch.contains('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_is_of_a_version_by_major_and_minor() {
        assert!(is_of("rustc 1.95.0 (5980761 2026-04-14)", "1.95"));
        assert!(is_of("rustc 1.95.1", "1.95"));
        for other in ["rustc 1.96.0 (x)", "rustc 1.950.0", "rustc 1.95.0-nightly (x)", "rustc", ""] {
            assert!(!is_of(other, "1.95"), "{other}");
        }
        let oldest = oldest(&project::members().unwrap()).unwrap();
        assert!(include_str!("../../Cargo.toml").contains(&format!("rust-version = \"{oldest}\"")));
    }
}
