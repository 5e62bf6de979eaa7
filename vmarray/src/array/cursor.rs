//! Cursors and iterators over elements. They hold one page at a time, and move over the page's elements by
//! raw pointers, which the compiler keeps in registers.
//!
//! A cursor or an iterator owns the guard of its page in a `Box`. If the guard were a field, calls that
//! borrow it would force the pointers next to it into memory. The pointers become invalid with the guard, so
//! the cursor clears them before it drops the guard.

use std::ops::Range;
use std::ptr::NonNull;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::page_guard::{Cut, PageMut, PageRef, Visit};
use crate::base::element::Element;
use crate::base::error::{Error, Result, index_outside};
use crate::setup::any::AnyDevice;

/// A pointer range over consecutive elements of the held page that an iterator has not used yet.
#[derive(Debug)]
struct ElementWindow<T> {
    next: *const T,
    end: *const T,
}

/// One end of an iterator's range.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Front,
    Back,
}

/// The unused elements of a range, for an iterator that takes them from both ends.
#[derive(Debug)]
pub(super) struct PageEnds<'a, T: Element, D: Device> {
    /// The unused elements of the held page. Only one of `front` and `back` is not empty.
    front: ElementWindow<T>,
    back: ElementWindow<T>,
    rest: Box<RangeRest<'a, T, D>>,
}

/// The guard of the held page, and the part of the range outside of this page.
#[derive(Debug)]
struct RangeRest<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    page: Option<PageRef<'a, T, D>>,
    visit: Visit,
    range: Range<usize>,
    /// The error that the rest of the range returns.
    failed: Option<Error>,
}

/// A cursor that reads elements by index. It holds the page of the last element that it has read. So the next
/// read from this page costs a comparison and a load. Meanwhile, other threads cannot write to this page.
///
/// ```
/// use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<u32>::new(1000)?;
/// array.fill(.., 2)?;
/// let mut cursor = array.cursor();
/// let mut sum = 0;
/// for i in 0..array.len() {
///     sum += cursor.get(i)?;
/// }
/// assert_eq!(sum, 2000);
/// // This thread would deadlock with itself.
/// assert!(array.set(999, 3).is_err());
/// cursor.release();
/// array.set(999, 3)?;
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct Cursor<'a, T: Element, D: Device = AnyDevice> {
    /// The address of the held page's first element, its index, and the number of elements; 0 without a page.
    address: *const T,
    first: usize,
    count: usize,
    /// The guard of the held page. On the heap, so that calls with it leave the other fields in registers.
    held: Box<CursorPage<'a, T, D, PageRef<'a, T, D>>>,
}

/// A cursor that reads and writes elements by index. It exclusively holds the page of the last element that
/// it has accessed. While the cursor lives, no other thread can use the held page. The array does not write
/// back pages that the cursor only reads.
///
/// ```
/// use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<u32>::new(1000)?;
/// let mut cursor = array.cursor_mut();
/// for i in 0..array.len() {
///     cursor.set(i, i as u32)?;
/// }
/// assert_eq!(cursor.get(77)?, 77);
/// // This thread would deadlock with itself.
/// assert!(array.get(77).is_err());
/// cursor.release();
/// assert_eq!(array.get(999)?, 999);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct CursorMut<'a, T: Element, D: Device = AnyDevice> {
    address: *mut T,
    first: usize,
    count: usize,
    /// Equals `count` after the cursor has declared the page dirty; zero before.
    writable: usize,
    /// As in [`Cursor`].
    held: Box<CursorPage<'a, T, D, PageMut<'a, T, D>>>,
}

/// The guard of the held page, and the array of the cursor.
#[derive(Debug)]
struct CursorPage<'a, T: Element, D: Device, P> {
    array: &'a VirtualArray<T, D>,
    /// The range of the array to which the cursor's indices refer.
    of: Range<usize>,
    page: Option<P>,
}

impl<T> Clone for ElementWindow<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ElementWindow<T> {}

impl<T: Element> ElementWindow<T> {
    const EMPTY: Self = Self { next: NonNull::dangling().as_ptr(), end: NonNull::dangling().as_ptr() };

    #[inline(always)]
    fn is_empty(self) -> bool {
        self.next == self.end
    }

    #[inline(always)]
    fn len(self) -> usize {
        (self.end.addr() - self.next.addr()) / size_of::<T>()
    }

