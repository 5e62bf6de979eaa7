//! The options of the commands that run the array or read what it measured, besides `bench`.
//!
//! They are part of xtask only with its feature `array`. Without it they start xtask again, optimised and
//! with it.

use std::path::PathBuf;

/// The fewest values of which an interval between two of them has the median with 95 % confidence.
const ROUNDS_MIN: u64 = 6;

/// Checks arrays under load, on host RAM, a file, simulated devices and all others that are found.
#[derive(clap::Args, Debug)]
pub struct SoakArgs {
    /// Devices to use instead, as a list: cuda, opencl, host, gpu, cpu, all, cuda:0, or part of a name.
    #[arg(long, value_name = "LIST")]
    pub devices: Option<String>,
    /// Element operations, in all.
    #[arg(long, value_name = "N", default_value_t = 20_000_000)]
    pub operations: u64,
    /// Those of one round.
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    pub round: u64,
    /// The first round's seed; later ones count up from it.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Threads of a round. Default: four.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub threads: usize,
    /// A folder for the files of file devices. Default: that for temporary files.
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Only rounds in which devices are lost and rebuilt, of arrays with mirrors or parity over host RAM and
    /// simulations.
    #[arg(long)]
    pub losses: bool,
    /// A file that keeps how far the rounds have come: a later call with the same options goes on there.
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
}

/// Kills a program that writes to an array in files, again and again, and looks what is left.
#[derive(clap::Args, Debug)]
pub struct KillsArgs {
    /// How often, in all.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub count: u64,
    /// The first shape's seed; later ones count up from it.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// A folder for the files. Default: that for temporary files.
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// A file that keeps how many there were: a later call with the same options goes on there.
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
}

/// Prints how much longer NEW takes than OLD: the median ratio and its 95 % confidence interval, beside those
/// of OLD against itself. Rows whose interval is not below 1.03 are marked.
#[derive(clap::Args, Debug)]
pub struct CompareArgs {
    /// An xtask of the commit before, built by `cargo build --release -p xtask --features array`.
    pub old: PathBuf,
    /// The same of this commit.
    pub new: PathBuf,
    /// Runs only workloads whose names begin so. Can be given several times.
    #[arg(long, value_name = "NAME")]
    pub filter: Vec<String>,
    /// How often OLD, NEW, NEW, OLD are run.
    #[arg(long, value_name = "N", default_value_t = ROUNDS_MIN, value_parser = clap::value_parser!(u64).range(ROUNDS_MIN..))]
    pub rounds: u64,
    /// Further options of `bench`. Default: `--quick`.
    #[arg(last = true)]
    pub options: Vec<String>,
}

/// Prints a report of measurements that `bench --json` kept, as Markdown.
#[derive(clap::Args, Debug)]
pub struct ReportArgs {
    /// The measurements.
    pub measured: PathBuf,
    /// Says what is faster and what slower than in these, of an earlier run.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
}

/// The arguments of a command of the demo program, which parses them.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct DemoArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<std::ffi::OsString>,
}

/// Builds the demo program, with cargo's own progress, and runs its command of this name.
pub fn demo(command: &str, args: &DemoArgs) -> anyhow::Result<()> {
    let sh = crate::project::shell()?;
    // The program resolves paths from the folder that the user stands in.
    sh.change_dir(std::env::current_dir()?);
    let manifest = crate::project::root().join("xtask/demo/Cargo.toml");
    let arguments = &args.arguments;
    let run = ["--profile", "quick", "--manifest-path"];
    let status = xshell::cmd!(sh, "cargo run {run...} {manifest} -- {command} {arguments...}").quiet().run();
    if status.is_err() {
        std::process::exit(1); // The command has reported the error.
    }
    Ok(())
}

/// Runs the same command in an optimised xtask that has a feature, with some arguments more.
#[cfg(not(feature = "array"))]
pub fn again(feature: &str, more: &[&str]) -> anyhow::Result<()> {
    let sh = crate::project::shell()?;
    // The shell runs in the root; paths among the arguments are meant from where the user stands.
    sh.change_dir(std::env::current_dir()?);
    let manifest = crate::project::root().join("Cargo.toml");
    // What follows `--` is meant for others, and further options would come behind it.
    let own = std::env::args_os().skip(1).take_while(|argument| argument != "--");
    let arguments: Vec<std::ffi::OsString> = own.chain(more.iter().map(Into::into)).collect();
    let options = ["--release", "--package", "xtask", "--features", feature, "--quiet"];
    eprintln!("building xtask, optimised …");
    let status =
        xshell::cmd!(sh, "cargo run --manifest-path {manifest} {options...} -- {arguments...}").quiet().run();
    if status.is_err() {
        std::process::exit(1); // The command has said why.
    }
    Ok(())
}
