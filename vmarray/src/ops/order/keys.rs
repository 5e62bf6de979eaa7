//! Sorts by several keys: the elements' positions are sorted by each key in turn, from the last key to the
//! first. Each sort is stable.

use std::ops::RangeBounds;

use backend_api::Device;

use super::section::section;
use super::take::take;
use crate::array::VirtualArray;
use crate::base::element::{Element, Field};
use crate::base::error::{ErrorKind, Result};
use crate::ops::executor::{Operand, ResultStore};
use crate::ops::expr::{Assignment, Expr, FieldType, IntoExpr as _, index};
use crate::ops::launch::operand;
use crate::ops::query::Plan;
use crate::ops::sealed::Sealed;
use crate::ops::sort::{Sort as _, SortKey, SortPlan, check_values, sort};
use crate::ops::view::{INTERNAL, Linear, Section, Shape as _, Store, View, ViewMut};

/// The keys of a sort: a [single key](SingleKey), or a tuple of up to four single keys.
///
/// ```
/// use vmarray::order::SortBy;
/// use vmarray::prelude::*;
///
/// fn rank(of: &VirtualArray<i32>, keys: impl SortBy<i32>) -> vmarray::Result<Vec<u64>> {
///     of.argsort(.., keys)?.to_vec(..)
/// }
/// let array = VirtualArray::<i32>::new(4)?;
/// array.write(0, &[4, -7, 5, -4])?;
/// let own = || Field::<i32, i32>::whole();
/// assert_eq!(rank(&array, own())?, [1, 3, 0, 2]);
/// assert_eq!(rank(&array, (own().abs(), Descending(own())))?, [0, 3, 2, 1]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait SortBy<T>: Sealed {
    /// Sorts the positions of elements by this key.
    #[doc(hidden)]
    fn order<S: Store<Element = T>>(&self, ordered: &mut KeyOrdering<'_, S>) -> Result<()>;
}

/// One sort key: a field or another expression whose value is a number, possibly [descending](Descending).
///
/// ```
/// use vmarray::order::SingleKey;
/// use vmarray::prelude::*;
///
/// fn first<K: SingleKey<u32>>(of: &VirtualArray<u32>, key: K) -> vmarray::Result<u64> {
///     of.argsort(.., key)?.get(0)
/// }
/// let array = VirtualArray::<u32>::new(3)?;
/// array.write(0, &[12, 5, 31])?;
/// assert_eq!(first(&array, Field::<u32, u32>::whole() % 10)?, 2);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait SingleKey<T>: SortBy<T> {
    /// The type of the key's value.
    type Key: SortKey;

    /// Returns the expression of the key, and true if the order is descending.
    #[doc(hidden)]
    fn key(&self) -> (Expr<T, Self::Key>, bool);
}

/// A sort key in descending order. Elements with equal keys keep their original order. See [`SortBy`].
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u8>::new(3)?;
/// array.write(0, &[1, 3, 1])?;
/// assert_eq!(array.argsort(.., Descending(Field::<u8, u8>::whole()))?.to_vec(..)?, [1, 0, 2]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Descending<K>(pub K);

impl<K: Sealed> Sealed for Descending<K> {}
impl<T, F> Sealed for Expr<T, F> {}
impl<T, F> Sealed for Field<T, F> {}

macro_rules! single {
    ($([$($T:tt)*] $Key:ty, $Number:ty, |$key:ident| $of:expr;)*) => { $(
        impl<$($T)*> SortBy<T> for $Key {
            fn order<S: Store<Element = T>>(&self, ordered: &mut KeyOrdering<'_, S>) -> Result<()> {
                ordered.by_one(self).map(drop)
            }
        }

        impl<$($T)*> SingleKey<T> for $Key {
            type Key = $Number;

            fn key(&self) -> (Expr<T, $Number>, bool) {
                let $key = self;
                $of
            }
        }
    )* };
}
single! {
    [T: Element, F: SortKey] Expr<T, F>, F, |key| (key.clone(), false);
    [T: Element, F: FieldType<Value: SortKey>] Field<T, F>, F::Value, |key| (key.into_expr(), false);
    [T: Element, K: SingleKey<T>] Descending<K>, K::Key, |key| {
        let (expr, is_descending) = key.0.key();
        (expr, !is_descending)
    };
}

macro_rules! several {
    ($($($K:ident $number:tt),*;)*) => { $(
        impl<T, $($K: SortBy<T>),*> SortBy<T> for ($($K,)*) {
            fn order<S: Store<Element = T>>(&self, ordered: &mut KeyOrdering<'_, S>) -> Result<()> {
                $(self.$number.order(ordered)?;)*
                Ok(())
            }
        }
    )* };
}
several! {
    A 0;
    B 1, A 0;
    C 2, B 1, A 0;
    D 3, C 2, B 1, A 0;
}

/// The positions of elements during a sort by several keys, in the order of the keys processed so far.
#[doc(hidden)]
#[derive(Debug)]
pub struct KeyOrdering<'a, S: Store> {
    of: Section<'a, S>,
    positions: OrderedPositions<S::Device>,
    is_begun: bool,
}

