//! Options of the commands of `cargo xtask` that run arrays or read measurements of arrays.
//!
//! The code of these commands is compiled only with xtask's feature `array`. An xtask without this feature
//! builds and starts an optimised xtask that has the feature.

use std::path::PathBuf;

/// Checks arrays under load: on host RAM, a file, simulated devices and the machine's devices.
#[derive(clap::Args, Debug)]
pub struct SoakArgs {
    /// Devices to use, as a list: cuda, opencl, host, gpu, cpu, all, cuda:0, or part of a name. Default:
    /// every kind.
    #[arg(long, value_name = "LIST")]
    pub devices: Option<String>,
    /// The number of element operations, in all.
    #[arg(long, value_name = "N", default_value_t = 20_000_000)]
    pub operations: u64,
    /// The number of operations of one round.
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    pub round: u64,
    /// The seed of the first round; the following rounds use the following seeds.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Threads of a round. Default: four.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub threads: usize,
    /// A folder for the files of file devices. Default: the system's folder for temporary files.
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Runs only rounds on host RAM and simulated devices, in which mirrored arrays lose and rebuild devices,
    /// and other arrays move between devices.
    #[arg(long)]
    pub losses: bool,
    /// A file that stores the progress: a later call with the same options and sources continues there.
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
}

/// Repeatedly kills a program that writes to an array in files, and checks the files.
#[derive(clap::Args, Debug)]
pub struct KillsArgs {
    /// The number of kills, in all.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub count: u64,
    /// The seed of the first array shape; the following shapes use the following seeds.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// A folder for the files. Default: the system's folder for temporary files.
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// A file that stores the progress: a later call with the same options and sources continues there.
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
}

/// Runs workloads, and compares them with limits of the hardware and with other software.
#[derive(clap::Args, Debug)]
pub struct BenchArgs {
    /// Devices to use, as a list: cuda, opencl, host, gpu, cpu, all, cuda:0, or part of a name. Default:
    /// every GPU, else host RAM.
    #[arg(long, value_name = "LIST")]
    pub devices: Option<String>,
    /// Uses only host RAM, no other devices.
    #[arg(long, conflicts_with = "devices")]
    pub host: bool,
    /// Uses small arrays and few repetitions: at most 90 seconds on two cores with host RAM.
    #[arg(long)]
    pub quick: bool,
    /// Stores all results in this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Stores all results as a record in docs/benchmarks, for `cargo xtask report`.
    #[arg(long, conflicts_with = "json")]
    pub record: bool,
    /// Runs only workloads whose names begin with this text. Can be given several times. `list` prints the
    /// families of workloads and the names of other contenders.
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Another program to measure on the workloads of the family `peer`, as a command for the shell. It
    /// prints lines of `name value unit`, one per repetition. In the command, the benchmark replaces
    /// `{threads}`, `{bytes}` (size of arrays) and `{seconds}` (of a repetition).
    #[arg(long, value_name = "COMMAND")]
    pub peer: Option<String>,
    /// Threads that use the array. Default: one per core.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Measures only the array, each time that the parent process, such as `cargo xtask gate`, requests it.
    #[arg(long, conflicts_with_all = ["peer", "json", "record"])]
    pub in_turns: bool,
    /// Builds the arrays with checksums of pages.
    #[arg(long)]
    pub checksums: bool,
    /// Compares only the defaults with other page lengths, numbers of channels (shares of a device) and
    /// read-ahead, set by hand, and with the advice of the devices' profiles.
    #[arg(long, conflicts_with_all = ["only", "peer"])]
    pub tuning: bool,
}

/// Runs the benchmarks of two builds, and prints the ratio of NEW's times to OLD's times: the median and its
/// 95 % confidence interval. Also prints the ratio of OLD to itself. Marks the workloads whose interval is
/// not below 1.03.
#[derive(clap::Args, Debug)]
pub struct CompareArgs {
    /// An xtask of the earlier commit, built by `cargo build --profile quick -p xtask --features array`.
    pub old: PathBuf,
    /// An xtask of this commit, built in the same way.
    pub new: PathBuf,
    /// Runs only workloads whose names begin with this text. Can be given several times.
    #[arg(long, value_name = "NAME")]
    pub filter: Vec<String>,
    /// Further options of `bench`. Default: `--quick`.
    #[arg(last = true)]
    pub options: Vec<String>,
}

/// Runs two builds of the benchmarks alternately, and fails if a workload of a fixed list became slower.
#[derive(clap::Args, Debug)]
pub struct GateArgs {
    /// An xtask of the previous commit, built by `cargo build --profile quick -p xtask --features array`. The
    /// build takes nine minutes of processor time from an empty target folder.
    pub old: PathBuf,
    /// An xtask of this commit, built in the same way.
    pub new: PathBuf,
    /// Also measures the Python package: two Pythons with the package of the previous commit and of this one.
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"])]
    pub python: Vec<PathBuf>,
    /// Devices to use, as for `bench`.
    #[arg(long, value_name = "LIST")]
    pub devices: Option<String>,
    /// A file to which the command writes the result, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
