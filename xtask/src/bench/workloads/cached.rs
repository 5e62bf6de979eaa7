//! Elements whose pages are in the cache: what a hit costs, beside a `Vec` and a cache behind a lock.

use super::Bench;
use crate::bench::elements::{Payload, Record};
use crate::bench::lru::LockedCache;
use crate::bench::measure::{Sample, Unit, on_threads, until};
use crate::bench::results::Role;
use crate::random::Random;
use anyhow::Result;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use vmarray::VirtualArray;
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
    let mut random = Random::new(thread as u64 + 1);
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
    if !["get", "set"].iter().any(|way| bench.wants_any(&format!("cached/{way}/{}/", T::SIZE))) {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let effort = &setup.brief;
    let array: VirtualArray<T> = setup.filled(BYTES, None, 2 * BYTES)?;
    let len = array.len();
    let values: Vec<T> = (0..len).map(T::of).collect();
    let words: Vec<AtomicU32> = (0..len * size_of::<T>() / 4).map(|_| AtomicU32::new(0)).collect();
    let locked = LockedCache::<T>::new(&setup.devices, len, array.page_len(), 2 * BYTES)?;
    for index in 0..len {
        anyhow::ensure!(array.get(index)?.belongs_to(index), "element {index} is wrong");
        locked.get(index)?;
    }
    for threads in setup.thread_counts(true) {
        let name = |what: &str| format!("cached/{what}/{}/t{threads}", T::SIZE);
        if let Some(mut row) = bench.row(name("get"), Unit::MegaPerSecond) {
            row.ours(effort, &array, || {
                lookups(threads, effort.seconds, len, |list| {
                    let mut sum = 0_u32;
                    for &index in list {
                        sum = sum.wrapping_add(array.get(index as usize)?.key());
                    }
                    Ok(sum)
                })
            })?;
            row.measure(effort, "vec", Role::Limit, || {
                lookups(threads, effort.seconds, len, |list| {
                    Ok(list.iter().fold(0, |sum: u32, &index| sum.wrapping_add(values[index as usize].key())))
                })
            })?;
            row.other(effort, "lru", || {
                lookups(threads, effort.seconds, len, |list| {
                    let mut sum = 0_u32;
                    for &index in list {
                        sum = sum.wrapping_add(locked.get(index as usize)?.key());
                    }
                    Ok(sum)
                })
            })?;
            bench.push(row);
        }
        if let Some(mut row) = bench.row(name("set"), Unit::MegaPerSecond) {
            row.ours(effort, &array, || {
                lookups(threads, effort.seconds, len, |list| {
                    for &index in list {
                        array.set(index as usize, T::of(index as usize))?;
                    }
                    Ok(0)
                })
            })?;
            row.measure(effort, "vec", Role::Limit, || {
                lookups(threads, effort.seconds, len, |list| {
                    for &index in list {
                        T::store(&words, index as usize, &T::of(index as usize));
                    }
                    Ok(0)
                })
            })?;
            row.other(effort, "lru", || {
                lookups(threads, effort.seconds, len, |list| {
                    for &index in list {
                        locked.set(index as usize, T::of(index as usize))?;
                    }
                    Ok(0)
                })
            })?;
            bench.push(row);
        }
    }
    Ok(())
}

/// All elements in order, through each way that there is.
fn scan(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("cached/scan-by-") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let effort = &setup.brief;
    let array: VirtualArray<u32> = setup.filled(BYTES, None, 2 * BYTES)?;
    let values: Vec<u32> = (0..array.len()).map(u32::of).collect();
    let expected: u64 = values.iter().map(|value| u64::from(*value)).sum();
    let sum_of = |name: &str, sum: u64| {
        anyhow::ensure!(sum == expected, "{name}: the sum is {sum} and not {expected}");
        Ok(())
    };
    for threads in setup.thread_counts(false) {
        let all = |run: &(dyn Fn() -> Result<u64> + Sync)| {
            on_threads(threads, |_| {
                let rounds = until(effort.seconds, 1, || sum_of("scan", run()?))?;
                Ok(rounds * values.len() as f64)
            })
        };
        let sum = |values: &[u32]| values.iter().map(|value| u64::from(*value)).sum::<u64>();
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
        let iter = || {
            let sum = array.iter().try_fold(0, |sum, value| value.map(|value| sum + u64::from(value)))?;
            Ok(sum)
        };
        let pages = || array.pages().try_fold(0, |all, page| Ok(all + sum(&page?)));
        let ways: [(&str, &(dyn Fn() -> Result<u64> + Sync)); 4] =
            [("get", &get), ("cursor", &cursor), ("iter", &iter), ("pages", &pages)];
        for (way, run) in ways {
            let name = format!("cached/scan-by-{way}/4B/t{threads}");
            let Some(mut row) = bench.row(name, Unit::MegaPerSecond) else { continue };
            row.ours(effort, &array, || all(run))?;
            row.measure(effort, "vec", Role::Limit, || all(&vec))?;
            bench.push(row);
        }
    }
    Ok(())
}
