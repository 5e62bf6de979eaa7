//! Operations by expressions on the devices: queries of a word and of a field of records, and writes.

use super::Bench;
use super::section::source_of;
use crate::bench::elements::{Payload, Record};
use crate::bench::measure::{Unit, calls};
use crate::bench::plain::search;
use crate::bench::raw::Limit;
use crate::bench::results::Role;
use crate::bench::setup::Setup;
use anyhow::{Result, ensure};
use std::hint::black_box;
use vmarray::prelude::*;
use vmarray::{Field, VirtualArray, field};

/// The operations, and the bytes read and written for each byte of the array; records are read in whole
/// sectors.
const OPERATIONS: [(&str, f64); 8] = [
    ("count", 1.0),
    ("two-terms", 1.0),
    ("find-none", 1.0),
    ("sum", 1.0),
    ("min", 1.0),
    ("transform", 2.0),
    ("assign-half", 1.5),
    ("assign-none", 1.0),
];
/// The same of sources.
const OF_SOURCES: [(&str, f64); 5] =
    [("count", 1.0), ("sum", 1.0), ("sum-floats", 1.0), ("arg-max", 1.0), ("transform", 2.0)];

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    one::<u32>(bench, &setup, Field::whole())?;
    one::<Record>(bench, &setup, field!(Record, last))?;
    sources(bench, &setup)
}

fn one<T: Payload>(bench: &mut Bench, setup: &Setup, field: Field<T, u32>) -> Result<()> {
    if !bench.wants_ways("expressions", &OPERATIONS.map(|(what, _)| what), T::SIZE) {
        return Ok(());
    }
    let array: VirtualArray<T> = setup.filled(setup.medium_bytes, None, 64 << 20)?;
    let (len, bytes) = (array.len(), (array.len() * size_of::<T>()) as f64);
    let run = |what: &str| -> Result<()> {
        match what {
            "count" => ensure!(array.count_where(.., field.ge(len as u32))? == 0),
            "two-terms" => ensure!(array.count_where(.., field.ge(len as u32) & field.ne(0))? == 0),
            "find-none" => ensure!(array.find_where(.., field.ge(len as u32), 1000)?.total == 0),
            "sum" => ensure!(array.sum(.., field)? > 0),
            "min" => ensure!(array.min(.., field)?.is_some()),
            "transform" => array.transform(.., field.set(field ^ 1))?,
            "assign-half" => array.assign_where(.., field.ge((len / 2) as u32), field.set(field ^ 1))?,
            _ => array.assign_where(.., field.ge(len as u32), field.set(1))?,
        }
        Ok(())
    };
    for (what, share) in OPERATIONS {
        let name = format!("expressions/{what}/{}", T::SIZE);
        bench.row(name, Unit::GigabytesPerSecond, |bench, row| {
            row.ours(&array, || calls(setup.calls(), share * bytes, || run(what)))?;
            // Count twice the bytes, because a copy reads and writes each byte.
            row.limit("internal-copy", Ok(bench.raw.get(Limit::Internal)?.scaled(2.0)))?;
            if what == "count" {
                let plain: Vec<T> = (0..setup.plain_bytes / size_of::<T>()).map(T::of).collect();
                let least = black_box(u32::MAX);
                row.other("vec", || search(&plain, setup.threads, |element| element.key() >= least))?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// A source that is entirely on the devices, next to an array.
fn sources(bench: &mut Bench, setup: &Setup) -> Result<()> {
    if !bench.wants_ways("expressions/source", &OF_SOURCES.map(|(what, _)| what), "4B") {
        return Ok(());
    }
    let source = source_of(setup, setup.medium_bytes, 2 * setup.medium_bytes, None)?;
    let array: VirtualArray<u32> = setup.filled(setup.medium_bytes, None, 64 << 20)?;
    let (len, bytes) = (source.len(), (source.len() * 4) as f64);
    let field = || Field::<u32, u32>::whole();
    macro_rules! run {
        ($of:expr, $what:expr) => {{
            match $what {
                "count" => ensure!($of.count_where(.., field().ge(len as u32))? == 0),
                "sum" => ensure!($of.sum(.., field())? > 0),
                "sum-floats" => ensure!($of.sum(.., field().cast::<f32>())? > 0.0),
                "arg-max" => ensure!($of.arg_max(.., field())?.is_some()),
                _ => $of.transform(.., field().set(field() ^ 1))?,
            }
            Ok(())
        }};
    }
    let of_source = |what: &str| -> Result<()> { run!(source, what) };
    let of_array = |what: &str| -> Result<()> { run!(array, what) };
    for (what, share) in OF_SOURCES {
        let name = format!("expressions/source/{what}/4B");
        bench.row(name, Unit::GigabytesPerSecond, |bench, row| {
            // Before the measurement, copy all data to the devices, and translate the programs.
            of_source(what)?;
            of_array(what)?;
            source.reset_stats();
            let amount = share * bytes;
            row.measure("ours", Role::Ours, || calls(setup.calls(), amount, || of_source(what)))?;
            let copied = source.stats().total().bytes_to_device;
            ensure!(copied == 0, "the source was copied to the devices again");
            row.other("array", || calls(setup.calls(), amount, || of_array(what)))?;
            row.limit("internal-copy", Ok(bench.raw.get(Limit::Internal)?.scaled(2.0)))
        })?;
    }
    Ok(())
}
