//! Tests of operators, casts and methods of all types of numbers.

use crate::harness::{both, map};
use bytemuck::Pod;
use vmarray_kernel::{Float, KernelInteger, KernelNumber, KernelSigned, Own, kernel};

#[kernel(crate = vmarray_kernel)]
fn arithmetic<T: KernelNumber + Pod>(x: &Own<[T; 2]>, out: &mut Own<[T; 8]>) {
    let (a, b) = (x.get()[0], x.get()[1]);
    out.set([a + b, a - b, a * b, a / b, a.min(b), a.max(b), a.clamp(T::ZERO, T::ONE), T::MAX]);
}

#[kernel(crate = vmarray_kernel)]
fn comparisons<T: KernelNumber + Pod>(x: &Own<[T; 2]>, out: &mut Own<u32>) {
    let (a, b) = (x.get()[0], x.get()[1]);
    let mut bits = (a < b) as u32;
    bits = bits << 1 | (a <= b) as u32;
    bits = bits << 1 | (a > b) as u32;
    bits = bits << 1 | (a >= b) as u32;
    bits = bits << 1 | (a == b) as u32;
    bits = bits << 1 | (a != b) as u32;
    bits = bits << 1 | (a < b && b < T::MAX || !(a == b)) as u32;
    bits = bits << 1 | ((a < b) ^ (a == b) | (b > a) & true) as u32;
    out.set(bits);
}

#[kernel(crate = vmarray_kernel)]
fn bits<T: KernelInteger + Pod>(x: &Own<[T; 2]>, out: &mut Own<[T; 8]>) {
    let (a, b) = (x.get()[0], x.get()[1]);
    out.set([a & b, a | b, a ^ b, !a, a << b, a >> b, a % b, a.reverse_bits()]);
}

#[kernel(crate = vmarray_kernel)]
fn counts<T: KernelInteger + Pod>(x: &Own<[T; 2]>, out: &mut Own<[u32; 8]>) {
    let (a, b) = (x.get()[0], x.get()[1]);
    out.set([
        a.count_ones(),
        a.count_zeros(),
        a.leading_zeros(),
        a.trailing_zeros(),
        a.leading_ones(),
        b.trailing_ones(),
        b.is_power_of_two() as u32,
        T::BITS,
    ]);
}

#[kernel(crate = vmarray_kernel)]
fn composed<T: KernelInteger + Pod>(x: &Own<[T; 2]>, out: &mut Own<[T; 8]>) {
    let (a, b) = (x.get()[0], x.get()[1]);
    out.set([
        a.saturating_add(b),
        a.saturating_sub(b),
        a.rem_euclid(b),
        a.div_euclid(b),
        a.rotate_left(b as u32),
        a.rotate_right(b as u32),
        a.swap_bytes(),
        a.pow(b as u32 % 9),
    ]);
}

#[kernel(crate = vmarray_kernel)]
fn signs<T: KernelSigned + Pod>(x: &Own<[T; 2]>, out: &mut Own<[T; 8]>) {
    let (a, b) = (x.get()[0], x.get()[1]);
    out.set([-a, a.abs(), a.signum(), b.signum(), -b.abs(), -(-a), T::MIN, T::ONE]);
}

#[kernel(crate = vmarray_kernel)]
fn products<T: KernelInteger + Pod>(x: &Own<[T; 2]>, out: &mut Own<[T; 8]>) {
    let (a, b) = (x.get()[0], x.get()[1]);
    out.set([
        a.mul_high(b),
        a.wrapping_mul(b),
        a.wrapping_shl(3),
        a.wrapping_shr(5),
        a.wrapping_neg(),
        a.abs_diff(b) as T,
        a.div_ceil(b),
        a.wrapping_div(b),
    ]);
}

#[kernel(crate = vmarray_kernel)]
fn roundings<T: Float + Pod>(x: &Own<[T; 2]>, out: &mut Own<[T; 8]>) {
    let (a, b) = (x.get()[0], x.get()[1]);
    out.set([a.sqrt(), a.floor(), a.ceil(), a.trunc(), a.round(), a.round_ties_even(), a.fract(), b.recip()]);
}

#[kernel(crate = vmarray_kernel)]
fn floats<T: Float + Pod>(x: &Own<[T; 2]>, out: &mut Own<[T; 8]>) {
    let (a, b) = (x.get()[0], x.get()[1]);
    let class = a.is_nan() as u8 + 2 * a.is_finite() as u8 + 4 * a.is_infinite() as u8;
    let sign = b.is_sign_negative() as i8 - b.is_sign_positive() as i8;
    out.set([
        a.mul_add(b, T::ONE),
        a.copysign(b),
        b.powi(7),
        b.powi(-2),
        class as T,
        // Ignore the sign of a NaN, which is unspecified.
        if b.is_nan() { T::ZERO } else { sign as T },
        if a.is_nan() { T::ZERO } else { T::from_bits(a.to_bits()) },
        a.abs().sqrt(),
    ]);
}

/// Compares both forms of a kernel that is generic over a number, for some types.
macro_rules! for_types {
    ($kernel:ident -> $Out:ty: $($T:ident)*) => { $( map::<$kernel<$T>, [$T; 2], $Out>(); )* };
    ($kernel:ident: $($T:ident)*) => { $( map::<$kernel<$T>, [$T; 2], [$T; 8]>(); )* };
}

