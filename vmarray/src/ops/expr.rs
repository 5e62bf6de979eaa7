//! Expressions over the fields of elements, which the devices evaluate in place.
//!
//! An expression begins with a [`Field`], a number or the [`index`] of the element. Operators and methods
//! extend it, and the compiler checks its types. Operations of [`VirtualArray`](crate::VirtualArray), of
//! [`Source`](crate::Source) and of their sections take expressions: `count_where`, `find_where`, `sum`,
//! `min`, `assign_where`, `transform` and others.
//!
//! ```
//! use vmarray::prelude::*;
//! use bytemuck::{Pod, Zeroable};
//! use vmarray::field;
//!
//! #[derive(Clone, Copy, Pod, Zeroable)]
//! #[repr(C)]
//! struct Particle { position: [f32; 3], mass: f32, kind: u32 }
//!
//! const MASS: Field<Particle, f32> = field!(Particle, mass);
//! const KIND: Field<Particle, u32> = field!(Particle, kind);
//! const X: Field<Particle, f32> = field!(Particle, position).nth::<0>();
//!
//! let array = VirtualArray::<Particle>::new(1000)?;
//! array.fill(.., Particle { position: [1.0; 3], mass: 2.0, kind: 7 })?;
//! assert_eq!(array.count_where(.., KIND.eq(7) & MASS.gt(1.5))?, 1000);
//! array.assign_where(..100, KIND.eq(7), X.set(X + MASS * 0.5))?;
//! assert_eq!(array.sum(.., X)?, 1100.0);
//! # Ok::<(), vmarray::Error>(())
//! ```
//!
//! # Functions
//!
//! Floats have the functions of Rust's float types: [`sqrt`](Expr::sqrt), [`ln`](Expr::ln),
//! [`sin`](Expr::sin) and others. An expression can also [call](CallInExpr) a function with
//! [`#[kernel]`](macro@crate::kernel) for each element. Its parameters and its result must be numbers and
//! bools. Such a function can have loops, branches and tables.
//!
//! ```
//! use vmarray::prelude::*;
//! #[vmarray::kernel]
//! fn escapes(x: f32, y: f32) -> bool {
//!     let (mut re, mut im, mut turns) = (0.0, 0.0, 0);
//!     while turns < 100 && re * re + im * im < 4.0 {
//!         (re, im) = (re * re - im * im + x, 2.0 * re * im + y);
//!         turns += 1;
//!     }
//!     turns < 100
//! }
//!
//! let points = VirtualArray::<[f32; 2]>::new(1000)?;
//! points.set(7, [0.5, 0.5])?;
//! let point = Field::<[f32; 2], [f32; 2]>::whole();
//! assert_eq!(points.find_where(.., escapes::of((point.nth::<0>(), point.nth::<1>())), 9)?.indices, [7]);
//! # Ok::<(), vmarray::Error>(())
//! ```
//!
//! Mistyped expressions do not compile, nor do fields of another element type:
//!
//! ```compile_fail
//! use vmarray::prelude::*;
//! let both = Field::<u32, u32>::whole() + Field::<u32, u32>::whole().cast::<f32>();
//! ```
//!
//! ```compile_fail
//! use vmarray::prelude::*;
//! let array = vmarray::VirtualArray::<u32>::new(10).unwrap();
//! array.count_where(.., vmarray::Field::<u64, u64>::whole().eq(7)).unwrap();
//! ```
//!
//! Comparisons are methods, `a.eq(b)`, `a.ne(b)`, `a.lt(b)`, `a.le(b)`, `a.gt(b)` and `a.ge(b)`. Rust's
//! operators would return one `bool` immediately instead of one for each element. No operation takes such
//! a `bool` as a condition, and neither `==` nor `<` compiles:
//!
//! ```compile_fail,E0277
//! use vmarray::prelude::*;
//! let array = vmarray::VirtualArray::<u32>::new(10).unwrap();
//! array.count_where(.., vmarray::Field::<u32, u32>::whole() == 7).unwrap();
//! ```
//!
//! ```compile_fail,E0277
//! use vmarray::prelude::*;
//! let array = vmarray::VirtualArray::<u32>::new(10).unwrap();
//! array.count_where(.., 2 < 3).unwrap();
//! ```
//!
//! [`Expr::constant(true)`](Expr::constant) is a condition that every element meets.
//!
//! # Elements
//!
//! Fields are numbers of at most 64 bits. With the feature `half`, fields can be `half::f16` and
//! `half::bf16`, which are `f32` in expressions. Loading one is exact; [assigning](Field::set) one rounds
//! to nearest even; see [`FieldType`]. With the feature `num-complex`, fields can be complex numbers,
//! whose operators `ComplexExpr` has.
//!
//! # Arithmetic
//!
//! All devices return the same results, bit by bit, except for the bits of a NaN. Integers wrap; `a / 0`
//! is 0 and `a % 0` is `a`. Floating point is IEEE 754, rounded to nearest even and never fused. Casts
//! equal Rust's `as`. [`device::expr`](crate::device::expr) has the whole table.
//!
//! | function | error in ulps at most |
//! |---|---|
//! | `sqrt`, `mul_add`, `floor`, `ceil`, `trunc`, `round`, `round_ties_even`, `fract`, `recip` | 0.5, that is exact or rounded once |
//! | `exp`, `exp2`, `ln`, `ln_1p`, `log2`, `log10`, `cbrt`, `hypot`, `sin`, `cos`, `asin`, `acos` | 1 |
//! | `exp_m1`, `powf`, `rsqrt` | 1.5 |
//! | `atan`, `asinh`, `acosh`, `atanh` | 2 |
//! | `tan`, `atan2`, `sinh`, `cosh`, `tanh` | 2.5 |
//!
//! `powi` multiplies repeatedly; each multiplication adds up to half an ulp of error. `f32` has fast
//! approximations, in kernels as well: [`approx_exp2`](Expr::approx_exp2), `approx_log2`, `approx_sin`,
//! `approx_cos` and `approx_rsqrt`. A device computes them with its own instructions, to the precision
//! that each method documents. The bits differ between devices.

