//! Tests of generated PTX without a GPU. If `VMARRAY_PTXAS` names NVIDIA's assembler, it must accept the PTX.

use backend_api::expr::{Binary, FieldStore, Geometry, Instruction, Program, Task, Type, Unary, Value};
use backend_api::kernel::{ArrayDecl, Body, Memory, Op, Reg, ScalarFunction, Space, TableDecl};
use backend_api::wrap::SplitMix64;
use backend_api::{BufferHandle, Elements, HostAllocation, HostMemory};

use super::cache::kernel_texts;
use super::*;
use crate::fake::emulator;
use crate::kernel::ptx;

/// Empty host memory: its address is not part of a text.
fn host() -> &'static HostAllocation {
    // SAFETY: the memory has no bytes.
    let make = || unsafe { HostAllocation::new(std::ptr::NonNull::dangling(), 0, HostMemory::Pageable) };
    static HOST: std::sync::OnceLock<HostAllocation> = std::sync::OnceLock::new();
    HOST.get_or_init(make)
}

/// The texts for one action on a program over two sources.
fn texts_of(
    program: &Program,
    action: Action<'_>,
    strides: [u64; 2],
    starts: [u64; 2],
    page_len: u64,
) -> Vec<String> {
    let memory = BufferHandle::unique();
    let sources = strides.map(|stride| Elements { start: memory.at(0), count: 1000, stride });
    let geometry = Geometry { first: 0, page_len, channel: 0, channels: 2 };
    let (shape, _) = ProgramKey::new(&Compute { program, sources: &sources, geometry, action }, &starts);
    kernels(&shape)
}

/// The texts of all kernels for a shape.
fn kernels(shape: &ProgramKey) -> Vec<String> {
    let list = matches!(shape.task, Task::Find { .. }).then_some("compute_find/compute_list");
    kernel_texts(shape).iter().copied().chain(list).map(|text| codegen::splice(ptx(text), shape)).collect()
}

/// A function of two numbers and a bool with a branch, an array and a table.
fn function(of: Type) -> ScalarFunction {
    let [a, b, flag, at] = [0, 1, 2, 3].map(Reg);
    let code = vec![
        Op::Param { to: a, number: 0 },
        Op::Param { to: b, number: 1 },
        Op::Param { to: flag, number: 2 },
        Op::Cast { to: at, of: b },
        Op::Put { array: 0, at, value: a },
        Op::If { when: flag, then: vec![Op::Lookup { to: b, table: 0, at }], otherwise: vec![] },
        Op::Binary { op: Binary::Lt, to: flag, left: a, right: b },
    ];
    let body = Body {
        registers: vec![of, of, Type::Bool, Type::U64],
        params: vec![of, of, Type::Bool],
        tables: vec![TableDecl { of: Memory::Value(of), len: 2 }],
        arrays: vec![ArrayDecl { space: Space::Item, of, len: 3 }],
        code,
        ..Body::default()
    };
    let table = vec![3; body.table_bytes() as usize];
    ScalarFunction::new(body, table).unwrap()
}

