//! The cost of boxes and windows of N-dimensional arrays, compared with a `Vec`.
//!
//! The benchmark "window" reads windows inside of the array and at its corner, and compares their cost with
//! that of a box. "blur" blurs an image that is ten times as large as the cache, tile by tile with a halo,
//! and compares the time with the same blur of an image in RAM.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vmarray::prelude::*;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use vmarray::boundary::{Circular, Clamp};
use vmarray::host::HostDevice;
use vmarray::{NdArray, device::HostMemory, nd::Tiles};

type Image = NdArray<f32, 2, HostDevice>;

fn image(side: usize, tile: usize, cache_bytes: usize) -> Image {
    let device = HostDevice::new(2 << 30).expect("a device of host RAM");
    NdArray::<f32, 2>::builder([side, side])
        .devices([Arc::new(device)])
        .tile([tile, tile])
        .elements(|elements| elements.cache_bytes(cache_bytes).host_memory(HostMemory::Pageable))
        .build()
        .expect("an image")
}

fn windows(c: &mut Criterion) {
    let side = 2048;
    for tile in [16, 64, 128] {
        let image = image(side, tile, 64 << 20);
        let values: Vec<f32> = (0..side * side).map(|i| i as f32).collect();
        image.write_box(.., &values).expect("room for all");
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
                    let at = next.next().expect("endless") - halo;
                    image.read_box([at, at]..[at + extent, at + extent], black_box(&mut buffer)).unwrap();
                });
            });
            let view = image.bounded(Clamp);
            group.bench_function("window inside", |b| {
                b.iter(|| {
                    let at = (next.next().expect("endless") - halo) as isize;
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

/// The radius of the blur in pixels.
const RADIUS: usize = 8;
/// The side of the image and of a tile, in pixels.
const SIDE: usize = 4096;
const TILE: usize = 128;
const WIDE: usize = TILE + 2 * RADIUS;

/// A Gaussian kernel that sums to 1.
fn weights() -> [f32; 2 * RADIUS + 1] {
    let sigma = RADIUS as f32 / 2.5;
    let bell = |at: usize| (-(at as f32 - RADIUS as f32).powi(2) / (2.0 * sigma * sigma)).exp();
    let sum: f32 = (0..=2 * RADIUS).map(bell).sum();
    std::array::from_fn(|at| bell(at) / sum)
}

/// Blurs a tile given its window: along columns, then along rows.
fn blur(weights: &[f32; 2 * RADIUS + 1], window: &[f32], tile: &mut [f32]) {
    let mut row = [0.0_f32; WIDE];
    for (y, to) in tile.chunks_exact_mut(TILE).enumerate() {
        row.fill(0.0);
        for (weight, from) in weights.iter().zip(window[y * WIDE..].chunks_exact(WIDE)) {
            row.iter_mut().zip(from).for_each(|(sum, value)| *sum += weight * value);
        }
        to.fill(0.0);
        for (x, weight) in weights.iter().enumerate() {
            to.iter_mut().zip(&row[x..]).for_each(|(sum, value)| *sum += weight * value);
        }
    }
}

/// Two threads take tiles until none is left.
///
/// Each call receives the place of a tile, and the likely place of the thread's next tile.
fn on_two_threads(run: impl Fn([usize; 2], Option<[usize; 2]>, &mut [f32], &mut [f32]) + Sync) {
    let tiles = Tiles::new([SIDE, SIDE], [TILE, TILE]).expect("tiles");
    let next = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                let (mut window, mut tile) = (vec![0.0; WIDE * WIDE], vec![0.0; TILE * TILE]);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(of) = tiles.number(number) else { break };
                    let later = tiles.number(number + 2).map(|of| of.start);
                    run(of.start, later, &mut window, &mut tile);
                }
            });
        }
    });
}

/// The window of a tile in an image in RAM; the edge pixels are repeated outside.
fn window_of(image: &[f32], [y, x]: [usize; 2], window: &mut [f32]) {
    for (row, to) in window.chunks_exact_mut(WIDE).enumerate() {
        let row = (y + row).saturating_sub(RADIUS).min(SIDE - 1) * SIDE;
        let (first, end) = (x.saturating_sub(RADIUS), (x + TILE + RADIUS).min(SIDE));
        let left = RADIUS - (x - first);
        let right = left + (end - first);
        to[left..right].copy_from_slice(&image[row + first..row + end]);
        let (before, after) = (to[left], to[right - 1]);
        to[..left].fill(before);
        to[right..].fill(after);
    }
}

struct Shared(*mut f32);

// SAFETY: threads write to different tiles.
unsafe impl Sync for Shared {}

fn blurs(c: &mut Criterion) {
    let weights = weights();
    let bytes = SIDE * SIDE * 4;
    let values: Vec<f32> = (0..SIDE * SIDE).map(|i| (i % 251) as f32).collect();
    let (from, to) = (image(SIDE, TILE, bytes / 10), image(SIDE, TILE, bytes / 10));
    from.write_box(.., &values).expect("room for all");
    let mut blurred = vec![0.0_f32; SIDE * SIDE];
    let mut blur_vec = || {
        let shared = Shared(blurred.as_mut_ptr());
        let shared = &shared;
        on_two_threads(|[y, x], _, window, tile| {
            window_of(&values, [y, x], window);
            blur(&weights, window, tile);
            for (row, from) in tile.chunks_exact(TILE).enumerate() {
                // SAFETY: the row lies in this thread's tile of the image.
                unsafe {
                    let to = shared.0.add((y + row) * SIDE + x);
                    to.copy_from_nonoverlapping(from.as_ptr(), TILE);
                }
            }
        });
    };
    let view = from.bounded(Clamp);
    let blur_array = || {
        let origin = |at: [usize; 2]| at.map(|at| at as isize - RADIUS as isize);
        on_two_threads(|[y, x], later, window, tile| {
            view.read_window(origin([y, x]), [WIDE, WIDE], window).unwrap();
            if let Some(later) = later {
                view.prefetch_window(origin(later), [WIDE, WIDE]).unwrap();
            }
            blur(&weights, window, tile);
            to.write_box([y, x]..[y + TILE, x + TILE], tile).unwrap();
        });
    };
    let mut group = c.benchmark_group(format!("blur of {SIDE}x{SIDE} f32"));
    group.throughput(Throughput::Elements((SIDE * SIDE) as u64)).sample_size(10);
    group.bench_function("vec", |b| b.iter(&mut blur_vec));
    from.elements().reset_stats();
    blur_array();
    let fetched = from.elements().stats().total().bytes_from_device;
    assert!(fetched >= bytes as u64, "the image is not in the cache, but {fetched} bytes were fetched");
    group.bench_function("array", |b| b.iter(blur_array));
    group.finish();
    blur_vec();
    assert!(to.to_vec(..).expect("room for all") == blurred, "both images are the same");
}

criterion_group!(benches, windows, blurs);
criterion_main!(benches);
