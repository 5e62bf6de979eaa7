//! Benchmark workloads on index sets: joins of two sets on their devices, compared with joins in RAM. The
//! tuples have four columns, of which the two sets share two.

use crate::bench::measure::{Unit, timed};
use crate::bench::results::Role;
use crate::bench::setup::Setup;
use crate::bench::suite::Bench;
use anyhow::{Result, ensure};
use vmarray::IndexSet;
use vmarray::device::wrap::SplitMix64;
use vmarray::index_set::{Dimension, PagedIndexSet, Tuples};
use vmarray::prelude::*;

/// The bound of uniform keys, for which sets of 2^22 tuples yield about 17.5 million results.
const LARGEST: u64 = 1000;

pub fn run(bench: &mut Bench) -> Result<()> {
    let log2 = if bench.setup.quick { 16 } else { 22 };
    for kind in ["uniform", "unique"] {
        one(bench, kind, log2)?;
    }
    Ok(())
}

/// Stores a set on the devices, with an empty cache.
fn paged(setup: &Setup, set: &IndexSet) -> Result<PagedIndexSet> {
    let array = setup.array::<u64>(set.values().len(), None, 64 << 20)?;
    array.write(0, set.values())?;
    array.evict(..)?;
    Ok(PagedIndexSet::new(set.dimensions().iter().copied(), array)?)
}

fn sets(kind: &str, log2: u32) -> Result<[IndexSet; 2]> {
    let mut random = SplitMix64::new(7);
    let mut set = |dimensions: [Dimension; 4]| {
        let value = |at: usize| match kind {
            "unique" => (at as u64 / 4).wrapping_mul(0x9E37_79B1) % (1 << log2),
            _ => random.next() % (LARGEST + 1),
        };
        IndexSet::from_values(dimensions, (0..4 << log2).map(value).collect())
    };
    Ok([set([0, 2, 1, 3])?, set([0, 2, 5, 6])?])
}

fn one(bench: &mut Bench, kind: &str, log2: u32) -> Result<()> {
    let setup = bench.setup.clone();
    bench.row(format!("join/{kind}/2^{log2}"), Unit::Microseconds, |_, row| {
        let [a, b] = sets(kind, log2)?;
        let (on_devices, of_b) = (paged(&setup, &a)?, paged(&setup, &b)?);
        let expected = a.combine(&b)?;
        let merged = on_devices.combine(&of_b)?;
        println!("    {} results", merged.len());
        ensure!(merged.to_index_set(..)? == expected, "the devices' join differs from the host's");
        let (mut merged, mut in_ram) = (Some(merged), Some(expected));
        row.measure_in_turn(&mut [
            ("ours", Role::Ours, &mut || {
                merged = None;
                timed(1, || {
                    merged = Some(on_devices.combine(&of_b)?);
                    Ok(1.0)
                })
            }),
            ("in-ram", Role::Alternative, &mut || {
                in_ram = None;
                timed(1, || {
                    in_ram = Some(a.combine(&b)?);
                    Ok(1.0)
                })
            }),
        ])?;
        Ok(())
    })
}
