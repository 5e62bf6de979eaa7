//! Cache key of a generated kernel: the parts of a compute request that determine the kernel's code. All
//! other parts are kernel parameters.

use std::ops::Deref;

use backend_api::Compute;
use backend_api::expr::{Action, Specialization, Task};
use backend_api::kernel::Op;

use crate::driver::objects::THREADS;

/// The number of literals that are kernel parameters: programs that differ only in these share their code.
/// Four parameters are for a comparison of a field.
pub(super) const LITERALS_MAX: usize = 32;

/// The longest load of a thread, in bytes.
pub(super) const VECTOR_BYTES: u64 = 16;

/// The layout of a source's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SourceLayout {
    pub stride: u64,
    /// The alignment in bytes of all elements of the operand: 1, 2, 4 or 8.
    pub align: u64,
    /// True if no thread writes to the operand's memory during the request.
    pub read_only: bool,
    /// True if the elements are short, and all elements after the [head](head) are aligned to
    /// [`VECTOR_BYTES`]. A thread then loads several at once.
    pub in_vectors: bool,
}

/// The key of a compiled kernel: a program, its task, and the layout of its sources.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProgramKey {
    program: Specialization,
    pub layouts: Vec<SourceLayout>,
    pub comparison: Option<FieldComparison>,
}

impl Deref for ProgramKey {
    type Target = Specialization;

    fn deref(&self) -> &Specialization {
        &self.program
    }
}

/// The number of elements before the first element at a multiple of [`VECTOR_BYTES`]. It is 0 if no element
/// is at such an address, or if the kernel of the task has no code for such elements.
pub(super) fn head(compute: &Compute<'_>, starts: &[u64]) -> u64 {
    match (compute.action, compute.sources, starts) {
        (Action::Find { .. }, [source, ..], [start, ..])
            if source.stride.is_power_of_two()
                && source.stride <= VECTOR_BYTES
                && start.is_multiple_of(source.stride) =>
        {
            (start.next_multiple_of(VECTOR_BYTES) - start) / source.stride
        }
        _ => 0,
    }
}

/// The comparison of a field with a value. The field's address, its length and the value are parameters. So
/// all searches for fields of one alignment share their code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FieldComparison {
    /// Index of the comparison in the program's list of operations.
    pub at: usize,
    /// Length in bytes of the words that the kernel compares.
    pub word: u64,
    /// True if the compared field is longer than one word.
    pub is_long: bool,
    /// Length of the field in bytes, if the search compares whole elements only and loads them in vectors.
    pub packed: Option<u64>,
    /// True if no thread writes to the compared operand's memory during the request.
    pub read_only: bool,
    /// Index of the first of four kernel parameters after the literals: the address of the searched value,
    /// the address of the first element's field, the stride, and the length of the field.
    pub parameters: usize,
}

/// Distribution of the elements of a thread over a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElementDistribution {
    /// Number of adjacent elements in a row, which a thread loads at once.
    pub len: u64,
    /// Distance in elements between a thread's successive rows (adjacent elements that are loaded at once).
    pub step: u64,
}

impl ElementDistribution {
    /// Distance of a thread's element `k` from its first element, in elements.
    pub fn offset(self, k: u64) -> u64 {
        k / self.len * self.step + k % self.len
    }
}

impl ProgramKey {
    /// Number of elements that a block counts at a time: for each thread 8 elements, or 64 bytes if `packed`.
    pub fn tile(&self) -> u64 {
        let packed = self.comparison.and_then(|comparison| comparison.packed);
        u64::from(THREADS) * packed.map_or(8, |bytes| 4 * VECTOR_BYTES / bytes)
    }

    /// Returns the cache key of a request's kernel, and the request's literals. `starts` are the operands'
    /// addresses.
    pub fn new(compute: &Compute<'_>, starts: &[u64]) -> (Self, Vec<u64>) {
        let (program, mut literals) = Specialization::new(compute, LITERALS_MAX - 4);
        let head = head(compute, starts);
        let layout = |(at, start): (usize, &u64)| {
            let source = compute.sources[at];
            // It suffices to compare start addresses: a valid request has no other overlap with a written
            // operand.
            let written =
                |other: usize| compute.writes(other) && compute.sources[other].start == source.start;
            SourceLayout {
                stride: source.stride,
                align: 1 << (start | source.stride | 8).trailing_zeros(),
                read_only: !(0..compute.sources.len()).any(written),
                in_vectors: source.stride <= VECTOR_BYTES
                    && (start + head * source.stride).is_multiple_of(VECTOR_BYTES),
            }
        };
        let mut layouts: Vec<SourceLayout> = starts.iter().enumerate().map(layout).collect();
        let comparison = compute.program.field_equals().filter(|(at, ..)| program.needed[*at]);
        let comparison = comparison.map(|(at, source, offset, value)| {
            let (layout, bytes, field) =
                (layouts[source], value.len() as u64, starts[source] + u64::from(offset));
            let is_find = matches!(program.task, Task::Find { .. });
            let is_alone = matches!(program.task, Task::Find { predicate } if predicate.at() == at);
            let is_packed =
                is_alone && layout.in_vectors && layout.stride == bytes && bytes.is_power_of_two();
            let word = (1 << (field | layout.stride | 8).trailing_zeros()).min(1 << bytes.ilog2());
            let reads = |op: &Op| matches!(op, Op::Load { view, .. } if usize::from(*view) == source);
            if is_find && !program.ops.iter().any(reads) {
                // The code for this comparison does not depend on the layout, so all layouts share one key.
                layouts[source] = SourceLayout { stride: 0, align: 1, read_only: true, in_vectors: false };
            }
            let parameters = literals.len();
            literals.extend([0, field, layout.stride, bytes]);
            FieldComparison {
                at,
                word,
                is_long: bytes > word,
                packed: is_packed.then_some(bytes),
                read_only: layout.read_only,
                parameters,
            }
        });
        (Self { program, layouts, comparison }, literals)
    }
}
