//! Lowering of calls in kernels: kernel functions (by inlining), functions of the rule table in
//! `backend_api::expr`, and methods of parameters.

use super::expr::{assembled, bare};
use super::frame::{FlowOutcome, InlineFrame, may_assign};
use super::value::{Allocated, Leaf, LoweredValue, Node, ScalarOperand};
use super::{Exit, GroupPart, Lower, Result, ScalarSource};
use crate::error::ErrorKind;
use crate::inferred_types::{Definition, InferredSlot};
use crate::tree::TreeExpr;
use backend_api::kernel::{
    Access, Binary, Builtin, Op, Place, Rmw, Scope, SubgroupOp, Type, Unary, arithmetic,
};

/// Maximum nesting depth of inlined calls.
const CALLS_MAX: usize = 64;

impl Lower {
    /// Lowers a call of the kernel function that rustc inferred for a slot (a position in the source).
    pub fn call_slot(&mut self, slot: u16, arguments: &[LoweredValue]) -> Result<LoweredValue> {
        match self.frame()?.definition.slots.get(usize::from(slot)) {
            Some(InferredSlot::Callee(define)) => {
                let define = *define;
                self.inline(define(), arguments)
            }
            _ => Err(self.unexpected("this call")),
        }
    }

    /// Lowers a call: inlines the body of the called function, with `arguments` as its parameters.
    pub fn inline(&mut self, definition: Definition, arguments: &[LoweredValue]) -> Result<LoweredValue> {
        let tree = definition.tree;
        let mut frame = InlineFrame::new(definition);
        frame.outcome.depth = self.depth;
        let outer = std::mem::take(&mut self.code);
        (self.depth, self.nesting) = (self.depth + 1, self.nesting + 1);
        (frame.depth, frame.level) = (self.depth, self.nesting);
        self.frames.push(frame);
        if self.frames.len() > CALLS_MAX {
            let detail = format!(
                "calls are nested more than {CALLS_MAX} levels deep, perhaps by recursion: use a loop instead"
            );
            return Err(self.error(ErrorKind::TooDeep, detail));
        }
        let mut run = || {
            for (pattern, argument) in tree.parameters.iter().zip(arguments) {
                self.bind(pattern, argument)?;
            }
            let value = self.expr(&tree.body)?;
            self.settled(&value)
        };
        let result = run();
        // Return an error before the function's frame is removed: the frame has the error's line.
        let result = match result {
            Err(Exit::Error(error)) => return Err(Exit::Error(error)),
            Err(Exit::Diverges) => None,
            Ok(value) => Some(value),
        };
        let Some(mut frame) = self.frames.pop() else { return Err(self.unexpected("this call")) };
        let value = self.joined(&mut frame.outcome, frame.is_left, result)?;
        (self.depth, self.nesting) = (self.depth - 1, self.nesting - 1);
        let value = match value {
            Some(value) if value.has_arrays() && !frame.is_left => {
                let place = self.place(&value.layout, self.depth)?;
                self.assign(&place, &value)?;
                Some(place.fresh())
            }
            value => value,
        };
        let body = std::mem::replace(&mut self.code, outer);
        self.code.push(Op::Block { body });
        self.release();
        value.ok_or(Exit::Diverges)
    }

    /// Returns the result of code with several exits. If `is_left` is false, returns `end`, the value at the
    /// normal end. Otherwise copies `end`, if any, to the variables of `outcome`, and returns these
    /// variables.
    pub fn joined(
        &mut self,
        outcome: &mut FlowOutcome,
        is_left: bool,
        end: Option<LoweredValue>,
    ) -> Result<Option<LoweredValue>> {
        if !is_left {
            return Ok(end);
        }
        if let Some(end) = end {
            self.give(outcome, &end)?;
        }
        Ok(Some(outcome.place.take().map_or_else(LoweredValue::unit, LoweredValue::fresh)))
    }

    /// Stores the `value` of a `break` or `return` in the variables of `outcome`; allocates them if needed.
    pub fn give(&mut self, outcome: &mut FlowOutcome, value: &LoweredValue) -> Result<()> {
        let value = self.settled(value)?;
        let place = match &outcome.place {
            Some(place) => place.clone(),
            None => self.place(&value.layout, outcome.depth)?,
        };
        self.assign(&place, &value)?;
        outcome.place = Some(place);
        Ok(())
    }

