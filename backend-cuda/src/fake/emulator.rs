//! Interpreter for the PTX that `kernel::launch` generates, for tests. The interpreter checks every address.
//!
//! The interpreter follows the PTX ISA, and shares no code with the generator of the PTX. The processor and
//! PTX both compute floats by IEEE 754. Unknown instructions panic.

use std::collections::HashMap;

/// PTX state space that an access uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Param,
    Local,
    Shared,
    Global,
}

#[derive(Clone, Debug)]
enum Operand {
    Register(usize),
    Not(usize),
    Number(u64),
    /// A special register such as `%tid.x`.
    Special(String),
    /// The address `[register+number]`.
    Memory(Option<usize>, u64),
    /// A list of registers such as `{a, b}`.
    List(Vec<usize>),
    Label(String),
}

#[derive(Debug)]
struct Instruction {
    guard: Option<(usize, bool)>,
    /// The operation and its modifiers, such as `setp`, `lt`, `u64`.
    words: Vec<String>,
    operands: Vec<Operand>,
    /// For a branch: the index of its target.
    target: usize,
    /// For a branch back to the start of a loop: the predicates that the loop writes.
    turned: Vec<usize>,
    text: String,
}

/// A parsed PTX kernel.
#[derive(Debug)]
pub(crate) struct EmulatedKernel {
    pub param_bytes: usize,
    local_bytes: usize,
    shared_bytes: usize,
    /// For each register, true if it is a predicate.
    registers: Vec<bool>,
    code: Vec<Instruction>,
}

/// Value that the emulator gives to a predicate in the iterations after the one that wrote it. A read of it
/// is an error, because NVIDIA's assembler (12.9, 13.0) assumes that a predicate that a branch has tested
/// keeps its value, even if the next iteration of a loop reads a new value of it.
const TURNED: u64 = 0x7075_7265;

/// Reads and writes device memory for the emulator.
pub(crate) trait EmulatedMemory {
    fn read(&self, address: u64, bytes: &mut [u8]);
    fn write(&self, address: u64, bytes: &[u8]);
}

struct Thread {
    number: u32,
    at: usize,
    registers: Vec<u64>,
    local: Vec<u8>,
}

/// Reason why a thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Over,
    /// The thread stopped at the instruction with this index, which all threads of a block execute together.
    Together(usize),
}

impl EmulatedKernel {
    /// Parses the kernel `name` in a PTX text. Returns `None` if the text has no such kernel.
    pub fn parse(text: &str, name: &str) -> Option<Self> {
        let head = format!(".visible .entry {name}(");
        let rest = &text[text.find(&head)? + head.len()..];
        let (parameters, rest) = rest.split_once(')')?;
        let bytes = parameters.trim().rsplit_once('[')?.1.trim_end_matches(']').parse().ok()?;
        let body = rest.split_once("\n{\n")?.1.split_once("\n}\n")?.0;
        let mut kernel = Self {
            param_bytes: bytes,
            local_bytes: 0,
            shared_bytes: 0,
            registers: Vec::new(),
            code: Vec::new(),
        };
        let (mut names, mut labels) = (HashMap::new(), HashMap::new());
        names.insert(format!("{name}_p"), None);
        for line in body.lines() {
            let line = line.trim();
            if let Some(label) = line.strip_suffix(':') {
                assert!(
                    labels.insert(label.to_owned(), kernel.code.len()).is_none(),
                    "the PTX text defines the label {label} twice"
                );
            } else if let Some(declared) = line.strip_prefix(".reg ") {
                let (kind, name) = declared.trim_end_matches(';').split_once(' ')?;
                let number = Some(kernel.registers.len());
                assert!(names.insert(name.into(), number).is_none(), "{name} twice");
                kernel.registers.push(kind == ".pred");
            } else if let Some((space, declared)) = line.split_once(" .b8 ") {
                let (name, bytes) = declared.trim_end_matches("];").split_once('[')?;
                names.insert(name.into(), None);
                let is_local = space.starts_with(".local ");
                let of = if is_local { &mut kernel.local_bytes } else { &mut kernel.shared_bytes };
                *of = bytes.parse().ok()?;
            } else {
                kernel.code.push(Instruction::parse(line, &names));
            }
        }
        for at in 0..kernel.code.len() {
            let [Operand::Label(label)] = &kernel.code[at].operands[..] else { continue };
            let target = *labels
                .get(label)
                .unwrap_or_else(|| panic!("the PTX text does not define the label {label}"));
            let written = |instruction: &Instruction| match instruction.operands.first() {
                Some(Operand::Register(register)) if kernel.registers[*register] => Some(*register),
                _ => None,
            };
            let turned = kernel.code.get(target..at).unwrap_or_default().iter().filter_map(written).collect();
            (kernel.code[at].target, kernel.code[at].turned) = (target, turned);
        }
        Some(kernel)
    }

