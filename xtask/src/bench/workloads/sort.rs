//! Benchmark workloads of sorts: whole arrays of random keys, random keys with values, operations based on
//! sorts, and host memory that is larger than the device memory.
//!
//! `sort.cu`, in the same folder, sorts the same data by NVIDIA's CUB; compile and run it by hand.

use crate::bench::measure::{Unit, timed};
use crate::bench::raw::Way;
use crate::bench::results::Role;
use crate::bench::suite::{Bench, size};
use anyhow::{Result, ensure};
use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};
use rdst::{RadixKey, RadixSort};
use std::hint::black_box;
use vmarray::device::wrap::SplitMix64;
use vmarray::device::{Device, DeviceInfo, DeviceKind, HostMemory};
use vmarray::expr::{Expr, FieldType, index};
use vmarray::prelude::*;
use vmarray::views::SortKey;
use vmarray::{Element, Source};

/// The maximum size, in bytes, of arrays that are compared with a sorted `Vec`.
const VEC_BYTES_MAX: usize = 1 << 30;

pub fn run(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("sort/") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let room: u64 =
        setup.devices.iter().map(|device| device.memory().map_or(0, |memory| memory.free_bytes)).sum();
    // Leave out OpenCL: if its driver splits memory into several allocations, the sort needs further merges.
    let is_card = |info: &DeviceInfo| info.kind == DeviceKind::DiscreteGpu && info.backend != "opencl";
    let has_card = setup.devices.iter().any(|device| is_card(device.info()));
    let short = setup.medium_bytes / 4;
    let mut sizes = vec![short];
    if has_card && !setup.quick {
        // Add sizes of 2^32 keys of 32 bits, and 2^33 keys of 64 bits.
        sizes.extend([16 << 30, 64 << 30]);
    }
    orders(bench, setup.medium_bytes / 16)?;
    merged(bench, setup.medium_bytes / 2)?;
    for bytes in if has_card && !setup.quick { vec![short, 8 << 30, 32 << 30] } else { vec![short] } {
        source(bench, bytes)?;
    }
    for bytes in sizes {
        // Skip sizes for which device memory is short: a sort needs the array's memory once more.
        if 21 * (bytes as u64 / 10) > room {
            continue;
        }
        if 42 * (bytes as u64 / 10) < room {
            with_values::<u32>(bench, bytes, |bits| (bits >> 32).cast())?;
            with_values::<u64>(bench, bytes, |bits| bits)?;
        }
        one::<u32>(bench, bytes, |bits| (bits >> 32).cast())?;
        one::<u64>(bench, bytes, |bits| bits)?;
    }
    Ok(())
}

/// Returns an expression of distinct, random-looking bits for each index (finalizer of SplitMix64).
fn mixed<T: Element>() -> Expr<T, u64> {
    let mut bits = (index::<T>().cast::<u64>() + 1) * 0x9E37_79B9_7F4A_7C15_u64;
    for (shift, factor) in [(30, 0xBF58_476D_1CE4_E5B9_u64), (27, 0x94D0_49BB_1331_11EB)] {
        bits = (bits.clone() ^ (bits >> shift)) * factor;
    }
    bits.clone() ^ (bits >> 31)
}

/// Measures operations based on sorts of random 32-bit keys: argsort, distinct values, groups of about 64 and
/// their sums.
fn orders(bench: &mut Bench, bytes: usize) -> Result<()> {
    let (setup, len) = (bench.setup.clone(), bytes / 4);
    let own = Field::<u32, u32>::whole;
    for kind in ["argsort", "unique", "group_by"] {
        bench.row(format!("sort/{kind}/u32/{}", size(bytes)), Unit::MegaPerSecond, |_, row| {
            let most = if kind == "group_by" { len as u64 / 64 } else { len as u64 };
            let array = setup.array::<u32>(len, None, 64 << 20)?;
            array.transform(.., own().set(((mixed() >> 32) % most).cast()))?;
            row.ours(&array, || {
                timed(setup.threads, || {
                    let found = match kind {
                        "argsort" => array.argsort(.., own())?.len(),
                        "unique" => array.unique(..)?.len(),
                        _ => array.group_by(.., own())?.sum(&array)?.len(),
                    };
                    black_box(found);
                    Ok(len as f64)
                })
            })
        })?;
    }
    Ok(())
}