/// A program with every operation on a type, its result as every type, and a bool.
fn everything(of: Type) -> (Program, Vec<Value>, Value) {
    let mut list = Vec::new();
    let mut push = |one| {
        list.push(one);
        Value(list.len() as u16 - 1)
    };
    let a = push(Instruction::Field { source: 0, offset: 0, of });
    let b = push(Instruction::Field { source: 1, offset: 1, of });
    let literal = push(Instruction::Literal { of, bits: 1 });
    let mut last = push(Instruction::Binary { op: Binary::Add, left: a, right: literal });
    let mut ops = vec![Binary::Sub, Binary::Mul, Binary::Div, Binary::Min, Binary::Max];
    if of.is_integer() {
        ops.extend([Binary::Rem, Binary::And, Binary::Or, Binary::Xor, Binary::Shl, Binary::Shr]);
    }
    for op in ops {
        last = push(Instruction::Binary { op, left: last, right: b });
    }
    if of == Type::F32 {
        for op in [Unary::ToF16, Unary::FromF16, Unary::ToBf16, Unary::FromBf16] {
            last = push(Instruction::Unary { op, of: last });
        }
    }
    for op in Unary::ALL.into_iter().chain(Unary::APPROXIMATE).filter(|op| op.takes(of)) {
        last = push(Instruction::Unary { op, of: last });
    }
    if of.is_float() {
        last = push(Instruction::Fma { a: last, b, c: literal });
    }
    let [mut truth, two, three, four] = [Binary::Eq, Binary::Ne, Binary::Lt, Binary::Le]
        .map(|op| push(Instruction::Binary { op, left: last, right: b }));
    for (op, right) in
        [(Binary::And, two), (Binary::Or, three), (Binary::Xor, four), (Binary::Eq, two), (Binary::Ne, three)]
    {
        truth = push(Instruction::Binary { op, left: truth, right });
    }
    truth = push(Instruction::Unary { op: Unary::Not, of: truth });
    truth = push(Instruction::Call { function: function(of), arguments: vec![last, a, truth] });
    truth = push(Instruction::Select { condition: truth, yes: two, no: truth });
    let index = push(Instruction::Index);
    let mut results = vec![last];
    for to in Type::NUMBERS {
        let [yes, no, other] = [last, index, truth].map(|of| push(Instruction::Cast { of, to }));
        let one = push(Instruction::Select { condition: truth, yes, no });
        results.push(push(Instruction::Binary { op: Binary::Add, left: one, right: other }));
    }
    (Program::new(list).unwrap(), results, truth)
}

fn texts() -> Vec<String> {
    let answer = host().at(0);
    let mut texts = Vec::new();
    for of in Type::NUMBERS {
        let (program, values, truth) = everything(of);
        for (strides, starts, page_len) in [([8, 44], [0, 16], 4096), ([12, 9], [4, 3], 1000)] {
            let mut add =
                |action: Action<'_>| texts.extend(texts_of(&program, action, strides, starts, page_len));
            add(Action::Find { predicate: truth, limit: 1, count_all: true, answer });
            let filter = (page_len == 1000).then_some(truth);
            add(Action::Histogram { value: values[3], filter, bins: 9, answer });
            for value in &values[1..] {
                let stores = [FieldStore { value: *value, source: 0, offset: 0 }];
                add(Action::Store { stores: &stores, filter });
                add(Action::Sum { value: *value, filter, answer });
                add(Action::Extremes {
                    value: *value,
                    filter,
                    least: true,
                    greatest: filter.is_none(),
                    answer,
                });
            }
        }
    }
    texts
}

#[test]
fn texts_hold_the_wanted_kernels_and_no_comment_to_be_replaced() {
    for text in texts() {
        assert!(text.ends_with('\0'), "the text must end with a NUL");
        assert!(!text.contains("//splice"), "a comment is left");
        assert_eq!(text.matches(".visible .entry ").count(), 1);
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        assert_eq!(text.matches("\n.func ").count(), usize::from(text.contains("call (result), call_0")));
    }
}

#[test]
fn literals_are_parameters() {
    let program = |bits| {
        Program::new(vec![
            Instruction::Field { source: 0, offset: 0, of: Type::U32 },
            Instruction::Literal { of: Type::U32, bits },
            Instruction::Binary { op: Binary::Lt, left: Value(0), right: Value(1) },
        ])
        .unwrap()
    };
    let answer = host().at(0);
    let action = Action::Find { predicate: Value(2), limit: 0, count_all: true, answer };
    let [one, other] = [7, 8].map(|bits| texts_of(&program(bits), action, [4, 4], [0, 0], 64));
    assert_eq!(one, other, "programs that differ in literals share their code");
}

