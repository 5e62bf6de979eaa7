//! Loops that get elements in order, one at a time. Threads have separate ranges, or all read the same pages.

use super::{Bench, size};
use crate::bench::elements::{Block, Payload, Record};
use crate::bench::measure::{Sample, Unit, on_threads};
use crate::bench::raw::Way;
use crate::bench::setup::part;
use anyhow::{Result, ensure};
use std::hint::black_box;
use vmarray::VirtualArray;
use vmarray::prelude::*;

pub fn run(bench: &mut Bench) -> Result<()> {
    let page_bytes: &[usize] = if bench.setup.quick { &[64 << 10] } else { &[16 << 10, 64 << 10, 512 << 10] };
    for &page_bytes in page_bytes {
        one::<u32>(bench, page_bytes)?;
        one::<Record>(bench, page_bytes)?;
        one::<Block>(bench, page_bytes)?;
    }
    Ok(())
}

fn one<T: Payload>(bench: &mut Bench, page_bytes: usize) -> Result<()> {
    let page_len = 1 << (page_bytes / size_of::<T>()).ilog2();
    let place = format!("{}/{}", T::SIZE, size(page_len * size_of::<T>()));
    if !bench.wants_ways("serial", &["per-thread", "interleaved", "cursor"], &place) {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let bytes = setup.medium_bytes.min(1 << 30);
    let array = setup.filled::<T>(bytes, Some(page_len), (bytes / 32).max(4 << 20))?;
    for threads in setup.thread_counts(false) {
        let name = |way: &str| format!("serial/{way}/{place}/t{threads}");
        bench.row(name("per-thread"), Unit::GigabytesPerSecond, |bench, row| {
            row.ours(&array, || per_thread(&array, threads))?;
            row.limit("bus", bench.raw.bus(Way::Down))?;
            row.limit("memcpy", bench.plain.memcpy(threads))?;
            row.limit("vec", bench.plain.scan(threads))
        })?;
        if size_of::<T>() < 4096 {
            bench.row(name("cursor"), Unit::GigabytesPerSecond, |bench, row| {
                row.ours(&array, || {
                    on_threads(threads, |thread| {
                        let part = part(array.len(), threads, thread, array.page_len());
                        let (mut cursor, mut sum) = (array.cursor(), 0);
                        for index in part.clone() {
                            sum += u64::from(cursor.get(index)?.key());
                        }
                        black_box(sum);
                        Ok((part.len() * size_of::<T>()) as f64)
                    })
                })?;
                row.limit("bus", bench.raw.bus(Way::Down))
            })?;
        }
        if threads > 1 {
            bench.row(name("interleaved"), Unit::GigabytesPerSecond, |bench, row| {
                row.ours(&array, || interleaved(&array, threads))?;
                row.limit("bus", bench.raw.bus(Way::Down))
            })?;
        }
    }
    Ok(())
}

/// Measures reads of single elements by several threads. Each thread reads its share in order.
pub fn per_thread<T: Payload>(array: &VirtualArray<T>, threads: usize) -> Result<Sample> {
    on_threads(threads, |thread| {
        let part = part(array.len(), threads, thread, array.page_len());
        sum_of(array, part.clone())?;
        Ok((part.len() * size_of::<T>()) as f64)
    })
}

/// Measures reads of single elements by several threads. Thread `t` of `n` reads the elements `t`, `t + n`,
/// `t + 2 n`, …
pub fn interleaved<T: Payload>(array: &VirtualArray<T>, threads: usize) -> Result<Sample> {
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
