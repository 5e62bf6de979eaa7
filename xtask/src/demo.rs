//! The main job: a genome store, a Mandelbrot picture, and an image that kernels filter, each in an array
//! larger than its cache.

pub mod devices;
mod filter;
mod genome;
mod jobs;
mod kept;
mod letters;
pub mod mandelbrot;
mod motif;
mod pack;
mod picture;
mod report;
mod store;
mod strain;
mod verify;

use crate::arrays::DemoArgs;
use anyhow::{Context, Result, ensure};
use indicatif::HumanBytes;

/// Runs `demo`.
pub fn run(args: DemoArgs) -> Result<()> {
    let root = crate::project::root();
    let default = root.join("xtask/data/NC_008253.fna.gz");
    let out = args.out.unwrap_or_else(|| root.join("target/demo"));
    let side = args.side;
    ensure!(args.threads != Some(0), "no thread is too few");
    ensure!(
        (1..=1 << 15).contains(&side),
        "a picture of {side} by {side} pixels is not possible: 1 to 32768 a side"
    );
    let motif = motif::Motif::new(&args.motif.to_ascii_uppercase())?;
    std::fs::create_dir_all(&out).with_context(|| format!("{} cannot be made", out.display()))?;
    let devices = devices::choose(args.devices.as_deref())?;
    let bytes_max = args.store_mib.checked_mul(1 << 20).context("the store is too large to be counted")?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads.unwrap_or(0)).build()?;
    pool.install(|| -> Result<()> {
        let bytes_max = usize::try_from(bytes_max)?;
        let source =
            jobs::Source { fasta: args.fasta.as_deref(), default: &default, kept: &out.join("genomes") };
        jobs::genome_store(&source, bytes_max, args.lookups, &motif, &devices)?;
        jobs::mandelbrot(side, &out.join("mandelbrot.png"), &devices)?;
        // A quarter of the pixels, each of which takes hundreds of steps; and as many as a median needs.
        jobs::filtered(side.div_ceil(2).max(16) as usize, &out.join("filtered.png"), &devices)
    })?;
    if let Some(peak) = report::peak_ram() {
        let host = devices.iter().any(|device| devices::is_host(device));
        let note = if host { ", the memory of the devices included, since they are the host's" } else { "" };
        println!("RAM: at most {}{note}", HumanBytes(peak));
    }
    Ok(())
}
