//! Conformance checks of `Compute` requests: each result must equal a naive evaluation of the same program.

use std::time::Duration;

use backend_api::expr::{
    Action, Binary, FieldStore, Geometry, Instruction, Partial, Program, Type, Unary, Value,
};
use backend_api::kernel::{ArrayDecl, Body, Memory, Op, Reg, ScalarFunction, Space, TableDecl};
use backend_api::wrap::SplitMix64;
use backend_api::{Compute, Elements, ErrorKind, HostSpan, Request};

use super::Context;
use super::context::assert_refused;
use super::scene::Scene;

/// A builder of a program: the instructions so far.
struct Sketch(Vec<Instruction>);

impl Sketch {
    fn push(&mut self, instruction: Instruction) -> Value {
        self.0.push(instruction);
        Value(self.0.len() as u16 - 1)
    }

    fn field(&mut self, source: u8, offset: u32, of: Type) -> Value {
        self.push(Instruction::Field { source, offset, of })
    }

    fn literal(&mut self, of: Type, bits: u64) -> Value {
        self.push(Instruction::Literal { of, bits: bits & of.mask() })
    }

    fn binary(&mut self, op: Binary, left: Value, right: Value) -> Value {
        self.push(Instruction::Binary { op, left, right })
    }

    fn cast(&mut self, of: Value, to: Type) -> Value {
        self.push(Instruction::Cast { of, to })
    }

    /// Appends a conversion from or to a 16-bit float. A NaN becomes 0, because a NaN's bits are unspecified.
    fn converted(&mut self, op: Unary, of: Value) -> Value {
        let yes = self.push(Instruction::Unary { op, of });
        if self.of(yes).is_float() {
            return yes;
        }
        let (condition, no) = (self.binary(Binary::Eq, of, of), self.literal(Type::U16, 0));
        self.push(Instruction::Select { condition, yes, no })
    }

    fn of(&self, value: Value) -> Type {
        self.program().types()[value.at()]
    }

    fn program(&self) -> Program {
        Program::new(self.0.clone()).expect("the program must be valid")
    }

    /// Converts a value for comparison: a bool to a byte, and a NaN, whose bits are unspecified, to 0.
    fn storable(&mut self, value: Value) -> Value {
        let of = self.of(value);
        if of == Type::Bool {
            return self.cast(value, Type::U8);
        }
        if !of.is_float() {
            return value;
        }
        let condition = self.binary(Binary::Eq, value, value);
        let no = self.literal(of, 0);
        self.push(Instruction::Select { condition, yes: value, no })
    }
}

