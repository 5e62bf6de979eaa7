//! The parts of a request that determine the code of its kernels. All other parts are parameters of the
//! kernels.

use std::ops::Deref;

use backend_api::Compute;
use backend_api::expr::Specialization;

/// The number of literals that are parameters: programs that differ only in these share their code.
pub(super) const LITERALS_MAX: usize = 32;

/// The longest load of a thread.
pub(super) const VECTOR_BYTES: u64 = 16;

/// The layout of a source's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Layout {
    pub stride: u64,
    /// The alignment of all elements in bytes: 1, 2, 4 or 8.
    pub align: u64,
    /// True if no thread writes to the source during the request.
    pub read_only: bool,
    /// True if the first element is aligned to [`VECTOR_BYTES`], and elements are short, so that a thread
    /// loads several at once.
    pub in_vectors: bool,
}

/// The key of a compiled kernel: a program, its task, and the layout of its sources.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    program: Specialization,
    pub layouts: Vec<Layout>,
}

impl Deref for Shape {
    type Target = Specialization;

    fn deref(&self) -> &Specialization {
        &self.program
    }
}

impl Shape {
    /// Returns the shape of a request (the key of its compiled kernel) and the request's literals. `starts`
    /// are the addresses of the sources.
    pub fn new(compute: &Compute<'_>, starts: &[u64]) -> (Self, Vec<u64>) {
        let (program, literals) = Specialization::new(compute, LITERALS_MAX);
        let layout = |(at, start): (usize, &u64)| {
            let source = compute.sources[at];
            // A source that overlaps a written source begins at the same address.
            let written =
                |other: usize| compute.writes(other) && compute.sources[other].start == source.start;
            Layout {
                stride: source.stride,
                align: 1 << (start | source.stride | 8).trailing_zeros(),
                read_only: !(0..compute.sources.len()).any(written),
                in_vectors: source.stride <= 4 && start.is_multiple_of(VECTOR_BYTES),
            }
        };
        (Self { program, layouts: starts.iter().enumerate().map(layout).collect() }, literals)
    }
}
