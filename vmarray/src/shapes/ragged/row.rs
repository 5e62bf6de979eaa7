//! Rows, and iteration over them.

use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::{Range, RangeBounds};

use backend_api::Device;

use super::{CHUNK, Items, Ragged};
use crate::array::VirtualArray;
use crate::array::iter::Iter;
use crate::array::map::MapMode;
use crate::array::range::checked as checked_range;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result, index_outside};
use crate::setup::any::AnyDevice;

/// A row of a [`Ragged`], or a part of one: a view that is copied freely.
///
/// ```
/// let rows = vmarray::RaggedArray::<u8>::from_rows(["so", "many"])?;
/// let row = rows.row(1)?;
/// assert_eq!((row.len(), row.get(0)?), (4, b'm'));
/// assert_eq!(row.part(1..3)?.to_vec(..)?, b"an");
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Row<'a, S> {
    items: &'a S,
    range: Range<usize>,
}

impl<'a, S: Items> Row<'a, S> {
    pub(super) fn new(items: &'a S, range: Range<usize>) -> Self {
        Self { items, range }
    }

    /// How many items it has.
    ///
    /// ```
    /// let rows = vmarray::RaggedArray::<u8>::from_rows(["so", "many"])?;
    /// assert_eq!(rows.row(1)?.len(), 4);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has none.
    ///
    /// ```
    /// let rows = vmarray::RaggedArray::<u8>::from_rows(["so", ""])?;
    /// assert!(rows.row(1)?.is_empty());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Which of all items it has.
    ///
    /// ```
    /// let rows = vmarray::RaggedArray::<u8>::from_rows(["so", "many"])?;
    /// assert_eq!(rows.row(1)?.range(), 2..6);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// A part of the row.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed), with places in the row.
    ///
    /// ```
    /// let rows = vmarray::RaggedArray::<u8>::from_rows(["so", "many"])?;
    /// assert_eq!(rows.row(1)?.part(2..)?.len(), 2);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn part(&self, part: impl RangeBounds<usize>) -> Result<Self> {
        Ok(Self { items: self.items, range: self.of(part)? })
    }

    /// The items of a range of places.
    fn of(&self, part: impl RangeBounds<usize>) -> Result<Range<usize>> {
        let Range { start, end } = checked_range(part, self.len())?;
        Ok(self.range.start + start..self.range.start + end)
    }

    /// The item at a place.
    fn item(&self, at: usize) -> Result<usize> {
        if at < self.len() { Ok(self.range.start + at) } else { Err(index_outside(at, self.len())) }
    }
}

impl<'a, T: Element, D: Device> Row<'a, VirtualArray<T, D>> {
    /// Reads an element.
    ///
    /// # Errors
    /// [`IndexOutside`](ErrorKind::IndexOutside), with places in the row, and what [`VirtualArray::get`] reports.
    ///
    /// ```
    /// let rows = vmarray::RaggedArray::<u8>::from_rows(["so", "many"])?;
    /// assert_eq!(rows.row(1)?.get(3)?, b'y');
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn get(&self, at: usize) -> Result<T> {
        self.items.get(self.item(at)?)
    }

    /// Writes an element.
    ///
    /// # Errors
    /// [`IndexOutside`](ErrorKind::IndexOutside), with places in the row, and what [`VirtualArray::set`] reports.
    ///
    /// ```
    /// let rows = vmarray::RaggedArray::<u8>::from_rows(["so", "many"])?;
    /// rows.row(0)?.set(1, b'a')?;
    /// assert_eq!(rows.row(0)?.to_vec(..)?, b"sa");
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn set(&self, at: usize, value: T) -> Result<()> {
        self.items.set(self.item(at)?, value)
    }

    /// Copies elements from a place on into a slice.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), with places in the row, and what [`VirtualArray::read`] reports.
    ///
    /// ```
    /// let rows = vmarray::RaggedArray::<u8>::from_rows(["so", "many"])?;
    /// let mut two = [0; 2];
    /// rows.row(1)?.read(1, &mut two)?;
    /// assert_eq!(&two, b"an");
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn read(&self, start: usize, into: &mut [T]) -> Result<()> {
        let range = self.of(start..start.saturating_add(into.len()))?;
        self.items.read(range.start, into)
    }

    /// Copies a slice into the elements from a place on.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), with places in the row, and what [`VirtualArray::write`] reports.
    ///
    /// ```
    /// let rows = vmarray::RaggedArray::<u8>::with_lengths([2, 4])?;
    /// rows.row(1)?.write(1, b"an")?;
    /// assert_eq!(rows.row(1)?.to_vec(..)?, b"\0an\0");
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn write(&self, start: usize, from: &[T]) -> Result<()> {
        let range = self.of(start..start.saturating_add(from.len()))?;
        self.items.write(range.start, from)
    }

