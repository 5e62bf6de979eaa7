//! Random elements of arrays far larger than the cache: nearly every access is a miss.

use super::{Bench, size};
use crate::bench::elements::{Block, Payload, Record};
use crate::bench::lru::LockedCache;
use crate::bench::managed::ManagedMemory;
use crate::bench::mapped_file::MappedFile;
use crate::bench::measure::{Sample, Unit, on_threads, until};
use crate::random::Random;
use anyhow::{Result, ensure};
use vmarray::prelude::*;

/// One array.
struct Case {
    /// Elements of a page, if not the default.
    page_len: Option<usize>,
    /// How many times larger than the cache the array is.
    times: usize,
    /// Whether alternatives are measured too.
    others: bool,
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let case = |page_len, times, others| Case { page_len, times, others };
    let mut words = vec![case(None, 100, true)];
    let mut records = vec![case(Some(64), 100, true)];
    let blocks = [case(Some(1), 100, true)];
    if !bench.setup.quick {
        words.push(case(Some(1024), 100, false));
        records.extend([case(None, 100, false), case(None, 10, false)]);
    }
    words.iter().try_for_each(|case| one::<u32>(bench, case))?;
    records.iter().try_for_each(|case| one::<Record>(bench, case))?;
    blocks.iter().try_for_each(|case| one::<Block>(bench, case))
}

/// Calls `step` with random indices, by threads, for some time.
pub fn at_random(
    threads: usize,
    seconds: f64,
    len: usize,
    seed: u64,
    step: impl Fn(usize) -> Result<()> + Sync,
) -> Result<Sample> {
    on_threads(threads, |thread| {
        let mut random = Random::new(seed * 1000 + thread as u64);
        until(seconds, 16, || step(random.index(len)))
    })
}

fn one<T: Payload>(bench: &mut Bench, case: &Case) -> Result<()> {
    let ways = ["get", "set", "get-uncached"];
    if !ways.iter().any(|way| bench.wants_any(&format!("random/{way}/{}/", T::SIZE))) {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let effort = &setup.effort;
    let bytes = setup.medium_bytes;
    let array = setup.filled::<T>(bytes, case.page_len, bytes / case.times)?;
    let (len, page_bytes) = (array.len(), array.page_len() * size_of::<T>());
    let mut others = if case.others {
        let bytes = bytes.min(1 << 30);
        let len = bytes / size_of::<T>();
        let locked = LockedCache::<T>::new(&setup.devices, len, array.page_len(), bytes / case.times)?;
        let managed = ManagedMemory::<T>::new(&setup, bytes)?;
        Some((locked, MappedFile::<T>::new(setup.file_bytes)?, managed))
    } else {
        None
    };
    let mut seed = 0;
    for threads in setup.thread_counts(false) {
        let name = |what: &str| {
            format!("random/{what}/{}/{}/cache-1:{}/t{threads}", T::SIZE, size(page_bytes), case.times)
        };
        let mut lookups = |step: &(dyn Fn(usize) -> Result<()> + Sync), len: usize| {
            seed += 1;
            at_random(threads, effort.seconds, len, seed, step)
        };
        if let Some(mut row) = bench.row(name("get"), Unit::KiloPerSecond) {
            let get = |index| {
                ensure!(array.get(index)?.belongs_to(index), "element {index} is wrong");
                Ok(())
            };
            row.ours(effort, &array, || lookups(&get, len))?;
            row.limit("single", bench.raw.single(page_bytes, threads)?);
            if let Some((locked, file, managed)) = &mut others {
                row.other(effort, "lru", || {
                    let get = |index| {
                        ensure!(locked.get(index)?.belongs_to(index), "element {index} is wrong");
                        Ok(())
                    };
                    lookups(&get, locked.len())
                })?;
                row.other(effort, "mmap", || {
                    file.forget()?;
                    let slice = file.slice();
                    let get = |index: usize| {
                        ensure!(slice[index].belongs_to(index), "element {index} is wrong");
                        Ok(())
                    };
                    lookups(&get, file.len())
                })?;
                if let Some(managed) = managed {
                    row.other(effort, "managed", || {
                        managed.forget()?;
                        let slice = managed.slice();
                        let get = |index: usize| {
                            ensure!(slice[index].belongs_to(index), "element {index} is wrong");
                            Ok(())
                        };
                        lookups(&get, managed.len())
                    })?;
                }
            }
            bench.push(row);
        }
        if case.others
            && let Some(mut row) = bench.row(name("get-uncached"), Unit::KiloPerSecond)
        {
            let get = |index| {
                ensure!(array.get_uncached(index)?.belongs_to(index), "element {index} is wrong");
                Ok(())
            };
            row.ours(effort, &array, || lookups(&get, len))?;
            row.limit("single", bench.raw.single(size_of::<T>(), threads)?);
            bench.push(row);
        }
        if case.others
            && let Some(mut row) = bench.row(name("set"), Unit::KiloPerSecond)
        {
            let set = |index| Ok(array.set(index, T::of(index))?);
            row.ours(effort, &array, || lookups(&set, len))?;
            row.limit("single", bench.raw.single(page_bytes, threads)?);
            bench.push(row);
        }
    }
    Ok(())
}
