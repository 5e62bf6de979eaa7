//! Rewrites of expressions: makes an index count from the start of a view, and renumbers the views of a join.

use backend_api::expr::{Instruction, Value};

use super::list::{Instructions, moved, place};
use super::{Assignment, Expr, Filtered, IntoAssignments, index};

/// Replaces the index in an expression by `index - start`. Expressions without the index are unchanged.
fn counted_from(list: Instructions, value: Value, start: usize) -> (Instructions, Value) {
    if start == 0 || !list.instructions.contains(&Instruction::Index) {
        return (list, value);
    }
    let relative = index::<()>() - start as u64;
    let (mut counted, mut places) = (Instructions::default(), Vec::new());
    counted.refuse(&list.refused);
    for instruction in list.instructions {
        places.push(match instruction {
            Instruction::Index => counted.append(&relative.list, relative.value),
            other => counted.push(moved(other, &places)),
        });
    }
    let value = place(value, &places);
    (counted, value)
}

impl<T, F> Expr<T, F> {
    /// Shifts the index in the expression: it becomes 0 for the array's element `start`. This adds two
    /// instructions if the expression uses the index.
    pub(crate) fn counted_from(self, start: usize) -> Self {
        let (list, value) = counted_from(self.list, self.value, start);
        Self { list, value, ..self }
    }
}

impl<T, F> Expr<T, F> {
    /// Adds 1 to the number of each view in the expression, because a join puts another view in front.
    pub(crate) fn beside<U>(self) -> Expr<U, F> {
        let mut list = self.list;
        for instruction in &mut list.instructions {
            if let Instruction::Field { source, .. } = instruction {
                *source += 1;
            }
        }
        Expr { list, value: self.value, marker: std::marker::PhantomData }
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

/// Shifts the index in assignments: it becomes 0 for the element `start`.
pub(crate) fn assignments_counted_from<T>(
    assignments: impl IntoAssignments<T>,
    start: usize,
) -> Vec<Assignment<T>> {
    let relative = |one: Assignment<T>| {
        let (list, value) = counted_from(one.list, one.value, start);
        Assignment { list, value, ..one }
    };
    assignments.into_assignments().into_iter().map(relative).collect()
}
