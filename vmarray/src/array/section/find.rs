//! Searching a section on the devices.

use std::ops::RangeBounds;

use backend_api::Device;
use bytemuck::NoUninit;

use super::Section;
use crate::base::element::{Element, Field};
use crate::base::error::Result;
use crate::ops::find::Found;

impl<T: Element, D: Device> Section<'_, T, D> {
    /// The indices of all elements of the section whose field has this value, ascending.
    ///
    /// Runs where the data lies, as [`VirtualArray::find`](crate::VirtualArray::find); only what was written within the
    /// section's pages is copied to the devices, and only the section is searched.
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let array = vmarray::VirtualArray::<u16>::new(1000)?;
    /// array.set(99, 5)?;
    /// array.set(105, 5)?;
    /// assert_eq!(array.section(100..)?.find(Field::whole(), &5)?, [5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn find<F: NoUninit>(&self, field: Field<T, F>, value: &F) -> Result<Vec<usize>> {
        self.find_first(.., field, value, usize::MAX).map(|found| found.indices)
    }

    /// As [`find`](Self::find), within a range of the section, for the first `limit` matches; and how many there are in
    /// all.
    ///
    /// # Errors
    /// As [`VirtualArray::find_first`](crate::VirtualArray::find_first).
    ///
    /// ```
    /// use vmarray::Field;
    /// # let array = vmarray::VirtualArray::<u16>::new(1000)?;
    /// array.fill(100..200, 5)?;
    /// let found = array.section(150..)?.find_first(10.., Field::whole(), &5, 2)?;
    /// assert_eq!((found.indices, found.total), (vec![10, 11], 40));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn find_first<F: NoUninit>(
        &self,
        range: impl RangeBounds<usize>,
        field: Field<T, F>,
        value: &F,
        limit: usize,
    ) -> Result<Found> {
        let mut found = self.array.find_first(self.outer_range(range)?, field, value, limit)?;
        found.indices.iter_mut().for_each(|index| *index -= self.start);
        Ok(found)
    }

    /// The index of the first element of a range whose field has this value:
    /// [`VirtualArray::position`](crate::VirtualArray::position).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let array = vmarray::VirtualArray::<u16>::new(1000)?;
    /// array.set(700, 5)?;
    /// assert_eq!(array.section(500..)?.position(.., Field::whole(), &5)?, Some(200));
    /// assert_eq!(array.section(500..)?.position(201.., Field::whole(), &5)?, None);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn position<F: NoUninit>(
        &self,
        range: impl RangeBounds<usize>,
        field: Field<T, F>,
        value: &F,
    ) -> Result<Option<usize>> {
        let found = self.array.position(self.outer_range(range)?, field, value)?;
        Ok(found.map(|index| index - self.start))
    }

    /// How many elements of a range have a field of this value: [`VirtualArray::count`](crate::VirtualArray::count).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// use vmarray::Field;
    /// # let array = vmarray::VirtualArray::<u16>::new(1000)?;
    /// assert_eq!(array.section(900..)?.count(10.., Field::whole(), &0)?, 90);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn count<F: NoUninit>(
        &self,
        range: impl RangeBounds<usize>,
        field: Field<T, F>,
        value: &F,
    ) -> Result<usize> {
        self.array.count(self.outer_range(range)?, field, value)
    }
}
