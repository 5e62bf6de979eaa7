//! Lowering (translation for devices) of kernels with groups that each compute one tile of the result array.
//!
//! Items (GPU threads) write their elements to temporary memory, tile after tile, because the elements of a
//! tile are not contiguous in the result. A second kernel then moves the elements to their positions in the
//! result.

use super::launch_variant::{OUTSIDE, PLACE};
use super::value::{BoundsCheck, ElementIndex, Leaf, LoweredValue, Node, ScalarOperand};
use super::{LaunchVariant, Lower, LoweredKernel, Result, ScalarSource, StencilPart, View, lowered};
use crate::error::Error;
use crate::layout::Layout;
use crate::tree::{Tree, TreeExpr};
use backend_api::kernel::{Access, Binary, Builtin, Op, Type};

/// The syntax tree with the name of the kernel that moves elements from tile order to their positions.
static PLACING: Tree = Tree {
    name: "elements of tiles put into their places",
    file: file!(),
    line: line!(),
    locals: 0,
    parameters: &[],
    body: TreeExpr::Bool(false),
};

/// Generates a kernel that copies elements of the type `layout` to their positions in a result. View (array)
/// 1 has the elements in the order of tiles of the extents `tile`; view 0 is the result. A launch passes, for
/// each axis, the index of the first element as [`StencilPart::First`] of parameter 1, and the number of
/// tiles as [`StencilPart::Extent`].
///
/// # Errors
/// [`ErrorKind::TooLarge`](crate::ErrorKind) if an element has too many scalars.
pub fn lower_placing(
    layout: &Layout,
    tile: &[u32],
    form: &LaunchVariant,
) -> std::result::Result<LoweredKernel, Error> {
    lowered(form, &|lower| lower.placing(layout, tile))
}

impl Lower {
    fn placing(mut self, layout: &Layout, tile: &[u32]) -> Result<LoweredKernel> {
        let form = self.form.clone();
        let inside = self.domain(&form);
        for (parameter, access) in [Access::Write { tile: 1 }, Access::Read].into_iter().enumerate() {
            let (layout, is_own) = (layout.clone(), parameter == 0);
            self.views.push(View { parameter, layout, access, is_own, around: None, starts: None });
        }
        let (mut number, mut within, mut len) = (self.short(0), self.short(0), self.short(1));
        for (axis, extent) in tile.iter().enumerate() {
            let source = |part| ScalarSource::Stencil { parameter: 1, part };
            let [first, tiles] = [StencilPart::First(axis), StencilPart::Extent(axis)]
                .map(|part| self.given_scalar(source(part)));
            let at = self.binary(Binary::Sub, self.own[axis], first);
            let extent = self.short((*extent).into());
            let [along, rest] = [Binary::Div, Binary::Rem].map(|op| self.binary(op, at, extent));
            let before = self.binary(Binary::Mul, number, tiles);
            number = self.binary(Binary::Add, before, along);
            let before = self.binary(Binary::Mul, within, extent);
            within = self.binary(Binary::Add, before, rest);
            len = self.binary(Binary::Mul, len, extent);
        }
        let before = self.binary(Binary::Mul, number, len);
        let number = self.binary(Binary::Add, before, within);
        let number = self.cast(number, PLACE);
        let (to, from) = (self.view_element(0, None), self.view_element(1, Some(number)));
        self.assign(&to, &from)?;
        if let Some(ScalarOperand::Register(when)) = inside {
            let then = std::mem::take(&mut self.code);
            self.code.push(Op::If { when, then, otherwise: Vec::new() });
        }
        self.finished(&PLACING, Vec::new(), None)
    }

    /// Creates the item's own elements, for a result with tiled groups. Elements that the kernel only reads
    /// are at their positions in the result. Written elements are in tile order,
    /// and begin with the old values if the variant `keeps` them.
    pub(super) fn of_tiles(
        &mut self,
        parameter: usize,
        layout: &Layout,
        is_result: bool,
    ) -> Result<LoweredValue> {
        let value =
            |view| LoweredValue { is_reference: true, ..LoweredValue::new(Layout::UNIT, Node::View(view)) };
        let written = self.views.len();
        if is_result {
            let (layout, access) = (layout.clone(), Access::Write { tile: 1 });
            self.views.push(View { parameter, layout, access, is_own: true, around: None, starts: None });
            if !self.form.keeps {
                return Ok(value(written));
            }
        }
        let around = Some(self.around(parameter, layout, self.tile.len(), false)?);
        let (layout, access) = (layout.clone(), Access::Read);
        self.views.push(View { parameter, layout, access, is_own: true, around, starts: None });
        if is_result {
            let (to, from) = (self.view_element(written, None), self.own_element(written + 1)?);
            self.assign(&to, &from)?;
        }
        Ok(value(written))
    }

