//! [`NdView`] and [`NdViewMut`]: operations on boxes, in addition to the operations of all views.

use std::ops::{Range, RangeBounds};

use vmarray_kernel::{Function, k};

#[cfg(feature = "ndarray")]
use super::interchange;
use super::region::NdShape;
use super::section::{NdSection, NdSectionMut};
use super::sets;
use super::shape;
use super::sort;
use crate::base::error::{ErrorKind, Result, expect_len};
use crate::base::memory::{reserve_large, zeroed_vec};
use crate::index_sets::{Dimension, Tuples};
use crate::ops::expr::Expr;
use crate::ops::launch::changed;
use crate::ops::scan::{
    Accumulation, Extreme, Lines, PIECE_BYTES, PrefixScan, PrefixSummed, added, converted, counted, greater,
    greater_or_nan, lesser, lesser_or_nan, scan_lines,
};
use crate::ops::sort::SortKey;
use crate::ops::view::{INTERNAL, Shape, Store as _, StoreMut as _, View, ViewMut};

/// Operations of views of a box. The view has `M` of the `N` axes of an array or [source](crate::Source).
///
/// Implemented for `&NdArray` and [`NdSection`].
///
/// ```
/// use vmarray::prelude::*;
/// let image = NdArray::<u32, 2>::new([30, 40])?;
/// image.fill([10, 0]..[11, 40], 3)?;
/// let column = image.project::<1>(1, 5)?;
/// assert_eq!((column.shape(), column.find(Field::whole(), &3)?), ([30], vec![[10]]));
/// let mut three = [0; 3];
/// column.read_box([9]..[12], &mut three)?;
/// assert_eq!(three, [0, 3, 0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait NdView<'a, const N: usize, const M: usize>:
    View<'a, Index = [usize; M], Shape = NdShape<N, M>>
{
    /// Returns the number of elements along each axis of the view.
    #[must_use]
    fn shape(self) -> [usize; M] {
        self.parts().1.extents
    }

    /// Returns an expression for an element's index along one of the view's axes, for operations on it.
    ///
    /// # Errors
    /// [`NoSuchAxis`](ErrorKind::NoSuchAxis) for an axis that the view lacks.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let image = NdArray::<u32, 2>::new([4, 5])?;
    /// let part = image.section_mut([1, 1]..)?;
    /// part.transform(.., Field::whole().set(part.coordinate(1)?.cast::<u32>()))?;
    /// assert_eq!(image.to_vec([1, 0]..[2, 5])?, [0, 0, 1, 2, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn coordinate(self, axis: usize) -> Result<Expr<Self::Element, u64>> {
        shape::check_axis(axis, M)?;
        Ok(self.parts().1.coordinate(axis))
    }

    /// Copies a box of the view, such as `[top, left]..[bottom, right]`, into a slice, in row-major order.
    ///
    /// # Errors
    /// [`BoxOutside`](ErrorKind::BoxOutside), [`BoxReversed`](ErrorKind::BoxReversed),
    /// [`LengthMismatch`](ErrorKind::LengthMismatch), and errors of [`to_vec`](View::to_vec).
    fn read_box(self, bounds: impl RangeBounds<[usize; M]>, into: &mut [Self::Element]) -> Result<()> {
        let (store, shape) = self.parts();
        shape.copy_out(store, &shape.checked(bounds)?, into, INTERNAL)
    }

    /// Returns a view of the elements at one index along an axis; the view has one axis less. `K` must be
    /// `M - 1`, which is checked at compile time.
    ///
    /// # Errors
    /// [`NoSuchAxis`](ErrorKind::NoSuchAxis), [`PositionOutside`](ErrorKind::PositionOutside).
    fn project<const K: usize>(self, axis: usize, index: usize) -> Result<NdSection<'a, Self::Store, N, K>> {
        let (store, shape) = self.parts();
        Ok(NdSection::new(store, shape.project(axis, index)?))
    }

    /// Reads the elements at the positions that the tuples of an index set list, in the order of the tuples.
    /// `axes` are the labels of the columns with the indices along each axis; other columns are ignored. A
    /// set in an array is read in parts. The call needs eight bytes of RAM per tuple.
    ///
    /// # Errors
    /// [`UnknownDimension`](ErrorKind::UnknownDimension),
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension) if the set has a label twice, errors of reading
    /// the tuples, and the errors of [`gather`](View::gather).
    ///
    /// ```
    /// use vmarray::{IndexSet, prelude::*};
    /// let image = NdArray::<u8, 2>::new([50, 60])?;
    /// image.set([3, 40], 1)?;
    /// // Columns first, and a third dimension that the image does not have.
    /// let set = IndexSet::from_rows([1, 0, 7], [[40, 3, 0], [0, 0, 1], [40, 3, 2]])?;
    /// assert_eq!(image.gather_set(&set, [0, 1])?, [1, 0, 1]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn gather_set<S: Tuples + ?Sized>(self, set: &S, axes: [Dimension; M]) -> Result<Vec<Self::Element>> {
        let (store, shape) = self.parts();
        let places = sets::places(&shape, set, axes)?;
        let mut values = zeroed_vec(places.len())?;
        store.gather_within(0..shape.geometry.stored_len(), &places, &mut values, INTERNAL)?;
        Ok(values)
    }

    /// Adds up the elements along an axis, like `numpy`'s `sum(axis=..)`. The results go to a view without
    /// this axis, or with one index along it, of any layout and on any devices. Each number is first
    /// converted to the results' type, like Rust's `as`; integers wrap.
    ///
    /// Floats are added in blocks of 1024 along the axis, each as eight interleaved sums, and blocks in
    /// ascending order. So a sum has the same bits on all devices. Its error is at most `140 + extent /
    /// 1024` roundings of the sum of all magnitudes.
    ///
    /// Elements in rows on one device are reduced in place. Such are arrays, and boxes whose axes before the
    /// reduced one are contiguous, and likewise the axes after it. The results stay on the device if they are
    /// contiguous there, and if they are many or the axis is short. Otherwise one number per 1024 elements
    /// goes through the host. All other elements, such as elements of tiles, sources and several devices, are
    /// copied to one device, some 16 MiB at a time.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let image = NdArray::<u8, 2>::new([300, 4])?;
    /// image.fill(.., 2)?;
    /// let (columns, rows) = (VirtualArray::<u32>::new(4)?, NdArray::<f32, 2>::new([300, 1])?);
    /// image.sum_axis(0, &columns)?;
    /// image.sum_axis(1, &rows)?;
    /// assert_eq!((columns.to_vec(..)?, rows.get([299, 0])?), (vec![600; 4], 8.0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NoSuchAxis`](ErrorKind::NoSuchAxis), [`KernelShape`](ErrorKind::KernelShape) for a target of
    /// another shape, and errors of reading the elements and of writing the results.
    fn sum_axis<'b, W>(self, axis: usize, into: W) -> Result<()>
    where
        Self: View<'a, Element: PrefixSummed>,
        W: ViewMut<'b> + View<'b, Element: PrefixSummed> + 'b,
    {
        reduced::<_, _, converted<Self::Element, W::Element>, added<W::Element>, N, M>(
            self, "sum_axis", axis, into, false,
        )
    }

    /// Writes the least element along an axis to a view, by the rules of [`sum_axis`](Self::sum_axis). NaNs
    /// do not count if there are numbers.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let table = NdArray::<i16, 2>::new([2, 3])?;
    /// table.write_box(.., &[4, -5, 6, 1, 2, 3])?;
    /// let least = VirtualArray::<i16>::new(3)?;
    /// table.min_axis(0, &least)?;
    /// assert_eq!(least.to_vec(..)?, [1, -5, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`sum_axis`](Self::sum_axis), and [`PositionOutside`](ErrorKind::PositionOutside) for an
    /// axis without elements, which has no least element.
    fn min_axis<'b, W>(self, axis: usize, into: W) -> Result<()>
    where
        Self: View<'a, Element: PrefixSummed>,
        W: ViewMut<'b> + View<'b, Element = Self::Element> + 'b,
    {
        let of = Extreme { is_least: true, is_index: false, is_nan_extreme: false };
        extremes::<_, _, lesser<Self::Element>, N, M>(self, "min_axis", axis, into, of)
    }

    /// Writes the greatest element along an axis to a view; see [`min_axis`](Self::min_axis).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let table = NdArray::<i16, 2>::new([2, 3])?;
    /// table.write_box(.., &[4, -5, 6, 1, 2, 3])?;
    /// let greatest = NdArray::<i16, 2>::new([2, 1])?;
    /// table.max_axis(1, &greatest)?;
    /// assert_eq!(greatest.to_vec(..)?, [6, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`min_axis`](Self::min_axis).
    fn max_axis<'b, W>(self, axis: usize, into: W) -> Result<()>
    where
        Self: View<'a, Element: PrefixSummed>,
        W: ViewMut<'b> + View<'b, Element = Self::Element> + 'b,
    {
        let of = Extreme { is_least: false, is_index: false, is_nan_extreme: false };
        extremes::<_, _, greater<Self::Element>, N, M>(self, "max_axis", axis, into, of)
    }

    /// Writes the least element along an axis to a view, or a NaN if an element is a NaN; see
    /// [`min_axis`](Self::min_axis).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let table = NdArray::<f32, 2>::new([2, 2])?;
    /// table.write_box(.., &[1.0, f32::NAN, 3.0, 2.0])?;
    /// let least = VirtualArray::<f32>::new(2)?;
    /// table.min_axis_or_nan(1, &least)?;
    /// assert!(least.get(0)?.is_nan() && least.get(1)? == 2.0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`min_axis`](Self::min_axis).
    fn min_axis_or_nan<'b, W>(self, axis: usize, into: W) -> Result<()>
    where
        Self: View<'a, Element: PrefixSummed>,
        W: ViewMut<'b> + View<'b, Element = Self::Element> + 'b,
    {
        let of = Extreme { is_least: true, is_index: false, is_nan_extreme: true };
        extremes::<_, _, lesser_or_nan<Self::Element>, N, M>(self, "min_axis_or_nan", axis, into, of)
    }

    /// Writes the greatest element along an axis to a view, or a NaN if an element is a NaN; see
    /// [`min_axis`](Self::min_axis).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let table = NdArray::<f32, 2>::new([2, 2])?;
    /// table.write_box(.., &[1.0, f32::NAN, 3.0, 2.0])?;
    /// let greatest = VirtualArray::<f32>::new(2)?;
    /// table.max_axis_or_nan(0, &greatest)?;
    /// assert!(greatest.get(0)? == 3.0 && greatest.get(1)?.is_nan());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`min_axis`](Self::min_axis).
    fn max_axis_or_nan<'b, W>(self, axis: usize, into: W) -> Result<()>
    where
        Self: View<'a, Element: PrefixSummed>,
        W: ViewMut<'b> + View<'b, Element = Self::Element> + 'b,
    {
        let of = Extreme { is_least: false, is_index: false, is_nan_extreme: true };
        extremes::<_, _, greater_or_nan<Self::Element>, N, M>(self, "max_axis_or_nan", axis, into, of)
    }

    /// Writes the index of the first least element along an axis to a view. A NaN is less than all numbers,
    /// as for `numpy`'s `argmin`. A GPU that stores the elements and the results in rows finds the indices;
    /// for other elements the host does, some MiB at a time.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let table = NdArray::<i16, 2>::new([2, 3])?;
    /// table.write_box(.., &[3, 1, 1, 9, 5, 7])?;
    /// let places = VirtualArray::<u64>::new(2)?;
    /// table.arg_min_axis(1, &places)?;
    /// assert_eq!(places.to_vec(..)?, [1, 1]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`min_axis`](Self::min_axis).
    fn arg_min_axis<'b>(self, axis: usize, into: impl ViewMut<'b, Element = u64> + 'b) -> Result<()>
    where
        Self: View<'a, Element: PrefixSummed>,
    {
        first_extremes(self, "arg_min_axis", axis, into, true)
    }

    /// Writes the index of the first greatest element along an axis to a view. A NaN is greater than all
    /// numbers; see [`arg_min_axis`](Self::arg_min_axis).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let table = NdArray::<f32, 2>::new([2, 3])?;
    /// table.write_box(.., &[3.0, -1.0, f32::NAN, 9.0, -1.0, 7.0])?;
    /// let places = VirtualArray::<u64>::new(3)?;
    /// table.arg_max_axis(0, &places)?;
    /// assert_eq!(places.to_vec(..)?, [1, 0, 0]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`min_axis`](Self::min_axis).
    fn arg_max_axis<'b>(self, axis: usize, into: impl ViewMut<'b, Element = u64> + 'b) -> Result<()>
    where
        Self: View<'a, Element: PrefixSummed>,
    {
        first_extremes(self, "arg_max_axis", axis, into, false)
    }

    /// Writes the cumulative sums or products along an axis to a view of the same shape, which may be this
    /// one. Each result is the previous result plus, or times, the next element, in the type of the elements,
    /// as for `numpy`'s `accumulate`. Integers wrap.
    ///
    /// A GPU that stores the elements and the results in rows computes them, along the last axis only if
    /// there are 4096 lines. Otherwise the elements go through the host, some MiB at a time, and at least all
    /// elements of one index along the first axis.
    ///
    /// ```
    /// use vmarray::nd::Accumulation;
    /// use vmarray::prelude::*;
    /// let (table, sums) = (NdArray::<i32, 2>::new([2, 2])?, NdArray::<i32, 2>::new([2, 2])?);
    /// table.write_box(.., &[1, 2, 3, 4])?;
    /// table.accumulate_axis(0, Accumulation::Sum, &sums)?;
    /// assert_eq!(sums.to_vec(..)?, [1, 2, 4, 6]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NoSuchAxis`](ErrorKind::NoSuchAxis), [`KernelShape`](ErrorKind::KernelShape) for another shape, and
    /// the errors of [`to_vec`](View::to_vec) and [`write`](ViewMut::write).
    fn accumulate_axis<'b, const K: usize, W>(self, axis: usize, how: Accumulation, into: W) -> Result<()>
    where
        Self: View<'a, Element: PrefixSummed>,
        W: NdViewMut<'b, K, M> + View<'b, Element = Self::Element> + 'b,
    {
        accumulated::<_, _, N, M, K>(self, axis, how, into)
    }

    /// Counts the elements along an axis for which a [kernel function](macro@crate::kernel) returns true, by
    /// the rules of [`sum_axis`](Self::sum_axis). A count above zero means that it holds for any element; a
    /// count equal to the axis's extent, for all.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// #[vmarray::kernel]
    /// fn is_dark(x: u8) -> bool {
    ///     x < 16
    /// }
    /// let image = NdArray::<u8, 2>::builder([30, 40]).tiled().build()?;
    /// image.fill([0, 10]..[30, 40], 200)?;
    /// let dark = VirtualArray::<u64>::new(30)?;
    /// image.count_axis::<is_dark>(1, &dark)?;
    /// assert_eq!(dark.to_vec(28..)?, [10, 10]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`sum_axis`](Self::sum_axis). [`KernelTime`](ErrorKind::KernelTime) on processors if the
    /// function runs for more than 60 s.
    fn count_axis<'b, F>(self, axis: usize, into: impl ViewMut<'b, Element = u64> + 'b) -> Result<()>
    where
        Self: View<'a, Element: PrefixSummed>,
        F: Function<(Self::Element,), bool>,
    {
        reduced::<_, _, counted<Self::Element, F>, added<u64>, N, M>(self, "count_axis", axis, into, false)
    }

    /// Copies a box into an `ndarray` view with any strides. The box begins at a position, and has the view's
    /// shape. The rules are as for [`read_box`](Self::read_box). If the `ndarray` view is not row-major and
    /// contiguous, the copy goes through a buffer.
    ///
    /// # Errors
    /// [`RankMismatch`](ErrorKind::RankMismatch), and the errors of [`read_box`](Self::read_box).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let image = NdArray::<u8, 2>::new([4, 5])?;
    /// image.set([1, 3], 7)?;
    /// let mut block = ndarray::Array2::zeros((2, 2));
    /// // Transposed: columns of the image become rows.
    /// image.read_view([1, 2], block.view_mut().reversed_axes())?;
    /// assert_eq!(block, ndarray::array![[0, 0], [7, 0]]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[cfg(feature = "ndarray")]
    fn read_view<E: ndarray::Dimension>(
        self,
        start: [usize; M],
        into: ndarray::ArrayViewMut<'_, Self::Element, E>,
    ) -> Result<()> {
        interchange::read(self.parts(), start, into)
    }

    /// Copies a box into a new `ndarray` array, for up to six dimensions, as in `ndarray`.
    ///
    /// # Errors
    /// The errors of [`to_vec`](View::to_vec).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let image = NdArray::<u8, 2>::new([4, 5])?;
    /// image.set([1, 3], 7)?;
    /// assert_eq!(image.to_ndarray([1, 2]..[3, 4])?, ndarray::array![[0, 7], [0, 0]]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[cfg(feature = "ndarray")]
    fn to_ndarray(
        self,
        bounds: impl RangeBounds<[usize; M]>,
    ) -> Result<ndarray::Array<Self::Element, interchange::Dim<M>>>
    where
        [usize; M]: ndarray::IntoDimension,
    {
        let of = self.parts().1.checked(bounds)?;
        interchange::array(&of, self.to_vec(of.clone())?)
    }
}

