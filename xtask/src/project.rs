//! Where the workspace lies and what is in it, from `cargo metadata`.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// The folder of the workspace's `Cargo.toml`.
pub fn root() -> PathBuf {
    // At run time cargo names the folder, so that a moved checkout still works; at build time it did so too.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&folder).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// A shell whose commands run in the root of the workspace.
pub fn shell() -> Result<Shell> {
    let sh = Shell::new()?;
    sh.change_dir(root());
    Ok(sh)
}

/// The part of `cargo metadata` that is used here.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    pub packages: Vec<Package>,
    pub workspace_members: Vec<String>,
    pub target_directory: PathBuf,
}

/// One package, of the workspace or a dependency.
#[derive(Debug, Deserialize)]
pub struct Package {
    pub id: String,
    pub name: String,
    pub version: String,
    pub license: Option<String>,
    pub source: Option<String>,
    pub description: Option<String>,
    pub readme: Option<PathBuf>,
    pub manifest_path: PathBuf,
    /// Registries it may be published to; an empty list means none, absence means any.
    pub publish: Option<Vec<String>>,
    pub features: BTreeMap<String, Vec<String>>,
    pub targets: Vec<Target>,
}

/// A library, test, example, benchmark or binary of a package.
#[derive(Debug, Deserialize)]
pub struct Target {
    pub name: String,
    pub kind: Vec<String>,
}

impl Metadata {
    /// Everything in the graph, dependencies included. Fails when `Cargo.lock` would have to change.
    pub fn locked(sh: &Shell) -> Result<Self> {
        parse(&cmd!(sh, "cargo metadata --format-version 1 --locked").quiet().read()?)
    }

    /// The members of the workspace only.
    pub fn members(sh: &Shell) -> Result<Self> {
        parse(&cmd!(sh, "cargo metadata --format-version 1 --no-deps").quiet().read()?)
    }

    /// Packages that belong to the workspace.
    pub fn workspace(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }
}

impl Package {
    /// Whether it is meant for a registry.
    pub fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }

    /// The folder of its manifest.
    pub fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("."))
    }
}

fn parse(json: &str) -> Result<Metadata> {
    serde_json::from_str(json).context("`cargo metadata` answered in an unknown form")
}
