//! Elementary functions of floats for kernels, such as `exp` and `sin`, composed of basic operations. They
//! are kernel functions, so the host and all devices compute the same bits.
//!
//! No function uses fused multiply-add. Each function reduces its argument to a short interval. If the
//! rounding error of the reduced argument matters, a second float holds the error. The polynomials have
//! minimax coefficients, computed by Sollya's `fpminimax`. Double-word products and sums follow Dekker and
//! Knuth; `ln` follows fdlibm; `sin`, `cos` and `tan` multiply by the significant bits of 2/π in integers
//! (Payne, Hanek).
//!
//! | function | maximum error in ulps |
//! |---|---|
//! | `exp exp2 ln ln_1p log2 log10 cbrt hypot sin cos asin acos` | 1 |
//! | `exp_m1 powf rsqrt` | 1.5 |
//! | `atan asinh acosh atanh` | 2 |
//! | `tan atan2 sinh cosh tanh` | 2.5 |
//!
//! Special values follow IEEE 754, 9.2: `pow(x, 0)` is 1 for every `x`, and so on.

#![expect(clippy::approx_constant, reason = "constants are split: each has a second number")]

use crate::number::Float;
use vmarray_macros::kernel;

/// The bits of 2/π after the binary point, preceded by 64 zeros.
const TWO_OVER_PI: [u64; 21] = [
    0x0000000000000000,
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
    0xF0CFBC209AF4361D,
];

/// Number of stored bits of a float's significand.
#[kernel(crate = crate)]
#[inline(always)]
fn digits<T: Float>() -> u32 {
    if T::BITS == 32 { 23 } else { 52 }
}

/// Bias of the exponent that a float stores.
#[kernel(crate = crate)]
#[inline(always)]
fn bias<T: Float>() -> i32 {
    if T::BITS == 32 { 127 } else { 1023 }
}

#[kernel(crate = crate)]
#[inline(always)]
fn nan<T: Float>() -> T {
    T::INFINITY - T::INFINITY
}

/// `ln 2` as the sum of two numbers. The product of the first number and an exponent is exact.
#[kernel(crate = crate)]
#[inline(always)]
fn ln_2_for_exponents<T: Float>() -> (T, T) {
    if T::BITS == 32 {
        (0.69317626953125 as T, -2.9088971132296138e-5 as T)
    } else {
        (0.6931471805601177 as T, -1.7239444525614835e-13 as T)
    }
}

#[kernel(crate = crate)]
#[inline(always)]
fn ln_2<T: Float>() -> (T, T) {
    if T::BITS == 32 {
        (0.6931471824645996 as T, -1.9046542121259336e-9 as T)
    } else {
        (0.6931471805599453 as T, 2.3190468138462996e-17 as T)
    }
}

#[kernel(crate = crate)]
#[inline(always)]
fn half_pi<T: Float>() -> (T, T) {
    if T::BITS == 32 {
        (1.5707963705062866 as T, -4.371138828673793e-8 as T)
    } else {
        (1.5707963267948966 as T, 6.123233995736766e-17 as T)
    }
}

/// `2 / ln 2`, as the sum of two numbers.
#[kernel(crate = crate)]
#[inline(always)]
fn two_over_ln_2<T: Float>() -> (T, T) {
    if T::BITS == 32 {
        (2.885390043258667 as T, 3.851926067000022e-8 as T)
    } else {
        (2.8853900817779268 as T, 4.0710547481862066e-17 as T)
    }
}

/// A third of `2 / ln 2`, as the sum of two numbers.
#[kernel(crate = crate)]
#[inline(always)]
fn two_thirds_over_ln_2<T: Float>() -> (T, T) {
    if T::BITS == 32 {
        (0.9617967009544373 as T, -7.028461812552678e-9 as T)
    } else {
        (0.9617966939259756 as T, 5.0577616648125907e-17 as T)
    }
}

