//! Sections of sources.

mod compute;

use std::fmt;
use std::ops::{Deref, Range, RangeBounds};

use backend_api::Device;
use bytemuck::NoUninit;

use super::home::{Home, HomeMut};
use super::{Source, Synchronize};
use crate::array::range::checked as checked_range;
use crate::array::section::range_at;
use crate::base::element::{Element, Field};
use crate::base::error::{Result, index_outside};
use crate::ops::find::Found;
use crate::setup::any::AnyDevice;

/// A view of an index range of a [`Source`], for reading, by the program and by devices.
///
/// As a [`Section`](crate::Section) of an array: a reference and two numbers, for any thread, overlapping others as it
/// likes; indices, ranges and errors count from its start. Dropping it changes nothing: copies on devices stay.
///
/// ```
/// use vmarray::{Field, Source};
/// let mut elements = vec![0_u32; 1000];
/// elements[120] = 7;
/// let source = Source::new(&elements[..])?;
/// let section = source.section(100..200)?;
/// assert_eq!(section.get(20)?, 7);
/// assert_eq!(section.section(10..)?.position(.., Field::whole(), &7)?, Some(10));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct SourceSection<'a, T: Element, H: Home<T>, D: Device = AnyDevice> {
    source: &'a Source<T, H, D>,
    start: usize,
    len: usize,
}

/// A view of an index range of a [`Source`], for reading and writing, by the program and by devices.
///
/// ```
/// let source = vmarray::Source::new(vec![0_u32; 1000])?;
/// source.section_mut(100..200)?.fill(10..20, 3)?;
/// assert_eq!((source.get(109)?, source.get(110)?, source.get(120)?), (0, 3, 0));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct SourceSectionMut<'a, T: Element, H: HomeMut<T>, D: Device = AnyDevice> {
    section: SourceSection<'a, T, H, D>,
}

impl<T: Element, H: Home<T>, D: Device> Source<T, H, D> {
    /// A view of a range, for reading. Costs nothing and holds nothing.
    ///
    /// # Errors
    /// [`RangeOutside`](crate::ErrorKind::RangeOutside), [`RangeReversed`](crate::ErrorKind::RangeReversed).
    ///
    /// ```
    /// let source = vmarray::Source::new(vec![0_u32; 1000])?;
    /// assert_eq!(source.section(100..200)?.len(), 100);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section(&self, range: impl RangeBounds<usize>) -> Result<SourceSection<'_, T, H, D>> {
        let range = checked_range(range, self.len())?;
        Ok(SourceSection { source: self, start: range.start, len: range.len() })
    }
}

impl<T: Element, H: HomeMut<T>, D: Device> Source<T, H, D> {
    /// A view of a range, for reading and writing. Costs nothing and holds nothing.
    ///
    /// # Errors
    /// As [`section`](Self::section).
    ///
    /// ```
    /// let source = vmarray::Source::new(vec![0_u32; 1000])?;
    /// source.section_mut(100..200)?.set(0, 7)?;
    /// assert_eq!(source.get(100)?, 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section_mut(&self, range: impl RangeBounds<usize>) -> Result<SourceSectionMut<'_, T, H, D>> {
        Ok(SourceSectionMut { section: self.section(range)? })
    }
}

