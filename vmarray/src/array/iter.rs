//! Iterators over elements and over pages.

use std::iter::FusedIterator;
use std::ops::Range;
use std::ptr::NonNull;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::page_guard::{PageMut, PageRef, Visit};
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::setup::any::AnyDevice;

/// An iterator over the elements of a range, by value, from both ends. The iterator holds its current page.
///
/// Each item is one element, or an error. After an error the iterator does not retry: for each remaining
/// element outside of the held page, it returns the same error.
///
/// If a program alternates between both ends, each call releases the held page, and holds the page of the
/// other end.
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
    /// The rest of the held page: at the front, or at the back.
    front: Window<T>,
    back: Window<T>,
    /// On the heap, so that calls with it leave the two fields above in registers.
    rest: Box<Rest<'a, T, D>>,
}

/// Contiguous elements in a held page.
#[derive(Debug)]
struct Window<T> {
    next: *const T,
    end: *const T,
}

/// The held page, and the rest of the range beyond the part of that page.
#[derive(Debug)]
struct Rest<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    page: Option<PageRef<'a, T, D>>,
    visit: Visit,
    range: Range<usize>,
    /// The error of the rest of the range.
    failed: Option<Error>,
}

/// An end of a range.
#[derive(Clone, Copy, Debug)]
enum End {
    Front,
    Back,
}

/// An iterator over pages. Each item is a guard with shared access to a page.
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

/// An iterator over pages. Each item is a guard with exclusive access to a page.
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
    /// The elements of a range.
    pub(crate) fn iter_over(&self, range: Range<usize>) -> Iter<'_, T, D> {
        let visit = self.scan(range.len() / self.page_len());
        let rest = Box::new(Rest { array: self, page: None, visit, range, failed: None });
        Iter { front: Window::EMPTY, back: Window::EMPTY, rest }
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

impl<T> Clone for Window<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Window<T> {}

impl<T: Element> Window<T> {
    const EMPTY: Self = Self { next: NonNull::dangling().as_ptr(), end: NonNull::dangling().as_ptr() };

    #[inline(always)]
    fn is_empty(self) -> bool {
        self.next == self.end
    }

    #[inline(always)]
    fn len(self) -> usize {
        (self.end.addr() - self.next.addr()) / size_of::<T>()
    }

    /// Skips elements at an end, or all of them; returns the number of missing ones.
    fn skip(&mut self, end: End, count: usize) -> usize {
        let skipped = count.min(self.len());
        // SAFETY: that number of elements lies between the two bounds.
        unsafe {
            match end {
                End::Front => self.next = self.next.add(skipped),
                End::Back => self.end = self.end.sub(skipped),
            }
        }
        count - skipped
    }

    /// # Safety
    /// The page is held during the use of the slice.
    unsafe fn slice<'a>(self) -> &'a [T] {
        // SAFETY: the elements are contiguous, and have no writers while the page is held. Otherwise the
        // window has no elements.
        unsafe { std::slice::from_raw_parts(self.next, self.len()) }
    }
}

impl<T: Element, D: Device> Rest<'_, T, D> {
    /// Takes the page at an end after the previous page is used up. `other`, its rest at the other end,
    /// returns to the range first. An error stands for one element.
    #[cold]
    #[inline(never)]
    fn turn(&mut self, end: End, other: &mut Window<T>) -> Option<Result<Window<T>>> {
        if self.range.is_empty() {
            let left = std::mem::replace(other, Window::EMPTY);
            return (!left.is_empty()).then_some(Ok(left));
        }
        if self.failed.is_none() {
            // Empty the other window before any call that may panic, so that no code reads a released page.
            let left = std::mem::replace(other, Window::EMPTY).len();
            match end {
                End::Front => self.range.end += left,
                End::Back => self.range.start -= left,
            }
            self.page = None;
            let number = match end {
                End::Front => 0,
                End::Back => self.array.touched_pages(&self.range).count() - 1,
            };
            match self.array.cut(&self.range, number).and_then(|cut| self.array.visit(cut, self.visit)) {
                Ok(page) => {
                    let len = page.len();
                    self.skip(end, len);
                    let next = self.page.insert(page).address();
                    // SAFETY: the address is at most one past the part of the page.
                    return Some(Ok(Window { next, end: unsafe { next.add(len) } }));
                }
                Err(error) => self.failed = Some(error),
            }
        }
        self.skip(end, 1);
        self.failed.clone().map(Err)
    }

    /// Skips elements at an end, or all of them; returns the number of missing ones.
    fn skip(&mut self, end: End, count: usize) -> usize {
        let skipped = count.min(self.range.len());
        match end {
            End::Front => self.range.start += skipped,
            End::Back => self.range.end -= skipped,
        }
        count - skipped
    }
}

