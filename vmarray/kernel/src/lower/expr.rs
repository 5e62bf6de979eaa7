//! Lowering of a kernel's Rust expressions to operations on registers.

use super::value::{LoweredValue, Node, ScalarOperand};
use super::{Exit, Lower, Result, fold};
use crate::error::ErrorKind;
use crate::inferred_types::InferredSlot;
use crate::layout::Layout;
use crate::lower::frame::{InlineFrame, is_pure, may_assign};
use crate::tree::{Operator, TreeExpr};
use backend_api::kernel::{Binary, Type};

/// Returns an expression without the source lines ([`TreeExpr::Line`]) that wrap it.
pub fn bare(expr: &'static TreeExpr) -> &'static TreeExpr {
    match expr {
        TreeExpr::Line(_, of) => bare(of),
        other => other,
    }
}

/// Returns the operation of an operator, and true if its operands must be swapped.
const fn operation(operator: Operator) -> (Binary, bool) {
    match operator {
        Operator::Add => (Binary::Add, false),
        Operator::Sub => (Binary::Sub, false),
        Operator::Mul => (Binary::Mul, false),
        Operator::Div => (Binary::Div, false),
        Operator::Rem => (Binary::Rem, false),
        Operator::And => (Binary::And, false),
        Operator::Or => (Binary::Or, false),
        Operator::Xor => (Binary::Xor, false),
        Operator::Shl => (Binary::Shl, false),
        Operator::Shr => (Binary::Shr, false),
        Operator::Eq => (Binary::Eq, false),
        Operator::Ne => (Binary::Ne, false),
        Operator::Lt => (Binary::Lt, false),
        Operator::Le => (Binary::Le, false),
        Operator::Gt => (Binary::Lt, true),
        Operator::Ge => (Binary::Le, true),
    }
}

impl Lower {
    /// Returns the frame (variables, open blocks) of the function that lowering is inlining.
    pub fn frame(&mut self) -> Result<&mut InlineFrame> {
        match self.frames.last_mut() {
            Some(frame) => Ok(frame),
            None => Err(Exit::Error(Box::new(crate::Error::new(
                ErrorKind::Unsupported,
                "",
                "",
                0,
                "code outside of a function".into(),
            )))),
        }
    }

    /// Lowers an expression; the result for a storage location, such as a variable, is a reference.
    pub fn expr(&mut self, expr: &'static TreeExpr) -> Result<LoweredValue> {
        match expr {
            TreeExpr::Line(line, of) => {
                self.frame()?.line = *line;
                self.expr(of)
            }
            TreeExpr::Bool(value) => Ok(constant(Type::Bool, u64::from(*value))),
            TreeExpr::Literal(slot, text) => self.inferred_literal(*slot, text),
            TreeExpr::Number(of, text) => self.number(*of, text),
            TreeExpr::Local(number) => match self.frame()?.locals.get(usize::from(*number)) {
                Some(Some(value)) => Ok(LoweredValue { is_fresh: false, ..value.clone() }),
                _ => Err(self.unexpected("a variable without a value")),
            },
            TreeExpr::Constant(number) => {
                let Some(constant) = self.frame()?.definition.constants.get(usize::from(*number)).cloned()
                else {
                    return Err(self.unexpected("this constant"));
                };
                Ok(self.constant(&constant.layout, &constant.values))
            }
            TreeExpr::Binary(operator, left, right) => self.binary_expr(*operator, left, right),
            TreeExpr::Both(left, right) => self.both(left, right, true),
            TreeExpr::Either(left, right) => self.both(left, right, false),
            TreeExpr::Cast(of, to) => {
                let (of, to) = (self.computed(of)?, self.scalar_type(*to)?);
                Ok(LoweredValue::scalar(to, self.cast(of, to)))
            }
            TreeExpr::FromBits(of, to) => {
                let (of, to) = (self.computed(of)?, self.scalar_type(*to)?);
                Ok(LoweredValue::scalar(to, self.bits(of, to)))
            }
            TreeExpr::FromF32(of, to) => {
                let of = self.computed(of)?;
                let layout = self.named_layout(*to)?;
                self.nearest(of, &layout)
            }
            TreeExpr::Alloc(len, of) => {
                let len = self.computed(len)?;
                let layout = self.named_layout(*of)?;
                self.allocated(layout, len)
            }
            TreeExpr::Index(of, at) => self.index(of, at),
            TreeExpr::Field(of, name) => {
                let of = self.expr(of)?;
                let part = of.layout.part(name).and_then(|number| of.part(number));
                part.ok_or_else(|| self.unexpected("this field"))
            }
            TreeExpr::Reference(of) => Ok(LoweredValue { is_reference: true, ..self.expr(of)? }),
            TreeExpr::Deref(of) => Ok(LoweredValue { is_reference: false, ..self.expr(of)? }),
            TreeExpr::Tuple(parts) => {
                let parts = self.several(parts)?;
                let layout = Layout::Tuple(parts.iter().map(|part| part.layout.clone()).collect());
                Ok(assembled(layout, parts))
            }
            TreeExpr::Array(parts) => self.array(parts),
            TreeExpr::Repeat(value, len) => self.repeat(value, *len),
            TreeExpr::Struct(of, fields, rest) => self.structure(*of, fields, *rest),
            TreeExpr::Assign(place, value) => self.assignment(place, value),
            TreeExpr::Compound(operator, place, value) => {
                self.compound_assignment(*operator, place, value)?;
                Ok(LoweredValue::unit())
            }
            TreeExpr::Call(name, arguments) => self.call_number(name, arguments),
            TreeExpr::CallSlot(slot, arguments) => {
                let arguments = self.several(arguments)?;
                self.call_slot(*slot, &arguments)
            }
            TreeExpr::CallTuple(slot, arguments) => {
                let of = self.expr(arguments)?;
                let of = self.settled(&of)?;
                let arguments: Vec<LoweredValue> =
                    (0..of.layout.parts().len()).filter_map(|n| of.part(n)).collect();
                self.call_slot(*slot, &arguments)
            }
            TreeExpr::Method(of, name, arguments) => self.method(of, name, arguments),
            other => self.flow(other),
        }
    }

    fn inferred_literal(&mut self, slot: u16, text: &'static str) -> Result<LoweredValue> {
        let Some(InferredSlot::Literal(of)) = self.frame()?.definition.slots.get(usize::from(slot)) else {
            return Err(self.unexpected("this literal"));
        };
        let of = *of;
        self.number(of, text)
    }

    /// Returns the layout of the type with this index in the function's list of types.
    fn named_layout(&mut self, number: u16) -> Result<Layout> {
        let layout = self.frame()?.definition.types.get(usize::from(number)).cloned();
        layout.ok_or_else(|| self.unexpected("this type"))
    }

    fn binary_expr(
        &mut self,
        operator: Operator,
        left: &'static TreeExpr,
        right: &'static TreeExpr,
    ) -> Result<LoweredValue> {
        let first = self.expr(left)?;
        if let Layout::Struct { .. } = first.layout {
            let first = if may_assign(right) { self.kept(&first)? } else { self.settled(&first)? };
            let second = self.expr(right)?;
            let second = self.settled(&second)?;
            return self.operated_foreign(operator, &first, &second);
        }
        let [left, right] = self.two(&first, right)?;
        let value = self.operated(operator, left, right);
        Ok(LoweredValue::scalar(self.type_of(value), value))
    }

    fn array(&mut self, parts: &'static [TreeExpr]) -> Result<LoweredValue> {
        let parts = self.several(parts)?;
        let Some(first) = parts.first() else {
            return Err(self.error(ErrorKind::Unsupported, "an array must have at least one element".into()));
        };
        let layout = Layout::Array(Box::new(first.layout.clone()), parts.len());
        let place = self.place(&layout, self.depth)?;
        for (at, part) in (0..).zip(&parts) {
            let to = self.element(&place, ScalarOperand::Constant(Type::U64, at))?;
            self.assign(&to, part)?;
        }
        Ok(place.fresh())
    }

    fn compound_assignment(
        &mut self,
        operator: Operator,
        place: &'static TreeExpr,
        value: &'static TreeExpr,
    ) -> Result<()> {
        let value = self.expr(value)?;
        if let Layout::Struct { .. } = value.layout {
            let value = if may_assign(place) { self.kept(&value)? } else { self.settled(&value)? };
            let place = self.place_of(place)?;
            let before = self.kept(&place)?;
            let after = self.operated_foreign(operator, &before, &value)?;
            return self.assign(&place, &after);
        }
        let mut value = self.operand(&value)?;
        if let ScalarOperand::Register(register) = value
            && self.is_variable[register.at()]
            && may_assign(place)
        {
            value = self.kept_operand(value)?;
        }
        let place = self.place_of(place)?;
        let before = self.operand(&place)?;
        let after = self.operated(operator, before, value);
        self.assign(&place, &LoweredValue::scalar(self.type_of(after), after))
    }

    /// Lowers an expression to a scalar value.
    pub fn computed(&mut self, expr: &'static TreeExpr) -> Result<ScalarOperand> {
        let value = self.expr(expr)?;
        self.operand(&value)
    }

    /// Returns an operand with the current value of `operand`, which later assignments do not change.
    pub fn kept_operand(&mut self, operand: ScalarOperand) -> Result<ScalarOperand> {
        let value = LoweredValue::scalar(self.type_of(operand), operand);
        let value = self.kept(&value)?;
        self.operand(&value)
    }

    /// Returns the scalars of a value and of an expression that the code evaluates after it.
    fn two(&mut self, left: &LoweredValue, right: &'static TreeExpr) -> Result<[ScalarOperand; 2]> {
        let mut first = self.operand(left)?;
        if may_assign(right) {
            first = self.kept_operand(first)?;
        }
        Ok([first, self.computed(right)?])
    }

    /// Lowers several expressions in order.
    pub fn several(&mut self, exprs: &'static [TreeExpr]) -> Result<Vec<LoweredValue>> {
        let mut values = Vec::with_capacity(exprs.len());
        for (number, expr) in exprs.iter().enumerate() {
            let value = self.expr(expr)?;
            values.push(if value.is_reference {
                value
            } else if exprs[number + 1..].iter().any(may_assign) {
                self.kept(&value)?
            } else {
                self.settled(&value)?
            });
        }
        Ok(values)
    }

    /// Lowers a number literal.
    fn number(&self, of: Type, text: &str) -> Result<LoweredValue> {
        let bits = fold::literal(of, text).ok_or_else(|| self.unexpected("this literal"))?;
        Ok(constant(of, bits))
    }

    /// Lowers a constant of the type `layout`, given the bits of its scalars. Arrays become constant tables.
    pub fn constant(&mut self, layout: &Layout, values: &[u64]) -> LoweredValue {
        match layout {
            Layout::Scalar(of) => constant(*of, values.first().copied().unwrap_or(0)),
            Layout::Array(..) => {
                let node = self.tables.of_constant(layout, values);
                LoweredValue::new(layout.clone(), node)
            }
            Layout::Tuple(_) | Layout::Struct { .. } => {
                let mut left = values;
                let mut parts = Vec::new();
                for part in layout.parts() {
                    let (own, rest) = left.split_at(part.scalars());
                    parts.push(self.constant(part, own));
                    left = rest;
                }
                assembled(layout.clone(), parts)
            }
        }
    }

    /// Returns the target type of a cast, which must be a number.
    fn scalar_type(&mut self, number: u16) -> Result<Type> {
        match self.frame()?.definition.types.get(usize::from(number)) {
            Some(Layout::Scalar(of)) => Ok(*of),
            _ => Err(self.unexpected("a cast to this type")),
        }
    }

    /// Lowers a binary operation on two scalars.
    pub fn operated(
        &mut self,
        operator: Operator,
        left: ScalarOperand,
        right: ScalarOperand,
    ) -> ScalarOperand {
        let (op, is_swapped) = operation(operator);
        let (left, mut right) = if is_swapped { (right, left) } else { (left, right) };
        if matches!(op, Binary::Shl | Binary::Shr) {
            let of = self.type_of(left);
            right = self.cast(right, of);
        }
        self.binary(op, left, right)
    }

    /// Lowers `a && b` or `a || b`.
    fn both(
        &mut self,
        left: &'static TreeExpr,
        right: &'static TreeExpr,
        is_and: bool,
    ) -> Result<LoweredValue> {
        let mut first = self.computed(left)?;
        if let ScalarOperand::Constant(_, bits) = first {
            return if (bits != 0) == is_and { self.expr(right) } else { Ok(constant(Type::Bool, bits)) };
        }
        if is_pure(right) {
            let second = self.computed(right)?;
            let op = if is_and { Binary::And } else { Binary::Or };
            return Ok(LoweredValue::scalar(Type::Bool, self.binary(op, first, second)));
        }
        first = self.kept_operand(first)?;
        let evaluated = |lower: &mut Self| lower.expr(right);
        let known = |_: &mut Self| Ok(constant(Type::Bool, u64::from(!is_and)));
        if is_and { self.branches(first, evaluated, known) } else { self.branches(first, known, evaluated) }
    }

    fn index(&mut self, of: &'static TreeExpr, at: &'static TreeExpr) -> Result<LoweredValue> {
        let mut of = self.expr(of)?;
        if may_assign(at) && !matches!(of.node, Node::View(_) | Node::Allocated(_)) {
            of = self.kept(&of)?;
        }
        let place = match bare(at) {
            TreeExpr::Array(parts) => self.several(parts)?,
            at => vec![self.expr(at)?],
        };
        let mut indices = Vec::with_capacity(place.len());
        for at in &place {
            indices.extend(self.indices(at)?);
        }
        if let Node::View(view) = of.node
            && self.views[view].around.is_some()
        {
            return self.around_element(view, &indices);
        }
        if let (&Node::View(view), &[row, index]) = (&of.node, &indices[..]) {
            return self.row_element(view, row, index);
        }
        let [at] = indices[..] else { return self.element_of(&of, &indices) };
        if let (Node::Leaf(_), ScalarOperand::Constant(_, 0)) = (&of.node, at) {
            // A position (`At<1>`) with one axis is itself the index along this axis.
            return Ok(of);
        }
        if let (Node::Parts(_), ScalarOperand::Constant(_, axis)) = (&of.node, at) {
            return of.part(axis as usize).ok_or_else(|| self.unexpected("an axis that does not exist"));
        }
        match of.node {
            Node::View(view) => Ok(self.view_element(view, Some(at))),
            Node::Allocated(of) => self.allocated_element(&of, at),
            _ => self.element(&of, at),
        }
    }

    /// Returns the storage location of an expression, as the target of an assignment; never a copy.
    fn place_of(&mut self, expr: &'static TreeExpr) -> Result<LoweredValue> {
        match expr {
            TreeExpr::Line(line, of) => {
                self.frame()?.line = *line;
                self.place_of(of)
            }
            TreeExpr::Index(of, at) => {
                let of = self.place_of(of)?;
                let at = self.computed(at)?;
                let at = self.kept_operand(at)?;
                self.element(&of, at)
            }
            TreeExpr::Field(of, name) => {
                let of = self.place_of(of)?;
                let part = of.layout.part(name).and_then(|number| of.part(number));
                part.ok_or_else(|| self.unexpected("this field"))
            }
            other => self.expr(other),
        }
    }

    fn repeat(&mut self, value: &'static TreeExpr, len: u16) -> Result<LoweredValue> {
        let value = self.expr(value)?;
        let value = self.kept(&value)?;
        let len = self.frame()?.definition.constants.get(usize::from(len)).and_then(|len| {
            let len = len.values.first()?;
            usize::try_from(*len).ok()
        });
        let Some(len) = len.filter(|len| *len > 0) else {
            return Err(self.error(ErrorKind::Unsupported, "an array must have at least one element".into()));
        };
        if len > usize::from(u16::MAX) {
            let detail = format!(
                "an array of {len} elements exceeds the limit of 8 KiB for the arrays of \
                                  an item"
            );
            return Err(self.error(ErrorKind::TooLarge, detail));
        }
        let layout = Layout::Array(Box::new(value.layout.clone()), len);
        let place = self.place(&layout, self.depth)?;
        let fill = |lower: &mut Self, at| {
            let to = lower.element(&place, at)?;
            lower.assign(&to, &value)
        };
        if len <= 32 {
            (0..len as u64).try_for_each(|at| fill(self, ScalarOperand::Constant(Type::U64, at)))?;
        } else {
            self.repeated(len, fill)?;
        }
        Ok(place.fresh())
    }

    fn structure(
        &mut self,
        of: u16,
        fields: &'static [(&'static str, TreeExpr)],
        rest: Option<&'static TreeExpr>,
    ) -> Result<LoweredValue> {
        let layout = match self.frame()?.definition.slots.get(usize::from(of)) {
            Some(InferredSlot::Struct(layout)) => layout(),
            _ => return Err(self.unexpected("this struct")),
        };
        let mut parts: Vec<Option<LoweredValue>> = vec![None; layout.parts().len()];
        for (number, (name, value)) in fields.iter().enumerate() {
            let value = self.expr(value)?;
            let later = fields[number + 1..].iter().map(|field| &field.1).chain(rest);
            let assigns = later.into_iter().any(may_assign);
            let value = if assigns { self.kept(&value)? } else { self.settled(&value)? };
            let place = layout.part(name).ok_or_else(|| self.unexpected("this field"))?;
            parts[place] = Some(value);
        }
        if let Some(rest) = rest {
            let rest = self.expr(rest)?;
            for (number, part) in parts.iter_mut().enumerate().filter(|(_, part)| part.is_none()) {
                let value = rest.part(number).ok_or_else(|| self.unexpected("this struct"))?;
                *part = Some(self.settled(&value)?);
            }
        }
        let parts: Option<Vec<LoweredValue>> = parts.into_iter().collect();
        let parts = parts.ok_or_else(|| self.unexpected("a struct with fields left out"))?;
        Ok(assembled(layout, parts))
    }

    fn assignment(&mut self, place: &'static TreeExpr, value: &'static TreeExpr) -> Result<LoweredValue> {
        let value = self.expr(value)?;
        let is_scalar = matches!(value.node, Node::Leaf(_));
        // Copy the value first: the assignment may change variables that it reads, as in `(a, b) = (b, a)`.
        let value = if is_scalar && !may_assign(place) { self.settled(&value)? } else { self.kept(&value)? };
        if let TreeExpr::Tuple(places) = bare(place) {
            for (number, place) in places.iter().enumerate() {
                let part = value.part(number).ok_or_else(|| self.unexpected("this tuple"))?;
                self.assigned(place, &part)?;
            }
        } else {
            self.assigned(place, &value)?;
        }
        Ok(LoweredValue::unit())
    }

    /// Lowers an assignment to a storage location. Sets the location of a variable declared without a value.
    fn assigned(&mut self, place: &'static TreeExpr, value: &LoweredValue) -> Result<()> {
        if let TreeExpr::Local(number) = bare(place)
            && let Some(None) = self.frame()?.locals.get(usize::from(*number))
        {
            let depth = self.frame()?.depth;
            let place = self.place(&value.layout, depth)?;
            self.assign(&place, value)?;
            self.frame()?.locals[usize::from(*number)] = Some(place);
            return Ok(());
        }
        let place = self.place_of(place)?;
        self.assign(&place, value)
    }
}

/// Returns a constant scalar of the type `of`, with these bits.
pub fn constant(of: Type, bits: u64) -> LoweredValue {
    LoweredValue::scalar(of, ScalarOperand::Constant(of, bits))
}

/// Returns a tuple or struct of parts whose scalars are already computed.
pub fn assembled(layout: Layout, parts: Vec<LoweredValue>) -> LoweredValue {
    let mut arrays = parts.iter().filter(|part| part.has_arrays());
    let (is_shared, is_fresh) = (arrays.clone().any(|part| part.is_shared), arrays.all(|part| part.is_fresh));
    let nodes = parts.into_iter().map(|part| part.node).collect();
    LoweredValue { is_shared, is_fresh, ..LoweredValue::new(layout, Node::Parts(nodes)) }
}
