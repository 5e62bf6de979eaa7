//! Many elements of a section at once, by lists of indices.

use backend_api::Device;

use super::{Section, SectionMut};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::gather::Gathered;

impl<'a, T: Element, D: Device> Section<'a, T, D> {
    /// Reads the elements of a list of indices, in the order of the list:
    /// [`VirtualArray::gather`](crate::VirtualArray::gather). The list is not copied.
    ///
    /// # Errors
    /// As there; indices beyond the section are outside.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1_000_000)?;
    /// array.set(7, 70)?;
    /// array.set(507, 71)?;
    /// let section = array.section(5..600)?;
    /// assert_eq!(section.gather(&[502, 2, 3, 2])?, [71, 70, 0, 70]);
    /// assert!(section.gather(&[595]).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn gather(&self, indices: &[usize]) -> Result<Vec<T>> {
        self.array.gather_within(self.range(), indices)
    }

    /// As [`gather`](Self::gather), into memory of the caller:
    /// [`VirtualArray::gather_into`](crate::VirtualArray::gather_into).
    ///
    /// # Errors
    /// As there; indices beyond the section are outside.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.set(107, 70)?;
    /// let mut values = [0; 2];
    /// array.section(100..)?.gather_into(&[6, 7], &mut values)?;
    /// assert_eq!(values, [0, 70]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn gather_into(&self, indices: &[usize], into: &mut [T]) -> Result<()> {
        self.array.gather_into_within(self.range(), indices, into)
    }

    /// The elements of a sequence of indices of any length, gathered in chunks:
    /// [`VirtualArray::gather_iter`](crate::VirtualArray::gather_iter).
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u64>::new(1_000_000)?;
    /// array.fill(100..200, 3)?;
    /// let section = array.section(100..)?;
    /// let sum: u64 = section.gather_iter((0..section.len()).step_by(7)).sum::<Result<u64, _>>()?;
    /// assert_eq!(sum, 3 * 15);
    /// assert!(section.gather_iter([section.len()]).next().is_some_and(|value| value.is_err()));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn gather_iter<I: IntoIterator<Item = usize>>(&self, indices: I) -> Gathered<'a, T, I::IntoIter, D> {
        self.array.gather_iter_within(self.range(), indices)
    }
}

impl<T: Element, D: Device> SectionMut<'_, T, D> {
    /// Writes values to the elements of a list of indices; of several for one element the last one wins:
    /// [`VirtualArray::scatter`](crate::VirtualArray::scatter). The list is not copied.
    ///
    /// # Errors
    /// As there; indices beyond the section are outside, and nothing is written then.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u32>::new(1_000_000)?;
    /// array.section_mut(100..)?.scatter(&[500, 7, 7], &[1, 2, 3])?;
    /// assert_eq!((array.get(600)?, array.get(107)?), (1, 3));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn scatter(&self, indices: &[usize], values: &[T]) -> Result<()> {
        self.array.scatter_within(self.range(), indices, values)
    }

    /// Writes a sequence of elements of any length, each with its index, in chunks; returns how many there were:
    /// [`VirtualArray::scatter_iter`](crate::VirtualArray::scatter_iter).
    ///
    /// # Errors
    /// As there; indices beyond the section are outside.
    ///
    /// ```
    /// # let array = vmarray::VirtualArray::<u64>::new(1_000_000)?;
    /// let section = array.section_mut(100..)?;
    /// let count = section.scatter_iter((0..section.len()).step_by(7).map(|i| (i, i as u64)))?;
    /// assert_eq!((count, array.get(177)?), (142_843, 77));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn scatter_iter(&self, elements: impl IntoIterator<Item = (usize, T)>) -> Result<usize> {
        self.array.scatter_iter_within(self.range(), elements)
    }
}
