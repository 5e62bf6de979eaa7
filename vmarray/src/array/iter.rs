//! Iterators over elements and over pages.

use std::iter::FusedIterator;
use std::ops::Range;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::page_guard::{PageMut, PageRef, Visit};
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::setup::any::AnyDevice;

/// An iterator over the elements of a range, by value. Holds the page it is in; ends after the first error.
///
/// Internal iteration (`for_each`, `sum`, `fold`, …) runs over slices and is faster than a `for` loop.
///
/// ```
/// # use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<u32>::new(1000)?;
/// array.for_each_mut(.., |index, element| *element = index as u32)?;
/// for (index, element) in array.iter().enumerate() {
///     assert_eq!(element?, index as u32);
/// }
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct Iter<'a, T: Element, D: Device = AnyDevice> {
    /// The elements left of the page that is held.
    next: *const T,
    end: *const T,
    array: &'a VirtualArray<T, D>,
    page: Option<PageRef<'a, T, D>>,
    visit: Visit,
    /// What comes after that page.
    rest: Range<usize>,
}

/// An iterator over pages as shared guards.
///
/// ```
/// # use vmarray::prelude::*;
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

/// An iterator over pages as exclusive guards.
///
/// ```
/// # use vmarray::prelude::*;
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
    /// The elements of a range.
    pub(crate) fn iter_over(&self, rest: Range<usize>) -> Iter<'_, T, D> {
        let visit = self.scan(rest.len() / self.page_len());
        Iter { next: std::ptr::null(), end: std::ptr::null(), array: self, page: None, visit, rest }
    }

    /// The pages of a range.
    pub(crate) fn pages_of(&self, of: Range<usize>) -> Pages<'_, T, D> {
        let count = self.touched_pages(&of).count();
        Pages { array: self, of, pages: 0..count, visit: self.scan(count) }
    }

    /// The pages of a range, exclusively.
    pub(crate) fn pages_mut_of(&self, of: Range<usize>) -> PagesMut<'_, T, D> {
        let count = self.touched_pages(&of).count();
        PagesMut { array: self, of, pages: 0..count, visit: self.scan(count) }
    }
}

impl<'a, T: Element, D: Device> Iter<'a, T, D> {
    /// Gets hold of the next page. Nothing is left after an error.
    #[cold]
    fn turn(&mut self) -> Option<Result<PageRef<'a, T, D>, Error>> {
        self.page = None;
        if self.rest.is_empty() {
            return None;
        }
        let cut = self.array.cut(&self.rest, 0);
        let page = cut.and_then(|cut| self.array.visit(cut, self.visit));
        if page.is_err() {
            self.rest = 0..0;
        }
        Some(page)
    }
}

impl<T: Element, D: Device> Iterator for Iter<'_, T, D> {
    type Item = Result<T>;

    #[inline]
    fn next(&mut self) -> Option<Result<T>> {
        if self.next == self.end {
            let page = match self.turn()? {
                Ok(page) => page,
                Err(error) => return Some(Err(error)),
            };
            self.rest.start += page.len();
            self.next = page.address();
            // SAFETY: one past the part of the page.
            self.end = unsafe { self.next.add(page.len()) };
            self.page = Some(page);
        }
        // SAFETY: between the two bounds, in a page that `self.page` holds.
        let value = unsafe { *self.next };
        // SAFETY: at most one past the part.
        self.next = unsafe { self.next.add(1) };
        Some(Ok(value))
    }

    /// Passes over pages without fetching them.
    fn nth(&mut self, n: usize) -> Option<Result<T>> {
        let left = (self.end.addr() - self.next.addr()) / size_of::<T>();
        if n < left {
            // SAFETY: between the two bounds.
            self.next = unsafe { self.next.add(n) };
        } else {
            self.next = self.end;
            self.rest.start = self.rest.start.saturating_add(n - left).min(self.rest.end);
        }
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.end.addr() - self.next.addr()) / size_of::<T>() + self.rest.len();
        // An error may end it early.
        (usize::from(left > 0), Some(left))
    }

    fn fold<B, F: FnMut(B, Result<T>) -> B>(mut self, init: B, mut f: F) -> B {
        let mut sum = init;
        if self.page.is_some() {
            let left = (self.end.addr() - self.next.addr()) / size_of::<T>();
            // SAFETY: what is left of the page that `self.page` holds.
            let slice = unsafe { std::slice::from_raw_parts(self.next, left) };
            sum = slice.iter().fold(sum, |sum, value| f(sum, Ok(*value)));
        }
        while let Some(page) = self.turn() {
            match page {
                Ok(page) => {
                    self.rest.start += page.len();
                    sum = page.iter().fold(sum, |sum, value| f(sum, Ok(*value)));
                }
                Err(error) => return f(sum, Err(error)),
            }
        }
        sum
    }
}

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

        /// Pages that are passed over are not fetched.
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
