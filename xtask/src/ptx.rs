//! `cargo xtask ptx`: compiles the CUDA kernels to PTX text that every supported driver accepts, and packs
//! the PTX texts of a folder into one file. The command needs only clang, no CUDA toolkit.

use crate::project;
use crate::steps::Outcome;
use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// The only compiler version whose output is checked in: another version writes other bytes.
const CLANG: &str = "clang-15";
/// The folders of kernels, and their target GPUs: kernels for sorting need independent thread scheduling
/// (sm_70).
const FOLDERS: [(&str, &str); 2] =
    [("backend-cuda/kernels", "sm_50"), ("vmarray/src/ops/sort/onesweep", "sm_70")];

/// The file with the packed PTX texts of a folder; see `PackedTexts` in vmarray-support.
const PACKED: &str = "ptx.zlib";
/// The zlib level of compression, from 0 to 10.
const LEVEL: u8 = 10;

/// Compiles the CUDA kernels to PTX for sm_50 or sm_70, which the driver can compile for any later GPU.
#[derive(clap::Args)]
pub struct Args {
    /// Changes nothing: compiles, compares byte by byte, and fails if the texts differ.
    #[arg(long)]
    check: bool,
    /// Writes the packed texts as files to this folder, and compiles nothing.
    #[arg(long, value_name = "FOLDER", conflicts_with = "check")]
    texts: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<()> {
    let sh = project::shell()?;
    if let Some(to) = args.texts {
        return write_texts(&sh, &std::path::absolute(to)?);
    }
    if tools::find(CLANG).is_none() {
        bail!("{CLANG} is missing (on Debian 12: apt-get install clang-15; pocl-opencl-icd brings it too)");
    }
    compile(&sh, args.check)?;
    Ok(())
}

/// Checks that the stored PTX matches the CUDA sources; skips the check if the compiler is missing.
pub fn check(sh: &Shell) -> Result<Outcome> {
    if tools::find(CLANG).is_none() {
        return Ok(Outcome::Skipped(format!("no {CLANG}")));
    }
    Ok(Outcome::Passed(format!("{} texts", compile(sh, true)?)))
}

/// Compiles all sources, and writes the files of PTX texts; with `only_compare`, fails on a difference
/// instead. Returns the number of texts.
fn compile(sh: &Shell, only_compare: bool) -> Result<usize> {
    let (mut stale, mut made) = (Vec::new(), 0);
    let shim = project::root().join("backend-cuda/kernels/shim.h");
    for (folder, card) in FOLDERS {
        // Use relative names, from inside the folder, so that no path of this machine gets into the text.
        let _folder = sh.push_dir(folder);
        let stored = unpacked(sh).unwrap_or_default();
        let mut texts = BTreeMap::new();
        for source in sources(sh)? {
            let target = ["--cuda-device-only".into(), format!("--cuda-gpu-arch={card}")];
            let plain = ["-std=c++17", "-nocudainc", "-nocudalib", "-S", "-O3"];
            let compile = cmd!(sh, "{CLANG} -x cuda {target...} {plain...} -include {shim} -o - {source}.cu");
            for (kernel, text) in kernels(&compile.quiet().read()?) {
                texts.insert(format!("{source}/{kernel}"), text);
            }
        }
        ensure!(!texts.is_empty(), "no *.cu in {folder}");
        made += texts.len();
        let names = texts.keys().chain(stored.keys()).filter(|name| texts.get(*name) != stored.get(*name));
        let names: BTreeSet<_> = names.collect();
        if !only_compare && !names.is_empty() {
            sh.write_file(PACKED, packed(&texts))?;
        }
        stale.extend(names.into_iter().map(|name| format!("{folder}/{name}")));
    }
    if only_compare && !stale.is_empty() {
        bail!("not up to date with the sources: {}; run `cargo xtask ptx`", stale.join(", "));
    }
    eprintln!("{made} texts, {} of them changed {}", stale.len(), stale.join(", "));
    Ok(made)
}

/// Writes all packed texts as files.
fn write_texts(sh: &Shell, to: &Path) -> Result<()> {
    for (folder, _) in FOLDERS {
        let _folder = sh.push_dir(folder);
        for (name, text) in unpacked(sh)? {
            sh.write_file(to.join(format!("{name}.ptx")), text)?;
        }
    }
    Ok(())
}

/// Splits a PTX module: returns a text for each kernel, with all declarations of the module. So the driver
/// compiles only kernels that are used.
fn kernels(module: &str) -> Vec<(String, String)> {
    let mut declarations = String::new();
    let mut kernels: Vec<(String, String)> = Vec::new();
    let mut is_inside = false;
    for line in module.lines() {
        if let Some(rest) = line.strip_prefix(".visible .entry ") {
            let name = rest.trim_end_matches('(').to_owned();
            kernels.push((name, String::new()));
            is_inside = true;
        }
        match kernels.last_mut() {
            Some((_, kernel)) if is_inside => *kernel += &format!("{line}\n"),
            // Leave out comments, because comments may name kernels that are not in this kernel's text.
            _ if !line.trim_start().starts_with("//") => declarations += &format!("{line}\n"),
            _ => {}
        }
        // A kernel ends with a brace in the first column.
        is_inside &= line != "}";
    }
    kernels.into_iter().map(|(name, kernel)| (name, declarations.clone() + &kernel)).collect()
}

/// Packs texts into the contents of a file.
fn packed(texts: &BTreeMap<String, String>) -> Vec<u8> {
    let packed = texts.values().map(|text| compress_to_vec_zlib(text.as_bytes(), LEVEL)).collect::<Vec<_>>();
    let lines = texts.keys().zip(&packed).map(|(name, packed)| format!("{name} {}\n", packed.len()));
    [(lines.collect::<String>() + "\n").into_bytes(), packed.concat()].concat()
}

/// Returns the packed texts of the current folder.
fn unpacked(sh: &Shell) -> Result<BTreeMap<String, String>> {
    let file = sh.read_binary_file(PACKED)?;
    let end = file
        .windows(2)
        .position(|two| two == b"\n\n")
        .with_context(|| format!("{PACKED} has no index; run `cargo xtask ptx`"))?;
    let mut rest = &file[end + 2..];
    let text = |line: &str| {
        let (name, bytes) = line.split_once(' ')?;
        let packed;
        (packed, rest) = rest.split_at_checked(bytes.parse().ok()?)?;
        Some((name.to_owned(), String::from_utf8(decompress_to_vec_zlib(packed).ok()?).ok()?))
    };
    let texts = std::str::from_utf8(&file[..end])?.lines().map(text).collect::<Option<_>>();
    texts.with_context(|| format!("a text in {PACKED} is damaged; run `cargo xtask ptx`"))
}

/// Returns the names of the CUDA sources in the current folder, without their ending.
fn sources(sh: &Shell) -> Result<Vec<String>> {
    let files = sh.read_dir(".")?;
    let sources = files.iter().filter(|file| file.extension().is_some_and(|found| found == "cu"));
    Ok(sources.filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned())).collect())
}
