//! Sections: views of index ranges of an array.

mod asynchronous;
mod compute;
mod cursor;
mod find;
mod gather;
mod owned;
mod pages;
#[cfg(feature = "rayon")]
mod parallel;
mod write;

use std::fmt;
use std::ops::{Deref, Range, RangeBounds};

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::iter::Iter;
use crate::array::map::MapMode;
use crate::array::range::checked as checked_range;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result, index_outside};
use crate::setup::any::AnyDevice;

pub use asynchronous::{SectionPageAsync, SectionPageMutAsync};
pub use cursor::{SectionCursor, SectionCursorMut};
pub use owned::SharedSection;
pub use pages::{SectionPage, SectionPageMut, SectionPages, SectionPagesMut};

/// A view of an index range of an array, for reading.
///
/// Indices, ranges and errors count from the section's start. A section is a reference and two numbers: it can be
/// copied, sent to other threads and cut up again at no cost. Any number of sections may overlap. It holds nothing, so
/// dropping it changes nothing: pages stay in the cache.
///
/// Operations concern the elements of the section and no others, with the consistency and the errors of the operation
/// of the same name on [`VirtualArray`]. Only the pages that the section touches are written back, fetched or searched.
///
/// The [`index`](crate::expr::index) in an expression is that in the section, too. An expression that uses it counts
/// two instructions more for this, unless the section begins where the array does; sections of different starts share
/// its translation, as they differ in a number alone.
///
/// ```
/// let array = vmarray::VirtualArray::<u32>::new(1000)?;
/// array.set(120, 7)?;
/// let section = array.section(100..200)?;
/// assert_eq!(section.get(20)?, 7);
/// assert_eq!(section.section(10..30)?.get(10)?, 7);
/// assert!(section.get(100).is_err());
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// There is no way to write through it:
///
/// ```compile_fail
/// let array = vmarray::VirtualArray::<u32>::new(1000)?;
/// array.section(..)?.set(0, 1)?;
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Section<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    start: usize,
    len: usize,
}

/// A view of an index range of an array, for reading and writing.
///
/// Everything that a [`Section`] can, and what changes elements. As with the array itself, writing needs no exclusive
/// access: any number of these may overlap, in any number of threads.
///
/// ```
/// let array = vmarray::VirtualArray::<u32>::new(1000)?;
/// let section = array.section_mut(100..200)?;
/// section.set(20, 7)?;
/// section.section_mut(50..)?.fill(.., 9)?;
/// assert_eq!((array.get(120)?, array.get(150)?, section.get(99)?), (7, 9, 9));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct SectionMut<'a, T: Element, D: Device = AnyDevice> {
    section: Section<'a, T, D>,
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// A view of a range, for reading. Costs nothing and holds nothing.
    ///
    /// # Errors
    /// [`RangeOutside`](crate::ErrorKind::RangeOutside), [`RangeReversed`](crate::ErrorKind::RangeReversed).
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// assert_eq!(array.section(100..200)?.len(), 100);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section(&self, range: impl RangeBounds<usize>) -> Result<Section<'_, T, D>> {
        let range = self.checked_range(range)?;
        Ok(Section { array: self, start: range.start, len: range.len() })
    }

    /// A view of a range, for reading and writing. Costs nothing and holds nothing.
    ///
    /// # Errors
    /// As [`section`](Self::section).
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.section_mut(100..200)?.set(0, 7)?;
    /// assert_eq!(array.get(100)?, 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section_mut(&self, range: impl RangeBounds<usize>) -> Result<SectionMut<'_, T, D>> {
        Ok(SectionMut { section: self.section(range)? })
    }
}

