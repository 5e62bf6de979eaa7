//! Licences, sources and bans of all dependencies, against `deny.toml`.
//!
//! cargo-deny reads the same file and checks more (duplicates, wildcards), but takes minutes to build. This
//! runs everywhere, in a second, on what `cargo metadata` says.

use crate::project::{self, Metadata, Package};
use crate::steps::Outcome;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use xshell::{Shell, cmd};

/// The part of `deny.toml` that is checked here.
#[derive(Debug, Default, Deserialize)]
struct Rules {
    #[serde(default)]
    licenses: Licenses,
    #[serde(default)]
    bans: Bans,
    #[serde(default)]
    sources: Sources,
}

#[derive(Debug, Default, Deserialize)]
struct Licenses {
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

/// Licences that one crate alone may have.
#[derive(Debug, Deserialize)]
struct Exception {
    #[serde(alias = "crate", alias = "name")]
    krate: String,
    allow: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Bans {
    #[serde(default)]
    deny: Vec<Ban>,
}

#[derive(Debug, Deserialize)]
struct Ban {
    #[serde(alias = "name")]
    #[serde(rename = "crate")]
    krate: String,
}

#[derive(Debug, Default, Deserialize)]
struct Sources {
    #[serde(default, rename = "allow-registry")]
    allow_registry: Vec<String>,
    #[serde(default, rename = "allow-git")]
    allow_git: Vec<String>,
}

/// Runs the command.
pub fn run() -> Result<()> {
    let sh = project::shell()?;
    if let Outcome::Passed(note) = check(&sh)? {
        eprintln!("{note}");
    }
    Ok(())
}

/// The check as a step.
pub fn check(sh: &Shell) -> Result<Outcome> {
    let rules: Rules = toml::from_str(&sh.read_file("deny.toml")?).context("deny.toml")?;
    let metadata = Metadata::locked(sh)?;
    let faults: Vec<String> = metadata.packages.iter().filter_map(|package| fault(&rules, package)).collect();
    if !faults.is_empty() {
        bail!("{} packages break the rules of deny.toml:\n{}", faults.len(), faults.join("\n"));
    }
    Ok(Outcome::Passed(format!("{} packages", metadata.packages.len())))
}

/// cargo-deny as a step, where it is installed; `install` builds it first, in minutes.
pub fn deny(sh: &Shell, install: bool) -> Result<Outcome> {
    let installed = || cmd!(sh, "cargo deny --version").quiet().ignore_stdout().ignore_stderr().run().is_ok();
    if !installed() {
        if !install {
            let reason =
                "cargo-deny is not installed (`cargo xtask ci --install` builds it); `supply` did run";
            return Ok(Outcome::Skipped(reason.to_string()));
        }
        cmd!(sh, "cargo install cargo-deny --locked").run()?;
    }
    cmd!(sh, "cargo deny --all-features check bans licenses sources").run()?;
    Ok(Outcome::passed())
}

/// What is wrong with a package, if anything.
fn fault(rules: &Rules, package: &Package) -> Option<String> {
    let Package { name, version, license, source, .. } = package;
    if rules.bans.deny.iter().any(|ban| ban.krate == *name) {
        return Some(format!("{name} {version} is banned"));
    }
    if let Some(source) = source {
        let (kind, place) = source.split_once('+').unwrap_or(("", source));
        let allowed = match kind {
            "registry" | "sparse" => &rules.sources.allow_registry,
            _ => &rules.sources.allow_git,
        };
        if !allowed.iter().any(|allowed| place == allowed || source == allowed) {
            return Some(format!("{name} {version} comes from {source}"));
        }
    }
    let Some(license) = license else {
        return Some(format!("{name} {version} states no licence"));
    };
    let allowed = |id: &str| {
        rules.licenses.allow.iter().any(|allowed| allowed == id)
            || rules.licenses.exceptions.iter().any(|exception| {
                exception.krate == *name && exception.allow.iter().any(|allowed| allowed == id)
            })
    };
    match satisfied(license, &allowed) {
        Some(true) => None,
        Some(false) => Some(format!("{name} {version} has licence {license}")),
        None => Some(format!("{name} {version} states an unreadable licence: {license}")),
    }
}

/// Whether a licence expression (SPDX, and the older `A/B` for "or") can be met by allowed licences; `None`
/// if unreadable.
fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = either(&words, &mut at, allowed)?;
    (at == words.len()).then_some(met)
}

fn either(words: &[&str], at: &mut usize, allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    let mut met = both(words, at, allowed)?;
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= both(words, at, allowed)?;
    }
    Some(met)
}

fn both(words: &[&str], at: &mut usize, allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    let mut met = one(words, at, allowed)?;
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed)?;
    }
    Some(met)
}

fn one(words: &[&str], at: &mut usize, allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    let word = *words.get(*at)?;
    *at += 1;
    match word {
        "(" => {
            let met = either(words, at, allowed)?;
            let closed = words.get(*at) == Some(&")");
            *at += 1;
            closed.then_some(met)
        }
        ")" | "OR" | "AND" | "WITH" => None,
        id if words.get(*at) == Some(&"WITH") => {
            let exception = words.get(*at + 1)?;
            *at += 2;
            Some(allowed(&format!("{id} WITH {exception}")) || allowed(id))
        }
        id => Some(allowed(id)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(expression: &str) -> Option<bool> {
        satisfied(expression, &|id| ["MIT", "Apache-2.0"].contains(&id))
    }

    #[test]
    fn licence_expressions() {
        for (expression, answer) in [
            ("MIT", Some(true)),
            ("GPL-3.0-only", Some(false)),
            ("MIT OR GPL-3.0-only", Some(true)),
            ("MIT AND GPL-3.0-only", Some(false)),
            ("MIT/Apache-2.0", Some(true)),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", Some(false)),
            ("GPL-3.0-only AND MIT OR Apache-2.0", Some(true)),
            ("GPL-3.0-only AND (MIT OR Apache-2.0)", Some(false)),
            ("Apache-2.0 WITH LLVM-exception OR X", Some(true)),
            ("MIT Apache-2.0", None),
            ("MIT OR", None),
            ("(MIT", None),
            ("", None),
        ] {
            assert_eq!(met(expression), answer, "{expression}");
        }
    }

    fn package(name: &str, license: Option<&str>, source: Option<&str>) -> Package {
        let json = serde_json::json!({
            "id": name, "name": name, "version": "1.0.0", "license": license, "source": source,
            "description": null, "readme": null, "manifest_path": "Cargo.toml", "publish": null,
            "features": {}, "targets": [],
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn packages_against_rules() {
        let rules: Rules = toml::from_str(
            r#"
            [licenses]
            allow = ["MIT"]
            exceptions = [{ crate = "odd", allow = ["Zlib"] }]
            [bans]
            deny = [{ crate = "openssl" }]
            [sources]
            allow-registry = ["https://example.org/index"]
            "#,
        )
        .unwrap();
        let from = Some("registry+https://example.org/index");
        assert_eq!(fault(&rules, &package("good", Some("MIT"), from)), None);
        assert_eq!(fault(&rules, &package("ours", Some("MIT"), None)), None);
        assert_eq!(fault(&rules, &package("odd", Some("Zlib"), from)), None);
        for bad in [
            package("zlib", Some("Zlib"), from),
            package("silent", None, from),
            package("openssl", Some("MIT"), from),
            package("elsewhere", Some("MIT"), Some("registry+https://example.com/index")),
            package("fork", Some("MIT"), Some("git+https://example.org/index")),
        ] {
            assert!(fault(&rules, &bad).is_some(), "{}", bad.name);
        }
    }
}
