//! Benchmark of cache misses through `AnyDevice`, which dispatches on the kind of its device at each call,
//! compared with an array of a static device type. The device is host RAM, on which a miss costs least.
//!
//! Run it by `cargo bench -p vmarray --features host --bench misses`.

use std::hint::black_box;
use std::sync::Arc;
use vmarray::prelude::*;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use vmarray::host::HostDevice;
use vmarray::{AnyDevice, VirtualArray, device::Device};

const PAGE_LEN: usize = 1024;
const PAGES: usize = 4096;
const FRAMES: usize = 40;

/// Creates an array in pages of 4 KiB, of which the cache holds one in a hundred.
fn array<D: Device>(device: D) -> VirtualArray<u32, D> {
    let array = VirtualArray::<u32>::builder(PAGES * PAGE_LEN)
        .devices([Arc::new(device)])
        .page_len(PAGE_LEN)
        .frames_per_channel(FRAMES)
        .read_ahead(false)
        .build()
        .expect("RAM suffices for the array");
    array.fill(.., 1).expect("the fill succeeds");
    array
}

fn host() -> HostDevice {
    HostDevice::builder().bytes(64 << 20).threads(1).build().expect("RAM suffices for the device")
}

/// Returns the index of the next element to read: the first of a page far from the previous one.
fn far(step: &mut usize) -> usize {
    *step = (*step + 1367) % PAGES;
    black_box(*step * PAGE_LEN)
}

fn misses(c: &mut Criterion) {
    let (known, any) = (array(host()), array(AnyDevice::from(host())));
    let (mut a, mut b) = (0, 0);
    let mut get = c.benchmark_group("miss, get of 4 KiB pages");
    get.throughput(Throughput::Elements(1));
    get.bench_function("one type of device", |bench| bench.iter(|| known.get(far(&mut a)).unwrap()));
    get.bench_function("any device", |bench| bench.iter(|| any.get(far(&mut b)).unwrap()));
    get.finish();
    let mut set = c.benchmark_group("miss, set of 4 KiB pages");
    set.throughput(Throughput::Elements(1));
    set.bench_function("one type of device", |bench| bench.iter(|| known.set(far(&mut a), 2).unwrap()));
    set.bench_function("any device", |bench| bench.iter(|| any.set(far(&mut b), 2).unwrap()));
    set.finish();
    let resident = black_box(5 * PAGE_LEN);
    let mut hit = c.benchmark_group("hit, get");
    hit.bench_function("one type of device", |bench| bench.iter(|| known.get(black_box(resident)).unwrap()));
    hit.bench_function("any device", |bench| bench.iter(|| any.get(black_box(resident)).unwrap()));
    hit.finish();
}

criterion_group!(benches, misses);
criterion_main!(benches);
