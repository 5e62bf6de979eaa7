//! Parallel forms of the iterators, on rayon's threads.

use std::ops::RangeBounds;

use backend_api::Device;
use rayon::prelude::*;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Runs a closure on each page's part of a range, in parallel and in place: it gets the index of the first element,
    /// and the elements. Stops at the first error.
    ///
    /// Each thread holds one page while the closure runs. A closure that waits for work of the same thread pool lets
    /// its thread take up other pages meanwhile; one of those may be one too many, or held by a thread that waits for
    /// this one, which is an error.
    ///
    /// # Errors
    /// [`RangeOutside`](crate::ErrorKind::RangeOutside), [`RangeReversed`](crate::ErrorKind::RangeReversed), and what
    /// [`page`](Self::page) reports.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// let array = vmarray::VirtualArray::<u32>::new(100_000)?;
    /// array.fill(.., 2)?;
    /// let sum = AtomicU64::new(0);
    /// array.par_for_each_slice(.., |_, slice| {
    ///     sum.fetch_add(slice.iter().map(|&x| u64::from(x)).sum(), Ordering::Relaxed);
    /// })?;
    /// assert_eq!(sum.into_inner(), 200_000);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn par_for_each_slice(
        &self,
        range: impl RangeBounds<usize>,
        run: impl Fn(usize, &[T]) + Send + Sync,
    ) -> Result<()> {
        self.par_fold_slices(range, || (), |(), first, slice| run(first, slice), |(), ()| ())
    }

    /// Folds each page's part of a range, in parallel and in place, and combines the results.
    ///
    /// # Errors
    /// As [`par_for_each_slice`](Self::par_for_each_slice).
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u32>::new(100_000)?;
    /// array.set(77_777, 9)?;
    /// let largest =
    ///     array.par_fold_slices(.., || 0, |m, _, slice| slice.iter().fold(m, |m, &x| m.max(x)), u32::max)?;
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
        let range = self.checked_range(range)?;
        let pages = self.touched_pages(&range);
        let visit = self.scan((pages.end - pages.start) as usize);
        pages
            .into_par_iter()
            .map(|page| page as usize)
            .try_fold(&identity, |sum, page| {
                let guard = self.visit(page, visit)?;
                let all = guard.range();
                let part = range.start.max(all.start)..range.end.min(all.end);
                Ok(fold(sum, part.start, &guard[part.start - all.start..part.end - all.start]))
            })
            .try_reduce(&identity, |a, b| Ok(combine(a, b)))
    }

    /// Runs a closure on each page's part of a range, mutably, in parallel and in place. Stops at the first error.
    ///
    /// # Errors
    /// As [`par_for_each_slice`](Self::par_for_each_slice), and what [`page_mut`](Self::page_mut) reports.
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u32>::new(100_000)?;
    /// array.par_for_each_slice_mut(.., |first, slice| {
    ///     slice.iter_mut().zip(first as u32..).for_each(|(element, i)| *element = i);
    /// })?;
    /// assert_eq!(array.get(99_999)?, 99_999);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn par_for_each_slice_mut(
        &self,
        range: impl RangeBounds<usize>,
        run: impl Fn(usize, &mut [T]) + Send + Sync,
    ) -> Result<()> {
        let range = self.checked_range(range)?;
        let pages = self.touched_pages(&range);
        let visit = self.scan((pages.end - pages.start) as usize);
        pages.into_par_iter().try_for_each(|page| {
            let mut guard = self.visit_mut(page as usize, visit)?;
            let all = guard.range();
            let part = range.start.max(all.start)..range.end.min(all.end);
            run(part.start, &mut guard[part.start - all.start..part.end - all.start]);
            Ok(())
        })
    }

    /// All elements by value as a parallel iterator, in order. Copies a page at a time; nothing is held while the items
    /// are used.
    ///
    /// ```
    /// use rayon::prelude::*;
    /// let array = vmarray::VirtualArray::<u32>::new(100_000)?;
    /// array.fill(.., 2)?;
    /// let sum = array.par_iter().sum::<Result<u32, _>>()?;
    /// assert_eq!(sum, 200_000);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn par_iter(&self) -> impl ParallelIterator<Item = Result<T>> + '_ {
        let pages = 0..self.page_count();
        pages.into_par_iter().flat_map_iter(|page| {
            let (values, error) = match self.to_vec(self.page_range(page)) {
                Ok(values) => (values, None),
                Err(error) => (Vec::new(), Some(Err(error))),
            };
            values.into_iter().map(Ok).chain(error)
        })
    }
}
