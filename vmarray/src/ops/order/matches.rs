//! Joins of two views by equal keys: one view is sorted, and each key of the other is searched there.

use backend_api::Device;
use vmarray_kernel::{Anywhere, At, Own, kernel};

use super::keys::{KeyOrdering, SingleKey, evaluated};
use super::searches::{Side, last_not_above, search};
use super::section::section;
use crate::array::VirtualArray;
use crate::base::error::Result;
use crate::ops::launch::KernelArguments;
use crate::ops::scan::Scan as _;
use crate::ops::view::{INTERNAL, Section, Store, View as _, ViewMut as _};

/// The kind of the join by [`matches`](super::Order::matches).
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
    /// Each element of the first view with each element of the second that has the same key.
    Inner,
    /// The pairs of `Inner`, and the elements of the first view without a match, paired with
    /// [`KeyMatches::NONE`].
    Left,
    /// Each element of the first view that has a match, once.
    Semi,
    /// Each element of the first view without a match, once.
    Anti,
}

/// Pairs of indices of elements with equal keys in two views. The pairs are in the order of the first view's
/// indices, and then of the second view's indices.
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

/// The mark of an element without a match.
const NONE: u64 = u64::MAX;

/// The number of pairs of each element: the number of its matches, at most `most`, or `without` if it has
/// no match. Marks the latter elements in `first`.
#[kernel(crate = vmarray_kernel)]
fn pairs(most: u64, without: u64, first: &mut Own<u64>, end: &Own<u64>, out: &mut Own<u64>) {
    let count = end.get() - first.get();
    if count == 0 {
        first.set(NONE);
    }
    out.set(if count == 0 { without } else { count.min(most) });
}

/// The element of each pair: the last element whose pairs do not begin behind it.
#[kernel(crate = vmarray_kernel)]
fn lefts(at: At<1>, begins: &Anywhere<u64>, out: &mut Own<u64>) {
    out.set(last_not_above(begins, begins.len(), at.index() as u64) as u64);
}

/// The other element of each pair, if there is one.
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
    let firsts = search(section(&sorted, ..)?, section(&keys, ..)?, Side::Left)?;
    let ends = search(section(&sorted, ..)?, section(&keys, ..)?, Side::Right)?;
    drop(keys);
    let (most, without) = match kind {
        MatchKind::Inner => (u64::MAX, 0),
        MatchKind::Left => (u64::MAX, 1),
        MatchKind::Semi => (1, 0),
        MatchKind::Anti => (0, 1),
    };
    let begins = numbers(of.len())?;
    let given = KernelArguments::default().value(most).value(without).result(&firsts).own(&ends);
    given.result(&begins).run::<pairs>()?;
    let count = begins.exclusive_prefix_sum(..)? as usize;
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
