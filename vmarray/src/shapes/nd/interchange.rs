//! Boxes in and out of the views of the `ndarray` crate.

use std::ops::RangeBounds;

use backend_api::Device;
use ndarray::{Array, ArrayView, ArrayViewMut, Dimension, IntoDimension, ShapeBuilder};

use super::copy::{self, Places, Source};
use super::shape::{self, Bounds};
use super::{NdArray, NdSection, NdSectionMut};
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};

/// The box of a shape at a start that has a view's shape.
fn box_like<const N: usize>(all: &[usize; N], start: [usize; N], shape: &[usize]) -> Result<Bounds<N>> {
    let rank = ErrorKind::RankMismatch { expected: N, got: shape.len() };
    let extent: [usize; N] = shape.try_into().map_err(|_| rank)?;
    shape::check_extent(all, start, extent)
}

impl<T: Element, const N: usize, D: Device> NdArray<T, N, D> {
    /// Copies the box at a start into an `ndarray` view of its shape, whatever the view's strides. As
    /// [`read_box`](Self::read_box).
    ///
    /// # Errors
    /// [`RankMismatch`](ErrorKind::RankMismatch), and as [`read_box`](Self::read_box).
    ///
    /// ```
    /// use vmarray::NdArray;
    /// let image = NdArray::<u8, 2>::new([4, 5])?;
    /// image.set([1, 3], 7)?;
    /// let mut block = ndarray::Array2::zeros((2, 2));
    /// // Transposed: columns of the image become rows.
    /// image.read_view([1, 2], block.view_mut().reversed_axes())?;
    /// assert_eq!(block, ndarray::array![[0, 0], [7, 0]]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn read_view<E: Dimension>(&self, start: [usize; N], into: ArrayViewMut<'_, T, E>) -> Result<()> {
        self.whole().read_view(start, into)
    }

    /// Copies an `ndarray` view, whatever its strides, to the box of its shape at a start. As
    /// [`write_box`](Self::write_box).
    ///
    /// # Errors
    /// [`RankMismatch`](ErrorKind::RankMismatch), and as [`write_box`](Self::write_box).
    ///
    /// ```
    /// use vmarray::NdArray;
    /// let image = NdArray::<u8, 2>::new([4, 5])?;
    /// image.write_view([1, 2], ndarray::array![[1, 2], [3, 4]].view())?;
    /// assert_eq!(image.get([2, 3])?, 4);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn write_view<E: Dimension>(&self, start: [usize; N], from: ArrayView<'_, T, E>) -> Result<()> {
        self.section_mut(..)?.write_view(start, from)
    }

    /// Copies a box into a new `ndarray` array. Of up to six dimensions, as `ndarray` has them.
    ///
    /// # Errors
    /// As [`to_vec`](Self::to_vec).
    ///
    /// ```
    /// use vmarray::NdArray;
    /// let image = NdArray::<u8, 2>::new([4, 5])?;
    /// image.set([1, 3], 7)?;
    /// assert_eq!(image.to_ndarray([1, 2]..[3, 4])?, ndarray::array![[0, 7], [0, 0]]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn to_ndarray(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
    ) -> Result<Array<T, <[usize; N] as IntoDimension>::Dim>>
    where
        [usize; N]: IntoDimension,
    {
        self.whole().to_ndarray(bounds)
    }
}

impl<T: Element, const N: usize, const M: usize, D: Device> NdSection<'_, T, N, D, M> {
    /// Copies the box of the view at a start into an `ndarray` view of its shape. As [`NdArray::read_view`].
    ///
    /// # Errors
    /// As [`NdArray::read_view`], in positions of the view.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.set([1, 3], 7)?;
    /// let mut column = ndarray::Array1::zeros(4);
    /// image.project::<1>(1, 3)?.read_view([0], column.view_mut())?;
    /// assert_eq!(column, ndarray::array![0, 7, 0, 0]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn read_view<E: Dimension>(&self, start: [usize; M], mut into: ArrayViewMut<'_, T, E>) -> Result<()> {
        let of = self.bounds(&box_like(&self.shape(), start, into.shape())?);
        let strides = self.spread(&std::array::from_fn(|axis| into.strides()[axis]));
        // SAFETY: the view has the box's shape, and is borrowed exclusively while the copy runs.
        let to = unsafe { Places::from_raw(into.as_mut_ptr(), strides) };
        copy::read(&self.array().elements, &self.array().geometry, &of, to)
    }

    /// Copies a box of the view into a new `ndarray` array. As [`NdArray::to_ndarray`].
    ///
    /// # Errors
    /// As [`NdArray::to_ndarray`], in positions of the view.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// assert_eq!(image.project::<1>(0, 2)?.to_ndarray(..)?, ndarray::Array1::<u8>::zeros(5));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn to_ndarray(
        &self,
        bounds: impl RangeBounds<[usize; M]>,
    ) -> Result<Array<T, <[usize; M] as IntoDimension>::Dim>>
    where
        [usize; M]: IntoDimension,
    {
        let of = shape::check_box(&self.shape(), bounds)?;
        let extent = shape::extent(&of);
        let values = self.to_vec(of)?;
        let got = values.len();
        Array::from_shape_vec(extent.into_dimension().set_f(false), values).map_err(|_| {
            ErrorKind::LengthMismatch { of: "the box", expected: shape::volume(&extent), got }.into()
        })
    }
}

impl<T: Element, const N: usize, const M: usize, D: Device> NdSectionMut<'_, T, N, D, M> {
    /// Copies an `ndarray` view to the box of its shape at a start of the view. As [`NdArray::write_view`].
    ///
    /// # Errors
    /// As [`NdArray::write_view`], in positions of the view.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.project_mut::<1>(0, 2)?.write_view([3], ndarray::array![8, 9].view())?;
    /// assert_eq!(image.get([2, 4])?, 9);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn write_view<E: Dimension>(&self, start: [usize; M], from: ArrayView<'_, T, E>) -> Result<()> {
        let of = self.bounds(&box_like(&self.shape(), start, from.shape())?);
        let strides = self.spread(&std::array::from_fn(|axis| from.strides()[axis]));
        // SAFETY: the view has the box's shape, and is borrowed while the copy runs.
        let source = unsafe { Source::from_raw(from.as_ptr(), strides) };
        copy::write(&self.array().elements, &self.array().geometry, &of, source)
    }
}
