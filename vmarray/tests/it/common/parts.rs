//! Programs on random sections of sections, beside slices of a `Vec`.

use std::fmt::Debug;
use std::ops::Range;
use vmarray::prelude::*;

use proptest::prelude::*;
use vmarray::{ErrorKind, Result, SectionMut, VirtualArray};

use super::Shape;

/// Operations, each with the cuts that make its section out of all of an array of a shape.
#[derive(Clone, Debug)]
pub struct Program<Op> {
    len: usize,
    shape: Shape,
    steps: Vec<(Op, Vec<(usize, usize)>)>,
}

pub fn programs<Op: Clone + Debug>(ops: impl Strategy<Value = Op>) -> impl Strategy<Value = Program<Op>> {
    let cuts = prop::collection::vec((0_usize..1000, 0_usize..1000), 0..3);
    let steps = prop::collection::vec((ops, cuts), 1..40);
    (0_usize..150, 1_usize..20, 1_u32..4, 1_usize..4, steps).prop_map(
        |(len, page_len, channels, frames, steps)| {
            let shape = Shape { page_len, channels: vec![channels], frames, ..Shape::default() };
            Program { len, shape, steps }
        },
    )
}

impl<Op> Program<Op> {
    /// Runs each operation on its section and on the same part of a `Vec`, and compares the array with that.
    pub fn run(self, run: impl Fn(SectionMut<'_, VirtualArray<u32>>, &mut [u32], Op)) {
        let array: VirtualArray<u32> = self.shape.build(self.len);
        let mut model = vec![0; self.len];
        for (op, cuts) in self.steps {
            let mut section = array.section_mut(..).unwrap();
            let mut part = 0..self.len;
            for (a, b) in cuts {
                let range = within(a, b, part.len());
                section = section.section_mut(range.clone()).unwrap();
                part = part.start + range.start..part.start + range.end;
            }
            run(section, &mut model[part], op);
        }
        assert_eq!(array.to_vec(..).unwrap(), model);
    }
}

/// A range within so many elements, made of any two numbers.
pub fn within(a: usize, b: usize, len: usize) -> Range<usize> {
    let (a, b) = (a % (len + 1), b % (len + 1));
    a.min(b)..a.max(b)
}

pub fn outside<T>(result: Result<T>, index: usize, len: usize) {
    assert_eq!(*result.err().expect("outside").kind(), ErrorKind::IndexOutside { index, len });
}
