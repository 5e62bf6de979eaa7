//! Lowering (translation for devices) of items' positions along several axes, and of reads at positions.
//!
//! Reads at constant distances from the item (GPU thread) share one branch before the loads. In this branch,
//! items near an edge compute their boundary values; other items skip it. The code therefore needs no
//! branches between the loads.

use super::launch_variant::{OUTSIDE, PLACE, SHORT_MAX};
use super::neighborhood::{BoundaryElement, Neighborhood, NeighborhoodAxis};
use super::value::{BoundsCheck, ElementIndex, LoweredValue, Node, ScalarOperand};
use super::{AxisPart, LaunchVariant, Lower, Result, ScalarSource, StencilPart, VALUES_MAX};
use crate::layout::Layout;
use crate::stencil::Mode;
use backend_api::kernel::{Binary, Builtin, Op, Reg, Type};

fn constant(number: u64) -> ScalarOperand {
    ScalarOperand::Constant(PLACE, number)
}

/// Returns the signed integer type of the same width.
fn signed(of: Type) -> Type {
    if of == Type::U32 { Type::I32 } else { Type::I64 }
}

impl Lower {
    /// Computes the item's position in a result with several axes. Returns the condition for items that have
    /// an element; `None` if all have.
    pub(super) fn domain(&mut self, form: &LaunchVariant) -> Option<ScalarOperand> {
        let sources = ScalarSource::of_domain(form.axes);
        for source in &sources {
            self.scalar(*source, PLACE);
        }
        let outer = std::mem::take(&mut self.code);
        let index = ScalarOperand::Register(self.question(Builtin::Index));
        let index = self.sized(index);
        let (mut tile, mut within) = (index, self.short(0));
        if form.is_tiled {
            let by = [AxisPart::TileFactor, AxisPart::TileShift];
            tile = self.quotient(index, by.map(ScalarSource::TileLen));
            let mut len = self.short(1);
            for axis in 0..form.axes {
                let own = self.axis(axis, AxisPart::Tile);
                len = self.binary(Binary::Mul, len, own);
            }
            within = self.rest(index, tile, len);
        }
        let mut inside = None;
        (self.at, self.own) = (vec![constant(0); form.axes], vec![constant(0); form.axes]);
        for axis in (0..form.axes).rev() {
            let mut at = tile;
            if axis > 0 {
                let by = [AxisPart::TilesFactor, AxisPart::TilesShift];
                let quotient = self.quotient(tile, by.map(|part| ScalarSource::Axis { axis, part }));
                let tiles = self.axis(axis, AxisPart::Tiles);
                (at, tile) = (self.rest(tile, quotient, tiles), quotient);
            }
            if form.is_tiled {
                let by = [AxisPart::TileFactor, AxisPart::TileShift];
                let quotient = self.quotient(within, by.map(|part| ScalarSource::Axis { axis, part }));
                let len = self.axis(axis, AxisPart::Tile);
                let (first, rest) = (self.binary(Binary::Mul, at, len), self.rest(within, quotient, len));
                (at, within) = (self.binary(Binary::Add, first, rest), quotient);
            }
            if form.is_part || !self.tile.is_empty() {
                let start = self.axis(axis, AxisPart::Start);
                at = self.binary(Binary::Sub, at, start);
            }
            if form.is_part {
                let extent = self.axis(axis, AxisPart::Extent);
                let here = self.binary(Binary::Lt, at, extent);
                inside = Some(inside.map_or(here, |others| self.binary(Binary::And, others, here)));
            }
            self.has_place(axis, at);
        }
        let code = std::mem::replace(&mut self.code, outer);
        self.prelude.extend(code);
        inside
    }

    /// Sets the item's index along an axis, in the type that kernels use.
    fn has_place(&mut self, axis: usize, at: ScalarOperand) {
        // Copy `at` to a new register, because another axis may use the register of `at`.
        let (seen, of) = (self.new_register(PLACE), self.register(at));
        let op =
            if self.type_of(at) == PLACE { Op::Copy { to: seen, of } } else { Op::Cast { to: seen, of } };
        self.code.push(op);
        self.at[axis] = ScalarOperand::Register(seen);
        self.own[axis] = at;
        self.away.insert(seen, (axis, 0));
    }

