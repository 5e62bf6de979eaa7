//! Shapes of views: a shape maps the index of an element in a view to its index in the store (the array or
//! [source](crate::Source) that contains the elements).

use std::borrow::Cow;
use std::fmt;
use std::ops::{Range, RangeBounds};

use crate::array::range::checked;
use crate::base::error::{ErrorKind, Result, index_outside};
use crate::ops::expr::{Expr, Filtered, IntoExpr, IntoFiltered, Scalar};

use super::store::{Store, StoreMut};
use super::stored_box::StoredBox;
use crate::ops::sealed::{INTERNAL, Internal, Sealed};

/// The mapping from the index of an element in a view to its index in the store (array or program memory).
///
/// The only shapes are [`Linear`], a range, and [`NdShape`](crate::nd::NdShape), a box of several
/// dimensions.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::nd::{NdSection, NdShape};
///
/// let array = VirtualArray::<u8>::new(12)?;
/// let table: NdSection<'_, _, 2> = NdSection::over(&array, [3, 4])?;
/// fn is_a_box<'a>(_: impl View<'a, Shape = NdShape<2>, Index = [usize; 2]>) {}
/// is_a_box(table);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Shape: Sealed + Copy + fmt::Debug + Send + Sync + 'static {
    /// The type of an element's index: `usize`, or `[usize; N]`.
    type Index: Copy + fmt::Debug + Ord + Send + Sync + Unpin + 'static;

    /// The shape of a copy of the elements, stored row by row.
    #[doc(hidden)]
    type Copied: Shape<Index = Self::Index>;

    #[doc(hidden)]
    fn copied(&self) -> Self::Copied;

    /// Returns the number of elements of the view.
    #[doc(hidden)]
    fn count(&self) -> usize;

    /// Checks bounds, and converts them to a region (a range of indices) of this shape.
    #[doc(hidden)]
    fn checked(&self, bounds: impl RangeBounds<Self::Index>) -> Result<Range<Self::Index>>;

    /// Returns the shape of a view that shows only a region.
    #[doc(hidden)]
    fn cut(&self, of: &Range<Self::Index>) -> Self;

    /// Returns the storage index of an element.
    #[doc(hidden)]
    fn place(&self, index: Self::Index) -> Result<usize>;

    /// Returns the view's index of the element with a storage index; `None` if the view does not show it.
    #[doc(hidden)]
    fn index_at(&self, place: usize) -> Option<Self::Index>;

    /// Converts ascending storage indices to ascending indices of the view. Skips elements outside the view.
    #[doc(hidden)]
    fn indices_at(&self, places: Vec<usize>) -> Vec<Self::Index> {
        let mut indices: Vec<_> = places.into_iter().filter_map(|place| self.index_at(place)).collect();
        if !indices.is_sorted() {
            indices.sort_unstable();
        }
        indices
    }

    /// Returns the number of elements along each axis.
    #[doc(hidden)]
    fn axes(&self) -> Vec<usize>;

    /// Converts coordinates to an index.
    #[doc(hidden)]
    fn index_of(at: &[usize]) -> Self::Index;

    /// Returns the storage location of the elements along each axis; `None` if the store has other axes.
    #[doc(hidden)]
    fn stored(&self) -> Option<StoredBox>;

    /// Returns the storage index from which the `index()` of expressions counts.
    #[doc(hidden)]
    fn origin(&self) -> usize;

    /// Returns the storage indices of a region, as ascending ranges.
    #[doc(hidden)]
    fn runs(&self, of: &Range<Self::Index>) -> impl Iterator<Item = Range<usize>>;

    /// Returns the storage range from the first element of a region to the last, and a condition that
    /// excludes elements outside the region.
    #[doc(hidden)]
    fn lowered<T>(&self, of: &Range<Self::Index>) -> LoweredRegion<T>;

    /// Converts a list of indices to storage indices that count from the start of a range of the store.
    #[doc(hidden)]
    fn list<'l>(&self, indices: &'l [Self::Index]) -> Result<(Range<usize>, Cow<'l, [usize]>)>;

    /// Copies a region to a slice of the same length, in the order of the indices.
    #[doc(hidden)]
    fn copy_out<S: Store>(
        &self,
        store: &S,
        of: &Range<Self::Index>,
        into: &mut [S::Element],
        _: Internal,
    ) -> Result<()>;

    /// Writes one value to all elements of a region.
    #[doc(hidden)]
    fn fill<S: StoreMut>(
        &self,
        store: &S,
        of: &Range<Self::Index>,
        value: S::Element,
        internal: Internal,
    ) -> Result<()> {
        self.runs(of).try_for_each(|run| store.fill_range(&run, value, internal))
    }

    /// Prefetches the elements of a region.
    #[doc(hidden)]
    fn fetch<S: Store>(&self, store: &S, of: &Range<Self::Index>, internal: Internal) -> Result<()> {
        self.runs(of).try_for_each(|run| store.fetch(&run, internal))
    }

    /// Returns the storage indices of a region, as ranges. Extends them to whole pages if that joins some.
    #[doc(hidden)]
    fn touched<S: Store>(&self, _: &S, of: &Range<Self::Index>) -> impl Iterator<Item = Range<usize>> {
        self.runs(of)
    }

    /// Divides a region into ascending parts: all indices of a part are before the indices of the next part.
    #[doc(hidden)]
    fn slabs(&self, of: &Range<Self::Index>) -> impl Iterator<Item = Range<Self::Index>> {
        std::iter::once(of.clone())
    }

    /// Divides a region into two parts, with all indices of the first before the indices of the second.
    /// Returns `None` for a single element.
    #[doc(hidden)]
    fn halves(&self, _: &Range<Self::Index>) -> Option<[Range<Self::Index>; 2]> {
        None
    }

    /// Returns true if ascending storage indices of a region have ascending indices.
    #[doc(hidden)]
    fn is_in_order(&self, _: &Range<Self::Index>) -> bool {
        true
    }

    /// Returns the regions that remain to be searched after matches were found, each with the storage index
    /// where its search starts. The next region is last. Removes matches from `found` that must be found
    /// again, so that the remaining ones precede all later matches.
    #[doc(hidden)]
    fn rest(&self, of: Range<Self::Index>, found: &mut Vec<usize>) -> Vec<(Range<Self::Index>, usize)> {
        found.last().map(|last| (of, last + 1)).into_iter().collect()
    }
}

