//! Selection of elements by rank (the k-th smallest) without moving elements. Also random orders and samples.

use std::collections::HashSet;

use backend_api::wrap::SplitMix64;
use vmarray_kernel::{Anywhere, At, ElementMemory, KernelNumber, Own, kernel};

use super::searches::{in_order, ordered};
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::ops::expr::{Expr, index};
use crate::ops::query::Query as _;
use crate::ops::sort::{KeyBits, KeyOrder, SortKey};
use crate::ops::view::{Section, Store, View as _};

/// The number of bits that one pass determines, by a histogram with the maximum number of bins.
const DIGIT_BITS: u32 = 12;

/// Kernel: returns true if the next element is less than the present one.
#[kernel(crate = vmarray_kernel)]
fn descends<B: KernelNumber + ElementMemory>(
    at: At<1>,
    flip: u64,
    flip_negative: u64,
    all: &Anywhere<B>,
    own: &Own<B>,
) -> bool {
    in_order(all[at.index() + 1], flip, flip_negative) < in_order(own.get(), flip, flip_negative)
}

pub(super) fn is_sorted<T: SortKey, S: Store<Element = T>>(of: Section<'_, S>) -> Result<bool> {
    if of.len() < 2 {
        return Ok(true);
    }
    let given = ordered::<T>().all(of).own(of.section(..of.len() - 1)?);
    Ok(given.count::<descends<T::KeyBits>>()? == 0)
}

/// Returns an expression for an element's sort key: an unsigned number with the same order.
fn key_bits<T: SortKey>() -> Expr<T, u64> {
    let order = KeyOrder::of::<T>(false);
    let wide = Expr::<T, T::KeyBits>::field::<T::KeyBits>(0, 0).converted::<u64>();
    let plain = wide.clone() ^ order.flip;
    if order.flip_negative == 0 {
        return plain;
    }
    let sign = 1_u64 << (8 * T::KeyBits::BYTES - 1);
    (wide & sign).ne(0).select(plain.clone() ^ order.flip_negative, plain)
}

/// Converts a sort key back to the element.
fn of_key<T: SortKey>(key: u64) -> T {
    bytemuck::cast(KeyOrder::of::<T>(false).bits::<T::KeyBits>(key))
}

fn key_of_rank<T: SortKey, S: Store<Element = T>>(of: Section<'_, S>, mut rank: u64) -> Result<u64> {
    let bits = 8 * T::KeyBits::BYTES as u32;
    let (mut known, mut rest) = (0_u64, bits);
    while rest > 0 {
        let digit_bits = DIGIT_BITS.min(rest);
        rest -= digit_bits;
        let bins = 1_u64 << digit_bits;
        let digit = ((key_bits::<T>() >> u64::from(rest)) & (bins - 1)).cast::<u32>();
        let higher = rest + digit_bits;
        let counts = if higher == bits {
            of.histogram(.., digit, bins as usize)?
        } else {
            let is_alike = (key_bits::<T>() >> u64::from(higher)).eq(known >> higher);
            of.histogram(.., digit.only_where(is_alike), bins as usize)?
        };
        let mut bin = 0;
        while bin + 1 < counts.len() && counts[bin] <= rank {
            rank -= counts[bin];
            bin += 1;
        }
        known |= (bin as u64) << rest;
    }
    Ok(known)
}

pub(super) fn select_nth<T: SortKey, S: Store<Element = T>>(of: Section<'_, S>, nth: usize) -> Result<T> {
    if nth >= of.len() {
        return Err(ErrorKind::IndexOutside { index: nth, len: of.len() }.into());
    }
    key_of_rank(of, nth as u64).map(of_key)
}

pub(super) fn top_k<T: SortKey, S: Store<Element = T>>(of: Section<'_, S>, count: usize) -> Result<Vec<T>> {
    let count = count.min(of.len());
    if count == 0 {
        return Ok(Vec::new());
    }
    let least = key_of_rank(of, (of.len() - count) as u64)?;
    // Gather the elements with keys greater than `least`. All others have the key `least` and equal bits.
    let greater = of.find_where(.., key_bits::<T>().gt(least), count)?;
    let mut greatest = of.gather(&greater.indices)?;
    let order = KeyOrder::of::<T>(true);
    greatest.sort_unstable_by_key(|element| order.key::<T::KeyBits>(bytemuck::cast(*element)));
    greatest.resize(count, of_key(least));
    Ok(greatest)
}

/// Returns an expression for random bits that depend on the element's index: the finalizer of SplitMix64.
pub(super) fn random_bits<T: Element>(seed: u64) -> Expr<T, u64> {
    let mut bits = index::<T>() * SplitMix64::STEP + SplitMix64::new(seed).next();
    for (shift, factor) in SplitMix64::MIXERS {
        bits = (bits.clone() ^ (bits >> shift)) * factor;
    }
    bits.clone() ^ (bits >> 31)
}

/// Returns `count` distinct elements in random order: R. Floyd's sampling (J. Bentley, R. Floyd, "A Sample
/// of Brilliance", 1987), followed by random swaps.
pub(super) fn sample<S: Store>(of: Section<'_, S>, count: usize, seed: u64) -> Result<Vec<S::Element>> {
    if count > of.len() {
        return Err(ErrorKind::IndexOutside { index: count - 1, len: of.len() }.into());
    }
    let mut random = SplitMix64::new(seed.wrapping_add(SplitMix64::STEP));
    let (mut chosen, mut known) = (Vec::with_capacity(count), HashSet::with_capacity(count));
    for end in of.len() - count..of.len() {
        let at = random.index(end + 1);
        let at = if known.insert(at) { at } else { end };
        known.insert(at);
        chosen.push(at);
    }
    for at in (1..count).rev() {
        chosen.swap(at, random.index(at + 1));
    }
    of.gather(&chosen)
}