    /// Emulates a launch with parameter bytes `params`: runs a block's threads one by one up to each barrier.
    pub fn run(&self, memory: &impl EmulatedMemory, blocks: u32, threads: u32, params: &[u8]) {
        for block in 0..blocks {
            let thread = |number| Thread {
                number,
                at: 0,
                // Start registers with a pattern, not zeroes, so reads before the first write fail the tests.
                registers: vec![0xA5A5_A5A5_A5A5_A5A5; self.registers.len()],
                local: vec![0xA5; self.local_bytes],
            };
            let mut all: Vec<Thread> = (0..threads).map(thread).collect();
            let mut shared = vec![0xA5; self.shared_bytes];
            loop {
                let run = |thread: &mut Thread| {
                    let mut run = Run {
                        kernel: self,
                        memory,
                        params,
                        shared: &mut shared,
                        block,
                        blocks,
                        threads,
                        thread,
                    };
                    run.on()
                };
                let stops: Vec<Stop> = all.iter_mut().map(run).collect();
                assert!(
                    stops.iter().all(|stop| *stop == stops[0]),
                    "the threads of a block stop at different instructions: {stops:?}"
                );
                let Stop::Together(at) = stops[0] else { break };
                let instruction = &self.code[at];
                if instruction.words[0] != "barrier" {
                    all.chunks_mut(32).for_each(|warp| across(instruction, warp));
                }
            }
        }
    }
}

/// Executes an instruction for all threads of a warp.
fn across(instruction: &Instruction, warp: &mut [Thread]) {
    assert_eq!(warp.len(), 32, "a warp operation in a block whose length is not a multiple of 32");
    let words: Vec<&str> = instruction.words.iter().map(String::as_str).collect();
    let operands = &instruction.operands;
    let read = |thread: &Thread, at: usize| match operands[at] {
        Operand::Register(register) => thread.registers[register],
        Operand::Number(number) => number,
        ref other => panic!("the operand {other:?} is not a value"),
    };
    let values: Vec<u64> = warp.iter().map(|thread| read(thread, 1)).collect();
    let mask = operands.len() - 1;
    assert!(
        warp.iter().all(|thread| read(thread, mask) == 0xFFFF_FFFF),
        "the mask of a warp operation lacks some of the 32 lanes"
    );
    let bits = values.iter().enumerate().fold(0, |all, (lane, value)| all | (value & 1) << lane);
    let results: Vec<u64> = (0..32_usize)
        .map(|lane| match words[..] {
            ["shfl", "sync", mode, "b32"] => {
                let (by, bound) = (read(&warp[lane], 2) as usize & 31, read(&warp[lane], 3));
                assert_eq!(bound, if mode == "up" { 0 } else { 31 });
                values[match mode {
                    "idx" => by,
                    "bfly" => lane ^ by,
                    // If no lane exists at this distance, the lane gets its own value.
                    "up" => lane.checked_sub(by).unwrap_or(lane),
                    _ => panic!("the emulator has no shuffle mode {mode}"),
                }]
            }
            ["vote", "sync", "ballot", "b32"] => bits,
            ["vote", "sync", "any", "pred"] => u64::from(bits != 0),
            ["vote", "sync", "all", "pred"] => u64::from(bits == 0xFFFF_FFFF),
            ["redux", "sync", op, kind] => {
                let one = |all, value: &u64| compute_integers(&[op, kind], kind, &[all, *value]);
                values[1..].iter().fold(values[0], |all, value| {
                    one(all, value).expect("the emulator must have the operation") as u64
                })
            }
            _ => panic!("the emulator lacks the instruction {}", instruction.text),
        })
        .collect();
    let Operand::Register(to) = operands[0] else { panic!("{} has no result register", instruction.text) };
    warp.iter_mut().zip(results).for_each(|(thread, result)| thread.registers[to] = result);
}

