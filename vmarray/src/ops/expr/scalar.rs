//! Traits of the value types of expressions (numbers and `bool`), and of the types of element fields.

use backend_api::expr::{Number, Type, Unary};
use bytemuck::NoUninit;

mod sealed {
    pub trait SealedScalar {}
    pub trait SealedFieldType {}
}

/// The types of values in expressions: `bool`, `u8` to `u64`, `i8` to `i64`, `f32` and `f64`. The types of
/// element fields are [`FieldType`]s.
///
/// ```
/// use vmarray::expr::{Number, Scalar};
///
/// assert_eq!(f32::TYPE.bytes(), 4);
/// assert_eq!((true.bits(), (-2_i8).bits(), 1.0_f32.bits()), (1, 0xFE, 0x3F80_0000));
/// // In generic code, too.
/// fn bytes_of<F: Scalar + Number>(len: usize) -> usize {
///     len * F::TYPE.bytes() as usize
/// }
/// assert_eq!(bytes_of::<u16>(10), 20);
/// ```
pub trait Scalar: sealed::SealedScalar + Copy + Send + Sync + 'static {
    /// The type as an enum value, for programs.
    const TYPE: Type;

    /// Returns the bits of the value, extended by zeros to 64 bits.
    fn bits(self) -> u64;
}

impl sealed::SealedScalar for bool {}
impl Scalar for bool {
    const TYPE: Type = Type::Bool;
    fn bits(self) -> u64 {
        self.into()
    }
}

/// The type of a field. A field can be a number, and then has a value of the same type in expressions. With
/// the feature `half`, a field can also be a `half::f16` or `half::bf16`, and then has an `f32` value. An
/// assignment to a 16-bit float rounds to nearest even, and to infinity if the value is too large.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::expr::FieldType;
/// fn mean<F: FieldType<Value = f32> + vmarray::Element>(array: &VirtualArray<F>) -> vmarray::Result<f64> {
///     Ok(array.sum(.., Field::<F, F>::whole())? / array.len() as f64)
/// }
/// let array = VirtualArray::<f32>::new(10)?;
/// array.set(3, 5.0)?;
/// assert_eq!(mean(&array)?, 0.5);
/// # #[cfg(feature = "half")]
/// # {
/// use vmarray::half::{bf16, f16};
/// let (short, brain) = (VirtualArray::<f16>::new(1000)?, VirtualArray::<bf16>::new(1000)?);
/// let x = Field::<f16, f16>::whole();
/// short.transform(.., x.set(vmarray::expr::index().cast::<f32>() / 3.0))?;
/// assert_eq!(short.get(100)?, f16::from_f32(100.0 / 3.0));
/// assert_eq!((short.count_where(.., x.lt(1.0))?, short.max(.., x)?), (3, Some(333.0)));
/// brain.fill(.., bf16::from_f32(0.5))?;
/// assert_eq!((mean(&brain)?, brain.sum(.., Field::<bf16, bf16>::whole().sqrt())? < 708.0), (0.5, true));
/// # }
/// # Ok::<(), vmarray::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "expressions do not support fields of type `{Self}`",
    note = "expressions support numbers of at most 64 bits, and `f16` and `bf16` with the feature `half`; \
            select an element of an array by `nth`, a part of a complex number by `re` or `im`"
)]
pub trait FieldType: sealed::SealedFieldType + NoUninit {
    /// The type of the field's value in expressions.
    type Value: Scalar + Number;
    /// The type in memory, and for 16-bit floats the conversions from and to `f32`.
    #[doc(hidden)]
    const AS: (Type, Option<(Unary, Unary)>);
}

#[cfg(feature = "half")]
macro_rules! halves {
    ($($T:ident $From:ident $To:ident;)*) => { $(
        impl sealed::SealedFieldType for half::$T {}
        impl FieldType for half::$T {
            type Value = f32;
            const AS: (Type, Option<(Unary, Unary)>) = (Type::U16, Some((Unary::$From, Unary::$To)));
        }
    )* };
}
#[cfg(feature = "half")]
halves! {
    f16 FromF16 ToF16;
    bf16 FromBf16 ToBf16;
}

/// Types with the operators `&`, `|`, `^` and `!`: integers and `bool`.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::expr::{Bits, IntoExpr, Scalar};
/// let array = VirtualArray::<u8>::new(10)?;
/// assert_eq!(array.max(.., !Field::whole())?, Some(255));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Bits: Scalar {}

impl Bits for bool {}

/// Types of numbers with a sign: `i8` to `i64`, `f32` and `f64`.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<i64>::new(10)?;
/// array.fill(.., 3)?;
/// assert_eq!(array.sum(.., -Field::whole())?, -30);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Signed: Scalar + Number {}

/// Types of numbers that can be summed. Integers have exact sums of type `i128`; floats have sums of type
/// `f64`.
///
/// ```
/// use vmarray::expr::Summed;
/// let total: <u32 as Summed>::Sum = 7_i128;
/// # let _ = total;
/// ```
pub trait Summed: Scalar + Number {
    /// The type of the sum.
    type Sum: Copy + Default + PartialEq + std::fmt::Debug + Send + std::ops::Add<Output = Self::Sum>;
    /// Adds the sums of several devices.
    #[doc(hidden)]
    fn sum(partials: &[backend_api::expr::Partial]) -> Self::Sum;
}

macro_rules! numbers {
    ($($T:ident $Type:ident $Sum:ident $sum:ident;)*) => { $(
        impl sealed::SealedScalar for $T {}
        impl Scalar for $T {
            const TYPE: Type = Type::$Type;
            fn bits(self) -> u64 {
                self.to_value()
            }
        }
        impl sealed::SealedFieldType for $T {}
        impl FieldType for $T {
            type Value = Self;
            const AS: (Type, Option<(Unary, Unary)>) = (Type::$Type, None);
        }
        impl Summed for $T {
            type Sum = $Sum;
            fn sum(partials: &[backend_api::expr::Partial]) -> $Sum {
                backend_api::expr::Partial::$sum(partials)
            }
        }
    )* };
}
numbers! {
    u8 U8 i128 sum_of_integers;
    u16 U16 i128 sum_of_integers;
    u32 U32 i128 sum_of_integers;
    u64 U64 i128 sum_of_integers;
    i8 I8 i128 sum_of_integers;
    i16 I16 i128 sum_of_integers;
    i32 I32 i128 sum_of_integers;
    i64 I64 i128 sum_of_integers;
    f32 F32 f64 sum_of_floats;
    f64 F64 f64 sum_of_floats;
}

macro_rules! marked {
    ($Trait:ident: $($T:ident)*) => { $(impl $Trait for $T {})* };
}
marked!(Signed: i8 i16 i32 i64 f32 f64);
marked!(Bits: u8 u16 u32 u64 i8 i16 i32 i64);
