//! Mathematical methods of expressions: functions of floats, and functions of the bits of integers.

use std::marker::PhantomData;

use backend_api::expr::{Instruction, Integer, Number, Unary};
use vmarray_kernel::{Float, Function, k::derived_math};

use super::call::call;
use super::{Expr, ExprArguments, FieldType, IntoExpr, Scalar};
use crate::base::element::{Element, Field};

/// Calls a function of one or two floats that returns a float.
fn float<G, T, F, A>(arguments: impl ExprArguments<T, A>) -> Expr<T, F>
where
    G: Function<A, F>,
    A: vmarray_kernel::ScalarArguments,
    F: Scalar + Float,
{
    call::<G, T, A, F>(arguments.listed(), None)
}

macro_rules! float_methods {
    ([$($generics:tt)*] $Self:ty, $F:ty; $($name:ident $of:literal)*; $($pair:ident($other:ident) $of_pair:literal)*) => {
        /// Functions of floats, with the names of Rust's methods, and with the same bits on all devices.
        /// Their precision is in the [table](crate::expr#arithmetic).
        impl<$($generics)*> $Self {
            /// Returns the square root of the value.
            ///
            /// ```
            /// use vmarray::prelude::*;
            /// let array = VirtualArray::<f64>::new(10)?;
            /// array.fill(.., 2.0)?;
            /// array.transform(.., Field::whole().set(Field::<f64, f64>::whole().sqrt()))?;
            /// assert_eq!(array.get(3)?, 2_f64.sqrt());
            /// # Ok::<(), vmarray::Error>(())
            /// ```
            pub fn sqrt(self) -> Expr<T, $F> {
                self.into_expr().unary(Unary::Sqrt)
            }

            /// Returns the largest whole number that is not larger than the value.
            pub fn floor(self) -> Expr<T, $F> {
                self.into_expr().unary(Unary::Floor)
            }

            /// Returns the smallest whole number that is not smaller than the value.
            pub fn ceil(self) -> Expr<T, $F> {
                self.into_expr().unary(Unary::Ceil)
            }

            /// Returns the value without its fraction, rounded toward zero.
            pub fn trunc(self) -> Expr<T, $F> {
                self.into_expr().unary(Unary::Trunc)
            }

            /// Returns the nearest whole number, and the even one if two are equally near.
            pub fn round_ties_even(self) -> Expr<T, $F> {
                self.into_expr().unary(Unary::RoundEven)
            }

            /// Returns the fraction of the value, with the sign of the value.
            pub fn fract(self) -> Expr<T, $F> {
                let value = self.into_expr();
                let whole = value.clone().unary(Unary::Trunc);
                value - whole
            }

            /// Returns the reciprocal, `1 / self`.
            pub fn recip(self) -> Expr<T, $F> {
                Expr::constant(<$F as vmarray_kernel::KernelNumber>::ONE) / self.into_expr()
            }

            /// Returns `self * a + b`, rounded once.
            ///
            /// ```
            /// use vmarray::prelude::*;
            /// let array = VirtualArray::<f32>::new(10)?;
            /// array.fill(.., 1.0 + f32::EPSILON)?;
            /// let value = Field::whole();
            /// // The rounding error of the product.
            /// assert_eq!(array.max(.., value.mul_add(value, -(value * value)))?, Some(f32::EPSILON * f32::EPSILON));
            /// # Ok::<(), vmarray::Error>(())
            /// ```
            pub fn mul_add(self, a: impl IntoExpr<T, $F>, b: impl IntoExpr<T, $F>) -> Expr<T, $F> {
                let Expr { mut list, value, .. } = self.into_expr();
                let (first, second) = (a.into_expr(), b.into_expr());
                let a = list.append(&first.list, first.value);
                let b = list.append(&second.list, second.value);
                let value = list.push(Instruction::Fma { a: value, b: a, c: b });
                Expr { list, value, marker: PhantomData }
            }

            /// Returns the value raised to the power `exponent`, an integer.
            pub fn powi(self, exponent: impl IntoExpr<T, i32>) -> Expr<T, $F> {
                float::<derived_math::powi<$F>, T, $F, ($F, i32)>((self.into_expr(), exponent))
            }

            /// Returns a condition: true if the value is a NaN.
            pub fn is_nan(self) -> Expr<T, bool> {
                let value = self.into_expr();
                value.clone().ne(value)
            }

            /// Returns a condition: true if the value is neither infinite nor a NaN.
            pub fn is_finite(self) -> Expr<T, bool> {
                self.into_expr().abs().lt(Expr::constant(<$F as Float>::INFINITY))
            }

            $(
                #[doc = $of]
                pub fn $name(self) -> Expr<T, $F> {
                    float::<derived_math::$name<$F>, T, $F, ($F,)>(self.into_expr())
                }
            )*

            $(
                #[doc = $of_pair]
                pub fn $pair(self, $other: impl IntoExpr<T, $F>) -> Expr<T, $F> {
                    float::<derived_math::$pair<$F>, T, $F, ($F, $F)>((self.into_expr(), $other))
                }
            )*
        }
    };
}

