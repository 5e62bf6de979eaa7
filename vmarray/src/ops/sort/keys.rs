//! [`SortKey`]: the number types that can be sorted, and their conversion to unsigned bits in sort order.

use std::fmt::Debug;

use vmarray_kernel::{ElementMemory, KernelNumber};

use crate::base::element::Element;
use crate::ops::expr::{FieldType, Scalar};
use crate::ops::sealed::Sealed;

/// An unsigned integer that holds the bits of a sort key.
#[doc(hidden)]
pub trait KeyBits: SortKey + Ord + std::ops::BitXor<Output = Self> + Debug {
    const BYTES: usize = size_of::<Self>();
    fn wide(self) -> u64;
    /// Returns the low bits of `wide`, as this type.
    fn narrow(wide: u64) -> Self;
    /// Returns `bits` if the highest bit is set, else 0.
    fn if_negative(self, bits: Self) -> Self;
}

macro_rules! bits {
    ($($T:ty: $Signed:ty;)*) => { $(
        impl KeyBits for $T {
            #[inline(always)]
            fn wide(self) -> u64 {
                self.into()
            }

            #[inline(always)]
            fn narrow(wide: u64) -> Self {
                wide as Self
            }

            #[inline(always)]
            fn if_negative(self, bits: Self) -> Self {
                (self as $Signed >> (Self::BITS - 1)) as Self & bits
            }
        }
    )* };
}
bits! { u8: i8; u16: i16; u32: i32; u64: i64; }

/// Converts the bits of a number to an unsigned integer with the same order: XOR with one mask, or with
/// another mask if the sign bit is set.
#[derive(Clone, Copy, Debug)]
pub struct KeyOrder {
    pub(crate) flip: u64,
    pub(crate) flip_negative: u64,
}

impl KeyOrder {
    /// Returns the order of a number type, ascending or descending.
    pub(crate) const fn of<T: SortKey>(is_descending: bool) -> Self {
        let all = if is_descending { u64::MAX } else { 0 };
        Self::new(T::FLIP ^ all, T::FLIP_NEGATIVE, size_of::<T>())
    }

    /// Creates an order from 64-bit masks, of which it uses the highest `bytes` bytes.
    pub(super) const fn new(flip: u64, flip_negative: u64, bytes: usize) -> Self {
        let below = u64::BITS - 8 * bytes as u32;
        Self { flip: flip >> below, flip_negative: flip_negative >> below }
    }

    #[inline(always)]
    pub(crate) fn key<B: KeyBits>(self, bits: B) -> u64 {
        let wide = bits.wide();
        let sign = ((wide << (u64::BITS - 8 * B::BYTES as u32)) as i64 >> 63) as u64;
        wide ^ self.flip ^ (sign & self.flip_negative)
    }

    /// Converts a number of `bytes` bytes, whose bits are in `word`, to its sort key.
    pub(crate) fn key_of_word(self, word: u64, bytes: u64) -> u64 {
        match bytes {
            1 => self.key(word as u8),
            2 => self.key(word as u16),
            4 => self.key(word as u32),
            _ => self.key(word),
        }
    }

    /// Converts a sort key to the bits of its number, as the inverse of [`key_of_word`](Self::key_of_word).
    pub(super) fn word(self, key: u64, bytes: u64) -> u64 {
        match bytes {
            1 => self.bits::<u8>(key).wide(),
            2 => self.bits::<u16>(key).wide(),
            4 => self.bits::<u32>(key).wide(),
            _ => self.bits(key),
        }
    }

    /// Converts a sort key to the bits of its number.
    pub(crate) fn bits<B: KeyBits>(self, key: u64) -> B {
        // `flip_negative` does not contain the sign bit, so `flipped` already has the sign bit of the number.
        let flipped = key ^ self.flip;
        let sign = ((flipped << (u64::BITS - 8 * B::BYTES as u32)) as i64 >> 63) as u64;
        B::narrow(flipped ^ (sign & self.flip_negative))
    }
}

/// Types of numbers that can be [sorted](crate::views::Sort::sort): `u8` to `u64`, `i8` to `i64`, `f32`,
/// `f64`.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::views::SortKey;
///
/// fn least<T: SortKey>(array: &VirtualArray<T>) -> vmarray::Result<T> {
///     array.sort(..)?;
///     array.get(0)
/// }
/// let array = VirtualArray::<f32>::new(3)?;
/// array.write(0, &[0.5, -0.5, -f32::NAN])?;
/// assert!(least(&array)?.is_nan());
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait SortKey:
    Element + FieldType<Value = Self> + Scalar + ElementMemory + KernelNumber + Sealed
{
    #[doc(hidden)]
    type KeyBits: KeyBits;
    #[doc(hidden)]
    const FLIP: u64;
    #[doc(hidden)]
    const FLIP_NEGATIVE: u64;
}

macro_rules! keys {
    ($($T:ty: $KeyBits:ty, $flip:expr, $flip_negative:expr;)*) => { $(
        impl Sealed for $T {}

        impl SortKey for $T {
            type KeyBits = $KeyBits;
            const FLIP: u64 = $flip;
            const FLIP_NEGATIVE: u64 = $flip_negative;
        }
    )* };
}
const SIGN: u64 = 1 << 63;
keys! {
    u8: u8, 0, 0;
    u16: u16, 0, 0;
    u32: u32, 0, 0;
    u64: u64, 0, 0;
    i8: u8, SIGN, 0;
    i16: u16, SIGN, 0;
    i32: u32, SIGN, 0;
    i64: u64, SIGN, 0;
    f32: u32, SIGN, !SIGN;
    f64: u64, SIGN, !SIGN;
}