#[test]
fn operators_of_all_types() {
    for_types!(arithmetic: u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64);
    for_types!(comparisons -> u32: u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64);
    for_types!(bits: u8 u16 u32 u64 usize i8 i16 i32 i64 isize);
    for_types!(signs: i8 i16 i32 i64 isize f32 f64);
}

#[test]
fn methods_of_integers() {
    for_types!(counts -> [u32; 8]: u8 u16 u32 u64 usize i8 i16 i32 i64 isize);
    for_types!(composed: u8 u16 u32 u64 usize i8 i16 i32 i64 isize);
    for_types!(products: u8 u16 u32 u64 usize i8 i16 i32 i64 isize);
}

#[test]
fn methods_of_floats() {
    for_types!(roundings: f32 f64);
    for_types!(floats: f32 f64);
}

/// Functions composed from the rule table equal Rust's own functions.
#[test]
fn composed_methods_match_rust() {
    use vmarray_kernel::k::derived_math as k;
    for (a, b) in crate::harness::random::<[i16; 2]>(3, 5000).into_iter().map(|[a, b]| (a, b)) {
        assert_eq!(k::signum(a), a.signum());
        assert_eq!(k::saturating_add(a, b), a.saturating_add(b));
        assert_eq!(k::saturating_sub(a, b), a.saturating_sub(b));
        assert_eq!(k::abs_diff(a, b), a.abs_diff(b));
        assert_eq!(k::unsigned_abs(a), a.unsigned_abs());
        assert_eq!((k::rotate_left(a, 5), k::rotate_right(a, 21)), (a.rotate_left(5), a.rotate_right(21)));
        assert_eq!((k::rotate_left(a, 0), k::swap_bytes(a)), (a, a.swap_bytes()));
        assert_eq!(k::pow(a, 5), a.wrapping_pow(5));
        if b != 0 {
            assert_eq!(k::rem_euclid(a, b), a.wrapping_rem_euclid(b));
            assert_eq!(k::div_euclid(a, b), a.wrapping_div_euclid(b));
        }
        let (a, b) = (a as u16, b as u16);
        assert_eq!(k::saturating_sub(a, b), a.saturating_sub(b));
        if b != 0 {
            assert_eq!(k::div_ceil(a, b), a.div_ceil(b));
        }
    }
    for (a, b) in crate::harness::random::<[f32; 2]>(4, 5000).into_iter().map(|[a, b]| (a, b)) {
        let same =
            |one: f32, other: f32| one.to_bits() == other.to_bits() || (one.is_nan() && other.is_nan());
        assert!(same(k::round(a), a.round()), "{a}");
        assert!(same(k::signum(a), a.signum()) && same(k::fract(a), a.fract()), "{a}");
        assert!(same(k::copysign(a, b), a.copysign(b)));
        assert!(same(k::clamp(a, -1.0, 1.0), a.clamp(-1.0, 1.0)));
        assert_eq!((k::is_nan(a), k::is_finite(a)), (a.is_nan(), a.is_finite()));
        assert_eq!((k::is_infinite(a), k::is_sign_negative(a)), (a.is_infinite(), a.is_sign_negative()));
    }
}

#[test]
fn casts_between_all_types() {
    both!(|x: f64| -> [f64; 11] {
        [
            x as u8 as f64,
            x as i8 as f64,
            x as u16 as f64,
            x as i16 as f64,
            x as u32 as f64,
            x as i32 as f64,
            x as u64 as f64,
            x as i64 as f64,
            x as usize as f64,
            x as isize as f32 as f64,
            (x > 0.0) as u8 as f64,
        ]
    });
    both!(|x: i64| -> [i64; 8] {
        [
            x as u8 as i64,
            x as i8 as i64,
            x as u16 as i64,
            x as i16 as i64,
            x as u32 as i64,
            x as i32 as i64,
            x as f32 as i64,
            x as f64 as i64,
        ]
    });
    both!(|x: u64| -> [f32; 3] { [x as f32, x as f64 as f32, (x as i64 - 1) as f32] });
    both!(|x: i8| -> [u64; 2] { [x as u64, x as u8 as u64] });
}

#[test]
fn literals_have_the_types_that_rust_infers() {
    let out = both!(|x: u8| -> [u64; 6] {
        let a = 300;
        let b = -1;
        let c = 0xFF_u8 + x;
        let d = b'a' as u64;
        let e = 1e3;
        let f = 18_446_744_073_709_551_615 as u64;
        [a as u64, b as u64, c as u64, d, e as u64, f]
    });
    assert_eq!(out[0][..2], [300, u64::MAX]);
    assert_eq!(out[0][3..], [97, 1000, u64::MAX]);
    let out = both!(|x: f32| -> [f32; 3] { [0.1, 16777217.0, if x > 2. { 1e-45 } else { -0.0 }] });
    assert_eq!(out[0][..2], [0.1, 16777216.0]);
    both!(|x: i32| -> [i64; 4] {
        [-3000000000 as i64, -9223372036854775808, (x as i64) * -3, i32::MAX as i64 - -1]
    });
}

#[test]
fn functions_of_types() {
    both!(|x: f32| -> [f32; 4] {
        [
            f32::max(x, 1.0),
            f32::from_bits(x.abs().min(1e9).to_bits() + 1),
            f32::abs(x),
            f32::mul_add(x, x, 0.5),
        ]
    });
    both!(|x: u32| -> [u32; 3] { [u32::min(x, 7), u32::wrapping_add(x, u32::MAX), u32::count_ones(x)] });
}
