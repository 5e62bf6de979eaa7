//! Lowering of operations on types of the crates `half` (16-bit floats) and `num-complex`.

use super::expr::assembled;
use super::value::{LoweredValue, ScalarOperand};
use super::{Lower, Result};
use crate::inferred_types::Definition;
use crate::layout::Layout;
use crate::tree::Operator;
use backend_api::kernel::Unary;

/// Returns the conversions of a 16-bit float type to `f32` and back; `None` for other types.
fn conversions(layout: &Layout) -> Option<(Unary, Unary)> {
    match layout {
        Layout::Struct { name: "f16", .. } => Some((Unary::FromF16, Unary::ToF16)),
        Layout::Struct { name: "bf16", .. } => Some((Unary::FromBf16, Unary::ToBf16)),
        _ => None,
    }
}

impl Lower {
    /// Lowers the conversion of a 16-bit float to `f32`.
    pub fn widened(&mut self, of: &LoweredValue) -> Result<ScalarOperand> {
        let (Some((widen, _)), Some(bits)) = (conversions(&of.layout), of.part(0)) else {
            return Err(self.unexpected("this type as a 16-bit float"));
        };
        let bits = self.operand(&bits)?;
        Ok(self.unary(widen, bits))
    }

    /// Lowers the conversion of an `f32` to the nearest 16-bit float.
    pub fn nearest(&mut self, of: ScalarOperand, layout: &Layout) -> Result<LoweredValue> {
        let Some((_, narrow)) = conversions(layout) else {
            return Err(self.unexpected("this type as a 16-bit float"));
        };
        let bits = self.unary(narrow, of);
        Ok(assembled(layout.clone(), vec![LoweredValue::scalar(self.type_of(bits), bits)]))
    }

    /// Lowers a binary operation on two numbers of another crate's type, such as `half::f16`.
    pub fn operated_foreign(
        &mut self,
        operator: Operator,
        left: &LoweredValue,
        right: &LoweredValue,
    ) -> Result<LoweredValue> {
        if conversions(&left.layout).is_some() {
            let (a, b) = (self.widened(left)?, self.widened(right)?);
            let value = self.operated(operator, a, b);
            if self.type_of(value) == backend_api::kernel::Type::Bool {
                return Ok(LoweredValue::scalar(self.type_of(value), value));
            }
            return self.nearest(value, &left.layout);
        }
        match complex(&left.layout, Some(operator)) {
            Some(define) => self.inline(define(), &[left.clone(), right.clone()]),
            None => Err(self.unexpected("this operator")),
        }
    }

    /// Lowers the negation of a number of another crate's type, such as `half::f16`.
    pub fn negated_foreign(&mut self, of: &LoweredValue) -> Result<LoweredValue> {
        if conversions(&of.layout).is_some() {
            let value = self.widened(of)?;
            let value = self.unary(Unary::Neg, value);
            return self.nearest(value, &of.layout);
        }
        match complex(&of.layout, None) {
            Some(define) => self.inline(define(), std::slice::from_ref(of)),
            None => Err(self.unexpected("this operator")),
        }
    }
}

/// Returns the kernel function for an operator of complex numbers; for the unary minus, pass `None`.
#[cfg(feature = "num-complex")]
fn complex(layout: &Layout, operator: Option<Operator>) -> Option<fn() -> Definition> {
    use crate::complex::{
        complex_add, complex_div, complex_eq, complex_mul, complex_ne, complex_neg, complex_sub,
    };
    use crate::inferred_types::Define;
    use crate::number::Float;
    use backend_api::kernel::Type;

    fn of<T: Float>(operator: Option<Operator>) -> Option<fn() -> Definition> {
        Some(match operator {
            None => complex_neg::<T>::define,
            Some(Operator::Add) => complex_add::<T>::define,
            Some(Operator::Sub) => complex_sub::<T>::define,
            Some(Operator::Mul) => complex_mul::<T>::define,
            Some(Operator::Div) => complex_div::<T>::define,
            Some(Operator::Eq) => complex_eq::<T>::define,
            Some(Operator::Ne) => complex_ne::<T>::define,
            Some(_) => return None,
        })
    }
    match layout {
        Layout::Struct { name: "Complex", fields, .. } => match fields.first()?.layout {
            Layout::Scalar(Type::F32) => of::<f32>(operator),
            Layout::Scalar(Type::F64) => of::<f64>(operator),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(not(feature = "num-complex"))]
fn complex(_: &Layout, _: Option<Operator>) -> Option<fn() -> Definition> {
    None
}
