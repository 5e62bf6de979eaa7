//! `cargo xtask kernels`: generates random kernels, and runs each kernel twice on the host: as a compiled
//! Rust function, and in the interpreter of kernels that are translated for devices.
//!
//! Both runs must return the same bits, except for NaNs, and agree on out-of-bounds accesses.

mod random;

use crate::misuse;
use crate::project;
use crate::steps::Outcome;
use anyhow::{Context, Result, bail};
use xshell::{Shell, cmd};

/// The number of kernels of one source, which the compiler builds at once.
const SOURCE: usize = 100;
/// The number of kernels in continuous integration.
const SAMPLE: usize = 40;

/// Runs random kernels as native code and in the interpreter, and compares the results.
#[derive(clap::Args)]
pub struct Args {
    /// The number of kernels.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    count: usize,
    /// The first kernel's seed; later kernels count up from it.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

pub fn run(args: &Args) -> Result<()> {
    compare(&project::shell()?, args.seed, args.count)?.print();
    Ok(())
}

/// Runs a sample of `cargo xtask kernels`, with few kernels.
pub fn sample(sh: &Shell) -> Result<Outcome> {
    compare(sh, 1, SAMPLE)
}

fn compare(sh: &Shell, seed: u64, count: usize) -> Result<Outcome> {
    let built = cmd!(sh, "cargo build --quiet -p vmarray-kernel --lib --all-features --message-format json")
        .read()?;
    let library = misuse::library(&built, "vmarray_kernel").context("`cargo build` names no library")?;
    let folder = library.rsplit_once(['/', '\\']).context("the library lies in no folder")?.0;
    // The library's dependencies are in the folder `deps`, which is next to the library.
    let dependencies = format!("dependency={folder}/deps");
    let target = project::members()?.target_directory.join("kernels");
    sh.create_dir(&target)?;
    for first in (0..count).step_by(SOURCE) {
        let number = SOURCE.min(count - first);
        let seed = seed + first as u64;
        let (source, program) = (target.join("random.rs"), target.join("random"));
        sh.write_file(&source, random::source(seed, number))?;
        cmd!(sh, "rustc --edition 2024 --crate-name random -A warnings -C debuginfo=0 -o {program} {source}")
            .args(["--extern", &format!("vmarray_kernel={library}"), "-L", &dependencies])
            .quiet()
            .run()
            .with_context(|| format!("kernels from seed {seed} on do not compile: {source}"))?;
        if cmd!(sh, "{program}").quiet().run().is_err() {
            bail!("a compiled kernel and its interpretation give different results: see {source}");
        }
        eprintln!("{} kernels", first + number);
    }
    Ok(Outcome::Passed(format!("{count} kernels")))
}
