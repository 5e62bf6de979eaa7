//! Functions for the operators, indices and methods in kernels that run on the host: the attribute
//! `#[kernel]` replaces each operator by a call of such a function.
//!
//! The functions implement the rule table of `backend_api::expr`, such as wrapping sums, which every device
//! follows.

use crate::layout::ElementMemory;
use crate::number::{Float, KernelBits, KernelInteger, KernelNumber, KernelScalar, KernelSigned, Rounded};
use crate::place::At;
use crate::shared::{Group, PrivateSlice, Shared};
use crate::stencil::{Anywhere, Window};
use crate::{KernelType, bounds_report, group_ops};
use backend_api::expr::{Integer as _, Number as _};

/// Types with the operators `+`, `-`, `*` and `/`: numbers, and number types of other crates such as
/// `half::f16`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number of at most 64 bits",
    note = "both operands must have the same type: cast one by `x as T`"
)]
pub trait Arithmetic: KernelType {
    fn added(self, other: Self) -> Self;
    fn subtracted(self, other: Self) -> Self;
    fn multiplied(self, other: Self) -> Self;
    fn divided(self, other: Self) -> Self;
}

impl<T: KernelNumber> Arithmetic for T {
    #[inline(always)]
    fn added(self, other: Self) -> Self {
        T::of_native(self.native().plus(other.native()))
    }

    #[inline(always)]
    fn subtracted(self, other: Self) -> Self {
        T::of_native(self.native().minus(other.native()))
    }

    #[inline(always)]
    fn multiplied(self, other: Self) -> Self {
        T::of_native(self.native().times(other.native()))
    }

    #[inline(always)]
    fn divided(self, other: Self) -> Self {
        T::of_native(self.native().divide(other.native()))
    }
}

/// Types with a unary minus.
#[diagnostic::on_unimplemented(message = "`{Self}` has no sign", note = "cast to a signed type: `x as i32`")]
pub trait Negated: KernelType {
    fn negated(self) -> Self;
}

impl<T: KernelSigned> Negated for T {
    #[inline(always)]
    fn negated(self) -> Self {
        T::of_native(self.native().negative())
    }
}

/// Types with the operators `==` and `!=`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a number of at most 64 bits nor a `bool`",
    note = "both operands must have the same type: cast one by `x as T`"
)]
pub trait Equality: KernelType + PartialEq {}
impl<T: KernelScalar> Equality for T {}

/// Types with the operator `<` and related ones.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number of at most 64 bits",
    note = "both operands must have the same type: cast one by `x as T`"
)]
pub trait Ordered: Equality + PartialOrd {}
impl<T: KernelNumber> Ordered for T {}

macro_rules! operators {
    ($($name:ident $method:ident;)*) => { $(
        #[inline(always)]
        pub fn $name<T: Arithmetic>(a: T, b: T) -> T {
            a.$method(b)
        }
    )* };
}
operators! {
    add added;
    sub subtracted;
    mul multiplied;
    div divided;
}

macro_rules! numbers {
    ($($name:ident $method:ident;)*) => { $(
        #[inline(always)]
        pub fn $name<T: KernelNumber>(a: T, b: T) -> T {
            T::of_native(a.native().$method(b.native()))
        }
    )* };
}
numbers! {
    min least;
    max greatest;
    wrapping_add plus;
    wrapping_sub minus;
    wrapping_mul times;
    wrapping_div divide;
}

macro_rules! bits {
    ($($name:ident $operator:tt;)*) => { $(
        #[inline(always)]
        pub fn $name<T: KernelBits>(a: T, b: T) -> T {
            T::from_value(a.to_value() $operator b.to_value())
        }
    )* };
}
bits! {
    and &;
    or |;
    xor ^;
}

macro_rules! comparisons {
    ($($name:ident $Trait:ident $operator:tt;)*) => { $(
        #[inline(always)]
        pub fn $name<T: $Trait>(a: T, b: T) -> bool {
            a $operator b
        }
    )* };
}
comparisons! {
    eq Equality ==;
    ne Equality !=;
    lt Ordered <;
    le Ordered <=;
    gt Ordered >;
    ge Ordered >=;
}

