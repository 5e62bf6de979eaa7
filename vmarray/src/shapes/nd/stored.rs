//! N-dimensional arrays in files: creates, opens, saves and loads them.

use std::ops::ControlFlow;
use std::path::Path;

use backend_api::Device;
use vmarray_kernel::KernelType;

use super::{LayoutGeometry, NdArray, NdBuilder, NdLayout, NdView};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::progress::Progress;
use crate::ops::saved::{self, SaveOptions};

impl<T: Element, const N: usize, D: Device> NdArray<T, N, D> {
    /// Makes earlier writes to an array in files durable, as [`VirtualArray::sync`] does.
    ///
    /// # Errors
    /// The errors of [`VirtualArray::sync`].
    pub fn sync(&self) -> Result<()> {
        self.elements().sync()
    }
}

impl<T: Element + KernelType, const N: usize, D: Device> NdArray<T, N, D> {
    /// Writes all elements to a file with their shape and layout, as [`VirtualArray::save`] does.
    ///
    /// # Errors
    /// The errors of [`VirtualArray::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_with(path, SaveOptions::new(), |_| ControlFlow::Continue(()))
    }

    /// Saves the array like [`save`](Self::save), with the options and progress reports of
    /// [`VirtualArray::save_with`].
    ///
    /// # Errors
    /// The errors of [`VirtualArray::save_with`].
    pub fn save_with(
        &self,
        path: impl AsRef<Path>,
        options: SaveOptions,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    ) -> Result<()> {
        self.elements().save_as(path.as_ref(), &in_words(self.shape(), self.layout()), options, progress)
    }
}

impl<T: Element, const N: usize> NdArray<T, N> {
    /// Creates a persistent, row-major array of zeroes in a new file: [`NdBuilder::create`] with defaults.
    ///
    /// # Errors
    /// The errors of [`NdBuilder::create`].
    pub fn create(path: impl AsRef<Path>, shape: [usize; N]) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder(shape).create([path])
    }

    /// Opens the array in a file for reading and writing: [`NdBuilder::open`] with the default settings. The
    /// file defines the shape.
    ///
    /// # Errors
    /// The errors of [`NdBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder([0; N]).open([path])
    }

    /// Opens the array in a file for reading only: [`NdBuilder::open_read_only`] with the default settings.
    ///
    /// # Errors
    /// The errors of [`NdBuilder::open_read_only`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder([0; N]).open_read_only([path])
    }

    /// Copies a [saved](Self::save) array with its shape and layout to a new array: [`NdBuilder::load`] with
    /// the default settings. To work on the file itself, use [`open`](Self::open).
    ///
    /// # Errors
    /// The errors of [`NdBuilder::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder([0; N]).load(path)
    }
}

impl<T: Element + KernelType, const N: usize, D: Device> NdBuilder<T, N, D> {
    /// Creates a persistent array in new files, as [`Builder::create`](crate::Builder::create) does.
    ///
    /// # Errors
    /// The errors of [`Builder::create`](crate::Builder::create) and [`build`](Self::build).
    pub fn create<P: AsRef<Path>>(self, files: impl IntoIterator<Item = P>) -> Result<NdArray<T, N>> {
        let words = in_words(self.shape, self.layout);
        let (elements, geometry) = self.into_elements()?;
        Ok(NdArray { elements: elements.create_as(files, &words)?, geometry })
    }

    /// Opens an array in files for reading and writing, as [`Builder::open`](crate::Builder::open) does.
    /// Shape and layout come from the files.
    ///
    /// # Errors
    /// The errors of [`Builder::open`](crate::Builder::open).
    pub fn open<P: AsRef<Path>>(self, files: impl IntoIterator<Item = P>) -> Result<NdArray<T, N>> {
        self.open_for(files, false)
    }

    /// Opens an array in files for reading only, as
    /// [`Builder::open_read_only`](crate::Builder::open_read_only) does.
    ///
    /// # Errors
    /// The errors of [`Builder::open_read_only`](crate::Builder::open_read_only).
    pub fn open_read_only<P: AsRef<Path>>(self, files: impl IntoIterator<Item = P>) -> Result<NdArray<T, N>> {
        self.open_for(files, true)
    }

    fn open_for<P: AsRef<Path>>(
        self,
        files: impl IntoIterator<Item = P>,
        is_read_only: bool,
    ) -> Result<NdArray<T, N>> {
        let asked = format!("{N} dimensions");
        let (elements, shape) = self.elements.open_as(files, is_read_only, of_words::<N>, &asked)?;
        Ok(NdArray { elements, geometry: LayoutGeometry::new(shape.0, shape.1)?.0 })
    }

    /// Builds an array with these settings, and copies the shape, layout and elements of a
    /// [saved](NdArray::save) array to it, as [`Builder::load`](crate::Builder::load) does.
    ///
    /// # Errors
    /// The errors of [`Builder::load`](crate::Builder::load).
    pub fn load(self, path: impl AsRef<Path>) -> Result<NdArray<T, N, D>> {
        self.load_with(path, |_| ControlFlow::Continue(()))
    }

    /// Loads an array like [`load`](Self::load), and reports progress like
    /// [`Builder::load_with`](crate::Builder::load_with).
    ///
    /// # Errors
    /// The errors of [`Builder::load_with`](crate::Builder::load_with).
    pub fn load_with(
        mut self,
        path: impl AsRef<Path>,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    ) -> Result<NdArray<T, N, D>> {
        let reader = VirtualArray::<T>::builder(0).cache_bytes(0);
        let (file, shape) = reader.open_as([path], true, of_words::<N>, &format!("{N} dimensions"))?;
        (self.shape, self.layout) = shape;
        let array = self.build()?;
        saved::copy_all(&file, array.elements(), progress)?;
        Ok(array)
    }
}

/// Returns shape and layout in words: extents of the array and of tiles.
fn in_words<const N: usize>(shape: [usize; N], layout: NdLayout<N>) -> String {
    let extents = |extents: [usize; N]| extents.map(|extent| extent.to_string()).join(" x ");
    match layout {
        NdLayout::RowMajor => extents(shape),
        NdLayout::Tiled(tile) => format!("{} in tiles of {}", extents(shape), extents(tile)),
    }
}

fn of_words<const N: usize>(words: &str) -> Option<([usize; N], NdLayout<N>)> {
    let extents = |words: &str| -> Option<[usize; N]> {
        let extents: Option<Vec<usize>> = words.split(" x ").map(|extent| extent.parse().ok()).collect();
        extents?.try_into().ok()
    };
    match words.split_once(" in tiles of ") {
        Some((shape, tile)) => Some((extents(shape)?, NdLayout::Tiled(extents(tile)?))),
        None => Some((extents(words)?, NdLayout::RowMajor)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_as_they_were_written() {
        for layout in [NdLayout::RowMajor, NdLayout::Tiled([2, 3, 4])] {
            assert_eq!(of_words(&in_words([5, 60, 7], layout)), Some(([5, 60, 7], layout)));
        }
        assert_eq!(of_words::<2>("1 x 2 x 3"), None);
        assert_eq!(of_words::<1>("linear"), None);
    }
}
