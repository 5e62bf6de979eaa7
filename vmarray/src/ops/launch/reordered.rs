//! [`Reordered`]: a launch argument whose elements are stored in another order than the launch's result, for
//! example row-major instead of tiled. The host reads the argument in the order of the result.

use std::ops::Range;
use std::sync::Arc;

use super::broadcast::Broadcast;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::stats::Counters;
use crate::ops::executor::{Examination, Operand, OperandStore};
use crate::ops::view::{StoredBox, count};
use backend_api::Device;

/// Elements of a view that the host reads in the storage order of another view.
pub(crate) struct Reordered<'a> {
    pub of: Box<dyn Broadcast + 'a>,
    /// The storage positions of the view in whose storage order the elements are read.
    pub like: StoredBox,
}

impl OperandStore for Reordered<'_> {
    fn stride(&self) -> usize {
        self.of.stride()
    }

    fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        let (bounds, stride) = (self.like.around(&range), self.stride());
        let mut all = zeroed_vec(count(&bounds) * stride)?;
        self.of.read_bytes(&bounds, &mut all)?;
        for (place, into) in range.zip(into.chunks_exact_mut(stride)) {
            if let Some(number) = self.like.number_in(place, &bounds) {
                into.copy_from_slice(&all[number * stride..][..stride]);
            }
        }
        Ok(())
    }

    fn devices(&self) -> Vec<(&Arc<dyn Device>, &Counters)> {
        Vec::new()
    }

    fn examine(&self, _: &[Operand<'_>], _: &Range<usize>, _: &Examination<'_>) -> Result<()> {
        unreachable!("the first result, on whose device kernels run, is in order")
    }
}