impl<'a, T: Element, D: Device> Section<'a, T, D> {
    /// How many elements there are.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// assert_eq!(array.section(990..)?.len(), 10);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// assert!(array.section(5..5)?.is_empty());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The array that this is a section of.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// assert_eq!(array.section(5..9)?.array().len(), 1000);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn array(&self) -> &'a VirtualArray<T, D> {
        self.array
    }

    /// Which of the array's elements these are.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// assert_eq!(array.section(100..200)?.section(5..9)?.range(), 105..109);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// A section of the section.
    ///
    /// # Errors
    /// [`RangeOutside`](crate::ErrorKind::RangeOutside), [`RangeReversed`](crate::ErrorKind::RangeReversed).
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// let error = array.section(100..200)?.section(50..101).unwrap_err();
    /// assert!(error.to_string().starts_with("range 50..101 is outside of an array of 100 elements; "));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = checked_range(range, self.len)?;
        Ok(Self { array: self.array, start: self.start + range.start, len: range.len() })
    }

    /// The elements before an index, and those from it on.
    ///
    /// # Errors
    /// [`IndexOutside`](crate::ErrorKind::IndexOutside) for an index beyond the length.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// let (left, right) = array.section(100..200)?.split_at(30)?;
    /// assert_eq!((left.range(), right.range()), (100..130, 130..200));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn split_at(&self, index: usize) -> Result<(Self, Self)> {
        if index > self.len {
            return Err(index_outside(index, self.len));
        }
        Ok((self.section(..index)?, self.section(index..)?))
    }

    /// The array's index of one of the section's elements.
    #[inline(always)]
    fn outer(&self, index: usize) -> Result<usize> {
        if index < self.len { Ok(self.start + index) } else { Err(index_outside(index, self.len)) }
    }

    /// The array's indices of a range of the section's elements.
    fn outer_range(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
        let range = checked_range(range, self.len)?;
        Ok(self.start + range.start..self.start + range.end)
    }

    /// The array's index of the first of `count` of the section's elements.
    fn outer_start(&self, start: usize, count: usize) -> Result<usize> {
        Ok(self.start + range_at(start, count, self.len)?.start)
    }

    /// Reads an element: [`VirtualArray::get`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.set(103, 7)?;
    /// assert_eq!(array.section(100..)?.get(3)?, 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[inline]
    pub fn get(&self, index: usize) -> Result<T> {
        self.array.get(self.outer(index)?)
    }

    /// Reads an element without giving its page a frame: [`VirtualArray::get_uncached`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.set(103, 7)?;
    /// assert_eq!(array.section(100..)?.get_uncached(3)?, 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn get_uncached(&self, index: usize) -> Result<T> {
        self.array.get_uncached(self.outer(index)?)
    }

    /// Copies elements from `start` on into a slice: [`VirtualArray::read`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.write(100, &[1, 2, 3])?;
    /// let mut two = [0; 2];
    /// array.section(100..)?.read(1, &mut two)?;
    /// assert_eq!(two, [2, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn read(&self, start: usize, into: &mut [T]) -> Result<()> {
        self.array.read(self.outer_start(start, into.len())?, into)
    }

    /// Copies a range into a new vector: [`VirtualArray::to_vec`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.write(100, &[1, 2, 3])?;
    /// assert_eq!(array.section(100..103)?.to_vec(..)?, [1, 2, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Result<Vec<T>> {
        self.array.to_vec(self.outer_range(range)?)
    }

    /// Runs a closure on a copy of a range as one slice: [`VirtualArray::map`] for reading.
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.fill(100..200, 2)?;
    /// let sum: u32 = array.section(150..)?.map(.., |slice| slice.iter().sum())?;
    /// assert_eq!(sum, 100);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn map<R>(&self, range: impl RangeBounds<usize>, run: impl FnOnce(&[T]) -> R) -> Result<R> {
        self.array.map(self.outer_range(range)?, MapMode::Read, |slice| run(slice))
    }

    /// The elements by value, in order: [`VirtualArray::iter`].
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.set(101, 5)?;
    /// assert_eq!(array.section(100..103)?.iter().collect::<Result<Vec<_>, _>>()?, [0, 5, 0]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn iter(&self) -> Iter<'a, T, D> {
        self.array.iter_range(self.range()).expect("a section lies within its array")
    }

    /// Starts to fetch the pages of a range into the cache: [`VirtualArray::prefetch`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.section(100..200)?.prefetch(..50)?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn prefetch(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.array.prefetch(self.outer_range(range)?)
    }

    /// Copies the pages of a range that were written to to their devices: [`VirtualArray::flush`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(100).build()?;
    /// array.fill(50..150, 1)?;
    /// array.section(100..200)?.flush(..)?;
    /// assert_eq!(array.stats().total().write_backs, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn flush(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.array.flush(self.outer_range(range)?)
    }

    /// Takes the pages of a range out of the cache: [`VirtualArray::evict`]. Nothing is lost.
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.set(100, 1)?;
    /// array.section(100..200)?.evict(..)?;
    /// assert_eq!(array.get(100)?, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn evict(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.array.evict(self.outer_range(range)?)
    }
}

impl<'a, T: Element, D: Device> SectionMut<'a, T, D> {
    /// The same elements, for reading only.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// let section: vmarray::Section<'_, u32> = array.section_mut(100..200)?.read_only();
    /// assert_eq!(section.len(), 100);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn read_only(&self) -> Section<'a, T, D> {
        self.section
    }

    /// A section of the section, for reading and writing.
    ///
    /// # Errors
    /// [`RangeOutside`](crate::ErrorKind::RangeOutside), [`RangeReversed`](crate::ErrorKind::RangeReversed).
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.section_mut(100..200)?.section_mut(50..)?.set(0, 3)?;
    /// assert_eq!(array.get(150)?, 3);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section_mut(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(Self { section: self.section.section(range)? })
    }
}

impl<'a, T: Element, D: Device> Deref for SectionMut<'a, T, D> {
    type Target = Section<'a, T, D>;

    fn deref(&self) -> &Self::Target {
        &self.section
    }
}

/// The range of `count` elements from `start` on, checked against a length.
pub(crate) fn range_at(start: usize, count: usize, len: usize) -> Result<Range<usize>> {
    let outside = |end| ErrorKind::RangeOutside { start, end, len };
    let end = start.checked_add(count).ok_or_else(|| outside(usize::MAX))?;
    if end > len { Err(outside(end).into()) } else { Ok(start..end) }
}

impl<T: Element, D: Device> Clone for Section<'_, T, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element, D: Device> Copy for Section<'_, T, D> {}

impl<T: Element, D: Device> Clone for SectionMut<'_, T, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element, D: Device> Copy for SectionMut<'_, T, D> {}

impl<'a, T: Element, D: Device> From<&'a VirtualArray<T, D>> for Section<'a, T, D> {
    fn from(array: &'a VirtualArray<T, D>) -> Self {
        Self { array, start: 0, len: array.len() }
    }
}

impl<'a, T: Element, D: Device> From<&'a VirtualArray<T, D>> for SectionMut<'a, T, D> {
    fn from(array: &'a VirtualArray<T, D>) -> Self {
        Self { section: array.into() }
    }
}

impl<'a, T: Element, D: Device> From<SectionMut<'a, T, D>> for Section<'a, T, D> {
    fn from(section: SectionMut<'a, T, D>) -> Self {
        section.section
    }
}

impl<'a, T: Element, D: Device> IntoIterator for Section<'a, T, D> {
    type Item = Result<T>;
    type IntoIter = Iter<'a, T, D>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: Element, D: Device> fmt::Debug for Section<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Section").field("range", &self.range()).finish_non_exhaustive()
    }
}

impl<T: Element, D: Device> fmt::Debug for SectionMut<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SectionMut").field("range", &self.range()).finish_non_exhaustive()
    }
}
