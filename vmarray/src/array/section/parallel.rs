//! Parallel operations on sections, on rayon's threads.

use std::ops::RangeBounds;

use backend_api::Device;

use super::{Section, SectionMut};
use crate::base::element::Element;
use crate::base::error::Result;

impl<T: Element, D: Device> Section<'_, T, D> {
    /// Runs a closure on each page's part of a range, in parallel and in place, with the index of its first element in
    /// the section: [`VirtualArray::par_for_each_slice`](crate::VirtualArray::par_for_each_slice).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    /// # let array = vmarray::VirtualArray::<u32>::new(100_000)?;
    /// let elements = AtomicUsize::new(0);
    /// array.section(100..90_000)?.par_for_each_slice(.., |_, slice| {
    ///     elements.fetch_add(slice.len(), Ordering::Relaxed);
    /// })?;
    /// assert_eq!(elements.into_inner(), 89_900);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn par_for_each_slice(
        &self,
        range: impl RangeBounds<usize>,
        run: impl Fn(usize, &[T]) + Send + Sync,
    ) -> Result<()> {
        let start = self.start;
        self.array.par_for_each_slice(self.outer_range(range)?, |first, slice| run(first - start, slice))
    }

    /// Folds each page's part of a range, in parallel and in place, and combines the results:
    /// [`VirtualArray::par_fold_slices`](crate::VirtualArray::par_fold_slices).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(100_000)?;
    /// array.set(77_777, 9)?;
    /// let section = array.section(70_000..)?;
    /// let largest = section.par_fold_slices(.., || 0, |m, _, s| s.iter().fold(m, |m, &x| m.max(x)), u32::max)?;
    /// assert_eq!(largest, 9);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn par_fold_slices<R: Send>(
        &self,
        range: impl RangeBounds<usize>,
        identity: impl Fn() -> R + Send + Sync,
        fold: impl Fn(R, usize, &[T]) -> R + Send + Sync,
        combine: impl Fn(R, R) -> R + Send + Sync,
    ) -> Result<R> {
        let start = self.start;
        let fold = |sum, first: usize, slice: &[T]| fold(sum, first - start, slice);
        self.array.par_fold_slices(self.outer_range(range)?, identity, fold, combine)
    }
}

impl<T: Element, D: Device> SectionMut<'_, T, D> {
    /// Runs a closure on each page's part of a range, mutably, in parallel and in place:
    /// [`VirtualArray::par_for_each_slice_mut`](crate::VirtualArray::par_for_each_slice_mut).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(100_000)?;
    /// array.section_mut(100..)?.par_for_each_slice_mut(.., |first, slice| {
    ///     slice.iter_mut().zip(first as u32..).for_each(|(element, i)| *element = i);
    /// })?;
    /// assert_eq!(array.get(99_999)?, 99_899);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn par_for_each_slice_mut(
        &self,
        range: impl RangeBounds<usize>,
        run: impl Fn(usize, &mut [T]) + Send + Sync,
    ) -> Result<()> {
        let start = self.start;
        self.array.par_for_each_slice_mut(self.outer_range(range)?, |first, slice| run(first - start, slice))
    }
}
