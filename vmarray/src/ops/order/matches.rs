//! Elements of two views whose keys are the same: those of one are sorted, and each of the other's keys is
//! searched there.

use backend_api::Device;
use vmarray_kernel::{Anywhere, At, Own, kernel};

use super::Linearly;
use super::keys::{SingleKey, argsort_keys, evaluated};
use super::searches::{Side, search};
use crate::array::VirtualArray;
use crate::base::element::Field;
use crate::base::error::Result;
use crate::ops::expr::index;
use crate::ops::launch::Given;
use crate::ops::view::{INTERNAL, QueryMut as _, Store, StoreMut as _, ViewMut as _};

/// Which pairs [`matches`](super::Order::matches) has.
///
/// ```
/// # use vmarray::prelude::*;
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
    /// Each element of the first view with each one of the second that has the same key.
    Inner,
    /// The same, and those elements of the first view for which there is none, with [`KeyMatches::NONE`].
    Left,
    /// Each element of the first view for which there is one, once.
    Semi,
    /// Each element of the first view for which there is none, once.
    Anti,
}

/// The indices of elements of two views that have the same key, beside one another: in ascending order of
/// the first view's, and for each of these in ascending order of the second's.
///
/// [`take`](super::Order::take) gathers columns of either view by them.
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
    /// Indices of the first view.
    pub left: VirtualArray<u64, D>,
    /// Indices of the second view; none at all for [`Semi`](MatchKind::Semi) and [`Anti`](MatchKind::Anti).
    pub right: VirtualArray<u64, D>,
}

impl KeyMatches<crate::AnyDevice> {
    /// What stands for an element that there is not.
    pub const NONE: u64 = u64::MAX;
}

/// How many pairs an element has.
#[kernel(crate = vmarray_kernel)]
fn pairs(is_inner: bool, is_left: bool, is_semi: bool, first: &Own<u64>, end: &Own<u64>, out: &mut Own<u64>) {
    let count = end.get() - first.get();
    let mut of_all = count;
    if is_left && count == 0 || is_semi && count > 0 {
        of_all = 1;
    } else if !is_inner && !is_left && !is_semi {
        of_all = if count == 0 { 1 } else { 0 };
    }
    out.set(of_all);
}

/// Which element each pair is of: the last one whose pairs do not begin behind it.
#[kernel(crate = vmarray_kernel)]
fn lefts(at: At<1>, begins: &Anywhere<u64>, out: &mut Own<u64>) {
    let pair = at.index() as u64;
    let mut start = 0_usize;
    let mut end = begins.len();
    while end - start > 1 {
        let middle = start + (end - start) / 2;
        if begins[middle] <= pair {
            start = middle;
        } else {
            end = middle;
        }
    }
    out.set(start as u64);
}

/// The other element of each pair.
#[kernel(crate = vmarray_kernel)]
fn rights(
    at: At<1>,
    begins: &Anywhere<u64>,
    firsts: &Anywhere<u64>,
    ends: &Anywhere<u64>,
    order: &Anywhere<u64>,
    left: &Own<u64>,
    out: &mut Own<u64>,
) {
    let own = left.get() as usize;
    let place = firsts[own] + at.index() as u64 - begins[own];
    if place < ends[own] {
        out.set(order[place as usize]);
    } else {
        out.set(18446744073709551615_u64);
    }
}

pub(super) fn matches<S: Store, O: Store, K, L>(
    of: &Linearly<'_, S>,
    other: Linearly<'_, O>,
    (key, other_key): (&K, &L),
    kind: MatchKind,
) -> Result<KeyMatches<S::Device>>
where
    K: SingleKey<S::Element>,
    L: SingleKey<O::Element, Key = K::Key>,
{
    let none = |len| of.store.alike::<u64>(len, INTERNAL);
    if of.len == 0 {
        return Ok(KeyMatches { left: none(0)?, right: none(0)? });
    }
    let keys = evaluated(of, key.key().0)?;
    let (order, sorted) = argsort_keys(other, &other_key.key().0)?;
    let sorted = Linearly::all(&sorted);
    let (firsts, ends) = (
        search(&sorted, &Linearly::all(&keys), Side::Left)?,
        search(&sorted, &Linearly::all(&keys), Side::Right)?,
    );
    drop(keys);
    let begins = none(of.len)?;
    let given = [MatchKind::Inner, MatchKind::Left, MatchKind::Semi].map(|one| one == kind);
    let given = given.into_iter().fold(Given::default(), Given::value);
    let given = given.own(&firsts, 0, of.len).own(&ends, 0, of.len);
    given.result(begins.as_target(INTERNAL), of.len).run::<pairs>()?;
    let count = begins.exclusive_prefix_sum(..)? as usize;
    let left = none(count)?;
    let has_right = matches!(kind, MatchKind::Inner | MatchKind::Left);
    let right = none(if has_right { count } else { 0 })?;
    if count > 0 {
        let given = Given::default().all(&begins, 0, of.len);
        given.result(left.as_target(INTERNAL), count).run::<lefts>()?;
    }
    if count > 0 && has_right {
        if order.is_empty() {
            right.transform(.., Field::<u64, u64>::whole().set(index() - index() + u64::MAX))?;
        } else {
            let given = Given::default().all(&begins, 0, of.len).all(&firsts, 0, of.len);
            let given = given.all(&ends, 0, of.len).all(&order, 0, order.len()).own(&left, 0, count);
            given.result(right.as_target(INTERNAL), count).run::<rights>()?;
        }
    }
    Ok(KeyMatches { left, right })
}
