//! Number traits for kernels that are generic in the type of their numbers.

use crate::layout::{KernelType, Layout};
use backend_api::expr::{self, Type};

/// A number or a bool: a kernel value that takes one register of a device.
///
/// ```
/// use vmarray_kernel::KernelScalar;
/// assert_eq!((<f32 as KernelScalar>::from_value(0x3F80_0000), KernelScalar::to_value(true)), (1.0, 1));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a number of at most 64 bits nor a `bool`",
    note = "both operands must have the same type: cast one by `x as T`"
)]
pub trait KernelScalar: KernelType + PartialEq {
    /// Type of the value in kernels on devices.
    const TYPE: Type;

    /// Returns the value with these bits.
    fn from_value(bits: u64) -> Self;

    /// Returns the bits of the value, padded with zeros.
    fn to_value(self) -> u64;

    /// Returns the value in a type that is wide enough for conversion to any number.
    #[doc(hidden)]
    fn widened(self) -> Widened;
}

/// A number of any [`KernelNumber`] type, widened to a 128-bit integer or to a float.
#[doc(hidden)]
pub enum Widened {
    Integer(i128),
    F32(f32),
    F64(f64),
}

/// A number: an integer or a float.
///
/// ```
/// use vmarray_kernel::{kernel, KernelNumber};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn positive_part<T: KernelNumber>(x: T) -> T {
///     if x > T::ZERO { x } else { T::ZERO }
/// }
/// assert_eq!((positive_part(-3), positive_part(2.5)), (0, 2.5));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number of at most 64 bits",
    note = "both operands must have the same type: cast one by `x as T`"
)]
pub trait KernelNumber: KernelScalar + PartialOrd {
    /// The number one.
    const ONE: Self;
    /// Smallest value of the type.
    const MIN: Self;
    /// Greatest value of the type.
    const MAX: Self;
    /// Number of bits of the type.
    const BITS: u32;
    /// True for `f32` and `f64`.
    const IS_FLOAT: bool;

    /// Type of the same width for which `backend_api::expr` implements the arithmetic.
    #[doc(hidden)]
    type Native: expr::Number;

    /// Converts to the type `Native`.
    #[doc(hidden)]
    fn native(self) -> Self::Native;

    /// Converts from the type `Native`.
    #[doc(hidden)]
    fn of_native(native: Self::Native) -> Self;

    /// Converts a number to this type, with the rules of `as`.
    #[doc(hidden)]
    fn of_widened(number: Widened) -> Self;
}

/// A signed integer or a float.
///
/// ```
/// use vmarray_kernel::{kernel, KernelSigned};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn mirrored<T: KernelSigned>(x: T) -> T {
///     -x
/// }
/// assert_eq!((mirrored(3), mirrored(2.5)), (-3, -2.5));
/// ```
#[diagnostic::on_unimplemented(message = "`{Self}` has no sign", note = "cast to a signed type: `x as i32`")]
pub trait KernelSigned: KernelNumber {}

/// A type with bitwise operators: an integer or a bool.
///
/// ```
/// use vmarray_kernel::{kernel, KernelBits};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn only_first<T: KernelBits>(a: T, b: T) -> T {
///     a & !b
/// }
/// assert_eq!((only_first(0b1100, 0b1010), only_first(true, false)), (0b0100, true));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no bitwise operators",
    note = "take a float's bits by `x.to_bits()`"
)]
pub trait KernelBits: KernelScalar {}

/// An integer of at most 64 bits, signed or unsigned.
///
/// ```
/// use vmarray_kernel::{kernel, KernelInteger};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn gcd<T: KernelInteger>(a: T, b: T) -> T {
///     let (mut a, mut b) = (a, b);
///     while b != T::ZERO {
///         (a, b) = (b, a % b);
///     }
///     a
/// }
/// assert_eq!((gcd(12_u8, 18), gcd(35_i64, 21)), (6, 7));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an integer of at most 64 bits",
    note = "write `x as i64`, or the method for floats"
)]
pub trait KernelInteger: KernelNumber + KernelBits {
    /// The unsigned type of the same width.
    type Unsigned: KernelInteger;

    /// Type of the same width for which `backend_api::expr` implements the arithmetic of integers.
    #[doc(hidden)]
    type NativeInteger: expr::Integer;

