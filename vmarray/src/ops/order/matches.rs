//! Joins of two views by equal keys: one view's keys are sorted, and a binary search looks up each key of the
//! other view among them.

use backend_api::Device;
use vmarray_kernel::{Anywhere, At, ElementMemory, KernelNumber, KernelType, Own, kernel};

use super::TakeIndex;
use super::keys::{KeyOrdering, SingleKey, evaluated};
use super::searches::{in_order, last_not_above};
use crate::array::VirtualArray;
use crate::base::error::Result;
use crate::ops::launch::KernelArguments;
use crate::ops::scan::Scan as _;
use crate::ops::sort::{KeyOrder, SortKey};
use crate::ops::view::{INTERNAL, Section, Store, View as _, ViewMut as _};

/// The kind of a join (inner, left, …) by [`matches`](super::Order::matches).
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::order::MatchKind;
/// let (left, right) = (Source::new(vec![1_u32, 2])?, Source::new(vec![2_u32, 2])?);
/// let count = |kind| {
///     let key = || Field::<u32, u32>::whole();
///     left.matches(&right, key(), key(), kind).map(|matches| matches.left.len())
/// };
/// assert_eq!((count(MatchKind::Inner)?, count(MatchKind::Left)?), (2, 3));
/// assert_eq!((count(MatchKind::Semi)?, count(MatchKind::Anti)?), (1, 1));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchKind {
    /// Pairs of elements with equal keys: each element of one view with each of the other.
    Inner,
    /// The pairs of `Inner`, and one with [`KeyMatches::NONE`] for each unmatched element of the first view.
    Left,
    /// Each element of the first view that has a match, listed once.
    Semi,
    /// Each element of the first view that has no match.
    Anti,
}

/// The result of a join: pairs of indices of elements with equal keys in two views. The pairs are in the
/// order of the first view's indices, and then of the second view's.
///
/// [`take`](super::Order::take) gathers columns of either view by these indices.
///
/// ```
/// use vmarray::order::{MatchKind, KeyMatches};
/// use vmarray::prelude::*;
///
/// let (left, right) = (Source::new(vec![1_u64, 2, 3])?, Source::new(vec![3_u64, 1, 1])?);
/// let key = || Field::<u64, u64>::whole();
/// let all = left.matches(&right, key(), key(), MatchKind::Left)?;
/// assert_eq!(all.left.to_vec(..)?, [0, 0, 1, 2]);
/// assert_eq!(all.right.to_vec(..)?, [1, 2, KeyMatches::NONE, 0]);
/// let without = left.matches(&right, key(), key(), MatchKind::Anti)?;
/// assert_eq!(left.take(&without.left)?.to_vec(..)?, [2]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct KeyMatches<D: Device> {
    /// Indices of elements of the first view.
    pub left: VirtualArray<u64, D>,
    /// Indices of elements of the second view; empty for [`Semi`](MatchKind::Semi) and
    /// [`Anti`](MatchKind::Anti).
    pub right: VirtualArray<u64, D>,
}

impl KeyMatches<crate::AnyDevice> {
    /// The index in [`right`](Self::right) that marks an element of the first view without a match.
    pub const NONE: u64 = NONE;
}

/// The index that marks an element without a match.
const NONE: u64 = u64::MAX;

/// The order of the sorted keys, and the limits on the number of a key's pairs.
#[derive(Clone, Copy, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
struct PartnerRule {
    flip: u64,
    flip_negative: u64,
    /// The most pairs of a key that has partners (elements with an equal key).
    most: u64,
    /// The number of pairs of a key that has no partner.
    without: u64,
}

