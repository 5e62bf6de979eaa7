//! The cost of an access to a resident page, compared with the same loop over a `Vec` and over a simple
//! cache.
//!
//! `cargo xtask bench --host` runs this and prints the ratios.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vmarray::prelude::*;

use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use vmarray::VirtualArray;
use vmarray::host::HostDevice;

type Array<T> = VirtualArray<T, HostDevice>;

/// 8 MiB of `u32`: more than the second-level cache of most processors.
const LEN: usize = 2 << 20;
const STEPS: usize = 1 << 20;

fn resident<T: Element>(len: usize, value: T) -> Array<T> {
    let device = Arc::new(HostDevice::new(4 << 30).expect("a device of host RAM"));
    let bytes = len * size_of::<T>();
    let array = VirtualArray::<T>::builder(len)
        .devices([device])
        .cache_bytes(2 * bytes)
        .host_memory(vmarray::device::HostMemory::Pageable)
        .build()
        .expect("an array");
    (0..len).for_each(|i| array.set(i, value).expect("a page"));
    array
}

/// A random number (SplitMix64), good enough for most programs.
#[inline(always)]
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Runs an access at [`STEPS`] random places.
#[inline(always)]
fn at_random(len: usize, seed: u64, mut access: impl FnMut(usize)) {
    let mut state = seed;
    for _ in 0..STEPS {
        access((next(&mut state) % len as u64) as usize);
    }
}

/// [`STEPS`] random places, computed in advance.
fn places(len: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    (0..STEPS).map(|_| (next(&mut state) % len as u64) as u32).collect()
}

/// A simple page cache: a lock, a map from pages to frames, a list for the order of use.
struct LockedCache {
    shards: Vec<Mutex<Shard>>,
    page_len: usize,
}

#[derive(Default)]
struct Shard {
    frames: HashMap<usize, (u64, Box<[u32]>)>,
    clock: u64,
}

impl LockedCache {
    fn new(len: usize, page_len: usize, shards: usize) -> Self {
        let mut all: Vec<Shard> = (0..shards).map(|_| Shard::default()).collect();
        for page in 0..len.div_ceil(page_len) {
            all[page % shards].frames.insert(page, (0, vec![1; page_len].into()));
        }
        Self { shards: all.into_iter().map(Mutex::new).collect(), page_len }
    }

    fn with<R>(&self, index: usize, run: impl FnOnce(&mut u32) -> R) -> R {
        let page = index / self.page_len;
        let mut shard = self.shards[page % self.shards.len()].lock().expect("no panics");
        shard.clock += 1;
        let now = shard.clock;
        let (used, frame) = shard.frames.get_mut(&page).expect("all pages are resident");
        *used = now;
        run(&mut frame[index % self.page_len])
    }
}

fn group<'a>(c: &'a mut Criterion, name: &str, elements: usize) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(elements as u64));
    group
}

/// Sums the values, so that the compiler keeps the reads.
fn sum(seed: u64, len: usize, mut read: impl FnMut(usize) -> u32) -> u32 {
    let mut sum = 0_u32;
    at_random(len, seed, |i| sum = sum.wrapping_add(read(i)));
    sum
}

fn random(c: &mut Criterion) {
    let len = black_box(LEN);
    let (mut vec, array, locked) = (vec![1_u32; len], resident(len, 1_u32), LockedCache::new(len, 16384, 4));
    let mut get = group(c, "random get u32", STEPS);
    get.bench_function("vec", |b| {
        let vec = &black_box(&vec)[..];
        b.iter(|| sum(1, len, |i| vec[i]));
    });
    get.bench_function("array", |b| b.iter(|| sum(1, len, |i| array.get(i).unwrap())));
    get.bench_function("mutex and hash map", |b| b.iter(|| sum(1, len, |i| locked.with(i, |x| *x))));
    get.finish();

    let mut set = group(c, "random set u32", STEPS);
    set.bench_function("vec", |b| {
        let vec = &mut black_box(&mut vec)[..];
        b.iter(|| at_random(len, 1, |i| vec[i] = i as u32));
    });
    set.bench_function("array", |b| b.iter(|| at_random(len, 1, |i| array.set(i, i as u32).unwrap())));
    set.bench_function("mutex and hash map", |b| {
        b.iter(|| at_random(len, 1, |i| locked.with(i, |x| *x = i as u32)));
    });
    set.finish();

    // The loop consists of independent accesses, which the processor overlaps. This makes the comparison the
    // hardest one.
    let places = places(len, 1);
    let mut get = group(c, "get u32 by a list of places", STEPS);
    get.bench_function("vec", |b| {
        let vec = &black_box(&vec)[..];
        b.iter(|| places.iter().fold(0_u32, |sum, &i| sum.wrapping_add(vec[i as usize])));
    });
    get.bench_function("array", |b| {
        b.iter(|| places.iter().fold(0_u32, |sum, &i| sum.wrapping_add(array.get(i as usize).unwrap())));
    });
    get.finish();
    let mut set = group(c, "set u32 by a list of places", STEPS);
    set.bench_function("vec", |b| {
        let vec = &mut black_box(&mut vec)[..];
        b.iter(|| places.iter().for_each(|&i| vec[i as usize] = i));
    });
    set.bench_function("array", |b| {
        b.iter(|| places.iter().for_each(|&i| array.set(i as usize, i).unwrap()))
    });
    set.finish();
}

