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

fn indices(len: usize, thread: usize) -> Vec<u32> {
    let mut random = SplitMix64::new(thread as u64 + 1);
    (0..STEPS).map(|_| random.index(len) as u32).collect()
}

/// Runs `all` on a thread's list of random indices, again and again. It returns the sum of what it has found,
/// so that nothing is left out.
fn lookups(
    threads: usize,
    seconds: f64,
    len: usize,
    all: impl Fn(&[u32]) -> Result<u32> + Sync,
) -> Result<Sample> {
    let lists: Vec<Vec<u32>> = (0..threads).map(|thread| indices(len, thread)).collect();
    on_threads(threads, |thread| {
        let list = &lists[thread];
        let rounds = until(seconds, 1, || {
            black_box(all(black_box(list))?);
            Ok(())
        })?;
        Ok(rounds * list.len() as f64)
    })
}

/// What a `Vec` shared by threads can be read and written as.
trait Plain: Payload {
    fn store(to: &[AtomicU32], index: usize, value: &Self);
}

impl Plain for u32 {
    #[inline(always)]
    fn store(to: &[AtomicU32], index: usize, value: &Self) {
        to[index].store(*value, Ordering::Relaxed);
    }
}

impl Plain for Record {
    #[inline(always)]
    fn store(to: &[AtomicU32], index: usize, value: &Self) {
        let words: &[u32] = bytemuck::cast_slice(std::slice::from_ref(value));
        for (to, word) in to[index * 11..index * 11 + 11].iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
    }
}

fn elements<T: Plain>(bench: &mut Bench) -> Result<()> {
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
            row.ours(&array, || {
                lookups(threads, seconds, len, |list| sum(list, |index| Ok(array.get(index)?.key())))
            })?;
            row.measure("vec", Role::Limit, || {
                lookups(threads, seconds, len, |list| sum(list, |index| Ok(values[index].key())))
            })?;
            row.other("lru", || {
                lookups(threads, seconds, len, |list| sum(list, |index| Ok(locked.get(index)?.key())))
            })
        })?;
        bench.row(name("set"), Unit::MegaPerSecond, |_, row| {
            row.effort = setup.brief;
            row.ours(&array, || {
                lookups(threads, seconds, len, |list| each(list, |i| Ok(array.set(i, T::of(i))?)))
            })?;
            row.measure("vec", Role::Limit, || {
                let store = |i: usize| {
                    T::store(&words, i, &T::of(i));
                    Ok(())
                };
                lookups(threads, seconds, len, |list| each(list, store))
            })?;
            row.other("lru", || {
                lookups(threads, seconds, len, |list| each(list, |i| locked.set(i, T::of(i))))
            })
        })?;
    }
    Ok(())
}

#[inline(always)]
fn sum(list: &[u32], get: impl Fn(usize) -> Result<u32>) -> Result<u32> {
    list.iter().try_fold(0, |sum: u32, &index| Ok(sum.wrapping_add(get(index as usize)?)))
}

#[inline(always)]
fn each(list: &[u32], set: impl Fn(usize) -> Result<()>) -> Result<u32> {
    list.iter().try_for_each(|&index| set(index as usize))?;
    Ok(0)
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
