//! 16-bit floats of the crate `half` as values in kernels.
//!
//! Memory stores each float as 16 bits. Operators compute in `f32`, and round the result to nearest even. For
//! `+`, `-`, `*` and `/` this equals the correctly rounded result: the significand of `f32` has more than
//! twice as many bits, so rounding twice is harmless.

use crate::layout::{KernelType, Layout, LayoutField};
use crate::rules::Half;
use crate::rules::{Arithmetic, Equality, Negated, Ordered};
use backend_api::expr::Type;
use backend_api::kernel::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use half::{bf16, f16};

macro_rules! halves {
    ($($T:ident $name:literal $widen:ident $narrow:ident;)*) => { $(
        impl KernelType for $T {
            const ZERO: Self = $T::ZERO;

            fn layout() -> Layout {
                let bits = LayoutField { name: "bits", offset: 0, layout: Layout::Scalar(Type::U16) };
                Layout::Struct { name: $name, fields: vec![bits], bytes: 2 }
            }

            fn values(self, into: &mut Vec<u64>) {
                into.push(self.to_bits().into());
            }

            fn of_values(next: &mut impl FnMut() -> u64) -> Self {
                Self::from_bits(next() as u16)
            }
        }

        impl Half for $T {
            #[inline(always)]
            fn widened(self) -> f32 {
                $widen(self.to_bits())
            }

            #[inline(always)]
            fn nearest(number: f32) -> Self {
                Self::from_bits($narrow(number))
            }
        }

        impl Arithmetic for $T {
            #[inline(always)]
            fn added(self, other: Self) -> Self {
                Self::nearest(self.widened() + other.widened())
            }

            #[inline(always)]
            fn subtracted(self, other: Self) -> Self {
                Self::nearest(self.widened() - other.widened())
            }

            #[inline(always)]
            fn multiplied(self, other: Self) -> Self {
                Self::nearest(self.widened() * other.widened())
            }

            #[inline(always)]
            fn divided(self, other: Self) -> Self {
                Self::nearest(self.widened() / other.widened())
            }
        }

        impl Negated for $T {
            #[inline(always)]
            fn negated(self) -> Self {
                Self::nearest(-self.widened())
            }
        }

        impl Equality for $T {}
        impl Ordered for $T {}
    )* };
}
halves! {
    f16 "f16" f16_to_f32 f32_to_f16;
    bf16 "bf16" bf16_to_f32 f32_to_bf16;
}
