//! Operations that depend on the order of elements: sorts by keys, argsort, binary search, `unique`,
//! `group_by`, and joins of two views by equal keys.
//!
//! The operations use the sorts of [`sort`](super::sort) and kernels of their own, on the devices of the
//! view.

mod by_blocks;
mod groups;
mod in_ram;
mod key_codes;
mod keys;
mod matches;
mod ranks;
mod searches;
mod section;
mod take;

use std::ops::RangeBounds;

use self::keys::KeyOrdering;
use self::section::section;
use crate::array::VirtualArray;
use crate::base::error::{ErrorKind, Result};
use crate::ops::executor::Operand;
use crate::ops::sealed::INTERNAL;
use crate::ops::sort::{SortKey, moves_with_keys, sort_with_values};
use crate::ops::view::{Linear, Shape as _, Store, StoreMut as _, View, ViewMut};

pub use groups::{Groupable, Groups};
pub use keys::{Descending, SingleKey, SortBy};
pub(crate) use matches::find_partners;
pub use matches::{KeyMatches, MatchKind};
pub use searches::Side;
pub(crate) use searches::last_not_above;
pub use take::TakeIndex;

/// An array on the same devices as a view, with the view's element type unless `T` is given.
pub(crate) type Alike<'a, V, T = <V as View<'a>>::Element> =
    VirtualArray<T, <<V as View<'a>>::Store as Store>::Device>;

