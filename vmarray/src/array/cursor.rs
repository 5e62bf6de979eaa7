//! Cursors: loops over indices at nearly the speed of a slice.

use std::ops::Range;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::page_guard::{Cut, PageMut, PageRef, Visit};
use crate::base::element::Element;
use crate::base::error::{Result, index_outside};
use crate::setup::any::AnyDevice;

/// Reads elements by index and keeps the page used last, so that the next element of that page costs a
/// comparison and a load. While it lives, that page cannot be written to by others.
///
/// ```
/// # use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<u32>::new(1000)?;
/// array.fill(.., 2)?;
/// let mut cursor = array.cursor();
/// let mut sum = 0;
/// for i in 0..array.len() {
///     sum += cursor.get(i)?;
/// }
/// assert_eq!(sum, 2000);
/// // This thread would wait for itself.
/// assert!(array.set(999, 3).is_err());
/// cursor.release();
/// array.set(999, 3)?;
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct Cursor<'a, T: Element, D: Device = AnyDevice> {
    /// The page's first element, its index, and the number of elements; none if there is no page.
    address: *const T,
    first: usize,
    count: usize,
    array: &'a VirtualArray<T, D>,
    /// The range of the array that indices count in.
    of: Range<usize>,
    page: Option<PageRef<'a, T, D>>,
}

/// Reads and writes elements by index and keeps the page used last, exclusively. While it lives, that page
/// can be used by nobody else. Pages that are only read are not written back.
///
/// ```
/// # use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<u32>::new(1000)?;
/// let mut cursor = array.cursor_mut();
/// for i in 0..array.len() {
///     cursor.set(i, i as u32)?;
/// }
/// assert_eq!(cursor.get(77)?, 77);
/// // This thread would wait for itself.
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
    /// As `count`, once the page has been declared written to; until then none.
    writable: usize,
    array: &'a VirtualArray<T, D>,
    /// The range of the array that indices count in.
    of: Range<usize>,
    page: Option<PageMut<'a, T, D>>,
}

/// The part of a page that has the element of an index in a range.
fn cut_of<T: Element, D: Device>(array: &VirtualArray<T, D>, of: &Range<usize>, index: usize) -> Result<Cut> {
    if index >= of.len() {
        return Err(index_outside(index, of.len()));
    }
    array.cut(of, array.page_of(of.start + index) - array.page_of(of.start))
}

impl<'a, T: Element, D: Device> Cursor<'a, T, D> {
    pub(crate) fn new(array: &'a VirtualArray<T, D>, of: Range<usize>) -> Self {
        Self { address: std::ptr::null(), first: 0, count: 0, array, of, page: None }
    }

    /// Reads an element.
    ///
    /// # Errors
    /// As [`PagedView::page`](crate::PagedView::page); the page held before is let go in any case.
    #[inline]
    pub fn get(&mut self, index: usize) -> Result<T> {
        let at = index.wrapping_sub(self.first);
        if at < self.count {
            // SAFETY: inside of the page that `self.page` holds.
            return Ok(unsafe { *self.address.add(at) });
        }
        self.get_elsewhere(index)
    }

    #[cold]
    #[inline(never)]
    fn get_elsewhere(&mut self, index: usize) -> Result<T> {
        self.release();
        let cut = cut_of(self.array, &self.of, index)?;
        let page = self.array.visit(cut, Visit::Stay)?;
        self.first = page.range().start;
        self.count = page.len();
        self.address = page.address();
        let value = page[index - self.first];
        self.page = Some(page);
        Ok(value)
    }

    /// Lets the page go that is held, if any.
    pub fn release(&mut self) {
        self.count = 0;
        self.page = None;
    }
}

impl<'a, T: Element, D: Device> CursorMut<'a, T, D> {
    pub(crate) fn new(array: &'a VirtualArray<T, D>, of: Range<usize>) -> Self {
        Self { address: std::ptr::null_mut(), first: 0, count: 0, writable: 0, array, of, page: None }
    }

    /// Reads an element.
    ///
    /// # Errors
    /// As [`PagedViewMut::page_mut`](crate::PagedViewMut::page_mut); the page held before is let go in any
    /// case.
    #[inline]
    pub fn get(&mut self, index: usize) -> Result<T> {
        let at = index.wrapping_sub(self.first);
        if at < self.count {
            // SAFETY: inside of the page that `self.page` holds.
            return Ok(unsafe { *self.address.add(at) });
        }
        // SAFETY: the place is valid until the cursor moves.
        self.move_to(index).map(|at| unsafe { *at })
    }

    /// Writes an element.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[inline]
    pub fn set(&mut self, index: usize, value: T) -> Result<()> {
        let at = index.wrapping_sub(self.first);
        if at < self.writable {
            // SAFETY: inside of the page that `self.page` holds, which nobody else has.
            unsafe { *self.address.add(at) = value };
            return Ok(());
        }
        self.set_first(index, value)
    }

    /// Writes the first element of a page.
    #[cold]
    #[inline(never)]
    fn set_first(&mut self, index: usize, value: T) -> Result<()> {
        if index.wrapping_sub(self.first) >= self.count {
            self.move_to(index)?;
        }
        if let Some(page) = &mut self.page {
            // Declares the page written to; from now on it is written to by its address.
            page[index - self.first] = value;
            self.writable = self.count;
        }
        Ok(())
    }

    /// Takes the page of an element that is not in the one held; gives the element's place, to be read.
    #[cold]
    #[inline(never)]
    fn move_to(&mut self, index: usize) -> Result<*const T> {
        self.release();
        let cut = cut_of(self.array, &self.of, index)?;
        let page = self.array.visit_mut(cut, Visit::Stay)?;
        self.first = page.range().start;
        self.count = page.len();
        self.address = page.address();
        self.page = Some(page);
        // SAFETY: the page was looked up by the index.
        Ok(unsafe { self.address.add(index - self.first) }.cast_const())
    }

    /// Lets the page go that is held, if any.
    pub fn release(&mut self) {
        (self.count, self.writable) = (0, 0);
        self.page = None;
    }
}