mod call;
#[cfg(feature = "num-complex")]
mod complex;
mod list;
mod maths;
mod operators;
mod relative;
mod scalar;

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use backend_api::expr::{Binary, Instruction, Program, Type, Unary, Value};
use bytemuck::NoUninit;

use crate::base::element::{Element, Field};
use crate::base::error::Result;

pub use backend_api::expr::{Integer, Number};
pub(crate) use call::TIME_LIMIT;
pub use call::{CallInExpr, ExprArguments};
#[cfg(feature = "num-complex")]
pub use complex::{ComplexExpr, IntoComplex};
use list::Instructions;
pub(crate) use list::refused;
pub(crate) use relative::assignments_counted_from;
pub use scalar::{Bits, FieldType, Scalar, Signed, Summed};

/// An expression: a value of type `F` that a device computes for each element of type `T`. For [joined
/// views](crate::compute::Joined), the device computes the value from one element of each view.
///
/// An expression is a list of instructions, and is cheap to create and to clone. It may have at most 256
/// instructions; otherwise the operation returns an error.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::expr::{Expr, index};
/// let array = VirtualArray::<f32>::new(10)?;
/// array.set(3, f32::NAN)?;
/// array.set(4, -2.5)?;
/// let value = Field::<f32, f32>::whole();
/// let count = |condition: Expr<f32, bool>| array.count_where(.., condition);
/// assert_eq!((count(value.eq(0.0))?, count(value.ne(value))?, count(value.lt(0.0))?), (8, 1, 1));
/// assert_eq!((count(value.le(0.0))?, count((value + 1.0).gt(0.5))?, count(value.ge(1.0))?), (9, 8, 0));
/// assert_eq!(array.sum(.., value.abs().only_where(index().gt(3)))?, 2.5);
/// assert_eq!(array.sum(.., value.max(f32::NAN).min(Expr::constant(-1.0)).only_where(index().ge(4)))?, -7.5);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
#[doc = include_str!("expr/functions.md")]
#[must_use = "does nothing unless an operation takes it"]
pub struct Expr<T, F> {
    list: Instructions,
    value: Value,
    marker: PhantomData<fn(&T) -> F>,
}

impl<T, F> Clone for Expr<T, F> {
    fn clone(&self) -> Self {
        Self { list: self.list.clone(), value: self.value, marker: PhantomData }
    }
}

impl<T, F> fmt::Debug for Expr<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.list.instructions).finish()
    }
}

