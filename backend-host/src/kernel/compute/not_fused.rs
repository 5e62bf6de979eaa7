//! Replaces the module `fused` on processors without its vector instructions. It supports no computation, so
//! all computations use `machine`.

use backend_api::kernel::Reg;
use backend_api::{Compute, Result};

use super::interval::Interval;
use super::reduce::{Sum, ThreadExtremes};
use crate::handle_table::MemoryPlace;
use crate::kernel::waves::{WaveMatches, WavePart};
use crate::storage::Storage;

/// Type without a value, because this processor lacks the vector instructions.
#[derive(Debug)]
pub(super) enum Numbers {}

impl Numbers {
    pub fn new<M: Storage>(_: &Compute<'_>, _: &[MemoryPlace<M>], _: Reg) -> Option<Self> {
        None
    }

    pub unsafe fn find(
        &self,
        interval: &Interval,
        _: &WavePart<'_>,
        _: bool,
        _: &mut WaveMatches,
    ) -> Result<()> {
        let _ = (interval.is_negated, interval.bounds(backend_api::expr::Type::U32));
        match *self {}
    }

    pub unsafe fn sum(&self, _: u64, _: u64) -> Sum {
        match *self {}
    }

    pub unsafe fn extremes(&self, _: u64, _: u64, _: (bool, bool), _: &mut ThreadExtremes) {
        match *self {}
    }
}
