//! Parameters of a sort in RAM: the order of keys, progress reports, and size thresholds.

use crate::base::progress::Steps;
use crate::ops::sort::keys::{KeyBits, KeyOrder};

/// If there are fewer rows, they are sorted by comparison.
pub(super) const FEW: usize = 48;
/// The most bytes of rows that one thread sorts in the caches of a core, which also hold two copies.
pub(super) const CACHED_BYTES: usize = if cfg!(test) { 4 << 10 } else { 512 << 10 };

/// The order of keys, and the progress report. Only floats are flipped by their sign.
#[derive(Clone, Copy)]
pub(super) struct Sorting<'a, const IS_FLOAT: bool> {
    pub order: KeyOrder,
    pub steps: &'a Steps,
}

impl<const IS_FLOAT: bool> Sorting<'_, IS_FLOAT> {
    #[inline(always)]
    pub fn key<K: KeyBits>(self, key: K) -> u64 {
        let (wide, above) = (key.wide(), u64::BITS - 8 * K::BYTES as u32);
        // For a float with a set sign bit, flip all lower bits. Shifts compute the mask, because the compiler
        // may emit a branch for `KeyOrder`'s method.
        let below = if IS_FLOAT { ((wide << above) as i64 >> 63) as u64 >> (above + 1) } else { 0 };
        wide ^ self.order.flip ^ below
    }

    /// Returns a function that converts a key to its `u64` sort number. The function's type depends only on
    /// `K`, so generic code that calls the function is compiled once for all types of values.
    pub fn number_of_key<K: KeyBits>(self) -> impl Fn(&K) -> u64 + Copy + Sync {
        move |key| self.key(*key)
    }

    /// Returns a function that converts a key to an unsigned number of the key's width, for comparisons.
    pub fn compared_of_key<K: KeyBits>(self) -> impl Fn(&K) -> K + Copy + Sync {
        move |key| self.compared(*key)
    }

    /// Converts a key to an unsigned number of the key's width, by which the sort compares keys.
    #[inline(always)]
    pub fn compared<K: KeyBits>(self, key: K) -> K {
        let below = if IS_FLOAT { key.if_negative(K::narrow(self.order.flip_negative)) } else { K::zeroed() };
        key ^ K::narrow(self.order.flip) ^ below
    }
}
