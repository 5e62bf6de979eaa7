//! Views of boxes and of projections.

use std::fmt;
use std::ops::RangeBounds;

use backend_api::Device;

use super::copy::{self, Places};
use super::shape::{self, Bounds};
use super::{NdArray, Segment, segments};
use crate::array::map::MapMode;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::setup::any::AnyDevice;

/// A view of a box of an N-dimensional array, for reading. Some of the axes may be fixed: it has `M` axes of the
/// array's `N`.
///
/// Its positions count from the box's start. Any number of views can overlap; they are copied freely and used from any
/// thread.
///
/// ```
/// let volume = vmarray::NdArray::<u32, 3>::new([8, 8, 8])?;
/// volume.set([3, 5, 4], 7)?;
/// let inner = volume.section([2, 2, 2]..[6, 6, 6])?;
/// let row = inner.project::<2>(0, 1)?.project::<1>(0, 3)?;
/// assert_eq!(row.to_vec(..)?, [0, 0, 7, 0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// There is no way to write through it:
///
/// ```compile_fail
/// let image = vmarray::NdArray::<u32, 2>::new([8, 8])?;
/// image.section(..)?.set([0, 0], 1)?;
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct NdSection<'a, T: Element, const N: usize, D: Device = AnyDevice, const M: usize = N> {
    array: &'a NdArray<T, N, D>,
    start: [usize; N],
    shape: [usize; M],
    /// The array's axes that are the view's, ascending.
    axes: [usize; M],
}

impl<'a, T: Element, const N: usize, D: Device> NdSection<'a, T, N, D> {
    pub(super) fn new(array: &'a NdArray<T, N, D>, of: Bounds<N>) -> Self {
        Self { array, start: of.start, shape: shape::extent(&of), axes: std::array::from_fn(|axis| axis) }
    }
}

