//! The operations of kernels on single values, for interpreters and for constant folding.
//!
//! A value has the form of [`Type`]: its bits as a `u64`, padded with zeros. An operation must exist for the
//! type, as [`Body::verify`](super::Body::verify) checks.
//!
//! ```
//! use backend_api::kernel::{Binary, Memory, Type, Unary, arithmetic};
//! let float = |x: f32| u64::from(x.to_bits());
//! assert_eq!(arithmetic::unary(Unary::Sqrt, Type::F32, float(2.0)), float(2_f32.sqrt()));
//! assert_eq!(arithmetic::binary(Binary::Sub, Type::U8, 1, 2), 255);
//! assert_eq!(arithmetic::mul_high(Type::I8, 0x80, 0x80), 0x40, "-128 * -128 is 0x4000");
//! assert_eq!(arithmetic::fma(Type::F32, float(3.0), float(0.5), float(1.0)), float(2.5));
//! assert_eq!(arithmetic::cast(Type::F32, Type::I16, float(-1.5)), 0xFFFF);
//! assert_eq!(arithmetic::loaded(Memory::F16, 0x3C00), float(1.0));
//! assert_eq!(arithmetic::stored(Memory::F16, float(1.0)), 0x3C00);
//! ```

use super::{Binary, Memory, Type, Unary, f16_to_f32, f32_to_f16};
use crate::expr::{Integer, Number};
use crate::{by_binary, by_integer, by_type, by_unary};

/// Applies an operation to one value of the type `of`. Values are passed as 64 bits.
#[must_use]
pub fn unary(op: Unary, of: Type, a: u64) -> u64 {
    macro_rules! one {
        ($A:ty, $R:ty, $function:expr) => {{
            let result: $R = $function(<$A>::from_value(a));
            result.to_value()
        }};
    }
    by_unary!(op, of, one, 0)
}

/// Applies an operation to two values of the type `of`. Values are passed as 64 bits.
#[must_use]
pub fn binary(op: Binary, of: Type, a: u64, b: u64) -> u64 {
    let mut result = [0];
    binary_lanes(op, of, &[a], &[b], &mut result);
    result[0]
}

/// Applies a function to the value in each of `N` lanes.
#[inline(always)]
pub(super) fn each<const N: usize>(a: &[u64; N], into: &mut [u64; N], of: impl Fn(u64) -> u64) {
    (0..N).for_each(|lane| into[lane] = of(a[lane]));
}

/// Applies a function to the two values in each of `N` lanes.
#[inline(always)]
pub(super) fn pairs<const N: usize>(
    a: &[u64; N],
    b: &[u64; N],
    into: &mut [u64; N],
    of: impl Fn(u64, u64) -> u64,
) {
    (0..N).for_each(|lane| into[lane] = of(a[lane], b[lane]));
}

/// Applies a binary operation to the two values in each of `N` lanes.
pub(super) fn binary_lanes<const N: usize>(
    op: Binary,
    of: Type,
    a: &[u64; N],
    b: &[u64; N],
    into: &mut [u64; N],
) {
    macro_rules! number {
        ($method:ident) => {
            by_type!(of, T => pairs(a, b, into, |a, b| T::from_value(a).$method(T::from_value(b)).to_value()))
        };
    }
    macro_rules! integer {
        ($method:ident) => {
            by_integer!(of, T => {
                pairs(a, b, into, |a, b| T::from_value(a).$method(T::from_value(b)).to_value());
            }, _ => {})
        };
    }
    macro_rules! comparison {
        ($operator:tt) => {
            by_type!(of, T => pairs(a, b, into, |a, b| u64::from(T::from_value(a) $operator T::from_value(b))))
        };
    }
    by_binary!(op, number, integer, comparison);
}

/// Returns the upper half of the product of two integers of the type `of`.
#[must_use]
pub fn mul_high(of: Type, a: u64, b: u64) -> u64 {
    // The product of two unsigned 64-bit numbers can overflow `i128`, but the wrapped bits are right as
    // `u128`.
    let wide = |bits: u64| by_integer!(of, T => T::from_value(bits) as i128, _ => 0);
    let product = wide(a).wrapping_mul(wide(b)) as u128;
    (product >> (8 * of.bytes())) as u64 & of.mask()
}

/// Returns `a * b + c` in the float type `of`, rounded once.
#[must_use]
pub fn fma(of: Type, a: u64, b: u64, c: u64) -> u64 {
    match of {
        Type::F32 => f32::from_value(a).mul_add(f32::from_value(b), f32::from_value(c)).to_value(),
        _ => f64::from_value(a).mul_add(f64::from_value(b), f64::from_value(c)).to_value(),
    }
}

/// Converts a value from the type `from` to the type `to`, like `as` in Rust. Returns 0 if `to` is `Bool`.
#[must_use]
pub fn cast(from: Type, to: Type, a: u64) -> u64 {
    match to {
        Type::Bool => 0,
        _ => by_type!(from, A => by_type!(to, R => (A::from_value(a) as R).to_value())),
    }
}

/// Converts a value's bits in memory to the 64 bits of a register.
#[must_use]
pub fn loaded(of: Memory, bits: u64) -> u64 {
    match of {
        Memory::Value(_) => bits,
        Memory::F16 => f16_to_f32(bits as u16).to_value(),
    }
}

/// Converts the 64 bits of a register to the value's bits in memory.
#[must_use]
pub fn stored(of: Memory, value: u64) -> u64 {
    match of {
        Memory::Value(_) => value,
        Memory::F16 => f32_to_f16(f32::from_value(value)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_match_rust_for_every_type() {
        assert_eq!(unary(Unary::LeadingZeros, Type::I16, 1), 15);
        assert_eq!(unary(Unary::TrailingZeros, Type::U8, 0), 8);
        assert_eq!(unary(Unary::CountOnes, Type::I8, 0xFF), 8);
        assert_eq!(unary(Unary::ReverseBits, Type::I32, 1), 0x8000_0000);
        let float = |x: f64| x.to_bits();
        assert_eq!(unary(Unary::RoundEven, Type::F64, float(2.5)), float(2.0));
        assert_eq!(unary(Unary::Floor, Type::F64, float(-0.5)), float(-1.0));
        assert_eq!(unary(Unary::Trunc, Type::F64, float(-0.5)), float(-0.0));
        assert_eq!(unary(Unary::Ceil, Type::F64, float(-0.5)), float(-0.0));
        assert_eq!(mul_high(Type::U64, u64::MAX, u64::MAX), u64::MAX - 1);
        assert_eq!(mul_high(Type::I64, u64::MAX, u64::MAX), 0, "-1 * -1");
        assert_eq!(mul_high(Type::U32, 1 << 31, 6), 3);
        assert_eq!(mul_high(Type::I32, 0xFFFF_FFFF, 6), 0xFFFF_FFFF, "-1 * 6");
    }

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
