//! Check of the licences and sources of all dependencies by the rules in `deny.toml`.
//!
//! cargo-deny reads the same file and checks more (duplicates, wildcards), but its build takes minutes. This
//! check uses the output of `cargo metadata`, takes a second, and needs no other program.

use crate::project;
use crate::steps::Outcome;
use crate::tools;
use anyhow::{Context, Result, bail};
use cargo_metadata::Package;
use serde::Deserialize;
use spdx::{Expression, ParseMode};
use xshell::{Shell, cmd};

/// The part of `deny.toml` that this check uses.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
}

#[derive(Deserialize)]
struct Sources {
    #[serde(rename = "allow-registry")]
    allow_registry: Vec<String>,
}

/// Checks licences, sources and bans of all dependencies against `deny.toml`.
pub fn check(sh: &Shell) -> Result<Outcome> {
    let rules: Rules = toml::from_str(&sh.read_file("deny.toml")?).context("deny.toml")?;
    let metadata = project::metadata().other_options(["--locked".into()]).exec()?;
    let fault = |package: &Package| {
        let source = package.source.as_ref().map(|source| source.repr.as_str());
        let fault = fault(&rules, &package.name, package.license.as_deref(), source)?;
        Some(format!("{} {} {fault}", package.name, package.version))
    };
    let faults: Vec<String> = metadata.packages.iter().filter_map(fault).collect();
    if !faults.is_empty() {
        bail!("{} packages break the rules of deny.toml:\n{}", faults.len(), faults.join("\n"));
    }
    Ok(Outcome::Passed(format!("{} packages", metadata.packages.len())))
}

/// Runs cargo-deny; skips it if cargo-deny is not installed.
pub fn deny(sh: &Shell) -> Result<Outcome> {
    if tools::find("cargo-deny").is_none() {
        return Ok(Outcome::Skipped("cargo-deny is not installed; `supply` did run".into()));
    }
    cmd!(sh, "cargo deny --all-features check bans licenses sources").run()?;
    Ok(Outcome::passed())
}

/// Returns the fault of a package, if it violates a rule.
fn fault(rules: &Rules, name: &str, license: Option<&str>, source: Option<&str>) -> Option<String> {
    if rules.bans.deny.iter().any(|ban| ban.name == *name) {
        return Some("is banned".into());
    }
    if let Some(source) = source {
        let registry = source.strip_prefix("registry+").or_else(|| source.strip_prefix("sparse+"));
        if !registry.is_some_and(|registry| rules.sources.allow_registry.iter().any(|r| r == registry)) {
            return Some(format!("comes from {source}"));
        }
    }
    let Some(license) = license else {
        return Some("states no licence".into());
    };
    let Ok(expression) = Expression::parse_mode(license, ParseMode::LAX) else {
        return Some(format!("states an unreadable licence: {license}"));
    };
    let is_allowed = expression.evaluate(|wanted| rules.licenses.allow.contains(&wanted.to_string()));
    (!is_allowed).then(|| format!("has licence {license}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_against_rules() {
        let rules: Rules = toml::from_str(
            r#"
            [licenses]
            allow = ["MIT", "Apache-2.0 WITH LLVM-exception"]
            [bans]
            deny = [{ crate = "openssl" }]
            [sources]
            allow-registry = ["https://example.org/index"]
            "#,
        )
        .unwrap();
        let ours = Some("registry+https://example.org/index");
        for license in
            ["MIT", "MIT/Zlib", "GPL-3.0-only AND Zlib OR MIT", "Apache-2.0 WITH LLVM-exception OR Zlib"]
        {
            assert_eq!(fault(&rules, "good", Some(license), ours), None, "{license}");
        }
        assert_eq!(fault(&rules, "member", Some("MIT"), None), None);
        for license in ["Zlib", "MIT AND Zlib", "(MIT OR Zlib) AND Zlib", "Apache-2.0", "MIT OR", "(MIT", ""]
        {
            assert!(fault(&rules, "bad", Some(license), ours).is_some(), "{license}");
        }
        assert!(fault(&rules, "silent", None, ours).is_some());
        assert!(fault(&rules, "openssl", Some("MIT"), ours).is_some());
        for source in ["registry+https://example.com/index", "git+https://example.org/index"] {
            assert!(fault(&rules, "elsewhere", Some("MIT"), Some(source)).is_some(), "{source}");
        }
    }
}
