//! [`NdBuilder`]: sets the storage layout and the options of a new N-dimensional array.

use std::sync::Arc;

use backend_api::Device;

use super::{LayoutGeometry, NdArray, NdLayout};
use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::array::settings::PAGE_BYTES;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::setup::any::AnyDevice;

/// The settings of a new N-dimensional array, for [`build`](Self::build). Each setting has a default.
///
/// | setting | default |
/// |---|---|
/// | layout | row-major; the tiles of [`tiled`](Self::tiled) take 64 KiB at most |
/// | other settings | the defaults of [`Builder`] |
///
/// ```
/// use vmarray::{host::HostDevice, nd::NdLayout, prelude::*};
/// use std::sync::Arc;
/// let volume = NdArray::<u16, 3>::builder([100, 200, 300]).tiled().build()?;
/// assert_eq!(volume.layout(), NdLayout::Tiled([32, 32, 32]));
/// // Statically dispatched: an `NdArray<f32, 2, HostDevice>`.
/// let device = Arc::new(HostDevice::new(1 << 20)?);
/// let image = NdArray::<f32, 2>::builder([100, 100])
///     .devices([device])
///     .tile([16, 16])
///     .elements(|elements| elements.cache_bytes(1 << 14))
///     .build()?;
/// assert_eq!((image.elements().page_count(), image.elements().footprint().cache_max_bytes), (49, 1 << 14));
/// let layout = NdLayout::RowMajor;
/// assert_eq!(NdArray::<u32, 2>::builder([40, 50]).layout(layout).build()?.layout(), layout);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "describes an array; `build` makes it"]
pub struct NdBuilder<T: Element, const N: usize, D: Device> {
    pub(super) shape: [usize; N],
    pub(super) layout: NdLayout<N>,
    pub(super) elements: Builder<T, D>,
}

impl<T: Element, const N: usize> NdArray<T, N> {
    /// Creates a builder for an array of this shape with other devices or settings.
    pub fn builder(shape: [usize; N]) -> NdBuilder<T, N, AnyDevice> {
        let elements = VirtualArray::builder(0);
        NdBuilder { shape, layout: NdLayout::RowMajor, elements }
    }
}

impl<T: Element, const N: usize, D: Device> NdBuilder<T, N, D> {
    /// Sets the devices that store the elements, and with them the type parameter `D`. Keeps all other
    /// settings.
    pub fn devices<E: Device>(self, devices: impl IntoIterator<Item = Arc<E>>) -> NdBuilder<T, N, E> {
        let elements = self.elements.devices(devices);
        NdBuilder { shape: self.shape, layout: self.layout, elements }
    }

    /// Sets the storage layout of the elements.
    pub fn layout(mut self, layout: NdLayout<N>) -> Self {
        self.layout = layout;
        self
    }

    /// Sets a tiled layout with tiles of these extents, one tile per page. Prefer powers of two, because
    /// other extents cost divisions in each access.
    pub fn tile(self, extent: [usize; N]) -> Self {
        self.layout(NdLayout::Tiled(extent))
    }

    /// Sets a tiled layout with tiles of at most 64 KiB. The tile's extents are powers of two, and as equal
    /// as the shape allows.
    pub fn tiled(self) -> Self {
        let extent = tile_extent(&self.shape, size_of::<T>());
        self.tile(extent)
    }

    /// Changes the settings of the [`VirtualArray`](crate::VirtualArray) that stores the elements, such as
    /// its cache or its placement. `change` cannot set the length, which the shape determines, or the page
    /// length of a tiled array, which the tile determines.
    pub fn elements(mut self, change: impl FnOnce(Builder<T, D>) -> Builder<T, D>) -> Self {
        self.elements = change(self.elements);
        self
    }

    /// Builds the array.
    ///
    /// # Errors
    /// [`ShapeOverflow`](crate::ErrorKind::ShapeOverflow) if the number of elements, with padding,
    /// overflows; [`EmptyTile`](crate::ErrorKind::EmptyTile); and errors of [`Builder::build`].
    pub fn build(self) -> Result<NdArray<T, N, D>> {
        let (elements, geometry) = self.into_elements()?;
        Ok(NdArray { elements: elements.build()?, geometry })
    }

