//! Benchmark workloads on random elements of arrays far larger than the cache: nearly all are misses.

use crate::bench::elements::{Block, Payload, Record};
use crate::bench::managed::ManagedMemory;
use crate::bench::measure::{Sample, Unit, on_threads, until};
use crate::bench::raw::Limit;
use crate::bench::suite::{Bench, size};
use anyhow::Result;
use vmarray::device::wrap::SplitMix64;
use vmarray::prelude::*;

pub fn run(bench: &mut Bench) -> Result<()> {
    one::<u32>(bench, None, 100, true)?;
    if !bench.setup.quick {
        one::<u32>(bench, Some(1024), 100, false)?;
    }
    one::<Record>(bench, Some(64), 100, true)?;
    if !bench.setup.quick {
        one::<Record>(bench, None, 100, false)?;
        one::<Record>(bench, None, 10, false)?;
    }
    one::<Block>(bench, Some(1), 100, true)
}

/// Measures calls of `step` with random indices below `len`, by `threads` threads for `seconds` seconds.
pub fn at_random(
    threads: usize,
    seconds: f64,
    len: usize,
    seed: u64,
    step: impl Fn(usize) -> Result<()> + Sync,
) -> Result<Sample> {
    on_threads(threads, |thread| {
        let mut random = SplitMix64::new(seed * 1000 + thread as u64);
        until(seconds, 16, || step(random.index(len)))
    })
}

/// Measures an array `times` times larger than its cache; with `others`, also other software and further
/// kinds of access.
fn one<T: Payload>(bench: &mut Bench, page_len: Option<usize>, times: usize, others: bool) -> Result<()> {
    if !bench.wants_ways("random", &["get", "set", "get-uncached"], T::SIZE) {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let bytes = setup.medium_bytes;
    let array = setup.filled::<T>(bytes, page_len, bytes / times)?;
    let (len, page_bytes) = (array.len(), array.page_len() * size_of::<T>());
    let managed = match others && !setup.is_in_turns {
        true => ManagedMemory::<T>::new(&setup, bytes.min(1 << 30))?,
        false => None,
    };
    let mut seed = 0;
    for threads in setup.thread_counts(false) {
        let name =
            |what: &str| format!("random/{what}/{}/{}/cache-1:{times}/t{threads}", T::SIZE, size(page_bytes));
        let mut lookups = |len: usize, step: &(dyn Fn(usize) -> Result<()> + Sync)| {
            seed += 1;
            at_random(threads, setup.effort.seconds, len, seed, step)
        };
        bench.row(name("get"), Unit::KiloPerSecond, |bench, row| {
            row.ours(&array, || lookups(len, &|index| array.get(index)?.check(index)))?;
            row.limit("single", bench.raw.get(Limit::Single(page_bytes, threads)))?;
            let Some(managed) = &managed else { return Ok(()) };
            row.other("managed", || {
                managed.forget()?;
                let slice = managed.slice();
                lookups(slice.len(), &|index| slice[index].check(index))
            })
        })?;
        if others {
            bench.row(name("get-uncached"), Unit::KiloPerSecond, |bench, row| {
                row.ours(&array, || lookups(len, &|index| array.get_uncached(index)?.check(index)))?;
                row.limit("single", bench.raw.get(Limit::Single(size_of::<T>(), threads)))
            })?;
            bench.row(name("set"), Unit::KiloPerSecond, |bench, row| {
                row.ours(&array, || lookups(len, &|index| Ok(array.set(index, T::of(index))?)))?;
                row.limit("single", bench.raw.get(Limit::Single(page_bytes, threads)))
            })?;
        }
    }
    Ok(())
}
