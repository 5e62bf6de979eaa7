//! Recognises conditions that test if a number is in an interval, since vector code (AVX2) then tests faster.

use backend_api::expr::{Binary, Program, Type, Unary, Value};
use backend_api::kernel::{Memory, Op, Reg};

/// An interval of numbers, or its complement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    /// Register of the program with the value that the condition tests.
    pub value: Reg,
    /// The [keys](Type::key) of the interval's bounds.
    least: u64,
    greatest: u64,
    pub is_negated: bool,
}

impl Interval {
    /// Converts a condition that compares one field with literals to an interval; otherwise returns `None`.
    pub fn of(program: &Program, condition: Value) -> Option<Self> {
        Self::within(program, condition.into(), &mut 64)
    }

    /// Converts a condition in at most `steps` steps, because shared subexpressions are visited repeatedly.
    fn within(program: &Program, condition: Reg, steps: &mut u32) -> Option<Self> {
        *steps = steps.checked_sub(1)?;
        match program.ops()[condition.at()] {
            Op::Unary { op: Unary::Not, of, .. } => {
                let interval = Self::within(program, of, steps)?;
                Some(Self { is_negated: !interval.is_negated, ..interval })
            }
            Op::Binary { op: Binary::And, left, right, .. } => {
                let (a, b) = (Self::within(program, left, steps)?, Self::within(program, right, steps)?);
                let fits =
                    !a.is_negated && !b.is_negated && field(program, a.value) == field(program, b.value);
                let both = Self { least: a.least.max(b.least), greatest: a.greatest.min(b.greatest), ..a };
                fits.then_some(both)
            }
            Op::Binary { op, left, right, .. } => {
                let literal = |value: Reg| match program.ops()[value.at()] {
                    Op::Literal { bits, .. } => Some(bits),
                    _ => None,
                };
                let is_field = |value: Reg| field(program, value).is_some();
                match (literal(left), literal(right)) {
                    (None, Some(bits)) if is_field(left) => Self::compared(program, op, left, bits, false),
                    (Some(bits), None) if is_field(right) => Self::compared(program, op, right, bits, true),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Converts the condition `value op literal` or, if `is_swapped`, `literal op value`.
    fn compared(program: &Program, op: Binary, value: Reg, bits: u64, is_swapped: bool) -> Option<Self> {
        let of = program.types()[value.at()];
        let [lowest, highest] = ends(of);
        let (key, zero) = (of.key(bits), of.key(0));
        // Skip the key just below the key of 0.0: it would be the key of -0.0, but -0.0 has the key of 0.0,
        // its equal. The keys of NaNs are beyond the infinities.
        let below = |key: u64| key.checked_sub(if of.is_float() && key == zero { 2 } else { 1 });
        let above = |key: u64| key.checked_add(1).filter(|key| *key <= of.mask());
        let (least, greatest) = match (op, is_swapped) {
            _ if is_nan(of, bits) && op.is_comparison() => (None, None),
            (Binary::Eq | Binary::Ne, _) => (Some(key), Some(key)),
            (Binary::Lt, false) => (Some(lowest), below(key)),
            (Binary::Le, false) => (Some(lowest), Some(key)),
            (Binary::Lt, true) => (above(key), Some(highest)),
            (Binary::Le, true) => (Some(key), Some(highest)),
            _ => return None,
        };
        // If a bound does not exist, no number matches: make the interval empty.
        let (least, greatest) = least.zip(greatest).unwrap_or((highest, lowest));
        Some(Self { value, least, greatest, is_negated: op == Binary::Ne })
    }

    /// Returns the bits of the lower and upper bound. The interval is empty if the lower bound exceeds the
    /// upper one, or if a bound is a NaN.
    pub fn bounds(&self, of: Type) -> [u64; 2] {
        [self.least, self.greatest].map(|key| of.from_key(key))
    }
}

/// Returns the view, offset and type if the value is a field; `None` for any other value.
fn field(program: &Program, value: Reg) -> Option<(u16, u32, Memory)> {
    match program.ops()[value.at()] {
        Op::Load { view, offset, of, .. } => Some((view, offset, of)),
        _ => None,
    }
}

/// Keys of the lowest and the highest number of a type.
fn ends(of: Type) -> [u64; 2] {
    match of {
        Type::F32 => [f32::NEG_INFINITY, f32::INFINITY].map(|end| of.key(end.to_bits().into())),
        Type::F64 => [f64::NEG_INFINITY, f64::INFINITY].map(|end| of.key(end.to_bits())),
        _ => [0, of.mask()],
    }
}

fn is_nan(of: Type, bits: u64) -> bool {
    match of {
        Type::F32 => f32::from_bits(bits as u32).is_nan(),
        Type::F64 => f64::from_bits(bits).is_nan(),
        _ => false,
    }
}