impl<'a, T: Element, H: Home<T>, D: Device> SourceSection<'a, T, H, D> {
    /// How many elements there are.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![0_u32; 1000])?;
    /// assert_eq!(source.section(990..)?.len(), 10);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![0_u32; 1000])?;
    /// assert!(source.section(5..5)?.is_empty());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Which of the source's elements these are.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![0_u32; 1000])?;
    /// assert_eq!(source.section(100..200)?.section(5..9)?.range(), 105..109);
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
    /// # let source = vmarray::Source::new(vec![0_u32; 1000])?;
    /// assert!(source.section(100..200)?.section(50..101).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = checked_range(range, self.len)?;
        Ok(Self { source: self.source, start: self.start + range.start, len: range.len() })
    }

    fn outer(&self, index: usize) -> Result<usize> {
        if index < self.len { Ok(self.start + index) } else { Err(index_outside(index, self.len)) }
    }

    fn outer_range(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
        let range = checked_range(range, self.len)?;
        Ok(self.start + range.start..self.start + range.end)
    }

    fn outer_start(&self, start: usize, count: usize) -> Result<usize> {
        Ok(self.start + range_at(start, count, self.len)?.start)
    }

    /// Reads an element: [`Source::get`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// assert_eq!(source.section(100..)?.get(3)?, 5);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn get(&self, index: usize) -> Result<T> {
        self.source.get(self.outer(index)?)
    }

    /// Copies elements from `start` on into a slice: [`Source::read`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new((0..1000).collect::<Vec<u32>>())?;
    /// let mut two = [0; 2];
    /// source.section(100..)?.read(1, &mut two)?;
    /// assert_eq!(two, [101, 102]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn read(&self, start: usize, into: &mut [T]) -> Result<()> {
        self.source.read(self.outer_start(start, into.len())?, into)
    }

    /// Copies a range into a new vector: [`Source::to_vec`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new((0..1000).collect::<Vec<u32>>())?;
    /// assert_eq!(source.section(100..)?.to_vec(1..3)?, [101, 102]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Result<Vec<T>> {
        self.source.to_vec(self.outer_range(range)?)
    }

    /// The indices of all elements of the section whose field has this value: [`Source::find`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new((0..1000).collect::<Vec<u32>>())?;
    /// assert_eq!(source.section(100..)?.find(Field::whole(), &105)?, [5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn find<F: NoUninit>(&self, field: Field<T, F>, value: &F) -> Result<Vec<usize>> {
        self.find_first(.., field, value, usize::MAX).map(|found| found.indices)
    }

    /// The first `limit` matches within a range, and how many there are in all: [`Source::find_first`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// let found = source.section(900..)?.find_first(10.., Field::whole(), &5, 2)?;
    /// assert_eq!((found.indices, found.total), (vec![10, 11], 90));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn find_first<F: NoUninit>(
        &self,
        range: impl RangeBounds<usize>,
        field: Field<T, F>,
        value: &F,
        limit: usize,
    ) -> Result<Found> {
        let mut found = self.source.find_first(self.outer_range(range)?, field, value, limit)?;
        found.indices.iter_mut().for_each(|index| *index -= self.start);
        Ok(found)
    }

    /// The index of the first element of a range whose field has this value: [`Source::position`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new((0..1000).collect::<Vec<u32>>())?;
    /// assert_eq!(source.section(100..)?.position(.., Field::whole(), &105)?, Some(5));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn position<F: NoUninit>(
        &self,
        range: impl RangeBounds<usize>,
        field: Field<T, F>,
        value: &F,
    ) -> Result<Option<usize>> {
        let found = self.source.position(self.outer_range(range)?, field, value)?;
        Ok(found.map(|index| index - self.start))
    }

    /// How many elements of a range have a field of this value: [`Source::count`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// assert_eq!(source.section(900..)?.count(.., Field::whole(), &5)?, 100);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn count<F: NoUninit>(
        &self,
        range: impl RangeBounds<usize>,
        field: Field<T, F>,
        value: &F,
    ) -> Result<usize> {
        self.source.count(self.outer_range(range)?, field, value)
    }

    /// Copies to the devices what is missing there of a range: [`Source::pull`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// source.section(900..)?.pull(..)?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn pull(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.source.pull(self.outer_range(range)?)
    }

    /// Brings home what is newer on the devices, of a range: [`Source::synchronize`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// source.section(900..)?.synchronize(..)?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn synchronize(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.source.synchronize(self.outer_range(range)?)
    }

    /// As [`synchronize`](Self::synchronize), without blocking: [`Source::synchronize_async`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// let future = source.section(900..)?.synchronize_async(..)?;
    /// # drop(future);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn synchronize_async(&self, range: impl RangeBounds<usize>) -> Result<Synchronize<'a, T, D>> {
        self.source.synchronize_async(self.outer_range(range)?)
    }

    /// Takes the home's elements of a range for right, whatever devices have: [`Source::refresh`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// source.section(900..)?.refresh(..)?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn refresh(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.source.refresh(self.outer_range(range)?)
    }

    /// Takes their device memory from the pages of a range: [`Source::evict`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// source.section(900..)?.evict(..)?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn evict(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.source.evict(self.outer_range(range)?)
    }
}