macro_rules! all_float_methods {
    ([$($generics:tt)*] $Self:ty, $F:ty) => {
        float_methods! {
            [$($generics)*] $Self, $F;
            round "The nearest whole number; if two are equally near, the one farther from zero."
            signum "1 with the sign of the value; NaN for a NaN."
            rsqrt "The reciprocal of the square root."
            cbrt "The cube root."
            exp "e to the power of the value."
            exp2 "2 to the power of the value."
            exp_m1 "e to the power of the value, minus 1; accurate for small values."
            ln "The natural logarithm."
            ln_1p "The natural logarithm of 1 plus the value; accurate for small values."
            log2 "The logarithm to base 2."
            log10 "The logarithm to base 10."
            sin "The sine of an angle in radians, of any size."
            cos "The cosine of an angle in radians, of any size."
            tan "The tangent of an angle in radians, of any size."
            asin "The arcsine, in radians."
            acos "The arccosine, in radians."
            atan "The arctangent, in radians."
            sinh "The hyperbolic sine."
            cosh "The hyperbolic cosine."
            tanh "The hyperbolic tangent."
            asinh "The inverse hyperbolic sine."
            acosh "The inverse hyperbolic cosine."
            atanh "The inverse hyperbolic tangent.";
            powf(exponent) "The value raised to the power `exponent`."
            atan2(x) "The angle between the x axis and the point (`x`, this value), in radians."
            hypot(other) "The square root of the sum of both squares, without overflow of a square."
            copysign(sign) "The value with the sign of `sign`."
        }
    };
}
all_float_methods!([T, F: Scalar + Number + Float] Expr<T, F>, F);
all_float_methods!([T: Element, S: FieldType<Value: Float>] Field<T, S>, S::Value);

macro_rules! approximate_methods {
    ([$($generics:tt)*] $Self:ty; $($name:ident $Op:ident $of:literal;)*) => {
        /// Fast approximations by instructions of the device. Their error is below the documented bound, but
        /// their bits differ between devices. The host computes exact values.
        impl<$($generics)*> $Self {
            $(
                #[doc = $of]
                ///
                /// ```
                /// use vmarray::prelude::*;
                /// let array = VirtualArray::<f32>::new(10)?;
                /// array.fill(.., 0.5)?;
                /// let value = Field::<f32, f32>::whole();
                #[doc = concat!("let close = array.max(.., value.", stringify!($name), "())?.unwrap();")]
                #[doc = concat!("let exact = array.max(.., value.", stringify!($Op), "())?.unwrap();")]
                /// assert!((close - exact).abs() < 1e-6);
                /// # Ok::<(), vmarray::Error>(())
                /// ```
                pub fn $name(self) -> Expr<T, f32> {
                    approximate_methods!(@ self $Op)
                }
            )*
        }
    };
    (@ $self:ident exp2) => { $self.into_expr().unary(Unary::ApproxExp2) };
    (@ $self:ident log2) => { $self.into_expr().unary(Unary::ApproxLog2) };
    (@ $self:ident sin) => { $self.into_expr().unary(Unary::ApproxSin) };
    (@ $self:ident cos) => { $self.into_expr().unary(Unary::ApproxCos) };
    (@ $self:ident rsqrt) => { $self.into_expr().unary(Unary::ApproxRsqrt) };
}

macro_rules! all_approximate_methods {
    ([$($generics:tt)*] $Self:ty) => {
        approximate_methods! {
            [$($generics)*] $Self;
            approx_exp2 exp2 "2 to the power of the value, within 3 ulps.";
            approx_log2 log2 "The logarithm to base 2, within 3 ulps, or within 2^-21 between 0.5 and 2.";
            approx_sin sin "The sine, within 2^-20 from -π to π; the error grows beyond.";
            approx_cos cos "The cosine, within 2^-20 from -π to π; the error grows beyond.";
            approx_rsqrt rsqrt "The reciprocal of the square root, within 2 ulps.";
        }
    };
}
all_approximate_methods!([T] Expr<T, f32>);
all_approximate_methods!([T: Element, S: FieldType<Value = f32>] Field<T, S>);

macro_rules! integer_methods {
    ([$($generics:tt)*] $Self:ty, $F:ty) => {
        impl<$($generics)*> $Self {
            /// Returns the number of bits that are 1.
            ///
            /// ```
            /// use vmarray::prelude::*;
            /// let array = VirtualArray::<u8>::new(10)?;
            /// array.fill(.., 0b0010_1100)?;
            /// let byte = Field::<u8, u8>::whole();
            /// let counts = [byte.count_ones(), byte.leading_zeros(), byte.trailing_zeros()];
            /// assert_eq!(counts.map(|count| array.max(.., count).unwrap()), [Some(3), Some(2), Some(2)]);
            /// # Ok::<(), vmarray::Error>(())
            /// ```
            pub fn count_ones(self) -> Expr<T, u32> {
                self.into_expr().unary::<$F>(Unary::CountOnes).cast()
            }

            /// Returns the number of leading zero bits.
            pub fn leading_zeros(self) -> Expr<T, u32> {
                self.into_expr().unary::<$F>(Unary::LeadingZeros).cast()
            }

            /// Returns the number of trailing zero bits.
            pub fn trailing_zeros(self) -> Expr<T, u32> {
                self.into_expr().unary::<$F>(Unary::TrailingZeros).cast()
            }

            /// Returns the value with its bits in reverse order.
            pub fn reverse_bits(self) -> Expr<T, $F> {
                self.into_expr().unary(Unary::ReverseBits)
            }
        }
    };
}
integer_methods!([T, F: Scalar + Integer] Expr<T, F>, F);
integer_methods!([T: Element, S: FieldType<Value: Integer>] Field<T, S>, S::Value);
