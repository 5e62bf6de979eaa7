//! `cargo xtask ptx`: the CUDA kernels, compiled to text that every driver takes, by plain clang and no
//! toolkit.

use crate::project;
use crate::steps::Outcome;
use crate::tools;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// The one compiler whose output is checked in: another version writes other bytes.
const CLANG: &str = "clang-15";
const FOLDER: &str = "backend-cuda/kernels";

/// Compiles to PTX for sm_50, which the driver translates for any later card.
#[derive(clap::Args)]
pub struct Args {
    /// Changes nothing: compiles, compares byte by byte, and fails where the files differ.
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<()> {
    let sh = project::shell()?;
    if tools::find(CLANG).is_none() {
        bail!("{CLANG} is missing (on Debian 12: apt-get install clang-15; pocl-opencl-icd brings it too)");
    }
    let names = if args.check { compare(&sh)? } else { write(&sh)? };
    eprintln!("{} {}", names.join(", "), if args.check { "are up to date" } else { "written" });
    Ok(())
}

/// The check as a step; skipped where the compiler is missing.
pub fn check(sh: &Shell) -> Result<Outcome> {
    if tools::find(CLANG).is_none() {
        return Ok(Outcome::Skipped(format!("no {CLANG}")));
    }
    Ok(Outcome::Passed(format!("{} files", compare(sh)?.len())))
}

fn write(sh: &Shell) -> Result<Vec<String>> {
    let folder = project::root().join(FOLDER);
    let mut names = Vec::new();
    for source in sources(&folder)? {
        let output = source.with_extension("ptx");
        compile(sh, &source, &output)?;
        names.push(file_name(&output));
    }
    Ok(names)
}

fn compare(sh: &Shell) -> Result<Vec<String>> {
    let folder = project::root().join(FOLDER);
    let fresh = sh.create_temp_dir()?;
    let mut names = Vec::new();
    let mut stale = Vec::new();
    for source in sources(&folder)? {
        let kept = source.with_extension("ptx");
        let name = file_name(&kept);
        let output = fresh.path().join(&name);
        compile(sh, &source, &output)?;
        let same = kept.is_file() && sh.read_binary_file(&kept)? == sh.read_binary_file(&output)?;
        if !same {
            stale.push(name.clone());
        }
        names.push(name);
    }
    for file in with_extension(&folder, "ptx")? {
        let name = file_name(&file);
        if !names.contains(&name) {
            stale.push(format!("{name} (has no source)"));
        }
    }
    if !stale.is_empty() {
        bail!("not what the sources give: {}; run `cargo xtask ptx`", stale.join(", "));
    }
    Ok(names)
}

fn compile(sh: &Shell, source: &Path, output: &Path) -> Result<()> {
    // Relative names, from inside the folder: no path of this machine gets into the text.
    let _folder = sh.push_dir(source.parent().context("a file has a folder")?);
    let (source, target) = (file_name(source), ["--cuda-device-only", "--cuda-gpu-arch=sm_50"]);
    let plain = ["-std=c++17", "-nocudainc", "-nocudalib", "-include", "shim.h", "-S", "-O3"];
    cmd!(sh, "{CLANG} -x cuda {target...} {plain...} -o {output} {source}").quiet().run()?;
    Ok(())
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = with_extension(folder, "cu")?;
    if files.is_empty() {
        bail!("no *.cu in {FOLDER}");
    }
    Ok(files)
}

fn with_extension(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries = folder.read_dir().with_context(|| format!("{FOLDER} cannot be read"))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    files.sort();
    Ok(files)
}

fn file_name(file: &Path) -> String {
    file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
