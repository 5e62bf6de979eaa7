//! Host RAM as a device, compared with plain loops over a `Vec` in the same run.
//!
//! Run as a test (`cargo test --benches`), each benchmark runs once.

use std::hint::black_box;
use std::sync::Arc;

use backend_api::{
    Commit, Device, DeviceBuffer, Elements, Fill, Gather, HostBuffer, HostMemory, Queue, Search, Transfer,
};
use backend_host::HostDevice;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Longer than the last-level cache of common machines.
const BYTES: u64 = 256 << 20;

struct Rig {
    device: Arc<HostDevice>,
    queue: Queue<HostDevice>,
    memory: DeviceBuffer<HostDevice>,
    host: HostBuffer<HostDevice>,
}

impl Rig {
    fn new(threads: usize) -> Self {
        let device = Arc::new(HostDevice::builder().bytes(BYTES).threads(threads).build().expect("a device"));
        let queue = Queue::new(&device).expect("a queue");
        let memory = DeviceBuffer::new(&device, BYTES, Commit::Proven).expect("device memory");
        let host = HostBuffer::new(&device, 64 << 20, HostMemory::Pageable).expect("host memory");
        let fill = Fill { to: memory.at(0), bytes: BYTES, pattern: &[1] };
        device.wait(queue.submit(&fill).expect("valid")).expect("filled");
        Self { device, queue, memory, host }
    }
}

/// A copy with an immediate wait: a miss of a page cache.
fn miss(criterion: &mut Criterion) {
    let rig = Rig::new(2);
    let plain = vec![1_u8; BYTES as usize];
    let mut group = criterion.benchmark_group("miss");
    for bytes in [64_u64, 4 << 10, 64 << 10, 1 << 20] {
        group.throughput(Throughput::Bytes(bytes));
        let mut at = 0;
        group.bench_function(BenchmarkId::new("device", bytes), |bencher| {
            bencher.iter(|| {
                at = (at + bytes) % (BYTES - bytes);
                let page = Transfer::Download { from: rig.memory.at(at), to: rig.host.at(0), bytes };
                rig.device.wait(rig.queue.submit(&[page]).expect("valid")).expect("copied");
            });
        });
        let mut target = vec![0; bytes as usize];
        group.bench_function(BenchmarkId::new("memcpy", bytes), |bencher| {
            bencher.iter(|| {
                at = (at + bytes) % (BYTES - bytes);
                target.copy_from_slice(&plain[at as usize..(at + bytes) as usize]);
                black_box(&target);
            });
        });
    }
}

fn search(criterion: &mut Criterion) {
    let rig = Rig::new(1);
    let mut group = criterion.benchmark_group("search");
    group.throughput(Throughput::Bytes(BYTES)).sample_size(10);
    for (field, stride) in [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (4, 44), (4, 1024)] {
        let search = Search {
            elements: Elements { start: rig.memory.at(0), count: BYTES / stride, stride },
            field_offset: 0,
            value: &[7; 16][..field],
            limit: 100,
            count_all: true,
            answer: rig.host.at(0),
        };
        group.bench_function(format!("{field} bytes of {stride}"), |bencher| {
            bencher.iter(|| rig.device.wait(rig.queue.submit(&search).expect("valid")).expect("searched"));
        });
    }
    let words = vec![1_u32; BYTES as usize / 4];
    group.bench_function("Vec<u32>", |bencher| {
        bencher.iter(|| black_box(&words).iter().filter(|&&word| word == 7).count());
    });
    let (records, _) = words.as_chunks::<11>();
    group.bench_function("Vec<[u32; 11]>", |bencher| {
        bencher.iter(|| black_box(records).iter().filter(|record| record[0] == 7).count());
    });
}

fn gather(criterion: &mut Criterion) {
    const COUNT: u64 = 500_000;
    let rig = Rig::new(1);
    let mut group = criterion.benchmark_group("gather");
    group.throughput(Throughput::Elements(COUNT)).sample_size(10);
    let values_at = COUNT * 8;
    for stride in [4, 44, 64] {
        let count = BYTES / stride;
        let indices: Vec<u64> = (0..COUNT).map(|i| (i * 245_489) % count).collect();
        let bytes: Vec<u8> = indices.iter().flat_map(|index| index.to_ne_bytes()).collect();
        rig.host.write(0, &bytes);
        let gather = Gather {
            elements: Elements { start: rig.memory.at(0), count, stride }.into(),
            indices: rig.host.at(0),
            count: COUNT,
            values: rig.host.at(values_at),
        };
        group.bench_function(BenchmarkId::new("device", stride), |bencher| {
            bencher.iter(|| rig.device.wait(rig.queue.submit(&gather).expect("valid")).expect("gathered"));
        });
    }
    let records = vec![[1_u32; 11]; (BYTES / 44) as usize];
    let mut values = vec![[0_u32; 11]; COUNT as usize];
    group.bench_function("Vec<[u32; 11]>", |bencher| {
        bencher.iter(|| {
            for (i, value) in (0..COUNT).zip(&mut values) {
                *value = records[((i * 245_489) % (BYTES / 44)) as usize];
            }
            black_box(&values);
        });
    });
}

criterion_group!(benches, miss, search, gather);
criterion_main!(benches);