/// Returns an expression for the index of the element. The index counts from the start of the array,
/// [`Source`](crate::Source) or section. In a box of several dimensions, the index is the element's position
/// in storage, as in [`elements`](crate::NdArray::elements). For the index along an axis, see
/// [`coordinate`](crate::nd::NdView::coordinate).
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::expr::index;
/// let array = VirtualArray::<u64>::new(1000)?;
/// array.transform(.., Field::whole().set(index() * index()))?;
/// assert_eq!(array.get(30)?, 900);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub fn index<T>() -> Expr<T, u64> {
    Expr::start(Instruction::Index)
}

impl<T, F> Expr<T, F> {
    fn start(instruction: Instruction) -> Self {
        let mut list = Instructions::default();
        let value = list.push(instruction);
        Self { list, value, marker: PhantomData }
    }
}

impl<T, F> Expr<T, F> {
    /// Sets a time limit for each function call in this expression: 60 s by default, `None` for no limit. If
    /// a call runs longer, the operation fails with [`KernelTime`](crate::ErrorKind::KernelTime), which names
    /// the element and the loop. The array and the device stay usable. If the operation changes elements,
    /// each element then has its new value, its old value or an unspecified value.
    ///
    /// Like the [limit of kernels](crate::kernel::KernelLaunch::time_limit), the limit applies to functions
    /// that run on CPUs. There is no limit on GPUs, in programs built with `panic = "abort"`, and in closures
    /// that run on the caller's data.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use vmarray::{AnyDevice, ErrorKind, host::HostDevice, prelude::*};
    ///
    /// #[vmarray::kernel]
    /// fn halvings(x: u32) -> u32 {
    ///     let (mut x, mut count) = (x, 0);
    ///     while x % 2 == 0 { // Endless for 0.
    ///         x /= 2;
    ///         count += 1;
    ///     }
    ///     count
    /// }
    /// let device = AnyDevice::from(HostDevice::new(1 << 20)?);
    /// let array = VirtualArray::<u32>::builder(3).devices([Arc::new(device)]).build()?;
    /// array.write(0, &[12, 0, 40])?;
    /// let count = halvings::of(Field::whole()).time_limit(Duration::from_millis(10));
    /// let error = array.sum(.., count.clone()).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::KernelTime { item: 1, .. }), "{error}");
    /// array.set(1, 8)?;
    /// assert_eq!(array.sum(.., count)?, 8);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn time_limit(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.list.limit(limit.into());
        self
    }
}

impl<T, F: Scalar> Expr<T, F> {
    /// Creates an expression with a constant value. Operators and methods also take a plain number instead.
    pub fn constant(value: F) -> Self {
        Self::start(Instruction::Literal { of: F::TYPE, bits: value.bits() })
    }

    /// Creates the expression for a field of a joined view, given the view's index `source` in the join.
    pub(crate) fn field<S: FieldType<Value = F>>(source: u8, offset: usize) -> Self {
        // The offset fits into 32 bits unless the element is longer than 4 GiB. For a longer element, the
        // operation returns an error for the field.
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        let (of, conversions) = S::AS;
        let field = Self::start(Instruction::Field { source, offset, of });
        match conversions {
            Some((widen, _)) => field.unary(widen),
            None => field,
        }
    }

    /// Converts the value to another number type, as [`cast`](Expr::cast) does.
    pub(crate) fn converted<U: Scalar>(self) -> Expr<T, U> {
        if F::TYPE == U::TYPE {
            return Expr { list: self.list, value: self.value, marker: PhantomData };
        }
        let of = self.value;
        self.then(Instruction::Cast { of, to: U::TYPE })
    }

