//! Cursors: loops over indices at nearly the speed of a slice.

use std::ops::Range;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::page_guard::{Cut, PageMut, PageRef, Visit};
use crate::base::element::Element;
use crate::base::error::{Result, index_outside};
use crate::setup::any::AnyDevice;

/// A cursor that reads elements by index. It holds the page of the last element, so that the next read from
/// this page costs a comparison and a load. While the cursor lives, other threads cannot write to the held
/// page.
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
    /// The address of the page's first element, its index, and the number of elements; zero without a page.
    address: *const T,
    first: usize,
    count: usize,
    /// On the heap, so that calls with it leave the other fields in registers.
    held: Box<Held<'a, T, D, PageRef<'a, T, D>>>,
}

/// A cursor that reads and writes elements by index. It holds the page of the last element exclusively. While
/// the cursor lives, no other thread can use the held page. Pages that the cursor only reads are not written
/// back.
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
    /// As `count` after the page was declared dirty; zero before.
    writable: usize,
    /// As of [`Cursor`].
    held: Box<Held<'a, T, D, PageMut<'a, T, D>>>,
}

/// The held page, and the array.
#[derive(Debug)]
struct Held<'a, T: Element, D: Device, P> {
    array: &'a VirtualArray<T, D>,
    /// The range of the array of the indices.
    of: Range<usize>,
    page: Option<P>,
}

impl<T: Element, D: Device, P> Held<'_, T, D, P> {
    /// The part of the page with the element of an index in the range.
    fn cut(&self, index: usize) -> Result<Cut> {
        let (array, of) = (self.array, &self.of);
        if index >= of.len() {
            return Err(index_outside(index, of.len()));
        }
        array.cut(of, array.page_of(of.start + index) - array.page_of(of.start))
    }
}

impl<'a, T: Element, D: Device> Held<'a, T, D, PageRef<'a, T, D>> {
    /// Releases the held page, and takes the page of an element. Returns the element's place, and the indices
    /// of the page.
    #[cold]
    #[inline(never)]
    fn turn_to(&mut self, index: usize) -> Result<(*mut T, Range<usize>)> {
        self.page = None;
        let page = self.page.insert(self.array.visit(self.cut(index)?, Visit::Stay)?);
        Ok((page.address().cast_mut(), page.range()))
    }
}

impl<'a, T: Element, D: Device> Held<'a, T, D, PageMut<'a, T, D>> {
    /// Releases the held page, and takes the page of an element. Returns the element's place, and the indices
    /// of the page.
    #[cold]
    #[inline(never)]
    fn turn_to(&mut self, index: usize) -> Result<(*mut T, Range<usize>)> {
        self.page = None;
        let page = self.page.insert(self.array.visit_mut(self.cut(index)?, Visit::Stay)?);
        Ok((page.address(), page.range()))
    }

    /// Declares the held page dirty; from now on writes use its address.
    #[cold]
    #[inline(never)]
    fn declare_written(&mut self) {
        if let Some(page) = &mut self.page {
            let _: &mut [T] = page;
        }
    }
}

impl<'a, T: Element, D: Device> Cursor<'a, T, D> {
    pub(crate) fn new(array: &'a VirtualArray<T, D>, of: Range<usize>) -> Self {
        Self { address: std::ptr::null(), first: 0, count: 0, held: Box::new(Held { array, of, page: None }) }
    }

    /// Reads an element.
    ///
    /// # Errors
    /// The errors of [`PagedView::page`](crate::views::PagedView::page); the cursor releases the previous
    /// page in any case.
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

    /// Releases the held page, if any.
    pub fn release(&mut self) {
        self.count = 0;
        self.held.page = None;
    }
}

impl<'a, T: Element, D: Device> CursorMut<'a, T, D> {
    pub(crate) fn new(array: &'a VirtualArray<T, D>, of: Range<usize>) -> Self {
        let held = Box::new(Held { array, of, page: None });
        Self { address: std::ptr::null_mut(), first: 0, count: 0, writable: 0, held }
    }

    /// Reads an element.
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

    /// Writes an element.
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

    /// Takes the page of an element outside the held page; returns the element's place in it.
    #[inline(always)]
    fn turn_to(&mut self, index: usize) -> Result<usize> {
        (self.count, self.writable) = (0, 0);
        let (address, range) = self.held.turn_to(index)?;
        (self.address, self.first, self.count) = (address, range.start, range.len());
        Ok(index - range.start)
    }

    /// Releases the held page, if any.
    pub fn release(&mut self) {
        (self.count, self.writable) = (0, 0);
        self.held.page = None;
    }
}