impl Instruction {
    fn parse(line: &str, names: &HashMap<String, Option<usize>>) -> Self {
        let text = line.trim_end_matches(';');
        let (mut guard, mut rest) = (None, text);
        if let Some(guarded) = text.strip_prefix('@') {
            let (name, others) = guarded.split_once(' ').expect("an instruction must follow a guard");
            let register = |name: &str| names[name].expect("a predicate must be declared");
            guard = Some(match name.strip_prefix('!') {
                Some(name) => (register(name), false),
                None => (register(name), true),
            });
            rest = others;
        }
        let (operation, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let mut operands = Vec::new();
        let mut left = rest.trim();
        while !left.is_empty() {
            let end = match left.find('{') {
                Some(0) => left.find('}').expect("a list of operands must end with a brace") + 1,
                _ => left.find(',').unwrap_or(left.len()),
            };
            operands.push(operand(left[..end].trim(), names, operation.starts_with("bra")));
            left = left[end..].trim_start_matches(',').trim();
        }
        let words = operation.split('.').map(str::to_owned).collect();
        Self { guard, words, operands, target: 0, turned: Vec::new(), text: text.into() }
    }
}

fn number(text: &str) -> Option<u64> {
    let hexadecimal = |digits| u64::from_str_radix(digits, 16).ok();
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0f")) {
        return hexadecimal(digits);
    }
    if let Some(digits) = text.strip_prefix("0d") {
        return hexadecimal(digits);
    }
    text.parse::<i64>().map(|number| number as u64).or_else(|_| text.parse()).ok()
}

fn operand(text: &str, names: &HashMap<String, Option<usize>>, is_label: bool) -> Operand {
    if is_label {
        return Operand::Label(text.into());
    }
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.trim_end_matches(']');
        let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        let base = names.get(base).unwrap_or_else(|| panic!("the PTX text does not declare {base}"));
        let offsets = offset.split('+').map(|offset| number(offset).expect("an offset must be a number"));
        return Operand::Memory(*base, offsets.sum());
    }
    if let Some(list) = text.strip_prefix('{') {
        let list = list.trim_end_matches('}').split(',');
        return Operand::List(
            list.map(|name| names[name.trim()].expect("a register must be declared")).collect(),
        );
    }
    if text.starts_with('%') {
        return Operand::Special(text.into());
    }
    if let Some(name) = text.strip_prefix('!') {
        return Operand::Not(names[name].expect("a predicate must be declared"));
    }
    match names.get(text) {
        Some(Some(register)) => Operand::Register(*register),
        // The name of an array stands for the start of its memory space.
        Some(None) => Operand::Number(0),
        None => {
            Operand::Number(number(text).unwrap_or_else(|| panic!("the emulator lacks the operand {text}")))
        }
    }
}

fn bits_of(kind: &str) -> u32 {
    match kind {
        "pred" => 1,
        kind => kind[1..].parse().unwrap_or_else(|_| panic!("the emulator lacks the type {kind}")),
    }
}

fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

/// Converts the bits of any integer type to a signed number.
fn integer(kind: &str, value: u64) -> i128 {
    let unused = 64 - bits_of(kind);
    if kind.starts_with('s') {
        i128::from((value << unused) as i64 >> unused)
    } else {
        i128::from(value & mask(64 - unused))
    }
}

fn float(kind: &str, value: u64) -> f64 {
    if kind == "f32" { f32::from_bits(value as u32).into() } else { f64::from_bits(value) }
}

