//! Benchmark workloads on lists of random indices: the devices gather and scatter the listed elements.

use crate::bench::elements::{Block, Payload, Record};
use crate::bench::measure::{Unit, calls};
use crate::bench::raw::{Limit, Way};
use crate::bench::suite::Bench;
use anyhow::Result;
use vmarray::device::wrap::SplitMix64;
use vmarray::prelude::*;

const WAYS: [&str; 4] = ["gather", "scatter", "gather-registered", "scatter-registered"];

pub fn run(bench: &mut Bench) -> Result<()> {
    one::<u32>(bench)?;
    one::<Record>(bench)?;
    one::<Block>(bench)
}

fn one<T: Payload>(bench: &mut Bench) -> Result<()> {
    if !bench.wants_ways("gather", &WAYS, T::SIZE) {
        return Ok(());
    }
    let name = |what: &str| format!("gather/{what}/{}", T::SIZE);
    let setup = bench.setup.clone();
    let bytes = setup.medium_bytes;
    let array = setup.filled::<T>(bytes, None, bytes / 100)?;
    // Choose a count that is large enough for many pipeline stages, and small enough for repetitions.
    let count = (bytes / 4 / size_of::<T>()).min(16 << 20);
    let mut random = SplitMix64::new(5);
    let indices: Vec<usize> = (0..count).map(|_| random.index(array.len())).collect();
    let mut values: Vec<T> = indices.iter().map(|&index| T::of(index)).collect();
    let (turns, amount) = (setup.calls(), count as f64);
    bench.row(name("gather"), Unit::MegaPerSecond, |bench, row| {
        row.ours(&array, || {
            let sample = calls(turns, amount, || Ok(array.gather_into(&indices, &mut values)?))?;
            let mut checked = indices.iter().zip(&values).step_by(97);
            checked.try_for_each(|(&index, value)| value.check(index))?;
            Ok(sample)
        })?;
        row.limit("kernel", bench.raw.get(Limit::Indexed(Way::Down, size_of::<T>())))
    })?;
    bench.row(name("scatter"), Unit::MegaPerSecond, |bench, row| {
        row.ours(&array, || calls(turns, amount, || Ok(array.scatter(&indices, &values)?)))?;
        row.limit("kernel", bench.raw.get(Limit::Indexed(Way::Up, size_of::<T>())))
    })?;
    // Use a list and values in memory that the devices can access; some devices do not support that.
    if let (Ok(list), Ok(mut near)) = (array.register(indices.clone()), array.register(values.clone())) {
        bench.row(name("gather-registered"), Unit::MegaPerSecond, |bench, row| {
            row.ours(&array, || calls(turns, amount, || Ok(array.gather_into(&list, &mut near)?)))?;
            row.limit("kernel", bench.raw.get(Limit::Indexed(Way::Down, size_of::<T>())))
        })?;
        bench.row(name("scatter-registered"), Unit::MegaPerSecond, |bench, row| {
            row.ours(&array, || calls(turns, amount, || Ok(array.scatter(&list, &near)?)))?;
            row.limit("kernel", bench.raw.get(Limit::Indexed(Way::Up, size_of::<T>())))
        })?;
    }
    Ok(())
}