/// A part of a view, in the form that devices process: a range of the array or source (program memory), and a
/// condition for elements of this range.
#[doc(hidden)]
#[derive(Debug)]
pub struct LoweredRegion<T> {
    pub(crate) range: Range<usize>,
    /// The condition for elements of the region; `None` if the region is the whole range.
    pub(crate) inside: Option<Expr<T, bool>>,
    pub(crate) origin: usize,
}

impl<T> LoweredRegion<T> {
    /// Converts an outcome with storage indices to one whose error counts from the region's origin.
    pub(crate) fn outcome<R>(&self, outcome: Result<R>) -> Result<R> {
        outcome.map_err(|error| error.counted_from(self.origin))
    }

    /// Restricts a condition to elements of the region.
    pub(crate) fn condition(&self, condition: impl IntoExpr<T, bool>) -> Expr<T, bool> {
        let condition = condition.into_expr().counted_from(self.origin);
        match &self.inside {
            Some(inside) => inside & condition,
            None => condition,
        }
    }

    /// Restricts a value to elements of the region.
    pub(crate) fn filtered<F: Scalar>(&self, what: impl IntoFiltered<T, F>) -> Filtered<T, F> {
        let what = what.into_filtered().counted_from(self.origin);
        match &self.inside {
            Some(inside) => what.within(inside),
            None => what,
        }
    }
}

/// The shape of a linear view: a range of an array or [source](crate::Source), with indices from its start.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::views::Linear;
///
/// // Any range: of an array or of a source.
/// fn first<'a, T>(view: impl View<'a, Element = T, Shape = Linear, Index = usize>) -> vmarray::Result<T> {
///     view.get(0)
/// }
/// assert_eq!(first(VirtualArray::<u8>::new(10)?.section(5..)?)?, 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Linear {
    pub(crate) fn whole(len: usize) -> Self {
        Self { start: 0, len }
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// Converts a range of indices to storage indices.
    pub(crate) fn places(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
        Ok(self.cut(&checked(range, self.len)?).range())
    }

    /// Returns the storage indices of `count` elements from an index on.
    pub(crate) fn places_at(&self, start: usize, count: usize) -> Result<Range<usize>> {
        let outside = |end| ErrorKind::RangeOutside { start, end, len: self.len };
        let end = start.checked_add(count).ok_or_else(|| outside(usize::MAX))?;
        if end > self.len { Err(outside(end).into()) } else { Ok(self.start + start..self.start + end) }
    }
}

impl Sealed for Linear {}

impl Shape for Linear {
    type Index = usize;
    type Copied = Self;

    fn copied(&self) -> Self {
        Self::whole(self.len)
    }

    fn count(&self) -> usize {
        self.len
    }

    fn checked(&self, bounds: impl RangeBounds<usize>) -> Result<Range<usize>> {
        checked(bounds, self.len)
    }

    fn cut(&self, of: &Range<usize>) -> Self {
        Self { start: self.start + of.start, len: of.len() }
    }

    #[inline(always)]
    fn place(&self, index: usize) -> Result<usize> {
        if index < self.len { Ok(self.start + index) } else { Err(index_outside(index, self.len)) }
    }

    fn index_at(&self, place: usize) -> Option<usize> {
        place.checked_sub(self.start).filter(|index| *index < self.len)
    }

    fn indices_at(&self, mut places: Vec<usize>) -> Vec<usize> {
        let Range { start, end } = self.range();
        places.truncate(places.partition_point(|place| *place < end));
        places.drain(..places.partition_point(|place| *place < start));
        if start > 0 {
            places.iter_mut().for_each(|place| *place -= start);
        }
        places
    }

    fn axes(&self) -> Vec<usize> {
        vec![self.len]
    }

    fn index_of(at: &[usize]) -> usize {
        at[0]
    }

    fn stored(&self) -> Option<StoredBox> {
        Some(StoredBox::range_of(self.start, self.len))
    }

    fn origin(&self) -> usize {
        self.start
    }

    fn runs(&self, of: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        std::iter::once(self.cut(of).range())
    }

    fn lowered<T>(&self, of: &Range<usize>) -> LoweredRegion<T> {
        LoweredRegion { range: self.cut(of).range(), inside: None, origin: self.start }
    }

    fn list<'l>(&self, indices: &'l [usize]) -> Result<(Range<usize>, Cow<'l, [usize]>)> {
        Ok((self.range(), Cow::Borrowed(indices)))
    }

    fn copy_out<S: Store>(
        &self,
        store: &S,
        of: &Range<usize>,
        into: &mut [S::Element],
        _: Internal,
    ) -> Result<()> {
        store.read_at(self.start + of.start, into, INTERNAL)
    }
}
