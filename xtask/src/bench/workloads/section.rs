//! Work on sections of arrays, and on memory that the program owns.

use super::Bench;
use crate::bench::measure::{Unit, calls};
use crate::bench::plain::search;
use crate::bench::raw::{Limit, Way};
use crate::bench::results::{Role, Row};
use crate::bench::setup::Setup;
use anyhow::{Result, ensure};
use std::hint::black_box;
use vmarray::prelude::*;
use vmarray::{AnyDevice, Field, Source, VirtualArray, device::HostMemory};

type Words = Source<u32, Vec<u32>, AnyDevice>;

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    percent(bench, &setup)?;
    resident(bench, &setup)?;
    streamed(bench, &setup, None, "staged")?;
    streamed(bench, &setup, Some(HostMemory::Pinned), "pinned")
}

/// A hundredth of an array next to the whole of it.
fn percent(bench: &mut Bench, setup: &Setup) -> Result<()> {
    bench.row("section/percent/4B", Unit::Microseconds, |_, row| {
        let array: VirtualArray<u32> = setup.filled(setup.large_bytes, None, 64 << 20)?;
        let len = array.len();
        let section = array.section(len / 2..len / 2 + len / 100)?;
        let once = |count: usize| {
            ensure!(count == 1, "counted {count} and not 1");
            Ok(())
        };
        row.ours(&array, || {
            calls(2 * setup.calls(), 1.0, || {
                once(section.count(.., Field::whole(), &(len as u32 / 2 + 7))?)
            })
        })?;
        row.other("whole", || calls(1, 1.0, || once(array.count(.., Field::whole(), &7)?)))
    })
}

/// Returns a source whose elements are the numbers 0, 1, 2, …
pub fn source_of(
    setup: &Setup,
    bytes: usize,
    device_bytes: usize,
    import: Option<HostMemory>,
) -> Result<Words> {
    let elements = (0..(bytes / 4) as u32).collect();
    let mut builder =
        Source::builder(elements).devices(setup.devices.iter().cloned()).device_bytes(device_bytes as u64);
    if let Some(kind) = import {
        builder = builder.import(kind);
    }
    Ok(builder.build()?)
}

/// Counts a value that the source has once.
fn count(source: &Words) -> Result<()> {
    let count = source.count(.., Field::whole(), &77)?;
    ensure!(count == 1, "counted {count} and not 1");
    Ok(())
}

/// Measures work on all of a source, and records the bytes copied for each byte of it.
fn ours(row: &mut Row, source: &Words, mut work: impl FnMut() -> Result<()>) -> Result<()> {
    source.reset_stats();
    let bytes = (source.len() * 4) as f64;
    let series = row.measure("ours", Role::Ours, || calls(1, bytes, &mut work))?;
    let (total, amount) = (source.stats().total(), series.amount.max(1.0));
    row.count([
        ("cores", series.cores()),
        ("to_device_bytes_per_unit", total.bytes_to_device as f64 / amount),
        ("from_device_bytes_per_unit", total.bytes_from_device as f64 / amount),
    ]);
    Ok(())
}

/// A source that is already on the devices entirely.
fn resident(bench: &mut Bench, setup: &Setup) -> Result<()> {
    bench.row("section/source/resident", Unit::GigabytesPerSecond, |bench, row| {
        let source = source_of(setup, setup.medium_bytes, 2 * setup.medium_bytes, None)?;
        count(&source)?;
        ours(row, &source, || count(&source))?;
        // Count twice the bytes, because a copy reads and writes each byte.
        row.limit("internal-copy", Ok(bench.raw.get(Limit::Internal)?.scaled(2.0)))?;
        let (plain, wanted) = (source.to_vec(..)?, black_box(u32::MAX));
        row.other("vec", || search(&plain, setup.threads, |&word| word == wanted))
    })
}

/// A source four times as large as its device memory.
fn streamed(bench: &mut Bench, setup: &Setup, import: Option<HostMemory>, how: &'static str) -> Result<()> {
    let source = || source_of(setup, setup.medium_bytes, setup.medium_bytes / 4, import);
    let name = |what: &str| format!("section/source/{what}/{how}");
    bench.row(name("search"), Unit::GigabytesPerSecond, |bench, row| {
        let source = source()?;
        ours(row, &source, || count(&source))?;
        row.limit("bus", bench.raw.bus(Way::Up))
    })?;
    bench.row(name("change"), Unit::GigabytesPerSecond, |bench, row| {
        let source = source()?;
        ours(row, &source, || {
            source.fill(.., 7)?;
            Ok(source.flush(..)?)
        })?;
        row.limit("bus", bench.raw.bus(Way::Down))
    })
}
