//! [`ListedElements`]: a read-only operand of launches whose elements are in a slice of host memory.

use std::ops::Range;
use std::sync::Arc;

use backend_api::Device;

use crate::base::error::Result;
use crate::base::stats::Counters;
use crate::ops::executor::{Examination, Operand, OperandStore};

/// Elements in host memory, and the size of an element in bytes.
pub(super) struct ListedElements<'a>(pub &'a [u8], pub usize);

impl OperandStore for ListedElements<'_> {
    fn stride(&self) -> usize {
        self.1
    }

    fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(&self.0[range.start * self.1..range.end * self.1]);
        Ok(())
    }

    fn devices(&self) -> Vec<(&Arc<dyn Device>, &Counters)> {
        Vec::new()
    }

    fn examine(&self, _: &[Operand<'_>], _: &Range<usize>, _: &Examination<'_>) -> Result<()> {
        unreachable!("kernels run on the device that stores their results")
    }
}
