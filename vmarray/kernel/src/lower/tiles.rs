//! Lowering of groups that are tiles of a result with several axes.
//!
//! Items write their elements to temporary memory in tile order, because the elements of a tile are not
//! contiguous in the result. A second kernel then moves them to their places.

use super::launch_variant::{OUTSIDE, PLACE};
use super::value::{Check, Index, Leaf, Node, Operand, Value};
use super::{LaunchVariant, Lower, Lowered, Result, ScalarSource, StencilPart, View, lowered};
use crate::error::Error;
use crate::layout::Layout;
use crate::tree::{Expr, Tree};
use backend_api::kernel::{Access, Binary, Builtin, Op, Type};

/// Name of the kernel that moves elements to their places.
static PLACING: Tree = Tree {
    name: "elements of tiles put into their places",
    file: file!(),
    line: line!(),
    locals: 0,
    parameters: &[],
    body: Expr::Bool(false),
};

/// Lowers a kernel that copies elements from tile order to their places in a result. View 0 is the result,
/// and view 1 has the elements in tile order. A launch passes, for each axis, the index of the first element
/// as [`StencilPart::First`] of parameter 1, and the number of tiles as [`StencilPart::Extent`].
///
/// # Errors
/// [`ErrorKind::TooLarge`](crate::ErrorKind) if an element has too many scalars.
pub fn lower_placing(
    layout: &Layout,
    tile: &[u32],
    form: &LaunchVariant,
) -> std::result::Result<Lowered, Error> {
    lowered(form, &|lower| lower.placing(layout, tile))
}

impl Lower {
    fn placing(mut self, layout: &Layout, tile: &[u32]) -> Result<Lowered> {
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
        if let Some(Operand::Register(when)) = inside {
            let then = std::mem::take(&mut self.code);
            self.code.push(Op::If { when, then, otherwise: Vec::new() });
        }
        self.finished(&PLACING, Vec::new(), None)
    }

    /// The item's own elements. Read ones are at their places in the result; written ones are in tile order,
    /// and read back from there if kept.
    pub(super) fn of_tiles(&mut self, parameter: usize, layout: &Layout, is_result: bool) -> Result<Value> {
        let value = |view| Value { is_reference: true, ..Value::new(Layout::UNIT, Node::View(view)) };
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

    /// The element that a view has at the item's own place.
    pub(super) fn own_element(&mut self, view: usize) -> Result<Value> {
        let of = self.views[view].around.as_ref().map(super::Neighborhood::places);
        let Some((mut number, axes)) = of else {
            return Err(self.unexpected(
                "this view with an index by \
                    place",
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
        let index = Some(Index { at, len: 0, check: Check::Proven });
        Ok(Value { index, is_shared: true, ..Value::new(layout, node) })
    }

    /// The condition of a load from a view, if any: items without an element read zeroes out of bounds
    /// instead of failing.
    pub(super) fn skipped(&mut self, leaf: &Leaf, at: Operand) -> Option<Operand> {
        let (Leaf::Field(_, view, _), Some(is_inside)) = (leaf, self.is_inside) else { return None };
        let View { parameter, is_own, access, around, .. } = &self.views[usize::from(*view)];
        match (is_own, around) {
            (true, None) => None,
            (true, Some(_)) => Some(is_inside),
            (false, _) if *access == Access::Append => None,
            (false, around) => {
                let (parameter, has_places) = (*parameter, around.is_some());
                let end = if has_places {
                    Operand::Constant(Type::U64, OUTSIDE)
                } else {
                    Operand::Register(self.scalar(ScalarSource::Length { parameter }, Type::U64))
                };
                let is_there = self.binary(Binary::Lt, at, end);
                Some(self.binary(Binary::Or, is_inside, is_there))
            }
        }
    }

    /// Upper bound of a register, or a constant.
    pub(super) fn most(&self, of: Operand) -> Option<u64> {
        match of {
            Operand::Constant(_, number) => Some(number),
            Operand::Register(register) => self.most.get(&register).copied(),
        }
    }

    /// Built-in values of a tile: a number for each axis, or whether the item has an element.
    pub(super) fn of_tile(&mut self, what: &str) -> Value {
        if what == "is_inside" {
            let always = Operand::Constant(Type::Bool, 1);
            return Value::scalar(Type::Bool, self.is_inside.unwrap_or(always));
        }
        let tile = self.tile.clone();
        let extent = |axis: usize| Operand::Constant(PLACE, tile[axis].into());
        let mut places = vec![Operand::Constant(PLACE, 0); tile.len()];
        let mut rest = Operand::Register(self.question(Builtin::InGroup));
        for axis in (0..tile.len()).rev() {
            places[axis] = match what {
                "in_group" => {
                    let at = if axis == 0 { rest } else { self.binary(Binary::Rem, rest, extent(axis)) };
                    rest = self.binary(Binary::Div, rest, extent(axis));
                    if let Operand::Register(register) = at {
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
                        Operand::Constant(PLACE, u64::from(tile[axis]) - 1),
                    );
                    self.binary(Binary::Div, padded, extent(axis))
                }
            };
        }
        Self::place_value(&places)
    }
}
