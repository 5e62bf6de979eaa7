//! Iterators over the elements and over the pages of an array.

use std::iter::FusedIterator;
use std::ops::Range;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::cursor::{End, PageEnds};
use crate::array::page_guard::{PageMut, PageRef, Visit};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::setup::any::AnyDevice;

/// An iterator over the elements of a range, by value, from both ends. It holds its current page.
///
/// Each item is one element, or an error. After an error the iterator does not retry: it returns the same
/// error for each remaining element outside of the held page.
///
/// If a program alternates between both ends, each call releases the held page and holds the page of the
/// other end, which is slow.
///
/// Internal iteration (`for_each`, `fold`, `rfold`, …) runs over slices, which the compiler vectorises; `for`
/// loops, and adapters that may end early, cost a comparison and a load for each element.
///
/// ```
/// use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<u32>::new(1000)?;
/// array.for_each_mut(.., |index, element| *element = index as u32)?;
/// for (index, element) in array.iter().enumerate() {
///     assert_eq!(element?, index as u32);
/// }
/// let mut iter = array.iter();
/// assert_eq!((iter.next().unwrap()?, iter.next_back().unwrap()?, iter.len()), (0, 999, 998));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct Iter<'a, T: Element, D: Device = AnyDevice> {
    rest: PageEnds<'a, T, D>,
}

/// An iterator over the pages of an array or section. Each item is a guard with shared access to a page.
///
/// ```
/// use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<u32>::builder(100).page_len(64).build()?;
/// let mut pages = array.pages();
/// assert_eq!(pages.next().unwrap()?.range(), 0..64);
/// assert_eq!(pages.next().unwrap()?.range(), 64..100);
/// assert!(pages.next().is_none());
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct Pages<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    of: Range<usize>,
    pages: Range<usize>,
    visit: Visit,
}

/// An iterator over the pages of an array or section. Each item is a guard with exclusive access to a page.
///
/// ```
/// use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<u32>::builder(100).page_len(64).build()?;
/// for (number, page) in array.pages_mut().enumerate() {
///     page?.fill(number as u32);
/// }
/// assert_eq!(array.to_vec(63..65)?, [0, 1]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct PagesMut<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    of: Range<usize>,
    pages: Range<usize>,
    visit: Visit,
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    pub(crate) fn iter_over(&self, range: Range<usize>) -> Iter<'_, T, D> {
        let visit = self.scan(range.len() / self.page_len());
        Iter { rest: PageEnds::new(self, range, visit) }
    }

    pub(crate) fn pages_of(&self, of: Range<usize>) -> Pages<'_, T, D> {
        let count = self.touched_pages(&of).count();
        Pages { array: self, of, pages: 0..count, visit: self.scan(count) }
    }

    /// Iterates over the pages of a range, with exclusive guards.
    pub(crate) fn pages_mut_of(&self, of: Range<usize>) -> PagesMut<'_, T, D> {
        let count = self.touched_pages(&of).count();
        PagesMut { array: self, of, pages: 0..count, visit: self.scan(count) }
    }
}

impl<T: Element, D: Device> Iterator for Iter<'_, T, D> {
    type Item = Result<T>;

    #[inline]
    fn next(&mut self) -> Option<Result<T>> {
        self.rest.next()
    }

    /// Skips pages without fetching them.
    fn nth(&mut self, n: usize) -> Option<Result<T>> {
        self.rest.skip(End::Front, n);
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.rest.len(), Some(self.rest.len()))
    }

    /// Counts pages without fetching them.
    fn count(self) -> usize {
        self.len()
    }

    /// Fetches only the last page.
    fn last(mut self) -> Option<Result<T>> {
        self.next_back()
    }

    #[inline]
    fn fold<B, F: FnMut(B, Result<T>) -> B>(mut self, init: B, mut f: F) -> B {
        let mut sum = init;
        loop {
            sum = self.rest.front().iter().fold(sum, |sum, value| f(sum, Ok(*value)));
            match self.rest.turn(End::Front) {
                Some(Ok(())) => {}
                Some(Err(error)) => sum = f(sum, Err(error)),
                None => return sum,
            }
        }
    }
}

impl<T: Element, D: Device> DoubleEndedIterator for Iter<'_, T, D> {
    #[inline]
    fn next_back(&mut self) -> Option<Result<T>> {
        self.rest.next_back()
    }

    /// Skips pages without fetching them.
    fn nth_back(&mut self, n: usize) -> Option<Result<T>> {
        self.rest.skip(End::Back, n);
        self.next_back()
    }

    #[inline]
    fn rfold<B, F: FnMut(B, Result<T>) -> B>(mut self, init: B, mut f: F) -> B {
        let mut sum = init;
        loop {
            sum = self.rest.back().iter().rfold(sum, |sum, value| f(sum, Ok(*value)));
            match self.rest.turn(End::Back) {
                Some(Ok(())) => {}
                Some(Err(error)) => sum = f(sum, Err(error)),
                None => return sum,
            }
        }
    }
}

impl<T: Element, D: Device> ExactSizeIterator for Iter<'_, T, D> {}
impl<T: Element, D: Device> FusedIterator for Iter<'_, T, D> {}

impl<'a, T: Element, D: Device> IntoIterator for &'a VirtualArray<T, D> {
    type Item = Result<T>;
    type IntoIter = Iter<'a, T, D>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_over(0..self.len())
    }
}

macro_rules! pages {
    ($Pages:ident, $Guard:ident, $visit:ident) => {
        impl<'a, T: Element, D: Device> $Pages<'a, T, D> {
            fn lend(&self, page: usize) -> Result<$Guard<'a, T, D>> {
                self.array.$visit(self.array.cut(&self.of, page)?, self.visit)
            }
        }

        /// Skips pages without fetching them.
        impl<'a, T: Element, D: Device> Iterator for $Pages<'a, T, D> {
            type Item = Result<$Guard<'a, T, D>>;

            fn next(&mut self) -> Option<Self::Item> {
                self.nth(0)
            }

            fn nth(&mut self, n: usize) -> Option<Self::Item> {
                self.pages.nth(n).map(|page| self.lend(page))
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                self.pages.size_hint()
            }
        }

        impl<T: Element, D: Device> DoubleEndedIterator for $Pages<'_, T, D> {
            fn next_back(&mut self) -> Option<Self::Item> {
                self.nth_back(0)
            }

            fn nth_back(&mut self, n: usize) -> Option<Self::Item> {
                self.pages.nth_back(n).map(|page| self.lend(page))
            }
        }

        impl<T: Element, D: Device> ExactSizeIterator for $Pages<'_, T, D> {}
        impl<T: Element, D: Device> FusedIterator for $Pages<'_, T, D> {}
    };
}

pages!(Pages, PageRef, visit);
pages!(PagesMut, PageMut, visit_mut);