    /// Computes the position of an item in a result with one axis.
    pub(super) fn line(&mut self) {
        let index = ScalarOperand::Register(self.question(Builtin::Index));
        let origin = self.scalar(ScalarSource::Origin, PLACE);
        let outer = std::mem::take(&mut self.code);
        let (index, origin) = (self.sized(index), self.sized(ScalarOperand::Register(origin)));
        let index = self.binary(Binary::Sub, index, origin);
        (self.at, self.own) = (vec![constant(0)], vec![constant(0)]);
        self.has_place(0, index);
        let code = std::mem::replace(&mut self.code, outer);
        self.prelude.extend(code);
    }

    /// Converts a number to the width of the arithmetic on positions (32 or 64 bits).
    fn sized(&mut self, of: ScalarOperand) -> ScalarOperand {
        if self.form.is_short { self.cast(of, Type::U32) } else { of }
    }

    pub(super) fn short(&mut self, number: u64) -> ScalarOperand {
        self.sized(constant(number))
    }

    pub(super) fn given_scalar(&mut self, source: ScalarSource) -> ScalarOperand {
        let register = self.scalar(source, PLACE);
        self.sized(ScalarOperand::Register(register))
    }

    pub(super) fn axis(&mut self, axis: usize, part: AxisPart) -> ScalarOperand {
        self.given_scalar(ScalarSource::Axis { axis, part })
    }

    /// Lowers a division of a number with a clear top bit. `by` has the factor and the shift of the divisor.
    fn quotient(&mut self, of: ScalarOperand, by: [ScalarSource; 2]) -> ScalarOperand {
        let [factor, shift] = by.map(|source| self.given_scalar(source));
        let one = self.short(1);
        let double = self.binary(Binary::Shl, of, one);
        let of = self.type_of(double);
        let (to, left, right) = (self.new_register(of), self.register(double), self.register(factor));
        self.code.push(Op::MulHigh { to, left, right });
        self.binary(Binary::Shr, ScalarOperand::Register(to), shift)
    }

    fn rest(&mut self, of: ScalarOperand, quotient: ScalarOperand, by: ScalarOperand) -> ScalarOperand {
        let whole = self.binary(Binary::Mul, quotient, by);
        self.binary(Binary::Sub, of, whole)
    }

    /// Creates the value of a position: one index, or an index for each axis.
    pub(super) fn place_value(axes: &[ScalarOperand]) -> LoweredValue {
        match axes {
            [at] => LoweredValue::scalar(PLACE, *at),
            axes => {
                let nodes = axes.iter().map(|at| LoweredValue::scalar(PLACE, *at).node).collect();
                LoweredValue::new(Layout::Tuple(vec![Layout::Scalar(PLACE); axes.len()]), Node::Parts(nodes))
            }
        }
    }

    /// Returns the indices of a position along its axes.
    pub(super) fn indices(&mut self, place: &LoweredValue) -> Result<Vec<ScalarOperand>> {
        match &place.node {
            Node::Parts(parts) => {
                let parts: Vec<LoweredValue> = (0..parts.len()).filter_map(|axis| place.part(axis)).collect();
                parts.iter().map(|part| self.operand(part)).collect()
            }
            Node::Array(len, _) => {
                let len = *len as u64;
                let element = |axis| self.element(place, constant(axis)).and_then(|at| self.operand(&at));
                (0..len).map(element).collect()
            }
            _ => Ok(vec![self.operand(place)?]),
        }
    }

    /// Lowers the sum of a position and a distance along each axis.
    pub(super) fn place_plus(&mut self, place: &[ScalarOperand], by: &[ScalarOperand]) -> Vec<ScalarOperand> {
        let mut places = Vec::with_capacity(place.len());
        for (at, by) in place.iter().zip(by) {
            let by = self.cast(*by, PLACE);
            let to = self.binary(Binary::Add, *at, by);
            if let (
                ScalarOperand::Register(from),
                ScalarOperand::Register(to),
                ScalarOperand::Constant(_, by),
            ) = (*at, to, by)
                && let Some(&(axis, before)) = self.away.get(&from)
                && to != from
            {
                self.away.insert(to, (axis, before.wrapping_add(by.cast_signed())));
            }
            places.push(to);
        }
        places
    }