    /// Returns a view's element at the item's own position.
    pub(super) fn own_element(&mut self, view: usize) -> Result<LoweredValue> {
        let of = self.views[view].around.as_ref().map(super::Neighborhood::places);
        let Some((mut number, axes)) = of else {
            return Err(self.unexpected(
                "an index by position for \
                    this view",
            ));
        };
        for (axis, (first, stride)) in axes.into_iter().enumerate() {
            let position = self.binary(Binary::Sub, self.own[axis], first);
            let along = self.binary(Binary::Mul, position, stride);
            number = self.binary(Binary::Add, number, along);
        }
        let at = self.cast(number, PLACE);
        let layout = self.views[view].layout.clone();
        let node = Node::of_element(&layout, view as u16, 0);
        let index = Some(ElementIndex { at, len: 0, check: BoundsCheck::Proven });
        Ok(LoweredValue { index, is_shared: true, ..LoweredValue::new(layout, node) })
    }

    /// Returns the condition of a load from a view, if it needs one. Items without an element then read zero
    /// out of bounds, and do not fail.
    pub(super) fn skipped(&mut self, leaf: &Leaf, at: ScalarOperand) -> Option<ScalarOperand> {
        let (Leaf::Field(_, view, _), Some(is_inside)) = (leaf, self.is_inside) else { return None };
        let View { parameter, is_own, access, around, .. } = &self.views[usize::from(*view)];
        match (is_own, around) {
            (true, None) => None,
            (true, Some(_)) => Some(is_inside),
            (false, _) if *access == Access::Append => None,
            (false, around) => {
                let (parameter, has_places) = (*parameter, around.is_some());
                let end = if has_places {
                    ScalarOperand::Constant(Type::U64, OUTSIDE)
                } else {
                    ScalarOperand::Register(self.scalar(ScalarSource::Length { parameter }, Type::U64))
                };
                let is_there = self.binary(Binary::Lt, at, end);
                Some(self.binary(Binary::Or, is_inside, is_there))
            }
        }
    }

    /// Returns an upper bound of a register or constant, if known.
    pub(super) fn most(&self, of: ScalarOperand) -> Option<u64> {
        match of {
            ScalarOperand::Constant(_, number) => Some(number),
            ScalarOperand::Register(register) => self.most.get(&register).copied(),
        }
    }

    /// Returns a built-in value of a tile: a number for each axis, or true if the item has an element.
    pub(super) fn of_tile(&mut self, what: &str) -> LoweredValue {
        if what == "is_inside" {
            let always = ScalarOperand::Constant(Type::Bool, 1);
            return LoweredValue::scalar(Type::Bool, self.is_inside.unwrap_or(always));
        }
        let tile = self.tile.clone();
        let extent = |axis: usize| ScalarOperand::Constant(PLACE, tile[axis].into());
        let mut places = vec![ScalarOperand::Constant(PLACE, 0); tile.len()];
        let mut rest = ScalarOperand::Register(self.question(Builtin::InGroup));
        for axis in (0..tile.len()).rev() {
            places[axis] = match what {
                "in_group" => {
                    let at = if axis == 0 { rest } else { self.binary(Binary::Rem, rest, extent(axis)) };
                    rest = self.binary(Binary::Div, rest, extent(axis));
                    if let ScalarOperand::Register(register) = at {
                        self.most.insert(register, u64::from(tile[axis]) - 1);
                    }
                    at
                }
                "group" => self.binary(Binary::Div, self.at[axis], extent(axis)),
                _ => {
                    let of_result = self.axis(axis, super::AxisPart::Extent);
                    let of_result = self.cast(of_result, PLACE);
                    let padded = self.binary(
                        Binary::Add,
                        of_result,
                        ScalarOperand::Constant(PLACE, u64::from(tile[axis]) - 1),
                    );
                    self.binary(Binary::Div, padded, extent(axis))
                }
            };
        }
        Self::place_value(&places)
    }
}
