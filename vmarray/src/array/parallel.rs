//! Parallel fold, update and iteration over a range of elements, on rayon's threads.

use std::ops::Range;
use std::thread::{self, ThreadId};

use backend_api::Device;
use rayon::iter::plumbing::{Consumer, Producer, ProducerCallback, UnindexedConsumer, bridge};
use rayon::prelude::*;

use crate::array::VirtualArray;
use crate::array::page_guard::{PageMut, PageRef};
use crate::array::page_loop::{PageLoop, workers};
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::base::memory::zeroed_vec;
use crate::base::scoped_threads::works_alone;

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Folds the elements of a range in parallel, page by page. The closure gets a slice and its first index.
    pub(crate) fn par_fold<R: Send>(
        &self,
        range: Range<usize>,
        identity: impl Fn() -> R + Send + Sync,
        fold: impl Fn(R, usize, &[T]) -> R + Send + Sync,
        combine: impl Fn(R, R) -> R + Send + Sync,
    ) -> Result<R> {
        let count = self.touched_pages(&range).count();
        let visit = self.scan(count);
        let hold = |page| self.visit(self.cut(&range, page)?, visit);
        let fold = |sum, page: PageRef<'_, T, D>| fold(sum, page.range().start, &page);
        let parts = PageLoop::new(self.loop_workers(count), &identity, hold, fold).run(count)?;
        Ok(parts.reduce(combine).unwrap_or_else(identity))
    }

    /// Runs a mutating closure on the elements of a range in parallel, page by page.
    pub(crate) fn par_change(
        &self,
        range: Range<usize>,
        run: impl Fn(usize, &mut [T]) + Send + Sync,
    ) -> Result<()> {
        let count = self.touched_pages(&range).count();
        let visit = self.scan(count);
        let hold = |page| self.visit_mut(self.cut(&range, page)?, visit);
        let change = |(), mut page: PageMut<'_, T, D>| run(page.range().start, &mut page);
        PageLoop::new(self.loop_workers(count), || (), hold, change).run(count).map(drop)
    }

    fn loop_workers(&self, pages: usize) -> usize {
        let guards = self.pager().channels().iter().map(|channel| channel.most_guards());
        workers(pages, guards.sum())
    }

    /// Returns a parallel iterator over the elements of a range, which copies one page at a time.
    pub(crate) fn par_elements(&self, range: Range<usize>) -> ParElements<'_, T, D> {
        ParElements { array: self, range, alone: None }.of_this_thread()
    }
}

/// A rayon iterator over the elements of a range.
pub(crate) struct ParElements<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    range: Range<usize>,
    /// The only thread that may read the elements, if it must [work alone](works_alone).
    alone: Option<ThreadId>,
}

impl<T: Element, D: Device> ParElements<'_, T, D> {
    /// Records if the calling thread must work alone.
    fn of_this_thread(self) -> Self {
        let alone = self.alone.or_else(|| works_alone().then(|| thread::current().id()));
        Self { alone, ..self }
    }
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
        // This thread will wait for rayon's other threads. Check again if the thread must work alone, because
        // it may have taken guards since the creation of the iterator.
        callback.callback(self.of_this_thread())
    }
}

impl<'a, T: Element, D: Device> Producer for ParElements<'a, T, D> {
    type Item = Result<T>;
    type IntoIter = PageCopies<'a, T, D>;

    fn into_iter(self) -> PageCopies<'a, T, D> {
        let [front, back] = [const { Vec::new() }; 2].map(Vec::into_iter);
        let may_read = self.alone.is_none_or(|thread| thread == thread::current().id());
        let failed = (!may_read).then(|| self.array.pager().would_deadlock());
        PageCopies { array: self.array, front, range: self.range, back, failed }
    }

    /// Prevents rayon from splitting the work of a thread that must work alone.
    fn min_len(&self) -> usize {
        if self.alone.is_some() { usize::MAX } else { 1 }
    }

    fn split_at(self, index: usize) -> (Self, Self) {
        let (array, Range { start, end }, alone) = (self.array, self.range, self.alone);
        let first = Self { array, range: start..start + index, alone };
        (first, Self { array, range: start + index..end, alone })
    }
}

/// Iterates over elements in copies of their pages. The library holds no guard while code of the program
/// runs, because rayon may run other work within this code.
pub(crate) struct PageCopies<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    front: std::vec::IntoIter<T>,
    range: Range<usize>,
    back: std::vec::IntoIter<T>,
    /// The error that each remaining element of the range returns.
    failed: Option<Error>,
}

impl<T: Element, D: Device> PageCopies<'_, T, D> {
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

impl<T: Element, D: Device> Iterator for PageCopies<'_, T, D> {
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

impl<T: Element, D: Device> DoubleEndedIterator for PageCopies<'_, T, D> {
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

impl<T: Element, D: Device> ExactSizeIterator for PageCopies<'_, T, D> {}
