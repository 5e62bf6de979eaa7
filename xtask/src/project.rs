//! The project's cargo workspace: its root folder and its packages.

use anyhow::Result;
use cargo_metadata::{Metadata, MetadataCommand, Package};
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// Returns the folder of the workspace's `Cargo.toml`.
pub fn root() -> PathBuf {
    // Prefer `CARGO_MANIFEST_DIR` at run time to its value at build time: the checkout may have moved.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&folder).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Returns a shell whose commands run in the root of the workspace.
pub fn shell() -> Result<Shell> {
    let sh = Shell::new()?;
    sh.change_dir(root());
    Ok(sh)
}

/// Returns the command `cargo metadata`, for further options.
pub fn metadata() -> MetadataCommand {
    let mut command = MetadataCommand::new();
    command.current_dir(root());
    command
}

/// Returns cargo's metadata of the workspace's members, without their dependencies.
pub fn members() -> Result<Metadata> {
    Ok(metadata().no_deps().exec()?)
}

/// Returns the commit of the checkout, with a mark if files have changed since; `None` without a checkout.
pub fn commit() -> Option<String> {
    let sh = shell().ok()?;
    let output = cmd!(sh, "git describe --always --dirty --abbrev=12").quiet().ignore_stderr().read();
    output.ok().filter(|commit| !commit.is_empty())
}

/// Returns the members of the workspace that are published to a registry. In a package's `publish` field, an
/// empty list means that no registry is allowed; without the field, every registry is allowed.
pub fn published(metadata: &Metadata) -> Vec<&Package> {
    let mut packages = metadata.workspace_packages();
    packages.retain(|package| package.publish.as_ref().is_none_or(|registries| !registries.is_empty()));
    packages
}