impl<'a, const N: usize, const M: usize, V> NdView<'a, N, M> for V where
    V: View<'a, Index = [usize; M], Shape = NdShape<N, M>>
{
}

/// Operations of views of a box that write elements.
///
/// ```
/// use vmarray::{IndexSet, prelude::*};
/// let image = NdArray::<u32, 2>::new([30, 40])?;
/// image.project_mut::<1>(0, 10)?.write_box([5]..[8], &[1, 2, 3])?;
/// assert_eq!(image.to_vec([10, 4]..[11, 9])?, [0, 1, 2, 3, 0]);
/// let set = IndexSet::from_rows([0, 1], [[10, 6], [0, 0]])?;
/// image.scatter_set(&set, [0, 1], &[7, 8])?;
/// assert_eq!((image.get([10, 6])?, image.get([0, 0])?), (7, 8));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait NdViewMut<'a, const N: usize, const M: usize>:
    NdView<'a, N, M> + ViewMut<'a, Index = [usize; M], Shape = NdShape<N, M>>
{
    /// Copies a slice, in row-major order, into a box of the view, such as `[top, left]..[bottom, right]`.
    ///
    /// # Errors
    /// The errors of [`read_box`](NdView::read_box), and errors of [`write`](ViewMut::write).
    fn write_box(self, bounds: impl RangeBounds<[usize; M]>, from: &[Self::Element]) -> Result<()> {
        let (store, shape) = self.parts();
        let of = shape.checked(bounds)?;
        shape::expect_len(&of, from.len())?;
        shape.write(store, &of, shape::strides(&shape::extent(&of)), from)
    }

    /// Returns a writable view of the elements at one index along an axis; see [`project`](NdView::project).
    ///
    /// # Errors
    /// The errors of [`project`](NdView::project).
    fn project_mut<const K: usize>(
        self,
        axis: usize,
        index: usize,
    ) -> Result<NdSectionMut<'a, Self::Store, N, K>> {
        let (store, shape) = self.parts();
        Ok(NdSection::new(store, shape.project(axis, index)?))
    }

    /// Writes the elements at the positions that the tuples of an index set list, as
    /// [`gather_set`](NdView::gather_set) reads them. If a tuple occurs several times, the last value stays.
    ///
    /// # Errors
    /// [`UnknownDimension`](ErrorKind::UnknownDimension),
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension) if the set has a label twice, errors of reading
    /// the tuples, and the errors of [`scatter`](crate::views::ViewMut::scatter).
    fn scatter_set<S: Tuples + ?Sized>(
        self,
        set: &S,
        axes: [Dimension; M],
        values: &[Self::Element],
    ) -> Result<()> {
        expect_len("the slice of values", set.len(), values.len())?;
        let (store, shape) = self.parts();
        let places = sets::places(&shape, set, axes)?;
        store.scatter_within(0..shape.geometry.stored_len(), &places, values, INTERNAL)
    }

    /// Replaces each element by the sum of all elements up to it along an axis (prefix sums). Integers wrap.
    ///
    /// Along the last axis of a whole array that is not tiled, devices compute this in place, each row in the
    /// order and by the rules of [`prefix_sum`](crate::views::Scan::prefix_sum). Otherwise the elements go
    /// through the host, some MiB at a time, and at least all elements of one index along the first axis.
    /// Floats are then added one after the other, in `f64` with compensation.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// // The sum of every rectangle from the first element on: a summed-area table.
    /// let image = NdArray::<u32, 2>::new([3, 4])?;
    /// image.fill(.., 1)?;
    /// image.prefix_sum_axis(1)?;
    /// image.prefix_sum_axis(0)?;
    /// assert_eq!(image.to_vec([1, 0]..)?, [2, 4, 6, 8, 3, 6, 9, 12]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NoSuchAxis`](ErrorKind::NoSuchAxis), and the errors of
    /// [`prefix_sum`](crate::views::Scan::prefix_sum).
    fn prefix_sum_axis(self, axis: usize) -> Result<()>
    where
        Self: View<'a, Element: PrefixSummed>,
    {
        prefix_sums(self, axis, false)
    }

    /// Replaces each element by the sum of all elements before it along an axis, and the first ones by zero;
    /// see [`prefix_sum_axis`](Self::prefix_sum_axis).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let table = NdArray::<i32, 2>::new([2, 3])?;
    /// table.write_box(.., &[1, 2, 3, 4, 5, 6])?;
    /// table.exclusive_prefix_sum_axis(1)?;
    /// assert_eq!(table.to_vec(..)?, [0, 1, 3, 0, 4, 9]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`prefix_sum_axis`](Self::prefix_sum_axis).
    fn exclusive_prefix_sum_axis(self, axis: usize) -> Result<()>
    where
        Self: View<'a, Element: PrefixSummed>,
    {
        prefix_sums(self, axis, true)
    }

    /// Sorts the elements of each line along an axis in ascending order, floats in their total order.
    ///
    /// In a whole array that is not tiled, GPUs that store the lines sort numbers of 4 and 8 bytes, by two
    /// stable sorts. They need memory for twice the elements and for as many numbers of 8 bytes, and for both
    /// again during the sort. Other lines, and lines without enough memory, go through RAM, some MiB at a
    /// time, but at least one line with its neighbours.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let table = NdArray::<i32, 2>::new([2, 3])?;
    /// table.write_box(.., &[3, 1, 2, 0, 5, -1])?;
    /// table.sort_axis(1)?;
    /// assert_eq!(table.to_vec(..)?, [1, 2, 3, -1, 0, 5]);
    /// table.sort_axis(0)?;
    /// assert_eq!(table.to_vec(..)?, [-1, 0, 3, 1, 2, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NoSuchAxis`](ErrorKind::NoSuchAxis), and the errors of [`sort`](crate::views::Sort::sort).
    fn sort_axis(self, axis: usize) -> Result<()>
    where
        Self: View<'a, Element: SortKey>,
    {
        sort::sort_axis(self.parts(), axis)
    }

    /// Copies an `ndarray` view with any strides to a box. The box begins at a position, and has the view's
    /// shape. The rules are as for [`write_box`](Self::write_box). If the `ndarray` view is not row-major
    /// and contiguous, the copy goes through a buffer.
    ///
    /// # Errors
    /// [`RankMismatch`](ErrorKind::RankMismatch), and the errors of [`write_box`](Self::write_box).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let image = NdArray::<u8, 2>::new([4, 5])?;
    /// image.write_view([1, 2], ndarray::array![[1, 2], [3, 4]].view())?;
    /// assert_eq!(image.get([2, 3])?, 4);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[cfg(feature = "ndarray")]
    fn write_view<E: ndarray::Dimension>(
        self,
        start: [usize; M],
        from: ndarray::ArrayView<'_, Self::Element, E>,
    ) -> Result<()> {
        interchange::write(self.parts(), start, &from)
    }
}

