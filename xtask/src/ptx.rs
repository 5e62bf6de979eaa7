//! `cargo xtask ptx`: compiles the CUDA kernels to PTX text that every driver accepts. It needs only clang,
//! and no CUDA toolkit.

use crate::project;
use crate::steps::Outcome;
use crate::tools;
use anyhow::{Result, bail, ensure};
use std::path::PathBuf;
use xshell::{Shell, cmd};

/// The one compiler whose output is checked in: another version writes other bytes.
const CLANG: &str = "clang-15";
/// The folders of kernels, and their target GPUs: kernels of sorts need warps with independent thread
/// scheduling.
const FOLDERS: [(&str, &str); 2] =
    [("backend-cuda/kernels", "sm_50"), ("vmarray/src/ops/sort/onesweep", "sm_70")];

/// Compiles the CUDA kernels to PTX for sm_50 or sm_70, which the driver can compile for any later GPU.
#[derive(clap::Args)]
pub struct Args {
    /// Changes nothing: compiles, compares byte by byte, and fails if the files differ.
    #[arg(long)]
    check: bool,
}

/// Runs `cargo xtask ptx`.
pub fn run(args: Args) -> Result<()> {
    let sh = project::shell()?;
    if tools::find(CLANG).is_none() {
        bail!("{CLANG} is missing (on Debian 12: apt-get install clang-15; pocl-opencl-icd brings it too)");
    }
    compile(&sh, args.check)?;
    Ok(())
}

/// Checks that the stored PTX files match the CUDA sources; skips the check if the compiler is missing.
pub fn check(sh: &Shell) -> Result<Outcome> {
    if tools::find(CLANG).is_none() {
        return Ok(Outcome::Skipped(format!("no {CLANG}")));
    }
    Ok(Outcome::Passed(format!("{} files", compile(sh, true)?)))
}

/// Compiles all sources, and writes the files that differ from the existing ones; or fails on a
/// difference, if it only compares. Returns the number of files.
fn compile(sh: &Shell, only_compare: bool) -> Result<usize> {
    let (mut stale, mut made) = (Vec::new(), 0);
    let shim = project::root().join("backend-cuda/kernels/shim.h");
    for (folder, card) in FOLDERS {
        // Use relative names, from inside the folder, so that no path of this machine gets into the text.
        let _folder = sh.push_dir(folder);
        let mut names = Vec::new();
        for source in with_extension(sh, "cu")? {
            let target = ["--cuda-device-only".into(), format!("--cuda-gpu-arch={card}")];
            let plain = ["-std=c++17", "-nocudainc", "-nocudalib", "-S", "-O3"];
            let compile = cmd!(sh, "{CLANG} -x cuda {target...} {plain...} -include {shim} -o - {source}");
            let text = compile.quiet().read()? + "\n";
            let name = source.replace(".cu", ".ptx");
            if sh.read_file(&name).ok().as_ref() != Some(&text) {
                if !only_compare {
                    sh.write_file(&name, &text)?;
                }
                stale.push(format!("{folder}/{name}"));
            }
            names.push(name);
        }
        ensure!(!names.is_empty(), "no *.cu in {folder}");
        made += names.len();
        let unknown = with_extension(sh, "ptx")?.into_iter().filter(|name| !names.contains(name));
        stale.extend(unknown.map(|name| format!("{folder}/{name} (has no source)")));
    }
    if only_compare && !stale.is_empty() {
        bail!("not up to date with the sources: {}; run `cargo xtask ptx`", stale.join(", "));
    }
    eprintln!("{made} files, {} of them changed {}", stale.len(), stale.join(", "));
    Ok(made)
}

/// Returns the names of the files in the current folder with this ending.
fn with_extension(sh: &Shell, extension: &str) -> Result<Vec<String>> {
    let mut files = sh.read_dir(".")?;
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    let name = |file: &PathBuf| file.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(files.iter().filter_map(name).collect())
}
