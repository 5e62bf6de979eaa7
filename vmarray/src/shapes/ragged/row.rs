//! [`RaggedRow`]: a view of one row of a ragged array, and iteration over rows.

use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;

use backend_api::Device;

use super::{CHUNK, Items, Ragged};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::ops::sealed::{Internal, Sealed};
use crate::ops::view::{Linear, Section, SectionMut, Shape as _, View, ViewMut};
use crate::setup::any::AnyDevice;

/// One row of a [`Ragged`]. A row of a [`RaggedArray`](crate::RaggedArray) is a [`View`] and a [`ViewMut`],
/// with all of their operations.
///
/// ```
/// use vmarray::prelude::*;
/// let rows = vmarray::RaggedArray::<u8>::builder().from_rows(["so", "many"])?;
/// let row = rows.row(1)?;
/// assert_eq!((row.len(), row.range(), row.get(0)?), (4, 2..6, b'm'));
/// assert_eq!(row.section(1..3)?.to_vec(..)?, b"an");
/// assert_eq!(row.max(.., Field::whole())?, Some(b'y'));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct RaggedRow<'a, S> {
    items: &'a S,
    shape: Linear,
}

impl<'a, S: Items> RaggedRow<'a, S> {
    pub(super) fn new(items: &'a S, range: Range<usize>) -> Self {
        Self { items, shape: Linear { start: range.start, len: range.len() } }
    }

    /// Returns the range of indices of the row's items among the items of all rows.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.shape.range()
    }
}

impl<T: Element, D: Device> Sealed for RaggedRow<'_, VirtualArray<T, D>> {}

impl<'a, T: Element, D: Device> View<'a> for RaggedRow<'a, VirtualArray<T, D>> {
    type Element = T;
    type Index = usize;
    type Store = VirtualArray<T, D>;
    type Shape = Linear;
    type Section = Section<'a, Self::Store>;

    fn parts(self) -> (&'a Self::Store, Linear) {
        (self.items, self.shape)
    }

    fn of_parts(store: &'a Self::Store, shape: Linear, _: Internal) -> Self::Section {
        Section::new(store, shape)
    }
}

impl<'a, T: Element, D: Device> ViewMut<'a> for RaggedRow<'a, VirtualArray<T, D>> {
    type SectionMut = SectionMut<'a, Self::Store>;

    fn of_parts_mut(store: &'a Self::Store, shape: Linear, _: Internal) -> Self::SectionMut {
        Section::new(store, shape)
    }
}

impl<'a, S: Items, D: Device> RaggedRow<'a, Ragged<S, D>> {
    /// Returns an inner row, if the items of this row are rows; `row` counts from the start of this row.
    ///
    /// # Errors
    /// [`RowOutside`](ErrorKind::RowOutside), with row numbers relative to this row, and errors of
    /// [`VirtualArray::get`].
    ///
    /// ```
    /// use vmarray::{prelude::*, ragged::Ragged};
    /// let words = RaggedArray::<u8>::builder().from_rows(["so", "many", "words"])?;
    /// let lines = Ragged::new(words, [1, 2], VirtualArray::builder(0))?;
    /// assert_eq!(lines.row(1)?.row(0)?.to_vec(..)?, b"many");
    /// let lengths = lines.row(1)?.rows().map(|word| Ok(word?.len())).collect::<vmarray::Result<Vec<_>>>()?;
    /// assert_eq!(lengths, [4, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn row(&self, row: usize) -> Result<RaggedRow<'a, S>> {
        let outside = |_| ErrorKind::RowOutside { row, rows: self.shape.len };
        self.items.row(self.shape.place(row).map_err(outside)?)
    }

    /// Iterates over the inner rows of this row, in order.
    #[must_use]
    pub fn rows(&self) -> RowIter<'a, S, D> {
        RowIter::new(self.items, self.shape.range())
    }
}

impl<S: Items, D: Device> Ragged<S, D> {
    /// Returns the row at an index, after a read of two adjacent offsets.
    ///
    /// # Errors
    /// [`RowOutside`](ErrorKind::RowOutside), and errors of [`VirtualArray::get`].
    pub fn row(&self, row: usize) -> Result<RaggedRow<'_, S>> {
        if row >= self.rows {
            return Err(ErrorKind::RowOutside { row, rows: self.rows }.into());
        }
        let mut ends = [0; 2];
        self.offsets.read_range(row, &mut ends)?;
        let range = self.checked(ends[0], ends[1])?;
        Ok(RaggedRow::new(&self.items, range))
    }

    /// Iterates over all rows, in order. It copies some thousand offsets at a time, and holds no lock.
    #[must_use]
    pub fn rows(&self) -> RowIter<'_, S, D> {
        RowIter::new(self, 0..self.rows)
    }
}

impl<'a, S: Items, D: Device> IntoIterator for &'a Ragged<S, D> {
    type Item = Result<RaggedRow<'a, S>>;
    type IntoIter = RowIter<'a, S, D>;

    fn into_iter(self) -> RowIter<'a, S, D> {
        self.rows()
    }
}

impl<S> Clone for RaggedRow<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for RaggedRow<'_, S> {}

impl<S> fmt::Debug for RaggedRow<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaggedRow").field("range", &self.shape.range()).finish_non_exhaustive()
    }
}

/// An iterator over the rows of a ragged array. It ends after the first error.
///
/// ```
/// use vmarray::prelude::*;
/// let rows = vmarray::RaggedArray::<u8>::builder().from_rows(["so", "many"])?;
/// let mut iter = rows.rows();
/// assert_eq!(iter.len(), 2);
/// assert_eq!(iter.nth(1).unwrap()?.to_vec(..)?, b"many");
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct RowIter<'a, S, D: Device = AnyDevice> {
    of: &'a Ragged<S, D>,
    rows: Range<usize>,
    /// The offsets of the next rows, which were read in advance.
    offsets: VecDeque<u64>,
}

impl<'a, S: Items, D: Device> RowIter<'a, S, D> {
    pub(super) fn new(of: &'a Ragged<S, D>, rows: Range<usize>) -> Self {
        Self { of, rows, offsets: VecDeque::new() }
    }

    fn read(&mut self) -> Result<()> {
        let end = self.rows.end.min(self.rows.start.saturating_add(CHUNK));
        self.offsets = self.of.offsets.to_vec(self.rows.start..=end)?.into();
        Ok(())
    }
}

impl<'a, S: Items, D: Device> Iterator for RowIter<'a, S, D> {
    type Item = Result<RaggedRow<'a, S>>;

    fn next(&mut self) -> Option<Result<RaggedRow<'a, S>>> {
        if self.rows.is_empty() {
            return None;
        }
        if self.offsets.len() < 2
            && let Err(error) = self.read()
        {
            self.rows = 0..0;
            return Some(Err(error));
        }
        self.rows.start += 1;
        let range = self.of.checked(self.offsets.pop_front()?, *self.offsets.front()?);
        if range.is_err() {
            self.rows = 0..0;
        }
        Some(range.map(|range| RaggedRow::new(&self.of.items, range)))
    }

    fn nth(&mut self, n: usize) -> Option<Self::Item> {
        let skipped = n.min(self.rows.len());
        self.rows.start += skipped;
        self.offsets.drain(..skipped.min(self.offsets.len()));
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rows.size_hint()
    }
}

impl<S: Items, D: Device> ExactSizeIterator for RowIter<'_, S, D> {}

impl<S: Items, D: Device> FusedIterator for RowIter<'_, S, D> {}

impl<S, D: Device> fmt::Debug for RowIter<'_, S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("rows", &self.rows).finish_non_exhaustive()
    }
}
