//! What changes the elements of a section.

use std::ops::RangeBounds;

use backend_api::Device;

use super::{Section, SectionMut};
use crate::array::map::{MapBuffer, MapMode};
use crate::base::element::Element;
use crate::base::error::Result;

impl<T: Element, D: Device> SectionMut<'_, T, D> {
    /// Writes an element: [`VirtualArray::set`](crate::VirtualArray::set).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.section_mut(100..)?.set(3, 7)?;
    /// assert_eq!(array.get(103)?, 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[inline]
    pub fn set(&self, index: usize, value: T) -> Result<()> {
        self.array.set(self.outer(index)?, value)
    }

    /// Writes an element without giving its page a frame:
    /// [`VirtualArray::set_uncached`](crate::VirtualArray::set_uncached).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.section_mut(100..)?.set_uncached(3, 7)?;
    /// assert_eq!(array.get(103)?, 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn set_uncached(&self, index: usize, value: T) -> Result<()> {
        self.array.set_uncached(self.outer(index)?, value)
    }

    /// Writes an element and returns what it was before, as one atomic step:
    /// [`VirtualArray::replace`](crate::VirtualArray::replace).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// assert_eq!(array.section_mut(100..)?.replace(3, 7)?, 0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn replace(&self, index: usize, value: T) -> Result<T> {
        self.array.replace(self.outer(index)?, value)
    }

    /// Writes `new` if the element's bytes equal those of `current`, as one atomic step:
    /// [`VirtualArray::compare_exchange`](crate::VirtualArray::compare_exchange).
    ///
    /// # Errors
    /// As there, in the outer result.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// assert_eq!(array.section_mut(100..)?.compare_exchange(3, 1, 7)?, Err(0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn compare_exchange(&self, index: usize, current: T, new: T) -> Result<Result<T, T>> {
        self.array.compare_exchange(self.outer(index)?, current, new)
    }

    /// Replaces an element by what `change` makes of it, as one atomic step:
    /// [`VirtualArray::update`](crate::VirtualArray::update).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// assert_eq!(array.section_mut(100..)?.update(3, |x| x + 1)?, 0);
    /// assert_eq!(array.get(103)?, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn update(&self, index: usize, change: impl FnMut(T) -> T) -> Result<T> {
        self.array.update(self.outer(index)?, change)
    }

    /// Exchanges two elements: [`VirtualArray::swap`](crate::VirtualArray::swap).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.set(101, 7)?;
    /// array.section_mut(100..)?.swap(1, 2)?;
    /// assert_eq!((array.get(101)?, array.get(102)?), (0, 7));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn swap(&self, a: usize, b: usize) -> Result<()> {
        self.array.swap(self.outer(a)?, self.outer(b)?)
    }

    /// Copies a slice into the elements from `start` on: [`VirtualArray::write`](crate::VirtualArray::write).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// let section = array.section_mut(100..103)?;
    /// section.write(1, &[1, 2])?;
    /// assert_eq!(array.get(102)?, 2);
    /// assert!(section.write(2, &[1, 2]).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn write(&self, start: usize, from: &[T]) -> Result<()> {
        self.array.write(self.outer_start(start, from.len())?, from)
    }

    /// Writes one value to all elements of a range: [`VirtualArray::fill`](crate::VirtualArray::fill).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.section_mut(100..200)?.fill(50.., 3)?;
    /// assert_eq!((array.get(149)?, array.get(150)?, array.get(200)?), (0, 3, 0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn fill(&self, range: impl RangeBounds<usize>, value: T) -> Result<()> {
        self.array.fill(self.outer_range(range)?, value)
    }

    /// Copies a section of this or another array to the elements from `start` on:
    /// [`VirtualArray::copy_from`](crate::VirtualArray::copy_from).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.fill(..10, 4)?;
    /// array.section_mut(100..200)?.copy_from(90, array.section(..10)?)?;
    /// assert_eq!((array.get(189)?, array.get(190)?), (0, 4));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn copy_from<'s, E: Device>(&self, start: usize, source: impl Into<Section<'s, T, E>>) -> Result<()> {
        let source = source.into();
        self.array.copy_from(self.outer_start(start, source.len())?, source.array, source.range())
    }

    /// Runs a closure on a range as one slice: [`VirtualArray::map`](crate::VirtualArray::map).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::MapMode;
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.section_mut(100..200)?.map(..10, MapMode::Write, |slice| slice.fill(2))?;
    /// assert_eq!((array.get(109)?, array.get(110)?), (2, 0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn map<R>(
        &self,
        range: impl RangeBounds<usize>,
        mode: MapMode,
        run: impl FnOnce(&mut [T]) -> R,
    ) -> Result<R> {
        self.array.map(self.outer_range(range)?, mode, run)
    }

    /// As [`map`](Self::map), with a say in where the slice lies:
    /// [`VirtualArray::map_in`](crate::VirtualArray::map_in).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::{MapBuffer, MapMode};
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// let mut buffer = [0; 10];
    /// let section = array.section_mut(100..200)?;
    /// section.map_in(..10, MapMode::ReadWrite, MapBuffer::Borrowed(&mut buffer), |slice| slice.fill(2))?;
    /// assert_eq!(section.get(9)?, 2);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn map_in<R>(
        &self,
        range: impl RangeBounds<usize>,
        mode: MapMode,
        buffer: MapBuffer<'_, T>,
        run: impl FnOnce(&mut [T]) -> R,
    ) -> Result<R> {
        self.array.map_in(self.outer_range(range)?, mode, buffer, run)
    }

    /// Runs a closure on each element of a range, mutably and in place, in order, with its index in the section:
    /// [`VirtualArray::for_each_mut`](crate::VirtualArray::for_each_mut).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.section_mut(100..200)?.for_each_mut(.., |index, element| *element = index as u32)?;
    /// assert_eq!(array.get(142)?, 42);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn for_each_mut(
        &self,
        range: impl RangeBounds<usize>,
        mut change: impl FnMut(usize, &mut T),
    ) -> Result<()> {
        let start = self.start;
        self.array.for_each_mut(self.outer_range(range)?, |index, element| change(index - start, element))
    }

    /// Forgets the contents of a range, which then reads as zeroes:
    /// [`VirtualArray::discard`](crate::VirtualArray::discard). Nothing is fetched or written back for whole pages.
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.fill(.., 1)?;
    /// array.section_mut(100..200)?.discard(..)?;
    /// assert_eq!((array.get(99)?, array.get(100)?, array.get(200)?), (1, 0, 1));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn discard(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.array.discard(self.outer_range(range)?)
    }
}
