//! Complex numbers in expressions: each is a pair of expressions, for the real and the imaginary part.

use std::fmt;
use std::ops::{Add, Div, Mul, Neg, Sub};

use num_complex::Complex;
use vmarray_kernel::Float;

use super::{Assignment, Expr, FieldType, IntoExpr, Scalar, Signed};
use crate::base::element::{Element, Field};

/// A complex number that a device computes for each element of type `T`. Each part is an [`Expr`].
///
/// The formulas are the formulas of the crate `num-complex`. A quotient overflows if the square of the
/// divisor's absolute value overflows, because the formula divides by this square. Conditions and queries
/// take a real expression: one of the two parts, or the result of [`norm`](Self::norm), [`eq`](Self::eq) and
/// other methods.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::{expr::IntoComplex, num_complex::Complex};
/// type C = Complex<f32>;
/// let array = VirtualArray::<C>::new(1000)?;
/// array.fill(.., C::new(3.0, 4.0))?;
/// let field = Field::<C, C>::whole();
/// let z = field.into_complex();
/// assert_eq!((array.max(.., z.norm())?, array.max(.., z.norm_sqr())?), (Some(5.0), Some(25.0)));
/// array.transform(..10, field.set_complex(&z * z.conj() + C::new(0.0, 1.0)))?;
/// assert_eq!((array.get(9)?, array.get(10)?), (C::new(25.0, 1.0), C::new(3.0, 4.0)));
/// assert_eq!(array.find_where(..12, z.ne(C::new(25.0, 1.0)), 9)?.indices, [10, 11]);
/// assert_eq!((array.count_where(.., z.eq(z.scale(1.0)))?, array.sum(10..20, field.im())?), (1000, 40.0));
/// assert_eq!(array.min(.., field.re())?, Some(3.0));
/// let half = -(&z - C::new(1.0, 0.0)) / C::new(2.0, 0.0);
/// assert_eq!(half.sum(&array, 10..12)?, Complex::new(-2.0, -4.0));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "does nothing unless an operation takes it"]
pub struct ComplexExpr<T, F> {
    /// The expression of the real part.
    pub re: Expr<T, F>,
    /// The expression of the imaginary part.
    pub im: Expr<T, F>,
}

impl<T, F> Clone for ComplexExpr<T, F> {
    fn clone(&self) -> Self {
        Self { re: self.re.clone(), im: self.im.clone() }
    }
}

impl<T, F> fmt::Debug for ComplexExpr<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ComplexExpr").field("re", &self.re).field("im", &self.im).finish()
    }
}

/// A value that converts to a complex expression: a [`ComplexExpr`], a [`Field`] or a number.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::{expr::IntoComplex, num_complex::Complex};
/// let array = VirtualArray::<Complex<f64>>::new(10)?;
/// let z = Field::<Complex<f64>, Complex<f64>>::whole().into_complex();
/// assert_eq!(array.count_where(.., z.re.eq(0.0) & z.im.eq(0.0))?, 10);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a complex expression with parts of type `{F}` over elements of type `{T}`",
    note = "make one of two expressions: `ComplexExpr {{ re, im }}`"
)]
pub trait IntoComplex<T, F> {
    /// Converts the value to a complex expression.
    fn into_complex(self) -> ComplexExpr<T, F>;
}

impl<T, F> IntoComplex<T, F> for ComplexExpr<T, F> {
    fn into_complex(self) -> Self {
        self
    }
}

impl<T, F> IntoComplex<T, F> for &ComplexExpr<T, F> {
    fn into_complex(self) -> ComplexExpr<T, F> {
        self.clone()
    }
}

impl<T: Element, F: Float + FieldType<Value = F>> IntoComplex<T, F> for Field<T, Complex<F>>
where
    Complex<F>: bytemuck::NoUninit,
{
    fn into_complex(self) -> ComplexExpr<T, F> {
        ComplexExpr { re: self.re().into_expr(), im: self.im().into_expr() }
    }
}

impl<T, F: Scalar> IntoComplex<T, F> for Complex<F> {
    fn into_complex(self) -> ComplexExpr<T, F> {
        ComplexExpr { re: Expr::constant(self.re), im: Expr::constant(self.im) }
    }
}