#[kernel(crate = crate)]
#[inline(always)]
fn log10_2<T: Float>() -> (T, T) {
    if T::BITS == 32 {
        (0.3010300099849701 as T, -1.432098883924482e-8 as T)
    } else {
        (0.3010299956639812 as T, -2.8037281277851704e-18 as T)
    }
}

/// Evaluates a polynomial by Horner's rule. The first coefficient belongs to the lowest power.
#[kernel(crate = crate)]
#[inline(always)]
fn polynomial<T: Float, const N: usize>(x: T, coefficients: [T; N]) -> T {
    let mut sum = coefficients[N - 1];
    for k in (0..N - 1).rev() {
        sum = coefficients[k] + x * sum;
    }
    sum
}

/// Polynomial approximation of `(e^x - 1 - x) / x²` for `|x| <= ln 2 / 2`.
#[kernel(crate = crate)]
#[inline(always)]
fn exp_rest<T: Float>(x: T) -> T {
    if T::BITS == 32 {
        polynomial(x as f32, [0.5, 0.16666667, 0.04166651, 0.008333177, 0.0013930502, 0.00019972329]) as T
    } else {
        polynomial(
            x as f64,
            [
                0.5,
                0.1666666666666667,
                0.04166666666666668,
                0.008333333333325896,
                0.0013888888888876985,
                0.00019841269875410617,
                2.4801587342422164e-05,
                2.7557254823865368e-06,
                2.755725700569915e-07,
                2.5105411355119295e-08,
                2.0920349971014473e-09,
            ],
        ) as T
    }
}

/// Polynomial approximation of `(2^x - 1 - x ln 2) / x²` for `|x| <= 1/2`.
#[kernel(crate = crate)]
#[inline(always)]
fn exp2_rest<T: Float>(x: T) -> T {
    if T::BITS == 32 {
        polynomial(x as f32, [0.2402265, 0.05550411, 0.00961809, 0.0013333387, 0.00015450892, 1.533107e-5])
            as T
    } else {
        polynomial(
            x as f64,
            [
                0.24022650695910072,
                0.0555041086648216,
                0.00961812910762772,
                0.0013333558146415914,
                0.00015403530395069034,
                1.5252733831061691e-05,
                1.3215485257129643e-06,
                1.0178061864734319e-07,
                7.05551758257816e-09,
                4.4550557013803815e-10,
                2.4827505128149296e-11,
            ],
        ) as T
    }
}

/// Polynomial approximation of `(ln((1 + s) / (1 - s)) / s - 2) / x`, for `x = s²`.
#[kernel(crate = crate)]
#[inline(always)]
fn ln_rest<T: Float>(x: T) -> T {
    if T::BITS == 32 {
        polynomial(x as f32, [0.6666667, 0.39999554, 0.28589356, 0.2258333]) as T
    } else {
        polynomial(
            x as f64,
            [
                0.666666666666667,
                0.3999999999989944,
                0.28571428626122075,
                0.22222211105974948,
                0.1818289129407619,
                0.1533165059457997,
                0.14617298134208428,
            ],
        ) as T
    }
}

/// Polynomial term of [`log2_of`] divided by `x²`, for `x = s²`.
#[kernel(crate = crate)]
#[inline(always)]
fn log2_rest<T: Float>(x: T) -> T {
    if T::BITS == 32 {
        polynomial(x as f32, [0.57707804, 0.41219208, 0.3208901, 0.26531026]) as T
    } else {
        polynomial(
            x as f64,
            [
                0.5770780163555853,
                0.4121985831112073,
                0.3205988979438697,
                0.26230819523749194,
                0.22195247541666707,
                0.1923944985282332,
                0.1685696585690843,
                0.17198972087237913,
            ],
        ) as T
    }
}

