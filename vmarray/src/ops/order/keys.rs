//! Sorting by keys: their positions go with them, key by key from the last to the first.

use backend_api::Device;

use super::Linearly;
use super::take::{TakeIndex, take};
use crate::array::VirtualArray;
use crate::base::element::{Element, Field};
use crate::base::error::Result;
use crate::ops::compute::Plan;
use crate::ops::executor::Operand;
use crate::ops::expr::{Assignment, Expr, FieldType, IntoExpr as _, index};
use crate::ops::sort::{SortKey, sort};
use crate::ops::view::sealed::Sealed;
use crate::ops::view::{INTERNAL, QueryMut as _, Store, StoreMut as _};

/// What elements are sorted by: a [single key](SingleKey), or a tuple of up to four.
///
/// ```
/// use vmarray::order::{Descending, SortBy};
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
    /// Has positions sorted by it.
    #[doc(hidden)]
    fn order<S: Store<Element = T>, P: Position>(&self, ordering: &mut Ordering<'_, S, P>) -> Result<()>;
}

/// One key: a field or another expression of a number, or one that is [descending](Descending).
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
    /// The type of the number.
    type Key: SortKey;

    /// The number, and whether it is descending.
    #[doc(hidden)]
    fn key(&self) -> (Expr<T, Self::Key>, bool);
}

/// A key by which the greatest comes first. Elements whose keys are equal stay in their order. See
/// [`SortBy`].
///
/// ```
/// # use vmarray::prelude::*;
/// use vmarray::order::Descending;
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
            fn order<S: Store<Element = T>, P: Position>(
                &self,
                ordering: &mut Ordering<'_, S, P>,
            ) -> Result<()> {
                ordering.by(self).map(drop)
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
            fn order<S: Store<Element = T>, P: Position>(
                &self,
                ordering: &mut Ordering<'_, S, P>,
            ) -> Result<()> {
                $(self.$number.order(ordering)?;)*
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

/// Numbers of positions.
#[doc(hidden)]
pub trait Position: TakeIndex + SortKey {}
impl Position for u32 {}
impl Position for u64 {}

/// Positions of elements, in the order of the keys so far.
#[doc(hidden)]
#[derive(Debug)]
pub struct Ordering<'a, S: Store, P: Position> {
    of: Linearly<'a, S>,
    positions: VirtualArray<P, S::Device>,
    is_begun: bool,
}

impl<'a, S: Store, P: Position> Ordering<'a, S, P> {
    fn new(of: Linearly<'a, S>) -> Result<Self> {
        let positions = of.store.alike::<P>(of.len, INTERNAL)?;
        positions.transform(.., Field::<P, P>::whole().set(index::<P>().converted::<P>()))?;
        Ok(Self { of, positions, is_begun: false })
    }

    /// Sorts them by one key more, which counts more than those before; the keys in their order.
    fn by<K: SingleKey<S::Element>>(&mut self, key: &K) -> Result<VirtualArray<K::Key, S::Device>> {
        let (expr, is_descending) = key.key();
        let mut keys = evaluated(&self.of, expr)?;
        if self.is_begun {
            keys = take(&Linearly::all(&keys), &Linearly::all(&self.positions))?;
        }
        let positions = Operand::changed(self.positions.as_target(INTERNAL), 0);
        sort(&keys, &(0..self.of.len), Some(positions), is_descending)?;
        self.is_begun = true;
        Ok(keys)
    }
}

/// The value of an expression for each element.
pub(super) fn evaluated<S: Store, F: SortKey>(
    of: &Linearly<'_, S>,
    expr: Expr<S::Element, F>,
) -> Result<VirtualArray<F, S::Device>> {
    let values = of.store.alike::<F>(of.len, INTERNAL)?;
    let assignments: Vec<Assignment<()>> = vec![expr.beside().assigned::<F>(0, 0)];
    values.as_target(INTERNAL).change(&[of.beside()], &(0..of.len), &Plan::new(None, assignments)?)?;
    Ok(values)
}

/// Whether positions are numbers of 32 bits.
fn is_narrow(len: usize) -> bool {
    len <= 1 << 32
}

/// Positions in the order of keys.
pub(super) fn argsort<S: Store>(
    of: Linearly<'_, S>,
    keys: &impl SortBy<S::Element>,
) -> Result<VirtualArray<u64, S::Device>> {
    if is_narrow(of.len) {
        let mut ordering = Ordering::<S, u32>::new(of)?;
        keys.order(&mut ordering)?;
        return wide(&ordering.positions);
    }
    let mut ordering = Ordering::<S, u64>::new(of)?;
    keys.order(&mut ordering)?;
    Ok(ordering.positions)
}

type PositionsAndKeys<K, D> = (VirtualArray<u64, D>, VirtualArray<K, D>);

/// Positions in the order of one key, and the keys in their order.
pub(super) fn argsort_keys<S: Store, K: SingleKey<S::Element>>(
    of: Linearly<'_, S>,
    key: &K,
) -> Result<PositionsAndKeys<K::Key, S::Device>> {
    if is_narrow(of.len) {
        let mut ordering = Ordering::<S, u32>::new(of)?;
        let keys = ordering.by(key)?;
        return Ok((wide(&ordering.positions)?, keys));
    }
    let mut ordering = Ordering::<S, u64>::new(of)?;
    let keys = ordering.by(key)?;
    Ok((ordering.positions, keys))
}

/// The elements in the order of keys.
pub(super) fn sorted<S: Store>(
    of: Linearly<'_, S>,
    keys: &impl SortBy<S::Element>,
) -> Result<VirtualArray<S::Element, S::Device>> {
    if is_narrow(of.len) {
        let mut ordering = Ordering::<S, u32>::new(of)?;
        keys.order(&mut ordering)?;
        return take(&of, &Linearly::all(&ordering.positions));
    }
    let mut ordering = Ordering::<S, u64>::new(of)?;
    keys.order(&mut ordering)?;
    take(&of, &Linearly::all(&ordering.positions))
}

fn wide<D: Device>(narrow: &VirtualArray<u32, D>) -> Result<VirtualArray<u64, D>> {
    let own: Expr<u32, u32> = Field::<u32, u32>::whole().into_expr();
    evaluated(&Linearly::all(narrow), own.converted::<u64>())
}
