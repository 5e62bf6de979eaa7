//! Elements whose pages are in the cache: what a hit costs, beside a `Vec` and a cache behind a lock.

use super::Bench;
use crate::bench::elements::{Payload, Record};
use crate::bench::lru::LockedCache;
use crate::bench::measure::{Sample, Unit, on_threads, until};
use crate::bench::results::Role;
use anyhow::{Result, ensure};
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use vmarray::VirtualArray;
use vmarray::device::wrap::SplitMix64;
use vmarray::prelude::*;

/// More than the second-level cache of most processors.
const BYTES: usize = 8 << 20;
/// Random indices that are looked up again and again.
const STEPS: usize = 1 << 16;

pub fn run(bench: &mut Bench) -> Result<()> {
    elements::<u32>(bench)?;
    elements::<Record>(bench)?;
    scan(bench)
}

/// Calls `access` with a thread's random indices, again and again. The sum of what it gives is kept, so that
/// nothing is left out.
fn lookups(
    threads: usize,
    seconds: f64,
    len: usize,
    access: impl Fn(usize) -> Result<u32> + Sync,
) -> Result<Sample> {
    let list = |thread| {
        let mut random = SplitMix64::new(thread + 1);
        (0..STEPS).map(|_| random.index(len) as u32).collect()
    };
    let lists: Vec<Vec<u32>> = (0..threads as u64).map(list).collect();
    on_threads(threads, |thread| {
        let rounds = until(seconds, 1, || {
            let mut list = black_box(&lists[thread]).iter();
            black_box(list.try_fold(0, |sum: u32, &at| anyhow::Ok(sum.wrapping_add(access(at as usize)?)))?);
            Ok(())
        })?;
        Ok(rounds * STEPS as f64)
    })
}

/// Writes an element as threads can that share a `Vec`. Gives its key.
#[inline(always)]
fn store<T: Payload>(to: &[AtomicU32], index: usize, value: &T) -> u32 {
    let words: &[u32] = bytemuck::cast_slice(std::slice::from_ref(value));
    for (to, word) in to[index * words.len()..].iter().zip(words) {
        to.store(*word, Ordering::Relaxed);
    }
    value.key()
}

fn elements<T: Payload>(bench: &mut Bench) -> Result<()> {
    if !bench.wants_ways("cached", &["get", "set"], T::SIZE) {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let seconds = setup.brief.seconds;
    let array: VirtualArray<T> = setup.filled(BYTES, None, 2 * BYTES)?;
    let len = array.len();
    let values: Vec<T> = (0..len).map(T::of).collect();
    let words: Vec<AtomicU32> = (0..len * size_of::<T>() / 4).map(|_| AtomicU32::new(0)).collect();
    let locked = LockedCache::<T>::new(&setup.devices, len, array.page_len(), 2 * BYTES)?;
    for index in 0..len {
        array.get(index)?.check(index)?;
        locked.get(index)?;
    }
    for threads in setup.thread_counts(true) {
        let name = |what: &str| format!("cached/{what}/{}/t{threads}", T::SIZE);
        bench.row(name("get"), Unit::MegaPerSecond, |_, row| {
            row.effort = setup.brief;
            row.ours(&array, || lookups(threads, seconds, len, |i| Ok(array.get(i)?.key())))?;
            row.measure("vec", Role::Limit, || lookups(threads, seconds, len, |i| Ok(values[i].key())))?;
            row.other("lru", || lookups(threads, seconds, len, |i| Ok(locked.get(i)?.key())))
        })?;
        bench.row(name("set"), Unit::MegaPerSecond, |_, row| {
            row.effort = setup.brief;
            row.ours(&array, || {
                lookups(threads, seconds, len, |i| Ok(array.set(i, T::of(i)).map(|()| 0)?))
            })?;
            row.measure("vec", Role::Limit, || {
                lookups(threads, seconds, len, |i| Ok(store(&words, i, &T::of(i))))
            })?;
            row.other("lru", || lookups(threads, seconds, len, |i| locked.set(i, T::of(i)).map(|()| 0)))
        })?;
    }
    Ok(())
}

/// All elements in order, through each way that there is.
fn scan(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("cached/scan-by-") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let seconds = setup.brief.seconds;
    let array: VirtualArray<u32> = setup.filled(BYTES, None, 2 * BYTES)?;
    let values: Vec<u32> = (0..array.len()).map(u32::of).collect();
    let sum = |values: &[u32]| values.iter().map(|value| u64::from(*value)).sum::<u64>();
    let expected = sum(&values);
    let vec = || Ok(sum(black_box(&values)));
    let get = || {
        let mut sum = 0;
        for index in 0..array.len() {
            sum += u64::from(array.get(index)?);
        }
        Ok(sum)
    };
    let cursor = || {
        let (mut cursor, mut sum) = (array.cursor(), 0);
        for index in 0..array.len() {
            sum += u64::from(cursor.get(index)?);
        }
        Ok(sum)
    };
    let iter = || Ok(array.iter().try_fold(0, |sum, value| value.map(|value| sum + u64::from(value)))?);
    let pages = || array.pages().try_fold(0, |all, page| Ok(all + sum(&page?)));
    let ways: [(&str, &(dyn Fn() -> Result<u64> + Sync)); 4] =
        [("get", &get), ("cursor", &cursor), ("iter", &iter), ("pages", &pages)];
    for threads in setup.thread_counts(false) {
        let all = |run: &(dyn Fn() -> Result<u64> + Sync)| {
            on_threads(threads, |_| {
                let rounds = until(seconds, 1, || {
                    let sum = run()?;
                    ensure!(sum == expected, "the sum is {sum} and not {expected}");
                    Ok(())
                })?;
                Ok(rounds * values.len() as f64)
            })
        };
        for (way, run) in ways {
            let name = format!("cached/scan-by-{way}/4B/t{threads}");
            bench.row(name, Unit::MegaPerSecond, |_, row| {
                row.effort = setup.brief;
                row.ours(&array, || all(run))?;
                row.measure("vec", Role::Limit, || all(&vec)).map(drop)
            })?;
        }
    }
    Ok(())
}