impl<'a, T: Element, const N: usize, const M: usize, D: Device> NdSection<'a, T, N, D, M> {
    /// The array that this is a view of.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// assert_eq!(image.section([1, 1]..)?.array().shape(), [4, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn array(&self) -> &'a NdArray<T, N, D> {
        self.array
    }

    /// The extents along each axis of the view.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// assert_eq!(image.section([1, 1]..)?.shape(), [3, 4]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn shape(&self) -> [usize; M] {
        self.shape
    }

    /// How many elements there are.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// assert_eq!(image.section([1, 1]..)?.len(), 12);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        shape::volume(&self.shape)
    }

    /// Whether there are none.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// assert!(image.section([4, 0]..)?.is_empty());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Where the array has a position of the view.
    #[inline(always)]
    pub(super) fn position(&self, at: &[usize; M]) -> [usize; N] {
        let mut position = self.start;
        for axis in 0..M {
            position[self.axes[axis]] += at[axis];
        }
        position
    }

    /// Where the array has a box of the view.
    pub(crate) fn bounds(&self, of: &Bounds<M>) -> Bounds<N> {
        let start = self.position(&of.start);
        let mut end = start.map(|at| at + 1);
        for axis in 0..M {
            end[self.axes[axis]] = start[self.axes[axis]] + (of.end[axis] - of.start[axis]);
        }
        start..end
    }

    /// Strides by axis of the array, given those by axis of the view.
    pub(super) fn spread<S: Copy + Default>(&self, strides: &[S; M]) -> [S; N] {
        let mut spread = [S::default(); N];
        for axis in 0..M {
            spread[self.axes[axis]] = strides[axis];
        }
        spread
    }

    /// Which box of the array a box of the view is, for what arrays can do with boxes and views cannot.
    ///
    /// # Errors
    /// [`BoxOutside`](ErrorKind::BoxOutside), [`BoxReversed`](ErrorKind::BoxReversed).
    ///
    /// ```
    /// use vmarray::{Field, NdArray};
    /// let image = NdArray::<u8, 2>::new([4, 5])?;
    /// image.fill([1, 0]..[3, 5], 7)?;
    /// let column = image.section([1, 1]..)?.project::<1>(1, 2)?;
    /// assert_eq!(column.box_in_array(..)?, [1, 3]..[4, 4]);
    /// assert_eq!(image.count(column.box_in_array(..)?, Field::whole(), &7)?, 2);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn box_in_array(&self, bounds: impl RangeBounds<[usize; M]>) -> Result<Bounds<N>> {
        Ok(self.bounds(&shape::check_box(&self.shape, bounds)?))
    }

    /// Runs a closure on a copy of a box of the view as one slice, in row-major order. As [`NdArray::map_box`].
    ///
    /// # Errors
    /// As [`to_vec`](Self::to_vec). The closure's own result is the value.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.fill([1, 0]..[3, 5], 7)?;
    /// let sum: u8 = image.project::<1>(1, 2)?.map_box(.., |column| column.iter().sum())?;
    /// assert_eq!(sum, 14);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn map_box<R>(&self, bounds: impl RangeBounds<[usize; M]>, run: impl FnOnce(&[T]) -> R) -> Result<R> {
        self.array.map_box(self.box_in_array(bounds)?, MapMode::Read, |values| run(values))
    }

    /// Reads an element.
    ///
    /// # Errors
    /// As [`NdArray::get`], in positions of the view.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// assert_eq!(image.section([1, 1]..)?.get([2, 3])?, 0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[inline]
    pub fn get(&self, at: [usize; M]) -> Result<T> {
        shape::check_position(&self.shape, &at)?;
        self.array.elements.get(self.array.place_of(&self.position(&at)))
    }

    /// Copies a box of the view into a slice, in row-major order. As [`NdArray::read_box`].
    ///
    /// # Errors
    /// As [`NdArray::read_box`], in positions of the view.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.fill([2, 0]..[3, 5], 1)?;
    /// let mut column = [0; 4];
    /// image.project::<1>(1, 3)?.read_box(.., &mut column)?;
    /// assert_eq!(column, [0, 0, 1, 0]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn read_box(&self, bounds: impl RangeBounds<[usize; M]>, into: &mut [T]) -> Result<()> {
        let of = shape::check_box(&self.shape, bounds)?;
        let of = self.bounds(&of);
        copy::read(&self.array.elements, &self.array.geometry, &of, Places::dense(&shape::extent(&of), into)?)
    }

    /// As [`Grid::read_strided`](super::Grid::read_strided).
    pub(super) fn read_places(&self, of: &Bounds<M>, strides: [usize; M], into: &mut [T]) -> Result<()> {
        let of = self.bounds(of);
        let to = Places::strided(&shape::extent(&of), self.spread(&strides), into)?;
        copy::read(&self.array.elements, &self.array.geometry, &of, to)
    }

    /// As [`Grid::read_segments`](super::Grid::read_segments).
    pub(super) fn read_segments_of(
        &self,
        of: [&[Segment]; M],
        strides: &[usize; M],
        into: &mut [T],
    ) -> Result<()> {
        let fixed = |axis: usize| vec![Segment { start: self.start[axis], len: 1, place: 0 }];
        let mut all: [Vec<Segment>; N] = std::array::from_fn(fixed);
        for (axis, list) in of.into_iter().enumerate() {
            for segment in list {
                shape::check_range(axis, self.shape[axis], segment.start, segment.len)?;
            }
            let start = self.start[self.axes[axis]];
            all[self.axes[axis]] = list.iter().map(|s| Segment { start: start + s.start, ..*s }).collect();
        }
        segments::read(&self.array.elements, &self.array.geometry, all, &self.spread(strides), into)
    }

    /// Copies a box of the view into a new vector. As [`NdArray::to_vec`].
    ///
    /// # Errors
    /// As [`NdArray::to_vec`], in positions of the view.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// assert_eq!(image.section([1, 1]..)?.to_vec(..[1, 2])?, [0, 0]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn to_vec(&self, bounds: impl RangeBounds<[usize; M]>) -> Result<Vec<T>> {
        let of = shape::check_box(&self.shape, bounds)?;
        let mut values = zeroed_vec(shape::volume(&shape::extent(&of)))?;
        self.read_box(of, &mut values)?;
        Ok(values)
    }

    /// A view of a box of this view.
    ///
    /// # Errors
    /// As [`NdArray::section`], in positions of the view.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// let corner = image.section([1, 1]..)?.section([2, 2]..)?;
    /// assert_eq!(corner.shape(), [1, 2]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section(&self, bounds: impl RangeBounds<[usize; M]>) -> Result<Self> {
        let of = shape::check_box(&self.shape, bounds)?;
        let start = self.position(&of.start);
        Ok(Self { start, shape: shape::extent(&of), ..*self })
    }

    /// A view of the elements that have one index along one of the view's axes, with one axis less. `K` must be
    /// `M - 1`, which is checked at compile time.
    ///
    /// # Errors
    /// As [`NdArray::project`], in positions of the view.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.set([3, 2], 5)?;
    /// let column = image.section([1, 1]..)?.project::<1>(1, 1)?;
    /// assert_eq!(column.to_vec(..)?, [0, 0, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn project<const K: usize>(&self, axis: usize, index: usize) -> Result<NdSection<'a, T, N, D, K>> {
        const { assert!(K > 0 && K + 1 == M, "a projection has one axis less than its source") };
        if axis >= M {
            return Err(ErrorKind::NoSuchAxis { axis, axes: M }.into());
        }
        if index >= self.shape[axis] {
            return Err(shape::position_outside(axis, index as i128, self.shape[axis]));
        }
        let mut start = self.start;
        start[self.axes[axis]] += index;
        let from = |at: usize| if at < axis { at } else { at + 1 };
        Ok(NdSection {
            array: self.array,
            start,
            shape: std::array::from_fn(|at| self.shape[from(at)]),
            axes: std::array::from_fn(|at| self.axes[from(at)]),
        })
    }
}

impl<T: Element, const N: usize, const M: usize, D: Device> Clone for NdSection<'_, T, N, D, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element, const N: usize, const M: usize, D: Device> Copy for NdSection<'_, T, N, D, M> {}

impl<T: Element, const N: usize, const M: usize, D: Device> fmt::Debug for NdSection<'_, T, N, D, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NdSection")
            .field("start", &self.start)
            .field("shape", &self.shape)
            .field("axes", &self.axes)
            .field("of", &self.array.shape())
            .finish()
    }
}
