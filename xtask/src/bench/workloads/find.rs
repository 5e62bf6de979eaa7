//! Benchmark workloads that search arrays on the devices: for whole words, and for a field of records.

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

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    one::<u32>(bench, &setup, Field::whole())?;
    one::<Record>(bench, &setup, field!(Record, last))
}

fn one<T: Payload>(bench: &mut Bench, setup: &Setup, field: Field<T, u32>) -> Result<()> {
    if !bench.wants_ways("find", &["all", "count"], T::SIZE) {
        return Ok(());
    }
    let name = |what: &str| format!("find/{what}/{}", T::SIZE);
    let array: VirtualArray<T> = setup.filled(setup.medium_bytes, None, 64 << 20)?;
    let (len, bytes) = (array.len(), (array.len() * size_of::<T>()) as f64);
    let last = len - 3;
    bench.row(name("all"), Unit::GigabytesPerSecond, |bench, row| {
        let find = || {
            let found = array.find(field, &(last as u32))?;
            ensure!(found == [last], "found the indices {found:?}, not {last}");
            Ok(())
        };
        row.ours(&array, || calls(setup.calls(), bytes, find))?;
        // The limit is twice a copy's speed: a copy reads and writes each byte, and a search only reads it.
        row.limit("internal-copy", Ok(bench.raw.get(Limit::Internal)?.scaled(2.0)))?;
        let plain: Vec<T> = (0..setup.plain_bytes / size_of::<T>()).map(T::of).collect();
        let wanted = black_box(u32::MAX);
        // Compare only the record's first word, its key: a comparison of the last word takes as long.
        row.other("vec", || search(&plain, setup.threads, |element| element.key() == wanted))
    })?;
    bench.row(name("count"), Unit::GigabytesPerSecond, |bench, row| {
        let count = || {
            let count = array.count(.., field, &(last as u32))?;
            ensure!(count == 1, "counted {count} matches, not 1");
            Ok(())
        };
        row.ours(&array, || calls(setup.calls(), bytes, count))?;
        row.limit("internal-copy", Ok(bench.raw.get(Limit::Internal)?.scaled(2.0)))
    })
}
