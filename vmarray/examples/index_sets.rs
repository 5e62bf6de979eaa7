//! Two index sets of 2^22 tuples combined: in memory, and into an array of pages with little RAM.
//!
//! Both have four columns of values from 0 to 1000, two of them with dimensions in common; about 17.5 million tuples
//! come out.
//!
//! `cargo run --release --example index_sets [TUPLES_LOG2 [THREADS...]]` prints the median times of interleaved
//! repetitions for each number of threads, and a digest of the results.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmarray::host::HostDevice;
use vmarray::{Combine, Dimension, IndexSet};

const LARGEST: u64 = 1000;
const CACHE_BYTES: usize = 64 << 20;
const REPETITIONS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let log2: u32 = arguments.next().map_or(Ok(22), |text| text.parse())?;
    let mut threads = arguments.map(|text| text.parse()).collect::<Result<Vec<usize>, _>>()?;
    if threads.is_empty() {
        threads.push(std::thread::available_parallelism()?.get());
    }
    let a = random([0, 1, 2, 3], 1 << log2, 1)?;
    let b = random([0, 2, 5, 6], 1 << log2, 2)?;
    for threads in threads {
        compare(&a, &b, threads)?;
    }
    Ok(())
}

fn compare(a: &IndexSet, b: &IndexSet, threads: usize) -> Result<(), Box<dyn Error>> {
    let (mut counts, mut memory, mut paged, mut paged_again) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let bytes = Combine::new(a, b).run()?.len() * 6 * 8;
    let mut digest = None;
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        let combination = Combine::new(a, b).threads(threads).run()?;
        counts.push(start.elapsed());
        let set = combination.to_index_set()?;
        memory.push(start.elapsed());
        drop(combination);
        let in_memory = set.values().iter().fold(0, next);
        let len = set.len();
        drop(set);

        let start = Instant::now();
        let device = Arc::new(HostDevice::new(bytes as u64 + (1 << 20))?);
        let combination = Combine::new(a, b).threads(threads).run()?;
        let set = combination.to_paged(|array| array.devices([device]).cache_bytes(CACHE_BYTES))?;
        paged.push(start.elapsed());
        let start = Instant::now();
        let combination = Combine::new(a, b).threads(threads).run()?;
        combination.write_to(set.array(), 0)?;
        paged_again.push(start.elapsed());
        drop(combination);

        let mut in_pages = 0;
        for page in set.array().pages() {
            in_pages = page?.iter().fold(in_pages, next);
        }
        assert_eq!(in_memory, in_pages, "the same results in the same order");
        assert_eq!(*digest.get_or_insert((len, in_memory)), (len, in_memory));
    }
    let (len, digest) = digest.unwrap_or_default();
    println!("{threads} threads: {len} results, {} MiB, digest {digest:016x}", bytes >> 20);
    println!("  counted               {:>8.1?}", median(&mut counts));
    println!("  in memory             {:>8.1?}", median(&mut memory));
    println!("  in a new array        {:>8.1?}", median(&mut paged));
    println!("  in an array once more {:>8.1?}", median(&mut paged_again));
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

/// A digest of a sequence.
fn next(digest: u64, value: &u64) -> u64 {
    (digest ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
