//! Lowering of a kernel's accesses to [`Rows`](crate::Rows): an array of rows of different lengths.

use super::launch_variant::OUTSIDE;
use super::value::{BoundsCheck, ElementIndex, LoweredValue, Node, ScalarOperand};
use super::{Lower, Result, ScalarSource};
use backend_api::kernel::{Binary, Type};

const fn number(of: u64) -> ScalarOperand {
    ScalarOperand::Constant(Type::U64, of)
}

impl Lower {
    /// Lowers the computation of the number of rows of the ragged array `view`.
    pub fn row_count(&mut self, view: usize) -> ScalarOperand {
        let starts = self.views[view].starts.unwrap_or(view);
        let parameter = self.views[starts].parameter;
        let count = ScalarOperand::Register(self.scalar(ScalarSource::Length { parameter }, Type::U64));
        let count = self.binary(Binary::Max, count, number(1));
        self.binary(Binary::Sub, count, number(1))
    }

    /// Lowers the computation of a row's start and length. Both are 0 for a missing row.
    fn row(&mut self, view: usize, row: ScalarOperand) -> Result<(ScalarOperand, ScalarOperand)> {
        let Some(starts) = self.views[view].starts else {
            return Err(self.unexpected("rows of this argument"));
        };
        // Load the row's end first. For a missing row `i`, the first failed load is then always at `i + 1`.
        let after = self.binary(Binary::Add, row, number(1));
        let end = self.view_element(starts, Some(after));
        let end = self.operand(&end)?;
        let start = self.view_element(starts, Some(row));
        let start = self.operand(&start)?;
        // The starts come from the program, so a row's end may be below its start: clamp it.
        let end = self.binary(Binary::Max, end, start);
        let len = self.binary(Binary::Sub, end, start);
        Ok((start, len))
    }

    /// Lowers the computation of the length of row `row` of the ragged array `view`.
    pub fn row_len(&mut self, view: usize, row: ScalarOperand) -> Result<LoweredValue> {
        let (_, len) = self.row(view, row)?;
        Ok(LoweredValue::scalar(Type::U64, len))
    }

    /// Lowers a read of an element of row `row` of the ragged array `view`.
    pub fn row_element(
        &mut self,
        view: usize,
        row: ScalarOperand,
        index: ScalarOperand,
    ) -> Result<LoweredValue> {
        let (start, len) = self.row(view, row)?;
        let at = self.binary(Binary::Add, start, index);
        let is_there = self.binary(Binary::Lt, index, len);
        let outside = self.binary(Binary::Or, index, number(OUTSIDE));
        let at = self.select(is_there, at, outside);
        let layout = self.views[view].layout.clone();
        let index = Some(ElementIndex { at, len: 0, check: BoundsCheck::ByAccess });
        let node = Node::of_element(&layout, view as u16, 0);
        Ok(LoweredValue { index, is_shared: true, ..LoweredValue::new(layout, node) })
    }
}
