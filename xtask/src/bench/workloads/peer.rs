//! Benchmark workloads that a comparable program runs too: with equal element sizes, page lengths, threads,
//! and sizes of array and cache. A command template starts the program, which must print lines of `name value
//! unit` with the names used here.

use super::{bulk, random};
use crate::bench::elements::{Block, Payload, Record};
use crate::bench::measure::{Sample, Unit, calls, on_threads};
use crate::bench::setup::{Setup, part};
use crate::bench::suite::Bench;
use anyhow::{Result, ensure};
use std::hint::black_box;
use vmarray::prelude::*;
use vmarray::{Field, VirtualArray, field};

/// The number of channels of the other program. Array sizes are multiples of this number of pages.
const CHANNELS: usize = 16;

pub fn run(bench: &mut Bench) -> Result<()> {
    use Unit::{GigabytesPerSecond, KiloPerSecond, Microseconds};
    let (threads, seconds) = (bench.setup.threads, bench.setup.effort.seconds);
    cached(bench)?;
    // Measure misses by one thread: nearly every access is a miss, and each write also evicts a dirty page.
    one::<Record>(bench, "miss-get-44B-p1000", 1000, Microseconds, |array, turn| {
        random_get(array, 1, seconds, turn)
    })?;
    one::<Record>(bench, "miss-set-44B-p1000", 1000, Microseconds, |array, turn| {
        random::at_random(1, seconds, array.len(), turn, |index| Ok(array.set(index, Record::of(index))?))
    })?;
    one::<Record>(bench, "random-get-44B-p1000", 1000, KiloPerSecond, |array, turn| {
        random_get(array, threads, seconds, turn)
    })?;
    one::<Block>(bench, "random-get-4KiB-p1", 1, KiloPerSecond, |array, turn| {
        random_get(array, threads, seconds, turn)
    })?;
    one::<Block>(bench, "serial-get-4KiB-p32", 32, GigabytesPerSecond, |array, _| {
        per_thread(array, threads)
    })?;
    one::<Record>(bench, "serial-get-44B-p10000", 10_000, GigabytesPerSecond, |array, _| {
        per_thread(array, threads)
    })?;
    one::<Record>(bench, "interleaved-get-44B-p1000", 1000, GigabytesPerSecond, |array, _| {
        interleaved(array, threads)
    })?;
    one::<Record>(bench, "bulk-read-44B-p10000", 10_000, GigabytesPerSecond, |array, _| {
        bulk::read(array, threads, 100_000)
    })?;
    one::<Record>(bench, "bulk-write-44B-p10000", 10_000, GigabytesPerSecond, |array, _| {
        bulk::write(array, threads, 100_000)
    })?;
    one::<Record>(bench, "bulk-write-44B-p10000-x4", 10_000, GigabytesPerSecond, |array, _| {
        bulk::write(array, 4 * threads, 100_000)
    })?;
    // Scale the size so that 1 GB of words corresponds to 3.52 GB of records.
    let bytes = bench.setup.peer_bytes / 352 * 100;
    find::<u32>(bench, "find-4B-p16384", 16_384, bytes, Field::whole())?;
    let bytes = bench.setup.peer_bytes;
    find::<Record>(bench, "find-4B-in-44B-p10000", 10_000, bytes, field!(Record, last))
}

/// Creates an array of about `bytes` bytes, whose cache has a hundredth of it, or a few pages per channel.
fn array<T: Payload>(setup: &Setup, bytes: usize, page_len: usize) -> Result<VirtualArray<T>> {
    let page_bytes = page_len * size_of::<T>();
    let pages = (bytes / page_bytes / CHANNELS * CHANNELS).max(4 * CHANNELS);
    let frames = (pages / (100 * CHANNELS)).max(4) * CHANNELS;
    setup.filled(pages * page_bytes, Some(page_len), frames * page_bytes)
}