/// Returns the bits of a random number of a type, often an edge case of arithmetic.
fn edges(of: Type, random: &mut SplitMix64) -> u64 {
    let top = 1_u64 << (8 * of.bytes() - 1);
    let float = |x: f64| if of == Type::F32 { u64::from((x as f32).to_bits()) } else { x.to_bits() };
    let common = [0.0, -0.0, 1.0, -1.5, 127.5, 255.0, -128.9, 65535.6, 0.1, 3.0];
    let extreme = [-9.3e18, 1.9e19, 1e-40, 5e-324, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    // Test floats at the limits of other types: 2^31 and 2^32, and 2^24 + 1, which `f32` cannot represent.
    let ends = [31, 32, 24].map(|bits| (1_u64 << bits) as f64 + f64::from(u8::from(bits == 24)));
    let floats = [&common[..], &extreme, &ends].concat();
    let integers = [0, 1, 2, 7, u64::MAX, top, top - 1, top + 1, 31, 32, 64, 0x5555_5555_5555_5555, 100];
    match random.below(4) {
        0 => random.next() & of.mask(),
        // Use floats with a moderate exponent.
        1 if of.is_float() => float((random.next() as i64 >> 40) as f64 / 1024.0),
        1 => (random.below(64)) & of.mask(),
        _ if of.is_float() => float(random.pick(&floats)),
        _ => random.pick(&integers) & of.mask(),
    }
}

/// Generates `count` elements, each of two numbers of the type `of`.
fn pairs(of: Type, count: usize, random: &mut SplitMix64) -> Vec<u8> {
    let width = of.bytes() as usize;
    let number = |_| {
        let number = edges(of, random);
        // Take the low bytes of the number, in the machine's byte order.
        let shifted = if cfg!(target_endian = "big") { number << (64 - 8 * width) } else { number };
        shifted.to_ne_bytes().into_iter().take(width)
    };
    (0..2 * count).flat_map(number).collect()
}

/// Creates a program that loads the two numbers of an element as values 0 and 1. Value 5 is true if the first
/// number is less than the second.
fn on_pairs(of: Type) -> Sketch {
    let mut sketch = Sketch(Vec::new());
    let (a, b) = (sketch.field(0, 0, of), sketch.field(0, of.bytes(), of));
    let less = sketch.binary(Binary::Lt, a, b);
    let other = sketch.push(Instruction::Unary { op: Unary::Not, of: less });
    let both = sketch.binary(Binary::Or, less, other);
    sketch.binary(Binary::Xor, both, other);
    sketch
}

/// Creates a function of two numbers and a bool. It has a loop, branches, an array and a table, and also
/// accesses the array and the table out of bounds.
fn looping(of: Type) -> ScalarFunction {
    let [a, b, flag, at, one, len, more, found, sum] = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(Reg);
    let binary = |op, to, left, right| Op::Binary { op, to, left, right };
    let branches = Op::If {
        when: flag,
        then: vec![binary(Binary::Add, sum, sum, found)],
        otherwise: vec![
            binary(Binary::Mul, sum, sum, b),
            binary(Binary::Lt, more, sum, a),
            Op::If { when: more, then: vec![Op::Break { out: 1 }], otherwise: vec![] },
        ],
    };
    let turn = vec![
        binary(Binary::Lt, more, at, len),
        Op::If { when: more, then: vec![], otherwise: vec![Op::Break { out: 1 }] },
        Op::Block {
            body: vec![
                Op::Lookup { to: found, table: 0, at },
                Op::Put { array: 0, at, value: sum },
                branches,
                Op::Get { to: found, array: 0, at },
                binary(Binary::Max, sum, sum, found),
            ],
        },
        binary(Binary::Add, at, at, one),
    ];
    let code = vec![
        Op::Param { to: a, number: 0 },
        Op::Param { to: b, number: 1 },
        Op::Param { to: flag, number: 2 },
        Op::Literal { to: at, bits: 0 },
        Op::Literal { to: one, bits: 1 },
        Op::Literal { to: len, bits: 6 },
        Op::Copy { to: sum, of: a },
        Op::Block { body: vec![Op::Loop { body: turn }] },
        Op::Copy { to: b, of: sum },
    ];
    let body = Body {
        registers: vec![of, of, Type::Bool, Type::U64, Type::U64, Type::U64, Type::Bool, of, of],
        params: vec![of, of, Type::Bool],
        tables: vec![TableDecl { of: Memory::Value(of), len: 5 }],
        arrays: vec![ArrayDecl { space: Space::Item, of, len: 3 }],
        code,
        ..Body::default()
    };
    let width = of.bytes() as usize;
    let table = (0..5 * width as u8).map(|byte| if of.is_float() { byte % 0x60 } else { 0x55 ^ byte });
    let table: Vec<u8> = table.chain([0; 8]).take((5 * width).next_multiple_of(8)).collect();
    // Limit some functions, because a device may generate other code for loops with a limit than without.
    let limit = width.is_multiple_of(4).then_some(Duration::from_secs(600));
    ScalarFunction::new(body, table).expect("the function's body must be valid").with_time_limit(limit)
}

/// Creates a function of two numbers that returns true if the first is at most the second.
fn at_most(of: Type) -> ScalarFunction {
    let [a, b, holds] = [0, 1, 2].map(Reg);
    let code = vec![
        Op::Param { to: a, number: 0 },
        Op::Param { to: b, number: 1 },
        Op::Binary { op: Binary::Le, to: holds, left: a, right: b },
    ];
    let registers = vec![of, of, Type::Bool];
    let body = Body { registers, params: vec![of, of], code, ..Body::default() };
    ScalarFunction::new(body, Vec::new()).expect("the function's body must be valid")
}

/// Returns all operations on two numbers of a type, as instructions for the program of [`on_pairs`].
fn operations(of: Type) -> Vec<Instruction> {
    let [left, right, condition] = [0, 1, 5].map(Value);
    let mut all = vec![Instruction::Select { condition, yes: right, no: left }];
    all.extend(Binary::ALL.map(|op| Instruction::Binary { op, left, right }));
    all.extend(
        Unary::ALL.into_iter().chain(Unary::CONVERSIONS).map(|op| Instruction::Unary { op, of: left }),
    );
    all.push(Instruction::Fma { a: left, b: right, c: left });
    all.push(Instruction::Call { function: looping(of), arguments: vec![left, right, condition] });
    all.push(Instruction::Call { function: at_most(of), arguments: vec![right, left] });
    all.extend(Type::NUMBERS.map(|to| Instruction::Cast { of: left, to }));
    all.retain(|last| Program::new([on_pairs(of).0, vec![last.clone()]].concat()).is_ok());
    all
}

pub(super) fn computations_with_every_operation(cx: &Context<'_>) {
    const COUNT: usize = 600;
    const RESULT: usize = 8 * Compute::STORES_MAX;
    let mut random = SplitMix64::new(5);
    let mut scene = Scene::new(cx, COUNT * (16 + RESULT) + 16, 64);
    let target = COUNT * 16 + 8;
    for of in Type::NUMBERS {
        scene.put(0, &pairs(of, COUNT, &mut random));
        let stride = 2 * of.bytes() as usize;
        // Test several operations in one program, because a device may need long to compile a program.
        for some in operations(of).chunks(Compute::STORES_MAX) {
            let mut sketch = on_pairs(of);
            let mut store = |(place, operation): (u32, &Instruction)| {
                let result = match *operation {
                    Instruction::Unary { op, of } if Unary::CONVERSIONS.contains(&op) => {
                        sketch.converted(op, of)
                    }
                    _ => sketch.push(operation.clone()),
                };
                FieldStore { value: sketch.storable(result), source: 1, offset: 8 * place }
            };
            let stores: Vec<FieldStore> = (0..).zip(some).map(&mut store).collect();
            let sources = [scene.elements(0, COUNT, stride), scene.elements(target, COUNT, RESULT)];
            let action = Action::Store { stores: &stores, filter: None };
            let what = format!("{some:?} of {of}, each in 8 bytes");
            scene.compute(&sketch.program(), &sources, Geometry::plain(0), action, &what);
            scene.assert_as_expected(&what);
        }
    }
}

/// Returns the program's values with a type for which `fits` returns true.
fn values_of(program: &Program, fits: &dyn Fn(Type) -> bool) -> Vec<Value> {
    (0..).map(Value).zip(program.types()).filter(|(_, of)| fits(**of)).map(|(value, _)| value).collect()
}

/// Returns a random value of the type `of`, if the program has one.
fn of_type(sketch: &Sketch, of: Type, random: &mut SplitMix64) -> Option<Value> {
    let known = values_of(&sketch.program(), &|known| known == of);
    (!known.is_empty()).then(|| random.pick(&known))
}

/// Appends a call of a scalar function on numbers of the type `of`, if the program has such numbers.
fn push_call(sketch: &mut Sketch, of: Type, random: &mut SplitMix64) {
    let (a, b) = (of_type(sketch, of, random), of_type(sketch, of, random));
    let condition = of_type(sketch, Type::Bool, random);
    if let (Some(a), Some(b)) = (a, b) {
        let (function, arguments) = match condition {
            Some(condition) if random.below(2) == 0 => (looping(of), vec![a, b, condition]),
            _ => (at_most(of), vec![a, b]),
        };
        sketch.push(Instruction::Call { function, arguments });
    }
}

/// Generates a random expression of about `instructions` instructions on fields of two sources.
fn tree(random: &mut SplitMix64, strides: [usize; 2], instructions: usize, types: &[Type]) -> Sketch {
    let mut sketch = Sketch(Vec::new());
    while sketch.0.len() < instructions {
        let of = random.pick(types);
        match random.below(12) {
            10 => push_call(&mut sketch, of, random),
            11 => {
                let known = values_of(&sketch.program(), &|known| known == of);
                let op = random.pick(&Unary::ALL);
                if !known.is_empty() && op.takes(of) {
                    sketch.push(Instruction::Unary { op, of: random.pick(&known) });
                }
                let op = random.pick(&Unary::CONVERSIONS);
                if !known.is_empty() && op.takes(of) && types.contains(&op.gives(of)) {
                    sketch.converted(op, random.pick(&known));
                }
            }
            0..=2 => {
                let source = random.index(2);
                if let Some(room) = strides[source].checked_sub(of.bytes() as usize) {
                    sketch.field(source as u8, random.index(room + 1) as u32, of);
                }
            }
            3 => {
                let bits = edges(of, random);
                sketch.literal(of, bits);
            }
            4 if types.contains(&Type::U64) => {
                sketch.push(Instruction::Index);
            }
            5 => {
                if let Some(value) = of_type(&sketch, of, random) {
                    sketch.cast(value, random.pick(types));
                }
            }
            6 => {
                let yes = of_type(&sketch, of, random);
                let no = of_type(&sketch, of, random);
                let condition = of_type(&sketch, Type::Bool, random);
                if let (Some(condition), Some(yes), Some(no)) = (condition, yes, no) {
                    sketch.push(Instruction::Select { condition, yes, no });
                }
            }
            _ => {
                let of = if random.below(4) == 0 { Type::Bool } else { of };
                let op = random.pick(&Binary::ALL);
                if let (Some(left), Some(right)) =
                    (of_type(&sketch, of, random), of_type(&sketch, of, random))
                {
                    sketch.0.push(Instruction::Binary { op, left, right });
                    if Program::new(sketch.0.clone()).is_err() {
                        sketch.0.pop();
                    }
                }
            }
        }
    }
    sketch
}

/// Returns a program that casts a value to each of the types in turn, and the last value.
fn casted(sketch: &Sketch, value: Value, types: &[Type]) -> (Program, Value) {
    let mut sketch = Sketch(sketch.0.clone());
    let value = sketch.storable(value);
    let value = types.iter().fold(value, |of, &to| sketch.cast(of, to));
    (sketch.program(), value)
}

pub(super) fn random_computations(cx: &Context<'_>) {
    const COUNT: usize = 1500;
    let mut random = SplitMix64::new(cx.limits().seed ^ 0xE0);
    let answer_bytes = Compute::partials_bytes() as usize;
    let mut scene = Scene::new(cx, 3 * COUNT * 50 + 100, answer_bytes + 16);
    // Run few random programs, because compilation may take long. Another seed generates other programs.
    for round in 0..18 {
        let strides = [(); 2].map(|()| random.pick(&[1, 2, 4, 8, 12, 20, 44, 7, 13]));
        let types = if round % 3 == 0 { &Type::NUMBERS[..8] } else { &Type::NUMBERS[..] };
        let length = 5 + random.index(25);
        let mut sketch = tree(&mut random, strides, length, types);
        let (zero, one) = (sketch.literal(Type::U8, 0), sketch.literal(Type::U8, 1));
        let truth = sketch.binary(Binary::Lt, zero, one);
        let program = sketch.program();
        let all = |fits: &dyn Fn(Type) -> bool| values_of(&program, fits);
        let predicate = random.pick(&all(&|of| of == Type::Bool));
        let filter = random.pick(&[None, Some(predicate), Some(truth)]);
        let number = random.pick(&all(&|of| of != Type::Bool));
        let integer = random.pick(&all(&|of| of.is_integer()));
        let count = random.pick(&[COUNT, 1, 255, 257, 1024, 0]);
        let (start, align) = (COUNT * 50, if round % 2 == 0 { 8 } else { 1 });
        let begin = random.index(40) / align * align;
        let sources =
            [scene.elements(begin, count, strides[0]), scene.elements(start + begin, count, strides[1])];
        let page_len = random.pick(&[1, 7, 64, 1000]);
        let geometry = Geometry { first: random.below(1000), page_len, channel: 1, channels: 3 };
        let answer = scene.host_at(8);
        let limit = random.pick(&[0, 1, 5, 100, u64::MAX]);
        let what =
            |action: &str| format!("computation {round}, {action}, {count} elements of {strides:?} bytes");
        let mut kinds = 0_u64;
        let mut run = |program: &Program, action: Action<'_>, name: &str| {
            kinds += 1;
            if (kinds + round).is_multiple_of(3) {
                scene.compute(program, &sources, geometry, action, &what(name));
            }
        };
        let find = |limit, count_all| Action::Find { predicate, limit, count_all, answer };
        let count_all = round % 2 == 0;
        run(&program, find(if count_all { limit } else { limit.min(1) }, count_all), "find");
        run(&program, Action::Sum { value: integer, filter, answer }, "sum");
        // Sum floats that are 16-bit integers: their sum is exact in any order of the additions.
        let (exact, value) = casted(&sketch, integer, &[Type::I16, Type::F32]);
        run(&exact, Action::Sum { value, filter, answer }, "sum of floats");
        let extremes = |least, greatest| Action::Extremes { value: number, filter, least, greatest, answer };
        run(&program, extremes(true, false), "least");
        run(&program, extremes(false, true), "greatest");
        run(&program, extremes(true, true), "extremes");
        let (narrow, value) = casted(&sketch, integer, &[Type::U32]);
        let bins = random.pick(&[1, 100, Compute::BINS_MAX]);
        run(&narrow, Action::Histogram { value, filter, bins, answer }, "histogram");
        let (storable, value) = casted(&sketch, number, &[]);
        let width = storable.types()[value.at()].bytes() as usize;
        for (source, stride) in (0..).zip(strides) {
            if let Some(room) = stride.checked_sub(width) {
                let offset = random.index(room + 1) as u32;
                let stores = [FieldStore { value, source, offset }];
                run(&storable, Action::Store { stores: &stores, filter }, "store");
            }
        }
        scene.assert_as_expected(&what("all"));
        // The earlier stores have made many values equal, so generate new values.
        if round % 5 == 4 {
            let noise = cx.noise(round, 2 * COUNT * 50);
            scene.put(0, &noise);
        }
    }
}

