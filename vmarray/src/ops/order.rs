//! Elements in an order: sorting by keys, indices in that order, searches in what is sorted, distinct
//! elements, groups, and which elements of two views have the same key.
//!
//! All of it is made of the sorts of [`sort`](super::sort) and of kernels, over arrays on the devices of what
//! is given.

mod groups;
mod in_ram;
mod key_codes;
mod keys;
mod matches;
mod ranks;
mod searches;
mod take;

use std::ops::RangeBounds;

use self::keys::KeyOrdering;
use crate::array::VirtualArray;
use crate::base::error::Result;
use crate::ops::sort::SortKey;
use crate::ops::view::{Linear, Section, Shape as _, Store, View, ViewMut};

pub use groups::{Groupable, Groups};
pub use keys::{Descending, SingleKey, SortBy};
pub use matches::{KeyMatches, MatchKind};
pub use searches::Side;
pub(crate) use searches::last_not_above;
pub use take::TakeIndex;

/// A range of a view, as a section of its store.
fn section<'a, V>(view: V, bounds: impl RangeBounds<usize>) -> Result<Section<'a, V::Store>>
where
    V: View<'a, Shape = Linear>,
{
    let (store, shape) = view.parts();
    Ok(Section::new(store, shape.cut(&shape.checked(bounds)?)))
}

/// An array of the elements and devices of a view.
pub(crate) type Alike<'a, V, T = <V as View<'a>>::Element> =
    VirtualArray<T, <<V as View<'a>>::Store as Store>::Device>;

