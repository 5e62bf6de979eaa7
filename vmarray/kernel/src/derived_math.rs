//! Methods of numbers for kernels, such as `abs_diff` and `powi`, composed of basic operations. They are
//! kernel functions, so the host and all devices run the same source.
//!
//! The methods return the results of Rust's methods of the same names, but never panic: sums wrap, and
//! division by zero follows the [rule table](backend_api::expr).

#[cfg(feature = "num-complex")]
pub use crate::complex::*;
pub use crate::math::*;
use crate::number::{Float, KernelInteger, KernelNumber, KernelSigned};
use vmarray_macros::kernel;

#[kernel(crate = crate)]
#[inline(always)]
pub fn clamp<T: KernelNumber>(x: T, low: T, high: T) -> T {
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn abs_diff<T: KernelInteger>(x: T, y: T) -> T::Unsigned {
    let larger = if x > y { x - y } else { y - x };
    larger as T::Unsigned
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn unsigned_abs<T: KernelInteger + KernelSigned>(x: T) -> T::Unsigned {
    x.abs() as T::Unsigned
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn signum<T: KernelSigned>(x: T) -> T {
    if x > T::ZERO {
        T::ONE
    } else if x < T::ZERO {
        -T::ONE
    } else if T::IS_FLOAT && x == T::ZERO {
        // For x = 0 or -0, the quotient 1 / x is infinite and has the sign of x.
        if T::ONE / x > T::ZERO { T::ONE } else { -T::ONE }
    } else {
        x
    }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn copysign<T: Float>(x: T, sign: T) -> T {
    let bits = (x.to_bits() & !T::SIGN) | (sign.to_bits() & T::SIGN);
    T::from_bits(bits)
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn round<T: Float>(x: T) -> T {
    let whole = x.trunc();
    // Round away from zero from 1/2 on. The subtraction is exact, so the comparison is exact as well.
    if (x - whole).abs() >= T::HALF { whole + T::ONE.copysign(x) } else { whole }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn fract<T: Float>(x: T) -> T {
    x - x.trunc()
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn recip<T: Float>(x: T) -> T {
    T::ONE / x
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn is_nan<T: Float>(x: T) -> bool {
    x != x
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn is_finite<T: Float>(x: T) -> bool {
    x.abs() < T::INFINITY
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn is_infinite<T: Float>(x: T) -> bool {
    x.abs() == T::INFINITY
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn is_sign_negative<T: Float>(x: T) -> bool {
    (x.to_bits() & T::SIGN) == T::SIGN
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn is_sign_positive<T: Float>(x: T) -> bool {
    (x.to_bits() & T::SIGN) != T::SIGN
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn is_negative<T: KernelInteger + KernelSigned>(x: T) -> bool {
    x < T::ZERO
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn is_positive<T: KernelInteger + KernelSigned>(x: T) -> bool {
    x > T::ZERO
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn is_power_of_two<T: KernelInteger>(x: T) -> bool {
    x.count_ones() == 1
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn count_zeros<T: KernelInteger>(x: T) -> u32 {
    (!x).count_ones()
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn leading_ones<T: KernelInteger>(x: T) -> u32 {
    (!x).leading_zeros()
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn trailing_ones<T: KernelInteger>(x: T) -> u32 {
    (!x).trailing_zeros()
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn rotate_left<T: KernelInteger>(x: T, by: u32) -> T {
    let bits = x as T::Unsigned;
    // Shifts take their width modulo the number of bits, so a rotation by 0 is correct too.
    ((bits << by) | (bits >> (T::BITS - by % T::BITS))) as T
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn rotate_right<T: KernelInteger>(x: T, by: u32) -> T {
    let bits = x as T::Unsigned;
    ((bits >> by) | (bits << (T::BITS - by % T::BITS))) as T
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn swap_bytes<T: KernelInteger>(x: T) -> T {
    let mut swapped = T::ZERO;
    for byte in 0..T::BITS / 8 {
        swapped = (swapped << 8) | ((x >> (8 * byte)) & (255 as T));
    }
    swapped
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn saturating_add<T: KernelInteger>(x: T, y: T) -> T {
    let sum = x + y;
    if y >= T::ZERO {
        if sum < x { T::MAX } else { sum }
    } else if sum > x {
        T::MIN
    } else {
        sum
    }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn saturating_sub<T: KernelInteger>(x: T, y: T) -> T {
    let difference = x - y;
    if y >= T::ZERO {
        if difference > x { T::MIN } else { difference }
    } else if difference < x {
        T::MAX
    } else {
        difference
    }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn rem_euclid<T: KernelInteger>(x: T, by: T) -> T {
    let rest = x % by;
    if rest >= T::ZERO {
        rest
    } else if by < T::ZERO {
        rest - by
    } else {
        rest + by
    }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn div_euclid<T: KernelInteger>(x: T, by: T) -> T {
    let quotient = x / by;
    if x % by >= T::ZERO {
        quotient
    } else if by > T::ZERO {
        quotient - T::ONE
    } else {
        quotient + T::ONE
    }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn div_ceil<T: KernelInteger>(x: T, by: T) -> T {
    let (quotient, rest) = (x / by, x % by);
    let is_above = (rest > T::ZERO && by > T::ZERO) || (rest < T::ZERO && by < T::ZERO);
    if is_above { quotient + T::ONE } else { quotient }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn pow<T: KernelInteger>(x: T, exponent: u32) -> T {
    let (mut power, mut square, mut left) = (T::ONE, x, exponent);
    while left != 0 {
        if left & 1 == 1 {
            power *= square;
        }
        square *= square;
        left >>= 1;
    }
    power
}

/// Raises `x` to the power `exponent`, by repeated squaring from the exponent's lowest bit up. For a negative
/// exponent, returns the reciprocal of the positive power.
#[kernel(crate = crate)]
#[inline(always)]
pub fn powi<T: Float>(x: T, exponent: i32) -> T {
    let (mut power, mut square, mut left) = (T::ONE, x, exponent.unsigned_abs());
    while left != 0 {
        if left & 1 == 1 {
            power *= square;
        }
        square *= square;
        left >>= 1;
    }
    if exponent < 0 { T::ONE / power } else { power }
}
