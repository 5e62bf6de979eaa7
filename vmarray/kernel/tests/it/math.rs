//! Tests of elementary functions: equal bits in both forms, errors within the documented bounds, special
//! values.

use crate::harness::{map, random};
use bytemuck::Pod;
use vmarray_kernel::k::derived_math as k;
use vmarray_kernel::{Float, Own, kernel};

#[kernel(crate = vmarray_kernel)]
fn powers<T: Float + Pod>(x: &Own<[T; 2]>, out: &mut Own<[T; 8]>) {
    let (a, b) = (x.get()[0], x.get()[1]);
    out.set([a.exp(), a.exp2(), a.exp_m1(), a.ln(), a.ln_1p(), a.log2(), a.log10(), a.powf(b)]);
}

#[kernel(crate = vmarray_kernel)]
fn angles<T: Float + Pod>(x: &Own<[T; 2]>, out: &mut Own<[T; 8]>) {
    let (a, b) = (x.get()[0], x.get()[1]);
    let part = a.fract();
    out.set([a.sin(), a.cos(), a.tan(), part.asin(), part.acos(), a.atan(), a.atan2(b), a.hypot(b)]);
}

#[kernel(crate = vmarray_kernel)]
fn hyperbolic<T: Float + Pod>(x: &Own<[T; 2]>, out: &mut Own<[T; 8]>) {
    let (a, b) = (x.get()[0], x.get()[1]);
    out.set([a.sinh(), a.cosh(), a.tanh(), a.asinh(), a.acosh(), b.fract().atanh(), b.cbrt(), b.rsqrt()]);
}

#[test]
fn both_forms_give_the_same_bits() {
    map::<powers<f32>, [f32; 2], [f32; 8]>();
    map::<powers<f64>, [f64; 2], [f64; 8]>();
    map::<angles<f32>, [f32; 2], [f32; 8]>();
    map::<angles<f64>, [f64; 2], [f64; 8]>();
    map::<hyperbolic<f32>, [f32; 2], [f32; 8]>();
    map::<hyperbolic<f64>, [f64; 2], [f64; 8]>();
}

/// Step between tested bit patterns; 1 if `VMARRAY_ALL_FLOATS` is set, which takes hours.
fn stride() -> usize {
    if std::env::var_os("VMARRAY_ALL_FLOATS").is_some() { 1 } else { 20_011 }
}

/// Error of a number in units in the last place. Zeros have signs; a NaN is correct if a NaN is expected.
fn ulps(got: f32, exact: f64) -> f64 {
    if got.is_nan() || exact.is_nan() || exact == 0.0 || exact.is_infinite() {
        let rounded = exact as f32;
        let is_right = got.to_bits() == rounded.to_bits() || (got.is_nan() && exact.is_nan());
        return if is_right { 0.0 } else { f64::INFINITY };
    }
    // Beyond the largest number, compare as if the exponent range were larger.
    let got = if got.is_infinite() { 2_f64.powi(128).copysign(got.into()) } else { got.into() };
    let exponent = (exact.abs().to_bits() >> 52) as i32 - 1023;
    (got - exact.clamp(-(2_f64.powi(128)), 2_f64.powi(128))).abs()
        / 2_f64.powi(exponent.clamp(-126, 127) - 23)
}

#[test]
fn errors_are_within_the_documented_bounds() {
    macro_rules! check {
        ($($name:ident $most:literal;)*) => { $(
            for bits in (0..=u32::MAX).step_by(stride()) {
                let x = f32::from_bits(bits);
                let (got, exact) = (k::$name(x), f64::from(x).$name());
                assert!(ulps(got, exact) <= $most, "{}({x:e}) is {exact:e}, not {got:e}", stringify!($name));
            }
        )* };
    }
    check! {
        exp 1.0; exp2 1.0; ln 1.0; ln_1p 1.0; log2 1.0; log10 1.0; cbrt 1.0; sin 1.0; cos 1.0; asin 1.0; acos 1.0;
        exp_m1 1.5; atan 2.0; asinh 2.0; acosh 2.0; atanh 2.0; tan 2.5; sinh 2.5; cosh 2.5; tanh 2.5;
    }
    for [x, y] in random::<[f32; 2]>(11, 400_000) {
        let x = if x.is_nan() { f32::NAN } else { x };
        let (wide, by) = (f64::from(x), f64::from(y));
        assert!(ulps(k::powf(x, y), wide.powf(by)) <= 1.5, "{x:e} to the power of {y:e}");
        assert!(ulps(k::atan2(x, y), wide.atan2(by)) <= 2.5, "atan2({x:e}, {y:e})");
        assert!(ulps(k::hypot(x, y), wide.hypot(by)) <= 1.0, "hypot({x:e}, {y:e})");
        assert!(ulps(k::rsqrt(x.abs()), wide.abs().sqrt().recip()) <= 1.5, "rsqrt({x:e})");
    }
}

/// The system's functions are within one unit, so the difference may be one more than the documented bound.
#[test]
fn doubles_are_close_to_the_systems_functions() {
    let close = |got: f64, other: f64, most: u64| {
        got == other
            || (got.is_nan() && other.is_nan())
            || got.to_bits().abs_diff(other.to_bits()) <= most && got.is_finite() == other.is_finite()
    };
    macro_rules! check {
        ($($name:ident $most:literal;)*) => { $(
            for x in random::<f64>(12, 20_000) {
                let (got, other) = (k::$name(x), x.$name());
                assert!(close(got, other, $most), "{}({x:e}) is {other:e}, not {got:e}", stringify!($name));
            }
        )* };
    }
    check! {
        exp 2; exp2 2; ln 2; ln_1p 2; log2 2; log10 3; cbrt 2; sin 2; cos 2; asin 2; acos 2;
        exp_m1 3; atan 3; tan 3; sinh 4; cosh 4; tanh 4;
    }
    for [x, y] in random::<[f64; 2]>(13, 100_000) {
        // Powers of signalling NaNs have other definitions.
        let x = if x.is_nan() { f64::NAN } else { x };
        assert!(close(k::powf(x, y), x.powf(y), 2), "{x:e} to the power of {y:e}");
        assert!(close(k::atan2(x, y), x.atan2(y), 3), "atan2({x:e}, {y:e})");
        assert!(close(k::hypot(x, y), x.hypot(y), 2), "hypot({x:e}, {y:e})");
        // Test only where the standard library is exact: its functions lose precision elsewhere.
        let (above, below) = (x.abs().min(1e100) + 2.0, x.fract().abs());
        assert!(close(k::acosh(above), above.acosh(), 4), "acosh({above:e})");
        assert!(close(k::asinh(above), above.asinh(), 4), "asinh({above:e})");
        assert!(close(k::atanh(below), below.atanh(), 4), "atanh({below:e})");
    }
}

/// Angles next to multiples of π/2, where most of the bits cancel: reference values by mpmath with 1400 bits.
#[test]
fn angles_near_multiples_of_half_pi_keep_their_bits() {
    assert_eq!(k::cos(6381956970095103.0 * 2_f64.powi(797)), -4.687165924254628e-19);
    assert_eq!(k::sin(1.6367e14_f32), (1.6367e14_f32 as f64).sin() as f32);
    assert_eq!(k::sin(22_f64), -0.008851309290403876);
    assert_eq!(k::sin(f64::MAX), 0.004961954789184062);
}
