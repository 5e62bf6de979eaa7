//! What decides the code of a computation. Everything else is a parameter of its kernels.

use backend_api::Compute;
use backend_api::expr::{Action, Instruction, Store, Type, Value};

/// So many literals are parameters: programs that differ in them alone share their code.
pub(super) const LITERALS_MAX: usize = 32;

/// The longest load of a thread.
pub(super) const VECTOR_BYTES: u64 = 16;

/// What a kernel is made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Task {
    Find { predicate: Value },
    Sum { value: Value, filter: Option<Value> },
    Extremes { value: Value, filter: Option<Value>, least: bool, greatest: bool },
    Histogram { value: Value, filter: Option<Value> },
    Store { stores: Vec<Store>, filter: Option<Value> },
}

/// How the elements of a source lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Layout {
    pub stride: u64,
    /// What divides the address of every element: 1, 2, 4 or 8.
    pub align: u64,
    /// Whether nobody writes to it meanwhile.
    pub read_only: bool,
    /// Whether the first element lies at a multiple of [`VECTOR_BYTES`], and elements are short.
    pub in_vectors: bool,
}

/// One program, made for one task and one layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub instructions: Vec<Instruction>,
    pub types: Vec<Type>,
    pub needed: Vec<bool>,
    /// Of each instruction which parameter it is, if it is a literal.
    pub literals: Vec<Option<usize>>,
    pub task: Task,
    pub layouts: Vec<Layout>,
    pub page_len: u64,
    pub channels: u64,
}

impl Shape {
    /// The shape of a request whose sources begin at these addresses, and its literals.
    pub fn new(compute: &Compute<'_>, starts: &[u64]) -> (Self, [u64; LITERALS_MAX]) {
        let program = compute.program;
        let needed = program.needed(&compute.results());
        let mut values = [0; LITERALS_MAX];
        let mut used = 0;
        let mut literals = vec![None; needed.len()];
        let mut instructions = program.instructions().to_vec();
        for at in (0..needed.len()).filter(|at| needed[*at]) {
            if let Instruction::Literal { bits, .. } = &mut instructions[at]
                && used < LITERALS_MAX
            {
                values[used] = std::mem::take(bits);
                literals[at] = Some(used);
                used += 1;
            }
        }
        // What is not needed makes no difference.
        for at in (0..needed.len()).filter(|at| !needed[*at]) {
            instructions[at] = Instruction::Index;
        }
        let task = match compute.action {
            Action::Find { predicate, .. } => Task::Find { predicate },
            Action::Sum { value, filter, .. } => Task::Sum { value, filter },
            Action::Extremes { value, filter, least, greatest, .. } => {
                Task::Extremes { value, filter, least, greatest }
            }
            Action::Histogram { value, filter, .. } => Task::Histogram { value, filter },
            Action::Store { stores, filter } => Task::Store { stores: stores.to_vec(), filter },
        };
        let layout = |(at, start): (usize, &u64)| {
            let source = compute.sources[at];
            // One that lies under one that is written to begins where that does.
            let written =
                |other: usize| compute.writes(other) && compute.sources[other].start == source.start;
            Layout {
                stride: source.stride,
                align: 1 << (start | source.stride | 8).trailing_zeros(),
                read_only: !(0..compute.sources.len()).any(written),
                in_vectors: source.stride <= 4 && start.is_multiple_of(VECTOR_BYTES),
            }
        };
        let needs_index = compute.needs_index();
        let shape = Self {
            instructions,
            types: program.types().to_vec(),
            needed,
            literals,
            task,
            layouts: starts.iter().enumerate().map(layout).collect(),
            page_len: if needs_index { compute.geometry.page_len } else { 1 },
            channels: if needs_index { compute.geometry.channels } else { 1 },
        };
        (shape, values)
    }

    pub fn of(&self, value: Value) -> Type {
        self.types[value.at()]
    }
}
