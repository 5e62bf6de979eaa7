//! Parallel operations on ranges, on rayon's threads.

use std::ops::Range;

use backend_api::Device;
use rayon::iter::plumbing::{Consumer, Producer, ProducerCallback, UnindexedConsumer, bridge};
use rayon::prelude::*;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::base::memory::zeroed_vec;

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Folds the slices of a range, page by page; each comes with its first index.
    pub(crate) fn par_fold<R: Send>(
        &self,
        range: Range<usize>,
        identity: impl Fn() -> R + Send + Sync,
        fold: impl Fn(R, usize, &[T]) -> R + Send + Sync,
        combine: impl Fn(R, R) -> R + Send + Sync,
    ) -> Result<R> {
        self.pager().expect_helpers()?;
        let count = self.touched_pages(&range).count();
        let visit = self.scan(count);
        (0..count)
            .into_par_iter()
            .try_fold(&identity, |sum, page| {
                let page = self.visit(self.cut(&range, page)?, visit)?;
                Ok(fold(sum, page.range().start, &page))
            })
            .try_reduce(&identity, |a, b| Ok(combine(a, b)))
    }

    /// Runs mutating code on the slices of a range, page by page.
    pub(crate) fn par_change(
        &self,
        range: Range<usize>,
        run: impl Fn(usize, &mut [T]) + Send + Sync,
    ) -> Result<()> {
        self.pager().expect_helpers()?;
        let count = self.touched_pages(&range).count();
        let visit = self.scan(count);
        (0..count).into_par_iter().try_for_each(|page| {
            let mut page = self.visit_mut(self.cut(&range, page)?, visit)?;
            let first = page.range().start;
            run(first, &mut page);
            Ok(())
        })
    }

    /// The elements of a range, a copy of a page at a time.
    pub(crate) fn par_elements(&self, range: Range<usize>) -> ParElements<'_, T, D> {
        ParElements { array: self, range, refused: None }
    }
}

/// Elements of a range, split among rayon's threads.
pub(crate) struct ParElements<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    range: Range<usize>,
    /// Error of all items, if other threads must not read them.
    refused: Option<Error>,
}

impl<T: Element, D: Device> ParallelIterator for ParElements<'_, T, D> {
    type Item = Result<T>;

    fn drive_unindexed<C: UnindexedConsumer<Self::Item>>(self, consumer: C) -> C::Result {
        bridge(self, consumer)
    }

    fn opt_len(&self) -> Option<usize> {
        Some(self.range.len())
    }
}

impl<T: Element, D: Device> IndexedParallelIterator for ParElements<'_, T, D> {
    fn len(&self) -> usize {
        self.range.len()
    }

    fn drive<C: Consumer<Self::Item>>(self, consumer: C) -> C::Result {
        bridge(self, consumer)
    }

    fn with_producer<P: ProducerCallback<Self::Item>>(self, callback: P) -> P::Output {
        // This runs on the thread that waits for rayon's other threads.
        let refused = self.array.pager().expect_helpers().err();
        callback.callback(Self { refused, ..self })
    }
}

impl<'a, T: Element, D: Device> Producer for ParElements<'a, T, D> {
    type Item = Result<T>;
    type IntoIter = Copies<'a, T, D>;

    fn into_iter(self) -> Copies<'a, T, D> {
        let [front, back] = [const { Vec::new() }; 2].map(Vec::into_iter);
        Copies { array: self.array, front, range: self.range, back, failed: self.refused }
    }

    fn split_at(self, index: usize) -> (Self, Self) {
        let (array, Range { start, end }, refused) = (self.array, self.range, self.refused);
        let first = Self { array, range: start..start + index, refused: refused.clone() };
        (first, Self { array, range: start + index..end, refused })
    }
}

/// Elements of a range from copies of its pages: the library holds no guard while program code runs, because
/// rayon may run other work within it.
pub(crate) struct Copies<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    front: std::vec::IntoIter<T>,
    range: Range<usize>,
    back: std::vec::IntoIter<T>,
    /// The error of the rest of the range: each of its elements is that error.
    failed: Option<Error>,
}

impl<T: Element, D: Device> Copies<'_, T, D> {
    fn copy(&mut self, part: Range<usize>) -> Result<std::vec::IntoIter<T>> {
        let copied = match self.failed.take() {
            Some(error) => Err(error),
            None => zeroed_vec(part.len()).and_then(|mut values| {
                self.array.read_range(part.start, &mut values)?;
                Ok(values.into_iter())
            }),
        };
        copied.inspect_err(|error| self.failed = Some(error.clone()))
    }
}

impl<T: Element, D: Device> Iterator for Copies<'_, T, D> {
    type Item = Result<T>;

    #[inline]
    fn next(&mut self) -> Option<Result<T>> {
        if let Some(value) = self.front.next() {
            return Some(Ok(value));
        }
        if self.range.is_empty() {
            return self.back.next().map(Ok);
        }
        let start = self.range.start;
        let end = self.array.page_range(self.array.page_of(start)).end.min(self.range.end);
        match self.copy(start..end) {
            Ok(values) => (self.front, self.range.start) = (values, end),
            Err(error) => {
                self.range.start += 1;
                return Some(Err(error));
            }
        }
        self.front.next().map(Ok)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.front.len() + self.range.len() + self.back.len();
        (left, Some(left))
    }
}

impl<T: Element, D: Device> DoubleEndedIterator for Copies<'_, T, D> {
    #[inline]
    fn next_back(&mut self) -> Option<Result<T>> {
        if let Some(value) = self.back.next_back() {
            return Some(Ok(value));
        }
        if self.range.is_empty() {
            return self.front.next_back().map(Ok);
        }
        let end = self.range.end;
        let start = self.array.page_range(self.array.page_of(end - 1)).start.max(self.range.start);
        match self.copy(start..end) {
            Ok(values) => (self.back, self.range.end) = (values, start),
            Err(error) => {
                self.range.end -= 1;
                return Some(Err(error));
            }
        }
        self.back.next_back().map(Ok)
    }
}

impl<T: Element, D: Device> ExactSizeIterator for Copies<'_, T, D> {}
