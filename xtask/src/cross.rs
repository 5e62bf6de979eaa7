//! `cargo xtask cross`: compiles the published crates for other systems and processors, and runs their tests
//! in emulators.

use crate::project;
use crate::steps::{Outcome, Steps};
use crate::tools;
use anyhow::Result;
use cargo_metadata::camino::Utf8Path;
use xshell::{Shell, cmd};

/// A system for which the crates are checked, and the tools that run its programs here.
struct Foreign {
    target: &'static str,
    /// True if a sample includes the system: a sample has one of each kind of system and of processor.
    sample: bool,
    runs_by: Option<RunsBy>,
}

/// The tools of Debian that link and run programs of another system.
#[derive(Clone, Copy)]
struct RunsBy {
    linker: &'static str,
    /// The emulator; `None` if programs run directly.
    emulator: Option<&'static str>,
    /// The names of Debian's packages.
    packages: &'static str,
}

const FOREIGN: [Foreign; 5] = [
    Foreign {
        target: "x86_64-pc-windows-gnu",
        sample: true,
        runs_by: Some(RunsBy {
            linker: "x86_64-w64-mingw32-gcc",
            emulator: Some("wine"),
            packages: "gcc-mingw-w64-x86-64 wine64 wine",
        }),
    },
    Foreign { target: "aarch64-apple-darwin", sample: true, runs_by: None },
    Foreign {
        target: "aarch64-unknown-linux-gnu",
        sample: false,
        runs_by: Some(RunsBy {
            linker: "aarch64-linux-gnu-gcc",
            emulator: Some("qemu-aarch64"),
            packages: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user",
        }),
    },
    Foreign { target: "aarch64-unknown-linux-musl", sample: true, runs_by: None },
    Foreign {
        target: "x86_64-unknown-linux-musl",
        sample: false,
        runs_by: Some(RunsBy { linker: "cc", emulator: None, packages: "gcc" }),
    },
];

/// The packages whose tests are run: the host backend and the array on it, without tests that measure or
/// need many cores.
const RUN: [&str; 4] = ["vmarray-backend-host", "vmarray-store", "vmarray-engine", "vmarray"];

/// The crate whose features build C code, which needs a compiler that is missing here: it is checked without
/// these features.
const BUILDS_C: &str = "vmarray-formats";

/// Source of the function of `bcryptprimitives.dll` that Rust's standard library calls, and Wine 8 lacks.
const PROCESS_PRNG: &str = "#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE to, SIZE_T bytes) { return RtlGenRandom(to, bytes); }
";

/// Compiles for other systems and processors. Takes some minutes; with `--run`, half an hour.
#[derive(clap::Args)]
pub struct Args {
    /// Also runs the tests of the host backend and the array on it, under Wine and qemu.
    #[arg(long)]
    run: bool,
    /// Checks only these targets.
    #[arg(long, value_name = "TARGET")]
    only: Vec<String>,
    /// Checks only one system and one processor of each kind.
    #[arg(long, conflicts_with_all = ["run", "only"])]
    sample: bool,
}

pub fn run(args: Args) -> Result<()> {
    let (sh, mut steps) = (project::shell()?, Steps::new());
    if args.sample {
        steps.run("cross", || sample(&sh));
        return steps.finish();
    }
    let is_wanted = |target: &str| args.only.is_empty() || args.only.iter().any(|only| only == target);
    for foreign in FOREIGN.iter().filter(|foreign| is_wanted(foreign.target)) {
        steps.run(foreign.target, || check(&sh, foreign.target, "clippy"));
        if args.run {
            steps.run("  its tests", || test(&sh, foreign));
        }
    }
    steps.finish()
}

/// Runs a sample of `cargo xtask cross`: systems that differ in more than the C library.
fn sample(sh: &Shell) -> Result<Outcome> {
    let (mut done, mut left_out) = (Vec::new(), Vec::new());
    for foreign in FOREIGN.iter().filter(|foreign| foreign.sample) {
        match check(sh, foreign.target, "check")? {
            Outcome::Passed(_) => done.push(foreign.target),
            Outcome::Skipped(reason) => left_out.push(format!("{}: {reason}", foreign.target)),
            failed => return Ok(failed),
        }
    }
    Ok(if left_out.is_empty() {
        Outcome::Passed(done.join(", "))
    } else {
        Outcome::Skipped(left_out.join(", "))
    })
}

