//! Numbers that prefix sums are made of.

use backend_api::expr;
use vmarray_kernel::{Function, Memory, Number, kernel};

use crate::base::element::Element;

/// Numbers that have [prefix sums](crate::views::ViewMut::prefix_sum), and [reductions along an
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
pub trait PrefixSummed: Number<Native = Self> + expr::Number + Memory + Element {
    /// Whether sums are those of the bits, in whatever order they are added up.
    #[doc(hidden)]
    const IS_EXACT: bool;
    /// What sums of blocks are added up in.
    #[doc(hidden)]
    type Sum: Clone + Default;
    /// Gives the bits of a number on devices.
    #[doc(hidden)]
    type ToBits: Function<(Self,), u64>;
    #[doc(hidden)]
    fn add_to(self, sum: &mut Self::Sum);
    #[doc(hidden)]
    fn rounded(sum: &Self::Sum) -> Self;
}

/// A sum and what rounding has left out of it: Neumaier's way, "Rundungsfehleranalyse einiger Verfahren zur
/// Summation endlicher Summen", 1974.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Compensated {
    sum: f64,
    left: f64,
}

impl Compensated {
    fn add(&mut self, value: f64) {
        let sum = self.sum + value;
        let (large, small) =
            if self.sum.abs() >= value.abs() { (self.sum, value) } else { (value, self.sum) };
        self.left += (large - sum) + small;
        self.sum = sum;
    }

    fn rounded(&self) -> f64 {
        // Past the largest number nothing is known of what was left out.
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

            fn add_to(self, sum: &mut $T) {
                *sum = sum.wrapping_add(self);
            }

            fn rounded(sum: &$T) -> $T {
                *sum
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

            fn add_to(self, sum: &mut Compensated) {
                sum.add(self.into());
            }

            fn rounded(sum: &Compensated) -> $T {
                sum.rounded() as $T
            }
        }
    )* };
}
floats! {
    f32 f32_to_bits;
    f64 f64_to_bits;
}