/// Returns one action of each kind: search, sum, extremes, histogram and stores.
fn every_action<'a>(
    value: Value,
    predicate: Value,
    filter: Option<Value>,
    stores: &'a [FieldStore],
    answer: HostSpan<'a>,
) -> [Action<'a>; 5] {
    [
        Action::Find { predicate, limit: 3, count_all: true, answer },
        Action::Sum { value, filter, answer },
        Action::Extremes { value, filter, least: true, greatest: true, answer },
        Action::Histogram { value, filter, bins: 3, answer },
        Action::Store { stores, filter },
    ]
}

pub(super) fn computations_of_nothing(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 100, Compute::partials_bytes() as usize);
    let mut sketch = Sketch(Vec::new());
    let value = sketch.field(0, 0, Type::U32);
    let predicate = sketch.binary(Binary::Eq, value, value);
    let program = sketch.program();
    let answer = scene.host_at(0);
    let stores = [FieldStore { value, source: 0, offset: 0 }];
    let actions = every_action(value, predicate, None, &stores, answer);
    for (at, action) in actions.into_iter().enumerate() {
        // A source (array) of 0 elements accepts any stride.
        let sources =
            [scene.elements(100, 0, 4), scene.elements(0, 0, usize::MAX), scene.elements(8, 0, usize::MAX)];
        scene.compute(
            &program,
            &sources,
            Geometry::plain(0),
            action,
            &format!("computation {at} of nothing"),
        );
    }
    scene.assert_as_expected("computations of nothing");
}