    /// Frees the arrays of ended blocks, which are nested deeper: later code then reuses their memory.
    pub fn release(&mut self) {
        let depth = self.depth;
        for array in self.arrays.iter_mut().filter(|array| array.1.is_some_and(|of| of > depth)) {
            array.1 = None;
        }
    }

    /// Lowers an operation across lanes (a subgroup operation).
    fn subgroup_op(&mut self, name: &str, operands: &[ScalarOperand]) -> Result<LoweredValue> {
        let found = self.type_of(operands[0]);
        let reduced = |name: &str| {
            Some(match name {
                "sum" => Binary::Add,
                "min" => Binary::Min,
                "max" => Binary::Max,
                "and" => Binary::And,
                "or" => Binary::Or,
                "xor" => Binary::Xor,
                _ => return None,
            })
        };
        let how = match (name, operands) {
            ("shuffle", [_, lane]) => Some(SubgroupOp::Shuffle { lane: self.register(*lane) }),
            ("shuffle_xor", [_, ScalarOperand::Constant(_, mask)]) if *mask < 32 => {
                Some(SubgroupOp::ShuffleXor(*mask as u8))
            }
            ("shuffle_xor", _) => {
                let detail = "the mask of `shuffle_xor` must be a constant below 32: use `shuffle` for any \
                              other lane";
                return Err(self.error(ErrorKind::Unsupported, detail.into()));
            }
            ("ballot", _) => Some(SubgroupOp::Ballot),
            ("alike", [_, ScalarOperand::Constant(_, bits)]) if (1..=32).contains(bits) => {
                Some(SubgroupOp::Alike { bits: *bits as u8 })
            }
            ("alike", _) => {
                let detail = "the number of bits of `alike` must be a constant from 1 to 32";
                return Err(self.error(ErrorKind::Unsupported, detail.into()));
            }
            ("sync", _) => Some(SubgroupOp::Sync),
            ("any", _) => Some(SubgroupOp::Any),
            ("all", _) => Some(SubgroupOp::All),
            (name, _) => match name.strip_prefix("scan_") {
                Some(name) => reduced(name).map(SubgroupOp::Scan),
                None => reduced(name).map(SubgroupOp::Reduce),
            },
        };
        self.expect_group("an operation across lanes")?;
        let Some((how, gives)) = how.and_then(|how| Some((how, how.gives(found)?))) else {
            return Err(self.unexpected(&format!("`lanes::{name}`")));
        };
        let (to, of) = (self.new_register(gives), self.register(operands[0]));
        self.mark();
        self.code.push(Op::Subgroup { how, to, of });
        Ok(LoweredValue::scalar(gives, ScalarOperand::Register(to)))
    }

    /// Lowers an atomic on an element of a view or of group memory; returns the old value.
    fn atomic(&mut self, of: &LoweredValue, name: &str, arguments: &[LoweredValue]) -> Result<LoweredValue> {
        let (Some((at, rest)), unknown) =
            (arguments.split_first(), self.unexpected(&format!("the method `{name}`")))
        else {
            return Err(self.unexpected("an atomic without an index"));
        };
        let (element, scope) = match of.node {
            Node::View(view) => {
                let at = self.operand(at)?;
                (self.view_element(view, Some(at)), Scope::Device)
            }
            _ => {
                let at = self.indices(at)?;
                (self.element_of(of, &at)?, Scope::Group)
            }
        };
        let Node::Leaf(leaf) = &element.node else { return Err(unknown) };
        let leaf = leaf.clone();
        let (Some(index), Leaf::Field(found, ..) | Leaf::Element(found, _)) = (element.index, &leaf) else {
            return Err(unknown);
        };
        let found = *found;
        let mut operands = Vec::with_capacity(2);
        for value in rest {
            let operand = self.operand(value)?;
            operands.push(self.register(operand));
        }
        let (op, value) = match (name, &operands[..]) {
            ("add", [value]) => (Rmw::Add, *value),
            ("min", [value]) => (Rmw::Min, *value),
            ("max", [value]) => (Rmw::Max, *value),
            ("and", [value]) => (Rmw::And, *value),
            ("or", [value]) => (Rmw::Or, *value),
            ("xor", [value]) => (Rmw::Xor, *value),
            ("exchange", [value]) => (Rmw::Exchange, *value),
            ("acquire", []) => (Rmw::Acquire, self.literal(found, 0)),
            ("release", [value]) => (Rmw::Release, *value),
            ("compare_exchange", [expected, value]) => (Rmw::CompareExchange { expected: *expected }, *value),
            _ => return Err(unknown),
        };
        let at = self.register(index.at);
        let place = match leaf {
            Leaf::Field(_, view, offset) => Place::View { view, at, offset },
            Leaf::Element(_, array) => Place::Array { array, at },
            _ => return Err(unknown),
        };
        let to = self.new_register(found);
        self.removable[to.at()] = false;
        self.mark();
        let result = (op != Rmw::Release).then_some(to);
        self.code.push(Op::Atomic { op, to: result, place, value, scope });
        if op == Rmw::Release {
            return Ok(LoweredValue::unit());
        }
        Ok(LoweredValue::scalar(found, ScalarOperand::Register(to)))
    }

