//! Benchmark of reads of N-dimensional arrays: windows inside the array and at its corner, compared with
//! boxes. A window may extend beyond the array; a box may not.

use std::hint::black_box;
use std::sync::Arc;
use vmarray::prelude::*;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use vmarray::boundary::{Circular, Clamp};
use vmarray::host::HostDevice;
use vmarray::{NdArray, device::HostMemory};

type Image = NdArray<f32, 2, HostDevice>;

fn image(side: usize, tile: usize, cache_bytes: usize) -> Image {
    let device = HostDevice::new(2 << 30).expect("RAM suffices for the device");
    NdArray::<f32, 2>::builder([side, side])
        .devices([Arc::new(device)])
        .tile([tile, tile])
        .elements(|elements| elements.cache_bytes(cache_bytes).host_memory(HostMemory::Pageable))
        .build()
        .expect("RAM suffices for the image")
}

fn windows(c: &mut Criterion) {
    let side = 2048;
    for tile in [16, 64, 128] {
        let image = image(side, tile, 64 << 20);
        let values: Vec<f32> = (0..side * side).map(|i| i as f32).collect();
        image.write_box(.., &values).expect("the write must succeed");
        for (name, extent) in [("tile", tile), ("tile and halo", tile + 4)] {
            let mut group = c.benchmark_group(format!("window, {name} of {tile}x{tile} f32"));
            group.throughput(Throughput::Elements((extent * extent) as u64));
            let mut buffer = vec![0.0; extent * extent];
            // Use tiles in the middle of the image, one after the other.
            let places: Vec<usize> = (4..side / tile - 4).map(|i| i * tile).collect();
            let halo = (extent - tile) / 2;
            let mut next = places.iter().cycle();
            group.bench_function("box", |b| {
                b.iter(|| {
                    let at = next.next().expect("the cycle has no end") - halo;
                    image.read_box([at, at]..[at + extent, at + extent], black_box(&mut buffer)).unwrap();
                });
            });
            let view = image.bounded(Clamp);
            group.bench_function("window inside", |b| {
                b.iter(|| {
                    let at = (next.next().expect("the cycle has no end") - halo) as isize;
                    view.read_window([at, at], [extent, extent], black_box(&mut buffer)).unwrap();
                });
            });
            group.bench_function("window at the corner", |b| {
                b.iter(|| {
                    view.read_window([-2, -2], [extent, extent], black_box(&mut buffer)).unwrap();
                });
            });
            let torus = image.bounded(Circular);
            group.bench_function("window at the corner of a torus", |b| {
                b.iter(|| {
                    torus.read_window([-2, -2], [extent, extent], black_box(&mut buffer)).unwrap();
                });
            });
            group.finish();
        }
    }
}

criterion_group!(benches, windows);
criterion_main!(benches);