pub(super) fn computations_of_many_elements(cx: &Context<'_>) {
    const COUNT: usize = 140_001;
    let answer_bytes = Compute::partials_bytes() as usize + 8 * COUNT;
    let mut scene = Scene::new(cx, COUNT * 8 + 64, answer_bytes);
    let answer = scene.host_at(0);
    for (of, at) in [(Type::U32, 4), (Type::F32, 0), (Type::I64, 8), (Type::U8, 3)] {
        let width = of.bytes() as usize;
        let mut sketch = Sketch(Vec::new());
        let value = sketch.field(0, 0, of);
        let whole = sketch.cast(value, Type::I16);
        let narrow = sketch.cast(whole, Type::U32);
        let index = sketch.push(Instruction::Index);
        let [one, two, three] = [4096, 1000, 3].map(|n| sketch.literal(Type::U64, n));
        let rest = sketch.binary(Binary::Rem, index, one);
        let edge = sketch.binary(Binary::Le, rest, three);
        let late = sketch.binary(Binary::Lt, two, index);
        let predicate = sketch.binary(Binary::And, edge, late);
        let program = sketch.program();
        let sources = [scene.elements(at, COUNT, width)];
        let mut run_at = |geometry, action: Action<'_>, what: &str| {
            scene.compute(&program, &sources, geometry, action, &format!("{what} of many {of}"));
        };
        // Test ranges of indices that cross 2^32, or wrap around at 2^64.
        for first in [(1 << 32) - 70_000, u64::MAX - 70_000] {
            let geometry = Geometry { first, page_len: 1000, channel: 1, channels: 3 };
            run_at(geometry, Action::Sum { value: index, filter: None, answer }, "sum of large indices");
        }
        let geometry = Geometry { first: 5, page_len: 4096, channel: 0, channels: 1 };
        let mut run = |action: Action<'_>, what: &str| run_at(geometry, action, what);
        for (limit, count_all) in [(COUNT as u64, true), (0, true), (1, false), (70, true)] {
            run(Action::Find { predicate, limit, count_all, answer }, "find");
        }
        for filter in [None, Some(predicate)] {
            run(Action::Sum { value: whole, filter, answer }, "sum");
            run(Action::Extremes { value, filter, least: true, greatest: true, answer }, "extremes");
        }
        run(Action::Extremes { value: index, filter: None, least: false, greatest: true, answer }, "last");
        run(Action::Histogram { value: narrow, filter: Some(predicate), bins: 300, answer }, "histogram");
        let stores = [FieldStore { value, source: 0, offset: 0 }];
        run(Action::Store { stores: &stores, filter: Some(predicate) }, "no change to some");
        scene.assert_as_expected(&format!("computations of many {of}"));
    }
}