impl<'a, T: Element, H: HomeMut<T>, D: Device> SourceSectionMut<'a, T, H, D> {
    /// The same elements, for reading only.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// assert_eq!(source.section_mut(100..)?.read_only().get(0)?, 5);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn read_only(&self) -> SourceSection<'a, T, H, D> {
        self.section
    }

    /// A section of the section, for reading and writing.
    ///
    /// # Errors
    /// [`RangeOutside`](crate::ErrorKind::RangeOutside), [`RangeReversed`](crate::ErrorKind::RangeReversed).
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// source.section_mut(100..200)?.section_mut(50..)?.set(0, 3)?;
    /// assert_eq!(source.get(150)?, 3);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section_mut(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(Self { section: self.section.section(range)? })
    }

    /// Writes an element: [`Source::set`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// source.section_mut(100..)?.set(3, 7)?;
    /// assert_eq!(source.get(103)?, 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn set(&self, index: usize, value: T) -> Result<()> {
        self.source.set(self.outer(index)?, value)
    }

    /// Writes an element and returns what it was before, as one atomic step: [`Source::replace`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// assert_eq!(source.section_mut(100..)?.replace(3, 7)?, 5);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn replace(&self, index: usize, value: T) -> Result<T> {
        self.source.replace(self.outer(index)?, value)
    }

    /// Replaces an element by what `change` makes of it, as one atomic step: [`Source::update`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// assert_eq!(source.section_mut(100..)?.update(3, |x| x + 1)?, 5);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn update(&self, index: usize, change: impl FnMut(T) -> T) -> Result<T> {
        self.source.update(self.outer(index)?, change)
    }

    /// Copies a slice into the elements from `start` on: [`Source::write`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// source.section_mut(100..103)?.write(1, &[1, 2])?;
    /// assert_eq!(source.to_vec(100..104)?, [5, 1, 2, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn write(&self, start: usize, from: &[T]) -> Result<()> {
        self.source.write(self.outer_start(start, from.len())?, from)
    }

    /// Writes one value to all elements of a range, on the devices: [`Source::fill`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// source.section_mut(100..200)?.fill(50.., 3)?;
    /// assert_eq!((source.get(149)?, source.get(150)?, source.get(200)?), (5, 3, 5));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn fill(&self, range: impl RangeBounds<usize>, value: T) -> Result<()> {
        self.source.fill(self.outer_range(range)?, value)
    }

    /// Declares that the elements of a range will be overwritten: [`Source::discard`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let source = vmarray::Source::new(vec![5_u32; 1000])?;
    /// source.section_mut(100..200)?.discard(..)?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn discard(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.source.discard(self.outer_range(range)?)
    }
}

impl<'a, T: Element, H: HomeMut<T>, D: Device> Deref for SourceSectionMut<'a, T, H, D> {
    type Target = SourceSection<'a, T, H, D>;

    fn deref(&self) -> &Self::Target {
        &self.section
    }
}

impl<T: Element, H: Home<T>, D: Device> Clone for SourceSection<'_, T, H, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element, H: Home<T>, D: Device> Copy for SourceSection<'_, T, H, D> {}

impl<T: Element, H: HomeMut<T>, D: Device> Clone for SourceSectionMut<'_, T, H, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element, H: HomeMut<T>, D: Device> Copy for SourceSectionMut<'_, T, H, D> {}

impl<T: Element, H: Home<T>, D: Device> fmt::Debug for SourceSection<'_, T, H, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceSection").field("range", &self.range()).finish_non_exhaustive()
    }
}

impl<T: Element, H: HomeMut<T>, D: Device> fmt::Debug for SourceSectionMut<'_, T, H, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceSectionMut").field("range", &self.range()).finish_non_exhaustive()
    }
}
