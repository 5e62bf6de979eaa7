//! Workloads that another program of its kind runs too: same element sizes, page lengths, threads, and sizes
//! of array and cache. The program is started by a command template and prints lines of `name value unit`
//! with the names used here.

use super::{Bench, bulk, random, serial};
use crate::bench::elements::{Block, Payload, Record};
use crate::bench::measure::{Sample, Unit, on_threads, timed};
use crate::bench::setup::Setup;
use anyhow::{Result, ensure};
use std::hint::black_box;
use vmarray::prelude::*;
use vmarray::{Field, VirtualArray, field};

/// Channels of the other program. Array sizes are multiples of so many pages.
const CHANNELS: usize = 16;

pub fn run(bench: &mut Bench) -> Result<()> {
    let threads = bench.setup.threads;
    cached(bench)?;
    misses(bench)?;
    one::<Record>(bench, "random-get-44B-p1000", 1000, Unit::KiloPerSecond, |setup, array, turn| {
        random_get(setup, array, threads, turn)
    })?;
    one::<Block>(bench, "random-get-4KiB-p1", 1, Unit::KiloPerSecond, |setup, array, turn| {
        random_get(setup, array, threads, turn)
    })?;
    one::<Block>(bench, "serial-get-4KiB-p32", 32, Unit::GigabytesPerSecond, |_, array, _| {
        serial::per_thread(array, threads)
    })?;
    one::<Record>(bench, "serial-get-44B-p10000", 10_000, Unit::GigabytesPerSecond, |_, array, _| {
        serial::per_thread(array, threads)
    })?;
    one::<Record>(bench, "interleaved-get-44B-p1000", 1000, Unit::GigabytesPerSecond, |_, array, _| {
        serial::interleaved(array, threads)
    })?;
    one::<Record>(bench, "bulk-read-44B-p10000", 10_000, Unit::GigabytesPerSecond, |_, array, _| {
        bulk::read(array, threads, 100_000)
    })?;
    one::<Record>(bench, "bulk-write-44B-p10000", 10_000, Unit::GigabytesPerSecond, |_, array, _| {
        bulk::write(array, threads, 100_000)
    })?;
    one::<Record>(bench, "bulk-write-44B-p10000-x4", 10_000, Unit::GigabytesPerSecond, |_, array, _| {
        bulk::write(array, 4 * threads, 100_000)
    })?;
    find::<u32>(bench, "find-4B-p16384", 16_384, Field::whole())?;
    find::<Record>(bench, "find-4B-in-44B-p10000", 10_000, field!(Record, last))
}

/// An array of about `bytes` bytes with a cache of a hundredth, or of a few pages a channel.
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
    run: impl Fn(&Setup, &VirtualArray<T>, u64) -> Result<Sample>,
) -> Result<()> {
    let Some(mut row) = bench.row(format!("peer/{name}"), unit) else { return Ok(()) };
    let setup = bench.setup.clone();
    let array = array::<T>(&setup, setup.peer_bytes, page_len)?;
    let mut turn = 0;
    row.ours(&setup.effort, &array, || {
        turn += 1;
        run(&setup, &array, turn)
    })?;
    bench.push(row);
    Ok(())
}

fn random_get<T: Payload>(
    setup: &Setup,
    array: &VirtualArray<T>,
    threads: usize,
    turn: u64,
) -> Result<Sample> {
    random::at_random(threads, setup.effort.seconds, array.len(), turn, |index| {
        ensure!(array.get(index)?.belongs_to(index), "element {index} is wrong");
        Ok(())
    })
}

/// One thread, all pages resident, in order.
fn cached(bench: &mut Bench) -> Result<()> {
    const BYTES: usize = 4 << 20;
    const PASSES: usize = 4;
    if !bench.wants_any("peer/cached-") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let array: VirtualArray<u32> = setup.filled(BYTES, Some(1024), 2 * BYTES)?;
    let len = array.len();
    for index in 0..len {
        ensure!(array.get(index)?.belongs_to(index), "element {index} is wrong");
    }
    if let Some(mut row) = bench.row("peer/cached-get-4B", Unit::Nanoseconds) {
        row.ours(&setup.effort, &array, || {
            on_threads(1, |_| {
                let mut sum = 0;
                for _ in 0..PASSES {
                    for index in 0..len {
                        sum += u64::from(array.get(index)?);
                    }
                }
                let expected = (PASSES * (len * (len - 1) / 2)) as u64;
                ensure!(black_box(sum) == expected, "the sum is {sum} and not {expected}");
                Ok((PASSES * len) as f64)
            })
        })?;
        bench.push(row);
    }
    if let Some(mut row) = bench.row("peer/cached-set-4B", Unit::Nanoseconds) {
        row.ours(&setup.effort, &array, || {
            on_threads(1, |_| {
                for _ in 0..PASSES {
                    for index in 0..len {
                        array.set(index, index as u32)?;
                    }
                }
                Ok((PASSES * len) as f64)
            })
        })?;
        bench.push(row);
    }
    Ok(())
}

/// One thread, nearly every access a miss; and, when writing, a dirty page to evict.
fn misses(bench: &mut Bench) -> Result<()> {
    one::<Record>(bench, "miss-get-44B-p1000", 1000, Unit::Microseconds, |setup, array, turn| {
        random_get(setup, array, 1, turn)
    })?;
    one::<Record>(bench, "miss-set-44B-p1000", 1000, Unit::Microseconds, |setup, array, turn| {
        random::at_random(1, setup.effort.seconds, array.len(), turn, |index| {
            Ok(array.set(index, Record::of(index))?)
        })
    })
}

fn find<T: Payload>(bench: &mut Bench, name: &str, page_len: usize, field: Field<T, u32>) -> Result<()> {
    let Some(mut row) = bench.row(format!("peer/{name}"), Unit::GigabytesPerSecond) else { return Ok(()) };
    let setup = bench.setup.clone();
    // A gigabyte of words where there are 3.52 of records.
    let bytes = if size_of::<T>() == 4 { setup.peer_bytes / 352 * 100 } else { setup.peer_bytes };
    let array = array::<T>(&setup, bytes, page_len)?;
    let wanted = array.len() - 5;
    row.ours(&setup.effort, &array, || {
        timed(1, || {
            let found = array.find_first(.., field, &(wanted as u32), 1)?.indices;
            ensure!(found == [wanted], "found {found:?} and not {wanted}");
            Ok((array.len() * size_of::<T>()) as f64)
        })
    })?;
    bench.push(row);
    Ok(())
}