    /// Builds an array whose pages are read and written by the program's own code, as [`Builder::build_over`]
    /// does. A page is a tile or several rows. Tiles at the far edges include their padding.
    ///
    /// # Errors
    /// The errors of [`Builder::build_over`] and [`build`](Self::build);
    /// [`FileMismatch`](crate::ErrorKind::FileMismatch) if the length of the pages differs from that of
    /// tiles.
    #[cfg(feature = "host")]
    pub fn build_over(self, backing: impl vmarray_store::Backing) -> Result<NdArray<T, N>> {
        let (elements, geometry) = self.into_elements()?;
        if let Some(tiling) = &geometry.tiling {
            let (stored, asked) = (backing.page_bytes(), tiling.len.saturating_mul(size_of::<T>()));
            if stored != asked {
                let (path, what) = (backing.name(), "length of a page");
                let (stored, asked) = (format!("{stored} bytes"), format!("{asked} bytes"));
                return Err(crate::ErrorKind::FileMismatch { path, what, stored, asked }.into());
            }
        }
        Ok(NdArray { elements: elements.build_over(backing)?, geometry })
    }

    /// Builds an array over a byte range of a file, as [`Builder::build_over_file`] does, in the builder's
    /// layout: row-major, unless tiled.
    ///
    /// # Errors
    /// The errors of [`Builder::build_over_file`] and [`build`](Self::build).
    ///
    /// ```
    /// use vmarray::{NdArray, prelude::*};
    /// use vmarray::store::{FileAccess, FileSection};
    /// # let path = std::env::temp_dir().join(format!("vmarray-nd-over-file-{}", std::process::id()));
    /// std::fs::write(&path, [1_u8, 2, 3, 4, 5, 6]).unwrap();
    /// let section = FileSection::open(&path, .., FileAccess::ReadOnly)?;
    /// let image = NdArray::<u8, 2>::builder([2, 3]).build_over_file(section)?;
    /// assert_eq!((image.get([1, 0])?, image.set([1, 0], 9).is_err()), (4, true));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[cfg(feature = "host")]
    pub fn build_over_file(self, section: vmarray_store::FileSection) -> Result<NdArray<T, N>> {
        let is_empty = self.shape.contains(&0);
        let (elements, geometry) = self.into_elements()?;
        if is_empty {
            // A length of 0 in the builder of the elements would mean all elements of the section.
            let elements = elements.build_over(section.with_page_bytes(size_of::<T>()))?;
            return Ok(NdArray { elements, geometry });
        }
        Ok(NdArray { elements: elements.build_over_file(section)?, geometry })
    }

    /// Returns the builder of the array of elements, and the layout.
    pub(super) fn into_elements(self) -> Result<(Builder<T, D>, LayoutGeometry<N>)> {
        let (geometry, len) = LayoutGeometry::new(self.shape, self.layout)?;
        let mut elements = self.elements.with_len(len);
        if let Some(tiling) = &geometry.tiling {
            elements = elements.page_len(tiling.len);
        }
        Ok((elements, geometry))
    }
}

/// Returns the extents of tiles that fill a page: doubles one axis after the other while the page has room.
fn tile_extent<const N: usize>(shape: &[usize; N], element_bytes: usize) -> [usize; N] {
    let mut room = PAGE_BYTES / element_bytes;
    let mut extent = [1; N];
    loop {
        let before = room;
        // Double the extents in turn, from the last axis, because its elements are adjacent in memory.
        for axis in (0..N).rev() {
            if room >= 2 && extent[axis] < shape[axis] {
                extent[axis] *= 2;
                room /= 2;
            }
        }
        if room == before {
            return extent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fill_a_page_and_no_more_than_the_shape_needs() {
        assert_eq!(tile_extent(&[1000, 1000], 4), [128, 128]);
        assert_eq!(tile_extent(&[1000, 1000], 8), [64, 128]);
        assert_eq!(tile_extent(&[3, 100_000], 1), [4, 16384]);
        assert_eq!(tile_extent(&[200, 200, 200], 1), [32, 32, 64]);
        assert_eq!(tile_extent(&[5, 5], 4), [8, 8]);
        assert_eq!(tile_extent(&[5, 5], 100_000), [1, 1]);
        assert_eq!(tile_extent(&[0, 5], 1), [1, 8]);
    }
}
