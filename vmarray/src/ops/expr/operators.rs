//! Operators (`+`, `&`, `<<`, …) and comparison methods of fields and expressions.

use std::cmp;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

use backend_api::expr::{Binary, Integer, Number, Unary};

use super::{Assignment, Bits, Expr, FieldType, Filtered, IntoExpr, Scalar, Signed};
use crate::base::element::{Element, Field};

/// Implements an operator for all types of left operands: expressions, fields, and numbers.
macro_rules! operator {
    ($Trait:ident $method:ident $op:ident $($Bound:ident)*) => {
        impl<T, F: Scalar $(+ $Bound)*, R: IntoExpr<T, F>> $Trait<R> for Expr<T, F> {
            type Output = Self;
            fn $method(self, right: R) -> Self {
                self.binary(Binary::$op, &right.into_expr())
            }
        }
        impl<T, F: Scalar $(+ $Bound)*, R: IntoExpr<T, F>> $Trait<R> for &Expr<T, F> {
            type Output = Expr<T, F>;
            fn $method(self, right: R) -> Expr<T, F> {
                self.clone().binary(Binary::$op, &right.into_expr())
            }
        }
        impl<T: Element, S: FieldType<Value: Scalar $(+ $Bound)*>, R: IntoExpr<T, S::Value>> $Trait<R>
            for Field<T, S>
        {
            type Output = Expr<T, S::Value>;
            fn $method(self, right: R) -> Expr<T, S::Value> {
                self.into_expr().binary(Binary::$op, &right.into_expr())
            }
        }
    };
}
operator!(Add add Add Number);
operator!(Sub sub Sub Number);
operator!(Mul mul Mul Number);
operator!(Div div Div Number);
operator!(Rem rem Rem Integer);
operator!(BitAnd bitand And Bits);
operator!(BitOr bitor Or Bits);
operator!(BitXor bitxor Xor Bits);
operator!(Shl shl Shl Integer);
operator!(Shr shr Shr Integer);

macro_rules! prefix {
    ($Trait:ident $method:ident $Bound:ident) => {
        impl<T, F: Scalar + $Bound> $Trait for Expr<T, F> {
            type Output = Self;
            fn $method(self) -> Self {
                self.unary(Unary::$Trait)
            }
        }
        impl<T, F: Scalar + $Bound> $Trait for &Expr<T, F> {
            type Output = Expr<T, F>;
            fn $method(self) -> Expr<T, F> {
                self.clone().unary(Unary::$Trait)
            }
        }
        impl<T: Element, S: FieldType<Value: $Bound>> $Trait for Field<T, S> {
            type Output = Expr<T, S::Value>;
            fn $method(self) -> Expr<T, S::Value> {
                self.into_expr().unary(Unary::$Trait)
            }
        }
    };
}
prefix!(Neg neg Signed);
prefix!(Not not Bits);

/// A type that `==` and `<` can compare with a field or an expression. No type implements the trait; it only
/// improves error messages. Without `PartialEq` the compiler would advise to derive it. With this bound, the
/// compiler reports the missing trait, and then that the `bool` is no condition.
///
/// The trait improves the compiler's messages. Without `PartialEq` the compiler would advise to derive it.
/// With this bound, the compiler reports the missing trait, and then that the `bool` is no condition.
#[diagnostic::on_unimplemented(
    message = "fields and expressions are compared by methods: `a.eq(b)`, `a.ne(b)`, `a.lt(b)`, `a.le(b)`, `a.gt(b)`, \
               `a.ge(b)`",
    label = "gives a `bool` before any element is read: write `.eq(…)`, `.lt(…)`, …"
)]
trait ComparableByOperators {}

/// Makes `==` and `<` on a type a compile error with a helpful message.
macro_rules! not_compared_by_operators {
    ($Self:ty) => {
        #[allow(private_bounds, reason = "no type implements it")]
        impl<T, F, R: ComparableByOperators> PartialEq<R> for $Self {
            fn eq(&self, _: &R) -> bool {
                unreachable!("no type implements this trait")
            }
        }

        #[allow(private_bounds, reason = "no type implements it")]
        impl<T, F, R: ComparableByOperators> PartialOrd<R> for $Self {
            fn partial_cmp(&self, _: &R) -> Option<cmp::Ordering> {
                unreachable!("no type implements this trait")
            }
        }
    };
}
not_compared_by_operators!(Field<T, F>);
not_compared_by_operators!(Expr<T, F>);

/// Allows numbers as expressions, and as left operands of operators.
macro_rules! literals {
    ($($T:ident)*) => { $(
        impl<T> IntoExpr<T, $T> for $T {
            fn into_expr(self) -> Expr<T, $T> {
                Expr::constant(self)
            }
        }
    )* };
}
literals!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