macro_rules! roundings {
    ($($name:ident $How:ident;)*) => { $(
        #[inline(always)]
        pub fn $name<T: Float>(x: T) -> T {
            x.rounded(Rounded::$How)
        }
    )* };
}
roundings! {
    sqrt Sqrt;
    floor Floor;
    ceil Ceil;
    trunc Trunc;
    round_ties_even Even;
}

macro_rules! approximate {
    ($($name:ident $exact:ident;)*) => { $(
        #[inline(always)]
        pub fn $name(x: f32) -> f32 {
            crate::math::$exact(x)
        }
    )* };
}
approximate! {
    approx_exp2 exp2;
    approx_log2 log2;
    approx_sin sin;
    approx_cos cos;
    approx_rsqrt rsqrt;
}

#[inline(always)]
pub fn rem<T: KernelInteger>(a: T, b: T) -> T {
    T::of_native_integer(a.native_integer().remainder(b.native_integer()))
}

#[inline(always)]
pub fn wrapping_rem<T: KernelInteger>(a: T, b: T) -> T {
    rem(a, b)
}

#[inline(always)]
pub fn shl<T: KernelInteger, U: KernelInteger>(a: T, by: U) -> T {
    T::of_native_integer(a.native_integer().shift_left(cast::<U, T>(by).native_integer()))
}

#[inline(always)]
pub fn shr<T: KernelInteger, U: KernelInteger>(a: T, by: U) -> T {
    T::of_native_integer(a.native_integer().shift_right(cast::<U, T>(by).native_integer()))
}

#[inline(always)]
pub fn wrapping_shl<T: KernelInteger>(a: T, by: u32) -> T {
    shl(a, by)
}

#[inline(always)]
pub fn wrapping_shr<T: KernelInteger>(a: T, by: u32) -> T {
    shr(a, by)
}

#[inline(always)]
pub fn not<T: KernelBits>(a: T) -> T {
    // `from_value` drops the higher bits that the complement sets.
    T::from_value(!a.to_value())
}

#[inline(always)]
pub fn neg<T: Negated>(a: T) -> T {
    a.negated()
}

#[inline(always)]
pub fn wrapping_neg<T: KernelInteger>(a: T) -> T {
    T::of_native(a.native().negative())
}

#[inline(always)]
pub fn abs<T: KernelSigned>(a: T) -> T {
    T::of_native(a.native().absolute())
}

#[inline(always)]
pub fn wrapping_abs<T: KernelSigned>(a: T) -> T {
    abs(a)
}

#[inline(always)]
pub fn cast<T: KernelScalar, U: KernelNumber>(a: T) -> U {
    U::of_widened(a.widened())
}

#[inline(always)]
pub fn mul_add<T: Float>(a: T, b: T, c: T) -> T {
    a.fused(b, c)
}

#[inline(always)]
pub fn mul_high<T: KernelInteger>(a: T, b: T) -> T {
    a.high_product(b)
}

#[inline(always)]
pub fn count_ones<T: KernelInteger>(a: T) -> u32 {
    a.ones()
}

#[inline(always)]
pub fn leading_zeros<T: KernelInteger>(a: T) -> u32 {
    a.zeros_above()
}

#[inline(always)]
pub fn trailing_zeros<T: KernelInteger>(a: T) -> u32 {
    a.zeros_below()
}

#[inline(always)]
pub fn reverse_bits<T: KernelInteger>(a: T) -> T {
    a.reversed()
}

#[inline(always)]
pub fn to_bits<T: Float>(a: T) -> T::Bits {
    a.bits()
}

#[inline(always)]
pub fn from_bits<T: Float>(bits: T::Bits) -> T {
    T::of_bits(bits)
}

