//! Constants and names for the warps of a block, for the PTX code generator.

use crate::driver::objects::THREADS;

/// Threads of a warp.
pub(in super::super) const WARP: u32 = 32;
/// Warps of a block, in consecutive rows if positions have rows.
pub(in super::super) const ROWS: u32 = THREADS / WARP;

/// End of a warp's items that is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarpEnd {
    First,
    Last,
}