/// Runs a command of cargo on the crates, all features on except the ones that [build C](BUILDS_C).
/// Warnings are errors.
fn check(sh: &Shell, target: &str, command: &str) -> Result<Outcome> {
    if let Some(reason) = missing(sh, target) {
        return Ok(Outcome::Skipped(reason));
    }
    let metadata = project::members()?;
    let published = project::published(&metadata);
    let (with_c, plain): (Vec<&str>, Vec<&str>) =
        published.iter().map(|package| package.name.as_str()).partition(|name| *name == BUILDS_C);
    let folder = metadata.target_directory.join("cross");
    let deny: &[&str] = if command == "clippy" { &["--", "-D", "warnings"] } else { &[] };
    for (packages, features) in [(plain, "--all-features"), (with_c, "--no-default-features")] {
        let packages = packages.into_iter().flat_map(|name| ["-p", name]);
        cmd!(
            sh,
            "cargo {command} {packages...} {features} --target {target} --target-dir {folder} {deny...}"
        )
        .run()?;
    }
    Ok(Outcome::passed())
}

fn test(sh: &Shell, foreign: &Foreign) -> Result<Outcome> {
    let Some(RunsBy { linker, emulator, packages }) = foreign.runs_by else {
        return Ok(Outcome::Skipped("nothing here runs its programs".into()));
    };
    for program in [Some(linker), emulator].into_iter().flatten() {
        if tools::find(program).is_none() {
            return Ok(Outcome::Skipped(format!("no {program}: apt-get install {packages}")));
        }
    }
    let target = foreign.target;
    let name = target.to_uppercase().replace('-', "_");
    let folder = project::members()?.target_directory.join("cross");
    let _linker = sh.push_env(format!("CARGO_TARGET_{name}_LINKER"), linker);
    let _compiler = sh.push_env(format!("CC_{}", target.replace('-', "_")), linker);
    let _runner = emulator.map(|emulator| sh.push_env(format!("CARGO_TARGET_{name}_RUNNER"), emulator));
    let _libraries = sh.push_env("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu");
    let _prefix = sh.push_env("WINEPREFIX", folder.join("wine"));
    let _quiet = sh.push_env("WINEDEBUG", "-all");
    let _random = emulator.filter(|emulator| *emulator == "wine").map(|_| {
        random_numbers(sh, linker, &folder.join("dll"))?;
        anyhow::Ok(sh.push_env("WINEPATH", folder.join("dll")))
    });
    let _random = _random.transpose()?;
    let _cases = sh.push_env("PROPTEST_CASES", "8");
    for package in RUN {
        cmd!(
            sh,
            "cargo test -p {package} --no-default-features --lib --target {target} --target-dir {folder}"
        )
        .args((package == "vmarray").then_some(["--features", "host"]).into_iter().flatten())
        .run()?;
    }
    Ok(Outcome::Passed(format!("unit tests of {}", RUN.join(" and "))))
}

/// Builds the library that seeds Rust's hash maps, which Windows has and Wine 8 lacks.
fn random_numbers(sh: &Shell, compiler: &str, folder: &Utf8Path) -> Result<()> {
    sh.create_dir(folder)?;
    let (source, library) = (folder.join("random.c"), folder.join("bcryptprimitives.dll"));
    sh.write_file(&source, PROCESS_PRNG)?;
    Ok(cmd!(sh, "{compiler} -shared -O1 -o {library} {source} -ladvapi32").run()?)
}

/// Returns the reason why the compiler cannot build for a target, if it cannot.
fn missing(sh: &Shell, target: &str) -> Option<String> {
    if tools::find("rustup").is_none() {
        return Some("no rustup to add the target with".into());
    }
    let added = cmd!(sh, "rustup target add {target}").quiet().ignore_stderr().run();
    added.is_err().then(|| "rustup could not add the target".into())
}
