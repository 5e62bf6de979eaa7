//! Benchmark workloads on elements whose pages are cached: the time of a cache hit, compared with a `Vec`.

use crate::bench::elements::{Payload, Record};
use crate::bench::measure::{Sample, Unit, on_threads, until};
use crate::bench::results::Role;
use crate::bench::suite::Bench;
use anyhow::{Result, ensure};
use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use vmarray::VirtualArray;
use vmarray::device::racy;
use vmarray::device::wrap::SplitMix64;
use vmarray::prelude::*;

/// The size of an array in bytes: more than the second-level cache of most processors.
const BYTES: usize = 8 << 20;
/// The number of indices that are looked up repeatedly.
const STEPS: usize = 1 << 16;

pub fn run(bench: &mut Bench) -> Result<()> {
    elements::<u32>(bench)?;
    elements::<Record>(bench)?;
    scan::<u32>(bench)?;
    scan::<u64>(bench)
}

/// A `Vec` that several threads write to at once, as the competitor of an array.
struct Shared<T>(Vec<UnsafeCell<T>>);

// SAFETY: only `set` writes to the elements, by accesses that may race; no code reads them.
unsafe impl<T: Payload> Sync for Shared<T> {}

impl<T: Payload> Shared<T> {
    /// Writes an element at the cost of a plain assignment, which would be undefined behaviour for several
    /// threads.
    #[inline(always)]
    fn set(&self, index: usize, value: T) {
        let to = self.0[index].get();
        let bytes = bytemuck::bytes_of(&value);
        // SAFETY: the place is that of an element, aligned for it. All writes of a type use the same one
        // of these ways.
        unsafe {
            match size_of::<T>() {
                4 => (*to.cast::<AtomicU32>()).store(bytemuck::pod_read_unaligned(bytes), Ordering::Relaxed),
                _ => racy::write(to.cast(), bytes),
            }
        }
    }
}

/// Returns the random indices that each thread uses repeatedly.
fn lists(threads: usize, len: usize) -> Vec<Vec<u32>> {
    let list = |thread: usize| {
        let mut random = SplitMix64::new(thread as u64 + 1);
        (0..STEPS).map(|_| random.index(len) as u32).collect()
    };
    (0..threads).map(list).collect()
}

/// Calls `access` with each thread's indices. Sums the results, so that the compiler removes no call.
fn lookups(lists: &[Vec<u32>], seconds: f64, access: impl Fn(usize) -> Result<u64> + Sync) -> Result<Sample> {
    on_threads(lists.len(), |thread| {
        let rounds = until(seconds, 1, || {
            let mut list = black_box(&lists[thread]).iter();
            black_box(list.try_fold(0, |sum: u64, &at| anyhow::Ok(sum.wrapping_add(access(at as usize)?)))?);
            Ok(())
        })?;
        Ok(rounds * STEPS as f64)
    })
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
    let targets = Shared(values.iter().map(|value| UnsafeCell::new(*value)).collect());
    for index in 0..len {
        array.get(index)?.check(index)?;
    }
    for threads in setup.thread_counts(true) {
        let lists = &lists(threads, len);
        let name = |what: &str| format!("cached/{what}/{}/t{threads}", T::SIZE);
        bench.row(name("get"), Unit::MegaPerSecond, |_, row| {
            row.effort = setup.brief;
            row.ours(&array, || lookups(lists, seconds, |i| Ok(array.get(i)?.digest())))?;
            row.measure("vec", Role::Limit, || lookups(lists, seconds, |i| Ok(values[i].digest()))).map(drop)
        })?;
        bench.row(name("set"), Unit::MegaPerSecond, |_, row| {
            row.effort = setup.brief;
            row.ours(&array, || lookups(lists, seconds, |i| Ok(array.set(i, T::of(i)).map(|()| 0)?)))?;
            row.measure("vec", Role::Limit, || {
                lookups(lists, seconds, |i| {
                    targets.set(i, T::of(i));
                    Ok(0)
                })
            })
            .map(drop)
        })?;
    }
    Ok(())
}

fn sum<T: Payload>(values: &[T]) -> u64 {
    values.iter().fold(0, |sum, value| sum.wrapping_add(value.digest()))
}

/// Measures reads of all elements in order, by each method of the library.
fn scan<T: Payload>(bench: &mut Bench) -> Result<()> {
    let ways = ["scan-by-cursor", "scan-by-iter", "scan-by-fold", "scan-by-pages"];
    if !bench.wants_ways("cached", &ways, T::SIZE) {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let seconds = setup.brief.seconds;
    let array: VirtualArray<T> = setup.filled(BYTES, None, 2 * BYTES)?;
    let values: Vec<T> = (0..array.len()).map(T::of).collect();
    let expected = sum(&values);
    let vec = || Ok(sum(black_box(&values)));
    let vec_by_index = || {
        let (values, mut sum) = (&black_box(&values)[..], 0_u64);
        #[expect(clippy::needless_range_loop, reason = "the same loop as that of the array")]
        for index in 0..values.len() {
            sum = sum.wrapping_add(values[index].digest());
        }
        Ok(sum)
    };
    let cursor = || {
        let (mut cursor, mut sum) = (black_box(&array).cursor(), 0_u64);
        for index in 0..array.len() {
            sum = sum.wrapping_add(cursor.get(index)?.digest());
        }
        Ok(sum)
    };
    let iter = || {
        let mut sum = 0_u64;
        for value in black_box(&array) {
            sum = sum.wrapping_add(value?.digest());
        }
        Ok(sum)
    };
    let fold = || {
        let mut failed = None;
        let sum = black_box(&array).iter().fold(0_u64, |sum, value| match value {
            Ok(value) => sum.wrapping_add(value.digest()),
            Err(error) => {
                failed = Some(error);
                sum
            }
        });
        failed.map_or(Ok(sum), |error| Err(error.into()))
    };
    let pages =
        || black_box(&array).pages().try_fold(0, |all: u64, page| Ok(all.wrapping_add(sum::<T>(&page?))));
    type Way<'a> = &'a (dyn Fn() -> Result<u64> + Sync);
    let runs: [(Way<'_>, Way<'_>); 4] =
        [(&cursor, &vec_by_index), (&iter, &vec), (&fold, &vec), (&pages, &vec)];
    for threads in setup.thread_counts(false) {
        let all = |run: Way<'_>| {
            on_threads(threads, |_| {
                let rounds = until(seconds, 1, || {
                    let sum = run()?;
                    ensure!(sum == expected, "the sum is {sum} instead of {expected}");
                    Ok(())
                })?;
                Ok(rounds * values.len() as f64)
            })
        };
        for (way, (ours, vec)) in ways.into_iter().zip(runs) {
            let name = format!("cached/{way}/{}/t{threads}", T::SIZE);
            bench.row(name, Unit::MegaPerSecond, |_, row| {
                row.effort = setup.brief;
                row.ours(&array, || all(ours))?;
                row.measure("vec", Role::Limit, || all(vec)).map(drop)
            })?;
        }
    }
    Ok(())
}