/// A 16-bit float, with the feature `half`: `half::f16` or `half::bf16`. `x.to_f32()` and `T::from_f32(x)`
/// convert to `f32` and back. Operators compute in `f32` and round each result to nearest even. Each
/// conversion takes a few instructions on every device.
///
/// ```
/// # #[cfg(feature = "half")]
/// # {
/// use vmarray_kernel::{Half, half::{bf16, f16}, kernel};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn doubled<T: Half>(x: T) -> T {
///     T::from_f32(x.to_f32() * 2.0)
/// }
/// assert_eq!(doubled(f16::from_f32(1.5)), f16::from_f32(3.0));
/// assert_eq!(doubled(bf16::from_f32(-0.1)), bf16::from_f32(-0.1) + bf16::from_f32(-0.1));
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a 16-bit float",
    note = "16-bit floats are `half::f16` and `half::bf16`, with the feature `half`; cast other numbers: `x \
            as f32`"
)]
pub trait Half: Arithmetic + Negated + Ordered {
    /// Converts the value to `f32`.
    #[doc(hidden)]
    fn widened(self) -> f32;

    /// Returns the nearest 16-bit float; ties go to the even one.
    #[doc(hidden)]
    fn nearest(number: f32) -> Self;
}

#[inline(always)]
pub fn to_f32<T: Half>(a: T) -> f32 {
    a.widened()
}

#[inline(always)]
pub fn from_f32<T: Half>(a: f32) -> T {
    T::nearest(a)
}

/// Types whose elements a kernel can read by an index of type `I`.
#[diagnostic::on_unimplemented(
    message = "a `{I}` cannot index a `{Self}`: write `a[i as usize]`, `a[[i, j]]` along several axes, and \
               `a[at]` for a `Window`",
    label = "wrong type of index"
)]
pub trait IndexedElements<I> {
    type Element: KernelType;

    /// Returns the element, or zero if the index is out of bounds.
    fn element(&self, index: I) -> Self::Element;
}

impl<T: KernelType, const N: usize> IndexedElements<usize> for [T; N] {
    type Element = T;

    #[inline(always)]
    fn element(&self, index: usize) -> T {
        match self.get(index) {
            Some(element) => *element,
            None => bounds_report::read(index),
        }
    }
}

impl<T: ElementMemory> IndexedElements<usize> for Anywhere<T> {
    type Element = T;

    #[inline(always)]
    fn element(&self, index: usize) -> T {
        match Self::element(self, index) {
            Some(element) => element,
            None => bounds_report::read(index),
        }
    }
}

macro_rules! groups {
    ($([$($extent:ident)*] $Index:ty, $Of:ty;)*) => { $(
        impl<T: KernelType, $(const $extent: usize),*> IndexedElements<$Index> for $Of {
            type Element = T;

            fn element(&self, _: $Index) -> T {
                group_ops::never()
            }
        }
    )* };
}
// Implement each number of axes separately: rustc then infers `usize` for an index along one axis.
groups! {
    [A] usize, Group<T, A>;
    [A B] [usize; 2], Group<T, A, B, 0>;
    [A B C] [usize; 3], Group<T, A, B, C>;
    [A B C D] [usize; 4], Group<T, A, B, C, D>;
}

impl<T: ElementMemory> IndexedElements<usize> for PrivateSlice<T> {
    type Element = T;

    #[inline(always)]
    fn element(&self, index: usize) -> T {
        Self::element(self, index).unwrap_or_else(|| bounds_report::read(index))
    }
}

impl<T: ElementMemory> IndexedElements<usize> for Shared<T> {
    type Element = T;

    #[inline(always)]
    fn element(&self, index: usize) -> T {
        Self::element(self, index).unwrap_or_else(|| bounds_report::read(index))
    }
}

impl<T: ElementMemory, const N: usize> IndexedElements<At<N>> for Window<T, N> {
    type Element = T;

    #[inline(always)]
    fn element(&self, at: At<N>) -> T {
        Self::element(self, at).unwrap_or_else(bounds_report::read)
    }
}

macro_rules! positions {
    ($($N:literal)*) => { $(
        // Use a separate implementation for arrays of one axis: rustc then infers `usize` for their indices.
        impl<T: ElementMemory> IndexedElements<[usize; $N]> for Anywhere<T, $N> {
            type Element = T;

            #[inline(always)]
            fn element(&self, position: [usize; $N]) -> T {
                self.element_at(position).unwrap_or_else(bounds_report::read)
            }
        }
    )* };
}
positions!(2 3 4);

/// Reads the index of a position along an axis.
impl<const N: usize> IndexedElements<usize> for At<N> {
    type Element = usize;