fn sequential(c: &mut Criterion) {
    let (vec, array) = (vec![1_u32; LEN], resident(LEN, 1_u32));
    let mut one = group(c, "sequential get u32", LEN);
    one.bench_function("vec", |b| {
        b.iter(|| {
            (0..LEN).for_each(|i| {
                black_box(vec[i]);
            })
        })
    });
    one.bench_function("array", |b| {
        b.iter(|| {
            (0..LEN).for_each(|i| {
                black_box(array.get(i).unwrap());
            })
        })
    });
    one.bench_function("cursor", |b| {
        b.iter(|| {
            let mut cursor = array.cursor();
            (0..LEN).for_each(|i| {
                black_box(cursor.get(i).unwrap());
            });
        });
    });
    one.finish();

    scan(c, "scan u32, 8 MiB", LEN);
    scan(c, "scan u32, 64 MiB", 8 * LEN);

    let mut out = vec![0_u32; 16384];
    let mut copy = group(c, "copy 64 KiB out", LEN);
    copy.bench_function("vec", |b| {
        b.iter(|| vec.chunks(16384).for_each(|chunk| black_box(&mut out).copy_from_slice(chunk)));
    });
    copy.bench_function("array", |b| {
        b.iter(|| (0..LEN).step_by(16384).for_each(|i| array.read(i, black_box(&mut out)).unwrap()));
    });
    copy.finish();
}

/// Adds up a slice. All contenders share the function, since the speed of such a loop depends on its place
/// in the program.
#[inline(never)]
fn total(sum: u32, slice: &[u32]) -> u32 {
    slice.iter().fold(sum, |sum, x| sum.wrapping_add(*x))
}

fn scan(c: &mut Criterion, name: &str, len: usize) {
    let (vec, array) = (vec![1_u32; len], resident(len, 1_u32));
    let mut scan = group(c, name, len);
    scan.bench_function("vec", |b| b.iter(|| total(0, black_box(&vec))));
    scan.bench_function("pages", |b| {
        b.iter(|| array.pages().fold(0, |sum, page| total(sum, &page.unwrap())));
    });
    scan.bench_function("iterator", |b| {
        b.iter(|| array.iter().fold(0_u32, |sum, x| sum.wrapping_add(x.unwrap())));
    });
    scan.finish();
}

fn records(c: &mut Criterion) {
    let len = LEN / 11;
    let (mut vec, array) = (vec![[1_u32; 11]; len], resident(len, [1_u32; 11]));
    let mut get = group(c, "random get 44 bytes", STEPS);
    get.bench_function("vec", |b| b.iter(|| sum(2, len, |i| black_box(vec[i])[5])));
    get.bench_function("array", |b| b.iter(|| sum(2, len, |i| black_box(array.get(i).unwrap())[5])));
    get.finish();
    let mut set = group(c, "random set 44 bytes", STEPS);
    set.bench_function("vec", |b| {
        let vec = &mut black_box(&mut vec)[..];
        b.iter(|| at_random(len, 2, |i| vec[i] = [i as u32; 11]));
    });
    set.bench_function("array", |b| b.iter(|| at_random(len, 2, |i| array.set(i, [i as u32; 11]).unwrap())));
    set.finish();
}

/// The time in which each of `threads` threads does as many gets as a single thread would.
fn threads(c: &mut Criterion) {
    let array = resident(LEN, 1_u32);
    let mut get = group(c, "random get u32 by threads", STEPS);
    for threads in [1, 2] {
        get.bench_function(format!("{threads}"), |b| {
            b.iter_custom(|rounds| {
                let barrier = std::sync::Barrier::new(threads);
                let work = |seed: u64| {
                    barrier.wait();
                    let start = Instant::now();
                    for _ in 0..rounds {
                        black_box(sum(seed, LEN, |i| array.get(i).unwrap()));
                    }
                    start.elapsed()
                };
                std::thread::scope(|scope| {
                    let all: Vec<_> = (0..threads)
                        .map(|t| {
                            scope.spawn({
                                let work = &work;
                                move || work(t as u64)
                            })
                        })
                        .collect();
                    all.into_iter().map(|t| t.join().unwrap()).max().unwrap_or(Duration::ZERO)
                })
            });
        });
    }
    get.finish();
}

criterion_group! {
    name = hits;
    config = Criterion::default().sample_size(30).measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    targets = random, sequential, records, threads
}
criterion_main!(hits);
