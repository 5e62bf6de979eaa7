//! The demo of the library: a genome store, a Mandelbrot image, and an image that kernels filter. Each job's
//! array is larger than its cache.

pub mod devices;
mod filter;
mod genome;
mod image;
mod jobs;
mod kept;
mod letters;
mod mandelbrot;
mod motif;
mod pack;
mod report;
mod store;
mod strain;
mod verify;

use anyhow::{Context, Result, ensure};
use indicatif::HumanBytes;
use std::path::{Path, PathBuf};

/// Runs the jobs of the demo: the genome store, the Mandelbrot picture, and the filtered image.
#[derive(clap::Args, Debug)]
pub struct DemoArgs {
    /// A FASTA file, plain or compressed with gzip, to add to the store. Default: the first genome of the
    /// store; the first run adds Escherichia coli 536 from the folder `data`.
    #[arg(long, value_name = "FILE")]
    pub fasta: Option<PathBuf>,
    /// Devices to use, as a list: cuda, opencl, host, gpu, cpu, all, cuda:0, or part of a name. Default:
    /// every GPU, else host RAM.
    #[arg(long, value_name = "LIST")]
    pub devices: Option<String>,
    /// Folder for the images and the genome store (the file `genomes`, which later runs open). Default:
    /// target/demo in the workspace.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Number of threads that use the array. Default: one for each core.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Size of the genome store, which the demo fills with strains (mutated copies) of the genome.
    #[arg(long, value_name = "MIB", default_value_t = 128)]
    pub store_mib: u64,
    /// The number of random subsequences to look up.
    #[arg(long, value_name = "N", default_value_t = 400_000)]
    pub lookups: usize,
    /// The motif to search, on both strands: 15 to 32 bases. Default: the primer 27F, in the 16S ribosomal
    /// RNA of bacteria.
    #[arg(long, value_name = "BASES", default_value = "AGAGTTTGATCATGGCTCAG")]
    pub motif: String,
    /// The number of pixels along a side of the picture.
    #[arg(long, value_name = "PIXELS", default_value_t = 4096)]
    pub side: u32,
}

/// Prints all devices, and for each whether arrays use it, and why.
#[derive(clap::Args, Debug)]
pub struct DevicesArgs {
    /// List of devices, as in `demo --devices`. The command marks the devices that an array would use.
    #[arg(long, value_name = "LIST")]
    pub devices: Option<String>,
}

/// Runs `cargo xtask demo`.
pub fn run(args: DemoArgs) -> Result<()> {
    let root = root();
    let default = root.join("xtask/demo/data/NC_008253.fna.gz");
    let out = args.out.unwrap_or_else(|| root.join("target/demo"));
    let side = args.side;
    ensure!(args.threads != Some(0), "--threads must be at least 1");
    ensure!(
        (1..=1 << 15).contains(&side),
        "a picture of {side} by {side} pixels is not supported; use 1 to 32768 pixels a side"
    );
    let motif = motif::Motif::new(&args.motif.to_ascii_uppercase())?;
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let devices = devices::choose(args.devices.as_deref())?;
    let bytes_max = args
        .store_mib
        .checked_mul(1 << 20)
        .context("the size of the store in bytes overflows; use a smaller `--store-mib`")?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads.unwrap_or(0)).build()?;
    pool.install(|| -> Result<()> {
        let bytes_max = usize::try_from(bytes_max)?;
        let source =
            jobs::Source { fasta: args.fasta.as_deref(), default: &default, kept: &out.join("genomes") };
        jobs::genome_store(&source, bytes_max, args.lookups, &motif, &devices)?;
        jobs::mandelbrot(side as usize, &out.join("mandelbrot.png"), &devices)?;
        // Filter an image with a quarter of the pixels, because each pixel takes hundreds of steps. The
        // median filter needs at least 16 pixels along a side.
        jobs::filtered(side.div_ceil(2).max(16) as usize, &out.join("filtered.png"), &devices)
    })?;
    if let Some(peak) = report::peak_ram() {
        let host = devices.iter().any(|device| devices::is_host(device));
        let note = if host { ", the memory of the devices included, since they are the host's" } else { "" };
        println!("RAM: at most {}{note}", HumanBytes(peak));
    }
    if is_light_build() {
        println!("optimised less than `release`; with full rates: cargo run --release -p demo -- demo");
    }
    Ok(())
}

/// True if cargo has built this program with the profile `light`: the program's folder has this name.
fn is_light_build() -> bool {
    let program = std::env::current_exe().unwrap_or_default();
    program.parent().and_then(Path::file_name).is_some_and(|folder| folder == "light")
}

/// The folder of the workspace's `Cargo.toml`.
fn root() -> PathBuf {
    // Prefer `CARGO_MANIFEST_DIR` at run time to its value at build time: the checkout may have moved.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&folder).ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default()
}