impl<T: Element, D: Device> Iterator for Iter<'_, T, D> {
    type Item = Result<T>;

    #[inline]
    fn next(&mut self) -> Option<Result<T>> {
        if self.front.is_empty() {
            match self.rest.turn(End::Front, &mut self.back)? {
                Ok(window) => self.front = window,
                Err(error) => return Some(Err(error)),
            }
        }
        // SAFETY: the address is between the two bounds, in the held page.
        let value = unsafe { *self.front.next };
        // SAFETY: the address is at most one past the part of the page.
        self.front.next = unsafe { self.front.next.add(1) };
        Some(Ok(value))
    }

    /// Skips pages without fetching them.
    fn nth(&mut self, n: usize) -> Option<Result<T>> {
        let n = self.front.skip(End::Front, n);
        let n = self.rest.skip(End::Front, n);
        self.back.skip(End::Front, n);
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.front.len() + self.rest.range.len() + self.back.len();
        (left, Some(left))
    }

    /// Fetches nothing.
    fn count(self) -> usize {
        self.len()
    }

    /// Fetches one page.
    fn last(mut self) -> Option<Result<T>> {
        self.next_back()
    }

    #[inline]
    fn fold<B, F: FnMut(B, Result<T>) -> B>(mut self, init: B, mut f: F) -> B {
        let mut sum = init;
        loop {
            // SAFETY: the page is held until `turn` is called.
            let slice = unsafe { self.front.slice() };
            sum = slice.iter().fold(sum, |sum, value| f(sum, Ok(*value)));
            self.front = Window::EMPTY;
            match self.rest.turn(End::Front, &mut self.back) {
                Some(Ok(window)) => self.front = window,
                Some(Err(error)) => sum = f(sum, Err(error)),
                None => return sum,
            }
        }
    }
}

impl<T: Element, D: Device> DoubleEndedIterator for Iter<'_, T, D> {
    #[inline]
    fn next_back(&mut self) -> Option<Result<T>> {
        if self.back.is_empty() {
            match self.rest.turn(End::Back, &mut self.front)? {
                Ok(window) => self.back = window,
                Err(error) => return Some(Err(error)),
            }
        }
        // SAFETY: the address is not before the first remaining element, in the held page.
        self.back.end = unsafe { self.back.end.sub(1) };
        // SAFETY: as above.
        Some(Ok(unsafe { *self.back.end }))
    }

    /// Skips pages without fetching them.
    fn nth_back(&mut self, n: usize) -> Option<Result<T>> {
        let n = self.back.skip(End::Back, n);
        let n = self.rest.skip(End::Back, n);
        self.front.skip(End::Back, n);
        self.next_back()
    }

    #[inline]
    fn rfold<B, F: FnMut(B, Result<T>) -> B>(mut self, init: B, mut f: F) -> B {
        let mut sum = init;
        loop {
            // SAFETY: the page is held until `turn` is called.
            let slice = unsafe { self.back.slice() };
            sum = slice.iter().rfold(sum, |sum, value| f(sum, Ok(*value)));
            self.back = Window::EMPTY;
            match self.rest.turn(End::Back, &mut self.front) {
                Some(Ok(window)) => self.back = window,
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

        /// Skipped pages are not fetched.
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