/// Polynomial approximation of `(sin(s) / s - 1) / x`, for `x = s²` and `s <= π/4`.
#[kernel(crate = crate)]
#[inline(always)]
fn sin_rest<T: Float>(x: T) -> T {
    if T::BITS == 32 {
        polynomial(x as f32, [-0.16666667, 0.008333397, -0.00019861295, 2.9217729e-6]) as T
    } else {
        polynomial(
            x as f64,
            [
                -0.16666666666666666,
                0.008333333333332912,
                -0.00019841269840720392,
                2.755731891653278e-06,
                -2.5052024405669803e-08,
                1.604791836817969e-10,
                -7.057257115128624e-13,
            ],
        ) as T
    }
}

/// Polynomial approximation of `(cos(s) - 1 + x / 2) / x²`, for `x = s²`.
#[kernel(crate = crate)]
#[inline(always)]
fn cos_rest<T: Float>(x: T) -> T {
    if T::BITS == 32 {
        polynomial(x as f32, [0.041666668, -0.0013889049, 2.4852772e-5, -3.213179e-7]) as T
    } else {
        polynomial(
            x as f64,
            [
                0.041666666666666664,
                -0.0013888888888887838,
                2.480158730022244e-05,
                -2.755731846417182e-07,
                2.0876551179236567e-09,
                -1.144392312986646e-11,
                3.422084724115108e-14,
            ],
        ) as T
    }
}

/// Polynomial approximation of `(atan(s) / s - 1) / x`, for `x = s²` and `s <= tan(π/8)`.
#[kernel(crate = crate)]
#[inline(always)]
fn atan_rest<T: Float>(x: T) -> T {
    if T::BITS == 32 {
        polynomial(x as f32, [-0.33333334, 0.20000099, -0.14288092, 0.111235484, -0.089268565, 0.0568417])
            as T
    } else {
        polynomial(
            x as f64,
            [
                -0.3333333333333333,
                0.1999999999999892,
                -0.14285714285526024,
                0.11111111095820894,
                -0.09090908391474449,
                0.07692287792596426,
                -0.0666629416704756,
                0.05877623471857937,
                -0.052219507183052745,
                0.045168060748689065,
                -0.03375919624478573,
                0.015462801966488318,
            ],
        ) as T
    }
}

/// Polynomial approximation of `(asin(s) / s - 1) / x`, for `x = s² <= 1/4`.
#[kernel(crate = crate)]
#[inline(always)]
fn asin_rest<T: Float>(x: T) -> T {
    if T::BITS == 32 {
        polynomial(x as f32, [0.16666666, 0.07500153, 0.044585444, 0.031234162, 0.016596848, 0.034515806])
            as T
    } else {
        polynomial(
            x as f64,
            [
                0.16666666666666666,
                0.0750000000000054,
                0.044642857141932696,
                0.030381944517746562,
                0.022372155825279027,
                0.01735285516638891,
                0.01396317090330575,
                0.011573023700565468,
                0.009572740792542472,
                0.009574366864511205,
                0.0021450493925077646,
                0.02161736606482793,
                -0.022009642911422028,
                0.03126188846067202,
            ],
        ) as T
    }
}

/// Returns `a + b` and its rounding error, for `|a| >= |b|`.
#[kernel(crate = crate)]
#[inline(always)]
fn sum<T: Float>(a: T, b: T) -> (T, T) {
    let sum = a + b;
    (sum, b - (sum - a))
}

/// Splits a float into the upper and the lower half of its significand.
#[kernel(crate = crate)]
#[inline(always)]
fn halves<T: Float>(a: T) -> (T, T) {
    let factor = if T::BITS == 32 { 4097.0 as T } else { 134217729.0 as T };
    let scaled = a * factor;
    let upper = scaled - (scaled - a);
    (upper, a - upper)
}

/// Returns `a * b` and its rounding error.
#[kernel(crate = crate)]
#[inline(always)]
fn product<T: Float>(a: T, b: T) -> (T, T) {
    let product = a * b;
    let ((a1, a2), (b1, b2)) = (halves(a), halves(b));
    (product, a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2))
}

/// Returns `2^by`, which must be a normal number.
#[kernel(crate = crate)]
#[inline(always)]
fn power_of_two<T: Float>(by: i32) -> T {
    T::from_bits(((by + bias::<T>()) as T::Bits) << digits::<T>())
}