/// A search for a value in elements at address `start`.
fn search<R>(
    (start, stride, count): (u64, u64, u64),
    field_offset: u64,
    value: &[u8],
    run: impl FnOnce(&Compute<'_>, &[u64]) -> R,
) -> R {
    let memory = BufferHandle::unique();
    let elements = Elements { start: memory.at(0), count, stride };
    let answer = host().at(0);
    let search = Search { elements, field_offset, value, limit: 3, count_all: true, answer };
    search.as_compute(|compute| Ok(run(compute, &[start]))).unwrap()
}

fn search_texts(elements: (u64, u64, u64), field_offset: u64, value: &[u8]) -> Vec<String> {
    search(elements, field_offset, value, |compute, starts| kernels(&ProgramKey::new(compute, starts).0))
}

#[test]
fn searches_for_different_values_share_their_code() {
    for length in [1, 2, 4, 8, 16, 44, 4096] {
        let [one, other] = [7, 8].map(|byte| search_texts((64, 4096, 10), 0, &vec![byte; length]));
        assert_eq!(one, other);
        assert_eq!(one, search_texts((8, 8000, 10), 16, &vec![7; length]), "the place is a parameter");
        let vectors = search_texts((64, length as u64, 10), 0, &vec![7; length]);
        let expected = if length <= 16 { 4 } else { 0 };
        assert_eq!(vectors.concat().matches("ld.global.nc.v4.b32 {t").count().min(4), expected);
    }
}

/// Memory of the emulator: an address is an index.
struct Bytes(std::cell::RefCell<Vec<u8>>);

impl emulator::EmulatedMemory for Bytes {
    fn read(&self, address: u64, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.borrow()[address as usize..][..bytes.len()]);
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        self.0.borrow_mut()[address as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// Returns the number of matches that one block finds in a tile, by the emulator.
fn count_in_tile(bytes: &[u8], elements: (u64, u64, u64), field_offset: u64, value: &[u8]) -> u64 {
    const KERNEL: &str = "\n.visible .entry count(\n.param .b8 count_p[352]\n)\n{
.reg .b32 thread;\n.reg .b32 left;\n.reg .b32 matches;\n.reg .b32 whole;\n.reg .pred some;
.reg .b64 first;\n.reg .b64 out;\n.reg .b64 far;
mov.u32 thread, %tid.x;\ncvt.u64.u32 first, thread;\nld.param.u32 whole, [count_p+336];
sub.u32 left, whole, thread;\nsetp.lt.u32 some, thread, whole;\nselp.b32 left, left, 0, some;
mov.u32 matches, 0;\n//splice count 256 matches first left ;
ld.param.u64 out, [count_p+344];\nmul.wide.u32 far, thread, 4;\nadd.u64 out, out, far;
st.global.u32 [out], matches;\n}\n";
    search(elements, field_offset, value, |compute, starts| {
        let (shape, mut literals) = ProgramKey::new(compute, starts);
        assert!(elements.2 <= shape.tile());
        let mut memory = bytes.to_vec();
        memory.resize(bytes.len().next_multiple_of(16) + 16, 0);
        let comparison = shape.comparison.unwrap();
        if comparison.is_long {
            literals[comparison.parameters] = memory.len() as u64;
            memory.extend_from_slice(value);
        }
        let out = memory.len().next_multiple_of(16);
        memory.resize(out + 4 * THREADS as usize, 0);
        let mut params = vec![0_u64; 44];
        params[0] = elements.0;
        params[8..][..literals.len()].copy_from_slice(&literals);
        (params[42], params[43]) = (elements.2, out as u64);
        let text = codegen::splice(KERNEL, &shape).replace("count_param_0", "count_p");
        // The emulator knows no scopes.
        let scopes = ["\t{", "\t}"];
        let text: String =
            text.lines().filter(|line| !scopes.contains(line)).map(|line| format!("{line}\n")).collect();
        let kernel = emulator::EmulatedKernel::parse(&text, "count").unwrap();
        let memory = Bytes(memory.into());
        let params: Vec<u8> = params.iter().flat_map(|word| word.to_le_bytes()).collect();
        kernel.run(&memory, 1, THREADS, &params);
        let memory = memory.0.into_inner();
        let counts = memory[out..].as_chunks().0.iter().map(|count| u32::from_le_bytes(*count));
        counts.map(u64::from).sum()
    })
}

#[test]
fn the_generated_code_counts_as_a_naive_search_does() {
    let mut random = SplitMix64::new(7);
    let bytes: Vec<u8> = (0..1 << 20).map(|_| random.below(4) as u8 * 85).collect();
    for (start, stride, offset, length) in [
        (64, 1, 0, 1),
        (32, 2, 0, 2),
        (16, 4, 0, 4),
        (16, 8, 0, 8),
        (48, 16, 0, 16),
        (3, 1, 0, 1),
        (8, 8, 4, 4),
        (8, 24, 8, 16),
        (1, 3, 0, 3),
        (4, 44, 0, 44),
        (6, 44, 11, 23),
        (2, 4096, 0, 4096),
    ] {
        let most = (1 << 20) / stride - 16;
        for count in [0, 1, 17, 200, 256, 1024, 1500, 2048, 4096, 8192, 16_383, 16_384] {
            let (tile, head) = search((start, stride, 1), offset, &vec![0; length], |compute, starts| {
                (ProgramKey::new(compute, starts).0.tile(), head(compute, starts))
            });
            // A kernel counts the elements before the first whole vector alone.
            let count = if head == 0 { tile.min(most).min(count) } else { head.min(count) };
            let mut bytes = bytes.clone();
            let field = |number: u64| (start + number * stride + offset) as usize;
            let value = bytes[field(0)..][..length].to_vec();
            // Some elements match, and some differ only in their last byte.
            for number in (0..count).filter(|number| number % 7 < 3) {
                bytes[field(number)..][..length].copy_from_slice(&value);
                bytes[field(number) + length - 1] ^= u8::from(number % 7 == 1);
            }
            let naive = (0..count).filter(|number| bytes[field(*number)..][..length] == value).count() as u64;
            let found = count_in_tile(&bytes, (start, stride, count), offset, &value);
            assert_eq!(found, naive, "{start} {stride} {offset} {length} {count}");
        }
    }
}

#[test]
fn fields_are_read_in_pieces_that_are_aligned() {
    let program = Program::new(vec![Instruction::Field { source: 0, offset: 2, of: Type::U32 }]).unwrap();
    let action = |value| Action::Sum { value, filter: None, answer: host().at(0) };
    let loads = |stride, start| {
        let text = texts_of(&program, action(Value(0)), [stride, 8], [start, 0], 64).concat();
        ["u8", "u16", "u32"].map(|unit| text.matches(&format!("ld.global.nc.{unit} ")).count())
    };
    assert_eq!(loads(6, 2), [0, 16, 0]);
    assert_eq!(loads(7, 2), [32, 0, 0]);
    assert_eq!(loads(8, 6), [0, 16, 0]);
}

#[test]
fn short_elements_without_gaps_are_loaded_and_stored_together() {
    let answer = host().at(0);
    let count = |of: Type, stride: u64, start: u64, action: &dyn Fn(Value) -> Action<'static>| {
        let program = Program::new(vec![
            Instruction::Field { source: 0, offset: 0, of },
            Instruction::Binary { op: Binary::Add, left: Value(0), right: Value(0) },
        ]);
        let text = texts_of(&program.unwrap(), action(Value(1)), [stride, 4], [start, 0], 64).concat();
        let short = memory_width(of);
        ["ld.global.nc.v2.b32", "ld.global.nc.v4.b32", short].map(|load| text.matches(load).count())
    };
    let sum = |value| Action::Sum { value, filter: None, answer };
    let extremes = |value| Action::Extremes { value, filter: None, least: true, greatest: true, answer };
    assert_eq!(count(Type::U8, 1, 32, &sum), [1, 0, 8], "eight at once, or one by one at the end");
    assert_eq!(count(Type::I16, 2, 16, &sum), [0, 1, 8]);
    assert_eq!(count(Type::U8, 1, 8, &sum), [0, 0, 8], "no multiple of 16");
    assert_eq!(count(Type::U8, 3, 16, &sum), [0, 0, 8], "gaps");
    assert_eq!(count(Type::U32, 4, 16, &sum), [0, 0, 8], "long enough");
    assert_eq!(count(Type::U8, 1, 32, &extremes), [0, 0, 8], "the kernel knows better");

    let program = Program::new(vec![
        Instruction::Field { source: 0, offset: 0, of: Type::U8 },
        Instruction::Cast { of: Value(0), to: Type::F32 },
        Instruction::Binary { op: Binary::Lt, left: Value(0), right: Value(0) },
    ])
    .unwrap();
    let stores = [
        FieldStore { value: Value(0), source: 0, offset: 0 },
        FieldStore { value: Value(1), source: 1, offset: 0 },
    ];
    // Elements of the longer type are stored in rows of four.
    for (filter, together) in [(None, [2, 0, 2]), (Some(Value(2)), [0; 3])] {
        let text =
            texts_of(&program, Action::Store { stores: &stores, filter }, [1, 4], [16, 0], 64).concat();
        let vectors = ["st.global.b32", "st.global.v2.b32", "st.global.v4.b32"];
        assert_eq!(vectors.map(|store| text.matches(store).count()), together);
        assert_eq!(text.matches("st.global.u8").count(), 8);
    }
    let change = |of: Type, stride: u64| {
        let program = Program::new(vec![
            Instruction::Field { source: 0, offset: 0, of },
            Instruction::Binary { op: Binary::Add, left: Value(0), right: Value(0) },
        ]);
        let stores = [FieldStore { value: Value(1), source: 0, offset: 0 }];
        let action = Action::Store { stores: &stores, filter: None };
        let text = texts_of(&program.unwrap(), action, [stride, 4], [16, 0], 64).concat();
        ["ld.global.v2.b32", "ld.global.v4.b32", "st.global.v2.b32", "st.global.v4.b32"]
            .map(|one| text.matches(one).count())
    };
    assert_eq!(change(Type::U8, 1), [1, 0, 1, 0]);
    assert_eq!(change(Type::I16, 2), [0, 1, 0, 1]);
    assert_eq!(change(Type::F32, 4), [0, 2, 0, 2]);
    assert_eq!(change(Type::F64, 8), [0; 4], "long enough");
}

/// The instruction that loads one element.
fn memory_width(of: Type) -> &'static str {
    match of {
        Type::U8 => "ld.global.nc.u8",
        Type::I16 => "ld.global.nc.s16",
        _ => "ld.global.nc.u32",
    }
}

