//! Conversions of slices and vectors to arrays, by `TryFrom`.

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::ops::view::ViewMut as _;

/// Copies a slice to an array over the [devices of the machine](crate::devices).
///
/// The conversion is `TryFrom` because it can fail: if there is no device, or if no device has enough memory.
/// The slice is copied directly to the devices, without the cache.
///
/// # Errors
/// The errors of [`Builder::build`](crate::Builder::build) and [`write`](crate::views::ViewMut::write).
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::try_from(&[1_u32, 2, 3][..])?;
/// assert_eq!(array.to_vec(..)?, [1, 2, 3]);
/// # Ok::<(), vmarray::Error>(())
/// ```
impl<T: Element> TryFrom<&[T]> for VirtualArray<T> {
    type Error = Error;

    fn try_from(elements: &[T]) -> Result<Self> {
        let array = Self::new(elements.len())?;
        array.write(0, elements)?;
        Ok(array)
    }
}

/// Copies a vector to an array over the [devices of the machine](crate::devices), and drops the vector. A
/// [`Source`](crate::Source) works on the vector's own memory instead.
///
/// ```
/// use vmarray::prelude::*;
/// let array: VirtualArray<f64> = vec![0.5; 1000].try_into()?;
/// assert_eq!((array.len(), array.get(999)?), (1000, 0.5));
/// # Ok::<(), vmarray::Error>(())
/// ```
impl<T: Element> TryFrom<Vec<T>> for VirtualArray<T> {
    type Error = Error;

    fn try_from(elements: Vec<T>) -> Result<Self> {
        Self::try_from(&elements[..])
    }
}
