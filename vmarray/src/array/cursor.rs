//! Cursors: loops over indices at nearly the speed of a slice.

use std::ops::Range;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::page_guard::{PageMut, PageRef};
use crate::array::page_window::PageWindow;
use crate::base::element::Element;
use crate::base::error::Result;
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
    page: PageWindow<'a, T, D, PageRef<'a, T, D>>,
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
    page: PageWindow<'a, T, D, PageMut<'a, T, D>>,
}

impl<'a, T: Element, D: Device> Cursor<'a, T, D> {
    pub(crate) fn new(array: &'a VirtualArray<T, D>, of: Range<usize>) -> Self {
        Self { page: PageWindow::new(array, of) }
    }

    /// Reads an element.
    ///
    /// # Errors
    /// The errors of [`PagedView::page`](crate::views::PagedView::page); the cursor releases the previous
    /// page in any case.
    #[inline]
    pub fn get(&mut self, index: usize) -> Result<T> {
        self.page.get(index)
    }

    /// Releases the held page, if any.
    pub fn release(&mut self) {
        self.page.release();
    }
}

impl<'a, T: Element, D: Device> CursorMut<'a, T, D> {
    pub(crate) fn new(array: &'a VirtualArray<T, D>, of: Range<usize>) -> Self {
        Self { page: PageWindow::new(array, of) }
    }

    /// Reads an element.
    ///
    /// # Errors
    /// The errors of [`PagedViewMut::page_mut`](crate::views::PagedViewMut::page_mut); the cursor releases
    /// the previous page in any case.
    #[inline]
    pub fn get(&mut self, index: usize) -> Result<T> {
        self.page.get(index)
    }

    /// Writes an element.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    #[inline]
    pub fn set(&mut self, index: usize, value: T) -> Result<()> {
        self.page.set(index, value)
    }

    /// Releases the held page, if any.
    pub fn release(&mut self) {
        self.page.release();
    }
}