/// Checks kernels in which one GPU thread processes several adjacent short elements. Some element counts
/// leave too few elements for the last thread.
pub(super) fn computations_of_short_elements(cx: &Context<'_>) {
    const MOST: usize = 70_001;
    // Byte offsets (multiples of 16) of the second source (array), and of the target with wider elements.
    const SECOND: usize = (2 * MOST).next_multiple_of(16) + 16;
    const THIRD: usize = 2 * SECOND;
    let mut scene = Scene::new(cx, THIRD + 4 * MOST, Compute::partials_bytes() as usize + 8 * MOST);
    let answer = scene.host_at(0);
    let types = [
        (Type::U8, Type::I16),
        (Type::I8, Type::U8),
        (Type::U16, Type::U32),
        (Type::I16, Type::I8),
        (Type::I32, Type::U32),
    ];
    for (of, other) in types {
        let mut sketch = Sketch(Vec::new());
        let (a, b) = (sketch.field(0, 0, of), sketch.field(1, 0, other));
        let wide = sketch.cast(a, other);
        let mixed = sketch.binary(Binary::Xor, wide, b);
        let back = sketch.cast(mixed, of);
        let bin = sketch.cast(a, Type::U32);
        let index = sketch.push(Instruction::Index);
        let whole = sketch.cast(index, Type::U32);
        let predicate = sketch.binary(Binary::Lt, wide, b);
        let program = sketch.program();
        let (first, second) = (of.bytes() as usize, other.bytes() as usize);
        // The elements start at a multiple of 16 bytes in the first case, but not in the second.
        for (start, counts) in
            [(0, &[1, 7, 8, 9, 1029, 2047, 2048, 2050, 33_333, MOST][..]), (first, &[3000])]
        {
            for &count in counts.iter().filter(|count| **count * first.max(second) <= 2 * MOST) {
                let sources = [
                    scene.elements(start, count, first),
                    scene.elements(SECOND, count, second),
                    scene.elements(THIRD, count, 4),
                ];
                let geometry = Geometry { first: 3, page_len: 1000, channel: 1, channels: 2 };
                let mut run = |action: Action<'_>, what: &str| {
                    let what = format!("{what} of {count} {of} from {start} on");
                    scene.compute(&program, &sources, geometry, action, &what);
                };
                run(Action::Sum { value: mixed, filter: Some(predicate), answer }, "sum");
                run(Action::Histogram { value: bin, filter: None, bins: 256, answer }, "histogram");
                run(Action::Find { predicate, limit: 0, count_all: true, answer }, "count");
                run(Action::Find { predicate, limit: count as u64, count_all: true, answer }, "find");
                let extremes =
                    Action::Extremes { value: a, filter: None, least: true, greatest: true, answer };
                run(extremes, "extremes");
                let store = |value, source| FieldStore { value, source, offset: 0 };
                let stores = [store(back, 0), store(mixed, 1), store(whole, 2)];
                run(Action::Store { stores: &stores, filter: None }, "stores");
                run(Action::Store { stores: &stores[..1], filter: Some(predicate) }, "store to some");
            }
        }
        searches_from_any_address(&mut scene, of, answer);
        scene.assert_as_expected(&format!("computations of short {of}"));
    }
}