    /// Creates an expression from a program that is built at run time. `value` is the program's value that
    /// the expression returns. The program reads fields at byte offsets from the start of an element of type
    /// `T`. For [joined](crate::compute::Joined) views, the program names a field by the index of its view (0
    /// for the first view) and the offset.
    ///
    /// # Errors
    /// [`Device`](crate::ErrorKind::Device) of kind `InvalidArgument` if the program has no such value, or if
    /// the type of the value is not `F`. Fields outside of the element, and unknown views, become errors of
    /// the operation that takes the expression.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::device::expr::{Binary, Instruction, Program, Type, Value};
    /// use vmarray::expr::Expr;
    /// // Input of a user: 2 * x.
    /// let program = Program::new(vec![
    ///     Instruction::Field { source: 0, offset: 0, of: Type::U32 },
    ///     Instruction::Literal { of: Type::U32, bits: 2 },
    ///     Instruction::Binary { op: Binary::Mul, left: Value(0), right: Value(1) },
    /// ])?;
    /// let array = VirtualArray::<u32>::new(10)?;
    /// array.set(3, 8)?;
    /// assert_eq!(array.sum(.., Expr::<u32, u32>::from_program(&program, Value(2))?)?, 16);
    /// assert!(Expr::<u32, f32>::from_program(&program, Value(2)).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn from_program(program: &Program, value: Value) -> Result<Self> {
        let found = program.type_of(value);
        if found != Some(F::TYPE) {
            return Err(mistyped(value, &format!("{found:?}, but its type must be {:?}", F::TYPE)));
        }
        let (list, value) = Instructions::of_program(program, value);
        Ok(Self { list, value, marker: PhantomData })
    }

    /// Returns a program that computes the expression, and the program's value that is the result. Both are
    /// arguments for [`from_program`](Self::from_program).
    ///
    /// # Errors
    /// [`ExpressionTooLong`](crate::ErrorKind::ExpressionTooLong) for more than 256 instructions, and
    /// [`KernelRefused`](crate::ErrorKind::KernelRefused) for functions that expressions cannot call.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::expr::Expr;
    /// let (program, value) = Expr::<(), f32>::constant(4.0).sqrt().to_program()?;
    /// let array = VirtualArray::<u8>::new(10)?;
    /// assert_eq!(array.sum(.., Expr::<u8, f32>::from_program(&program, value)?)?, 20.0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn to_program(&self) -> Result<(Program, Value)> {
        let mut lowering = Lowering::default();
        let value = lowering.expr(self);
        Ok((lowering.program()?, value))
    }

    /// Returns true if the value is the whole element, unchanged.
    pub(crate) fn is_element(&self) -> bool {
        let is_first =
            matches!(self.list.instructions[..], [Instruction::Field { source: 0, offset: 0, .. }]);
        is_first && size_of::<T>() == size_of::<F>()
    }

    /// Appends an instruction, whose value becomes the value of the expression.
    fn then<R>(mut self, instruction: Instruction) -> Expr<T, R> {
        let value = self.list.push(instruction);
        Expr { list: self.list, value, marker: PhantomData }
    }

    fn unary<R>(self, op: Unary) -> Expr<T, R> {
        let of = self.value;
        self.then(Instruction::Unary { op, of })
    }

    fn binary<G, R>(mut self, op: Binary, right: &Expr<T, G>) -> Expr<T, R> {
        let left = self.value;
        let right = self.list.append(&right.list, right.value);
        self.then(Instruction::Binary { op, left, right })
    }
}

impl<T> Expr<T, bool> {
    /// Returns an expression with the value `yes` if this condition is true, otherwise `no`.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::expr::Expr;
    /// let array = VirtualArray::<u32>::new(10)?;
    /// array.set(3, 50)?;
    /// let cut = Field::whole().gt(40).select(Field::whole(), 40);
    /// assert_eq!(array.sum(.., cut)?, 9 * 40 + 50);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn select<F: Scalar>(self, yes: impl IntoExpr<T, F>, no: impl IntoExpr<T, F>) -> Expr<T, F> {
        let (mut this, condition, yes, no) = (self.clone(), self.value, yes.into_expr(), no.into_expr());
        let yes = this.list.append(&yes.list, yes.value);
        let no = this.list.append(&no.list, no.value);
        this.then(Instruction::Select { condition, yes, no })
    }
}

/// A value that converts to an expression with values of type `F`: an [`Expr`], a [`Field`] or a number.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::expr::IntoExpr;
/// fn larger(than: impl IntoExpr<u32, u32>, array: &VirtualArray<u32>) -> vmarray::Result<usize> {
///     array.count_where(.., Field::whole().into_expr().gt(than))
/// }
/// let array = VirtualArray::<u32>::new(10)?;
/// assert_eq!((larger(5, &array)?, larger(Field::whole(), &array)?), (0, 0));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an expression of type `{F}` over elements of type `{T}`",
    label = "not an expression",
    note = "comparisons are methods: `a.eq(b)`, `a.ne(b)`, `a.lt(b)`, `a.le(b)`, `a.gt(b)`, `a.ge(b)`; \
            operators such as `a == b` give a `bool` before any element is read",
    note = "a condition that always holds is `Expr::constant(true)`",
    note = "types are not converted implicitly: use `cast`"
)]
pub trait IntoExpr<T, F> {
    /// Converts the value to an expression.
    fn into_expr(self) -> Expr<T, F>;
}