    /// Lowers an array of extents.
    pub(super) fn extents(&mut self, of: &[ScalarOperand]) -> Result<LoweredValue> {
        let place = self.place(&Layout::Array(Box::new(Layout::Scalar(PLACE)), of.len()), self.depth)?;
        for (axis, extent) in (0..).zip(of) {
            let (to, extent) = (self.element(&place, constant(axis))?, self.cast(*extent, PLACE));
            self.assign(&to, &LoweredValue::scalar(PLACE, extent))?;
        }
        Ok(place.fresh())
    }

    /// Returns the extents of a view that items read by position, or of the result.
    pub(super) fn shape(&mut self, view: Option<usize>) -> Vec<ScalarOperand> {
        match view.and_then(|view| self.views[view].around.as_ref()) {
            Some(around) => around.axes.iter().map(|axis| axis.extent).collect(),
            None => (0..self.at.len()).map(|axis| self.axis(axis, AxisPart::Extent)).collect(),
        }
    }

    /// Takes the launch's scalars for an array that items read by position, with its boundary constants.
    pub(super) fn around(
        &mut self,
        parameter: usize,
        layout: &Layout,
        axes: usize,
        has_beyond: bool,
    ) -> Result<Neighborhood> {
        self.scalar(ScalarSource::LaunchVariant, PLACE);
        let mut of_axes = Vec::with_capacity(axes);
        let outer = std::mem::take(&mut self.code);
        for axis in 0..axes {
            let source = |part| ScalarSource::Stencil { parameter, part };
            let parts = [StencilPart::First(axis), StencilPart::Extent(axis), StencilPart::Mode(axis)];
            let [first, extent, _] =
                parts.map(|part| ScalarOperand::Register(self.scalar(source(part), PLACE)));
            let stride = self.given_scalar(source(StencilPart::Stride(axis)));
            of_axes.push(NeighborhoodAxis {
                first: self.sized(first),
                extent: self.sized(extent),
                wide: [first, extent],
                // The last axis is contiguous, so its stride is the constant 1.
                stride: if axis + 1 == axes { self.short(1) } else { stride },
                mode: self.form.mode(parameter, axis),
                value: None,
            });
        }
        let base = self.given_scalar(ScalarSource::Stencil { parameter, part: StencilPart::Base });
        let code = std::mem::replace(&mut self.code, outer);
        self.prelude.extend(code);
        if has_beyond && layout.scalars() <= VALUES_MAX {
            for (axis, of) in of_axes.iter_mut().enumerate() {
                let part = |position| StencilPart::Value(axis, position);
                let source = |position| ScalarSource::Stencil { parameter, part: part(position) };
                let value = self.given(layout, &mut 0, &source)?;
                of.value = (of.mode == Mode::Value).then_some(value);
            }
        }
        Ok(Neighborhood { axes: of_axes, base, edges: Vec::new() })
    }

