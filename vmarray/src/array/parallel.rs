//! Ranges of pages on rayon's threads.

use std::ops::Range;

use backend_api::Device;
use rayon::prelude::*;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
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

    /// Runs code on the slices of a range, page by page, to change them.
    pub(crate) fn par_change(
        &self,
        range: Range<usize>,
        run: impl Fn(usize, &mut [T]) + Send + Sync,
    ) -> Result<()> {
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
    pub(crate) fn par_elements(&self, range: Range<usize>) -> impl ParallelIterator<Item = Result<T>> + '_ {
        let pages = self.touched_pages(&range).into_par_iter();
        pages.flat_map_iter(move |page| {
            let all = self.page_range(page as usize);
            let part = all.start.max(range.start)..all.end.min(range.end);
            let values = zeroed_vec(part.len()).and_then(|mut values| {
                self.read_range(part.start, &mut values)?;
                Ok(values)
            });
            let (values, error) = match values {
                Ok(values) => (values, None),
                Err(error) => (Vec::new(), Some(Err(error))),
            };
            values.into_iter().map(Ok).chain(error)
        })
    }
}