impl<T, F> IntoExpr<T, F> for Expr<T, F> {
    fn into_expr(self) -> Self {
        self
    }
}

impl<T, F> IntoExpr<T, F> for &Expr<T, F> {
    fn into_expr(self) -> Expr<T, F> {
        self.clone()
    }
}

impl<T: Element, S: FieldType> IntoExpr<T, S::Value> for Field<T, S> {
    fn into_expr(self) -> Expr<T, S::Value> {
        Expr::field::<S>(0, self.offset())
    }
}

impl<T: Element, E: NoUninit, const N: usize> Field<T, [E; N]> {
    /// Returns element `I` of this field, for a field that is an array. The element is also a field.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<[u16; 3]>::new(10)?;
    /// array.set(4, [1, 2, 3])?;
    /// assert_eq!(array.sum(.., Field::<[u16; 3], [u16; 3]>::whole().nth::<2>())?, 3);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// An index outside the array does not compile:
    ///
    /// ```compile_fail
    /// use vmarray::prelude::*;
    /// let fourth = vmarray::Field::<[u16; 3], [u16; 3]>::whole().nth::<3>();
    /// ```
    #[must_use]
    pub const fn nth<const I: usize>(self) -> Field<T, E> {
        const { assert!(I < N, "the index `I` of `nth` must be less than the length `N` of the array") };
        self.part(I * size_of::<E>())
    }
}

/// A value with a condition: a reduction includes the values of only the elements that meet the condition.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<i32>::new(10)?;
/// array.set(2, -5)?;
/// let value = Field::whole();
/// assert_eq!(array.max(.., value.only_where(value.lt(0)))?, Some(-5));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "does nothing unless an operation takes it"]
pub struct Filtered<T, F> {
    value: Expr<T, F>,
    filter: Option<Expr<T, bool>>,
}

impl<T, F> Filtered<T, F> {
    /// Adds a condition that elements must also meet.
    pub(crate) fn within(self, condition: &Expr<T, bool>) -> Self {
        let filter = match self.filter {
            Some(filter) => condition & filter,
            None => condition.clone(),
        };
        Self { filter: Some(filter), ..self }
    }
}

/// An argument of `sum` and other reductions: an expression, or a [`Filtered`] value (an expression with a
/// condition).
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::expr::{Filtered, IntoFiltered};
/// fn total(array: &VirtualArray<u32>, what: impl IntoFiltered<u32, u32>) -> vmarray::Result<i128> {
///     array.sum(.., what)
/// }
/// let (array, value) = (VirtualArray::new(10)?, Field::whole());
/// array.fill(.., 3)?;
/// // Without a condition all elements count.
/// let all: Filtered<u32, u32> = value.into_filtered();
/// assert_eq!((total(&array, value.only_where(value.gt(3)))?, total(&array, all)?), (0, 30));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait IntoFiltered<T, F> {
    /// Converts the argument to a value and its condition.
    fn into_filtered(self) -> Filtered<T, F>;
}

impl<T, F> IntoFiltered<T, F> for Expr<T, F> {
    fn into_filtered(self) -> Filtered<T, F> {
        Filtered { value: self, filter: None }
    }
}

impl<T, F> IntoFiltered<T, F> for &Expr<T, F> {
    fn into_filtered(self) -> Filtered<T, F> {
        self.clone().into_filtered()
    }
}

impl<T: Element, S: FieldType> IntoFiltered<T, S::Value> for Field<T, S> {
    fn into_filtered(self) -> Filtered<T, S::Value> {
        self.into_expr().into_filtered()
    }
}

impl<T, F> IntoFiltered<T, F> for Filtered<T, F> {
    fn into_filtered(self) -> Self {
        self
    }
}

/// An assignment of a value to a field of each element, for `transform` and `assign_where`.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<f32>::new(10)?;
/// let value = Field::whole();
/// array.transform(.., value.set(value + 1.5))?;
/// assert_eq!(array.get(9)?, 1.5);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "writes nothing unless `transform` or `assign_where` takes it"]
pub struct Assignment<T> {
    pub(crate) source: u8,
    pub(crate) offset: u32,
    list: Instructions,
    value: Value,
    marker: PhantomData<fn(&T)>,
}

