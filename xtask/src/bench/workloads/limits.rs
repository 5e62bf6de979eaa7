//! Workloads that measure the limits of the hardware, with which other families are compared.

use super::{Bench, size};
use crate::bench::measure::Unit;
use crate::bench::raw::{Limit, Link, Way};
use anyhow::Result;

pub fn run(bench: &mut Bench) -> Result<()> {
    for (name, way) in [("down", Way::Down), ("up", Way::Up), ("both", Way::Both)] {
        for bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
            let name = format!("limits/{name}/{}", size(bytes));
            bench.row(name, Unit::GigabytesPerSecond, |bench, row| {
                row.limit("queued", bench.raw.get(Limit::Queued(way, bytes)))?;
                if bytes <= 64 << 10 {
                    row.limit("batched", bench.raw.get(Limit::Batched(way, bytes)))?;
                }
                Ok(())
            })?;
        }
    }
    for threads in bench.setup.thread_counts(false) {
        for bytes in [4 << 10, 64 << 10] {
            let name = format!("limits/single/{}/t{threads}", size(bytes));
            bench.row(name, Unit::KiloPerSecond, |bench, row| {
                row.limit("raw", bench.raw.get(Limit::Single(bytes, threads)))
            })?;
        }
        bench.row(format!("limits/memory/t{threads}"), Unit::GigabytesPerSecond, |bench, row| {
            row.limit("memcpy", bench.plain.memcpy(threads))?;
            row.limit("scan", bench.plain.scan(threads))?;
            row.limit("overwrite", bench.plain.overwrite(threads))?;
            row.limit("update", bench.plain.update(threads))
        })?;
    }
    bench.row("limits/internal", Unit::GigabytesPerSecond, |bench, row| {
        row.limit("raw", bench.raw.get(Limit::Internal))
    })?;
    for (name, link) in [("one-way", Link::OneWay), ("all-at-once", Link::Ring)] {
        if bench.raw.has_link() {
            bench.row(format!("limits/link/{name}"), Unit::GigabytesPerSecond, |bench, row| {
                row.limit("raw", bench.raw.get(Limit::Link(link)))
            })?;
        }
    }
    Ok(())
}
