//! [`PrefixSummed`]: the element types of prefix sums, and their addition.

use backend_api::expr;
use vmarray_kernel::{ElementMemory, Function, KernelNumber, kernel};

use crate::base::element::Element;
use crate::ops::sort::SortKey;

/// Element types with [prefix sums](crate::views::Scan::prefix_sum) and [reductions along an
/// axis](crate::nd::NdView::sum_axis): `u8` to `u64`, `i8` to `i64`, `f32` and `f64`.
///
/// ```
/// use vmarray::kernel::PrefixSummed;
/// use vmarray::prelude::*;
///
/// fn offsets<T: PrefixSummed>(lengths: &VirtualArray<T>) -> vmarray::Result<()> {
///     lengths.exclusive_prefix_sum(..).map(drop)
/// }
/// let lengths = VirtualArray::<u16>::new(3)?;
/// lengths.write(0, &[5, 0, 7])?;
/// offsets(&lengths)?;
/// assert_eq!(lengths.to_vec(..)?, [0, 5, 5]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait PrefixSummed:
    KernelNumber<Native = Self> + expr::Number + ElementMemory + Element + SortKey
{
    /// True if sums have the same bits for any order of additions.
    #[doc(hidden)]
    const IS_EXACT: bool;
    /// Type of the sums of blocks.
    #[doc(hidden)]
    type Sum: Clone + Default + Send;
    /// Kernel function that returns the bits of a number.
    #[doc(hidden)]
    type ToBits: Function<(Self,), u64>;
    #[doc(hidden)]
    fn as_sum(self) -> Self::Sum;
    #[doc(hidden)]
    fn added(sum: &Self::Sum, other: &Self::Sum) -> Self::Sum;
    #[doc(hidden)]
    fn rounded(sum: &Self::Sum) -> Self;
    /// Converts a sum to two 64-bit words.
    #[doc(hidden)]
    fn words(sum: &Self::Sum) -> [u64; 2];
    #[doc(hidden)]
    fn of_words(words: [u64; 2]) -> Self::Sum;
}

/// A running sum and its accumulated rounding error, by the algorithm of A. Neumaier, "Rundungsfehleranalyse
/// einiger Verfahren zur Summation endlicher Summen", 1974.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Compensated {
    sum: f64,
    left: f64,
}

impl Compensated {
    fn plus(self, other: Self) -> Self {
        let (one, two) = (self.sum, other.sum);
        let sum = one + two;
        let (large, small) = if one.abs() >= two.abs() { (one, two) } else { (two, one) };
        Self { sum, left: (self.left + other.left) + ((large - sum) + small) }
    }

    fn rounded(self) -> f64 {
        // After an overflow to infinity, the rounding error is meaningless, so return the sum alone.
        if self.sum.is_finite() { self.sum + self.left } else { self.sum }
    }
}

macro_rules! integers {
    ($($T:ident $to_bits:ident;)*) => { $(
        #[kernel(crate = vmarray_kernel)]
        pub fn $to_bits(x: $T) -> u64 {
            x as u64
        }

        impl PrefixSummed for $T {
            const IS_EXACT: bool = true;
            type Sum = $T;
            type ToBits = $to_bits;

            fn as_sum(self) -> $T {
                self
            }

            fn added(sum: &$T, other: &$T) -> $T {
                sum.wrapping_add(*other)
            }

            fn rounded(sum: &$T) -> $T {
                *sum
            }

            fn words(sum: &$T) -> [u64; 2] {
                [*sum as u64, 0]
            }

            fn of_words(words: [u64; 2]) -> $T {
                words[0] as $T
            }
        }
    )* };
}
integers! {
    u8 u8_to_bits;
    u16 u16_to_bits;
    u32 u32_to_bits;
    u64 u64_to_bits;
    i8 i8_to_bits;
    i16 i16_to_bits;
    i32 i32_to_bits;
    i64 i64_to_bits;
}

macro_rules! floats {
    ($($T:ident $to_bits:ident;)*) => { $(
        #[kernel(crate = vmarray_kernel)]
        pub fn $to_bits(x: $T) -> u64 {
            x.to_bits() as u64
        }

        impl PrefixSummed for $T {
            const IS_EXACT: bool = false;
            type Sum = Compensated;
            type ToBits = $to_bits;

            fn as_sum(self) -> Compensated {
                Compensated { sum: self.into(), left: 0.0 }
            }

            fn added(sum: &Compensated, other: &Compensated) -> Compensated {
                sum.plus(*other)
            }

            fn rounded(sum: &Compensated) -> $T {
                sum.rounded() as $T
            }

            fn words(sum: &Compensated) -> [u64; 2] {
                [sum.sum.to_bits(), sum.left.to_bits()]
            }

            fn of_words([sum, left]: [u64; 2]) -> Compensated {
                Compensated { sum: f64::from_bits(sum), left: f64::from_bits(left) }
            }
        }
    )* };
}
floats! {
    f32 f32_to_bits;
    f64 f64_to_bits;
}