macro_rules! left_literals {
    ($($T:ident)*) => { $(
        left_literals!(@ $T Add add);
        left_literals!(@ $T Sub sub);
        left_literals!(@ $T Mul mul);
        left_literals!(@ $T Div div);
    )* };
    (@ $T:ident $Trait:ident $method:ident) => {
        impl<T> $Trait<Expr<T, $T>> for $T {
            type Output = Expr<T, $T>;
            fn $method(self, right: Expr<T, $T>) -> Expr<T, $T> {
                Expr::constant(self).$method(right)
            }
        }
        impl<T: Element> $Trait<Field<T, $T>> for $T {
            type Output = Expr<T, $T>;
            fn $method(self, right: Field<T, $T>) -> Expr<T, $T> {
                Expr::constant(self).$method(right.into_expr())
            }
        }
    };
}
left_literals!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

macro_rules! methods {
    ([$($generics:tt)*] $Self:ty, $F:ty) => {
        #[allow(clippy::should_implement_trait, reason = "these methods return expressions, not bools or \
            numbers")]
        impl<$($generics)*> $Self {
            /// Returns a condition: true if both values are equal.
            pub fn eq(self, other: impl IntoExpr<T, $F>) -> Expr<T, bool> {
                self.into_expr().binary(Binary::Eq, &other.into_expr())
            }

            /// Returns a condition: true if the values differ. A NaN differs from every value.
            pub fn ne(self, other: impl IntoExpr<T, $F>) -> Expr<T, bool> {
                self.into_expr().binary(Binary::Ne, &other.into_expr())
            }
        }
    };
}
methods!([T, F: Scalar] Expr<T, F>, F);
methods!([T: Element, S: FieldType] Field<T, S>, S::Value);

macro_rules! number_methods {
    ([$($generics:tt)*] $Self:ty, $F:ty) => {
        #[allow(clippy::should_implement_trait, reason = "these methods return expressions, not bools or \
            numbers")]
        impl<$($generics)*> $Self {
            /// Returns a condition: true if the value is less than `other`.
            pub fn lt(self, other: impl IntoExpr<T, $F>) -> Expr<T, bool> {
                self.into_expr().binary(Binary::Lt, &other.into_expr())
            }

            /// Returns a condition: true if the value is less than or equal to `other`.
            pub fn le(self, other: impl IntoExpr<T, $F>) -> Expr<T, bool> {
                self.into_expr().binary(Binary::Le, &other.into_expr())
            }

            /// Returns a condition: true if the value is greater than `other`.
            pub fn gt(self, other: impl IntoExpr<T, $F>) -> Expr<T, bool> {
                other.into_expr().binary(Binary::Lt, &self.into_expr())
            }

            /// Returns a condition: true if the value is greater than or equal to `other`.
            pub fn ge(self, other: impl IntoExpr<T, $F>) -> Expr<T, bool> {
                other.into_expr().binary(Binary::Le, &self.into_expr())
            }

            /// Returns the smaller of two values. If one of them is a NaN, returns the other value.
            pub fn min(self, other: impl IntoExpr<T, $F>) -> Expr<T, $F> {
                self.into_expr().binary(Binary::Min, &other.into_expr())
            }

            /// Returns the larger of two values. If one of them is a NaN, returns the other value.
            pub fn max(self, other: impl IntoExpr<T, $F>) -> Expr<T, $F> {
                self.into_expr().binary(Binary::Max, &other.into_expr())
            }

            /// Returns the absolute value. The least value of a signed integer type remains unchanged.
            pub fn abs(self) -> Expr<T, $F> {
                self.into_expr().unary(Unary::Abs)
            }

            /// Returns the value converted to another type of number, as by Rust's `as`.
            ///
            /// ```
            /// use vmarray::prelude::*;
            /// let array = VirtualArray::<f64>::new(10)?;
            /// array.set(5, 300.7)?;
            /// assert_eq!(array.max(.., Field::whole().cast::<u8>())?, Some(255));
            /// # Ok::<(), vmarray::Error>(())
            /// ```
            pub fn cast<U: Scalar + Number>(self) -> Expr<T, U> {
                self.into_expr().converted()
            }

            /// Adds a condition to the value: reductions include only elements that meet the condition.
            pub fn only_where(self, condition: impl IntoExpr<T, bool>) -> Filtered<T, $F> {
                Filtered { value: self.into_expr(), filter: Some(condition.into_expr()) }
            }
        }
    };
}
number_methods!([T, F: Scalar + Number] Expr<T, F>, F);
number_methods!([T: Element, S: FieldType] Field<T, S>, S::Value);

impl<T: Element, S: FieldType> Field<T, S> {
    /// Returns the assignment of a value to this field, for [`transform`](crate::views::QueryMut::transform)
    /// and [`assign_where`](crate::views::QueryMut::assign_where).
    pub fn set(self, value: impl IntoExpr<T, S::Value>) -> Assignment<T> {
        value.into_expr().assigned::<S>(0, self.offset())
    }
}
