//! What the hardware allows: the yardsticks of the other families, and some more.

use super::{Bench, size};
use crate::bench::measure::Unit;
use crate::bench::raw::Way;
use anyhow::Result;

pub fn run(bench: &mut Bench) -> Result<()> {
    for (name, way) in [("down", Way::Down), ("up", Way::Up), ("both", Way::Both)] {
        for bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
            let name = format!("limits/{name}/{}", size(bytes));
            let Some(mut row) = bench.row(name, Unit::GigabytesPerSecond) else { continue };
            row.limit("queued", bench.raw.queued(way, bytes)?);
            if bytes <= 64 << 10 {
                row.limit("batched", bench.raw.batched(way, bytes)?);
            }
            bench.push(row);
        }
    }
    for threads in bench.setup.thread_counts(false) {
        for bytes in [4 << 10, 64 << 10] {
            let name = format!("limits/single/{}/t{threads}", size(bytes));
            let Some(mut row) = bench.row(name, Unit::KiloPerSecond) else { continue };
            row.limit("raw", bench.raw.single(bytes, threads)?);
            bench.push(row);
        }
        if let Some(mut row) = bench.row(format!("limits/memory/t{threads}"), Unit::GigabytesPerSecond) {
            let setup = bench.setup.clone();
            row.limit("memcpy", bench.plain.memcpy(&setup, threads)?);
            row.limit("scan", bench.plain.scan(&setup, threads)?);
            row.limit("overwrite", bench.plain.overwrite(&setup, threads)?);
            row.limit("update", bench.plain.update(&setup, threads)?);
            bench.push(row);
        }
    }
    if let Some(mut row) = bench.row("limits/internal", Unit::GigabytesPerSecond) {
        row.limit("raw", bench.raw.internal()?);
        bench.push(row);
    }
    Ok(())
}
