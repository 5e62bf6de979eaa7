//! The commands of a contributor, `cargo xtask …`, with one file per command. Continuous integration runs the
//! same commands.

mod api;
mod arrays;
mod bench;
mod bundle;
mod ci;
#[cfg(feature = "array")]
mod compare;
mod cross;
mod damage;
mod examples;
mod features;
mod formats;
mod fuzz;
#[cfg(feature = "array")]
mod gate;
mod kernels;
#[cfg(feature = "array")]
mod kills;
mod miri;
mod misuse;
mod mutants;
mod nightly;
mod package;
mod project;
mod ptx;
mod python;
mod resume;
mod sanitizer;
#[cfg(feature = "array")]
mod soak;
mod steps;
mod test_gpu;
mod test_host;
mod tidy;
mod tools;
#[cfg(feature = "array")]
mod turns;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use steps::{Outcome, Steps};
use xshell::Shell;

/// Builds, checks, tests and shows vmarray.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the demo on real input: a genome store and two images, each larger than its cache and verified.
    Demo,
    /// Lists the devices that an array could use on this machine.
    Devices,
    /// Runs every test that needs no GPU.
    TestHost(test_host::Args),
    /// Runs every test, the stress tests included, on a machine with GPUs. Fails without a GPU.
    TestGpu(test_gpu::Args),
    /// Checks elements that threads and tasks access at once for a long time, with faults, on every device.
    Soak(arrays::SoakArgs),
    /// Kills a program that writes to an array in files, and checks the files.
    Kills(arrays::KillsArgs),
    /// Damages stored arrays in memory, in one to three places, and checks that no wrong value is read.
    Damage(damage::Args),
    /// Runs the benchmarks.
    Bench(arrays::BenchArgs),
    /// Compares two builds of the benchmarks, which run alternately.
    Compare(arrays::CompareArgs),
    /// Checks if a change made a workload of a fixed list slower, by two builds that run alternately.
    Gate(arrays::GateArgs),
    /// Makes BENCHMARKS.md and its plots from the records in docs/benchmarks.
    Report,
    /// Counts the instructions of accesses to cached pages. Fails if they exceed the known counts.
    Hits,
    /// Runs the checks that block a change. Ends with a table of the steps, their results and their times.
    Ci,
    /// Runs all checks in full; a later call skips the checks that have passed.
    Nightly(nightly::Args),
    /// Runs tests in Miri, an interpreter that finds undefined behaviour, in some minutes. Installs the
    /// nightly toolchain if needed.
    Miri(SampleArgs),
    /// Runs the tests under AddressSanitizer: half an hour on two cores, some minutes for a sample.
    Sanitize(SampleArgs),
    /// Builds the published crates with the combinations of features that a dependant may select, in some
    /// minutes. A sample has two: no feature, and the default ones.
    Features(SampleArgs),
    /// Compiles the CUDA kernels to the checked-in PTX.
    Ptx(ptx::Args),
    /// Checks that every public item has an example in its documentation, and that docs/api lists the public
    /// items.
    Examples(examples::Args),
    /// Checks the published crates for other systems and processors.
    Cross(cross::Args),
    /// Feeds random input to expression programs, cache files, file devices and device filters.
    Fuzz(fuzz::Args),
    /// Changes the engine's code in small ways, and checks that its tests fail.
    Mutants(mutants::Args),
    /// Runs random kernels as native code and in the interpreter, and compares the results.
    Kernels(kernels::Args),
    /// Reads and writes random files of vmarray-formats with NumPy, zarr-python and xarray, and stores on
    /// two servers that speak S3. Installs the Python packages to the target folder.
    Formats(formats::Args),
    /// Builds the Python package as a wheel, installs it to a fresh environment, and tests it there.
    /// Installs its tools to the target folder.
    Python(python::Args),
    /// Checks the compiler's messages about programs that must not compile.
    Misuse,
    /// Checks rules of the source text that no compiler checks.
    Tidy(tidy::Args),
    /// Checks licences, sources and bans of all dependencies by cargo-deny, which reads deny.toml.
    Supply,
    /// Packs the published crates as for a registry, builds the packages, and checks the crates with the
    /// oldest Rust that they support. Publishes nothing. A sample packs and does not build.
    Package(SampleArgs),
    /// Builds dist/bundle: stripped tests, benchmarks and examples for machines that have GPUs but no Rust.
    Bundle(bundle::Args),
}

/// The options of commands of which `ci` runs a sample.
#[derive(clap::Args)]
struct SampleArgs {
    /// Runs only the sample for continuous integration.
    #[arg(long)]
    sample: bool,
}

/// Runs a check that is a command of its own.
fn alone(check: fn(&Shell) -> Result<Outcome>) -> Result<()> {
    check(&project::shell()?)?.print();
    Ok(())
}

/// Runs a check, or a sample of it, and prints its result and its time.
fn step(name: &'static str, args: SampleArgs, check: fn(&Shell, bool) -> Result<Outcome>) -> Result<()> {
    let (sh, mut steps) = (project::shell()?, Steps::new());
    steps.run(name, || check(&sh, args.sample));
    steps.finish()
}

/// Builds the instruction counter of hits, optimised, in its own folder, and runs it.
fn hits(sh: &Shell, _: bool) -> Result<Outcome> {
    xshell::cmd!(sh, "cargo run --profile hits --package hits --target-dir target/hits --quiet").run()?;
    Ok(Outcome::passed())
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo | Command::Devices => return launcher::run(&launcher::DEMO),
        #[cfg(feature = "array")]
        Command::Soak(args) => soak::run(args),
        #[cfg(feature = "array")]
        Command::Kills(args) => kills::run(args),
        #[cfg(feature = "array")]
        Command::Compare(args) => compare::run(args),
        #[cfg(feature = "array")]
        Command::Gate(args) => gate::run(&args),
        #[cfg(feature = "array")]
        Command::Bench(args) => bench::session::run(args),
        #[cfg(not(feature = "array"))]
        Command::Soak(_) | Command::Kills(_) | Command::Compare(_) | Command::Gate(_) | Command::Bench(_) => {
            eprintln!("building xtask, optimised …");
            return launcher::run(&["--release", "--features", "array", "--quiet", "--package", "xtask"]);
        }
        Command::Damage(args) => damage::run(args),
        Command::Hits => step("hits", SampleArgs { sample: false }, hits),
        Command::TestHost(args) => test_host::run(args),
        Command::TestGpu(args) => test_gpu::run(args),
        Command::Report => bench::page::write(),
        Command::Ci => ci::run(),
        Command::Nightly(args) => nightly::run(&args),
        Command::Miri(args) => step("Miri", args, miri::check),
        Command::Sanitize(args) => step("AddressSanitizer", args, sanitizer::check),
        Command::Features(args) => step("features", args, features::check),
        Command::Ptx(args) => ptx::run(args),
        Command::Examples(args) => examples::run(&args),
        Command::Cross(args) => cross::run(args),
        Command::Fuzz(args) => fuzz::run(args),
        Command::Mutants(args) => mutants::run(&args),
        Command::Kernels(args) => kernels::run(&args),
        Command::Python(args) => python::run(&args),
        Command::Formats(args) => formats::run(&args),
        Command::Misuse => alone(misuse::check),
        Command::Tidy(args) => tidy::run(&args),
        Command::Supply => alone(ci::supply),
        Command::Package(args) => package::run(args.sample),
        Command::Bundle(args) => bundle::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
