//! [`Registered`]: a vector of the program that is page-locked and known to devices, for direct copies.

use std::fmt;
use std::ops::{Deref, DerefMut};

use backend_api::Device;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::registered_memory::RegisteredVec;

/// A page-locked vector that the devices of an array access directly, without copies by the processor.
///
/// If values are in such a vector, the device itself executes
/// [`gather_into`](crate::views::View::gather_into) and [`scatter`](crate::views::ViewMut::scatter) on
/// uncached elements. If the indices of a gather are registered too, and the array exceeds twice its cache,
/// the devices also read the indices. The call then first writes back dirty pages, and the processor only
/// checks bounds. If an array has several devices that do not [reach](backend_api::Device::reaches) each
/// other, the processor copies as without registration. The type dereferences to a slice; calls may use parts
/// of the slice.
///
/// Registering takes about a tenth of a second for each GB, so register once and reuse the memory.
/// Page-locked memory cannot be swapped out, and systems limit it.
///
/// ```
/// use vmarray::prelude::*;
///
/// let table = VirtualArray::<[f32; 128]>::new(100_000)?;
/// let mut batch = table.register(vec![[0.0; 128]; 1024])?;
/// let wanted: Vec<usize> = (0..1024).map(|i| i * 97).collect();
/// table.gather_into(&wanted, &mut batch)?;
/// batch[0][0] = 1.0;
/// table.scatter(&wanted, &batch)?;
/// assert_eq!(table.get(0)?[0], 1.0);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Registered<T: Element> {
    values: RegisteredVec<T>,
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Registers a vector with the devices of this array, so that later calls can use it for values or
    /// indices. The registration is valid for all arrays on these devices.
    ///
    /// Blocks while the system locks the memory. The call does not copy the values.
    ///
    /// # Errors
    /// [`PinRefused`](backend_api::ErrorKind::PinRefused) if the system locks no more memory;
    /// [`Unsupported`](backend_api::ErrorKind::Unsupported) if a device cannot register memory.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u64>::new(1000)?;
    /// let mut values = array.register(vec![1; 3])?;
    /// array.gather_into(&[5, 6, 7], &mut values)?;
    /// assert_eq!(values[..], [0; 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn register<U: Element>(&self, mut values: Vec<U>) -> Result<Registered<U>> {
        memory::merge_into_large_pages(&mut values);
        let devices = self.pager().channels().iter().map(|channel| channel.device());
        Ok(Registered { values: RegisteredVec::new(values, devices)? })
    }
}

impl<T: Element> Registered<T> {
    /// Ends the registration and returns the vector.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u64>::new(100)?;
    /// assert_eq!(array.register(vec![1, 2, 3])?.into_vec(), [1, 2, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn into_vec(self) -> Vec<T> {
        self.values.into_vec()
    }
}

impl<T: Element> Deref for Registered<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T: Element> DerefMut for Registered<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

impl<T: Element> fmt::Debug for Registered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("len", &self.values.len()).finish_non_exhaustive()
    }
}
