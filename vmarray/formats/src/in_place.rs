//! Arrays whose elements stay in a file that stores them contiguously (`.npy` or safetensors).

use std::path::Path;

use vmarray::kernel::KernelType;
use vmarray::store::{FileAccess, FileSection};
use vmarray::{AnyDevice, Builder, Element, NdArray};

use crate::data_type::{DataType, Swaps};
use crate::error::{Error, Result};
use crate::pieces::element_count;

/// The elements of a file: their place, type and shape in row-major order.
pub(crate) struct StoredElements<'a> {
    pub(crate) path: &'a Path,
    pub(crate) offset: u64,
    pub(crate) of: &'a DataType,
    pub(crate) shape: &'a [usize],
}

impl StoredElements<'_> {
    /// Builds an array over the elements. If the array's elements are arrays, their axes are the last axes of
    /// the file.
    pub(crate) fn into_array<T: Element + KernelType, const N: usize>(
        self,
        access: FileAccess,
        settings: impl FnOnce(Builder<T, AnyDevice>) -> Builder<T, AnyDevice>,
    ) -> Result<NdArray<T, N>> {
        let (path, elements) = (self.path, DataType::of::<T>(self.path)?);
        let (inner, lengths) = elements.without_arrays();
        let own = if self.of.fits(&elements) { 0 } else { lengths.len() };
        let fits = self.of.fits(&elements) || self.of.fits(inner);
        let split = self.shape.len().checked_sub(own).map(|outer| self.shape.split_at(outer));
        let Some((shape, _)) = split.filter(|(_, own)| fits && (own.is_empty() || *own == lengths)) else {
            return Err(Error::ElementMismatch {
                path: path.into(),
                expected: elements.to_string(),
                found: self.of.to_string(),
            });
        };
        let wrong = |_| Error::RankMismatch { path: path.into(), expected: N, found: shape.len() };
        let extents: [usize; N] = shape.try_into().map_err(wrong)?;
        if Swaps::of(self.of) != Swaps::Nothing {
            let what = "its elements are in another byte order, in which no array can use them in place; \
                        read them into an array";
            return Err(Error::unsupported(path, what));
        }
        let bytes = element_count(&extents) as u64 * size_of::<T>() as u64;
        let range = self.offset..self.offset.saturating_add(bytes);
        let section = FileSection::open(path, range, access).map_err(vmarray::Error::from)?;
        Ok(NdArray::<T, N>::builder(extents).elements(settings).build_over_file(section)?)
    }
}