/// Returns `x * 2^by`, rounded once if `x` is near 1.
#[kernel(crate = crate)]
#[inline(always)]
fn scaled<T: Float>(x: T, by: i32) -> T {
    let half = by >> 1;
    x * power_of_two::<T>(half) * power_of_two::<T>(by - half)
}

/// Returns `k` and `e^r - 1` for `x = k ln 2 + r`; `e^x` must be within the range of exponents.
#[kernel(crate = crate)]
#[inline(always)]
fn exp_parts<T: Float>(x: T) -> (i32, T) {
    let (ln_2, rest) = ln_2_for_exponents::<T>();
    let k = (x * (1.4426950408889634 as T)).round_ties_even();
    let (upper, lower) = (x - k * ln_2, k * rest);
    let r = upper - lower;
    let rest = (upper - r) - lower;
    (k as i32, r + (rest + r * r * exp_rest(r)))
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn exp<T: Float>(x: T) -> T {
    let limit = bias::<T>() as T;
    let (k, y) = exp_parts(x.clamp(-limit, limit));
    if x == x { scaled(T::ONE + y, k) } else { x }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn exp_m1<T: Float>(x: T) -> T {
    let (k, y) = exp_parts(x.clamp(-(60.0 as T), bias::<T>() as T));
    let larger = if k > 60 { T::ONE } else { T::ONE - power_of_two::<T>(-k) };
    if !(x == x) || x == T::ZERO {
        x
    } else if k == 0 {
        y
    } else {
        scaled(larger + y, k)
    }
}

/// Returns `2^(x + rest)`; `rest` must be much smaller than `x`.
#[kernel(crate = crate)]
#[inline(always)]
fn exp2_of<T: Float>(x: T, rest: T) -> T {
    let (ln_2, ln_2_rest) = ln_2::<T>();
    let k = x.round_ties_even();
    let r = (x - k) + rest;
    let r_rest = rest - (r - (x - k));
    let y = r * ln_2 + (r_rest * ln_2 + r * ln_2_rest + r * r * exp2_rest(r));
    scaled(T::ONE + y, k as i32)
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn exp2<T: Float>(x: T) -> T {
    let limit = (2 * bias::<T>()) as T;
    if x == x { exp2_of(x.clamp(-limit, limit), T::ZERO) } else { x }
}

/// Returns `m` and `k` with `x = m * 2^k` and `m` from √½ to √2, for `x` above zero.
#[kernel(crate = crate)]
#[inline(always)]
fn split<T: Float>(x: T) -> (T, i32) {
    let digits = digits::<T>();
    let smallest_normal = power_of_two::<T>(1 - bias::<T>());
    let is_small = x < smallest_normal;
    let (x, added) =
        if is_small { (x * power_of_two::<T>(digits as i32 + 1), digits as i32 + 1) } else { (x, 0) };
    let half = if T::BITS == 32 { 0x3F3504F3_i64 } else { 0x3FE6A09E667F3BCD_i64 };
    let bits = x.to_bits() as i64;
    let k = (bits - half) >> digits;
    (T::from_bits((bits - (k << digits)) as T::Bits), k as i32 - added)
}

/// Returns `ln(m * 2^k * (1 + rest))` for `m` from √½ to √2.
#[kernel(crate = crate)]
#[inline(always)]
fn ln_of<T: Float>(m: T, k: i32, rest: T) -> T {
    let (ln_2, ln_2_rest) = ln_2_for_exponents::<T>();
    let (f, k) = (m - T::ONE, k as T);
    let s = f / (2.0 as T + f);
    let z = s * s;
    let half_square = T::HALF * f * f;
    k * ln_2 - ((half_square - (s * (half_square + z * ln_rest(z)) + (k * ln_2_rest + rest))) - f)
}

/// Returns the logarithm of `x`: `value` for a positive finite number, else the special value of zero,
/// infinity, a negative number or NaN.
#[kernel(crate = crate)]
#[inline(always)]
fn logarithm<T: Float>(x: T, value: T) -> T {
    if x > T::ZERO && x < T::INFINITY {
        value
    } else if x == T::ZERO {
        -T::INFINITY
    } else if x == T::INFINITY {
        x
    } else {
        nan::<T>()
    }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn ln<T: Float>(x: T) -> T {
    let (m, k) = split(x);
    logarithm(x, ln_of(m, k, T::ZERO))
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn ln_1p<T: Float>(x: T) -> T {
    let u = T::ONE + x;
    // Compute the rounding error of u = 1 + x. The difference of u and the larger operand is exact.
    let rest = if x < T::ONE { x - (u - T::ONE) } else { T::ONE - (u - x) };
    let (m, k) = split(u);
    if x == T::ZERO { x } else { logarithm(u, ln_of(m, k, rest / u)) }
}

/// Returns the logarithm to base 2 of a positive number, as the sum of two numbers.
#[kernel(crate = crate)]
#[inline(always)]
fn log2_of<T: Float>(x: T) -> (T, T) {
    let (m, k) = split(x);
    let (c, c_rest) = two_over_ln_2::<T>();
    let (third, third_rest) = two_thirds_over_ln_2::<T>();
    let f = m - T::ONE;
    // Let s = f / (2 + f) and z = s². The rests hold the rounding errors.
    let (d, d_rest) = sum(2.0 as T, f);
    let s = f / d;
    let (back, back_rest) = product(s, d);
    let s_rest = (((f - back) - back_rest) - s * d_rest) / d;
    let (z, z_rest) = product(s, s);
    let z_rest = z_rest + (s + s) * s_rest;
    // Compute the sum c + c / 3 * z + …, then multiply it by s.
    let (w, w_rest) = product(third, z);
    let w_rest = w_rest + (third * z_rest + third_rest * z + z * z * log2_rest(z));
    let (a, a_rest) = sum(c, w);
    let a_rest = a_rest + (c_rest + w_rest);
    let (l, l_rest) = product(s, a);
    let l_rest = l_rest + (s * a_rest + s_rest * a);
    let (log, rest) = sum(k as T, l);
    sum(log, rest + l_rest)
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn log2<T: Float>(x: T) -> T {
    let (log, _) = log2_of(x);
    logarithm(x, log)
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn log10<T: Float>(x: T) -> T {
    let (log, rest) = log2_of(x);
    let (factor, factor_rest) = log10_2::<T>();
    let (value, value_rest) = product(log, factor);
    logarithm(x, value + (value_rest + (log * factor_rest + rest * factor)))
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn powf<T: Float>(x: T, y: T) -> T {
    let (base, limit) = (x.abs(), power_of_two::<T>(70));
    let (log, rest) = log2_of(base);
    // Clamp `y`, because its product with the logarithm must stay finite. At the limit the power already
    // overflows or underflows, unless `log` is 0.
    let by = y.clamp(-limit, limit);
    let (power, power_rest) = product(log, by);
    let power_rest = power_rest + rest * by;
    let most = (2 * bias::<T>()) as T;
    let is_within = power.abs() < most;
    let (power, power_rest) =
        if is_within { (power, power_rest) } else { (power.clamp(-most, most), T::ZERO) };
    let of_base = if base == T::ZERO || base == T::INFINITY {
        if (base == T::ZERO) == (y < T::ZERO) { T::INFINITY } else { T::ZERO }
    } else {
        exp2_of(power, power_rest)
    };
    let is_whole = y.trunc() == y;
    let is_odd = is_whole && y.abs() < power_of_two::<T>(digits::<T>() as i32 + 1) && (y as i64) & 1 == 1;
    if x == T::ONE || y == T::ZERO {
        T::ONE
    } else if !(x == x) || !(y == y) {
        nan::<T>()
    } else if base == T::ONE && y.abs() == T::INFINITY {
        T::ONE
    } else if x < T::ZERO && base < T::INFINITY && !is_whole {
        nan::<T>()
    } else if is_odd {
        of_base.copysign(x)
    } else {
        of_base
    }
}

/// Subtracts the nearest multiple of π/2 from `x`. Returns the difference as the sum of two numbers, and the
/// multiple modulo 4.
#[kernel(crate = crate)]
#[inline(always)]
fn reduced<T: Float>(x: T) -> (T, T, u32) {
    let (half_pi, half_pi_rest) = half_pi::<T>();
    if x.abs() < half_pi * T::HALF {
        return (x, T::ZERO, 0);
    }
    let bits = x.to_bits() as u64;
    let digits = digits::<T>();
    let exponent = ((bits >> digits) as i32 & (2 * bias::<T>() + 1)) - bias::<T>() - digits as i32;
    let hidden = 1_u64 << digits;
    let whole = (bits & (hidden - 1)) | hidden;
    // x is whole * 2^exponent. The result is needed modulo 4, so skip the bits of 2/π whose product with x is
    // a multiple of 4. The first bit that stays has the value 2^(1 - exponent).
    let first = (exponent + 62) as usize;
    let (word, by) = (first >> 6, (first & 63) as u64);
    let a = (TWO_OVER_PI[word] << by) | ((TWO_OVER_PI[word + 1] >> 1) >> (63 - by));
    let b = (TWO_OVER_PI[word + 1] << by) | ((TWO_OVER_PI[word + 2] >> 1) >> (63 - by));
    // Compute the product modulo 4: two bits before the binary point, then the fraction.
    let (upper, lower) = if T::BITS == 32 {
        (whole * a + whole.mul_high(b), whole * b)
    } else {
        let c = (TWO_OVER_PI[word + 2] << by) | ((TWO_OVER_PI[word + 3] >> 1) >> (63 - by));
        let (low, carried) = (whole * b, whole.mul_high(c));
        let lower = low + carried;
        (whole * a + whole.mul_high(b) + (lower < low) as u64, lower)
    };
    let quadrant = (upper + (1 << 61)) >> 62;
    let upper = upper - (quadrant << 62);
    // Map the fraction to the range from -1/2 to 1/2, and compute its absolute value.
    let is_below = (upper as i64) < 0;
    let (upper, lower) =
        if is_below { (!upper + (lower == 0) as u64, lower.wrapping_neg()) } else { (upper, lower) };
    let large = upper as T;
    let left = (upper as i64 - large as i64) as T;
    let small = left * power_of_two::<T>(-62) + lower as T * power_of_two::<T>(-63) * power_of_two::<T>(-63);
    let (f, f_rest) = sum(large * power_of_two::<T>(-62), small);
    let (r, r_rest) = product(f, half_pi);
    let (r, r_rest) = sum(r, r_rest + (f * half_pi_rest + f_rest * half_pi));
    let is_negative = is_below ^ (x < T::ZERO);
    let quadrant = if x < T::ZERO { quadrant.wrapping_neg() } else { quadrant };
    let (r, r_rest) = if is_negative { (-r, -r_rest) } else { (r, r_rest) };
    (r, r_rest, quadrant as u32 & 3)
}

/// Returns the sine of an angle of at most π/4 that is the sum of two numbers.
#[kernel(crate = crate)]
#[inline(always)]
fn sin_of<T: Float>(r: T, rest: T) -> T {
    let z = r * r;
    r + (z * r * sin_rest(z) + rest * (T::ONE - T::HALF * z))
}

/// Returns the cosine of an angle of at most π/4 that is the sum of two numbers.
#[kernel(crate = crate)]
#[inline(always)]
fn cos_of<T: Float>(r: T, rest: T) -> T {
    let z = r * r;
    let half = T::HALF * z;
    let w = T::ONE - half;
    w + (((T::ONE - w) - half) + (z * z * cos_rest(z) - r * rest))
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn sin<T: Float>(x: T) -> T {
    let (r, rest, quadrant) = reduced(x);
    let y = if quadrant & 1 == 0 { sin_of(r, rest) } else { cos_of(r, rest) };
    if x == T::ZERO {
        x
    } else if !(x.abs() < T::INFINITY) {
        nan::<T>()
    } else if quadrant & 2 == 0 {
        y
    } else {
        -y
    }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn cos<T: Float>(x: T) -> T {
    let (r, rest, quadrant) = reduced(x);
    let y = if quadrant & 1 == 0 { cos_of(r, rest) } else { sin_of(r, rest) };
    if !(x.abs() < T::INFINITY) {
        nan::<T>()
    } else if (quadrant + 1) & 2 == 0 {
        y
    } else {
        -y
    }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn tan<T: Float>(x: T) -> T {
    let (r, rest, quadrant) = reduced(x);
    let (sin, cos) = (sin_of(r, rest), cos_of(r, rest));
    if x == T::ZERO {
        x
    } else if !(x.abs() < T::INFINITY) {
        nan::<T>()
    } else if quadrant & 1 == 0 {
        sin / cos
    } else {
        -cos / sin
    }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn atan<T: Float>(x: T) -> T {
    let a = x.abs();
    let (half_pi, half_pi_rest) = half_pi::<T>();
    let (t, base, rest) = if a > (2.414213562373095 as T) {
        (-T::ONE / a, half_pi, half_pi_rest)
    } else if a > (0.41421356237309503 as T) {
        ((a - T::ONE) / (a + T::ONE), T::HALF * half_pi, T::HALF * half_pi_rest)
    } else {
        (a, T::ZERO, T::ZERO)
    };
    let z = t * t;
    (base + (t + (rest + t * z * atan_rest(z)))).copysign(x)
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn atan2<T: Float>(y: T, x: T) -> T {
    let (half_pi, half_pi_rest) = half_pi::<T>();
    let (a, b) = (x.abs(), y.abs());
    let (small, large) = if a < b { (a, b) } else { (b, a) };
    let ratio = if large == T::ZERO {
        T::ZERO
    } else if small == T::INFINITY {
        T::ONE
    } else {
        small / large
    };
    let angle = atan(ratio);
    let angle = if a < b { half_pi - (angle - half_pi_rest) } else { angle };
    let angle = if x.is_sign_negative() {
        (half_pi + half_pi) - (angle - (half_pi_rest + half_pi_rest))
    } else {
        angle
    };
    if x == x && y == y { angle.copysign(y) } else { nan::<T>() }
}

/// Returns `asin √z` for `z <= 1/4` as the sum of two numbers. The first number is `√z`, rounded.
#[kernel(crate = crate)]
#[inline(always)]
fn asin_of_sqrt<T: Float>(z: T) -> (T, T) {
    let s = z.sqrt();
    let (square, square_rest) = product(s, s);
    let rest = if s == T::ZERO { s } else { ((z - square) - square_rest) / (s + s) };
    (s, rest + s * z * asin_rest(z))
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn asin<T: Float>(x: T) -> T {
    let a = x.abs();
    let (half_pi, half_pi_rest) = half_pi::<T>();
    let y = if a <= T::HALF {
        let z = a * a;
        a + a * z * asin_rest(z)
    } else {
        let (s, rest) = asin_of_sqrt(T::HALF * (T::ONE - a));
        let (upper, lower) = sum(half_pi, -(s + s));
        upper + (lower - ((rest + rest) - half_pi_rest))
    };
    y.copysign(x)
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn acos<T: Float>(x: T) -> T {
    let a = x.abs();
    let (half_pi, half_pi_rest) = half_pi::<T>();
    if a <= T::HALF {
        let z = x * x;
        let (upper, lower) = sum(half_pi, -x);
        upper + (lower - (x * z * asin_rest(z) - half_pi_rest))
    } else {
        let (s, rest) = asin_of_sqrt(T::HALF * (T::ONE - a));
        if x > T::ZERO {
            (s + s) + (rest + rest)
        } else {
            let (upper, lower) = sum(half_pi, -s);
            let half = upper + (lower - (rest - half_pi_rest));
            half + half
        }
    }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn sinh<T: Float>(x: T) -> T {
    let a = x.abs();
    let y = if a < (bias::<T>() as T) * T::HALF {
        let t = exp_m1(a);
        T::HALF * (t + t / (t + T::ONE))
    } else {
        let root = exp(T::HALF * a);
        (T::HALF * root) * root
    };
    y.copysign(x)
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn cosh<T: Float>(x: T) -> T {
    let a = x.abs();
    if a < (bias::<T>() as T) * T::HALF {
        let t = exp(a);
        T::HALF * t + T::HALF / t
    } else {
        let root = exp(T::HALF * a);
        (T::HALF * root) * root
    }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn tanh<T: Float>(x: T) -> T {
    let t = exp_m1((x.abs() * (2.0 as T)).min(60.0 as T));
    let y = t / (t + (2.0 as T));
    if x == x { y.copysign(x) } else { x }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn asinh<T: Float>(x: T) -> T {
    let a = x.abs();
    let y = if a > power_of_two::<T>(30) {
        ln(a) + (0.6931471805599453 as T)
    } else {
        let square = a * a;
        ln_1p(a + square / (T::ONE + (T::ONE + square).sqrt()))
    };
    y.copysign(x)
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn acosh<T: Float>(x: T) -> T {
    if x > power_of_two::<T>(30) {
        ln(x) + (0.6931471805599453 as T)
    } else if x >= T::ONE {
        let t = x - T::ONE;
        ln_1p(t + (t + t + t * t).sqrt())
    } else {
        nan::<T>()
    }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn atanh<T: Float>(x: T) -> T {
    let a = x.abs();
    (T::HALF * ln_1p((a + a) / (T::ONE - a))).copysign(x)
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn cbrt<T: Float>(x: T) -> T {
    let (m, k) = split(x.abs());
    // Move factors of 2 to m, so that the exponent becomes a multiple of 3; m is then from 0.7 to 5.7.
    let third = k.div_euclid(3);
    let m = m * power_of_two::<T>(k - 3 * third);
    let guess = 0.5838 as T + m * (0.4565 as T + m * (-0.0609 as T + m * (0.00433 as T)));
    let mut t = guess;
    for _ in 0..if T::BITS == 32 { 2 } else { 3 } {
        let cube = t * t * t;
        t = t * (cube + (m + m)) / ((cube + cube) + m);
    }
    let (square, square_rest) = product(t, t);
    let (cube, cube_rest) = product(square, t);
    t += (((m - cube) - cube_rest) - square_rest * t) / ((3.0 as T) * square);
    if x == T::ZERO || !(x.abs() < T::INFINITY) { x } else { scaled(t, third).copysign(x) }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn hypot<T: Float>(x: T, y: T) -> T {
    let (a, b) = if x.abs() < y.abs() { (y.abs(), x.abs()) } else { (x.abs(), y.abs()) };
    let (_, k) = split(a);
    let most = bias::<T>() - 1;
    let factor = power_of_two::<T>(-(k.clamp(-most, most)));
    let (u, v) = (a * factor, b * factor);
    let ((u, u_rest), (v, v_rest)) = (product(u, u), product(v, v));
    let (total, rest) = sum(u, v);
    let rest = rest + (u_rest + v_rest);
    let h = total.sqrt();
    let (back, back_rest) = product(h, h);
    let h = h + (((total - back) - back_rest) + rest) / (h + h);
    if a == T::INFINITY || b == T::INFINITY {
        T::INFINITY
    } else if a == T::ZERO {
        a + b
    } else {
        h / factor
    }
}

/// Returns 1 / √x. The function rounds the square root before the division.
#[kernel(crate = crate)]
#[inline(always)]
pub fn rsqrt<T: Float>(x: T) -> T {
    T::ONE / x.sqrt()
}
