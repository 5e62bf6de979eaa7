//! The types of values.

use backend_api::expr::{Number, Type};

mod sealed {
    pub trait SealedScalar {}
}

/// What a value can be: `bool`, `u8` to `u64`, `i8` to `i64`, `f32` and `f64`.
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
    /// Which type it is.
    const TYPE: Type;

    /// Its bits, the higher ones zero.
    fn bits(self) -> u64;
}

impl sealed::SealedScalar for bool {}
impl Scalar for bool {
    const TYPE: Type = Type::Bool;
    fn bits(self) -> u64 {
        self.into()
    }
}

/// Values that have bits: integers, and bools.
///
/// ```
/// # use vmarray::prelude::*;
/// use vmarray::expr::{Bits, IntoExpr, Scalar};
/// let array = VirtualArray::<u8>::new(10)?;
/// assert_eq!(array.max(.., !Field::whole())?, Some(255));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Bits: Scalar {}

impl Bits for bool {}

/// Numbers that have a sign.
///
/// ```
/// # use vmarray::prelude::*;
/// let array = VirtualArray::<i64>::new(10)?;
/// array.fill(.., 3)?;
/// assert_eq!(array.sum(.., -Field::whole())?, -30);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Signed: Scalar + Number {}

/// Numbers with the type of their sum: `i128` for integers, exactly; `f64` for floating point.
///
/// ```
/// use vmarray::expr::Summed;
/// let total: <u32 as Summed>::Sum = 7_i128;
/// # let _ = total;
/// ```
pub trait Summed: Scalar + Number {
    /// The type of the sum.
    type Sum: Copy + Default + PartialEq + std::fmt::Debug + Send + std::ops::Add<Output = Self::Sum>;
    /// The sum of what the parts came to.
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