/// Measures sorts of random keys in page-locked memory of the program, with device memory for a quarter of
/// them. The amount counts the bytes that must pass the bus: each byte up and down, twice.
fn source(bench: &mut Bench, bytes: usize) -> Result<()> {
    let setup = bench.setup.clone();
    // Run only if RAM has room for one and a half times the source.
    if available_bytes().is_some_and(|available| available < bytes as u64 / 2 * 3) {
        return Ok(());
    }
    let name = format!("sort/source/u64/{}", size(bytes));
    bench.row(name, Unit::GigabytesPerSecond, |bench, row| {
        let builder = Source::builder(vec![0_u64; bytes / 8]).devices(setup.devices.iter().cloned());
        let mut source = builder.device_bytes(bytes as u64 / 4).import(HostMemory::Pinned).build()?;
        source.reset_stats();
        let series = row.measure("ours", Role::Ours, || {
            let keys = source.slice_mut(..)?.par_chunks_mut(1 << 20).enumerate();
            let expected = keys.map(|(number, keys)| {
                let mut random = SplitMix64::new(number as u64);
                keys.fill_with(|| random.next());
                keys.iter().fold(0, |sum: u64, key| sum.wrapping_add(*key))
            });
            let expected = expected.reduce(|| 0, u64::wrapping_add);
            let sample = timed(setup.threads, || {
                source.sort(..)?;
                Ok(4.0 * bytes as f64)
            })?;
            let keys = source.slice(..)?;
            ensure!(keys.par_windows(2).all(|two| two[0] <= two[1]), "the sorted keys are out of order");
            let sum = keys.par_iter().copied().reduce(|| 0, u64::wrapping_add);
            ensure!(sum == expected, "the sum of all keys is {sum}, not {expected}");
            Ok(sample)
        })?;
        row.count_source(&source.stats().total(), &series);
        row.limit("bus", bench.raw.bus(Way::Both))
    })
}

/// Returns the available RAM, if the system reports it.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Measures sorts of keys with values of the same length.
fn with_values<T: SortKey + FieldType<Value = T>>(
    bench: &mut Bench,
    bytes: usize,
    of: impl Fn(Expr<T, u64>) -> Expr<T, T>,
) -> Result<()> {
    let setup = bench.setup.clone();
    let kind = format!("u{}/{}", 8 * size_of::<T>(), size(bytes));
    let own = || Field::<T, T>::whole();
    bench.row(format!("sort/pairs/{kind}"), Unit::MegaPerSecond, |_, row| {
        let array = || setup.array::<T>(bytes / size_of::<T>(), None, 64 << 20);
        let (keys, values) = (array()?, array()?);
        row.ours(&keys, || {
            keys.transform(.., own().set(of(mixed())))?;
            timed(setup.threads, || {
                keys.sort_with(.., &values)?;
                Ok(keys.len() as f64)
            })
        })
    })
}

/// Measures sorts in which two channels of the first device sort half of the keys each, and merge them.
fn merged(bench: &mut Bench, bytes: usize) -> Result<()> {
    let setup = bench.setup.clone();
    bench.row(format!("sort/merged/u32/{}", size(bytes)), Unit::MegaPerSecond, |_, row| {
        let two = [setup.devices[0].clone(), setup.devices[0].clone()];
        let builder = VirtualArray::<u32>::builder(bytes / 4).devices(two).page_len(1 << 20);
        let array = builder.cache_bytes(64 << 20).build()?;
        row.ours(&array, || {
            array.transform(.., Field::<u32, u32>::whole().set((mixed() >> 32).cast()))?;
            timed(setup.threads, || {
                array.sort(..)?;
                Ok(array.len() as f64)
            })
        })
    })
}

fn one<T: SortKey + FieldType<Value = T> + Ord + RadixKey>(
    bench: &mut Bench,
    bytes: usize,
    of: impl Fn(Expr<T, u64>) -> Expr<T, T>,
) -> Result<()> {
    let setup = bench.setup.clone();
    let name = format!("sort/u{}/{}/random", 8 * size_of::<T>(), size(bytes));
    bench.row(name, Unit::MegaPerSecond, |_, row| {
        let array = setup.array::<T>(bytes / size_of::<T>(), None, 64 << 20)?;
        let fill = || array.transform(.., Field::whole().set(of(mixed())));
        fill()?;
        let unsorted = if bytes <= VEC_BYTES_MAX { array.to_vec(..)? } else { Vec::new() };
        let ours = &mut || {
            fill()?;
            timed(setup.threads, || {
                array.sort(..)?;
                Ok(array.len() as f64)
            })
        };
        if unsorted.is_empty() {
            return row.ours(&array, ours);
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(setup.threads).build()?;
        row.measure_in_turn(&mut [
            ("ours", Role::Ours, ours),
            ("rayon", Role::Alternative, &mut || {
                let mut values = black_box(unsorted.clone());
                timed(setup.threads, || {
                    pool.install(|| values.par_sort_unstable());
                    Ok(values.len() as f64)
                })
            }),
            ("rdst", Role::Alternative, &mut || {
                let mut values = black_box(unsorted.clone());
                timed(setup.threads, || {
                    pool.install(|| values.radix_sort_unstable());
                    Ok(values.len() as f64)
                })
            }),
        ])
    })
}
