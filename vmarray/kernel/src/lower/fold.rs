//! Constant folding in kernels: evaluates operations on literals, removes operations that change nothing, and
//! simplifies divisions by powers of two.

use backend_api::expr::{Binary, Number as _, Type};

/// Returns the bits of a number literal, given its source text.
pub fn literal(of: Type, text: &str) -> Option<u64> {
    match of {
        Type::F32 => text.parse::<f32>().ok().map(|number| number.to_value()),
        Type::F64 => text.parse::<f64>().ok().map(|number| number.to_value()),
        _ => text.parse::<i128>().ok().map(|number| number as u64 & of.mask()),
    }
}

/// Returns true if `op` on integers with the right operand `right` returns the left operand, as in `x + 0`.
pub fn is_neutral(op: Binary, of: Type, right: u64) -> bool {
    let neutral = match op {
        Binary::Add | Binary::Sub | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => 0,
        Binary::Mul | Binary::Div => 1,
        Binary::And => of.mask(),
        _ => return false,
    };
    !of.is_float() && right == neutral
}

/// Returns the shift or mask that replaces a division or remainder of an unsigned number, if `by` is a power
/// of two. GPUs have no division instruction; for 64 bits, GPU compilers call a function of 60 instructions
/// even for powers of two.
pub fn without_division(op: Binary, of: Type, by: u64) -> Option<(Binary, u64)> {
    let is_unsigned = matches!(of, Type::U8 | Type::U16 | Type::U32 | Type::U64);
    match op {
        _ if !is_unsigned || !by.is_power_of_two() => None,
        Binary::Div => Some((Binary::Shr, by.trailing_zeros().into())),
        Binary::Rem => Some((Binary::And, by - 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_by_powers_of_two_are_shifts_and_masks() {
        use backend_api::kernel::arithmetic::binary;
        for (of, bits) in [(Type::U8, 8), (Type::U16, 16), (Type::U32, 32), (Type::U64, 64)] {
            for by in (0..bits).map(|bit| 1_u64 << bit) {
                for op in [Binary::Div, Binary::Rem] {
                    let (other, number) = without_division(op, of, by).unwrap();
                    for value in [0, 1, by - 1, by, by + 1, 200, u64::MAX].map(|value| value & of.mask()) {
                        assert_eq!(binary(other, of, value, number), binary(op, of, value, by));
                    }
                }
            }
        }
        let none = [(Binary::Div, Type::I32, 8), (Binary::Rem, Type::U32, 12), (Binary::Mul, Type::U64, 8)];
        assert!(none.iter().all(|(op, of, by)| without_division(*op, *of, *by).is_none()));
    }

    #[test]
    fn literals_are_read_as_rustc_reads_them() {
        assert_eq!(literal(Type::I8, "-1"), Some(255));
        assert_eq!(literal(Type::U64, "18446744073709551615"), Some(u64::MAX));
        // The literal is rounded once, to the requested float type.
        assert_eq!(literal(Type::F32, "0.1"), Some(0.1_f32.to_bits().into()));
        assert_eq!(literal(Type::F32, "16777217"), Some(16_777_217_f32.to_bits().into()));
        assert_eq!(literal(Type::U8, "x"), None);
    }
}