/// Searches in elements that start at any address, with up to 15 elements before a multiple of 16.
fn searches_from_any_address(scene: &mut Scene<'_>, of: Type, answer: HostSpan<'static>) {
    const COUNT: usize = 300;
    let mut sketch = Sketch(Vec::new());
    let value = sketch.field(0, 0, of);
    let wide = sketch.cast(value, Type::U32);
    let bound = sketch.literal(Type::U32, 99);
    let predicate = sketch.binary(Binary::Lt, wide, bound);
    let (program, bytes) = (sketch.program(), of.bytes() as usize);
    let geometry = Geometry { first: 3, page_len: 1000, channel: 1, channels: 2 };
    for start in (0..16).step_by(bytes) {
        let sources = [scene.elements(start, COUNT, bytes)];
        for limit in [0, COUNT as u64] {
            let action = Action::Find { predicate, limit, count_all: true, answer };
            let what = format!("a search for at most {limit} {of} from {start} on");
            scene.compute(&program, &sources, geometry, action, &what);
        }
    }
}

pub(super) fn computations_that_store_in_several_fields(cx: &Context<'_>) {
    const COUNT: usize = 5000;
    let mut scene = Scene::new(cx, COUNT * 30, 64);
    for filtered in [false, true] {
        let mut sketch = Sketch(Vec::new());
        let (a, b) = (sketch.field(0, 0, Type::U32), sketch.field(0, 4, Type::U32));
        let c = sketch.field(1, 2, Type::U16);
        let sum = sketch.binary(Binary::Add, a, b);
        let wide = sketch.cast(c, Type::U32);
        let less = sketch.binary(Binary::Lt, a, b);
        let program = sketch.program();
        // Each round swaps two fields of every selected element. A device must therefore read all fields of
        // an element before it writes them.
        let records = scene.elements(0, COUNT, 12);
        let others = scene.elements(COUNT * 12, COUNT, 6);
        let sources = [records, others, records];
        let stores = [
            FieldStore { value: b, source: 0, offset: 0 },
            FieldStore { value: a, source: 2, offset: 4 },
            FieldStore { value: sum, source: 1, offset: 0 },
            FieldStore { value: wide, source: 2, offset: 8 },
        ];
        let action = Action::Store { stores: &stores, filter: filtered.then_some(less) };
        scene.compute(&program, &sources, Geometry::plain(0), action, "several stores");
        scene.assert_as_expected("a computation that stores in several fields");
    }
}

