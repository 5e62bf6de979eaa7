//! Cursors over sections.

use backend_api::Device;

use super::{Section, SectionMut};
use crate::array::cursor::{Cursor, CursorMut};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::setup::any::AnyDevice;

/// A [`Cursor`] whose indices count from a section's start.
///
/// ```
/// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
/// array.fill(100..200, 2)?;
/// let section = array.section(150..)?;
/// let mut cursor: vmarray::SectionCursor<'_, u32> = section.cursor();
/// let mut sum = 0;
/// for i in 0..section.len() {
///     sum += cursor.get(i)?;
/// }
/// assert_eq!(sum, 100);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct SectionCursor<'a, T: Element, D: Device = AnyDevice> {
    cursor: Cursor<'a, T, D>,
    section: Section<'a, T, D>,
}

/// A [`CursorMut`] whose indices count from a section's start.
///
/// ```
/// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
/// let section = array.section_mut(100..200)?;
/// let mut cursor: vmarray::SectionCursorMut<'_, u32> = section.cursor_mut();
/// for i in 0..section.len() {
///     cursor.set(i, i as u32)?;
/// }
/// drop(cursor);
/// assert_eq!(array.get(142)?, 42);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct SectionCursorMut<'a, T: Element, D: Device = AnyDevice> {
    cursor: CursorMut<'a, T, D>,
    section: Section<'a, T, D>,
}

impl<'a, T: Element, D: Device> Section<'a, T, D> {
    /// A cursor for reading, which holds no page yet: [`VirtualArray::cursor`](crate::VirtualArray::cursor).
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// assert_eq!(array.section(100..)?.cursor().get(3)?, 0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn cursor(&self) -> SectionCursor<'a, T, D> {
        SectionCursor { cursor: self.array.cursor(), section: *self }
    }
}

impl<'a, T: Element, D: Device> SectionMut<'a, T, D> {
    /// A cursor for reading and writing, which holds no page yet:
    /// [`VirtualArray::cursor_mut`](crate::VirtualArray::cursor_mut).
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.section_mut(100..)?.cursor_mut().set(3, 7)?;
    /// assert_eq!(array.get(103)?, 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn cursor_mut(&self) -> SectionCursorMut<'a, T, D> {
        SectionCursorMut { cursor: self.section.array.cursor_mut(), section: self.section }
    }
}

impl<T: Element, D: Device> SectionCursor<'_, T, D> {
    /// Reads an element: [`Cursor::get`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// assert!(array.section(100..200)?.cursor().get(100).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[inline]
    pub fn get(&mut self, index: usize) -> Result<T> {
        match self.section.outer(index) {
            Ok(index) => self.cursor.get(index),
            Err(error) => {
                self.release();
                Err(error)
            }
        }
    }

    /// Lets the page go that is held, if any: [`Cursor::release`].
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// let mut cursor = array.section(100..)?.cursor();
    /// cursor.get(0)?;
    /// cursor.release();
    /// array.set(100, 1)?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn release(&mut self) {
        self.cursor.release();
    }
}

impl<T: Element, D: Device> SectionCursorMut<'_, T, D> {
    /// Reads an element: [`CursorMut::get`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// assert_eq!(array.section_mut(100..)?.cursor_mut().get(3)?, 0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[inline]
    pub fn get(&mut self, index: usize) -> Result<T> {
        match self.section.outer(index) {
            Ok(index) => self.cursor.get(index),
            Err(error) => {
                self.release();
                Err(error)
            }
        }
    }

    /// Writes an element: [`CursorMut::set`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// let section = array.section_mut(100..200)?;
    /// let mut cursor = section.cursor_mut();
    /// cursor.set(99, 1)?;
    /// assert!(cursor.set(100, 1).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[inline]
    pub fn set(&mut self, index: usize, value: T) -> Result<()> {
        match self.section.outer(index) {
            Ok(index) => self.cursor.set(index, value),
            Err(error) => {
                self.release();
                Err(error)
            }
        }
    }

    /// Lets the page go that is held, if any: [`CursorMut::release`].
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// let mut cursor = array.section_mut(100..)?.cursor_mut();
    /// cursor.set(0, 1)?;
    /// cursor.release();
    /// assert_eq!(array.get(100)?, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn release(&mut self) {
        self.cursor.release();
    }
}