impl<T: Element, F: Float + FieldType<Value = F>> Field<T, Complex<F>>
where
    Complex<F>: bytemuck::NoUninit,
{
    /// Returns the field of the real part.
    ///
    /// ```
    /// use vmarray::{num_complex::Complex, prelude::*};
    /// let waves = VirtualArray::<Complex<f32>>::new(100)?;
    /// waves.set(7, Complex::new(3.0, 4.0))?;
    /// let wave = Field::<Complex<f32>, Complex<f32>>::whole();
    /// assert_eq!((waves.sum(.., wave.re())?, waves.sum(.., wave.im())?), (3.0, 4.0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub const fn re(self) -> Field<T, F> {
        self.part(std::mem::offset_of!(Complex<F>, re))
    }

    /// Returns the field of the imaginary part.
    ///
    /// ```
    /// use vmarray::{num_complex::Complex, prelude::*};
    /// let waves = VirtualArray::<Complex<f64>>::new(100)?;
    /// waves.fill(.., Complex::new(0.0, -1.0))?;
    /// let wave = Field::<Complex<f64>, Complex<f64>>::whole();
    /// assert_eq!(waves.count_where(.., wave.im().lt(0.0))?, 100);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub const fn im(self) -> Field<T, F> {
        self.part(std::mem::offset_of!(Complex<F>, im))
    }

    /// Returns two assignments, which set the real and the imaginary part of this field.
    ///
    /// ```
    /// use vmarray::{num_complex::Complex, prelude::*};
    /// let waves = VirtualArray::<Complex<f64>>::new(100)?;
    /// let wave = Field::<Complex<f64>, Complex<f64>>::whole();
    /// waves.transform(.., wave.set_complex(Complex::new(1.0, 2.0)))?;
    /// assert_eq!(waves.get(99)?, Complex::new(1.0, 2.0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn set_complex(self, value: impl IntoComplex<T, F>) -> [Assignment<T>; 2] {
        let ComplexExpr { re, im } = value.into_complex();
        [self.re().set(re), self.im().set(im)]
    }
}

macro_rules! complex {
    ([$($generics:tt)*] $Self:ty) => {
        impl<$($generics)*, R: IntoComplex<T, F>> Add<R> for $Self {
            type Output = ComplexExpr<T, F>;
            fn add(self, right: R) -> ComplexExpr<T, F> {
                let (a, b) = (self.into_complex(), right.into_complex());
                ComplexExpr { re: a.re + b.re, im: a.im + b.im }
            }
        }

        impl<$($generics)*, R: IntoComplex<T, F>> Sub<R> for $Self {
            type Output = ComplexExpr<T, F>;
            fn sub(self, right: R) -> ComplexExpr<T, F> {
                let (a, b) = (self.into_complex(), right.into_complex());
                ComplexExpr { re: a.re - b.re, im: a.im - b.im }
            }
        }

        impl<$($generics)*, R: IntoComplex<T, F>> Mul<R> for $Self {
            type Output = ComplexExpr<T, F>;
            fn mul(self, right: R) -> ComplexExpr<T, F> {
                let (a, b) = (self.into_complex(), right.into_complex());
                ComplexExpr { re: &a.re * &b.re - &a.im * &b.im, im: a.re * b.im + a.im * b.re }
            }
        }

        impl<$($generics)*, R: IntoComplex<T, F>> Div<R> for $Self {
            type Output = ComplexExpr<T, F>;
            fn div(self, right: R) -> ComplexExpr<T, F> {
                let (a, b) = (self.into_complex(), right.into_complex());
                let square = b.norm_sqr();
                let (re, im) = (&a.re * &b.re + &a.im * &b.im, a.im * b.re - a.re * b.im);
                ComplexExpr { re: re / &square, im: im / square }
            }
        }

        impl<$($generics)*> Neg for $Self {
            type Output = ComplexExpr<T, F>;
            fn neg(self) -> ComplexExpr<T, F> {
                let ComplexExpr { re, im } = self.into_complex();
                ComplexExpr { re: -re, im: -im }
            }
        }
    };
}
complex!([T, F: Signed + Float] ComplexExpr<T, F>);
complex!([T, F: Signed + Float] &ComplexExpr<T, F>);

#[allow(clippy::should_implement_trait, reason = "these methods return expressions, not bools")]
impl<T, F: Signed + Float> ComplexExpr<T, F> {
    /// Returns the complex conjugate of the number.
    pub fn conj(&self) -> ComplexExpr<T, F> {
        let ComplexExpr { re, im } = self.clone();
        ComplexExpr { re, im: -im }
    }

    /// Returns the square of the absolute value.
    pub fn norm_sqr(&self) -> Expr<T, F> {
        let ComplexExpr { re, im } = self.clone();
        &re * &re + &im * &im
    }

    /// Returns the absolute value. Intermediate results do not overflow.
    pub fn norm(&self) -> Expr<T, F> {
        let ComplexExpr { re, im } = self.clone();
        re.hypot(im)
    }

    /// Returns the product of this number and the real number `by`.
    pub fn scale(&self, by: impl IntoExpr<T, F>) -> ComplexExpr<T, F> {
        let (ComplexExpr { re, im }, by) = (self.clone(), by.into_expr());
        ComplexExpr { re: re * &by, im: im * by }
    }

    /// Returns a condition: true if both numbers are equal.
    pub fn eq(&self, other: impl IntoComplex<T, F>) -> Expr<T, bool> {
        let (a, b) = (self.clone(), other.into_complex());
        a.re.eq(b.re) & a.im.eq(b.im)
    }

    /// Returns a condition: true if the numbers differ.
    pub fn ne(&self, other: impl IntoComplex<T, F>) -> Expr<T, bool> {
        let (a, b) = (self.clone(), other.into_complex());
        a.re.ne(b.re) | a.im.ne(b.im)
    }
}
