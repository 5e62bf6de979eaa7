//! Boxes of N-dimensional arrays: in and out of slices, filled, mapped, fetched ahead.

use std::ops::{Range, RangeBounds};

use backend_api::Device;

use super::copy::{self, Places, Source};
use super::shape::{self, Bounds};
use super::{NdArray, NdSection};
use crate::array::map::MapMode;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;

impl<T: Element, const N: usize, D: Device> NdArray<T, N, D> {
    /// Checks a box against the shape.
    pub(super) fn checked_box(&self, bounds: impl RangeBounds<[usize; N]>) -> Result<Bounds<N>> {
        shape::check_box(&self.geometry.shape, bounds)
    }

    /// Copies a box into a slice, in row-major order.
    ///
    /// Each page that the box touches is visited once. Pages are fetched ahead while others are copied; they stay in
    /// the cache. Atomic by page.
    ///
    /// # Errors
    /// [`BoxOutside`](crate::ErrorKind::BoxOutside), [`BoxReversed`](crate::ErrorKind::BoxReversed),
    /// [`LengthMismatch`](crate::ErrorKind::LengthMismatch) if the slice has not the box's length, and what
    /// [`VirtualArray::read`](crate::VirtualArray::read) reports.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.set([1, 2], 7)?;
    /// let mut block = [9; 4];
    /// image.read_box([1, 1]..[3, 3], &mut block)?;
    /// assert_eq!(block, [0, 7, 0, 0]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn read_box(&self, bounds: impl RangeBounds<[usize; N]>, into: &mut [T]) -> Result<()> {
        let of = self.checked_box(bounds)?;
        let to = Places::dense(&shape::extent(&of), into)?;
        copy::read(&self.elements, &self.geometry, &of, to)
    }

    /// Copies a slice, in row-major order, into a box.
    ///
    /// Each page that the box touches is visited once; those that are overwritten whole are not fetched. Atomic by
    /// page.
    ///
    /// # Errors
    /// As [`read_box`](Self::read_box), and what [`VirtualArray::write`](crate::VirtualArray::write) reports; after an
    /// error of a device some pages are written and others not.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.write_box([1, 1]..[3, 3], &[1, 2, 3, 4])?;
    /// assert_eq!(image.get([2, 1])?, 3);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn write_box(&self, bounds: impl RangeBounds<[usize; N]>, from: &[T]) -> Result<()> {
        let of = self.checked_box(bounds)?;
        let from = Source::dense(&shape::extent(&of), from)?;
        copy::write(&self.elements, &self.geometry, &of, from)
    }

    /// Copies a box into a new vector, in row-major order.
    ///
    /// # Errors
    /// As [`read_box`](Self::read_box); [`NoMemory`](crate::ErrorKind::NoMemory) if the box does not fit into RAM.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.set([3, 4], 1)?;
    /// assert_eq!(image.to_vec([2, 3]..)?, [0, 0, 0, 1]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn to_vec(&self, bounds: impl RangeBounds<[usize; N]>) -> Result<Vec<T>> {
        let of = self.checked_box(bounds)?;
        let mut values = zeroed_vec(shape::volume(&shape::extent(&of)))?;
        self.read_box(of, &mut values)?;
        Ok(values)
    }

    /// Writes one value to all elements of a box.
    ///
    /// Pages that follow one another in a row-major array and are covered whole are filled on their devices if they are
    /// not resident; so are all pages of a whole tiled array whose tiles have no padding.
    ///
    /// # Errors
    /// As [`write_box`](Self::write_box).
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.fill([1, 0]..[2, 5], 3)?;
    /// assert_eq!((image.get([0, 4])?, image.get([1, 4])?), (0, 3));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn fill(&self, bounds: impl RangeBounds<[usize; N]>, value: T) -> Result<()> {
        let of = self.checked_box(bounds)?;
        let mut ranges = merged(self.geometry.ranges(&of));
        if let (Some(only), None) = (ranges.next(), ranges.next()) {
            return self.elements.fill(only, value);
        }
        copy::fill(&self.elements, &self.geometry, &of, value)
    }

    /// Runs a closure on a copy of a box as one slice, in row-major order.
    ///
    /// As [`VirtualArray::map`](crate::VirtualArray::map): nothing is locked while the closure runs.
    ///
    /// # Errors
    /// As [`to_vec`](Self::to_vec) and [`write_box`](Self::write_box). The closure's own result is the value.
    ///
    /// ```
    /// use vmarray::{MapMode, NdArray};
    /// let image = NdArray::<u8, 2>::new([4, 5])?;
    /// image.map_box([1, 1]..[3, 3], MapMode::Write, |block| block.copy_from_slice(&[1, 2, 3, 4]))?;
    /// let sum: u8 = image.map_box(.., MapMode::Read, |all| all.iter().sum())?;
    /// assert_eq!(sum, 10);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn map_box<R>(
        &self,
        bounds: impl RangeBounds<[usize; N]>,
        mode: MapMode,
        run: impl FnOnce(&mut [T]) -> R,
    ) -> Result<R> {
        let of = self.checked_box(bounds)?;
        let mut values = zeroed_vec(shape::volume(&shape::extent(&of)))?;
        self.map_into(&of, mode, &mut values, run)
    }

    /// As [`map_box`](Self::map_box), for a checked box and a slice of its length.
    pub(super) fn map_into<R>(
        &self,
        of: &Bounds<N>,
        mode: MapMode,
        values: &mut [T],
        run: impl FnOnce(&mut [T]) -> R,
    ) -> Result<R> {
        if matches!(mode, MapMode::Read | MapMode::ReadWrite) {
            self.read_box(of.clone(), values)?;
        }
        let result = run(values);
        if matches!(mode, MapMode::Write | MapMode::ReadWrite) {
            self.write_box(of.clone(), values)?;
        }
        Ok(result)
    }

    /// Starts to fetch the pages of a box into the cache, and returns without waiting for them. As
    /// [`VirtualArray::prefetch`](crate::VirtualArray::prefetch).
    ///
    /// # Errors
    /// [`BoxOutside`](crate::ErrorKind::BoxOutside), [`BoxReversed`](crate::ErrorKind::BoxReversed); a device's refusal
    /// to start copies.
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.prefetch([1, 0]..[2, 5])?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn prefetch(&self, bounds: impl RangeBounds<[usize; N]>) -> Result<()> {
        let of = self.checked_box(bounds)?;
        for pages in self.geometry.pages(&of, self.elements.page_len()) {
            let (start, end) = (pages.start as u64, pages.end as u64);
            if self.elements.pager().prefetch(start..end)? < end {
                // There are no more frames to be had.
                break;
            }
        }
        Ok(())
    }

    /// Which of [`elements`](Self::elements) a box has: ranges that are in ascending order, do not touch, and
    /// have no others between their ends.
    ///
    /// What works on ranges of a [`VirtualArray`](crate::VirtualArray), on the devices for example, works on boxes
    /// through this.
    ///
    /// # Errors
    /// [`BoxOutside`](crate::ErrorKind::BoxOutside), [`BoxReversed`](crate::ErrorKind::BoxReversed).
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// assert_eq!(image.element_ranges([1, 1]..[3, 3])?.collect::<Vec<_>>(), [6..8, 11..13]);
    /// assert_eq!(image.element_ranges([1, 0]..[3, 5])?.collect::<Vec<_>>(), [5..15]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn element_ranges<B: RangeBounds<[usize; N]>>(
        &self,
        bounds: B,
    ) -> Result<impl Iterator<Item = Range<usize>> + use<T, N, D, B>> {
        let of = self.checked_box(bounds)?;
        Ok(merged(self.geometry.ranges(&of)))
    }

    /// A view of a box, for reading, whose positions count from the box's start.
    ///
    /// # Errors
    /// [`BoxOutside`](crate::ErrorKind::BoxOutside), [`BoxReversed`](crate::ErrorKind::BoxReversed).
    ///
    /// ```
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// image.set([1, 1], 6)?;
    /// let middle = image.section([1, 1]..[3, 4])?;
    /// assert_eq!((middle.shape(), middle.get([0, 0])?), ([2, 3], 6));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section(&self, bounds: impl RangeBounds<[usize; N]>) -> Result<NdSection<'_, T, N, D>> {
        Ok(NdSection::new(self, self.checked_box(bounds)?))
    }

    /// A view, for reading, of the elements that have one index along one axis, with one axis less. `M` must be `N -
    /// 1`, which is checked at compile time.
    ///
    /// # Errors
    /// [`NoSuchAxis`](crate::ErrorKind::NoSuchAxis), [`PositionOutside`](crate::ErrorKind::PositionOutside).
    ///
    /// ```
    /// let volume = vmarray::NdArray::<u8, 3>::new([4, 5, 6])?;
    /// volume.set([1, 2, 3], 9)?;
    /// let plane = volume.project::<2>(1, 2)?;
    /// assert_eq!((plane.shape(), plane.get([1, 3])?), ([4, 6], 9));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn project<const M: usize>(&self, axis: usize, index: usize) -> Result<NdSection<'_, T, N, D, M>> {
        self.whole().project(axis, index)
    }

    /// A view of everything.
    pub(super) fn whole(&self) -> NdSection<'_, T, N, D> {
        NdSection::new(self, [0; N]..self.geometry.shape)
    }
}

/// Joins ranges that touch.
fn merged(ranges: impl Iterator<Item = Range<usize>>) -> impl Iterator<Item = Range<usize>> {
    let mut ranges = ranges.peekable();
    std::iter::from_fn(move || {
        let mut range = ranges.next()?;
        while let Some(next) = ranges.next_if(|next| next.start == range.end) {
            range.end = next.end;
        }
        Some(range)
    })
}
