//! Work on sections of arrays, and on memory that the program owns.

use super::Bench;
use crate::bench::measure::{Effort, Series, Unit, on_threads, timed};
use crate::bench::raw::Way;
use crate::bench::results::{Role, Row};
use crate::bench::setup::{Setup, part};
use anyhow::{Result, ensure};
use std::hint::black_box;
use vmarray::prelude::*;
use vmarray::{AnyDevice, Field, HostMemory, Source, VirtualArray};

type Words = Source<u32, Vec<u32>, AnyDevice>;

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    if bench.wants_any("section/percent") {
        percent(bench, &setup)?;
    }
    if bench.wants_any("section/source") {
        resident(bench, &setup)?;
        for (import, how) in [(None, "staged"), (Some(HostMemory::Pinned), "pinned")] {
            streamed(bench, &setup, import, how)?;
        }
    }
    Ok(())
}

/// One of a hundred parts of an array beside the whole of it.
fn percent(bench: &mut Bench, setup: &Setup) -> Result<()> {
    let Some(mut row) = bench.row("section/percent/4B", Unit::Microseconds) else { return Ok(()) };
    let array: VirtualArray<u32> = setup.filled(setup.large_bytes, None, 64 << 20)?;
    let len = array.len();
    let section = array.section(len / 2..len / 2 + len / 100)?;
    let calls = if setup.quick { 2 } else { 8 };
    row.ours(&setup.effort, &array, || {
        timed(1, || {
            for _ in 0..calls {
                let count = section.count(.., Field::whole(), &(len as u32 / 2 + 7))?;
                ensure!(count == 1, "counted {count} and not 1");
            }
            Ok(f64::from(calls))
        })
    })?;
    row.other(&setup.effort, "whole", || {
        timed(1, || {
            let count = array.count(.., Field::whole(), &7)?;
            ensure!(count == 1, "counted {count} and not 1");
            Ok(1.0)
        })
    })?;
    bench.push(row);
    Ok(())
}

/// A source of numbers from 0 on.
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

/// Counts what is once in the source.
fn count(source: &Words) -> Result<f64> {
    let count = source.count(.., Field::whole(), &77)?;
    ensure!(count == 1, "counted {count} and not 1");
    Ok((source.len() * 4) as f64)
}

/// Measures a source, and notes what it has copied for each byte of the work.
fn ours(row: &mut Row, effort: &Effort, source: &Words, mut work: impl FnMut() -> Result<f64>) -> Result<()> {
    source.reset_stats();
    let series: Series = row.measure(effort, "ours", Role::Ours, || timed(1, &mut work))?;
    let (total, amount) = (source.stats().total(), series.amount.max(1.0));
    row.counts.extend([
        ("cores", series.cores()),
        ("to_device_bytes_per_unit", total.bytes_to_device as f64 / amount),
        ("from_device_bytes_per_unit", total.bytes_from_device as f64 / amount),
    ]);
    Ok(())
}

/// All of it is on the devices already.
fn resident(bench: &mut Bench, setup: &Setup) -> Result<()> {
    let Some(mut row) = bench.row("section/source/resident", Unit::GigabytesPerSecond) else { return Ok(()) };
    let source = source_of(setup, setup.medium_bytes, 2 * setup.medium_bytes, None)?;
    count(&source)?;
    ours(&mut row, &setup.effort, &source, || count(&source))?;
    // A copy reads and writes each byte.
    row.limit("internal-copy", bench.raw.internal()?.scaled(2.0));
    let plain = source.to_vec(..)?;
    row.other(&setup.effort, "vec", || {
        on_threads(setup.threads, |thread| {
            let part = part(plain.len(), setup.threads, thread, 1);
            let wanted = black_box(u32::MAX);
            let found = plain[part.clone()].iter().filter(|&&word| word == wanted).count();
            ensure!(black_box(found) == 0, "found what is not there");
            Ok((part.len() * 4) as f64)
        })
    })?;
    bench.push(row);
    Ok(())
}

/// Four times as much as the device memory that it may take.
fn streamed(bench: &mut Bench, setup: &Setup, import: Option<HostMemory>, how: &'static str) -> Result<()> {
    let name = |what: &str| format!("section/source/{what}/{how}");
    if !["search", "change"].iter().any(|what| bench.wants_any(&name(what))) {
        return Ok(());
    }
    let source = source_of(setup, setup.medium_bytes, setup.medium_bytes / 4, import)?;
    if let Some(mut row) = bench.row(name("search"), Unit::GigabytesPerSecond) {
        ours(&mut row, &setup.effort, &source, || count(&source))?;
        row.limit("bus", bench.raw.bus(Way::Up)?);
        bench.push(row);
    }
    if let Some(mut row) = bench.row(name("change"), Unit::GigabytesPerSecond) {
        ours(&mut row, &setup.effort, &source, || {
            source.fill(.., 7)?;
            source.flush(..)?;
            Ok((source.len() * 4) as f64)
        })?;
        row.limit("bus", bench.raw.bus(Way::Down)?);
        bench.push(row);
    }
    Ok(())
}
