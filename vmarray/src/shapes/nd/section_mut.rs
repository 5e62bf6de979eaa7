//! Views of boxes and of projections that can be written to.

use std::ops::{Deref, RangeBounds};

use backend_api::Device;

use super::copy::{self, Source};
use super::shape::{self, Bounds};
use super::{NdArray, NdSection};
use crate::array::map::MapMode;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::setup::any::AnyDevice;

/// A view of a box of an N-dimensional array, for reading and writing.
///
/// Everything that an [`NdSection`] can, and what changes elements. As with the array itself, writing needs no
/// exclusive access: any number of these may overlap, in any number of threads.
///
/// ```
/// let volume = vmarray::NdArray::<u32, 3>::new([8, 8, 8])?;
/// let inner = volume.section_mut([2, 2, 2]..[6, 6, 6])?;
/// let row = inner.project_mut::<2>(0, 1)?.project_mut::<1>(0, 3)?;
/// row.write_box(.., &[1, 2, 3, 4])?;
/// assert_eq!(volume.get([3, 5, 4])?, 3);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct NdSectionMut<'a, T: Element, const N: usize, D: Device = AnyDevice, const M: usize = N> {
    section: NdSection<'a, T, N, D, M>,
}

impl<T: Element, const N: usize, D: Device> NdArray<T, N, D> {
    /// A view of a box, for reading and writing, whose positions count from the box's start.
    ///
    /// # Errors
    /// As [`section`](Self::section).
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.section_mut([1, 1]..[3, 4])?.set([0, 0], 6)?;
    /// assert_eq!(image.get([1, 1])?, 6);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section_mut(&self, bounds: impl RangeBounds<[usize; N]>) -> Result<NdSectionMut<'_, T, N, D>> {
        Ok(NdSectionMut { section: self.section(bounds)? })
    }

    /// A view, for reading and writing, of the elements that have one index along one axis. As
    /// [`project`](Self::project).
    ///
    /// # Errors
    /// As [`project`](Self::project).
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.project_mut::<1>(0, 2)?.fill(.., 3)?;
    /// assert_eq!(image.get([2, 4])?, 3);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn project_mut<const M: usize>(
        &self,
        axis: usize,
        index: usize,
    ) -> Result<NdSectionMut<'_, T, N, D, M>> {
        Ok(NdSectionMut { section: self.project(axis, index)? })
    }
}

impl<'a, T: Element, const N: usize, const M: usize, D: Device> NdSectionMut<'a, T, N, D, M> {
    /// The same view, for reading.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// assert_eq!(image.section_mut([1, 1]..)?.read_only().shape(), [3, 4]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn read_only(&self) -> NdSection<'a, T, N, D, M> {
        self.section
    }

    /// Writes an element.
    ///
    /// # Errors
    /// As [`NdArray::set`], in positions of the view.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.section_mut([1, 1]..)?.set([2, 3], 8)?;
    /// assert_eq!(image.get([3, 4])?, 8);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[inline]
    pub fn set(&self, at: [usize; M], value: T) -> Result<()> {
        shape::check_position(&self.shape(), &at)?;
        self.array().elements.set(self.array().place_of(&self.position(&at)), value)
    }

    /// Copies a slice, in row-major order, into a box of the view. As [`NdArray::write_box`].
    ///
    /// # Errors
    /// As [`NdArray::write_box`], in positions of the view.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.project_mut::<1>(1, 3)?.write_box(.., &[1, 2, 3, 4])?;
    /// assert_eq!(image.get([2, 3])?, 3);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn write_box(&self, bounds: impl RangeBounds<[usize; M]>, from: &[T]) -> Result<()> {
        let of = shape::check_box(&self.shape(), bounds)?;
        let of = self.bounds(&of);
        copy::write(
            &self.array().elements,
            &self.array().geometry,
            &of,
            Source::dense(&shape::extent(&of), from)?,
        )
    }

    /// As [`GridMut::write_strided`](super::GridMut::write_strided).
    pub(super) fn write_places(&self, of: &Bounds<M>, strides: [usize; M], from: &[T]) -> Result<()> {
        let of = self.bounds(of);
        let from = Source::strided(&shape::extent(&of), self.spread(&strides), from)?;
        copy::write(&self.array().elements, &self.array().geometry, &of, from)
    }

    /// Writes one value to all elements of a box of the view. As [`NdArray::fill`].
    ///
    /// # Errors
    /// As [`NdArray::fill`], in positions of the view.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.section_mut([1, 1]..[3, 3])?.fill(.., 4)?;
    /// assert_eq!(image.to_vec([2, 0]..[3, 4])?, [0, 4, 4, 0]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn fill(&self, bounds: impl RangeBounds<[usize; M]>, value: T) -> Result<()> {
        let of = shape::check_box(&self.shape(), bounds)?;
        self.array().fill(self.bounds(&of), value)
    }

    /// Runs a closure on a copy of a box of the view as one slice, in row-major order. As [`NdArray::map_box`].
    ///
    /// # Errors
    /// As [`NdArray::map_box`], in positions of the view.
    ///
    /// ```
    /// use vmarray::{MapMode, NdArray};
    /// let image = NdArray::<u8, 2>::new([4, 5])?;
    /// let column = image.project_mut::<1>(1, 2)?;
    /// column.map_box(.., MapMode::Write, |column| column.copy_from_slice(&[1, 2, 3, 4]))?;
    /// assert_eq!(image.get([3, 2])?, 4);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn map_box<R>(
        &self,
        bounds: impl RangeBounds<[usize; M]>,
        mode: MapMode,
        run: impl FnOnce(&mut [T]) -> R,
    ) -> Result<R> {
        self.array().map_box(self.box_in_array(bounds)?, mode, run)
    }

    /// A view of a box of this view, for reading and writing.
    ///
    /// # Errors
    /// As [`NdSection::section`].
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.section_mut([1, 1]..)?.section_mut([1, 1]..)?.set([0, 0], 3)?;
    /// assert_eq!(image.get([2, 2])?, 3);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section_mut(&self, bounds: impl RangeBounds<[usize; M]>) -> Result<Self> {
        Ok(Self { section: self.section(bounds)? })
    }

    /// A projection of this view, for reading and writing.
    ///
    /// # Errors
    /// As [`NdSection::project`].
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.section_mut([1, 1]..)?.project_mut::<1>(0, 0)?.fill(.., 7)?;
    /// assert_eq!(image.to_vec([1, 0]..[2, 5])?, [0, 7, 7, 7, 7]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn project_mut<const K: usize>(
        &self,
        axis: usize,
        index: usize,
    ) -> Result<NdSectionMut<'a, T, N, D, K>> {
        Ok(NdSectionMut { section: self.section.project(axis, index)? })
    }
}

impl<'a, T: Element, const N: usize, const M: usize, D: Device> Deref for NdSectionMut<'a, T, N, D, M> {
    type Target = NdSection<'a, T, N, D, M>;

    fn deref(&self) -> &Self::Target {
        &self.section
    }
}

impl<T: Element, const N: usize, const M: usize, D: Device> Clone for NdSectionMut<'_, T, N, D, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element, const N: usize, const M: usize, D: Device> Copy for NdSectionMut<'_, T, N, D, M> {}
