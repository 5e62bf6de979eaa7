//! Finds external tools, such as Miri, that commands start, and reports a missing tool.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// Returns the full path of a program if `PATH` has a folder that contains it.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let name = format!("{program}{}", std::env::consts::EXE_SUFFIX);
    std::env::split_paths(&path).map(|folder| folder.join(&name)).find(|file| file.is_file())
}

/// Returns true if `cargo` has the command, such as `nextest`, or `+nightly miri` of another toolchain.
pub fn has(sh: &Shell, command: &[&str]) -> bool {
    cmd!(sh, "cargo {command...} --version").quiet().ignore_stdout().ignore_stderr().run().is_ok()
}

/// Ensures that a command of cargo, such as `nextest`, is installed. Builds it if necessary, which takes some
/// minutes.
pub fn need(sh: &Shell, command: &str) -> Result<()> {
    if has(sh, &[command]) {
        return Ok(());
    }
    let name = format!("cargo-{command}");
    eprintln!("{name} is missing; `cargo install {name} --locked` builds it once, in some minutes");
    cmd!(sh, "cargo install {name} --locked").run().with_context(|| format!("{name} could not be installed"))
}

/// Ensures that `cargo +nightly miri` exists, and installs it if needed. The error lists the attempts.
pub fn miri(sh: &Shell) -> Result<(), &'static str> {
    if has(sh, &["+nightly", "miri"]) {
        return Ok(());
    }
    if find("rustup").is_none() {
        return Err("rustup is missing, but is needed to install Miri");
    }
    let nightly = cmd!(sh, "rustup toolchain install nightly --profile minimal").run().is_ok();
    let _ = nightly && cmd!(sh, "rustup component add miri rust-src --toolchain nightly").run().is_ok();
    if has(sh, &["+nightly", "miri"]) { Ok(()) } else { Err("rustup could not install Miri for nightly") }
}

/// Returns true if the toolchain in use has AddressSanitizer's run-time library, as toolchains of rustup
/// do.
pub fn has_address_sanitizer(sh: &Shell) -> Result<bool> {
    let sysroot = cmd!(sh, "rustc --print sysroot").quiet().read()?;
    let folder = Path::new(&sysroot).join("lib/rustlib").join(SANITIZER_TARGET).join("lib");
    Ok(folder.read_dir().is_ok_and(|files| {
        files.flatten().any(|file| file.file_name().to_string_lossy().ends_with("_rt.asan.a"))
    }))
}

/// The target for builds with the sanitizer. With an explicit target, cargo builds procedural macros without
/// the sanitizer.
pub const SANITIZER_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Describes the registered OpenCL drivers: the names of their files, or the reason why there are none.
pub fn opencl() -> Result<String, String> {
    let folder = std::env::var_os("OCL_ICD_VENDORS")
        .map_or_else(|| PathBuf::from("/etc/OpenCL/vendors"), PathBuf::from);
    let mut drivers: Vec<String> = folder
        .read_dir()
        .map(|files| files.flatten().map(|file| file.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    drivers.retain(|name| name.ends_with(".icd"));
    drivers.sort();
    if drivers.is_empty() {
        return Err(format!(
            "no OpenCL driver in {} (on Debian: apt-get install pocl-opencl-icd)",
            folder.display()
        ));
    }
    Ok(drivers.join(", "))
}