    /// Skips `count` elements at an end, or all if there are fewer; returns the number of missing ones.
    fn skip(&mut self, end: End, count: usize) -> usize {
        let skipped = count.min(self.len());
        match end {
            End::Front => self.next = self.next.wrapping_add(skipped),
            End::Back => self.end = self.end.wrapping_sub(skipped),
        }
        count - skipped
    }

    /// # Safety
    /// The caller holds the page while it uses the slice.
    #[inline(always)]
    unsafe fn slice<'a>(self) -> &'a [T] {
        // SAFETY: the elements are contiguous, and have no writers while the page is held. Otherwise the
        // window has no elements.
        unsafe { std::slice::from_raw_parts(self.next, self.len()) }
    }
}

impl<'a, T: Element, D: Device> PageEnds<'a, T, D> {
    pub(super) fn new(array: &'a VirtualArray<T, D>, range: Range<usize>, visit: Visit) -> Self {
        let rest = Box::new(RangeRest { array, page: None, visit, range, failed: None });
        Self { front: ElementWindow::EMPTY, back: ElementWindow::EMPTY, rest }
    }

    pub(super) fn len(&self) -> usize {
        self.front.len() + self.rest.range.len() + self.back.len()
    }

    /// Returns the next element at the front.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<Result<T>> {
        if self.front.is_empty() {
            match self.rest.turn(End::Front, &mut self.back)? {
                Ok(window) => self.front = window,
                Err(error) => return Some(Err(error)),
            }
        }
        // SAFETY: the address is between the two bounds, in the held page. The window of a new page has
        // elements.
        let value = unsafe { *self.front.next };
        self.front.next = self.front.next.wrapping_add(1);
        Some(Ok(value))
    }

    /// Returns the next element at the back.
    #[inline(always)]
    pub(super) fn next_back(&mut self) -> Option<Result<T>> {
        if self.back.is_empty() {
            match self.rest.turn(End::Back, &mut self.front)? {
                Ok(window) => self.back = window,
                Err(error) => return Some(Err(error)),
            }
        }
        self.back.end = self.back.end.wrapping_sub(1);
        // SAFETY: the address is not before the first remaining element, in the held page.
        Some(Ok(unsafe { *self.back.end }))
    }

    /// Returns the unused elements of the held page, if the front end is in this page.
    #[inline(always)]
    pub(super) fn front(&self) -> &[T] {
        // SAFETY: the page is held until a call of `turn`, which borrows this value exclusively.
        unsafe { self.front.slice() }
    }

    /// Returns the unused elements of the held page, if the back end is in this page.
    #[inline(always)]
    pub(super) fn back(&self) -> &[T] {
        // SAFETY: as in `front`.
        unsafe { self.back.slice() }
    }

    /// Takes the next page at an end, after all elements of the held page there are used. Returns `None` at
    /// the end of the range. An error counts as one element.
    #[inline(always)]
    pub(super) fn turn(&mut self, end: End) -> Option<Result<()>> {
        let (own, other) = match end {
            End::Front => (&mut self.front, &mut self.back),
            End::Back => (&mut self.back, &mut self.front),
        };
        *own = ElementWindow::EMPTY;
        match self.rest.turn(end, other)? {
            Ok(window) => {
                *own = window;
                Some(Ok(()))
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Skips `count` elements at an end, without fetching their pages.
    pub(super) fn skip(&mut self, end: End, count: usize) {
        let (own, other) = match end {
            End::Front => (&mut self.front, &mut self.back),
            End::Back => (&mut self.back, &mut self.front),
        };
        let count = own.skip(end, count);
        let count = self.rest.skip(end, count);
        other.skip(end, count);
    }
}

impl<T: Element, D: Device> RangeRest<'_, T, D> {
    /// Takes the next page at an end. First returns `other`, the unused elements of the held page at the
    /// other end, to the range. An error counts as one element.
    #[cold]
    #[inline(never)]
    fn turn(&mut self, end: End, other: &mut ElementWindow<T>) -> Option<Result<ElementWindow<T>>> {
        if self.range.is_empty() {
            let left = std::mem::replace(other, ElementWindow::EMPTY);
            return (!left.is_empty()).then_some(Ok(left));
        }
        if self.failed.is_none() {
            // Empty the other end's window (elements left in its page) before any call that may panic, so
            // that no code reads a released page.
            let left = std::mem::replace(other, ElementWindow::EMPTY).len();
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
                    assert!(len > 0, "a page that the range overlaps must contain an element of the range");
                    self.skip(end, len);
                    let next = self.page.insert(page).address();
                    return Some(Ok(ElementWindow { next, end: next.wrapping_add(len) }));
                }
                Err(error) => self.failed = Some(error),
            }
        }
        self.skip(end, 1);
        self.failed.clone().map(Err)
    }

    /// Skips `count` elements at an end, or all if there are fewer; returns the number of missing ones.
    fn skip(&mut self, end: End, count: usize) -> usize {
        let skipped = count.min(self.range.len());
        match end {
            End::Front => self.range.start += skipped,
            End::Back => self.range.end -= skipped,
        }
        count - skipped
    }
}

