//! `cargo xtask bundle`: everything that can be run on a machine with GPUs but no Rust, in one folder.

use crate::project;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// Where the bundle lies.
const FOLDER: &str = "dist/bundle";
/// Tests that call cargo, which the other machine does not have.
const NEED_CARGO: &str = "compile_fail";

/// Stripped binaries of the profile `bundle`, and `run.sh` that runs them and keeps their logs.
#[derive(clap::Args)]
pub struct Args {
    /// Leaves out the benchmarks, which take longest to build.
    #[arg(long)]
    no_bench: bool,
    /// Only these packages. Default: all published ones.
    #[arg(short, long, value_name = "NAME")]
    package: Vec<String>,
}

/// A line of cargo's JSON output about something built.
#[derive(Deserialize)]
struct Artifact {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<ArtifactTarget>,
    profile: Option<ArtifactProfile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct ArtifactTarget {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct ArtifactProfile {
    test: bool,
}

/// An executable and where it goes in the bundle.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    folder: &'static str,
    name: String,
    executable: PathBuf,
}

/// Runs the command.
pub fn run(args: Args) -> Result<()> {
    let sh = project::shell()?;
    let root = project::root();
    let folder = root.join(FOLDER);
    sh.remove_path(&folder)?;
    let mut packages: Vec<String> =
        args.package.iter().flat_map(|name| ["-p".to_string(), name.clone()]).collect();
    if packages.is_empty() {
        packages = ["--workspace", "--exclude", "xtask"].map(String::from).to_vec();
    }
    let packages = &packages;
    let options =
        ["--no-run", "--profile", "bundle", "--all-features", "--message-format=json-render-diagnostics"];
    let mut entries = entries(&cmd!(sh, "cargo test {options...} {packages...}").read()?)?;
    if !args.no_bench {
        entries.extend(self::entries(&cmd!(sh, "cargo bench --benches {options...} {packages...}").read()?)?);
    }
    let xtask = ["--profile", "bundle", "-p", "xtask", "--features", "array"];
    let built = cmd!(sh, "cargo build {xtask...} --message-format=json-render-diagnostics").read()?;
    entries.extend(self::entries(&built)?);
    let mut names = BTreeSet::new();
    let mut bytes = 0;
    for Entry { folder: kind, name, executable } in &entries {
        sh.create_dir(folder.join(kind))?;
        bytes += std::fs::copy(executable, folder.join(kind).join(name))
            .with_context(|| format!("{} cannot be copied", executable.display()))?;
        names.insert(format!("{kind}/{name}"));
    }
    bytes += copy_data(&sh, &root, &folder)?;
    sh.write_file(folder.join("run.sh"), include_str!("bundle/run.sh"))?;
    make_executable(&folder.join("run.sh"))?;
    for name in &names {
        eprintln!("{name}");
    }
    eprintln!("{} binaries, {:.1} MiB in {FOLDER}", names.len(), bytes as f64 / (1 << 20) as f64);
    Ok(())
}

/// The default genome, which the demo looks for beside itself.
fn copy_data(sh: &Shell, root: &Path, folder: &Path) -> Result<u64> {
    sh.create_dir(folder.join("data"))?;
    let name = "NC_008253.fna.gz";
    Ok(std::fs::copy(root.join("xtask/data").join(name), folder.join("data").join(name))?)
}

/// The executables among the lines that cargo printed.
fn entries(json: &str) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for line in json.lines().filter(|line| line.starts_with('{')) {
        let artifact: Artifact = serde_json::from_str(line).context("cargo printed an unknown line")?;
        if let (true, Some(manifest), Some(target), Some(profile), Some(executable)) = (
            artifact.reason == "compiler-artifact",
            artifact.manifest_path,
            artifact.target,
            artifact.profile,
            artifact.executable,
        ) {
            let package = manifest.parent().and_then(Path::file_name).context("a package has a folder")?;
            let package = package.to_string_lossy();
            let kind = target.kind.first().map(String::as_str).unwrap_or_default();
            if target.name == NEED_CARGO {
                continue;
            }
            entries.push(match (kind, profile.test) {
                ("bench", _) => {
                    Entry { folder: "bench", name: format!("{package}.{}", target.name), executable }
                }
                ("example", false) => Entry { folder: "examples", name: target.name, executable },
                ("bin", false) => Entry { folder: "bin", name: target.name, executable },
                ("example" | "bin", true) => continue,
                ("test", _) => {
                    Entry { folder: "tests", name: format!("{package}.{}", target.name), executable }
                }
                _ => Entry { folder: "tests", name: format!("{package}.unit"), executable },
            });
        }
    }
    Ok(entries)
}

#[cfg(unix)]
fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_sorted_into_folders() {
        let line = |kind: &str, name: &str, test: bool, executable: Option<&str>| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": "w/backend-host/Cargo.toml",
                "target": { "name": name, "kind": [kind] }, "profile": { "test": test }, "executable": executable,
            })
            .to_string()
        };
        let json = [
            line("lib", "backend_host", false, None),
            line("lib", "backend_host", true, Some("u")),
            line("test", "conformance", true, Some("t")),
            line("test", "compile_fail", true, Some("c")),
            line("bench", "host", true, Some("b")),
            line("example", "first", false, Some("e")),
            line("bin", "xtask", false, Some("x")),
            r#"{"reason":"build-finished","success":true}"#.to_string(),
        ]
        .join("\n");
        let found: Vec<String> =
            entries(&json).unwrap().iter().map(|entry| format!("{}/{}", entry.folder, entry.name)).collect();
        let wanted = [
            "tests/backend-host.unit",
            "tests/backend-host.conformance",
            "bench/backend-host.host",
            "examples/first",
            "bin/xtask",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn the_script_is_valid() {
        let sh = Shell::new().unwrap();
        let script = include_str!("bundle/run.sh");
        if cfg!(unix) {
            cmd!(sh, "sh -n").stdin(script).quiet().run().unwrap();
        }
    }
}
