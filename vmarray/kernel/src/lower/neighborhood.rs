//! Neighbourhoods: the elements near the element of an item (GPU thread), which kernels read by position.

use super::value::{LoweredValue, ScalarOperand};
use crate::stencil::Mode;
use backend_api::kernel::Reg;

/// The elements of an array that an item reads by position.
pub struct Neighborhood {
    pub axes: Vec<NeighborhoodAxis>,
    pub base: ScalarOperand,
    /// Elements that the boundary mode selects at a constant distance from the item.
    pub edges: Vec<BoundaryElement>,
}

/// One axis of an array that items read by position.
pub struct NeighborhoodAxis {
    pub first: ScalarOperand,
    pub extent: ScalarOperand,
    /// The start and the extent as 64-bit operands.
    pub wide: [ScalarOperand; 2],
    pub stride: ScalarOperand,
    pub mode: Mode,
    pub value: Option<LoweredValue>,
}

/// The element that the boundary mode selects at a constant distance along one axis.
pub struct BoundaryElement {
    pub axis: usize,
    pub by: i64,
    /// Register with the index of the selected element.
    pub shown: Reg,
}

impl Neighborhood {
    /// Returns the index of the first element; and for each axis, the first position and the stride.
    pub fn places(&self) -> (ScalarOperand, Vec<(ScalarOperand, ScalarOperand)>) {
        (self.base, self.axes.iter().map(|axis| (axis.first, axis.stride)).collect())
    }
}