/// What views of a range can be asked about the order of their elements. Come by it with
/// `use vmarray::prelude::*`.
///
/// Results are new arrays on the devices of the view, whose pages have as many elements as those of the view
/// (in RAM, where the view lies in files). They can hold `u64`; what is worked with takes device memory
/// meanwhile: indices 4 bytes an element (8 from 2^32 elements on), keys as much as they are long, and both
/// twice while they are sorted. Others must not write to what is given meanwhile, or what comes out is not
/// said.
///
/// Floats are in their total order, and equal if their bits are: `-0.0` comes before `0.0` and is another
/// key.
///
/// ```
/// use vmarray::order::{Descending, Side};
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
    /// The indices of the elements of a range, counted from its first, in the order of keys: of one
    /// expression, [descending](Descending), or of several in a tuple, of which later ones count where
    /// earlier ones are equal. Elements whose keys are all equal stay in their order.
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use vmarray::order::Descending;
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
    /// As [`section`](View::section), and those of expressions, of [`sort`](ViewMut::sort) and of
    /// [building arrays](crate::Builder::build).
    fn argsort(
        self,
        bounds: impl RangeBounds<usize>,
        keys: impl SortBy<Self::Element>,
    ) -> Result<Alike<'a, Self, u64>> {
        KeyOrdering::by(section(self, bounds)?, &keys)?.into_wide()
    }

    /// The elements that another view has the indices of, in its order, on its devices.
    ///
    /// Elements of up to 128 bytes are copied by the devices of the indices, which read them where they lie
    /// if they can, and have all of them copied beside them else. Longer ones, and those that do not fit
    /// there, go through RAM, as by [`gather`](View::gather).
    ///
    /// # Errors
    /// [`ListedIndexOutside`](crate::ErrorKind::ListedIndexOutside); those of devices, and of
    /// [building arrays](crate::Builder::build).
    ///
    /// ```
    /// # use vmarray::prelude::*;
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

    /// Whether the elements of a range are in ascending order, floats in their total one.
    ///
    /// # Errors
    /// As [`section`](View::section), and those of devices.
    fn is_sorted(self, bounds: impl RangeBounds<usize>) -> Result<bool>
    where
        Self::Element: SortKey,
    {
        ranks::is_sorted(section(self, bounds)?)
    }

    /// The index of the first element of a range for which a condition does not hold, if it holds for those
    /// before it and for none behind: the end of the range if it holds for all. Looks at few elements, one
    /// after the other, as [`get`](View::get) does.
    ///
    /// # Errors
    /// As [`section`](View::section), and those of devices.
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

    /// Where each of other elements belongs among the sorted elements of this view, so that they stay sorted:
    /// before or behind those that are equal. The devices of the others search, by bisection; they read the
    /// sorted elements as by [`take`](Self::take).
    ///
    /// # Errors
    /// Those of devices, and of [building arrays](crate::Builder::build).
    fn search_sorted<'n, N>(self, others: N, side: Side) -> Result<Alike<'n, N, u64>>
    where
        Self::Element: SortKey,
        N: View<'n, Shape = Linear, Element = Self::Element>,
    {
        searches::search(section(self, ..)?, section(others, ..)?, side)
    }

    /// The elements of this view and of another one, both of which are sorted, in ascending order: elements
    /// of this view before equal ones of the other.
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// let (odd, even) = (Source::new(vec![1, 3, 5])?, Source::new(vec![0, 2])?);
    /// assert_eq!(odd.merged(&even)?.to_vec(..)?, [0, 1, 2, 3, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`search_sorted`](Self::search_sorted).
    fn merged<'o, O>(self, other: O) -> Result<Alike<'a, Self>>
    where
        Self::Element: SortKey,
        O: View<'o, Shape = Linear, Element = Self::Element>,
    {
        searches::merge(section(self, ..)?, section(other, ..)?)
    }

    /// The element of a range that would be at a place if they were sorted, 0 for the least. Reads the
    /// elements three times if they have 32 bits, six times if 64, and moves none.
    ///
    /// # Errors
    /// As [`section`](View::section); [`IndexOutside`](crate::ErrorKind::IndexOutside); those of devices.
    fn select_nth(self, bounds: impl RangeBounds<usize>, nth: usize) -> Result<Self::Element>
    where
        Self::Element: SortKey,
    {
        ranks::select_nth(section(self, bounds)?, nth)
    }

    /// For each share between 0 and 1 the element of a range below which that share of the others is, as near
    /// as there is one: 0.5 asks for the median, of an even number for the upper one.
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::new(101)?;
    /// array.transform(.., Field::whole().set(vmarray::expr::index().cast::<u32>() * 7 % 101))?;
    /// assert_eq!(array.quantiles(.., &[0.0, 0.5, 0.9, 1.0])?, [0, 50, 90, 100]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`select_nth`](Self::select_nth). An empty range has none.
    fn quantiles(self, bounds: impl RangeBounds<usize>, shares: &[f64]) -> Result<Vec<Self::Element>>
    where
        Self::Element: SortKey,
    {
        let of = section(self, bounds)?;
        let last = of.len().saturating_sub(1) as f64;
        shares
            .iter()
            .map(|share| ranks::select_nth(of, (share.clamp(0.0, 1.0) * last).round() as usize))
            .collect()
    }

    /// The greatest elements of a range, in descending order: so many, or all if there are less.
    ///
    /// # Errors
    /// As [`select_nth`](Self::select_nth).
    fn top_k(self, bounds: impl RangeBounds<usize>, count: usize) -> Result<Vec<Self::Element>>
    where
        Self::Element: SortKey,
    {
        ranks::top_k(section(self, bounds)?, count)
    }

    /// The different elements of a range, in ascending order.
    ///
    /// # Errors
    /// As [`argsort`](Self::argsort).
    fn unique(self, bounds: impl RangeBounds<usize>) -> Result<Alike<'a, Self>>
    where
        Self::Element: SortKey,
    {
        groups::unique(section(self, bounds)?)
    }

    /// The elements of a range in groups whose key is the same: see [`Groups`].
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// let array = Source::new(vec![14_u32, 25, 5])?;
    /// let by_digit = array.group_by(.., Field::<u32, u32>::whole() % 10)?;
    /// assert_eq!(by_digit.keys().to_vec(..)?, [4, 5]);
    /// assert_eq!(by_digit.sum(&array)?.to_vec(..)?, [14, 30]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`argsort`](Self::argsort).
    fn group_by<K: SingleKey<Self::Element>>(
        self,
        bounds: impl RangeBounds<usize>,
        key: K,
    ) -> Result<Groups<K::Key, <Self::Store as Store>::Device>> {
        groups::group_by(section(self, bounds)?, &key)
    }

    /// The pairs of elements of this view and of another one whose keys are the same, as indices: a join of
    /// two tables. See [`KeyMatches`].
    ///
    /// ```
    /// # use vmarray::prelude::*;
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
    /// As [`argsort`](Self::argsort), of both.
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

    /// So many elements of a range, chosen at random, each of the range at most once, in an order that is
    /// random as well. The same seed gives the same ones. Takes `count` numbers of RAM, whatever the length.
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::new(1000)?;
    /// array.transform(.., Field::whole().set(vmarray::expr::index().cast::<u32>()))?;
    /// let some = array.sample(500.., 10, 1)?;
    /// assert!(some.len() == 10 && some.iter().all(|element| *element >= 500));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`section`](View::section); [`IndexOutside`](crate::ErrorKind::IndexOutside) if there are not so
    /// many; those of devices.
    fn sample(self, bounds: impl RangeBounds<usize>, count: usize, seed: u64) -> Result<Vec<Self::Element>> {
        ranks::sample(section(self, bounds)?, count, seed)
    }
}

impl<'a, V: View<'a, Shape = Linear, Index = usize>> Order<'a> for V {}

/// What puts the elements of views of a range in an order by keys: see [`ViewMut::sort`] for numbers by
/// themselves. Come by it with `use vmarray::prelude::*`.
///
/// ```
/// use vmarray::order::Descending;
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
    /// Sorts the elements of a range by keys, as [`argsort`](Order::argsort) has them: elements of any type,
    /// which are copied twice, in memory beside them.
    ///
    /// # Errors
    /// As [`argsort`](Order::argsort); until the sorted elements are copied back, nothing is changed.
    fn sort_by_key(self, bounds: impl RangeBounds<usize>, keys: impl SortBy<Self::Element>) -> Result<()> {
        let range = self.parts().1.checked(bounds)?;
        let of = section(self, range.clone())?;
        self.copy_from(range.start, &KeyOrdering::by(of, &keys)?.take_from(of)?)
    }

    /// Puts the elements of a range in a random order, each as probable as any other as far as 64 random bits
    /// an element go. The same seed gives the same one.
    ///
    /// # Errors
    /// As [`sort_by_key`](Self::sort_by_key).
    fn shuffle(self, bounds: impl RangeBounds<usize>, seed: u64) -> Result<()> {
        self.sort_by_key(bounds, ranks::random_bits(seed))
    }
}

impl<'a, V: ViewMut<'a> + View<'a, Shape = Linear, Index = usize>> OrderMut<'a> for V {}