impl<'a, const N: usize, const M: usize, V> NdViewMut<'a, N, M> for V where
    V: ViewMut<'a, Index = [usize; M], Shape = NdShape<N, M>>
{
}

/// Reduces the elements along an axis: maps each by one function, and combines the results by another.
fn reduced<'a, 'b, V, W, F, O, const N: usize, const M: usize>(
    view: V,
    name: &'static str,
    axis: usize,
    into: W,
    is_partial: bool,
) -> Result<()>
where
    V: NdView<'a, N, M> + View<'a, Element: PrefixSummed>,
    W: ViewMut<'b> + View<'b, Element: PrefixSummed> + 'b,
    F: Function<(V::Element,), W::Element>,
    O: Function<(W::Element, W::Element), W::Element>,
{
    with_lines(view, name, axis, |lines| lines.reduce::<W::Element, F, O>(changed(into), is_partial))
}

/// Calls `work` with the lines of a view along an axis.
fn with_lines<'a, V, R, const N: usize, const M: usize>(
    view: V,
    name: &'static str,
    axis: usize,
    work: impl FnOnce(Lines<'_, V::Element>) -> Result<R>,
) -> Result<R>
where
    V: NdView<'a, N, M> + View<'a, Element: PrefixSummed>,
{
    shape::check_axis(axis, M)?;
    let (store, region) = view.parts();
    let read = |of: &[Range<usize>]| {
        view.to_vec(std::array::from_fn(|axis| of[axis].start)..std::array::from_fn(|axis| of[axis].end))
    };
    let (store, stored, extents) = (store.as_operand(INTERNAL), region.stored(), region.axes());
    work(Lines { name, store, stored, extents, axis, read: &read })
}

