//! `cargo xtask bundle`: packs all programs and tests into one folder, for a machine with GPUs but without
//! Rust.

use crate::project;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use xshell::cmd;

const FOLDER: &str = "dist/bundle";

/// Builds stripped binaries with the cargo profile `bundle`, and the script `run.sh`, which runs them and
/// stores their logs.
#[derive(clap::Args)]
pub struct Args {
    /// Leaves out the benchmarks, which take longest to build.
    #[arg(long)]
    no_bench: bool,
    /// Packs only these packages. Default: all packages of the workspace.
    #[arg(short, long, value_name = "NAME")]
    package: Vec<String>,
}

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
    // Store the commit now, because a machine that runs the bundle cannot ask git.
    let _commit = sh.push_env("VMARRAY_COMMIT", project::commit().unwrap_or_default());
    let options =
        ["--no-run", "--profile", "bundle", "--all-features", "--message-format=json-render-diagnostics"];
    let mut entries = entries(&cmd!(sh, "cargo test {options...} {packages...}").read()?)?;
    if !args.no_bench {
        entries.extend(self::entries(&cmd!(sh, "cargo bench --benches {options...} {packages...}").read()?)?);
    }
    let xtask = ["--profile", "bundle", "-p", "xtask", "-p", "demo", "--features", "xtask/array"];
    let built = cmd!(sh, "cargo build {xtask...} --message-format=json-render-diagnostics").read()?;
    entries.extend(self::entries(&built)?);
    // The default genome, which the script passes to the demo.
    let genome = "data/NC_008253.fna.gz";
    entries.insert(genome.into(), root.join("xtask/demo").join(genome));
    let mut bytes = 0;
    for (name, file) in &entries {
        let to = folder.join(name);
        sh.create_dir(to.parent().context("the file has no parent folder")?)?;
        bytes += std::fs::copy(file, to).with_context(|| format!("{} cannot be copied", file.display()))?;
        eprintln!("{name}");
    }
    sh.write_file(folder.join("run.sh"), include_str!("bundle/run.sh"))?;
    make_executable(&folder.join("run.sh"))?;
    eprintln!("{} files, {:.1} MiB in {FOLDER}", entries.len(), bytes as f64 / (1 << 20) as f64);
    Ok(())
}

/// Returns the executables in cargo's output, by their paths in the bundle.
fn entries(json: &str) -> Result<BTreeMap<String, PathBuf>> {
    let mut entries = BTreeMap::new();
    for line in json.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo printed an unknown line")?;
        let Some(executable) = message["executable"].as_str() else { continue };
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let package = manifest.parent().and_then(Path::file_name).context(
            "the manifest has no parent \
                folder",
        )?;
        let (package, target) = (package.to_string_lossy(), &message["target"]);
        let name = target["name"].as_str().unwrap_or_default();
        let place = match (target["kind"][0].as_str(), message["profile"]["test"] == true) {
            (Some("example" | "bin"), true) => continue,
            (Some("example"), false) => format!("examples/{name}"),
            (Some("bin"), false) => format!("bin/{name}"),
            (Some("bench"), _) => format!("bench/{package}.{name}"),
            (Some("test"), _) => format!("tests/{package}.{name}"),
            _ => format!("tests/{package}.unit"),
        };
        entries.insert(place, executable.into());
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
            line("bench", "host", true, Some("b")),
            line("example", "first", false, Some("e")),
            line("example", "first", true, Some("et")),
            line("bin", "xtask", false, Some("x")),
            r#"{"reason":"build-finished","success":true}"#.to_string(),
        ]
        .join("\n");
        let wanted = [
            ("bench/backend-host.host", "b"),
            ("bin/xtask", "x"),
            ("examples/first", "e"),
            ("tests/backend-host.conformance", "t"),
            ("tests/backend-host.unit", "u"),
        ];
        let wanted = wanted.map(|(place, executable)| (place.to_string(), PathBuf::from(executable)));
        assert_eq!(entries(&json).unwrap(), BTreeMap::from(wanted));
    }

    #[test]
    fn the_script_is_valid() {
        let sh = xshell::Shell::new().unwrap();
        let script = include_str!("bundle/run.sh");
        if cfg!(unix) {
            cmd!(sh, "sh -n").stdin(script).quiet().run().unwrap();
        }
    }
}