/// Kernel: finds the first of the sorted keys that equals a key, and counts the key's pairs. Marks a key
/// without a partner in `first`. The search for the last partner takes growing steps, because most keys have
/// few.
#[kernel(crate = vmarray_kernel)]
fn found<B: KernelNumber + ElementMemory, I: KernelNumber + ElementMemory>(
    rule: PartnerRule,
    sorted: &Anywhere<B>,
    own: &Own<B>,
    first: &mut Own<I>,
    count: &mut Own<u64>,
) {
    let bits = own.get();
    let key = in_order(bits, rule.flip, rule.flip_negative);
    let mut start = 0_usize;
    let mut end = sorted.len();
    while start < end {
        let middle = start + (end - start) / 2;
        if in_order(sorted[middle], rule.flip, rule.flip_negative) < key {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    let place = start;
    end = sorted.len();
    let mut step = 1_usize;
    while start < end {
        let ahead = if step < end - start { start + step - 1 } else { end - 1 };
        if sorted[ahead] == bits {
            start = ahead + 1;
            step *= 2;
        } else {
            end = ahead;
            step = (end - start) / 2 + 1;
        }
    }
    let partners = (start - place) as u64;
    if partners == 0 {
        first.set(NONE as I);
        count.set(rule.without);
    } else {
        first.set(place as I);
        count.set(if partners < rule.most { partners } else { rule.most });
    }
}

/// Finds the partners of keys among sorted keys. Writes the position of each key's first partner to `firsts`,
/// and the number of its first pair to `begins`. Returns the number of pairs. A key has at most `most` pairs,
/// and `without` pairs if it has no partner.
pub(crate) fn find_partners<T: SortKey, I: TakeIndex, D: Device, E: Device>(
    sorted: &VirtualArray<T, E>,
    keys: &VirtualArray<T, D>,
    (most, without): (u64, u64),
    (firsts, begins): (&VirtualArray<I, D>, &VirtualArray<u64, D>),
) -> Result<usize> {
    let KeyOrder { flip, flip_negative, .. } = KeyOrder::of::<T>(false);
    if sorted.is_empty() {
        begins.fill(.., without)?;
    } else {
        let given = KernelArguments::default().value(PartnerRule { flip, flip_negative, most, without });
        let given = given.all(sorted).own(keys).result(firsts).result(begins);
        given.run::<found<T::KeyBits, I>>()?;
    }
    Ok(begins.exclusive_prefix_sum(..)? as usize)
}

/// Kernel: finds the first view's element of each pair, the last whose pairs begin at or before it.
#[kernel(crate = vmarray_kernel)]
fn lefts(at: At<1>, begins: &Anywhere<u64>, out: &mut Own<u64>) {
    out.set(last_not_above(begins, begins.len(), at.index() as u64) as u64);
}

/// Kernel: finds the second view's element of each pair, if there is one.
#[kernel(crate = vmarray_kernel)]
fn rights(
    at: At<1>,
    begins: &Anywhere<u64>,
    firsts: &Anywhere<u64>,
    order: &Anywhere<u64>,
    left: &Own<u64>,
    out: &mut Own<u64>,
) {
    let own = left.get() as usize;
    let first = firsts[own];
    if first == NONE {
        out.set(NONE);
    } else {
        out.set(order[(first + at.index() as u64 - begins[own]) as usize]);
    }
}

pub(super) fn matches<S: Store, O: Store, K, L>(
    of: Section<'_, S>,
    other: Section<'_, O>,
    (key, other_key): (&K, &L),
    kind: MatchKind,
) -> Result<KeyMatches<S::Device>>
where
    K: SingleKey<S::Element>,
    L: SingleKey<O::Element, Key = K::Key>,
{
    let numbers = |len| of.store().array_like::<u64>(len, INTERNAL);
    if of.is_empty() {
        return Ok(KeyMatches { left: numbers(0)?, right: numbers(0)? });
    }
    let keys = evaluated(of, key.key().0)?;
    let mut ordered = KeyOrdering::new(other)?;
    let sorted = ordered.by_one(&other_key.key().0)?;
    let order = ordered.into_wide()?;
    let rule = match kind {
        MatchKind::Inner => (u64::MAX, 0),
        MatchKind::Left => (u64::MAX, 1),
        MatchKind::Semi => (1, 0),
        MatchKind::Anti => (0, 1),
    };
    let (firsts, begins) = (numbers(of.len())?, numbers(of.len())?);
    let count = find_partners(&sorted, &keys, rule, (&firsts, &begins))?;
    drop((sorted, keys));
    let left = numbers(count)?;
    let right = numbers(if matches!(kind, MatchKind::Inner | MatchKind::Left) { count } else { 0 })?;
    if count > 0 {
        KernelArguments::default().all(&begins).result(&left).run::<lefts>()?;
    }
    if order.is_empty() {
        right.fill(.., KeyMatches::NONE)?;
    } else if !right.is_empty() {
        let given = KernelArguments::default().all(&begins).all(&firsts).all(&order).own(&left);
        given.result(&right).run::<rights>()?;
    }
    Ok(KeyMatches { left, right })
}
