//! Benchmark workloads with thousands of tasks on few threads; each task accesses random elements in turn.

use crate::bench::elements::{Block, Payload, Record};
use crate::bench::measure::{Sample, Unit, on_threads, timed};
use crate::bench::raw::{Limit, Way};
use crate::bench::suite::{Bench, size};
use anyhow::Result;
use futures::executor::block_on;
use futures::stream::{FuturesUnordered, TryStreamExt};
use std::hint::black_box;
use vmarray::VirtualArray;
use vmarray::device::wrap::SplitMix64;
use vmarray::prelude::*;

/// The number of tasks of one thread.
const TASKS: usize = 4096;

/// The number of threads, of tasks of each thread, and of elements that all read in one run. Tasks may
/// outnumber the cached pages.
const CROWDS: [(usize, usize, usize); 4] =
    [(16, 500, 800_000), (4, 4000, 800_000), (1, 10_000, 800_000), (16, 100, 800_000)];

pub fn run(bench: &mut Bench) -> Result<()> {
    one::<Record>(bench, 64)?;
    one::<Block>(bench, 1)?;
    crowds(bench)
}

/// Polls tasks on this thread, in the order of their wake-ups, until all are done.
fn run_all(tasks: impl Iterator<Item = impl Future<Output = Result<()>>>) -> Result<()> {
    block_on(tasks.collect::<FuturesUnordered<_>>().try_collect())
}

/// Measures tasks that share a cache of 4096 pages of 64 KiB; each read determines the next index.
fn crowds(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("async/dependent/") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let bytes = setup.medium_bytes;
    let array = setup.filled::<u32>(bytes, Some(16 << 10), (bytes / 4).min(256 << 20))?;
    let page_bytes = array.page_len() * size_of::<u32>();
    let pages = |gigabytes: f64| gigabytes * 1e6 / page_bytes as f64;
    let mut seed = 0;
    for (threads, tasks, count) in CROWDS {
        let name = format!("async/dependent/4/{}/t{threads}x{tasks}", size(page_bytes));
        let each = (count / threads / tasks / if setup.quick { 20 } else { 1 }).max(2);
        bench.row(name, Unit::KiloPerSecond, |bench, row| {
            row.ours(&array, || {
                seed += 1;
                on_threads(threads, |thread| {
                    let first = SplitMix64::new(seed * 1000 + thread as u64).next();
                    run_all((0..tasks).map(|task| dependent(&array, each, first.wrapping_add(task as u64))))?;
                    Ok((each * tasks) as f64)
                })
            })?;
            let batched = bench.raw.get(Limit::Batched(Way::Down, page_bytes))?;
            row.limit("batched", Ok(batched.scaled(pages(1.0))))?;
            row.limit("bus", Ok(bench.raw.bus(Way::Down)?.scaled(pages(1.0))))
        })?;
    }
    Ok(())
}

/// Gets `count` elements; each one decides the next index.
async fn dependent(array: &VirtualArray<u32>, count: usize, seed: u64) -> Result<()> {
    let mut state = seed;
    for _ in 0..count {
        let index = SplitMix64::new(state).index(array.len());
        let value = array.get_async(index).await?;
        value.check(index)?;
        state = state.wrapping_mul(31).wrapping_add(u64::from(value) | 1);
    }
    Ok(())
}

fn one<T: Payload>(bench: &mut Bench, page_len: usize) -> Result<()> {
    if !bench.wants_ways("async", &["get"], T::SIZE) {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let bytes = setup.medium_bytes;
    let cache = (bytes / 8).min(64 << 20);
    let array = setup.filled::<T>(bytes, Some(page_len), cache)?;
    let page_bytes = array.page_len() * size_of::<T>();
    let name = |what: &str| format!("async/{what}/{}/{}/t1", T::SIZE, size(page_bytes));
    let count = if setup.quick { 100_000 } else { 1_000_000 };
    let mut seed = 0;
    let mut gets = |end: usize| {
        seed += 1;
        gets(&array, count, end, seed)
    };
    bench.row(name("get"), Unit::KiloPerSecond, |bench, row| {
        row.ours(&array, || gets(array.len()))?;
        row.limit("single", bench.raw.get(Limit::Single(page_bytes, 1)))
    })
}

/// Reads random elements below `end`, by all tasks together.
fn gets<T: Payload>(array: &VirtualArray<T>, count: usize, end: usize, seed: u64) -> Result<Sample> {
    let each = count / TASKS;
    let task = |number: usize| async move {
        let mut random = SplitMix64::new(seed * 10_000 + number as u64);
        for _ in 0..each {
            let index = random.index(end);
            // Check the element by reference, because a move of a long element takes as long as its read.
            match &array.get_async(index).await {
                Ok(element) => black_box(element).check(index)?,
                Err(error) => return Err(error.clone().into()),
            }
        }
        Ok(())
    };
    timed(1, || {
        run_all((0..TASKS).map(task))?;
        Ok((each * TASKS) as f64)
    })
}
