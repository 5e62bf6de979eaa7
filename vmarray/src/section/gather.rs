//! Many elements of a section at once, by lists of indices.

use backend_api::Device;

use super::{Section, SectionMut};
use crate::element::Element;
use crate::error::Result;

impl<T: Element, D: Device> Section<'_, T, D> {
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
}
