//! Binary searches in sorted elements, and merges of two sorted views. Each GPU thread searches
//! independently.
//!
//! The searches compare the same unsigned sort keys as `sort`, so floats must be in the order of
//! [`f64::total_cmp`].

use vmarray_kernel::{Anywhere, At, ElementMemory, KernelNumber, Own, kernel};

use crate::array::VirtualArray;
use crate::base::error::{ErrorKind, Result};
use crate::ops::launch::KernelArguments;
use crate::ops::sort::{KeyOrder, SortKey};
use crate::ops::view::{INTERNAL, Section, Store, View as _};

/// The insertion position that [`search_sorted`](super::Order::search_sorted) returns among equal elements:
/// before or after them.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::order::Side;
/// let (sorted, wanted) = (Source::new(vec![1, 5, 5, 8])?, Source::new(vec![5])?);
/// assert_eq!(sorted.search_sorted(&wanted, Side::Left)?.get(0)?, 1);
/// assert_eq!(sorted.search_sorted(&wanted, Side::Right)?.get(0)?, 3);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Returns the position before equal elements.
    Left,
    /// Returns the position after equal elements.
    Right,
}

/// Kernel function: returns the sort key of a number with these bits, an unsigned number with the same order.
#[kernel(crate = vmarray_kernel)]
pub(super) fn in_order<B: KernelNumber>(bits: B, flip: u64, flip_negative: u64) -> u64 {
    let wide = bits as u64;
    if (wide >> (B::BITS - 1)) & 1 == 1 { wide ^ flip ^ flip_negative } else { wide ^ flip }
}

/// Kernel function: returns the position of the last of the first `len` ascending numbers that is not above
/// `number`; 0 if all are above.
#[kernel(crate = vmarray_kernel)]
pub(crate) fn last_not_above(of: &Anywhere<u64>, len: usize, number: u64) -> usize {
    let mut start = 0_usize;
    let mut end = len;
    while end - start > 1 {
        let middle = start + (end - start) / 2;
        if of[middle] <= number {
            start = middle;
        } else {
            end = middle;
        }
    }
    start
}

/// Kernel: counts the sorted elements before each element.
#[kernel(crate = vmarray_kernel)]
fn places<B: KernelNumber + ElementMemory>(
    flip: u64,
    flip_negative: u64,
    after_equal: bool,
    sorted: &Anywhere<B>,
    own: &Own<B>,
    out: &mut Own<u64>,
) {
    let key = in_order(own.get(), flip, flip_negative);
    let mut start = 0_usize;
    let mut end = sorted.len();
    while start < end {
        let middle = start + (end - start) / 2;
        let other = in_order(sorted[middle], flip, flip_negative);
        if other < key || after_equal && other == key {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    out.set(start as u64);
}

/// Kernel: computes the element at each position of two merged lists. A bisection along a diagonal finds the
/// number of elements from the first list (Odeh, Green, Mwassi, Shmueli, Birk, "Merge Path", 2012).
#[kernel(crate = vmarray_kernel)]
fn merged<B: KernelNumber + ElementMemory>(
    at: At<1>,
    flip: u64,
    flip_negative: u64,
    first: &Anywhere<B>,
    second: &Anywhere<B>,
    out: &mut Own<B>,
) {
    let place = at.index();
    let mut start = if place > second.len() { place - second.len() } else { 0 };
    let mut end = if place < first.len() { place } else { first.len() };
    while start < end {
        let middle = start + (end - start) / 2;
        let one = in_order(first[middle], flip, flip_negative);
        if one <= in_order(second[place - middle - 1], flip, flip_negative) {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    let of_second = place - start;
    let mut is_first = start < first.len();
    if is_first && of_second < second.len() {
        let one = in_order(first[start], flip, flip_negative);
        is_first = one <= in_order(second[of_second], flip, flip_negative);
    }
    if is_first {
        out.set(first[start]);
    } else {
        out.set(second[of_second]);
    }
}

/// Returns kernel arguments that begin with the two words of the key order.
pub(super) fn ordered<'a, T: SortKey>() -> KernelArguments<'a> {
    let order = KeyOrder::of::<T>(false);
    KernelArguments::default().value(order.flip).value(order.flip_negative)
}

pub(super) fn search<T: SortKey, S: Store<Element = T>, N: Store<Element = T>>(
    sorted: Section<'_, S>,
    others: Section<'_, N>,
    side: Side,
) -> Result<VirtualArray<u64, N::Device>> {
    let out = others.store().array_like::<u64>(others.len(), INTERNAL)?;
    if !others.is_empty() && !sorted.is_empty() {
        let given = ordered::<T>().value(side == Side::Right).all(sorted).own(others);
        given.result(&out).run::<places<T::KeyBits>>()?;
    }
    Ok(out)
}

pub(super) fn merge<T: SortKey, S: Store<Element = T>, O: Store<Element = T>>(
    first: Section<'_, S>,
    second: Section<'_, O>,
) -> Result<VirtualArray<T, S::Device>> {
    let too_long = ErrorKind::TooLong { elements: u64::MAX, element_bytes: size_of::<T>() };
    let len = first.len().checked_add(second.len()).ok_or(too_long)?;
    let out = first.store().array_like::<T>(len, INTERNAL)?;
    if len > 0 {
        ordered::<T>().all(first).all(second).result(&out).run::<merged<T::KeyBits>>()?;
    }
    Ok(out)
}