/// Checks that computations in flight at the same time do not overwrite each other's intermediate results.
pub(super) fn computations_in_flight_at_once_do_not_mix(cx: &Context<'_>) {
    const COUNT: usize = 20_000;
    let room = Compute::partials_bytes() as usize;
    let mut scene = Scene::new(cx, COUNT * 4, 12 * room);
    let values: Vec<u8> = (0..COUNT as u32).flat_map(u32::to_ne_bytes).collect();
    scene.put(0, &values);
    let others = [cx.queue(), cx.queue()];
    let sources = [scene.elements(0, COUNT, 4)];
    let mut tickets = Vec::new();
    for k in 0..12_u64 {
        let mut sketch = Sketch(Vec::new());
        let value = sketch.field(0, 0, Type::U32);
        let least = sketch.literal(Type::U32, k * 1000);
        let filter = Some(sketch.binary(Binary::Le, least, value));
        let (program, answer) = (sketch.program(), scene.host_at(k * room as u64));
        let action = Action::Sum { value, filter, answer };
        let compute = Compute { program: &program, sources: &sources, geometry: Geometry::plain(0), action };
        let queue = [&scene.queue, &others[0], &others[1]][k as usize % 3];
        tickets.push(queue.submit(&compute).expect("the compute request must be accepted"));
    }
    for (k, ticket) in tickets.into_iter().enumerate() {
        cx.wait(ticket);
        let sum: i128 = (k as i128 * 1000..COUNT as i128).sum();
        let partials = scene.partials(k * room);
        assert_eq!(
            Partial::sum_of_integers(&partials),
            sum,
            "wrong result: sum {k} of twelve in three queues"
        );
    }
}

pub(super) fn preparing_changes_nothing(cx: &Context<'_>) {
    const COUNT: usize = 3000;
    let mut scene = Scene::new(cx, COUNT * 8, Compute::partials_bytes() as usize);
    let mut sketch = Sketch(Vec::new());
    let (value, seven) = (sketch.field(0, 0, Type::U32), sketch.literal(Type::U32, 7));
    let sum = sketch.binary(Binary::Add, value, seven);
    let predicate = sketch.binary(Binary::Lt, value, sum);
    let program = sketch.program();
    let answer = scene.host_at(0);
    let filter = Some(predicate);
    let stores = [FieldStore { value: sum, source: 1, offset: 0 }];
    let actions = every_action(value, predicate, filter, &stores, answer);
    let device = cx.device();
    for (at, action) in actions.into_iter().enumerate() {
        let sources = |count| [scene.elements(0, count, 4), scene.elements(COUNT * 4, count, 4)];
        let (all, none) = (sources(COUNT), sources(0));
        let geometry = Geometry::plain(9);
        let prepare = |sources: &[Elements]| {
            let compute = Compute { program: &program, sources, geometry, action };
            device
                .prepare(&[Request::Compute(&compute)])
                .expect("the preparation of a compute request must succeed");
        };
        let before = scene.submit(&[]);
        // Prepare the request in two threads at the same time, then once more, and once for zero elements.
        std::thread::scope(|scope| {
            scope.spawn(|| prepare(&all));
            prepare(&all);
        });
        prepare(&all);
        prepare(&none);
        assert_eq!(scene.submit(&[]).value, before.value + 1, "preparations must not take tickets");
        scene.assert_as_expected(&format!("preparation {at}"));
        scene.compute(&program, &all, geometry, action, &format!("computation {at}, prepared"));
    }
    scene.assert_as_expected("prepared computations");
}