    /// Converts to the type `NativeInteger`.
    #[doc(hidden)]
    fn native_integer(self) -> Self::NativeInteger;

    /// Converts from the type `NativeInteger`.
    #[doc(hidden)]
    fn of_native_integer(native: Self::NativeInteger) -> Self;

    /// Returns the number of one bits.
    #[doc(hidden)]
    fn ones(self) -> u32;

    /// Returns the number of leading zero bits.
    #[doc(hidden)]
    fn zeros_above(self) -> u32;

    /// Returns the number of trailing zero bits.
    #[doc(hidden)]
    fn zeros_below(self) -> u32;

    /// Returns the bits in reverse order.
    #[doc(hidden)]
    fn reversed(self) -> Self;

    /// Returns the upper half of the product, which has twice the width.
    #[doc(hidden)]
    fn high_product(self, other: Self) -> Self;
}

/// A float: `f32` or `f64`.
///
/// ```
/// use vmarray_kernel::{kernel, Float};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn norm<T: Float>(x: T, y: T) -> T {
///     (x * x + y * y).sqrt()
/// }
/// assert_eq!((norm(3_f32, 4.0), norm(5.0, 12.0)), (5.0, 13.0));
/// ```
#[diagnostic::on_unimplemented(message = "`{Self}` is neither `f32` nor `f64`", note = "write `x as f32`")]
pub trait Float: KernelSigned {
    /// Unsigned integer type of the same width, for the float's bits.
    type Bits: KernelInteger;
    /// Bits in which only the sign bit is set.
    const SIGN: Self::Bits;
    /// The number 0.5.
    const HALF: Self;
    /// Positive infinity.
    const INFINITY: Self;

    /// Returns the bits.
    #[doc(hidden)]
    fn bits(self) -> Self::Bits;

    /// Returns the number with these bits.
    #[doc(hidden)]
    fn of_bits(bits: Self::Bits) -> Self;

    /// Applies an operation to the float that IEEE 754 defines exactly.
    #[doc(hidden)]
    fn rounded(self, how: Rounded) -> Self;

    /// Returns `self * factor + summand`, rounded once.
    #[doc(hidden)]
    fn fused(self, factor: Self, summand: Self) -> Self;
}

/// An operation on one float whose result IEEE 754 defines exactly, such as rounding.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub enum Rounded {
    Sqrt,
    Floor,
    Ceil,
    Trunc,
    Even,
}

macro_rules! scalars {
    ($($T:ident $Type:ident $zero:literal |$x:ident| $widened:expr, |$bits:ident| $from:expr, $to:expr;)*) => { $(
        impl KernelType for $T {
            const ZERO: Self = $zero;

            fn layout() -> Layout {
                Layout::Scalar(Type::$Type)
            }

            fn values(self, into: &mut Vec<u64>) {
                into.push(self.to_value());
            }

            fn of_values(next: &mut impl FnMut() -> u64) -> Self {
                Self::from_value(next())
            }
        }

        impl KernelScalar for $T {
            const TYPE: Type = Type::$Type;

            #[inline(always)]
            fn from_value($bits: u64) -> Self {
                $from
            }

            #[inline(always)]
            fn to_value(self) -> u64 {
                let $x = self;
                $to
            }

            #[inline(always)]
            fn widened(self) -> Widened {
                let $x = self;
                $widened
            }
        }
    )* };
}
scalars! {
    bool Bool false |x| Widened::Integer(i128::from(x)), |bits| bits & 1 != 0, u64::from(x);
    u8 U8 0 |x| Widened::Integer(x.into()), |bits| bits as u8, x.into();
    u16 U16 0 |x| Widened::Integer(x.into()), |bits| bits as u16, x.into();
    u32 U32 0 |x| Widened::Integer(x.into()), |bits| bits as u32, x.into();
    u64 U64 0 |x| Widened::Integer(x.into()), |bits| bits, x;
    usize U64 0 |x| Widened::Integer(x as i128), |bits| bits as usize, x as u64;
    i8 I8 0 |x| Widened::Integer(x.into()), |bits| bits as i8, u64::from(x as u8);
    i16 I16 0 |x| Widened::Integer(x.into()), |bits| bits as i16, u64::from(x as u16);
    i32 I32 0 |x| Widened::Integer(x.into()), |bits| bits as i32, u64::from(x as u32);
    i64 I64 0 |x| Widened::Integer(x.into()), |bits| bits as i64, x as u64;
    isize I64 0 |x| Widened::Integer(x as i128), |bits| bits as isize, x as u64;
    f32 F32 0.0 |x| Widened::F32(x), |bits| f32::from_bits(bits as u32), x.to_bits().into();
    f64 F64 0.0 |x| Widened::F64(x), |bits| f64::from_bits(bits), x.to_bits();
}

