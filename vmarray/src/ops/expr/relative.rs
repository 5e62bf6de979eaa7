//! Expressions whose indices count from another element than the first.

use backend_api::expr::{Instruction, Value};

use super::{Assignment, Expr, Filtered, IntoAssignments, append, index, moved, place, push};

/// The same instructions, with `index - start` in place of the index. Those that use no index stay as they
/// are.
fn counted_from(instructions: Vec<Instruction>, value: Value, start: usize) -> (Vec<Instruction>, Value) {
    if start == 0 || !instructions.contains(&Instruction::Index) {
        return (instructions, value);
    }
    let relative = index::<()>() - start as u64;
    let (mut list, mut places) = (Vec::with_capacity(instructions.len() + 2), Vec::new());
    for instruction in instructions {
        places.push(match instruction {
            Instruction::Index => append(&mut list, &relative.instructions, relative.value),
            other => push(&mut list, moved(other, &places)),
        });
    }
    let value = place(value, &places);
    (list, value)
}

impl<T, F> Expr<T, F> {
    /// The same with indices that are 0 for the array's element `start`. Takes two instructions more, if it
    /// uses them.
    pub(crate) fn counted_from(self, start: usize) -> Self {
        let (instructions, value) = counted_from(self.instructions, self.value, start);
        Self { instructions, value, ..self }
    }
}

impl<T, F> Filtered<T, F> {
    pub(crate) fn counted_from(self, start: usize) -> Self {
        Self {
            value: self.value.counted_from(start),
            filter: self.filter.map(|filter| filter.counted_from(start)),
        }
    }
}

/// The same with indices that are 0 for the element `start`.
pub(crate) fn assignments_counted_from<T>(
    assignments: impl IntoAssignments<T>,
    start: usize,
) -> Vec<Assignment<T>> {
    let relative = |one: Assignment<T>| {
        let (instructions, value) = counted_from(one.instructions, one.value, start);
        Assignment { instructions, value, ..one }
    };
    assignments.into_assignments().into_iter().map(relative).collect()
}