struct Run<'a, M> {
    kernel: &'a EmulatedKernel,
    memory: &'a M,
    params: &'a [u8],
    shared: &'a mut [u8],
    block: u32,
    blocks: u32,
    threads: u32,
    thread: &'a mut Thread,
}

impl<M: EmulatedMemory> Run<'_, M> {
    fn on(&mut self) -> Stop {
        loop {
            let Some(instruction) = self.kernel.code.get(self.thread.at) else { return Stop::Over };
            self.thread.at += 1;
            if let Some((predicate, wanted)) = instruction.guard
                && (self.register(predicate) & 1 == 1) != wanted
            {
                continue;
            }
            let words: Vec<&str> = instruction.words.iter().map(String::as_str).collect();
            match &words[..] {
                ["bra"] => {
                    instruction
                        .turned
                        .iter()
                        .for_each(|predicate| self.thread.registers[*predicate] = TURNED);
                    self.thread.at = instruction.target;
                }
                ["ret"] => {
                    self.thread.at = self.kernel.code.len();
                    return Stop::Over;
                }
                ["barrier" | "shfl" | "vote" | "redux", ..] => {
                    assert!(
                        instruction.guard.is_none(),
                        "an instruction for all threads has a guard (predicate)"
                    );
                    return Stop::Together(self.thread.at - 1);
                }
                ["membar", "gl" | "cta"] | ["bar", "warp", "sync"] => {}
                words => self.step(instruction, words),
            }
        }
    }

    fn register(&self, register: usize) -> u64 {
        let value = self.thread.registers[register];
        assert!(
            value != TURNED || !self.kernel.registers[register],
            "a predicate was read that an earlier iteration of the loop wrote"
        );
        value
    }

    fn value(&self, operand: &Operand) -> u64 {
        match operand {
            Operand::Register(register) => self.register(*register),
            Operand::Not(register) => self.register(*register) ^ 1,
            Operand::Number(number) => *number,
            Operand::Special(name) => u64::from(match name.as_str() {
                "%tid.x" => self.thread.number,
                "%ctaid.x" => self.block,
                "%ntid.x" => self.threads,
                "%nctaid.x" => self.blocks,
                "%nctaid.y" => 1,
                "%lanemask_le" => u32::MAX >> (31 - self.thread.number % 32),
                other => panic!("the emulator lacks the register {other}"),
            }),
            other => panic!("the operand {other:?} is not a value"),
        }
    }

    fn address(&self, operand: &Operand) -> u64 {
        let Operand::Memory(base, offset) = operand else {
            panic!("the operand {operand:?} is not an address")
        };
        base.map_or(0, |base| self.thread.registers[base]).wrapping_add(*offset)
    }

    fn read(&self, space: Space, address: u64, width: usize) -> u64 {
        assert!(
            address.is_multiple_of(width as u64),
            "a read of {width} bytes at {address:#x} is misaligned"
        );
        let (mut bytes, at) = ([0; 8], address as usize);
        match space {
            Space::Param => bytes[..width].copy_from_slice(&self.params[at..at + width]),
            Space::Local => bytes[..width].copy_from_slice(&self.thread.local[at..at + width]),
            Space::Shared => bytes[..width].copy_from_slice(&self.shared[at..at + width]),
            Space::Global => self.memory.read(address, &mut bytes[..width]),
        }
        u64::from_le_bytes(bytes)
    }

    fn write(&mut self, space: Space, address: u64, width: usize, value: u64) {
        assert!(
            address.is_multiple_of(width as u64),
            "a write of {width} bytes at {address:#x} is misaligned"
        );
        let (bytes, at) = (value.to_le_bytes(), address as usize);
        match space {
            Space::Param => panic!("a kernel writes to its parameters"),
            Space::Local => self.thread.local[at..at + width].copy_from_slice(&bytes[..width]),
            Space::Shared => self.shared[at..at + width].copy_from_slice(&bytes[..width]),
            Space::Global => self.memory.write(address, &bytes[..width]),
        }
    }

    fn step(&mut self, instruction: &Instruction, words: &[&str]) {
        let operands = &instruction.operands;
        let kind = words[words.len() - 1];
        match words[0] {
            "ld" => return self.load(words, kind, operands),
            "st" => return self.store(words, kind, operands),
            _ => {}
        }
        let from = if words[0] == "atom" { 2 } else { 1 };
        if let ["mov", "b64"] = words {
            if let [Operand::List(halves), of] = &operands[..] {
                let value = self.value(of);
                self.thread.registers[halves[0]] = value & mask(32);
                self.thread.registers[halves[1]] = value >> 32;
                return;
            }
            if let [Operand::Register(to), Operand::List(halves)] = &operands[..] {
                let [low, high] = [0, 1].map(|half| self.thread.registers[halves[half]] & mask(32));
                self.thread.registers[*to] = low | high << 32;
                return;
            }
        }
        let inputs: Vec<u64> = operands[from..].iter().map(|operand| self.value(operand)).collect();
        let Operand::Register(to) = operands[0] else {
            panic!("{} has no result register", instruction.text)
        };
        let result = if words[0] == "atom" {
            let (space, width) = (space_of(words), bits_of(kind) as usize / 8);
            let address = self.address(&operands[1]);
            let old = self.read(space, address, width);
            let step = words[words.len() - 2];
            let new = atomic(step, kind, space, old, &inputs);
            self.write(
                space,
                address,
                width,
                new.unwrap_or_else(|| panic!("the emulator lacks the instruction {}", instruction.text)),
            );
            old
        } else {
            compute(words, kind, &inputs)
                .unwrap_or_else(|| panic!("the emulator lacks the instruction {}", instruction.text))
        };
        self.thread.registers[to] = result;
    }

    fn load(&mut self, words: &[&str], kind: &str, operands: &[Operand]) {
        let (space, width) = (space_of(words), bits_of(kind) as usize / 8);
        let address = self.address(&operands[1]);
        let registers = match &operands[0] {
            Operand::Register(register) => vec![*register],
            Operand::List(registers) => registers.clone(),
            other => panic!("a load cannot write to the operand {other:?}"),
        };
        assert!(address.is_multiple_of((registers.len() * width) as u64), "a vector access is misaligned");
        for (part, register) in registers.into_iter().enumerate() {
            let value = self.read(space, address + (part * width) as u64, width);
            // Extend a short number to the register's 32 bits: a signed one by its sign, others by zeroes.
            let extended = if width < 4 { integer(kind, value) as u64 & mask(32) } else { value };
            self.thread.registers[register] = extended;
        }
    }

    fn store(&mut self, words: &[&str], kind: &str, operands: &[Operand]) {
        let (space, width) = (space_of(words), bits_of(kind) as usize / 8);
        let address = self.address(&operands[0]);
        let values = match &operands[1] {
            Operand::List(registers) => registers.iter().map(|at| self.thread.registers[*at]).collect(),
            one => vec![self.value(one)],
        };
        assert!(address.is_multiple_of((values.len() * width) as u64), "a vector access is misaligned");
        for (part, value) in values.into_iter().enumerate() {
            self.write(space, address + (part * width) as u64, width, value);
        }
    }
}

