//! Benchmark workloads that read, overwrite or update a large array page by page, in place in the cache.

use crate::bench::managed::ManagedMemory;
use crate::bench::measure::{Unit, timed};
use crate::bench::plain::{number, sum};
use crate::bench::raw::Way;
use crate::bench::suite::{Bench, size};
use anyhow::{Context, Result};
use rayon::iter::{ParallelBridge, ParallelIterator};
use std::hint::black_box;
use vmarray::VirtualArray;
use vmarray::prelude::*;

type Words = VirtualArray<u32>;

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    let page_bytes = if setup.quick { vec![None] } else { vec![None, Some(1 << 20)] };
    for page_bytes in page_bytes {
        let bytes = if page_bytes.is_none() { setup.large_bytes } else { setup.medium_bytes * 4 };
        let bytes = bytes.min(setup.large_bytes);
        let array =
            setup.filled::<u32>(bytes, page_bytes.map(|bytes| bytes / 4), (bytes / 64).max(8 << 20))?;
        one_array(bench, &array)?;
    }
    Ok(())
}

type Pass = fn(&Words) -> Result<()>;

/// The passes over the array: name, function for one thread, function for the current rayon pool.
const PASSES: [(&str, Pass, Pass); 3] =
    [("scan", scan, par_scan), ("update", update, par_update), ("overwrite", overwrite, par_overwrite)];

fn one_array(bench: &mut Bench, array: &Words) -> Result<()> {
    let setup = bench.setup.clone();
    let bytes = array.len() as f64 * 4.0;
    let page = size(array.page_len() * 4);
    let managed = ManagedMemory::<u32>::new(&setup, (array.len() * 4).min(1 << 30))?;
    for threads in setup.thread_counts(false) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().context("no threads")?;
        for (what, serial, parallel) in PASSES {
            let name = format!("in-place/{what}/{page}/t{threads}");
            bench.row(name, Unit::GigabytesPerSecond, |bench, row| {
                row.ours(array, || {
                    timed(threads, || {
                        if threads == 1 {
                            serial(array)?;
                        } else {
                            pool.install(|| parallel(array))?;
                        }
                        Ok(bytes)
                    })
                })?;
                match what {
                    "scan" => row.limit("bus", bench.raw.bus(Way::Down))?,
                    // Compare with half of the bus speed, because each byte crosses the bus twice.
                    "update" => row.limit("bus", Ok(bench.raw.bus(Way::Both)?.scaled(0.5)))?,
                    _ => row.limit("bus", bench.raw.bus(Way::Up))?,
                }
                match what {
                    "scan" => row.limit("vec", bench.plain.scan(threads))?,
                    "update" => row.limit("vec", bench.plain.update(threads))?,
                    _ => row.limit("vec", bench.plain.overwrite(threads))?,
                }
                let Some(managed) = managed.as_ref().filter(|_| what == "scan") else { return Ok(()) };
                row.other("managed", || {
                    managed.forget()?;
                    let slice = managed.slice();
                    let parts = slice.chunks(slice.len().div_ceil(threads));
                    timed(threads, || {
                        black_box(pool.install(|| parts.clone().par_bridge().map(sum).sum::<u64>()));
                        Ok(size_of_val(slice) as f64)
                    })
                })
            })?;
        }
    }
    Ok(())
}

fn scan(array: &Words) -> Result<()> {
    let mut all = 0;
    for page in array.pages() {
        all += sum(&page?);
    }
    black_box(all);
    Ok(())
}

/// Reads all elements page by page, with the threads of the current rayon pool.
fn par_scan(array: &Words) -> Result<()> {
    black_box(array.par_fold_slices(.., || 0, |all, _, slice| all + sum(slice), |a, b| a + b)?);
    Ok(())
}

fn update(array: &Words) -> Result<()> {
    for page in array.pages_mut() {
        page?.iter_mut().for_each(|word| *word = word.wrapping_add(1));
    }
    Ok(())
}

/// Changes all elements page by page, with the threads of the current rayon pool.
fn par_update(array: &Words) -> Result<()> {
    Ok(array.par_for_each_slice_mut(.., |_, slice| {
        slice.iter_mut().for_each(|word| *word = word.wrapping_add(1));
    })?)
}

/// Overwrites all elements; discards the old ones first, so that the array fetches no page.
fn overwrite(array: &Words) -> Result<()> {
    array.discard(..)?;
    for page in array.pages_mut() {
        let mut page = page?;
        let first = page.range().start as u32;
        number(&mut page, first);
    }
    Ok(())
}

/// Overwrites all elements with numbers, without reading them.
fn par_overwrite(array: &Words) -> Result<()> {
    array.discard(..)?;
    Ok(array.par_for_each_slice_mut(.., |first, slice| number(slice, first as u32))?)
}