pub(super) fn malformed_computations_are_refused(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 1024, Compute::partials_bytes() as usize + 8);
    let mut sketch = Sketch(Vec::new());
    let value = sketch.field(0, 4, Type::U32);
    let truth = sketch.binary(Binary::Eq, value, value);
    let byte = sketch.cast(value, Type::U8);
    let program = sketch.program();
    let good = [scene.elements(0, 8, 8)];
    let geometry = Geometry::plain(0);
    let answer = scene.host_at(0);
    let sum_of = |value, filter| Action::Sum { value, filter, answer };
    let sum = sum_of(value, None);
    let refused = |what: &str, sources: &[Elements], geometry: Geometry, action: Action<'_>| {
        let compute = Compute { program: &program, sources, geometry, action };
        assert_refused(what, scene.queue.submit(&compute), ErrorKind::InvalidArgument);
    };
    refused("no sources", &[], geometry, sum);
    refused("too many sources", &[good[0]; 9], geometry, sum);
    refused("different lengths", &[good[0], scene.elements(512, 9, 8)], geometry, sum);
    refused("a field outside", &[scene.elements(0, 8, 7)], geometry, sum);
    refused("elements outside", &[scene.elements(1000, 8, 8)], geometry, sum);
    refused("stride 0", &[scene.elements(0, 8, 0)], geometry, sum);
    refused("pages of nothing", &good, Geometry { page_len: 0, ..geometry }, sum);
    refused("no channels", &good, Geometry { channels: 0, ..geometry }, sum);
    refused("a sum of values of type bool", &good, geometry, sum_of(truth, None));
    refused("a filter of type number instead of bool", &good, geometry, sum_of(value, Some(value)));
    refused("an action on a value that does not exist", &good, geometry, sum_of(Value(9), None));
    let find = |predicate, answer| Action::Find { predicate, limit: 1, count_all: true, answer };
    refused("a predicate of type number instead of bool", &good, geometry, find(value, answer));
    refused("a misaligned answer", &good, geometry, find(truth, scene.host_at(4)));
    let end = scene.host.bytes() as u64 - 16;
    refused("an answer outside", &good, geometry, find(truth, scene.host_at(end)));
    let outside = Action::Sum { value, filter: None, answer: scene.host_at(16) };
    refused("partial results outside", &good, geometry, outside);
    let bins = |value, bins| Action::Histogram { value, filter: None, bins, answer };
    refused("no bins", &good, geometry, bins(value, 0));
    refused("too many bins", &good, geometry, bins(value, Compute::BINS_MAX + 1));
    refused("bins of bytes", &good, geometry, bins(byte, 10));
    let store = |value, source, offset| FieldStore { value, source, offset };
    fn stores(stores: &[FieldStore], filter: Option<Value>) -> Action<'_> {
        Action::Store { stores, filter }
    }
    refused("no stores", &good, geometry, stores(&[], None));
    refused("a store of a value of type bool", &good, geometry, stores(&[store(truth, 0, 0)], None));
    refused("a store outside", &good, geometry, stores(&[store(value, 0, 5)], None));
    refused("a store to a source that does not exist", &good, geometry, stores(&[store(value, 1, 0)], None));
    let twice = [store(value, 0, 0), store(byte, 0, 3)];
    refused("two stores to one byte", &good, geometry, stores(&twice, None));
    let crossed = [good[0], scene.elements(4, 8, 8)];
    refused(
        "a written source that overlaps with another source",
        &crossed,
        geometry,
        stores(&[store(value, 1, 0)], None),
    );
    scene.compute(&program, &crossed, geometry, sum, "sources that overlap");
    scene.assert_as_expected("malformed computations");
}
