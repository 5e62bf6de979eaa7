//! Joins two index sets of 2^22 tuples in four ways: in memory; with the result in an array, and little RAM;
//! with the inputs in arrays too; and on the devices of these arrays, if one is a GPU.
//!
//! Both sets have four columns of values from 0 to 1000, and two dimensions in common. The result has about
//! 17.5 million tuples.
//!
//!     cargo run --release -p vmarray --example 11_index_sets [-- TUPLES_LOG2 [THREADS...]]
//!
//! prints the least and the median time of interleaved repetitions for each number of threads, and a digest
//! of the results. Without `--release` the sets have 2^16 tuples. The array is on the devices of the
//! machine, or on the devices that the environment variable `VMARRAY_DEVICES` names.

use std::error::Error;
use std::time::{Duration, Instant};
use vmarray::prelude::*;

use vmarray::index_set::{Combine, Dimension, PagedIndexSet, Tuples};
use vmarray::{IndexSet, device::Device};

/// Tuples of each set, as a power of two: fewer for code that is not optimised.
const LOG2: u32 = if cfg!(debug_assertions) { 16 } else { 22 };
const LARGEST: u64 = 1000;
/// All the RAM that the array may use. Small enough to stay in a processor's cache.
const CACHE_BYTES: usize = 16 << 20;
/// Working memory for inputs in arrays.
const MEMORY_BYTES: usize = 128 << 20;
const REPETITIONS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let log2: u32 = arguments.next().map_or(Ok(LOG2), |text| text.parse())?;
    let mut threads = arguments.map(|text| text.parse()).collect::<Result<Vec<usize>, _>>()?;
    if threads.is_empty() {
        threads.push(std::thread::available_parallelism()?.get());
    }
    let a = random([0, 1, 2, 3], 1 << log2, 1)?;
    let b = random([0, 2, 5, 6], 1 << log2, 2)?;
    for device in vmarray::devices()? {
        println!("on {}", device.info());
    }
    for threads in threads {
        compare(&a, &b, threads)?;
    }
    Ok(())
}

fn compare(a: &IndexSet, b: &IndexSet, threads: usize) -> Result<(), Box<dyn Error>> {
    let [mut counted, mut memory, mut paged, mut paged_again, mut all_paged, mut on_devices] =
        [const { Vec::new() }; 6];
    let in_pages = |set| PagedIndexSet::from_index_set(set, |array| array.cache_bytes(CACHE_BYTES));
    let (paged_a, paged_b) = (in_pages(a)?, in_pages(b)?);
    let mut digest = None;
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        let combination = Combine::new(a, b).threads(threads).run()?;
        counted.push(start.elapsed());
        let set = combination.to_index_set()?;
        memory.push(start.elapsed());
        drop(combination);
        let in_memory = (set.len(), set.values().iter().fold(0, next));
        let tuples = sum_of(&set);
        drop(set);

        let start = Instant::now();
        let combination = Combine::new(a, b).threads(threads).run()?;
        let set = combination.to_paged(|array| array.cache_bytes(CACHE_BYTES))?;
        paged.push(start.elapsed());
        drop(combination);
        let start = Instant::now();
        let combination = Combine::new(a, b).threads(threads).run()?;
        combination.write_to(set.array(), 0)?;
        paged_again.push(start.elapsed());
        drop(combination);

        let mut in_pages = 0;
        for page in set.array().pages() {
            in_pages = page?.iter().fold(in_pages, next);
        }
        assert_eq!(in_memory, (set.len(), in_pages), "the same results in the same order");
        assert_eq!(in_memory, *digest.get_or_insert(in_memory));

        // The results are in another order, because the second set is cut into blocks.
        let start = Instant::now();
        let combination =
            Combine::new(&paged_a, &paged_b).threads(threads).memory_bytes(MEMORY_BYTES).run()?;
        combination.write_to(set.array(), 0)?;
        all_paged.push(start.elapsed());
        let mut tuples_in_pages = 0_u64;
        for first in (0..set.len()).step_by(1 << 16) {
            let part = set.to_index_set(first..set.len().min(first + (1 << 16)))?;
            tuples_in_pages = tuples_in_pages.wrapping_add(sum_of(&part));
        }
        assert_eq!(tuples, tuples_in_pages, "the same results");

        let start = Instant::now();
        let set = paged_a.combine(&paged_b)?;
        on_devices.push(start.elapsed());
        let mut in_pages = 0;
        for page in set.array().pages() {
            in_pages = page?.iter().fold(in_pages, next);
        }
        assert_eq!(in_memory, (set.len(), in_pages), "the same results in the same order");
    }
    let (len, digest) = digest.unwrap_or_default();
    println!("{threads} threads: {len} results, {} MiB, digest {digest:016x}", (len * 6 * 8) >> 20);
    for (name, times) in [
        ("counted", &mut counted),
        ("in memory", &mut memory),
        ("in a new array", &mut paged),
        ("in an array once more", &mut paged_again),
        ("inputs in arrays, too", &mut all_paged),
        ("on their devices", &mut on_devices),
    ] {
        times.sort_unstable();
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let (least, median) = (milliseconds(times[0]), milliseconds(times[times.len() / 2]));
        println!("  {name:<22} least {least:6.0} ms, median {median:6.0} ms");
    }
    Ok(())
}

fn random(dimensions: [Dimension; 4], tuples: usize, seed: u64) -> vmarray::Result<IndexSet> {
    let mut state = seed;
    let value = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % (LARGEST + 1)
    };
    IndexSet::from_values(dimensions, (0..4 * tuples).map(value).collect())
}

/// A digest of tuples in any order.
fn sum_of(set: &IndexSet) -> u64 {
    set.rows().map(|row| row.iter().fold(0, next)).fold(0, u64::wrapping_add)
}

/// A digest of a sequence.
fn next(digest: u64, value: &u64) -> u64 {
    (digest ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}
