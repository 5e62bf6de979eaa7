//! Benchmark workloads of expressions on devices: queries of a word and of a field of records, and writes.

use crate::bench::elements::{Payload, Record};
use crate::bench::measure::{Unit, calls};
use crate::bench::plain::search;
use crate::bench::raw::Limit;
use crate::bench::setup::Setup;
use crate::bench::suite::Bench;
use anyhow::{Result, ensure};
use std::hint::black_box;
use vmarray::prelude::*;
use vmarray::{Field, VirtualArray, field};

/// The operations, and the number of bytes that each reads and writes for each byte of the array. GPUs read
/// records in whole memory sectors.
const OPERATIONS: [(&str, f64); 6] = [
    ("count", 1.0),
    ("two-terms", 1.0),
    ("find-none", 1.0),
    ("sum", 1.0),
    ("transform", 2.0),
    ("assign-half", 1.5),
];

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    one::<u32>(bench, &setup, Field::whole())?;
    one::<Record>(bench, &setup, field!(Record, last))
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
            "transform" => array.transform(.., field.set(field ^ 1))?,
            _ => array.assign_where(.., field.ge((len / 2) as u32), field.set(field ^ 1))?,
        }
        Ok(())
    };
    for (what, share) in OPERATIONS {
        let name = format!("expressions/{what}/{}", T::SIZE);
        bench.row(name, Unit::GigabytesPerSecond, |bench, row| {
            row.ours(&array, || calls(setup.calls(), share * bytes, || run(what)))?;
            // The limit is twice a copy's speed: a copy reads and writes each byte, a query only reads it.
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