/// Writes an extreme of each line along an axis, which `O` computes of two elements.
fn extremes<'a, 'b, V, W, O, const N: usize, const M: usize>(
    view: V,
    name: &'static str,
    axis: usize,
    into: W,
    of: Extreme,
) -> Result<()>
where
    V: NdView<'a, N, M> + View<'a, Element: PrefixSummed>,
    W: ViewMut<'b> + View<'b, Element = V::Element> + 'b,
    O: Function<(V::Element, V::Element), V::Element>,
{
    if with_lines(view, name, axis, |lines| lines.extreme_on_card(of, changed(into)))? {
        return Ok(());
    }
    reduced::<_, _, converted<V::Element, V::Element>, O, N, M>(view, name, axis, into, true)
}

fn first_extremes<'a, 'b, V, W, const N: usize, const M: usize>(
    view: V,
    name: &'static str,
    axis: usize,
    into: W,
    is_least: bool,
) -> Result<()>
where
    V: NdView<'a, N, M> + View<'a, Element: PrefixSummed>,
    W: ViewMut<'b, Element = u64> + 'b,
{
    let of = Extreme { is_least, is_index: true, is_nan_extreme: true };
    with_lines(view, name, axis, |lines| {
        if lines.extreme_on_card(of, changed(into))? {
            return Ok(());
        }
        lines.first_extremes(is_least, changed(into))
    })
}

