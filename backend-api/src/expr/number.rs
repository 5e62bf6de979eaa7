//! The arithmetic of [expressions](super) in Rust, with the same results as on all devices.

use super::Type;

/// A Rust type of the numbers in expressions, with the [arithmetic](super) of expressions.
///
/// ```
/// use backend_api::expr::Number;
/// assert_eq!((255_u8.plus(2), 1_u8.minus(2), 100_i8.times(2)), (1, 255, -56));
/// assert_eq!(((-7_i32).divide(2), 7_u8.divide(0), i32::MIN.divide(-1)), (-3, 0, i32::MIN));
/// assert_eq!((i8::MIN.negative(), i8::MIN.absolute(), (-0.5_f32).absolute()), (i8::MIN, i8::MIN, 0.5));
/// assert_eq!((3_i8.least(-4), f64::NAN.least(2.0), 2_f64.greatest(f64::NAN)), (-4, 2.0, 2.0));
/// assert!(Number::is_nan(f32::NAN) && !Number::is_nan(0_u8));
/// assert_eq!((u8::from_value(0x1FF), (-1_i16).to_value(), 1_f32.to_value()), (255, 0xFFFF, 0x3F80_0000));
/// assert_eq!((0.5_f32.to_f64(), (-2.75_f64).to_i128()), (0.5, -2));
/// ```
pub trait Number: Copy + PartialEq + PartialOrd + Default + Send + Sync + 'static {
    /// The [`Type`] of the numbers.
    const NUMBER_TYPE: Type;

    /// Returns the number with these bits; ignores bits beyond the type's width.
    fn from_value(bits: u64) -> Self;

    /// Returns the bits of the number, padded with zeros to 64 bits.
    fn to_value(self) -> u64;

    /// Returns the sum.
    fn plus(self, other: Self) -> Self;

    /// Returns the difference.
    fn minus(self, other: Self) -> Self;

    /// Returns the product.
    fn times(self, other: Self) -> Self;

    /// Returns the quotient.
    fn divide(self, other: Self) -> Self;

    /// Returns the smaller number.
    #[inline(always)]
    fn least(self, other: Self) -> Self {
        if self < other || other.is_nan() { self } else { other }
    }

    /// Returns the larger number.
    #[inline(always)]
    fn greatest(self, other: Self) -> Self {
        if self > other || other.is_nan() { self } else { other }
    }

    /// Returns the negative.
    fn negative(self) -> Self;

    /// Returns the absolute value.
    fn absolute(self) -> Self;

    /// Returns true for a NaN.
    #[inline(always)]
    #[allow(clippy::eq_op, reason = "only a NaN differs from itself")]
    fn is_nan(self) -> bool {
        self != self
    }

    /// Converts to `f64`, rounded to the nearest.
    fn to_f64(self) -> f64;

    /// Converts to `i128`; floats are truncated.
    fn to_i128(self) -> i128;
}

/// A [`Number`] that is an integer.
///
/// ```
/// use backend_api::expr::Integer;
/// assert_eq!(((-7_i32).remainder(4), 7_u8.remainder(0), i64::MIN.remainder(-1)), (-3, 7, 0));
/// assert_eq!((0b1100_u8.both(0b1010), 0b1100_u8.either(0b1010), 0b1100_u8.differing(0b1010)), (8, 14, 6));
/// assert_eq!((0b1100_u8.complement(), 3_u8.shift_left(10), (-8_i8).shift_right(1)), (0b1111_0011, 12, -4));
/// assert_eq!((1_i16.shift_left(-1), 255_u8.shift_right(9)), (i16::MIN, 127));
/// ```
pub trait Integer: Number {
    /// Returns the remainder.
    fn remainder(self, other: Self) -> Self;

    /// Returns the bitwise and.
    fn both(self, other: Self) -> Self;

    /// Returns the bitwise or.
    fn either(self, other: Self) -> Self;

    /// Returns the bitwise exclusive or.
    fn differing(self, other: Self) -> Self;

    /// Returns the bitwise complement.
    fn complement(self) -> Self;

    /// Returns the number shifted left.
    fn shift_left(self, by: Self) -> Self;

    /// Returns the number shifted right.
    fn shift_right(self, by: Self) -> Self;
}

macro_rules! integers {
    ($($T:ident $unsigned:ident $Type:ident $absolute:expr;)*) => { $(
        impl Number for $T {
            const NUMBER_TYPE: Type = Type::$Type;

            #[inline(always)]
            fn from_value(bits: u64) -> Self {
                bits as Self
            }
            #[inline(always)]
            fn to_value(self) -> u64 {
                self as $unsigned as u64
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn divide(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn negative(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn absolute(self) -> Self {
                let absolute: fn($T) -> $T = $absolute;
                absolute(self)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn to_i128(self) -> i128 {
                self as i128
            }
        }

        impl Integer for $T {
            #[inline(always)]
            fn remainder(self, other: Self) -> Self {
                if other == 0 { self } else { self.wrapping_rem(other) }
            }
            #[inline(always)]
            fn both(self, other: Self) -> Self {
                self & other
            }
            #[inline(always)]
            fn either(self, other: Self) -> Self {
                self | other
            }
            #[inline(always)]
            fn differing(self, other: Self) -> Self {
                self ^ other
            }
            #[inline(always)]
            fn complement(self) -> Self {
                !self
            }
            #[inline(always)]
            fn shift_left(self, by: Self) -> Self {
                self.wrapping_shl(by as u32)
            }
            #[inline(always)]
            fn shift_right(self, by: Self) -> Self {
                self.wrapping_shr(by as u32)
            }
        }
    )* };
}
integers! {
    u8 u8 U8 |x| x;
    u16 u16 U16 |x| x;
    u32 u32 U32 |x| x;
    u64 u64 U64 |x| x;
    i8 u8 I8 i8::wrapping_abs;
    i16 u16 I16 i16::wrapping_abs;
    i32 u32 I32 i32::wrapping_abs;
    i64 u64 I64 i64::wrapping_abs;
}

macro_rules! floats {
    ($($T:ident $bits:ident $Type:ident;)*) => { $(
        impl Number for $T {
            const NUMBER_TYPE: Type = Type::$Type;

            #[inline(always)]
            fn from_value(bits: u64) -> Self {
                Self::from_bits(bits as $bits)
            }
            #[inline(always)]
            fn to_value(self) -> u64 {
                self.to_bits().into()
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn divide(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            fn negative(self) -> Self {
                -self
            }
            #[inline(always)]
            fn absolute(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self.into()
            }
            #[inline(always)]
            fn to_i128(self) -> i128 {
                self as i128
            }
        }
    )* };
}
floats! {
    f32 u32 F32;
    f64 u64 F64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_pass_over_nan_and_take_the_second_zero() {
        assert_eq!((f32::NAN.least(2.0), 2.0_f32.least(f32::NAN)), (2.0, 2.0));
        assert!(f32::NAN.greatest(f32::NAN).is_nan());
        assert!((-0.0_f64).least(0.0).is_sign_positive() && 0.0_f64.greatest(-0.0).is_sign_negative());
    }
}
