//! Computations: what translating a program costs, and how fast kernels made for it are.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use backend_api::expr::{Action, Binary, Geometry, Instruction, Program, Store, Type, Value};
use backend_api::{
    Commit, Compute, Device, DeviceBuffer, Elements, Fill, HostBuffer, HostMemory, Queue, Transfer,
};
use backend_cuda::CudaDevice;

use crate::measure::{median, micros, plain_read, rate};

/// `field < literal`, and what else is measured, over fields at offset 0, 4 and so on.
struct Sample {
    program: Program,
    value: Value,
    less: Value,
    both: Value,
    changed: Value,
}

fn sample(of: Type, literal: u64, bits: u64) -> Result<Sample, Box<dyn Error>> {
    let mut list = Vec::new();
    let mut push = |one| {
        list.push(one);
        Value(list.len() as u16 - 1)
    };
    let value = push(Instruction::Field { source: 0, offset: 0, of });
    let first = push(Instruction::Literal { of, bits: literal });
    let second = push(Instruction::Literal { of, bits });
    let less = push(Instruction::Binary { op: Binary::Lt, left: value, right: first });
    let other = push(Instruction::Binary { op: Binary::Ne, left: value, right: second });
    let both = push(Instruction::Binary { op: Binary::And, left: less, right: other });
    let changed = push(Instruction::Binary { op: Binary::Add, left: value, right: first });
    Ok(Sample { program: Program::new(list)?, value, less, both, changed })
}

/// Everything that the promises of the array name, in 8 GiB.
pub fn run(index: u32) -> Result<(), Box<dyn Error>> {
    println!("\n== computations");
    let device = Arc::new(CudaDevice::open(index)?);
    let queue = Queue::new(&device)?;
    let bytes = (8_u64 << 30).min(device.memory()?.usable_bytes / 3) / (44 * 1024) * (44 * 1024);
    let memory = DeviceBuffer::new(&device, bytes, Commit::Proven)?;
    let other = DeviceBuffer::new(&device, bytes, Commit::Proven)?;
    let answer = HostBuffer::new(&device, Compute::partials_bytes() as usize, HostMemory::Pinned)?;
    for buffer in [&memory, &other] {
        // 1.5 as f32.
        let pattern = 0x3FC0_0000_u32.to_le_bytes();
        device.wait(queue.fill(&Fill { to: buffer.at(0), bytes, pattern: &pattern })?)?;
    }
    let yardstick = plain_read(&device, bytes)?;
    let copy = Transfer::Internal { from: memory.at(0), to: other.at(0), bytes };
    let copied = median(9, || Ok(device.wait(queue.submit(&[copy])?)?))?;
    println!(
        "{:.2} GiB: plain read {:.0} GB/s, copy {:.0} GB/s read and written",
        bytes as f64 / (1_u64 << 30) as f64,
        rate(bytes, yardstick),
        rate(2 * bytes, copied)
    );
    let answer = answer.at(0);
    let measure = |name: &str, program: &Program, sources: &[Elements], action: Action<'_>| {
        let compute = Compute { program, sources, geometry: Geometry::plain(0), action };
        let start = Instant::now();
        device.wait(queue.compute(&compute)?)?;
        let first = micros(start.elapsed());
        let taken = median(15, || Ok(device.wait(queue.compute(&compute)?)?))?;
        let is_store = matches!(action, Action::Store { .. });
        let moved = if is_store { 2 * bytes } else { bytes };
        let truth = if is_store { copied } else { yardstick };
        println!(
            "{name:<34} {taken:>8.0} µs {:>6.0} GB/s, {:>5.1} % of the yardstick; first time {:.1} ms more",
            rate(moved, taken),
            truth / taken * 100.0,
            (first - taken) / 1e3
        );
        Ok::<(), Box<dyn Error>>(())
    };
    for (of, stride) in
        [(Type::U32, 4), (Type::F32, 4), (Type::U64, 8), (Type::F64, 8), (Type::U8, 1), (Type::U32, 44)]
    {
        let one = if of == Type::F32 { 0x3F80_0000 } else { 1 };
        let sample = sample(of, one, 0)?;
        let sources = [Elements { start: memory.at(0), count: bytes / stride, stride }];
        let name = |what: &str| format!("{what} {of} every {stride}");
        let program = &sample.program;
        let find = |predicate, limit| Action::Find { predicate, limit, count_all: true, answer };
        measure(&name("count"), program, &sources, find(sample.less, 0))?;
        measure(&name("count two terms"), program, &sources, find(sample.both, 0))?;
        measure(&name("find, none"), program, &sources, find(sample.less, 1000))?;
        measure(&name("sum"), program, &sources, Action::Sum { value: sample.value, filter: None, answer })?;
        let extremes =
            |least, greatest| Action::Extremes { value: sample.value, filter: None, least, greatest, answer };
        measure(&name("min"), program, &sources, extremes(true, false))?;
        measure(&name("min and max"), program, &sources, extremes(true, true))?;
        if stride <= 8 {
            let stores = [Store { value: sample.changed, source: 0, offset: 0 }];
            let store = |filter| Action::Store { stores: &stores, filter };
            measure(&name("transform in place"), program, &sources, store(None))?;
            let never = sample.less;
            measure(&name("assign where, none"), program, &sources, store(Some(never)))?;
        }
    }
    let sample = sample(Type::F32, 0x3F80_0000, 0)?;
    let row = |start| Elements { start, count: bytes / 4, stride: 4 };
    let stores = [Store { value: sample.changed, source: 1, offset: 0 }];
    let store = Action::Store { stores: &stores, filter: None };
    measure(
        "transform f32 to another array",
        &sample.program,
        &[row(memory.at(0)), row(other.at(0))],
        store,
    )?;
    let mut list = sample.program.instructions().to_vec();
    list.push(Instruction::Cast { of: sample.value, to: Type::U32 });
    let value = Value(list.len() as u16 - 1);
    let histogram = Action::Histogram { value, filter: None, bins: 256, answer };
    measure("histogram of f32, one bin", &Program::new(list)?, &[row(memory.at(0))], histogram)
}