fn accumulated<'a, 'b, V, W, const N: usize, const M: usize, const K: usize>(
    view: V,
    axis: usize,
    how: Accumulation,
    into: W,
) -> Result<()>
where
    V: NdView<'a, N, M> + View<'a, Element: PrefixSummed>,
    W: NdViewMut<'b, K, M> + View<'b, Element = V::Element> + 'b,
{
    let extents = NdView::shape(view);
    if NdView::shape(into) != extents {
        let (kernel, place, argument) = ("accumulate_axis".into(), String::new(), "into".into());
        let (expected, got) = (extents.to_vec(), NdView::shape(into).to_vec());
        return Err(ErrorKind::KernelShape { kernel, place, argument, expected, got }.into());
    }
    let is_done =
        with_lines(view, "accumulate_axis", axis, |lines| lines.accumulate_on_card(how, changed(into)))?;
    let row_len: usize = extents[1..].iter().product();
    if is_done || row_len == 0 {
        return Ok(());
    }
    let after: usize = extents[axis + 1..].iter().product();
    let (mut all, mut is_begun) = (zeroed_vec::<V::Element>(after)?, false);
    let at_once = (PIECE_BYTES / size_of::<V::Element>() / row_len).clamp(1, extents[0].max(1));
    for first in (0..extents[0]).step_by(at_once) {
        let (mut start, mut end) = ([0; M], extents);
        (start[0], end[0]) = (first, extents[0].min(first + at_once));
        let mut piece = view.to_vec(start..end)?;
        for lines in piece.chunks_mut(if axis == 0 { usize::MAX } else { extents[axis] * after }) {
            is_begun &= axis == 0;
            for elements in lines.chunks_exact_mut(after) {
                for (element, all) in elements.iter_mut().zip(&mut all) {
                    *all = match how {
                        _ if !is_begun => *element,
                        Accumulation::Sum => k::add(*all, *element),
                        Accumulation::Product => k::mul(*all, *element),
                    };
                    *element = *all;
                }
                is_begun = true;
            }
        }
        into.write_box(start..end, &piece)?;
    }
    Ok(())
}

