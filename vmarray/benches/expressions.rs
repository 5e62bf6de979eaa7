//! Benchmarks of operations with expressions: measures the fixed cost of an operation for each page. The
//! arrays have 2^17 pages, like an array of 8 GiB. A page has only two elements, so the devices have almost
//! no work.
//!
//! The row "device" submits the same computation directly to the device, without an array.

use std::hint::black_box;
use std::sync::Arc;
use vmarray::prelude::*;

use backend_api::expr::{Action, Geometry, Instruction, Program, Type, Value};
use backend_api::{Commit, Compute, Device, DeviceBuffer, Elements, HostBuffer, HostMemory, Queue};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use vmarray::host::HostDevice;
use vmarray::{Field, Source, VirtualArray};

/// The number of pages of an array of 8 GiB with the usual 64 KiB a page.
const PAGES: usize = 128 << 10;
const PAGE_LEN: usize = 2;

fn device() -> Arc<HostDevice> {
    Arc::new(HostDevice::new(64 << 20).expect("RAM suffices for the device"))
}

fn asked_of_the_device(c: &mut Criterion) {
    let device = device();
    let queue = Queue::new(&device).expect("the device creates a queue");
    let memory = DeviceBuffer::new(&device, (PAGES * PAGE_LEN * 4) as u64, Commit::Proven)
        .expect("the device memory suffices");
    let host = HostBuffer::new(&device, Compute::partials_bytes() as usize, HostMemory::Pageable)
        .expect("the device memory suffices");
    let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U32 }])
        .expect("the program is valid");
    let sources = [Elements { start: memory.at(0), count: (PAGES * PAGE_LEN) as u64, stride: 4 }];
    let action = Action::Sum { value: Value(0), filter: None, answer: host.at(0) };
    let compute = Compute { program: &program, sources: &sources, geometry: Geometry::plain(0), action };
    let mut group = c.benchmark_group("131072 pages");
    group.throughput(Throughput::Elements(PAGES as u64));
    group.bench_function("device/sum", |b| {
        b.iter(|| device.wait(queue.submit(&compute).expect("the sum succeeds")).expect("the sum succeeds"));
    });
}

macro_rules! operations {
    ($group:expr, $name:literal, $of:expr) => {{
        let (group, of) = (&mut $group, $of);
        let value = || Field::<u32, u32>::whole();
        group.bench_function(concat!($name, "/sum"), |b| b.iter(|| black_box(of.sum(.., value())).unwrap()));
        group.bench_function(concat!($name, "/sum of floats"), |b| {
            b.iter(|| black_box(of.sum(.., value().cast::<f32>())).unwrap());
        });
        group.bench_function(concat!($name, "/count"), |b| {
            b.iter(|| black_box(of.count_where(.., value().gt(7))).unwrap());
        });
        group.bench_function(concat!($name, "/transform"), |b| {
            b.iter(|| of.transform(.., value().set(value() ^ 1)).unwrap());
        });
    }};
}

fn asked_of_arrays(c: &mut Criterion) {
    let builder = VirtualArray::<u32>::builder(PAGES * PAGE_LEN).devices([device()]).page_len(PAGE_LEN);
    let array = builder.frames_per_channel(256).build().expect("RAM suffices for the array");
    array.fill(.., 1).expect("the fill succeeds");
    let mut group = c.benchmark_group("131072 pages");
    group.throughput(Throughput::Elements(PAGES as u64));
    operations!(group, "array", &array);
    // Fill the cache with unchanged pages: each sum must then look for changed pages in the cache.
    group.bench_function("array with resident pages/sum", |b| {
        black_box(array.to_vec(..1000).expect("the range is in the array"));
        b.iter(|| black_box(array.sum(.., Field::whole())).unwrap());
    });
}

fn asked_of_sources(c: &mut Criterion) {
    let builder = Source::builder(vec![1_u32; PAGES * PAGE_LEN]).devices([device()]).page_len(PAGE_LEN);
    let source = builder.build().expect("the source must be created");
    source.sum(.., Field::whole()).expect("the sum must succeed");
    let mut group = c.benchmark_group("131072 pages");
    group.throughput(Throughput::Elements(PAGES as u64));
    operations!(group, "source", &source);
}

criterion_group!(benches, asked_of_the_device, asked_of_arrays, asked_of_sources);
criterion_main!(benches);
