//! Neighbourhoods: the elements near an item's own element, which a kernel reads by position.

use super::value::{LoweredValue, ScalarOperand};
use crate::stencil::Mode;
use backend_api::kernel::Reg;

/// Elements read by places.
pub struct Neighborhood {
    pub axes: Vec<NeighborhoodAxis>,
    pub base: ScalarOperand,
    /// Elements shown at a constant distance from the item's place.
    pub edges: Vec<BoundaryElement>,
}

/// An axis of elements read by places.
pub struct NeighborhoodAxis {
    pub first: ScalarOperand,
    pub extent: ScalarOperand,
    /// The same in full width.
    pub wide: [ScalarOperand; 2],
    pub stride: ScalarOperand,
    pub mode: Mode,
    pub value: Option<LoweredValue>,
}

/// An element shown at a constant distance along an axis.
pub struct BoundaryElement {
    pub axis: usize,
    pub by: i64,
    /// The shown element.
    pub shown: Reg,
}

impl Neighborhood {
    /// The index of the first element, and the first place and the stride along each axis.
    pub fn places(&self) -> (ScalarOperand, Vec<(ScalarOperand, ScalarOperand)>) {
        (self.base, self.axes.iter().map(|axis| (axis.first, axis.stride)).collect())
    }
}
