//! Shapes of views: which elements of its store a view shows, and by which indices.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Range, RangeBounds};

use crate::array::range::checked;
use crate::base::error::{ErrorKind, Result, index_outside};
use crate::ops::expr::{Expr, Filtered, IntoExpr, IntoFiltered, Scalar};
use crate::ops::launch::StoredBox;

use super::INTERNAL;
use super::sealed::{Internal, Sealed};
use super::store::{Store, StoreMut};

/// How the index of an element in a view becomes its place in the store, and back.
///
/// [`Linear`] is a range, and [`NdShape`](crate::nd::NdShape) a box of several dimensions. There are no
/// others.
///
/// ```
/// # use vmarray::prelude::*;
/// use vmarray::nd::{NdSection, NdShape};
///
/// let array = VirtualArray::<u8>::new(12)?;
/// let table: NdSection<'_, _, 2> = NdSection::over(&array, [3, 4])?;
/// fn is_a_box<'a>(_: impl View<'a, Shape = NdShape<2>, Index = [usize; 2]>) {}
/// is_a_box(table);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Shape: Sealed + Copy + fmt::Debug + Send + Sync + 'static {
    /// What an element is called by: `usize`, or `[usize; N]`.
    type Index: Copy + fmt::Debug + Ord + Send + Sync + Unpin + 'static;

    /// What a copy of the elements has, row by row.
    #[doc(hidden)]
    type Copied: Shape<Index = Self::Index>;

    #[doc(hidden)]
    fn copied(&self) -> Self::Copied;

    /// How many elements there are.
    #[doc(hidden)]
    fn count(&self) -> usize;

    /// Bounds as a region of this shape.
    #[doc(hidden)]
    fn checked(&self, bounds: impl RangeBounds<Self::Index>) -> Result<Range<Self::Index>>;

    /// A region, as a shape of its own.
    #[doc(hidden)]
    fn cut(&self, of: &Range<Self::Index>) -> Self;

    /// The place of an element in the store.
    #[doc(hidden)]
    fn place(&self, index: Self::Index) -> Result<usize>;

    /// The index of the element at a place of the store; `None` for a place that is not shown.
    #[doc(hidden)]
    fn index_at(&self, place: usize) -> Option<Self::Index>;

    /// The indices of elements, ascending, by their places, which ascend; those that are not shown are left
    /// out.
    #[doc(hidden)]
    fn indices_at(&self, places: Vec<usize>) -> Vec<Self::Index> {
        let mut indices: Vec<_> = places.into_iter().filter_map(|place| self.index_at(place)).collect();
        if !indices.is_sorted() {
            indices.sort_unstable();
        }
        indices
    }

    /// How many elements there are along each axis.
    #[doc(hidden)]
    fn axes(&self) -> Vec<usize>;

    /// An index by its parts.
    #[doc(hidden)]
    fn index_of(at: &[usize]) -> Self::Index;

    /// Where the elements are along each axis; `None` if the store has other axes.
    #[doc(hidden)]
    fn stored(&self) -> Option<StoredBox>;

    /// The place that the `index()` of expressions counts from.
    #[doc(hidden)]
    fn origin(&self) -> usize;

    /// The places of a region, as ranges, ascending.
    #[doc(hidden)]
    fn runs(&self, of: &Range<Self::Index>) -> impl Iterator<Item = Range<usize>>;

    /// The range from the first place of a region to the last, and the condition that leaves out what is not
    /// in the region.
    #[doc(hidden)]
    fn lowered<T>(&self, of: &Range<Self::Index>) -> Lowered<T>;

    /// A list of indices as a list of places that count from the start of a range of the store.
    #[doc(hidden)]
    fn list<'l>(&self, indices: &'l [Self::Index]) -> Result<(Range<usize>, Cow<'l, [usize]>)>;

    /// Copies a region to a slice of its length, in the order of its indices.
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

    /// Has a region brought to where the next access looks for it.
    #[doc(hidden)]
    fn fetch<S: Store>(&self, store: &S, of: &Range<Self::Index>, internal: Internal) -> Result<()> {
        self.runs(of).try_for_each(|run| store.fetch(&run, internal))
    }

    /// The same, as ranges of whole pages where that makes fewer of them.
    #[doc(hidden)]
    fn touched<S: Store>(&self, _: &S, of: &Range<Self::Index>) -> impl Iterator<Item = Range<usize>> {
        self.runs(of)
    }

    /// A region in parts, ascending, each of which has all its indices before those of the next.
    #[doc(hidden)]
    fn slabs(&self, of: &Range<Self::Index>) -> impl Iterator<Item = Range<Self::Index>> {
        std::iter::once(of.clone())
    }

    /// A region in two parts, the first of which has all its indices before those of the second; `None` for a
    /// single element.
    #[doc(hidden)]
    fn halves(&self, _: &Range<Self::Index>) -> Option<[Range<Self::Index>; 2]> {
        None
    }

    /// Whether ascending places of a region have ascending indices.
    #[doc(hidden)]
    fn is_in_order(&self, _: &Range<Self::Index>) -> bool {
        true
    }

    /// What is left of a region to be searched when places in it have been found and there may be more:
    /// regions, each with the place to go on from, the next one last. Takes places from those found that have
    /// to be found again, so that those that stay come before all others.
    #[doc(hidden)]
    fn rest(&self, of: Range<Self::Index>, found: &mut Vec<usize>) -> Vec<(Range<Self::Index>, usize)> {
        found.last().map(|last| (of, last + 1)).into_iter().collect()
    }
}

/// What devices are asked for a region.
#[doc(hidden)]
#[derive(Debug)]
pub struct Lowered<T> {
    pub(crate) range: Range<usize>,
    /// Whether an element of the range is in the region; all are if this is missing.
    pub(crate) inside: Option<Expr<T, bool>>,
    pub(crate) origin: usize,
}

impl<T> Lowered<T> {
    /// A condition, for the elements of the region alone.
    pub(crate) fn condition(&self, condition: impl IntoExpr<T, bool>) -> Expr<T, bool> {
        let condition = condition.into_expr().counted_from(self.origin);
        match &self.inside {
            Some(inside) => inside & condition,
            None => condition,
        }
    }

    /// A value, of the elements of the region alone.
    pub(crate) fn filtered<F: Scalar>(&self, what: impl IntoFiltered<T, F>) -> Filtered<T, F> {
        let what = what.into_filtered().counted_from(self.origin);
        match &self.inside {
            Some(inside) => what.within(inside),
            None => what,
        }
    }
}

/// A range of a store, counted from its start.
///
/// ```
/// # use vmarray::prelude::*;
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

    /// The places of a range of indices.
    pub(crate) fn places(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
        Ok(self.cut(&checked(range, self.len)?).range())
    }

    /// The places of `count` elements from an index on.
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

    fn lowered<T>(&self, of: &Range<usize>) -> Lowered<T> {
        Lowered { range: self.cut(of).range(), inside: None, origin: self.start }
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
