//! What boxes of several dimensions can do beyond what all views can.

use std::ops::RangeBounds;

#[cfg(feature = "ndarray")]
use super::interchange;
use super::region::NdShape;
use super::section::{NdSection, NdSectionMut};
use super::sets;
use super::shape;
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::index_sets::{Dimension, Tuples};
use crate::ops::expr::Expr;
use crate::ops::gather::equal_lengths;
use crate::ops::view::{INTERNAL, Shape, Store as _, StoreMut as _, View, ViewMut};

/// A [`View`] of a box of several dimensions: `M` axes of a store of `N`.
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
    /// The extents along each axis of the view.
    #[must_use]
    fn shape(self) -> [usize; M] {
        self.parts().1.extents
    }

    /// The index of an element along one of the view's axes, as an expression for operations on this view.
    ///
    /// # Errors
    /// [`NoSuchAxis`](ErrorKind::NoSuchAxis).
    ///
    /// ```
    /// # use vmarray::prelude::*;
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

    /// Copies a box of the view into a slice, in row-major order.
    ///
    /// # Errors
    /// [`BoxOutside`](ErrorKind::BoxOutside), [`BoxReversed`](ErrorKind::BoxReversed),
    /// [`LengthMismatch`](ErrorKind::LengthMismatch), and what [`to_vec`](View::to_vec) reports.
    fn read_box(self, bounds: impl RangeBounds<[usize; M]>, into: &mut [Self::Element]) -> Result<()> {
        let (store, shape) = self.parts();
        shape.copy_out(store, &shape.checked(bounds)?, into, INTERNAL)
    }

    /// A view of the elements that have one index along one of the view's axes, with one axis less. `K` must
    /// be `M - 1`, which is checked at compile time.
    ///
    /// # Errors
    /// [`NoSuchAxis`](ErrorKind::NoSuchAxis), [`PositionOutside`](ErrorKind::PositionOutside).
    fn project<const K: usize>(self, axis: usize, index: usize) -> Result<NdSection<'a, Self::Store, N, K>> {
        let (store, shape) = self.parts();
        Ok(NdSection::new(store, shape.project(axis, index)?))
    }

    /// Reads the elements that the tuples of an index set name, in the order of the tuples. `axes` are the
    /// labels of the columns that have the indices along each axis; other columns are not looked at. The set
    /// may be one of pages, which is read a part at a time; eight bytes a tuple are kept.
    ///
    /// # Errors
    /// [`UnknownDimension`](ErrorKind::UnknownDimension),
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension) if the set has a label twice, what reading the
    /// tuples reports, and as [`gather`](View::gather).
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

    /// Copies the box at a start into an `ndarray` view of its shape, whatever the view's strides. As
    /// [`read_box`](Self::read_box); if the view is not row-major and without gaps, by way of a buffer.
    ///
    /// # Errors
    /// [`RankMismatch`](ErrorKind::RankMismatch), and as [`read_box`](Self::read_box).
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
        interchange::read(self, start, into)
    }

    /// Copies a box into a new `ndarray` array. Of up to six dimensions, as `ndarray` has them.
    ///
    /// # Errors
    /// As [`to_vec`](View::to_vec).
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

/// An [`NdView`] whose elements can be changed.
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
    /// Copies a slice, in row-major order, into a box of the view.
    ///
    /// # Errors
    /// As [`read_box`](NdView::read_box), and what [`write`](ViewMut::write) reports.
    fn write_box(self, bounds: impl RangeBounds<[usize; M]>, from: &[Self::Element]) -> Result<()> {
        let (store, shape) = self.parts();
        let of = shape.checked(bounds)?;
        shape::expect_len(&of, from.len())?;
        shape.write(store, &of, shape::strides(&shape::extent(&of)), from)
    }

    /// As [`project`](NdView::project), for reading and writing.
    ///
    /// # Errors
    /// As there.
    fn project_mut<const K: usize>(
        self,
        axis: usize,
        index: usize,
    ) -> Result<NdSectionMut<'a, Self::Store, N, K>> {
        let (store, shape) = self.parts();
        Ok(NdSection::new(store, shape.project(axis, index)?))
    }

    /// Writes the elements that the tuples of an index set name; as [`gather_set`](NdView::gather_set), the
    /// other way about. Of those that are named several times, the last counts.
    ///
    /// # Errors
    /// [`UnknownDimension`](ErrorKind::UnknownDimension),
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension) if the set has a label twice, what reading the
    /// tuples reports, and as [`scatter`](crate::views::ViewMut::scatter).
    fn scatter_set<S: Tuples + ?Sized>(
        self,
        set: &S,
        axes: [Dimension; M],
        values: &[Self::Element],
    ) -> Result<()> {
        equal_lengths(set.len(), values.len())?;
        let (store, shape) = self.parts();
        let places = sets::places(&shape, set, axes)?;
        store.scatter_within(0..shape.geometry.stored_len(), &places, values, INTERNAL)
    }

    /// Copies an `ndarray` view, whatever its strides, to the box of its shape at a start. As
    /// [`write_box`](Self::write_box); if the view is not row-major and without gaps, by way of a buffer.
    ///
    /// # Errors
    /// [`RankMismatch`](ErrorKind::RankMismatch), and as [`write_box`](Self::write_box).
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
        interchange::write(self, start, &from)
    }
}

impl<'a, const N: usize, const M: usize, V> NdViewMut<'a, N, M> for V where
    V: ViewMut<'a, Index = [usize; M], Shape = NdShape<N, M>>
{
}
