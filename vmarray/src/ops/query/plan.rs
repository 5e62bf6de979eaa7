//! Translation of conditions and assignments (expressions) to the programs that devices execute.

use backend_api::expr::{Action, FieldStore, Program, Value};
use backend_api::kernel::Op;
use backend_api::{Compute, Device, HostSpan, Request, Ticket};

use crate::base::error::{ErrorKind, Result};
use crate::ops::executor::{Change, Run, WorkQueue};
use crate::ops::expr::{Assignment, Expr, IntoExpr, Lowering};
use crate::ops::find::{Seek, What};

/// A condition that selects elements, as a program for devices.
#[derive(Debug)]
pub(crate) struct Condition {
    program: Program,
    predicate: Value,
}

impl Condition {
    pub fn new<T>(condition: impl IntoExpr<T, bool>) -> Result<Self> {
        let (program, predicate) = condition.into_expr().to_program()?;
        Ok(Self { program, predicate })
    }

    /// Returns the search for the first `limit` elements that meet the condition. If `count_all` is set, the
    /// search also counts all matches exactly.
    pub fn seek(&self, limit: usize, count_all: bool) -> Seek<'_> {
        let what = What::Holds { program: &self.program, predicate: self.predicate };
        Seek { what, limit, count_all }
    }
}

/// The assignments of one operation, and the optional condition for elements to be assigned.
#[derive(Debug)]
pub struct Plan {
    program: Program,
    stores: Vec<FieldStore>,
    filter: Option<Value>,
}

impl Plan {
    pub fn new<S>(condition: Option<Expr<S, bool>>, assignments: Vec<Assignment<S>>) -> Result<Self> {
        let most = Compute::STORES_MAX;
        if !(1..=most).contains(&assignments.len()) {
            return Err(ErrorKind::AssignmentCount { assignments: assignments.len(), most }.into());
        }
        let mut lowering = Lowering::default();
        let filter = condition.map(|condition| lowering.expr(&condition));
        let stores = assignments
            .iter()
            .map(|one| FieldStore { value: lowering.assignment(one), source: one.source, offset: one.offset })
            .collect();
        Ok(Self { program: lowering.program()?, stores, filter })
    }

    fn compute<'a>(&'a self, run: Run<'a>) -> Compute<'a> {
        let Run { columns: sources, geometry } = run;
        let action = Action::Store { stores: &self.stores, filter: self.filter };
        Compute { program: &self.program, sources, geometry, action }
    }
}

impl Change for Plan {
    fn overwrites(&self, element_bytes: usize) -> bool {
        let values: Vec<Value> = self.stores.iter().map(|store| store.value).collect();
        let ops = self.program.ops().iter().zip(self.program.needed(&values));
        let reads = |(op, needed)| needed && matches!(op, &Op::Load { view: 0, .. });
        let types = self.stores.iter().filter_map(|store| self.program.type_of(store.value));
        // The lengths of the assigned fields can be added, because devices refuse overlapping assignments.
        let written: u64 = types.map(|of| u64::from(of.bytes())).sum();
        self.filter.is_none() && written == element_bytes as u64 && !ops.into_iter().any(reads)
    }

    fn prepare(&self, device: &dyn Device, run: Run<'_>, _: Option<HostSpan<'_>>) {
        let _ = device.prepare(&[Request::Compute(&self.compute(run))]);
    }

    fn submit(
        &self,
        queue: WorkQueue<'_>,
        run: Run<'_>,
        _: Option<HostSpan<'_>>,
    ) -> backend_api::Result<Ticket> {
        queue.submit(&self.compute(run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::element::Field;
    use crate::ops::expr::index;

    #[test]
    fn overwriting_programs_read_no_old_elements() {
        type Pair = [u32; 2];
        let (a, b) = (Field::<Pair, Pair>::whole().nth::<0>(), Field::<Pair, Pair>::whole().nth::<1>());
        let overwrites = |condition: Option<Expr<Pair, bool>>, assignments: Vec<Assignment<Pair>>| {
            Plan::new(condition, assignments).unwrap().overwrites(size_of::<Pair>())
        };
        assert!(overwrites(None, vec![a.set(1), b.set(index().cast::<u32>())]));
        assert!(!overwrites(None, vec![a.set(1)]), "the other half stays");
        assert!(!overwrites(None, vec![a.set(1), b.set(a)]));
        assert!(!overwrites(Some(index().gt(5)), vec![a.set(1), b.set(2)]));
    }
}