/// Queries about the order of elements, for linear views (not boxes). `use vmarray::prelude::*` brings the
/// trait into scope.
///
/// Results are new arrays on the devices of the view, with the same page length. Indices have the type `u64`.
/// An operation allocates temporary device memory: for each element 4 bytes (8 from 2^32 elements on), plus
/// the length of its keys. A sort needs twice as much. If other threads write to the view meanwhile, the
/// result is unspecified.
///
/// If the elements are in files, temporary data and results longer than half of the array's cache are in
/// temporary files, in the folder of [`std::env::temp_dir`]; the process takes some 64 MiB of RAM.
///
/// Floats are in the order of [`f64::total_cmp`], and are equal if their bits are equal: `-0.0` comes before
/// `0.0`, and is a different key.
///
/// ```
/// use vmarray::order::Side;
/// use vmarray::prelude::*;
///
/// let scores = VirtualArray::<f32>::new(5)?;
/// scores.write(0, &[0.5, 9.0, 7.5, 9.0, 1.0])?;
/// let best = scores.argsort(.., Descending(Field::whole()))?;
/// assert_eq!(best.to_vec(..)?, [1, 3, 2, 4, 0]);
/// assert_eq!(scores.take(&best)?.to_vec(..2)?, [9.0, 9.0]);
/// assert_eq!(scores.unique(..)?.to_vec(..)?, [0.5, 1.0, 7.5, 9.0]);
/// assert_eq!((scores.select_nth(.., 2)?, scores.top_k(.., 3)?), (7.5, vec![9.0, 9.0, 7.5]));
/// assert!(!scores.is_sorted(..)?);
///
/// scores.sort(..)?;
/// let wanted = Source::new(vec![8.0, 9.0])?;
/// assert_eq!(scores.search_sorted(&wanted, Side::Left)?.to_vec(..)?, [3, 3]);
/// assert_eq!(scores.partition_point(.., |score| score < 5.0)?, 2);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Order<'a>: View<'a, Shape = Linear, Index = usize> {
    /// Returns the indices of the elements of a range in the order of their keys. The indices count from the
    /// first element of the range. A key is one expression, possibly [descending](Descending), or a tuple of
    /// several, in which later ones break ties. The sort is stable: equal keys keep their order.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let points = VirtualArray::<[i16; 2]>::new(4)?;
    /// points.write(0, &[[1, 5], [0, 3], [1, 9], [0, 3]])?;
    /// let whole = Field::<[i16; 2], [i16; 2]>::whole();
    /// let (x, y) = (whole.nth::<0>(), whole.nth::<1>());
    /// assert_eq!(points.argsort(.., (x, Descending(y)))?.to_vec(..)?, [1, 3, 2, 0]);
    /// assert_eq!(points.argsort(1.., y + x)?.to_vec(..)?, [0, 2, 1]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`section`](View::section), of expressions, of [`sort`](crate::views::Sort::sort) and of
    /// [building arrays](crate::Builder::build).
    fn argsort(
        self,
        bounds: impl RangeBounds<usize>,
        keys: impl SortBy<Self::Element>,
    ) -> Result<Alike<'a, Self, u64>> {
        KeyOrdering::by(section(self, bounds)?, &keys)?.into_wide()
    }

    /// Returns the elements of this view whose indices another view contains. The result has the order of the
    /// indices, and is on the devices of the indices.
    ///
    /// The devices of the indices copy elements of up to 128 bytes. They read the elements in place if they
    /// can; otherwise they first receive a copy of all elements. Longer elements, and elements that do not
    /// fit into device memory, pass through RAM, as in [`gather`](View::gather).
    ///
    /// # Errors
    /// [`ListedIndexOutside`](crate::ErrorKind::ListedIndexOutside); errors of devices, and of [building
    /// arrays](crate::Builder::build).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let (names, order) = (VirtualArray::<[u8; 3]>::new(2)?, VirtualArray::<u64>::new(3)?);
    /// names.write(0, &[*b"one", *b"two"])?;
    /// order.write(0, &[1, 1, 0])?;
    /// assert_eq!(names.take(&order)?.to_vec(..)?, [*b"two", *b"two", *b"one"]);
    /// order.set(1, 2)?;
    /// assert!(names.take(&order).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn take<'i, I>(self, indices: I) -> Result<Alike<'i, I, Self::Element>>
    where
        I: View<'i, Shape = Linear, Element: TakeIndex>,
    {
        take::take(section(self, ..)?, section(indices, ..)?)
    }

    /// Returns true if the elements of a range are in ascending order. Floats are compared by
    /// [`f64::total_cmp`].
    ///
    /// # Errors
    /// The errors of [`section`](View::section), and of devices.
    fn is_sorted(self, bounds: impl RangeBounds<usize>) -> Result<bool>
    where
        Self::Element: SortKey,
    {
        ranks::is_sorted(section(self, bounds)?)
    }

    /// Returns the index of the first element of a range for which a condition is false, by binary search.
    /// The condition must be true for all elements before that index, and false for all from there on. If
    /// it is true for all, the result is the end of the range. The search reads few elements, one after
    /// the other, as [`get`](View::get) does.
    ///
    /// # Errors
    /// The errors of [`section`](View::section), and of devices.
    fn partition_point(
        self,
        bounds: impl RangeBounds<usize>,
        mut holds: impl FnMut(Self::Element) -> bool,
    ) -> Result<usize> {
        let std::ops::Range { mut start, mut end } = self.parts().1.checked(bounds)?;
        while start < end {
            let middle = start.midpoint(end);
            if holds(self.get(middle)?) {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        Ok(start)
    }

    /// Returns an insertion point for each element of another view: its index among the sorted elements of
    /// this view, before or after equal elements. The devices of the other view search by bisection. They
    /// read the sorted elements as in [`take`](Self::take).
    ///
    /// # Errors
    /// The errors of devices, and of [building arrays](crate::Builder::build).
    fn search_sorted<'n, N>(self, others: N, side: Side) -> Result<Alike<'n, N, u64>>
    where
        Self::Element: SortKey,
        N: View<'n, Shape = Linear, Element = Self::Element>,
    {
        searches::search(section(self, ..)?, section(others, ..)?, side)
    }

    /// Merges the elements of this view and of another view, both sorted, to a new array in ascending order.
    /// Elements of this view come before equal elements of the other view.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let (odd, even) = (Source::new(vec![1, 3, 5])?, Source::new(vec![0, 2])?);
    /// assert_eq!(odd.merged(&even)?.to_vec(..)?, [0, 1, 2, 3, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`search_sorted`](Self::search_sorted).
    fn merged<'o, O>(self, other: O) -> Result<Alike<'a, Self>>
    where
        Self::Element: SortKey,
        O: View<'o, Shape = Linear, Element = Self::Element>,
    {
        searches::merge(section(self, ..)?, section(other, ..)?)
    }

    /// Returns the element with rank `nth` in the ascending order of a range; rank 0 is the least element.
    /// The devices read elements of 32 bits three times, elements of 64 bits six times, and move none.
    ///
    /// # Errors
    /// The errors of [`section`](View::section); [`IndexOutside`](crate::ErrorKind::IndexOutside); errors
    /// of devices.
    fn select_nth(self, bounds: impl RangeBounds<usize>, nth: usize) -> Result<Self::Element>
    where
        Self::Element: SortKey,
    {
        ranks::select_nth(section(self, bounds)?, nth)
    }

    /// Returns quantiles of a range. For each share between 0 and 1, returns the element that is greater than
    /// about this share of all elements. 0.5 is the median; of an even number of elements, the upper median.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::new(101)?;
    /// array.transform(.., Field::whole().set(vmarray::expr::index().cast::<u32>() * 7 % 101))?;
    /// assert_eq!(array.quantiles(.., &[0.0, 0.5, 0.9, 1.0])?, [0, 50, 90, 100]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`select_nth`](Self::select_nth). An empty range has no quantiles.
    /// [`ShareOutside`](ErrorKind::ShareOutside) for the first share that is not between 0 and 1, such as
    /// NaN; the method reads nothing then.
    fn quantiles(self, bounds: impl RangeBounds<usize>, shares: &[f64]) -> Result<Vec<Self::Element>>
    where
        Self::Element: SortKey,
    {
        let of = section(self, bounds)?;
        if let Some(position) = shares.iter().position(|share| !(0.0..=1.0).contains(share)) {
            let share = shares[position].to_string();
            return Err(ErrorKind::ShareOutside { position, share }.into());
        }
        let last = of.len().saturating_sub(1) as f64;
        shares.iter().map(|share| ranks::select_nth(of, (share * last).round() as usize)).collect()
    }

    /// Returns the `count` greatest elements of a range in descending order, or all if there are fewer.
    /// [`argsort`](Self::argsort) by a [`Descending`] key returns their indices.
    ///
    /// # Errors
    /// The errors of [`select_nth`](Self::select_nth).
    fn top_k(self, bounds: impl RangeBounds<usize>, count: usize) -> Result<Vec<Self::Element>>
    where
        Self::Element: SortKey,
    {
        ranks::top_k(section(self, bounds)?, count)
    }

    /// Returns the distinct elements of a range, in ascending order.
    ///
    /// # Errors
    /// The errors of [`argsort`](Self::argsort).
    fn unique(self, bounds: impl RangeBounds<usize>) -> Result<Alike<'a, Self>>
    where
        Self::Element: SortKey,
    {
        groups::unique(section(self, bounds)?)
    }

    /// Groups the elements of a range by equal keys: see [`Groups`].
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = Source::new(vec![14_u32, 25, 5])?;
    /// let by_digit = array.group_by(.., Field::<u32, u32>::whole() % 10)?;
    /// assert_eq!(by_digit.keys().to_vec(..)?, [4, 5]);
    /// assert_eq!(by_digit.sum(&array)?.to_vec(..)?, [14, 30]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`argsort`](Self::argsort).
    fn group_by<K: SingleKey<Self::Element>>(
        self,
        bounds: impl RangeBounds<usize>,
        key: K,
    ) -> Result<Groups<K::Key, <Self::Store as Store>::Device>> {
        groups::group_by(section(self, bounds)?, &key)
    }

    /// Joins two tables by a key: returns the pairs of elements of this view and of another view with equal
    /// keys, as indices. See [`KeyMatches`].
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::order::MatchKind;
    /// let (orders, customers) = (Source::new(vec![7_u32, 5, 7, 8])?, Source::new(vec![5_u32, 7])?);
    /// let (order, customer) = (Field::<u32, u32>::whole(), Field::<u32, u32>::whole());
    /// let matches = orders.matches(&customers, order, customer, MatchKind::Inner)?;
    /// assert_eq!(matches.left.to_vec(..)?, [0, 1, 2]);
    /// assert_eq!(matches.right.to_vec(..)?, [1, 0, 1]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`argsort`](Self::argsort), for both views.
    fn matches<'o, O, K, L>(
        self,
        other: O,
        key: K,
        other_key: L,
        kind: MatchKind,
    ) -> Result<KeyMatches<<Self::Store as Store>::Device>>
    where
        O: View<'o, Shape = Linear>,
        K: SingleKey<Self::Element>,
        L: SingleKey<O::Element, Key = K::Key>,
    {
        matches::matches(section(self, ..)?, section(other, ..)?, (&key, &other_key), kind)
    }

    /// Returns `count` random elements of a range in random order, each at most once. The same seed returns
    /// the same elements. The call needs memory for `count` numbers, for a range of any length.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::new(1000)?;
    /// array.transform(.., Field::whole().set(vmarray::expr::index().cast::<u32>()))?;
    /// let some = array.sample(500.., 10, 1)?;
    /// assert!(some.len() == 10 && some.iter().all(|element| *element >= 500));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`section`](View::section); [`IndexOutside`](crate::ErrorKind::IndexOutside) if the
    /// range has fewer elements; errors of devices.
    fn sample(self, bounds: impl RangeBounds<usize>, count: usize, seed: u64) -> Result<Vec<Self::Element>> {
        ranks::sample(section(self, bounds)?, count, seed)
    }
}