impl<'a, T: Element, D: Device> Cursor<'a, T, D> {
    pub(crate) fn new(array: &'a VirtualArray<T, D>, of: Range<usize>) -> Self {
        Self {
            address: std::ptr::null(),
            first: 0,
            count: 0,
            held: Box::new(CursorPage { array, of, page: None }),
        }
    }

    /// Reads the element at `index`. The cursor then holds the element's page.
    ///
    /// # Errors
    /// The errors of [`PagedView::page`](crate::views::PagedView::page); the cursor releases the old page
    /// anyway.
    #[inline]
    pub fn get(&mut self, index: usize) -> Result<T> {
        let mut at = index.wrapping_sub(self.first);
        if at >= self.count {
            self.count = 0;
            let (address, range) = self.held.turn_to(index)?;
            (self.address, self.first, self.count) = (address, range.start, range.len());
            at = index - range.start;
        }
        // SAFETY: within the held page.
        Ok(unsafe { *self.address.add(at) })
    }

    /// Releases the page that the cursor holds, if any.
    pub fn release(&mut self) {
        self.count = 0;
        self.held.page = None;
    }
}

impl<'a, T: Element, D: Device> CursorMut<'a, T, D> {
    pub(crate) fn new(array: &'a VirtualArray<T, D>, of: Range<usize>) -> Self {
        let held = Box::new(CursorPage { array, of, page: None });
        Self { address: std::ptr::null_mut(), first: 0, count: 0, writable: 0, held }
    }

    /// Reads the element at `index`. The cursor then holds the element's page.
    ///
    /// # Errors
    /// The errors of [`PagedViewMut::page_mut`](crate::views::PagedViewMut::page_mut); the cursor releases
    /// the previous page in any case.
    #[inline]
    pub fn get(&mut self, index: usize) -> Result<T> {
        let mut at = index.wrapping_sub(self.first);
        if at >= self.count {
            at = self.turn_to(index)?;
        }
        // SAFETY: within the held page.
        Ok(unsafe { *self.address.add(at) })
    }

    /// Writes the element at `index`. The cursor then holds the element's page.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    #[inline]
    pub fn set(&mut self, index: usize, value: T) -> Result<()> {
        let mut at = index.wrapping_sub(self.first);
        if at >= self.writable {
            if at >= self.count {
                at = self.turn_to(index)?;
            }
            self.held.declare_written();
            self.writable = self.count;
        }
        // SAFETY: within the held page, which is exclusive.
        unsafe { *self.address.add(at) = value };
        Ok(())
    }

    /// Takes the page of an element outside of the held page; returns the element's offset in it.
    #[inline(always)]
    fn turn_to(&mut self, index: usize) -> Result<usize> {
        (self.count, self.writable) = (0, 0);
        let (address, range) = self.held.turn_to(index)?;
        (self.address, self.first, self.count) = (address, range.start, range.len());
        Ok(index - range.start)
    }

    /// Releases the page that the cursor holds, if any.
    pub fn release(&mut self) {
        (self.count, self.writable) = (0, 0);
        self.held.page = None;
    }
}

impl<T: Element, D: Device, P> CursorPage<'_, T, D, P> {
    /// Returns the part of the page that contains the element at an index of the cursor's range.
    fn cut(&self, index: usize) -> Result<Cut> {
        let (array, of) = (self.array, &self.of);
        if index >= of.len() {
            return Err(index_outside(index, of.len()));
        }
        array.cut(of, array.page_of(of.start + index) - array.page_of(of.start))
    }
}

