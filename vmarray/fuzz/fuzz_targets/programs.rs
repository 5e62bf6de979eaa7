//! Fuzz target: valid and invalid expression programs, run on host RAM and compared with a naive evaluation.

#![no_main]

use std::sync::{Arc, LazyLock};

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use vmarray::device::expr::{
    Action, Binary, Geometry, Instruction, Partial, Program, Type, Unary, Value, evaluate_all,
};
use vmarray::device::{
    Commit, Compute, Device, DeviceBuffer, Elements, HostBuffer, HostMemory, Queue, Transfer, racy,
};
use vmarray::host::HostDevice;

const STRIDE: u64 = 24;
const ELEMENTS: u64 = 40;

struct Rig {
    device: Arc<HostDevice>,
    queue: Queue<HostDevice>,
    elements: DeviceBuffer<HostDevice>,
    host: HostBuffer<HostDevice>,
}

static RIG: LazyLock<Rig> = LazyLock::new(|| {
    let device = Arc::new(HostDevice::new(1 << 20).expect("RAM suffices for the device"));
    let bytes = (STRIDE * ELEMENTS).max(Compute::partials_bytes()) as usize;
    Rig {
        queue: Queue::new(&device).expect("the device creates a queue"),
        elements: DeviceBuffer::new(&device, STRIDE * ELEMENTS, Commit::Proven).expect("the memory suffices"),
        host: HostBuffer::new(&device, bytes, HostMemory::Pageable).expect("the memory suffices"),
        device,
    }
});

#[derive(Arbitrary, Debug)]
enum Step {
    Field(u8, u8),
    Literal(u8, u64),
    Index,
    Unary(u8, u16),
    Binary(u8, u16, u16),
    Select(u16, u16, u16),
    Cast(u16, u8),
    Fma(u16, u16, u16),
}

const TYPES: [Type; 11] = [
    Type::Bool,
    Type::U8,
    Type::I8,
    Type::U16,
    Type::I16,
    Type::U32,
    Type::I32,
    Type::U64,
    Type::I64,
    Type::F32,
    Type::F64,
];

/// Creates an instruction, which mostly refers to existing values and sometimes to missing ones.
fn instruction(step: &Step, known: usize) -> Instruction {
    let value = |number: u16| Value(if number > 0xFF00 { number } else { number % known.max(1) as u16 });
    let of = |number: u8| TYPES[number as usize % TYPES.len()];
    match *step {
        Step::Field(offset, number) => {
            Instruction::Field { source: 0, offset: u32::from(offset % 24), of: of(number) }
        }
        Step::Literal(number, bits) => Instruction::Literal { of: of(number), bits },
        Step::Index => Instruction::Index,
        Step::Unary(op, a) => {
            Instruction::Unary { op: Unary::ALL[op as usize % Unary::ALL.len()], of: value(a) }
        }
        Step::Binary(op, a, b) => Instruction::Binary {
            op: Binary::ALL[op as usize % Binary::ALL.len()],
            left: value(a),
            right: value(b),
        },
        Step::Select(c, a, b) => Instruction::Select { condition: value(c), yes: value(a), no: value(b) },
        Step::Fma(a, b, c) => Instruction::Fma { a: value(a), b: value(b), c: value(c) },
        Step::Cast(a, to) => Instruction::Cast { of: value(a), to: of(to) },
    }
}

fn run(data: &[u8]) -> arbitrary::Result<()> {
    let mut input = Unstructured::new(data);
    let bytes: [u8; (STRIDE * ELEMENTS) as usize] = input.arbitrary()?;
    let mut instructions: Vec<Instruction> = Vec::new();
    for _ in 0..input.int_in_range(1..=40)? {
        let next = instruction(&input.arbitrary()?, instructions.len());
        instructions.push(next);
        // Remove each invalid instruction, because otherwise few random programs would be valid.
        if Program::new(instructions.clone()).is_err() {
            instructions.pop();
        }
    }
    let Ok(program) = Program::new(instructions) else { return Ok(()) };
    let Some(value) = program.types().len().checked_sub(1).map(|last| Value(last as u16)) else {
        return Ok(());
    };
    let rig = &*RIG;
    // SAFETY: the memory has at least this length, and no work uses it.
    unsafe { racy::write(rig.host.address().as_ptr(), &bytes) };
    let up = Transfer::Upload { from: rig.host.at(0), to: rig.elements.at(0), bytes: STRIDE * ELEMENTS };
    rig.device.wait(rig.queue.submit(&[up]).expect("the copy succeeds")).expect("the copy succeeds");
    let elements = Elements { start: rig.elements.at(0), count: ELEMENTS, stride: STRIDE };
    let (answer, is_bool) = (rig.host.at(0), program.types()[value.at()] == Type::Bool);
    let action = if is_bool {
        Action::Find { predicate: value, limit: 0, count_all: true, answer }
    } else {
        Action::Sum { value, filter: None, answer }
    };
    let compute = Compute { program: &program, sources: &[elements], geometry: Geometry::plain(0), action };
    // The device rejects a field that ends outside of the element.
    let Ok(ticket) = rig.queue.submit(&compute) else { return Ok(()) };
    rig.device.wait(ticket).expect("the computation succeeds");
    let plain = |index: u64| {
        let at = (index * STRIDE) as usize;
        evaluate_all(&program, index, &[&bytes[at..at + STRIDE as usize]])[value.at()]
    };
    let of = program.types()[value.at()];
    let mut words = vec![[0; 8]; Compute::partials_bytes() as usize / 8];
    // SAFETY: the memory has at least this length, and the work on it is done.
    unsafe { racy::read(rig.host.address().as_ptr(), words.as_flattened_mut()) };
    let words: Vec<u64> = words.into_iter().map(u64::from_ne_bytes).collect();
    if is_bool {
        assert_eq!(words[0], (0..ELEMENTS).map(plain).sum::<u64>(), "{program:?}");
    } else if of.is_integer() {
        let shift = 64 - 8 * of.bytes() as u32;
        let number = |bits: u64| {
            if of.is_signed() { i128::from(((bits << shift) as i64) >> shift) } else { i128::from(bits) }
        };
        let sum: i128 = (0..ELEMENTS).map(plain).map(number).sum();
        assert_eq!(Partial::sum_of_integers(&Partial::list(&words)), sum, "{program:?}");
    }
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    let _ = run(data);
});
