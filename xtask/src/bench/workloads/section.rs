//! Benchmark workloads in which devices search memory that the program owns, and read it in place.

use crate::bench::measure::{Unit, calls};
use crate::bench::raw::Way;
use crate::bench::results::Role;
use crate::bench::suite::Bench;
use anyhow::{Result, ensure};
use vmarray::prelude::*;
use vmarray::{Source, device::HostMemory};

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    bench.row("section/source/search/pinned", Unit::GigabytesPerSecond, |bench, row| {
        // The source (memory that the program owns) is four times as large as its device memory.
        let bytes = setup.medium_bytes;
        let elements: Vec<u32> = (0..(bytes / 4) as u32).collect();
        let builder = Source::builder(elements).devices(setup.devices.iter().cloned());
        let source = builder.device_bytes(bytes as u64 / 4).import(HostMemory::Pinned).build()?;
        source.reset_stats();
        let series = row.measure("ours", Role::Ours, || {
            calls(1, (source.len() * 4) as f64, || {
                let count = source.count(.., Field::whole(), &77)?;
                ensure!(count == 1, "counted {count} matches, not 1");
                Ok(())
            })
        })?;
        row.count_source(&source.stats().total(), &series);
        row.limit("bus", bench.raw.bus(Way::Up))
    })
}