#[test]
fn fields_far_away_are_not_reached_within_an_instruction() {
    let program = Program::new(vec![
        Instruction::Field { source: 0, offset: 3, of: Type::U32 },
        Instruction::Field { source: 1, offset: u32::MAX - 1, of: Type::U64 },
        Instruction::Cast { of: Value(1), to: Type::U32 },
        Instruction::Binary { op: Binary::Add, left: Value(0), right: Value(2) },
    ])
    .unwrap();
    let stores = [FieldStore { value: Value(3), source: 0, offset: 3 }];
    let action = Action::Store { stores: &stores, filter: None };
    // The last case is possible only with zero elements.
    for strides in [[1 << 20, 5 << 30], [2 << 20, 1 << 40], [u64::MAX; 2]] {
        let text = texts_of(&program, action, strides, [0, 0], 64).concat();
        let offsets = text.split("[a").skip(1).filter_map(|rest| rest.split(']').next()?.split('+').nth(1));
        let offsets: Vec<u64> = offsets.map(|offset| offset.parse().unwrap()).collect();
        assert!(
            !offsets.is_empty() && offsets.iter().all(|offset| *offset <= i32::MAX as u64),
            "{offsets:?}"
        );
    }
}

#[test]
fn chunks_cover_all_elements_and_never_exceed_their_memory() {
    for count in [0_u64, 1, 2047, 2048, 2049, 1 << 20, (1 << 31) + 7, 1 << 37] {
        for bytes in [1, 4, 44, 512] {
            for aim in [Aim::Count, Aim::List, Aim::Stop] {
                for (head, tile) in [(0, 2048), (15, 16384)] {
                    let chunks = chunks((head, count), bytes, 1056, aim, tile);
                    assert!(chunks.chunks <= scratch::CHUNKS_MAX && chunks.per_chunk < 1 << 31);
                    assert!(head + chunks.chunks * chunks.per_chunk >= count);
                    assert!(chunks.chunks <= 1 || head + (chunks.chunks - 1) * chunks.per_chunk < count);
                }
            }
        }
    }
}

#[test]
#[ignore = "needs NVIDIA's ptxas, named by VMARRAY_PTXAS"]
fn the_assembler_takes_every_text() {
    for text in texts() {
        crate::kernel::assemble("sm_90", &text);
    }
}

#[test]
#[ignore = "needs NVIDIA's ptxas, named by VMARRAY_PTXAS"]
fn the_assembler_takes_every_search() {
    for (stride, length) in [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (44, 4), (44, 44), (4096, 4096)] {
        for start in [0, 4, 3] {
            let texts = search_texts((start, stride, 9), 0, &vec![1; length]);
            texts.iter().for_each(|text| crate::kernel::assemble("sm_90", text));
        }
    }
}
