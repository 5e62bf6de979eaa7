//! The main job: a genome store and a Mandelbrot picture, each in an array larger than its cache.

mod array;
mod fasta;
mod genome;
mod jobs;
mod letters;
pub mod mandelbrot;
mod motif;
mod pack;
mod picture;
mod report;
mod store;
mod strain;
mod verify;
mod words;

use crate::arrays::DemoArgs;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

pub use array::list as devices;

/// The genome that is shipped with the repository.
pub fn default_genome() -> PathBuf {
    crate::project::root().join("xtask/data/NC_008253.fna.gz")
}

/// Runs `demo`.
pub fn run(args: DemoArgs) -> Result<()> {
    let DemoArgs { fasta, devices, out, threads, store_mib, lookups, motif, side } = args;
    let fasta = fasta.unwrap_or_else(default_genome);
    let out = out.unwrap_or_else(|| crate::project::root().join("target/demo"));
    let threads = match threads {
        Some(0) => bail!("no thread is too few"),
        Some(threads) => threads,
        None => std::thread::available_parallelism()?.get(),
    };
    if !(1..=1 << 15).contains(&side) {
        bail!("a picture of {side} by {side} pixels is not possible: 1 to 32768 a side");
    }
    let motif = motif::Motif::new(&motif.to_ascii_uppercase())?;
    std::fs::create_dir_all(&out).with_context(|| format!("{} cannot be made", out.display()))?;
    let devices = array::choose(devices.as_deref())?;
    let build = |len, cache_bytes| array::DeviceWords::build(&devices, len, cache_bytes);
    let bytes_max = store_mib.checked_mul(1 << 20).context("the store is too large to be counted")?;
    let job = jobs::StoreJob { fasta: &fasta, bytes_max, lookups, motif: &motif, threads, devices: &devices };
    jobs::genome_store(&job, &build)?;
    jobs::mandelbrot(side, Path::new(&out).join("mandelbrot.png").as_path(), threads, &build)?;
    if let Some((_, peak)) = report::ram() {
        let host = devices.iter().any(|device| array::is_host(device));
        let note = if host { ", the memory of the devices included, since they are the host's" } else { "" };
        println!("RAM: at most {}{note}", report::bytes(peak));
    }
    Ok(())
}