fn one<T: Payload>(
    bench: &mut Bench,
    name: &str,
    page_len: usize,
    unit: Unit,
    run: impl Fn(&VirtualArray<T>, u64) -> Result<Sample>,
) -> Result<()> {
    bench.row(format!("peer/{name}"), unit, |bench, row| {
        let array = array::<T>(&bench.setup, bench.setup.peer_bytes, page_len)?;
        let mut turn = 0;
        row.ours(&array, || {
            turn += 1;
            run(&array, turn)
        })
    })
}

fn random_get<T: Payload>(
    array: &VirtualArray<T>,
    threads: usize,
    seconds: f64,
    turn: u64,
) -> Result<Sample> {
    random::at_random(threads, seconds, array.len(), turn, |index| array.get(index)?.check(index))
}

/// Measures reads of all elements in order by one thread, with all pages in the cache.
fn cached(bench: &mut Bench) -> Result<()> {
    const BYTES: usize = 4 << 20;
    const PASSES: usize = 4;
    if !bench.wants_any("peer/cached-") {
        return Ok(());
    }
    let array: VirtualArray<u32> = bench.setup.filled(BYTES, Some(1024), 2 * BYTES)?;
    let len = array.len();
    (0..len).try_for_each(|index| array.get(index)?.check(index))?;
    bench.row("peer/cached-get-4B", Unit::Nanoseconds, |_, row| {
        let sum = || {
            let mut sum = 0;
            for index in 0..len {
                sum += u64::from(array.get(index)?);
            }
            let expected = (len * (len - 1) / 2) as u64;
            ensure!(black_box(sum) == expected, "the sum is {sum} instead of {expected}");
            Ok(())
        };
        row.ours(&array, || calls(PASSES, len as f64, sum))
    })?;
    bench.row("peer/cached-set-4B", Unit::Nanoseconds, |_, row| {
        let number = || (0..len).try_for_each(|index| Ok(array.set(index, index as u32)?));
        row.ours(&array, || calls(PASSES, len as f64, number))
    })
}

fn find<T: Payload>(
    bench: &mut Bench,
    name: &str,
    page_len: usize,
    bytes: usize,
    field: Field<T, u32>,
) -> Result<()> {
    bench.row(format!("peer/{name}"), Unit::GigabytesPerSecond, |bench, row| {
        let array = array::<T>(&bench.setup, bytes, page_len)?;
        let wanted = array.len() - 5;
        let find = || {
            let found = array.find_first(.., field, &(wanted as u32), 1)?.indices;
            ensure!(found == [wanted], "found {found:?} instead of {wanted}");
            Ok(())
        };
        row.ours(&array, || calls(1, (array.len() * size_of::<T>()) as f64, find))
    })
}

/// Measures reads of single elements by several threads. Each thread reads its part of the array in order.
fn per_thread<T: Payload>(array: &VirtualArray<T>, threads: usize) -> Result<Sample> {
    on_threads(threads, |thread| {
        let part = part(array.len(), threads, thread, array.page_len());
        sum_of(array, part.clone())?;
        Ok((part.len() * size_of::<T>()) as f64)
    })
}

/// Measures reads of single elements by several threads. Thread `t` of `n` reads the elements `t`, `t + n`,
/// `t + 2 n`, …
fn interleaved<T: Payload>(array: &VirtualArray<T>, threads: usize) -> Result<Sample> {
    on_threads(threads, |thread| {
        let indices = (thread..array.len()).step_by(threads);
        let count = indices.len();
        sum_of(array, indices)?;
        Ok((count * size_of::<T>()) as f64)
    })
}

/// Gets elements, and checks them by the sum of their keys.
fn sum_of<T: Payload>(array: &VirtualArray<T>, indices: impl Iterator<Item = usize>) -> Result<()> {
    let (mut sum, mut expected) = (0_u64, 0_u64);
    for index in indices {
        sum += u64::from(array.get(index)?.key());
        expected += u64::from(index as u32);
    }
    ensure!(black_box(sum) == expected, "the sum of the elements is {sum} instead of {expected}");
    Ok(())
}