impl<'a, V: View<'a, Shape = Linear, Index = usize>> Order<'a> for V {}

/// Sorts of elements by keys, and of keys with values, for linear views (not boxes).
/// [`Sort::sort`](crate::views::Sort::sort) sorts numbers alone. `use vmarray::prelude::*` brings the trait
/// into scope.
///
/// ```
/// use vmarray::prelude::*;
///
/// let people = VirtualArray::<[u32; 2]>::new(3)?;
/// people.write(0, &[[1970, 3], [2001, 1], [1970, 2]])?;
/// let whole = Field::<[u32; 2], [u32; 2]>::whole();
/// let (born, number) = (whole.nth::<0>(), whole.nth::<1>());
/// people.sort_by_key(.., (Descending(born), number))?;
/// assert_eq!(people.to_vec(..)?, [[2001, 1], [1970, 2], [1970, 3]]);
/// people.shuffle(.., 5)?;
/// assert_eq!(people.sum(.., number)?, 6);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait OrderMut<'a>: ViewMut<'a> + View<'a, Shape = Linear, Index = usize> {
    /// Sorts the elements of a range by keys, as in [`argsort`](Order::argsort). The elements can have any
    /// type. The call copies them to additional memory, and back in sorted order.
    ///
    /// # Errors
    /// The errors of [`argsort`](Order::argsort). The elements are unchanged until the sorted ones are
    /// copied back.
    fn sort_by_key(self, bounds: impl RangeBounds<usize>, keys: impl SortBy<Self::Element>) -> Result<()> {
        let range = self.parts().1.checked(bounds)?;
        let of = section(self, range.clone())?;
        self.copy_from(range.start, &KeyOrdering::by(of, &keys)?.take_from(of)?)
    }

    /// Sorts the elements of a range as [`sort`](crate::views::Sort::sort) does, and applies the same
    /// permutation to `values`. The first value belongs to the first element of the range. The sort is
    /// stable: equal elements keep their order, and so do their values.
    ///
    /// Values can be plain data of any type. GPUs move values of 4 and 8 bytes in the passes of the sort
    /// under these conditions:
    ///
    /// - Both arrays are on the same devices, with as much additional memory as elements and values.
    /// - With several channels, both arrays have the same page length. The starts of both ranges differ by a
    ///   multiple of the page length times the number of channels.
    ///
    /// GPUs move values of other lengths by sorted positions, with memory for another copy of elements and
    /// values. In all other cases values pass through RAM.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let ages = VirtualArray::<u8>::new(4)?;
    /// let names = VirtualArray::<[u8; 3]>::new(4)?;
    /// ages.write(0, &[51, 8, 51, 30])?;
    /// names.write(0, &[*b"Eve", *b"Tim", *b"Ada", *b"Bob"])?;
    /// ages.sort_with(.., &names)?;
    /// assert_eq!(ages.to_vec(..)?, [8, 30, 51, 51]);
    /// assert_eq!(names.to_vec(..)?, [*b"Tim", *b"Bob", *b"Eve", *b"Ada"]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`sort`](crate::views::Sort::sort), for the elements and for the values;
    /// [`LengthMismatch`](ErrorKind::LengthMismatch) unless there is a value for each element;
    /// [`KernelOverlap`](ErrorKind::KernelOverlap) if elements and values overlap.
    fn sort_with<'v, V>(self, bounds: impl RangeBounds<usize>, values: V) -> Result<()>
    where
        Self::Element: SortKey,
        V: ViewMut<'v> + View<'v, Shape = Linear, Index = usize>,
    {
        if !moves_with_keys(size_of::<V::Element>()) && keys::sort_by_position(self, &bounds, values)? {
            return Ok(());
        }
        let (store, shape) = values.parts();
        let target = store.as_target(INTERNAL);
        sort_with_values(self, bounds, (Operand::changed(target, shape.start), values.len()))
    }

    /// Shuffles the elements of a range, by a sort with random keys of 64 bits. All orders are equally
    /// probable, except for equal random keys. The same seed produces the same order.
    ///
    /// # Errors
    /// The errors of [`sort_by_key`](Self::sort_by_key).
    fn shuffle(self, bounds: impl RangeBounds<usize>, seed: u64) -> Result<()> {
        self.sort_by_key(bounds, ranks::random_bits(seed))
    }
}

impl<'a, V: ViewMut<'a> + View<'a, Shape = Linear, Index = usize>> OrderMut<'a> for V {}
