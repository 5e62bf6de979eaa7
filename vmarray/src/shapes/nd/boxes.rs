//! The elements of a box of an array.

use std::ops::{Range, RangeBounds};

use backend_api::Device;

use super::NdArray;
use super::shape;
use crate::base::element::Element;
use crate::base::error::Result;

impl<T: Element, const N: usize, D: Device> NdArray<T, N, D> {
    /// Returns the elements of a box as ranges of indices of [`elements`](Self::elements), ascending;
    /// adjacent ranges are merged.
    ///
    /// Use the ranges to apply operations on ranges of a [`VirtualArray`](crate::VirtualArray) to a box.
    ///
    /// # Errors
    /// [`BoxOutside`](crate::ErrorKind::BoxOutside), [`BoxReversed`](crate::ErrorKind::BoxReversed).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 5])?;
    /// assert_eq!(image.element_ranges([1, 1]..[3, 3])?.collect::<Vec<_>>(), [6..8, 11..13]);
    /// assert_eq!(image.element_ranges([1, 0]..[3, 5])?.collect::<Vec<_>>(), [5..15]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn element_ranges<B: RangeBounds<[usize; N]>>(
        &self,
        bounds: B,
    ) -> Result<impl Iterator<Item = Range<usize>> + use<T, N, D, B>> {
        let of = shape::check_box(&self.geometry.shape, bounds)?;
        Ok(merged(self.geometry.ranges(&of)))
    }
}

/// Merges ranges that touch.
pub(super) fn merged(ranges: impl Iterator<Item = Range<usize>>) -> impl Iterator<Item = Range<usize>> {
    let mut ranges = ranges.peekable();
    std::iter::from_fn(move || {
        let mut range = ranges.next()?;
        while let Some(next) = ranges.next_if(|next| next.start == range.end) {
            range.end = next.end;
        }
        Some(range)
    })
}