/// Replaces elements by prefix sums along an axis.
fn prefix_sums<'a, const N: usize, const M: usize, V>(view: V, axis: usize, is_exclusive: bool) -> Result<()>
where
    V: NdViewMut<'a, N, M> + View<'a, Element: PrefixSummed>,
{
    shape::check_axis(axis, M)?;
    let ((store, region), extents) = (view.parts(), view.shape());
    let in_rows = region.stored().filter(|stored| !stored.is_tiled() && !stored.is_part());
    if let Some(stored) = in_rows.filter(|_| axis == M - 1) {
        let (page_len, range) = (store.page_elements(), stored.range());
        let store = store.as_target(INTERNAL);
        return PrefixScan { store, page_len, range, row: extents[axis], is_exclusive }.run::<V::Element>();
    }
    let row_len: usize = extents[1..].iter().product();
    if row_len == 0 {
        return Ok(());
    }
    // The running sums, one for each combination of indices along later axes.
    let mut sums = Vec::new();
    let lines: usize = extents[axis + 1..].iter().product();
    reserve_large(&mut sums, lines)?;
    sums.resize(lines, Default::default());
    let line_len = if axis == 0 { usize::MAX } else { extents[axis] * sums.len() };
    let at_once = (PIECE_BYTES / size_of::<V::Element>() / row_len).clamp(1, extents[0].max(1));
    let mut elements = zeroed_vec(at_once * row_len)?;
    for first in (0..extents[0]).step_by(at_once) {
        let (mut start, mut end) = ([0; M], extents);
        (start[0], end[0]) = (first, extents[0].min(first + at_once));
        let piece = &mut elements[..(end[0] - first) * row_len];
        view.read_box(start..end, piece)?;
        for lines in piece.chunks_mut(line_len) {
            if axis > 0 {
                sums.fill(Default::default());
            }
            scan_lines(lines, &mut sums, is_exclusive);
        }
        view.write_box(start..end, piece)?;
    }
    Ok(())
}