    /// Lowers a read of a view's element at a position.
    pub(super) fn around_element(&mut self, view: usize, at: &[ScalarOperand]) -> Result<LoweredValue> {
        let layout = self.views[view].layout.clone();
        let Some(around) = self.views[view].around.as_ref() else {
            return Err(self.unexpected("an index by position for this view"));
        };
        let (mut number, count) = (around.base, around.axes.len());
        let (mut fails, mut values) = (Vec::new(), Vec::new());
        for (axis, at) in at.iter().copied().enumerate().take(count) {
            let Some(of) = self.views[view].around.as_ref().map(|around| &around.axes[axis]) else { break };
            let (first, extent, wide, stride, mode) = (of.first, of.extent, of.wide, of.stride, of.mode);
            let (value, by) = (of.value.clone(), self.distance(axis, at));
            let shown = match by {
                Some(by) if mode.moves() => self.edge(view, axis, by),
                Some(by) => {
                    let position = self.near(axis, first, by);
                    let outside = self.binary(Binary::Le, extent, position);
                    match value {
                        Some(value) => values.push((outside, value)),
                        None => fails.push((outside, at)),
                    }
                    position
                }
                None => {
                    let position = self.binary(Binary::Sub, at, wide[0]);
                    let outside = self.binary(Binary::Le, wide[1], position);
                    if mode.moves() {
                        self.moved(mode, position, wide[1], outside)
                    } else {
                        match value {
                            Some(value) => values.push((outside, value)),
                            None => fails.push((outside, at)),
                        }
                        self.sized(position)
                    }
                }
            };
            let along = self.binary(Binary::Mul, shown, stride);
            number = self.binary(Binary::Add, number, along);
        }
        number = self.cast(number, PLACE);
        let mut failed = ScalarOperand::Constant(Type::Bool, 0);
        for (outside, _) in &fails {
            failed = self.binary(Binary::Or, failed, *outside);
        }
        let mut is_value = ScalarOperand::Constant(Type::Bool, 0);
        for (outside, _) in &values {
            is_value = self.binary(Binary::Or, is_value, *outside);
        }
        number = self.select(is_value, constant(0), number);
        // Test the axes from the last to the first: each test overwrites the previous result, and the report
        // must name the first axis that is out of bounds.
        for (outside, at) in fails.iter().rev() {
            let marked = self.binary(Binary::Or, *at, constant(OUTSIDE));
            number = self.select(*outside, marked, number);
        }
        let check = if fails.is_empty() { BoundsCheck::Proven } else { BoundsCheck::ByAccess };
        let index = Some(ElementIndex { at: number, len: 0, check });
        let node = Node::of_element(&layout, view as u16, 0);
        let element = LoweredValue { index, is_shared: true, ..LoweredValue::new(layout, node) };
        if values.is_empty() {
            return Ok(element);
        }
        let works = self.unary(backend_api::kernel::Unary::Not, failed);
        let mut chosen = Vec::with_capacity(values.len());
        for (outside, value) in values {
            chosen.push((self.binary(Binary::And, outside, works), value));
        }
        self.chosen(&chosen, &element)
    }

    /// Returns the first value whose condition is true, or else an element.
    fn chosen(
        &mut self,
        values: &[(ScalarOperand, LoweredValue)],
        element: &LoweredValue,
    ) -> Result<LoweredValue> {
        if let Node::Leaf(_) = element.node {
            let mut result = self.operand(element)?;
            for (when, value) in values.iter().rev() {
                let value = self.operand(value)?;
                result = self.select(*when, value, result);
            }
            return Ok(LoweredValue::scalar(self.type_of(result), result));
        }
        let Some(((when, value), others)) = values.split_first() else { return self.settled(element) };
        self.branches(*when, |_| Ok(value.clone()), |lower| lower.chosen(others, element))
    }

    /// Returns the constant distance between an index and the item's index along an axis, if it is known.
    fn distance(&self, axis: usize, at: ScalarOperand) -> Option<i64> {
        let ScalarOperand::Register(register) = at else { return None };
        let (of, by) = *self.away.get(&register)?;
        (of == axis && (!self.form.is_short || by.unsigned_abs() < SHORT_MAX)).then_some(by)
    }

    /// Returns the item's index plus a distance along an axis, counted from the array's first position.
    fn near(&mut self, axis: usize, first: ScalarOperand, by: i64) -> ScalarOperand {
        let (from, by) = (self.binary(Binary::Sub, self.own[axis], first), self.short(by.cast_unsigned()));
        self.binary(Binary::Add, from, by)
    }

    /// Returns the index that the boundary mode selects at a distance from the item along an axis.
    fn edge(&mut self, view: usize, axis: usize, by: i64) -> ScalarOperand {
        let of = self.type_of(self.own[axis]);
        let known = self.views[view].around.iter().flat_map(|around| &around.edges);
        let known = known.filter(|edge| (edge.axis, edge.by) == (axis, by)).map(|edge| edge.shown).next();
        let shown = known.unwrap_or_else(|| self.new_variable(of));
        if let Some(around) = self.views[view].around.as_mut().filter(|_| known.is_none()) {
            around.edges.push(BoundaryElement { axis, by, shown });
        }
        ScalarOperand::Register(shown)
    }