macro_rules! numbers {
    ($($T:ident $Native:ident $one:literal $is_float:literal;)*) => { $(
        impl KernelNumber for $T {
            const ONE: Self = $one;
            const MIN: Self = $T::MIN;
            const MAX: Self = $T::MAX;
            const BITS: u32 = 8 * size_of::<$T>() as u32;
            const IS_FLOAT: bool = $is_float;
            type Native = $Native;

            #[inline(always)]
            fn native(self) -> $Native {
                self as $Native
            }

            #[inline(always)]
            fn of_native(native: $Native) -> Self {
                native as $T
            }

            #[inline(always)]
            fn of_widened(number: Widened) -> Self {
                match number {
                    Widened::Integer(number) => number as $T,
                    Widened::F32(number) => number as $T,
                    Widened::F64(number) => number as $T,
                }
            }
        }
    )* };
}
numbers! {
    u8 u8 1 false;
    u16 u16 1 false;
    u32 u32 1 false;
    u64 u64 1 false;
    usize u64 1 false;
    i8 i8 1 false;
    i16 i16 1 false;
    i32 i32 1 false;
    i64 i64 1 false;
    isize i64 1 false;
    f32 f32 1.0 true;
    f64 f64 1.0 true;
}

macro_rules! integers {
    ($($T:ident $Unsigned:ident $Native:ident $Wide:ident;)*) => { $(
        impl KernelBits for $T {}

        impl KernelInteger for $T {
            type Unsigned = $Unsigned;
            type NativeInteger = $Native;

            #[inline(always)]
            fn native_integer(self) -> $Native {
                self as $Native
            }

            #[inline(always)]
            fn of_native_integer(native: $Native) -> Self {
                native as $T
            }

            #[inline(always)]
            fn ones(self) -> u32 {
                self.count_ones()
            }

            #[inline(always)]
            fn zeros_above(self) -> u32 {
                self.leading_zeros()
            }

            #[inline(always)]
            fn zeros_below(self) -> u32 {
                self.trailing_zeros()
            }

            #[inline(always)]
            fn reversed(self) -> Self {
                self.reverse_bits()
            }

            #[inline(always)]
            fn high_product(self, other: Self) -> Self {
                ((self as $Wide * other as $Wide) >> $T::BITS) as $T
            }
        }
    )* };
}
integers! {
    u8 u8 u8 u16;
    u16 u16 u16 u32;
    u32 u32 u32 u64;
    u64 u64 u64 u128;
    usize usize u64 u128;
    i8 u8 i8 i16;
    i16 u16 i16 i32;
    i32 u32 i32 i64;
    i64 u64 i64 i128;
    isize usize i64 i128;
}
impl KernelBits for bool {}

macro_rules! signed {
    ($($T:ident)*) => { $(impl KernelSigned for $T {})* };
}
signed!(i8 i16 i32 i64 isize f32 f64);

macro_rules! floats {
    ($($T:ident $Bits:ident;)*) => { $(
        impl Float for $T {
            type Bits = $Bits;
            const SIGN: $Bits = 1 << ($Bits::BITS - 1);
            const HALF: Self = 0.5;
            const INFINITY: Self = $T::INFINITY;

            #[inline(always)]
            fn bits(self) -> $Bits {
                self.to_bits()
            }

            #[inline(always)]
            fn of_bits(bits: $Bits) -> Self {
                $T::from_bits(bits)
            }

            #[inline(always)]
            fn rounded(self, how: Rounded) -> Self {
                match how {
                    Rounded::Sqrt => self.sqrt(),
                    Rounded::Floor => self.floor(),
                    Rounded::Ceil => self.ceil(),
                    Rounded::Trunc => self.trunc(),
                    Rounded::Even => self.round_ties_even(),
                }
            }

            #[inline(always)]
            fn fused(self, factor: Self, summand: Self) -> Self {
                self.mul_add(factor, summand)
            }
        }
    )* };
}
floats! { f32 u32; f64 u64; }
