//! The cost of combining two index sets, compared with a hash map of vectors.
//!
//! The example `11_index_sets` does the same at full size.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use vmarray::host::HostDevice;
use vmarray::index_set::{Combine, Dimension};
use vmarray::{IndexSet, VirtualArray};

const TUPLES: usize = 1 << 16;

/// Random tuples, values below `most`. If `is_skewed`, every second tuple has the key 7.
fn random(dimensions: [Dimension; 4], seed: u64, most: u64, is_skewed: bool) -> IndexSet {
    let mut state = seed;
    let mut value = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let rows = (0..TUPLES).map(|number| {
        let row: [u64; 4] = std::array::from_fn(&mut value);
        if is_skewed && number % 2 == 0 { [7; 4] } else { row }
    });
    IndexSet::from_rows(dimensions, rows).expect("labels that differ")
}

/// A map from the common values to the tuples of `b`, for columns 0 and 2 against 0 and 1.
fn by_map(a: &IndexSet, b: &IndexSet) -> Vec<[u64; 6]> {
    let mut map: HashMap<[u64; 2], Vec<&[u64]>> = HashMap::new();
    for row in b.rows() {
        map.entry([row[0], row[1]]).or_default().push(row);
    }
    let partners = |row: &[u64]| map.get(&[row[0], row[2]]).map_or(&[][..], Vec::as_slice).iter();
    a.rows()
        .flat_map(|row| partners(row).map(move |b| [row[0], row[1], row[2], row[3], b[2], b[3]]))
        .collect()
}

fn combine(c: &mut Criterion) {
    // The join gives about four results for each tuple.
    let (a, b) = (random([0, 1, 2, 3], 1, 126, false), random([0, 2, 5, 6], 2, 126, false));
    let count = Combine::new(&a, &b).run().expect("a join").len();
    let mut group = c.benchmark_group("combine");
    group.throughput(Throughput::Elements(count as u64));
    group.bench_function("hash map of vectors", |bencher| bencher.iter(|| black_box(by_map(&a, &b))));
    group.bench_function("one thread", |bencher| {
        bencher.iter(|| {
            let results = Combine::new(&a, &b).threads(1).run().expect("a join");
            black_box(results.to_index_set().expect("memory"))
        });
    });
    group.bench_function("all threads", |bencher| {
        bencher.iter(|| black_box(a.combine(&b).expect("a join")));
    });
    group.bench_function("counted only", |bencher| {
        bencher.iter(|| black_box(Combine::new(&a, &b).run().expect("a join").len()));
    });
    let device = Arc::new(HostDevice::new(1 << 30).expect("a device of host RAM"));
    let array = VirtualArray::<u64>::builder(6 * count)
        .devices([device])
        .cache_bytes(1 << 20)
        .host_memory(vmarray::device::HostMemory::Pageable)
        .build()
        .expect("an array");
    group.bench_function("into an array", |bencher| {
        bencher.iter(|| {
            let results = Combine::new(&a, &b).run().expect("a join");
            results.write_to(&array, 0).expect("room for all");
        });
    });
    group.finish();
}

fn corner_cases(c: &mut Criterion) {
    let mut group = c.benchmark_group("combine_count");
    group.throughput(Throughput::Elements(2 * TUPLES as u64));
    let (a, b) = (random([0, 1, 2, 3], 1, 126, true), random([0, 2, 5, 6], 2, 126, true));
    let mut count = |name: &str, a: &IndexSet, b: &IndexSet| {
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(Combine::new(a, b).run().expect("a join").len()))
        });
    };
    count("half of the tuples have one key", &a, &b);
    let wide = |dimensions, seed| random(dimensions, seed, 1 << 31, false);
    count("no matches", &wide([0, 1, 2, 3], 1), &wide([0, 2, 5, 6], 2));
    count("one common dimension", &wide([0, 1, 2, 3], 1), &wide([0, 4, 5, 6], 2));
    group.finish();
}

criterion_group!(benches, combine, corner_cases);
criterion_main!(benches);
