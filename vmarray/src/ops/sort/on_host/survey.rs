//! First scan of the keys before a sort in RAM: whether they are in order, and which bits differ.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::base::scoped_threads;

/// Number of keys that a thread examines at a time.
const PART: usize = if cfg!(test) { 100 } else { 256 << 10 };
/// Number of keys after which a thread checks if all bits are already known to differ.
const BLOCK: usize = 1024;

/// The order of the keys before the sort.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InOrder {
    /// No key is less than its predecessor.
    Ascending,
    /// No key is greater than its predecessor. For a stable sort, none is equal to its predecessor either.
    Descending,
    Neither,
}

/// A contiguous range of bits of a key.
#[derive(Clone, Copy)]
pub(super) struct BitWindow {
    pub shift: u32,
    pub bits: u32,
}

impl BitWindow {
    /// Returns the window (range of bits) from the lowest to the highest set bit of `bits`.
    pub fn of(bits: u64) -> Self {
        let shift = bits.trailing_zeros() % u64::BITS;
        Self { shift, bits: u64::BITS - bits.leading_zeros() - shift }
    }

    /// Returns the window (range of bits) of the highest `most` bits of this window, or the whole window.
    pub fn highest(self, most: u32) -> Self {
        let bits = self.bits.min(most);
        Self { shift: self.shift + self.bits - bits, bits }
    }

    /// Returns a mask of all bits below the window (range of bits).
    pub fn below(self) -> u64 {
        (1 << self.shift) - 1
    }

    /// Extracts a key's bits in the window (range of bits), which must have less than 64 bits.
    #[inline(always)]
    pub fn value(self, key: u64) -> usize {
        (key >> self.shift) as usize & ((1 << self.bits) - 1)
    }
}

impl InOrder {
    /// Determines with several threads if keys are in ascending or descending order. With `is_stable`, equal
    /// keys are not in descending order, because a reversal would exchange them.
    pub fn of<T: Sync, C: Ord>(
        items: &[T],
        is_stable: bool,
        threads: usize,
        key: impl Fn(&T) -> C + Copy + Sync,
    ) -> Self {
        let [first, .., last] = items else { return Self::Ascending };
        let is_descending = key(last) < key(first);
        let is_so = AtomicBool::new(true);
        scoped_threads::each(threads, items.len().div_ceil(PART), |number| {
            // Include the first element of the next part, to compare it with the last element of this part.
            let part = &items[number * PART..items.len().min((number + 1) * PART + 1)];
            let is_here = is_so.load(Ordering::Relaxed)
                && match (is_descending, is_stable) {
                    (false, _) => all_pairs(part, |one, two| key(one) <= key(two)),
                    (true, false) => all_pairs(part, |one, two| key(one) >= key(two)),
                    (true, true) => all_pairs(part, |one, two| key(one) > key(two)),
                };
            if !is_here {
                is_so.store(false, Ordering::Relaxed);
            }
        });
        match is_so.into_inner() {
            true if is_descending => Self::Descending,
            true => Self::Ascending,
            false => Self::Neither,
        }
    }
}

/// Returns a mask of the bits in which keys differ. It is a part of `bits`.
pub(super) fn differing<T: Sync>(
    items: &[T],
    bits: u64,
    threads: usize,
    key: impl Fn(&T) -> u64 + Copy + Sync,
) -> u64 {
    let (differ, first) = (AtomicU64::new(0), items.first().map_or(0, key));
    scoped_threads::each(threads, items.len().div_ceil(PART), |number| {
        for block in items[number * PART..items.len().min((number + 1) * PART)].chunks(BLOCK) {
            // Stop early if keys are already known to differ in all bits.
            if differ.load(Ordering::Relaxed) == bits {
                break;
            }
            differ.fetch_or(difference(block, first, key), Ordering::Relaxed);
        }
    });
    differ.into_inner()
}

/// Returns a mask of the bits in which any key differs from `first`.
#[inline(never)]
pub(super) fn difference<T>(items: &[T], first: u64, key: impl Fn(&T) -> u64) -> u64 {
    items.iter().fold(0, |found, item| found | (key(item) ^ first))
}

#[inline(never)]
fn all_pairs<T>(items: &[T], holds: impl Fn(&T, &T) -> bool) -> bool {
    // Compare whole blocks without an early exit, so that the compiler vectorizes the comparisons.
    const AT_ONCE: usize = 32;
    let (ones, twos) = (items.as_chunks::<AT_ONCE>().0, items[1..].as_chunks::<AT_ONCE>().0);
    let all = |(ones, twos): (&[T; AT_ONCE], &[T; AT_ONCE])| {
        ones.iter().zip(twos).fold(true, |all, (one, two)| all & holds(one, two))
    };
    let rest = &items[twos.len() * AT_ONCE..];
    ones.iter().zip(twos).all(all) && rest.iter().zip(&rest[1..]).all(|(one, two)| holds(one, two))
}