/// Positions of elements, as 32-bit numbers if all are below 2^32.
#[derive(Debug)]
enum OrderedPositions<D: Device> {
    Narrow(VirtualArray<u32, D>),
    Wide(VirtualArray<u64, D>),
}

impl<'a, S: Store> KeyOrdering<'a, S> {
    /// Returns the positions of elements in their present order.
    pub(super) fn new(of: Section<'a, S>) -> Result<Self> {
        let positions = if of.len() <= 1 << 32 {
            OrderedPositions::Narrow(evaluated(of, index().converted::<u32>())?)
        } else {
            OrderedPositions::Wide(evaluated(of, index())?)
        };
        Ok(Self { of, positions, is_begun: false })
    }

    /// Returns the positions of elements in the order of their keys.
    pub(super) fn by(of: Section<'a, S>, keys: &impl SortBy<S::Element>) -> Result<Self> {
        let mut ordered = Self::new(of)?;
        keys.order(&mut ordered)?;
        Ok(ordered)
    }

    /// Sorts the positions stably by one more key, which takes precedence over the previous keys. Returns the
    /// key's values in the new order.
    pub(super) fn by_one<K: SingleKey<S::Element>>(
        &mut self,
        key: &K,
    ) -> Result<VirtualArray<K::Key, S::Device>> {
        let (expr, is_descending) = key.key();
        self.by_keys(evaluated(self.of, expr)?, is_descending)
    }

    /// Like [`by_one`](Self::by_one), if the values of the key are already computed.
    pub(super) fn by_keys<K: SortKey>(
        &mut self,
        mut keys: VirtualArray<K, S::Device>,
        is_descending: bool,
    ) -> Result<VirtualArray<K, S::Device>> {
        if self.is_begun {
            keys = self.take_from(&keys)?;
        }
        let positions: &dyn ResultStore = match &self.positions {
            OrderedPositions::Narrow(positions) => positions,
            OrderedPositions::Wide(positions) => positions,
        };
        sort(&keys, &(0..keys.len()), Some(Operand::changed(positions, 0)), is_descending)?;
        self.is_begun = true;
        Ok(keys)
    }

    /// Returns the elements of a view in the order of these positions.
    pub(super) fn take_from<'v, V: View<'v, Shape = Linear, Index = usize>>(
        &self,
        of: V,
    ) -> Result<VirtualArray<V::Element, S::Device>> {
        match &self.positions {
            OrderedPositions::Narrow(positions) => take(section(of, ..)?, section(positions, ..)?),
            OrderedPositions::Wide(positions) => take(section(of, ..)?, section(positions, ..)?),
        }
    }

    pub(super) fn into_wide(self) -> Result<VirtualArray<u64, S::Device>> {
        match self.positions {
            OrderedPositions::Narrow(positions) => {
                evaluated(Section::from(&positions), Field::<u32, u32>::whole().cast::<u64>())
            }
            OrderedPositions::Wide(positions) => Ok(positions),
        }
    }
}

/// Sorts elements with their positions, and moves values by position, if GPUs store the elements. Returns
/// false without a change if they do not, or if memory does not suffice.
pub(super) fn sort_by_position<'a, 'v, K, V>(
    keys: K,
    bounds: &impl RangeBounds<usize>,
    values: V,
) -> Result<bool>
where
    K: ViewMut<'a> + View<'a, Shape = Linear, Index = usize, Element: SortKey>,
    V: ViewMut<'v> + View<'v, Shape = Linear, Index = usize>,
{
    let range = keys.parts().1.checked((bounds.start_bound().cloned(), bounds.end_bound().cloned()))?;
    if keys.explain_sort(range.clone(), Some(size_of::<V::Element>()))? != SortPlan::OnDevices {
        return Ok(false);
    }
    let ((store, shape), (beside, places)) = (keys.parts(), values.parts());
    let operand = (Operand::new(beside.as_operand(INTERNAL), places.start), values.len());
    check_values(store.as_operand(INTERNAL), &shape.places(range.clone())?, operand)?;
    let of = section(keys, range.clone())?;
    let sorted = KeyOrdering::new(of).and_then(|mut order| {
        let sorted = order.by_one(&Field::<K::Element, K::Element>::whole())?;
        Ok((sorted, order.take_from(values)?))
    });
    match sorted {
        Err(error) if matches!(error.kind(), ErrorKind::NoMemory { .. }) => Ok(false),
        Err(error) => Err(error),
        Ok((sorted, moved)) => {
            values.copy_from(0, &moved)?;
            keys.copy_from(range.start, &sorted)?;
            Ok(true)
        }
    }
}

/// Evaluates an expression for each element.
pub(super) fn evaluated<S: Store, F: SortKey>(
    of: Section<'_, S>,
    expr: Expr<S::Element, F>,
) -> Result<VirtualArray<F, S::Device>> {
    let values = of.store().array_like::<F>(of.len(), INTERNAL)?;
    let assignments: Vec<Assignment<()>> = vec![expr.beside().assigned::<F>(0, 0)];
    values.change(&[operand(of)], &(0..of.len()), &Plan::new(None, assignments)?)?;
    Ok(values)
}
