//! Evaluation of a program for one element: the reference for all backends.

use super::{Binary, Instruction, Integer, Number, Program, Type, Value};
use crate::kernel::arithmetic::{fma, unary};
use crate::{by_binary, by_integer, by_type};

pub(crate) fn binary(op: Binary, of: Type, a: u64, b: u64) -> u64 {
    macro_rules! number {
        ($method:ident) => {
            by_type!(of, T => T::from_value(a).$method(T::from_value(b)).to_value())
        };
    }
    macro_rules! integer {
        ($method:ident) => {
            by_integer!(of, T => T::from_value(a).$method(T::from_value(b)).to_value(), _ => 0)
        };
    }
    macro_rules! comparison {
        ($operator:tt) => {
            by_type!(of, T => u64::from(T::from_value(a) $operator T::from_value(b)))
        };
    }
    by_binary!(op, number, integer, comparison)
}

pub(crate) fn cast(from: Type, to: Type, a: u64) -> u64 {
    match to {
        Type::Bool => 0,
        _ => by_type!(from, A => by_type!(to, R => (A::from_value(a) as R).to_value())),
    }
}

/// Evaluates a program for one element. Returns the values of all instructions, in the form of
/// [`Type`](super::Type). `index` is the element's index, and `elements` its bytes in each source.
///
/// A field reads as 0 if its source is missing or if it ends beyond its element.
#[must_use]
pub fn evaluate_all(program: &Program, index: u64, elements: &[&[u8]]) -> Vec<u64> {
    let mut values: Vec<u64> = Vec::with_capacity(program.instructions().len());
    let of = |value: Value| program.types()[value.at()];
    for instruction in program.instructions() {
        let get = |value: Value| values[value.at()];
        let value = match *instruction {
            Instruction::Field { source, offset, of } => load(elements, source, offset, of),
            Instruction::Literal { bits, .. } => bits,
            Instruction::Index => index,
            Instruction::Unary { op, of: a } => unary(op, of(a), get(a)),
            Instruction::Binary { op, left, right } => binary(op, of(left), get(left), get(right)),
            Instruction::Select { condition, yes, no } => {
                if get(condition) != 0 {
                    get(yes)
                } else {
                    get(no)
                }
            }
            Instruction::Cast { of: a, to } => cast(of(a), to, get(a)),
            Instruction::Fma { a, b, c } => fma(of(a), get(a), get(b), get(c)),
            Instruction::Call { ref function, ref arguments } => {
                let arguments: Vec<u64> = arguments.iter().map(|argument| get(*argument)).collect();
                function.call(&arguments)
            }
        };
        values.push(value);
    }
    values
}

fn load(elements: &[&[u8]], source: u8, offset: u32, of: Type) -> u64 {
    let field = elements
        .get(usize::from(source))
        .and_then(|element| element.get(offset as usize..)?.get(..of.bytes() as usize));
    field.map_or(0, to_bits)
}

/// The bits of a field of 1, 2, 4 or 8 bytes; 0 of others.
#[inline(always)]
pub(crate) fn to_bits(field: &[u8]) -> u64 {
    match *field {
        [a] => a.into(),
        [a, b] => u16::from_ne_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Unary;
    use super::*;

    #[test]
    fn casts_are_those_of_rust() {
        let float = |x: f64| x.to_bits();
        assert_eq!(cast(Type::F64, Type::U8, float(300.0)), 255);
        assert_eq!(cast(Type::F64, Type::I8, float(-1e9)), 0x80);
        assert_eq!(cast(Type::F64, Type::I64, float(f64::NAN)), 0);
        assert_eq!(cast(Type::I8, Type::U64, 0xFF), u64::MAX);
        assert_eq!(cast(Type::I8, Type::I16, 0x80), 0xFF80);
        assert_eq!(cast(Type::U64, Type::F32, u64::MAX), u64::from((u64::MAX as f32).to_bits()));
        assert_eq!(cast(Type::Bool, Type::F64, 1), float(1.0));
    }

    #[test]
    fn bools_stay_bools() {
        assert_eq!((unary(Unary::Not, Type::Bool, 1), unary(Unary::Not, Type::Bool, 0)), (0, 1));
        assert_eq!(binary(Binary::Xor, Type::Bool, 1, 1), 0);
        assert_eq!(binary(Binary::Ne, Type::Bool, 1, 0), 1);
    }

    #[test]
    fn comparisons_with_nan_hold_only_if_different() {
        let nan = u64::from(f32::NAN.to_bits());
        for (op, holds) in [(Binary::Eq, 0), (Binary::Ne, 1), (Binary::Lt, 0), (Binary::Le, 0)] {
            assert_eq!(binary(op, Type::F32, nan, nan), holds);
        }
    }
}