    /// Lowers an append to a view. The preceding view is its counter.
    fn push(&mut self, view: usize, value: &LoweredValue) -> Result<LoweredValue> {
        let (at, value_of_one) = (self.literal(Type::U64, 0), self.literal(Type::U64, 1));
        let to = self.new_register(Type::U64);
        self.removable[to.at()] = false;
        let place = Place::View { view: view as u16 - 1, at, offset: 0 };
        self.code.push(Op::Atomic {
            op: Rmw::Add,
            to: Some(to),
            place,
            value: value_of_one,
            scope: Scope::Device,
        });
        let place = self.view_element(view, Some(ScalarOperand::Register(to)));
        if self.form.ordered.contains(&self.views[view].parameter) {
            let item =
                LoweredValue::scalar(Type::U64, ScalarOperand::Register(self.question(Builtin::Index)));
            let layout = self.views[view].layout.clone();
            self.assign(&place, &assembled(layout, vec![item, value.clone()]))?;
        } else {
            self.assign(&place, value)?;
        }
        Ok(LoweredValue::unit())
    }

    /// Lowers a call of a built-in function: `barrier`, or a function of numbers.
    pub fn call_number(&mut self, name: &str, arguments: &'static [TreeExpr]) -> Result<LoweredValue> {
        if name == "barrier" {
            self.expect_group("`barrier()`")?;
            self.mark();
            self.code.push(Op::Barrier);
            return Ok(LoweredValue::unit());
        }
        let values = self.several(arguments)?;
        if let ("to_f32", [of]) = (name, &values[..]) {
            let value = self.widened(of)?;
            return Ok(LoweredValue::scalar(Type::F32, value));
        }
        if let ("neg", [of @ LoweredValue { layout: crate::layout::Layout::Struct { .. }, .. }]) =
            (name, &values[..])
        {
            return self.negated_foreign(of);
        }
        let mut operands = Vec::with_capacity(arguments.len());
        for value in values {
            operands.push(self.operand(&value)?);
        }
        if let Some(name) = name.strip_prefix("lanes_").filter(|_| !operands.is_empty()) {
            return self.subgroup_op(name, &operands);
        }
        let result = match operands[..] {
            [of] => self.call_unary(name, of),
            [left, right] => self.call_binary(name, left, right),
            [a, b, c] if name == "mul_add" => {
                let of = self.type_of(a);
                if let (
                    ScalarOperand::Constant(_, a),
                    ScalarOperand::Constant(_, b),
                    ScalarOperand::Constant(_, c),
                ) = (a, b, c)
                {
                    let bits = arithmetic::fma(of, a, b, c);
                    return Ok(LoweredValue::scalar(of, ScalarOperand::Constant(of, bits)));
                }
                let to = self.new_register(of);
                let (a, b, c) = (self.register(a), self.register(b), self.register(c));
                self.code.push(Op::Fma { to, a, b, c });
                Some(ScalarOperand::Register(to))
            }
            _ => None,
        };
        let result = result.ok_or_else(|| self.unexpected(&format!("the function `{name}`")))?;
        Ok(LoweredValue::scalar(self.type_of(result), result))
    }