fn space_of(words: &[&str]) -> Space {
    let named = |word: &&str| match *word {
        "param" => Some(Space::Param),
        "local" => Some(Space::Local),
        "shared" => Some(Space::Shared),
        "global" => Some(Space::Global),
        _ => None,
    };
    words.iter().find_map(named).unwrap_or_else(|| panic!("the instruction {words:?} names no state space"))
}

/// Value after an atomic operation on `old`.
fn atomic(step: &str, kind: &str, space: Space, old: u64, inputs: &[u64]) -> Option<u64> {
    let new = match step {
        "inc" => return Some(if old >= inputs[0] { 0 } else { old + 1 }),
        "exch" => inputs[0],
        "cas" if old == inputs[0] & mask(bits_of(kind)) => inputs[1],
        "cas" => old,
        "add" if kind == "f32" && space == Space::Global => {
            // The hardware's atomic addition of `f32` flushes subnormal numbers to zero.
            let flushed = |bits: u64| if bits & 0x7F80_0000 == 0 { bits & 0x8000_0000 } else { bits };
            let inputs = [flushed(old), flushed(inputs[0])];
            flushed(compute_floats(&["add", "rn", kind], kind, &inputs)?)
        }
        "add" if kind.starts_with('f') => compute_floats(&["add", "rn", kind], kind, &[old, inputs[0]])?,
        step => compute_integers(&[step, kind], kind, &[old, inputs[0]])? as u64,
    };
    Some(new & mask(bits_of(kind)))
}