impl<T> Assignment<T> {
    /// Creates an assignment at run time. The assignment writes `value` of `program`, which must be a number,
    /// to the field at `offset` bytes from the start of the element. The type of the field is the type of the
    /// value. For [joined](crate::compute::Joined) views, the field belongs to the element of the first view.
    /// If the field is outside of the element, the operation that takes the assignment returns an error.
    ///
    /// # Errors
    /// [`Device`](crate::ErrorKind::Device) of kind `InvalidArgument` if the program has no such value, or
    /// the value is a bool.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::device::expr::{Instruction, Program, Type, Value};
    /// use vmarray::expr::Assignment;
    /// let program = Program::new(vec![Instruction::Literal { of: Type::U16, bits: 7 }])?;
    /// let array = VirtualArray::<[u16; 2]>::new(10)?;
    /// array.transform(.., Assignment::from_program(&program, Value(0), 2)?)?;
    /// assert_eq!(array.get(9)?, [0, 7]);
    /// assert!(array.transform(.., Assignment::from_program(&program, Value(0), 3)?).is_err());
    /// assert!(Assignment::<u16>::from_program(&program, Value(1), 0).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn from_program(program: &Program, value: Value, offset: usize) -> Result<Self> {
        let found = program.type_of(value);
        if found.is_none_or(|of| of == Type::Bool) {
            return Err(mistyped(value, &format!("{found:?}, but it must be a number")));
        }
        let (list, value) = Instructions::of_program(program, value);
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        Ok(Self { source: 0, offset, list, value, marker: PhantomData })
    }
}

fn mistyped(value: Value, what: &str) -> crate::Error {
    let error = backend_api::Error::new(backend_api::ErrorKind::InvalidArgument, "expression");
    error.with_detail(format!("value {} is {what}", value.0)).into()
}

impl<T, F: Scalar> Expr<T, F> {
    /// Returns the assignment of this value to a field of a joined view, given its index `source`.
    pub(crate) fn assigned<S: FieldType<Value = F>>(self, source: u8, offset: usize) -> Assignment<T> {
        let Self { list, value, .. } = match S::AS.1 {
            Some((_, narrow)) => self.unary(narrow),
            None => self,
        };
        Assignment {
            source,
            offset: u32::try_from(offset).unwrap_or(u32::MAX),
            list,
            value,
            marker: PhantomData,
        }
    }
}

/// One or several assignments: an [`Assignment`], or an array or vector of them.
///
/// A device reads all fields of an element before it writes the first.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::expr::IntoAssignments;
/// let array = VirtualArray::<[u32; 2]>::new(10)?;
/// array.set(3, [5, 6])?;
/// let pair = Field::<[u32; 2], [u32; 2]>::whole();
/// let (a, b) = (pair.nth::<0>(), pair.nth::<1>());
/// array.transform(.., [a.set(b), b.set(a)].into_assignments())?;
/// assert_eq!(array.get(3)?, [6, 5]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait IntoAssignments<T> {
    /// Converts the argument to a list of assignments.
    fn into_assignments(self) -> Vec<Assignment<T>>;
}

impl<T> IntoAssignments<T> for Assignment<T> {
    fn into_assignments(self) -> Vec<Self> {
        vec![self]
    }
}

impl<T, const N: usize> IntoAssignments<T> for [Assignment<T>; N] {
    fn into_assignments(self) -> Vec<Assignment<T>> {
        self.into()
    }
}

impl<T> IntoAssignments<T> for Vec<Assignment<T>> {
    fn into_assignments(self) -> Self {
        self
    }
}

/// Builds one program for devices from several expressions.
#[derive(Debug, Default)]
pub(crate) struct Lowering(Instructions);

impl Lowering {
    pub(crate) fn expr<T, F>(&mut self, expr: &Expr<T, F>) -> Value {
        self.0.append(&expr.list, expr.value)
    }

    pub(crate) fn assignment<T>(&mut self, assignment: &Assignment<T>) -> Value {
        self.0.append(&assignment.list, assignment.value)
    }

    pub(crate) fn filtered<T, F>(&mut self, filtered: &Filtered<T, F>) -> (Value, Option<Value>) {
        (self.expr(&filtered.value), filtered.filter.as_ref().map(|filter| self.expr(filter)))
    }

    /// Returns the program that computes all added expressions.
    ///
    /// # Errors
    /// An error if the program is too long, or calls a function that expressions cannot call.
    pub(crate) fn program(self) -> Result<Program> {
        self.0.program()
    }
}