    #[inline(always)]
    fn element(&self, axis: usize) -> usize {
        self.axis(axis).unwrap_or_else(|| bounds_report::read(axis))
    }
}

/// Types whose elements a kernel can assign by an index of type `I`.
#[diagnostic::on_unimplemented(
    message = "a `{I}` cannot index a `{Self}` in an assignment: write `a[i as usize] = value` for a local \
               array, `a.set(i, value)` for memory of a group or an item",
    label = "this cannot be assigned"
)]
pub trait ElementsMut<I> {
    type Element;

    /// Returns a reference to the element, or `None` if the index is out of bounds.
    fn place(&mut self, index: I) -> Option<&mut Self::Element>;
}

impl<T: KernelType, const N: usize> ElementsMut<usize> for [T; N] {
    type Element = T;

    #[inline(always)]
    fn place(&mut self, index: usize) -> Option<&mut T> {
        let place = self.get_mut(index);
        if place.is_none() {
            bounds_report::note(index);
        }
        place
    }
}

/// Evaluates the kernel expression `a[index]` on the host.
#[inline(always)]
pub fn at<A: IndexedElements<I> + ?Sized, I>(a: &A, index: I) -> A::Element {
    a.element(index)
}

/// Type check for a stored value: implemented only if the value has the element type `T`.
#[diagnostic::on_unimplemented(
    message = "the elements are `{T}`, but this value is a `{Self}`: cast it, `value as {T}`",
    label = "a `{T}` is needed here"
)]
pub trait Fits<T> {
    fn fit(self) -> T;
}

/// Type check for an index: implemented only if the index has the type `T`.
#[diagnostic::on_unimplemented(
    message = "the index must be a `{T}`, but this is a `{Self}`: cast it, `i as {T}`",
    label = "a `{T}` is needed here"
)]
pub trait FitsIndex<T> {
    fn fit(self) -> T;
}

impl<T> Fits<T> for T {
    #[inline(always)]
    fn fit(self) -> T {
        self
    }
}

impl<T> FitsIndex<T> for T {
    #[inline(always)]
    fn fit(self) -> T {
        self
    }
}

/// A type without values that also implements [`Fits`]. If a value fitted only one element type, rustc would
/// infer this type, and report confusing errors.
pub enum NoElement {}

macro_rules! fit_nothing {
    ($($T:ty)*) => { $(
        impl Fits<NoElement> for $T {
            fn fit(self) -> NoElement {
                crate::inferred_types::never()
            }
        }

        impl FitsIndex<NoElement> for $T {
            fn fit(self) -> NoElement {
                crate::inferred_types::never()
            }
        }
    )* };
}
fit_nothing!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 bool);

/// An index, or an argument of a view's method, in the code that `#[kernel]` generates. The wrapper makes
/// rustc infer the argument's type before the parameter's type, for better error messages.
pub struct ViewArgument<V>(pub V);

impl<V> ViewArgument<V> {
    /// Returns the element of an array at this index.
    #[inline(always)]
    pub fn of<A: IndexedElements<V> + ?Sized>(self, array: &A) -> A::Element {
        array.element(self.0)
    }

    /// Returns a reference to the element at this index; `None` if the index is out of bounds.
    #[inline(always)]
    pub fn place<A: ElementsMut<V> + ?Sized>(self, array: &mut A) -> Option<&mut A::Element> {
        array.place(self.0)
    }

    #[inline(always)]
    pub fn element<T>(self) -> T
    where
        V: Fits<T>,
    {
        self.0.fit()
    }

    #[inline(always)]
    pub fn index<T>(self) -> T
    where
        V: FitsIndex<T>,
    {
        self.0.fit()
    }
}

/// The iterator of a `for` loop over integers, when a kernel runs on the host.
pub struct IntegerRange<T, const REVERSED: bool> {
    next: Option<T>,
    last: T,
    step: u64,
}

/// Returns every `step`-th number from `start` to `end`: including `end` if `CLOSED`, and descending if
/// `REVERSED`. A `step` of 0 counts as 1.
#[inline(always)]
pub fn range<T: KernelInteger, const CLOSED: bool, const REVERSED: bool>(
    start: T,
    end: T,
    step: usize,
) -> IntegerRange<T, REVERSED> {
    let is_empty = if CLOSED { start > end } else { start >= end };
    let greatest = if CLOSED { end } else { sub(end, T::ONE) };
    let (first, last) = if REVERSED { (greatest, start) } else { (start, greatest) };
    IntegerRange { next: (!is_empty).then_some(first), last, step: step.max(1) as u64 }
}