/// Value that an instruction computes from `inputs`; `None` if the emulator lacks the instruction.
fn compute(words: &[&str], kind: &str, inputs: &[u64]) -> Option<u64> {
    let is_float = kind.starts_with('f');
    match words {
        ["mov", _] => Some(inputs[0] & mask(bits_of(kind).max(1))),
        ["setp", compare, ..] => {
            let holds = if is_float {
                compare_floats(compare, float(kind, inputs[0]), float(kind, inputs[1]))?
            } else {
                compare_ordered(compare, integer(kind, inputs[0]), integer(kind, inputs[1]))?
            };
            match words.len() {
                3 => Some(holds.into()),
                4 if words[2] == "and" => Some((holds && inputs[2] & 1 == 1).into()),
                _ => None,
            }
        }
        ["selp", _] => Some(inputs[if inputs[2] & 1 == 1 { 0 } else { 1 }] & mask(bits_of(kind))),
        ["cvt", ..] => convert(words, inputs[0]),
        _ if is_float => compute_floats(words, kind, inputs),
        _ => compute_integers(words, kind, inputs).map(|result| result as u64),
    }
}

fn compare_floats(compare: &str, a: f64, b: f64) -> Option<bool> {
    match compare {
        "neu" => Some(a != b),
        "nan" => Some(a.is_nan() || b.is_nan()),
        // This comparison exists for integers only.
        "ne" => None,
        _ => compare_ordered(compare, a, b),
    }
}

fn compare_ordered<T: PartialOrd>(compare: &str, a: T, b: T) -> Option<bool> {
    Some(match compare {
        "lt" => a < b,
        "le" => a <= b,
        "gt" => a > b,
        "ge" => a >= b,
        "eq" => a == b,
        "ne" => a != b,
        _ => return None,
    })
}

fn compute_floats(words: &[&str], kind: &str, inputs: &[u64]) -> Option<u64> {
    macro_rules! of {
        ($float:ty, $bits:ty) => {{
            let [a, b, c] =
                std::array::from_fn(|at| <$float>::from_bits(inputs.get(at).copied().unwrap_or(0) as $bits));
            let result: $float = match words {
                ["add", "rn", _] => a + b,
                ["sub", "rn", _] => a - b,
                ["mul", "rn", _] => a * b,
                ["div", "rn", _] => a / b,
                ["fma", "rn", _] => a.mul_add(b, c),
                ["sqrt", "rn", _] => a.sqrt(),
                ["neg", _] => -a,
                ["abs", _] => a.abs(),
                _ => return None,
            };
            Some(u64::from(result.to_bits()))
        }};
    }
    if kind == "f32" { of!(f32, u32) } else { of!(f64, u64) }
}

