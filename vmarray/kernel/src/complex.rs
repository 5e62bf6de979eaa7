//! Complex numbers of the crate `num-complex` as values in kernels: structs of two floats. Their operators
//! and methods are kernel functions.
//!
//! The formulas are the same as in `num-complex`: a quotient overflows if the square of the divisor's
//! absolute value overflows.

use crate::layout::{KernelType, Layout, field};
use crate::number::Float;
use crate::rules::{Arithmetic, Equality, Negated};
use num_complex::Complex;
use vmarray_macros::kernel;

impl<T: Float> KernelType for Complex<T> {
    const ZERO: Self = Self { re: T::ZERO, im: T::ZERO };

    fn layout() -> Layout {
        let (re, im) = (std::mem::offset_of!(Self, re), std::mem::offset_of!(Self, im));
        let fields = vec![field::<T>("re", re), field::<T>("im", im)];
        Layout::Struct { name: "Complex", fields, bytes: size_of::<Self>() }
    }

    fn values(self, into: &mut Vec<u64>) {
        self.re.values(into);
        self.im.values(into);
    }

    fn of_values(next: &mut impl FnMut() -> u64) -> Self {
        Self { re: T::of_values(next), im: T::of_values(next) }
    }
}

impl<T: Float> Arithmetic for Complex<T> {
    #[inline(always)]
    fn added(self, other: Self) -> Self {
        complex_add(self, other)
    }

    #[inline(always)]
    fn subtracted(self, other: Self) -> Self {
        complex_sub(self, other)
    }

    #[inline(always)]
    fn multiplied(self, other: Self) -> Self {
        complex_mul(self, other)
    }

    #[inline(always)]
    fn divided(self, other: Self) -> Self {
        complex_div(self, other)
    }
}

impl<T: Float> Negated for Complex<T> {
    #[inline(always)]
    fn negated(self) -> Self {
        complex_neg(self)
    }
}

impl<T: Float> Equality for Complex<T> {}

#[kernel(crate = crate)]
#[inline(always)]
pub fn complex<T: Float>(re: T, im: T) -> Complex<T> {
    Complex { re, im }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn complex_add<T: Float>(a: Complex<T>, b: Complex<T>) -> Complex<T> {
    Complex { re: a.re + b.re, im: a.im + b.im }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn complex_sub<T: Float>(a: Complex<T>, b: Complex<T>) -> Complex<T> {
    Complex { re: a.re - b.re, im: a.im - b.im }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn complex_mul<T: Float>(a: Complex<T>, b: Complex<T>) -> Complex<T> {
    Complex { re: a.re * b.re - a.im * b.im, im: a.re * b.im + a.im * b.re }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn complex_div<T: Float>(a: Complex<T>, b: Complex<T>) -> Complex<T> {
    let square = b.re * b.re + b.im * b.im;
    let (re, im) = (a.re * b.re + a.im * b.im, a.im * b.re - a.re * b.im);
    Complex { re: re / square, im: im / square }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn complex_neg<T: Float>(z: Complex<T>) -> Complex<T> {
    Complex { re: -z.re, im: -z.im }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn complex_eq<T: Float>(a: Complex<T>, b: Complex<T>) -> bool {
    a.re == b.re && a.im == b.im
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn complex_ne<T: Float>(a: Complex<T>, b: Complex<T>) -> bool {
    a.re != b.re || a.im != b.im
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn conj<T: Float>(z: Complex<T>) -> Complex<T> {
    Complex { re: z.re, im: -z.im }
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn norm<T: Float>(z: Complex<T>) -> T {
    z.re.hypot(z.im)
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn norm_sqr<T: Float>(z: Complex<T>) -> T {
    z.re * z.re + z.im * z.im
}

#[kernel(crate = crate)]
#[inline(always)]
pub fn scale<T: Float>(z: Complex<T>, by: T) -> Complex<T> {
    Complex { re: z.re * by, im: z.im * by }
}
