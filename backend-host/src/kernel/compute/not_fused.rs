//! Replacement for `fused` on processors without its vector registers. It supports no computation, so all of
//! them use `machine`.

use backend_api::kernel::Reg;
use backend_api::{Compute, Result};

use super::interval::Interval;
use super::reduce::{Extremes, Sum};
use crate::handle_table::Place;
use crate::kernel::waves::{Found, Part};
use crate::storage::Storage;

/// An empty type.
#[derive(Debug)]
pub(super) enum Numbers {}

#[expect(clippy::unused_self, clippy::missing_safety_doc, reason = "same signature as in `fused`")]
impl Numbers {
    pub fn new<M: Storage>(_: &Compute<'_>, _: &[Place<M>], _: Reg) -> Option<Self> {
        None
    }

    pub unsafe fn find(&self, interval: &Interval, _: &Part<'_>, _: bool, _: &mut Found) -> Result<()> {
        let _ = (interval.is_negated, interval.bounds(backend_api::expr::Type::U32));
        match *self {}
    }

    pub unsafe fn sum(&self, _: u64, _: u64) -> Sum {
        match *self {}
    }

    pub unsafe fn extremes(&self, _: u64, _: u64, _: (bool, bool), _: &mut Extremes) {
        match *self {}
    }
}
