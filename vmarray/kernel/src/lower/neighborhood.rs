//! Neighbourhoods: the elements near the element of an item (GPU thread), which kernels read by distance.

use super::value::{LoweredValue, ScalarOperand};
use crate::stencil::Mode;
use backend_api::kernel::Reg;

/// An array that items (GPU threads) read by position, relative to their own element.
pub struct Neighborhood {
    pub axes: Vec<NeighborhoodAxis>,
    pub base: ScalarOperand,
    /// Elements at constant distances from the item (GPU thread), as the boundary mode selects them.
    pub edges: Vec<BoundaryElement>,
}

/// One axis of an array that items (GPU threads) read by position.
pub struct NeighborhoodAxis {
    pub first: ScalarOperand,
    pub extent: ScalarOperand,
    /// The operands `first` and `extent`, as 64-bit operands.
    pub wide: [ScalarOperand; 2],
    pub stride: ScalarOperand,
    pub mode: Mode,
    pub value: Option<LoweredValue>,
}

/// The index along `axis` that the boundary mode selects for the distance `by` from an item (GPU thread).
pub struct BoundaryElement {
    pub axis: usize,
    pub by: i64,
    /// Register with the selected index.
    pub shown: Reg,
}

impl Neighborhood {
    /// Returns the index of the array's first element, and the pair of `first` and `stride` for each axis.
    pub fn places(&self) -> (ScalarOperand, Vec<(ScalarOperand, ScalarOperand)>) {
        (self.base, self.axes.iter().map(|axis| (axis.first, axis.stride)).collect())
    }
}