fn compute_integers(words: &[&str], kind: &str, inputs: &[u64]) -> Option<u128> {
    let bits = bits_of(kind);
    let input = |at: usize| integer(kind, inputs.get(at).copied().unwrap_or(0));
    let (a, b) = (input(0), input(1));
    let plain = a as u64 & mask(bits);
    let by = inputs.get(1).map_or(0, |by| (*by & mask(32)).min(u64::from(bits)) as u32);
    let result = match words {
        ["add", _] => a + b,
        ["sub", _] => a - b,
        ["mul", "lo", _] => a.wrapping_mul(b),
        ["mul", "hi", _] => {
            // The product of two unsigned 64-bit numbers may exceed `i128`, but its upper 64 bits are
            // correct.
            let product = a.wrapping_mul(b);
            if kind.starts_with('s') { product >> bits } else { (product as u128 >> bits) as i128 }
        }
        ["mul", "wide", _] => return Some(a.wrapping_mul(b) as u128 & u128::from(mask(2 * bits))),
        ["mad", "wide", _] => return Some(u128::from((a.wrapping_mul(b) as u64).wrapping_add(inputs[2]))),
        ["mad", "lo", _] => a.wrapping_mul(b).wrapping_add(input(2)),
        ["div", _] => {
            assert!(b != 0 && (b != -1 || !kind.starts_with('s')), "a kernel divides by {b} without a check");
            a / b
        }
        ["rem", _] => {
            assert!(b != 0 && (b != -1 || !kind.starts_with('s')), "a kernel divides by {b} without a check");
            a % b
        }
        ["min", _] => a.min(b),
        ["max", _] => a.max(b),
        ["neg", _] => -a,
        ["abs", _] => a.abs(),
        ["not", _] => !a,
        ["and", _] => a & b,
        ["or", _] => a | b,
        ["xor", _] => a ^ b,
        ["shl", _] => (u128::from(plain) << by) as i128,
        ["shr", _] => a >> by,
        ["bfe", "s32"] => {
            let (from, len) = (inputs[1] as u32, inputs[2] as u32);
            i128::from((plain as i64) << (64 - from - len) >> (64 - len))
        }
        ["bfe", "u32"] => i128::from(plain >> inputs[1] & mask(inputs[2] as u32)),
        ["prmt", "b32"] => {
            // Byte permutation: each four bits of the selector choose one of eight bytes.
            let bytes = a as u64 | (b as u64) << 32;
            let byte = |at: u32| bytes >> (8 * (inputs[2] >> (4 * at) & 7)) & 0xFF;
            i128::from((0..4).fold(0, |all, at| all | byte(at) << (8 * at)))
        }
        ["popc", _] => return Some(plain.count_ones().into()),
        ["clz", _] => return Some((plain.leading_zeros() - (64 - bits)).into()),
        ["brev", _] => i128::from(plain.reverse_bits() >> (64 - bits)),
        _ => return None,
    };
    Some(result as u128 & u128::from(mask(bits)))
}

fn convert(words: &[&str], a: u64) -> Option<u64> {
    let (to, from) = (words[words.len() - 2], words[words.len() - 1]);
    let rounding = if words.len() == 4 { words[1] } else { "" };
    let given = |value: f64| match to {
        "f32" => u64::from((value as f32).to_bits()),
        _ => value.to_bits(),
    };
    let rounded = |value: f64| match rounding {
        "rmi" => Some(value.floor()),
        "rpi" => Some(value.ceil()),
        "rzi" => Some(value.trunc()),
        "rni" => Some(value.round_ties_even()),
        _ => None,
    };
    Some(match (to, from, rounding) {
        ("f32", "f16", "") => backend_api::kernel::f16_to_f32(a as u16).to_bits().into(),
        ("f16", "f32", "rn") => backend_api::kernel::f32_to_f16(f32::from_bits(a as u32)).into(),
        ("f32", "f64", "rn") | ("f64", "f32", "") => given(float(from, a)),
        ("f32" | "f64", "f32" | "f64", _) if to == from => given(rounded(float(from, a))?),
        ("f32", _, "rn") if !from.starts_with('f') => {
            let value = integer(from, a);
            u64::from((value as f32).to_bits())
        }
        ("f64", _, "rn") if !from.starts_with('f') => (integer(from, a) as f64).to_bits(),
        (_, "f32" | "f64", "rzi") => {
            // The conversion saturates. The result for a NaN depends on the GPU, so tests must not rely on
            // it.
            let value = float(from, a);
            let (low, high) = match (to.starts_with('s'), bits_of(to)) {
                (true, bits) => (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1),
                (false, bits) => (0, (1_i128 << bits) - 1),
            };
            if value.is_nan() { 0x55 } else { (value as i128).clamp(low, high) as u64 & mask(bits_of(to)) }
        }
        _ if !to.starts_with('f') && !from.starts_with('f') && rounding.is_empty() => {
            integer(from, a) as u64 & mask(bits_of(to))
        }
        _ => return None,
    })
}