impl<'a, T: Element, D: Device> CursorPage<'a, T, D, PageRef<'a, T, D>> {
    /// Releases the held page, and takes the page of an element. Returns the address of the page's first
    /// element, and the range of the page's indices.
    #[cold]
    #[inline(never)]
    fn turn_to(&mut self, index: usize) -> Result<(*mut T, Range<usize>)> {
        self.page = None;
        let page = self.page.insert(self.array.visit(self.cut(index)?, Visit::Stay)?);
        assert!(page.range().contains(&index), "the guarded page must contain the cursor's element");
        Ok((page.address().cast_mut(), page.range()))
    }
}

impl<'a, T: Element, D: Device> CursorPage<'a, T, D, PageMut<'a, T, D>> {
    /// As for shared pages.
    #[cold]
    #[inline(never)]
    fn turn_to(&mut self, index: usize) -> Result<(*mut T, Range<usize>)> {
        self.page = None;
        let page = self.page.insert(self.array.visit_mut(self.cut(index)?, Visit::Stay)?);
        assert!(page.range().contains(&index), "the guarded page must contain the cursor's element");
        Ok((page.address(), page.range()))
    }

    /// Declares the held page dirty. From now on, writes need no further check.
    #[cold]
    #[inline(never)]
    fn declare_written(&mut self) {
        if let Some(page) = &mut self.page {
            let _: &mut [T] = page;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backend_host::HostDevice;

    use super::*;
    use crate::array::testing::host;
    use crate::ops::view::ViewMut as _;

    /// Pages of 4 elements, each with its index.
    fn array() -> VirtualArray<u64, HostDevice> {
        let array = VirtualArray::<u64>::builder(10).page_len(4).devices([Arc::new(host())]).build().unwrap();
        array.write(0, &(0..10).collect::<Vec<_>>()).unwrap();
        array
    }

    #[test]
    fn both_ends_of_a_range_take_each_element_once() {
        let array = array();
        let mut ends = PageEnds::new(&array, 1..10, Visit::Stay);
        assert!(ends.front().is_empty() && ends.len() == 9);
        assert_eq!(ends.next().unwrap().unwrap(), 1);
        assert_eq!((ends.front(), ends.back().len()), (&[2, 3][..], 0));
        // The other end takes its page, and the front forgets its elements.
        assert_eq!(ends.next_back().unwrap().unwrap(), 9);
        assert_eq!((ends.front().len(), ends.back()), (0, &[8][..]));
        ends.skip(End::Back, 2);
        assert!(ends.back().is_empty() && ends.len() == 5);
        ends.turn(End::Back).unwrap().unwrap();
        ends.skip(End::Front, 3);
        assert_eq!((ends.back(), ends.len()), (&[5, 6][..], 2));
        // The front gets the rest of the page that is held for the back.
        assert_eq!(ends.next().unwrap().unwrap(), 5);
        assert_eq!((ends.front(), ends.back().len()), (&[6][..], 0));
        assert_eq!(ends.next_back().unwrap().unwrap(), 6);
        assert!(ends.next().is_none() && ends.next_back().is_none() && ends.turn(End::Front).is_none());
    }

    #[test]
    fn cursors_have_the_elements_of_the_held_page() {
        let array = array();
        let mut shared = Cursor::new(&array, 2..10);
        for index in [1, 5, 2, 7] {
            assert_eq!(shared.get(index).unwrap(), index as u64 + 2);
        }
        assert!(shared.get(8).is_err() && shared.get(usize::MAX).is_err());
        assert_eq!(shared.get(0).unwrap(), 2);
        shared.release();
        drop(shared);
        let mut exclusive = CursorMut::new(&array, 0..10);
        assert!(exclusive.get(10).is_err() && exclusive.set(10, 70).is_err());
        assert_eq!(exclusive.get(8).unwrap(), 8);
        exclusive.set(9, 70).unwrap();
        assert_eq!((exclusive.get(8).unwrap(), exclusive.get(9).unwrap()), (8, 70));
        exclusive.set(0, 71).unwrap();
        exclusive.release();
        assert_eq!([0, 1, 9].map(|index| array.get(index).unwrap()), [71, 1, 70]);
    }
}