    fn call_unary(&mut self, name: &str, of: ScalarOperand) -> Option<ScalarOperand> {
        let op = match name {
            "neg" | "wrapping_neg" => {
                // Negate an unsigned number by subtraction from zero: `Neg` supports only signed numbers.
                let found = self.type_of(of);
                if !Unary::Neg.takes(found) {
                    return Some(self.binary(Binary::Sub, ScalarOperand::Constant(found, 0), of));
                }
                Unary::Neg
            }
            "not" => Unary::Not,
            "abs" | "wrapping_abs" => Unary::Abs,
            "sqrt" => Unary::Sqrt,
            "floor" => Unary::Floor,
            "ceil" => Unary::Ceil,
            "trunc" => Unary::Trunc,
            "round_ties_even" => Unary::RoundEven,
            "reverse_bits" => Unary::ReverseBits,
            "approx_exp2" => Unary::ApproxExp2,
            "approx_log2" => Unary::ApproxLog2,
            "approx_sin" => Unary::ApproxSin,
            "approx_cos" => Unary::ApproxCos,
            "approx_rsqrt" => Unary::ApproxRsqrt,
            "count_ones" | "leading_zeros" | "trailing_zeros" => {
                let op = match name {
                    "count_ones" => Unary::CountOnes,
                    "leading_zeros" => Unary::LeadingZeros,
                    _ => Unary::TrailingZeros,
                };
                let number = self.unary(op, of);
                return Some(self.cast(number, Type::U32));
            }
            "to_bits" => {
                let to = if self.type_of(of) == Type::F32 { Type::U32 } else { Type::U64 };
                return Some(self.bits(of, to));
            }
            _ => return None,
        };
        Some(self.unary(op, of))
    }

    fn call_binary(
        &mut self,
        name: &str,
        left: ScalarOperand,
        right: ScalarOperand,
    ) -> Option<ScalarOperand> {
        let op = match name {
            "min" => Binary::Min,
            "max" => Binary::Max,
            "wrapping_add" => Binary::Add,
            "wrapping_sub" => Binary::Sub,
            "wrapping_mul" => Binary::Mul,
            "wrapping_div" => Binary::Div,
            "wrapping_rem" => Binary::Rem,
            "wrapping_shl" | "wrapping_shr" => {
                let of = self.type_of(left);
                let right = self.cast(right, of);
                let op = if name == "wrapping_shl" { Binary::Shl } else { Binary::Shr };
                return Some(self.binary(op, left, right));
            }
            "mul_high" => {
                let of = self.type_of(left);
                if let (ScalarOperand::Constant(_, a), ScalarOperand::Constant(_, b)) = (left, right) {
                    return Some(ScalarOperand::Constant(of, arithmetic::mul_high(of, a, b)));
                }
                let to = self.new_register(of);
                let (left, right) = (self.register(left), self.register(right));
                self.code.push(Op::MulHigh { to, left, right });
                return Some(ScalarOperand::Register(to));
            }
            _ => return None,
        };
        Some(self.binary(op, left, right))
    }

    /// Lowers a call of a method of a kernel parameter, such as `of.len()`.
    pub fn method(
        &mut self,
        of: &'static TreeExpr,
        name: &str,
        arguments: &'static [TreeExpr],
    ) -> Result<LoweredValue> {
        let of = self.expr(of)?;
        if name == "plus" {
            return self.plus(&of, arguments);
        }
        let arguments = self.several(arguments)?;
        match &of.node {
            Node::View(view) => self.view_method(&of, *view, name, &arguments),
            Node::Allocated(allocated) => self.memory_method(allocated, name, &arguments),
            Node::Array(len, _) => self.array_method(&of, *len, name, &arguments),
            _ => self.place_method(&of, name, &arguments),
        }
    }

    fn view_method(
        &mut self,
        of: &LoweredValue,
        view: usize,
        name: &str,
        arguments: &[LoweredValue],
    ) -> Result<LoweredValue> {
        match (name, arguments) {
            ("get", []) if self.views[view].around.is_some() => self.own_element(view),
            ("get", []) => Ok(self.view_element(view, None)),
            ("len", []) if self.views[view].starts.is_some() => {
                let rows = self.row_count(view);
                Ok(LoweredValue::scalar(Type::U64, rows))
            }
            ("row_len", [row]) => {
                let row = self.operand(row)?;
                self.row_len(view, row)
            }
            ("len", []) => {
                let parameter = self.views[view].parameter;
                let length = self.scalar(ScalarSource::Length { parameter }, Type::U64);
                Ok(LoweredValue::scalar(Type::U64, ScalarOperand::Register(length)))
            }
            ("shape", []) => {
                let extents = self.shape(Some(view));
                self.extents(&extents)
            }
            ("set", [value]) if matches!(self.views[view].access, Access::Write { .. }) => {
                let place = self.view_element(view, None);
                self.assign(&place, value)?;
                Ok(LoweredValue::unit())
            }
            ("set", [at, value]) if self.views[view].access == Access::Atomic => {
                let at = self.operand(at)?;
                let place = self.view_element(view, Some(at));
                self.assign(&place, value)?;
                Ok(LoweredValue::unit())
            }
            ("push", [value]) if self.views[view].access == Access::Append => self.push(view, value),
            _ if self.views[view].access == Access::Atomic => self.atomic(of, name, arguments),
            _ => Err(self.unexpected(&format!("the method `{name}` of a view"))),
        }
    }