    /// Copies a part into a new vector.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed), with places in the row,
    /// and what [`VirtualArray::to_vec`] reports.
    ///
    /// ```
    /// let rows = vmarray::RaggedArray::<u8>::from_rows(["so", "many"])?;
    /// assert_eq!(rows.row(1)?.to_vec(..2)?, b"ma");
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn to_vec(&self, part: impl RangeBounds<usize>) -> Result<Vec<T>> {
        self.items.to_vec(self.of(part)?)
    }

    /// Runs a closure on the row as one slice; as [`VirtualArray::map`].
    ///
    /// # Errors
    /// As [`VirtualArray::map`].
    ///
    /// ```
    /// use vmarray::MapMode;
    /// let rows = vmarray::RaggedArray::<u8>::from_rows(["so", "many"])?;
    /// rows.row(1)?.map(MapMode::ReadWrite, |row| row.reverse())?;
    /// assert_eq!(rows.row(1)?.to_vec(..)?, b"ynam");
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn map<R>(&self, mode: MapMode, run: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        self.items.map(self.range.clone(), mode, run)
    }

    /// The elements by value, in order; as [`VirtualArray::iter_range`].
    ///
    /// # Errors
    /// As [`VirtualArray::iter_range`].
    ///
    /// ```
    /// let rows = vmarray::RaggedArray::<u32>::from_rows([vec![1, 2], vec![3, 4, 5]])?;
    /// assert_eq!(rows.row(1)?.iter()?.sum::<Result<u32, _>>()?, 12);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn iter(&self) -> Result<Iter<'a, T, D>> {
        self.items.iter_range(self.range.clone())
    }
}

impl<'a, S: Items, D: Device> Row<'a, Ragged<S, D>> {
    /// A row of this row.
    ///
    /// # Errors
    /// [`RowOutside`](ErrorKind::RowOutside), with places in the row, and what [`VirtualArray::get`] reports.
    ///
    /// ```
    /// use vmarray::{Ragged, RaggedArray, VirtualArray};
    /// let words = RaggedArray::<u8>::from_rows(["so", "many", "words"])?;
    /// let lines = Ragged::new(words, [1, 2], VirtualArray::builder(0))?;
    /// assert_eq!(lines.row(1)?.row(0)?.to_vec(..)?, b"many");
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn row(&self, row: usize) -> Result<Row<'a, S>> {
        let outside = |_| ErrorKind::RowOutside { row, rows: self.len() };
        self.items.row(self.item(row).map_err(outside)?)
    }

    /// The rows of this row, in order.
    ///
    /// ```
    /// use vmarray::{Ragged, RaggedArray, VirtualArray};
    /// let words = RaggedArray::<u8>::from_rows(["so", "many", "words"])?;
    /// let lines = Ragged::new(words, [1, 2], VirtualArray::builder(0))?;
    /// let lengths = lines.row(1)?.rows().map(|word| Ok(word?.len())).collect::<vmarray::Result<Vec<_>>>()?;
    /// assert_eq!(lengths, [4, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn rows(&self) -> Rows<'a, S, D> {
        Rows::new(self.items, self.range.clone())
    }
}

impl<S> Clone for Row<'_, S> {
    fn clone(&self) -> Self {
        Self { items: self.items, range: self.range.clone() }
    }
}

impl<S> fmt::Debug for Row<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row").field("range", &self.range).finish_non_exhaustive()
    }
}

/// An iterator over rows. Ends after the first error.
///
/// ```
/// let rows = vmarray::RaggedArray::<u8>::from_rows(["so", "many"])?;
/// let mut iter = rows.rows();
/// assert_eq!(iter.len(), 2);
/// assert_eq!(iter.nth(1).unwrap()?.to_vec(..)?, b"many");
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Rows<'a, S, D: Device = AnyDevice> {
    of: &'a Ragged<S, D>,
    rows: Range<usize>,
    /// Where the next row begins, and those after it, as far as they were read.
    offsets: VecDeque<u64>,
}

impl<'a, S: Items, D: Device> Rows<'a, S, D> {
    pub(super) fn new(of: &'a Ragged<S, D>, rows: Range<usize>) -> Self {
        Self { of, rows, offsets: VecDeque::new() }
    }

    fn read(&mut self) -> Result<()> {
        let end = self.rows.end.min(self.rows.start.saturating_add(CHUNK));
        self.offsets = self.of.offsets.to_vec(self.rows.start..=end)?.into();
        Ok(())
    }
}

impl<'a, S: Items, D: Device> Iterator for Rows<'a, S, D> {
    type Item = Result<Row<'a, S>>;

    fn next(&mut self) -> Option<Result<Row<'a, S>>> {
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
        let start = self.offsets.pop_front()? as usize;
        let end = *self.offsets.front()? as usize;
        Some(Ok(Row::new(&self.of.items, start..end)))
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

impl<S: Items, D: Device> ExactSizeIterator for Rows<'_, S, D> {}

impl<S: Items, D: Device> FusedIterator for Rows<'_, S, D> {}

impl<S, D: Device> fmt::Debug for Rows<'_, S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("rows", &self.rows).finish_non_exhaustive()
    }
}