    /// Returns the index of the element that a boundary mode selects at a position along an axis.
    fn moved(
        &mut self,
        mode: Mode,
        position: ScalarOperand,
        extent: ScalarOperand,
        outside: ScalarOperand,
    ) -> ScalarOperand {
        let short = self.sized(position);
        let of = self.type_of(short);
        let (shown, of) = (self.new_variable(of), self.register(short));
        self.code.push(Op::Copy { to: shown, of });
        let outer = std::mem::take(&mut self.code);
        self.show(mode, position, extent, shown);
        let then = std::mem::replace(&mut self.code, outer);
        let when = self.register(outside);
        self.code.push(Op::If { when, then, otherwise: Vec::new() });
        ScalarOperand::Register(shown)
    }

    /// Returns code that runs before all other code, and selects elements at constant distances from the
    /// item.
    pub(super) fn edges(&mut self) -> Vec<Op> {
        let outer = std::mem::take(&mut self.code);
        for view in 0..self.views.len() {
            let Some(around) = &mut self.views[view].around else { continue };
            let edges = std::mem::take(&mut around.edges);
            let axes: Vec<_> = around.axes.iter().map(|axis| (axis.first, axis.extent, axis.mode)).collect();
            let (mut positions, mut near) = (Vec::new(), ScalarOperand::Constant(Type::Bool, 0));
            for edge in &edges {
                let position = self.near(edge.axis, axes[edge.axis].0, edge.by);
                let of = self.register(position);
                self.code.push(Op::Copy { to: edge.shown, of });
                positions.push(position);
            }
            for (axis, (_, extent, _)) in axes.iter().enumerate() {
                let own = || edges.iter().zip(&positions).filter(|(edge, _)| edge.axis == axis);
                // If the smallest and the largest position are within bounds, all positions between are, too.
                let ends = [own().min_by_key(|own| own.0.by), own().max_by_key(|own| own.0.by)];
                for (_, position) in ends.into_iter().flatten() {
                    let outside = self.binary(Binary::Le, *extent, *position);
                    near = self.binary(Binary::Or, near, outside);
                }
            }
            let before = std::mem::take(&mut self.code);
            for (edge, position) in edges.iter().zip(positions) {
                let (_, extent, mode) = axes[edge.axis];
                self.show(mode, position, extent, edge.shown);
            }
            let then = std::mem::replace(&mut self.code, before);
            if let ScalarOperand::Register(when) = near {
                self.code.push(Op::If { when, then, otherwise: Vec::new() });
            }
        }
        std::mem::replace(&mut self.code, outer)
    }

    /// Emits code that writes the index of the element that a boundary mode selects to a register. The
    /// position may be out of bounds.
    fn show(&mut self, mode: Mode, position: ScalarOperand, extent: ScalarOperand, to: Reg) {
        let of = signed(self.type_of(position));
        let number = |number| ScalarOperand::Constant(of, number);
        let (at, count) = (self.cast(position, of), self.cast(extent, of));
        let last = self.binary(Binary::Sub, count, number(1));
        let shown = if mode == Mode::Clamp {
            let at = self.binary(Binary::Max, at, number(0));
            self.binary(Binary::Min, at, last)
        } else {
            let period = match mode {
                Mode::Mirror => {
                    let twice = self.binary(Binary::Mul, last, number(2));
                    self.binary(Binary::Max, twice, number(1))
                }
                Mode::Symmetric => self.binary(Binary::Mul, count, number(2)),
                _ => count,
            };
            let rest = self.binary(Binary::Rem, at, period);
            let is_before = self.binary(Binary::Lt, rest, number(0));
            let after = self.binary(Binary::Add, rest, period);
            let at = self.select(is_before, after, rest);
            let mirrored = match mode {
                Mode::Mirror => Some(self.binary(Binary::Sub, period, at)),
                Mode::Symmetric => {
                    let last = self.binary(Binary::Sub, period, number(1));
                    Some(self.binary(Binary::Sub, last, at))
                }
                _ => None,
            };
            mirrored.map_or(at, |mirrored| self.binary(Binary::Min, at, mirrored))
        };
        let shown = self.cast(shown, self.registers[to.at()]);
        let of = self.register(shown);
        self.code.push(Op::Copy { to, of });
    }
}