    fn memory_method(
        &mut self,
        allocated: &Allocated,
        name: &str,
        arguments: &[LoweredValue],
    ) -> Result<LoweredValue> {
        match (name, arguments) {
            ("len", []) => Ok(LoweredValue::scalar(Type::U64, allocated.len)),
            ("set", [at, value]) => {
                let at = self.operand(at)?;
                let place = self.allocated_element(allocated, at)?;
                self.assign(&place, value)?;
                Ok(LoweredValue::unit())
            }
            _ => Err(self.unexpected(&format!("the method `{name}` of memory"))),
        }
    }

    fn array_method(
        &mut self,
        of: &LoweredValue,
        len: usize,
        name: &str,
        arguments: &[LoweredValue],
    ) -> Result<LoweredValue> {
        match (name, arguments) {
            ("len", []) => {
                let len = self.len_of(of, len) as u64;
                Ok(LoweredValue::scalar(Type::U64, ScalarOperand::Constant(Type::U64, len)))
            }
            ("set", [at, value]) => {
                let at = self.indices(at)?;
                let place = self.element_of(of, &at)?;
                self.assign(&place, value)?;
                Ok(LoweredValue::unit())
            }
            _ => self.atomic(of, name, arguments),
        }
    }

    /// Lowers a method of an item's position (`At`), such as `at.group()`.
    fn place_method(
        &mut self,
        of: &LoweredValue,
        name: &str,
        arguments: &[LoweredValue],
    ) -> Result<LoweredValue> {
        match (name, arguments) {
            ("index", []) => Ok(LoweredValue::scalar(Type::U64, self.operand(of)?)),
            ("shape", []) => {
                let extents = self.shape(None);
                self.extents(&extents)
            }
            ("in_group" | "group" | "groups" | "is_inside", []) if self.tile.len() > 1 => {
                Ok(self.of_tile(name))
            }
            ("in_group" | "group" | "groups", []) => {
                self.expect_group(&format!("`{name}()`"))?;
                let value = match name {
                    "in_group" => ScalarOperand::Register(self.question(Builtin::InGroup)),
                    "group" => self.group_number(),
                    _ => self.of_groups(GroupPart::Count),
                };
                Ok(LoweredValue::scalar(Type::U64, value))
            }
            _ => Err(self.unexpected(&format!("the method `{name}`"))),
        }
    }

    /// Returns the number of the item's group in the whole launch, which may have several runs: see
    /// [`GroupPart`].
    fn group_number(&mut self) -> ScalarOperand {
        let own = ScalarOperand::Register(self.question(Builtin::Group));
        let first = self.of_groups(GroupPart::First);
        let number = self.binary(Binary::Add, own, first);
        if !self.form.is_striped {
            return number;
        }
        let [per_page, skip, offset] =
            [GroupPart::PerPage, GroupPart::Skip, GroupPart::Offset].map(|part| self.of_groups(part));
        let page = self.binary(Binary::Div, number, per_page);
        let skipped = self.binary(Binary::Mul, page, skip);
        let number = self.binary(Binary::Add, number, skipped);
        self.binary(Binary::Add, number, offset)
    }

    fn of_groups(&mut self, part: GroupPart) -> ScalarOperand {
        ScalarOperand::Register(self.scalar(ScalarSource::Groups(part), Type::U64))
    }

    /// Lowers `of.plus(by)`: the position at a distance from a position.
    fn plus(&mut self, of: &LoweredValue, by: &'static [TreeExpr]) -> Result<LoweredValue> {
        let place = self.indices(of)?;
        let mut kept = Vec::with_capacity(place.len());
        for at in place {
            kept.push(if by.iter().any(may_assign) { self.kept_operand(at)? } else { at });
        }
        let by = match by {
            // Pass the elements of an array literal one by one, because constants then stay constants.
            [by] => match bare(by) {
                TreeExpr::Array(parts) if parts.len() == kept.len() => self.several(parts)?,
                _ => self.several(std::slice::from_ref(by))?,
            },
            _ => return Err(self.unexpected("this distance")),
        };
        let mut distances = Vec::with_capacity(kept.len());
        for by in &by {
            distances.extend(self.indices(by)?);
        }
        Ok(Self::place_value(&self.place_plus(&kept, &distances)))
    }
}