impl<T: KernelInteger, const REVERSED: bool> IntegerRange<T, REVERSED> {
    /// Returns the distance from the next to the last number: at least the number of remaining iterations.
    #[inline(always)]
    pub(crate) fn distance(&self) -> u64 {
        let Some(next) = self.next else { return 0 };
        let (from, to): (u64, u64) = (cast(next), cast(self.last));
        if REVERSED { from.wrapping_sub(to) } else { to.wrapping_sub(from) }
    }
}

impl<T: KernelInteger, const REVERSED: bool> Iterator for IntegerRange<T, REVERSED> {
    type Item = T;

    #[inline(always)]
    fn next(&mut self) -> Option<T> {
        let number = self.next?;
        let (from, to): (u64, u64) = (cast(number), cast(self.last));
        let left = if REVERSED { from.wrapping_sub(to) } else { to.wrapping_sub(from) };
        let step = cast(self.step);
        let after = if REVERSED { sub(number, step) } else { add(number, step) };
        self.next = (left >= self.step).then_some(after);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_ranges_match_rust() {
        let ends = [i8::MIN, -3, -1, 0, 1, 5, i8::MAX];
        for (start, end) in ends.into_iter().flat_map(|start| ends.map(|end| (start, end))) {
            for step in [1, 2, 7, 100, 255, 300] {
                let open: Vec<i8> = range::<_, false, false>(start, end, step).collect();
                assert_eq!(open, (start..end).step_by(step).collect::<Vec<i8>>(), "{start}..{end} by {step}");
                let closed: Vec<i8> = range::<_, true, false>(start, end, step).collect();
                assert_eq!(closed, (start..=end).step_by(step).collect::<Vec<i8>>());
                let down: Vec<i8> = range::<_, true, true>(start, end, step).collect();
                assert_eq!(down, (start..=end).rev().step_by(step).collect::<Vec<i8>>());
                let down: Vec<i8> = range::<_, false, true>(start, end, step).collect();
                assert_eq!(down, (start..end).rev().step_by(step).collect::<Vec<i8>>());
            }
        }
        assert_eq!(range::<_, true, false>(u64::MAX - 1, u64::MAX, 1).count(), 2);
        assert_eq!(range::<u8, false, false>(0, 2, 0).count(), 2);
    }

    #[test]
    fn casts_are_those_of_rust() {
        for x in [-1e30_f64, -129.5, -1.0, -0.0, 0.99, 255.5, 3e9, 1e20, f64::NAN, f64::INFINITY] {
            assert_eq!(
                (cast::<_, u8>(x), cast::<_, i64>(x), cast::<_, u64>(x)),
                (x as u8, x as i64, x as u64)
            );
            assert_eq!(cast::<_, f32>(x).to_bits(), (x as f32).to_bits());
        }
        for x in [i64::MIN, -1, 0, 77, (1 << 53) + 1, i64::MAX] {
            assert_eq!(
                (cast::<_, u8>(x), cast::<_, i16>(x), cast::<_, u64>(x)),
                (x as u8, x as i16, x as u64)
            );
            assert_eq!((cast::<_, f32>(x), cast::<_, f64>(x)), (x as f32, x as f64));
        }
        assert_eq!(cast::<_, f32>(true), 1.0);
    }

    #[test]
    fn shifts_take_their_width_modulo() {
        assert_eq!((shl(1_u8, 9_i64), shr(-8_i32, -31_i8), shl(1_u64, 256_u16)), (2, -4, 1));
    }

    #[test]
    fn indices_outside_read_zero_and_write_nothing() {
        let mut array = [1, 2, 3];
        assert_eq!((at(&array, 2), at(&array, 3)), (3, 0));
        assert!(ViewArgument(7).place(&mut array).is_none());
        assert_eq!(bounds_report::take().map(|outside| outside.count), Some(2));
        assert_eq!(bounds_report::take(), None);
    }
}
