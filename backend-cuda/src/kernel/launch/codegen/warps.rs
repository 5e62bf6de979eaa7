//! Constants and names for the warps of a block, for the PTX code generator.

use crate::driver::objects::THREADS;

/// Number of threads of a warp.
pub(in super::super) const WARP: u32 = 32;
/// Number of warps of a block; they take consecutive rows if positions have rows.
pub(in super::super) const ROWS: u32 = THREADS / WARP;

/// The item of a warp that the generated code tests: the first or the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarpEnd {
    First,
    Last,
}
