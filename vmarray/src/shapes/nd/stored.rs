//! N-dimensional arrays in files, and snapshots of them.

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
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-nd-sync-{}", std::process::id()));
    /// let image = NdArray::<u16, 2>::builder([300, 400]).create([&path])?;
    /// image.set([1, 2], 3)?;
    /// image.sync()?;
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn sync(&self) -> Result<()> {
        self.elements().sync()
    }
}

impl<T: Element + KernelType, const N: usize, D: Device> NdArray<T, N, D> {
    /// Writes all elements to a file with their shape and layout, as [`VirtualArray::save`] does.
    ///
    /// # Errors
    /// The errors of [`VirtualArray::save`].
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-nd-saved-{}", std::process::id()));
    /// let image = NdArray::<f32, 2>::builder([30, 40]).tile([8, 8]).build()?;
    /// image.set([29, 39], 7.0)?;
    /// image.save(&path)?;
    /// let other = NdArray::<f32, 2>::load(&path)?;
    /// assert_eq!((other.shape(), other.get([29, 39])?), ([30, 40], 7.0));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_with(path, SaveOptions::new(), |_| ControlFlow::Continue(()))
    }

    /// Saves the array like [`save`](Self::save), with the options and progress reports of
    /// [`VirtualArray::save_with`].
    ///
    /// # Errors
    /// The errors of [`VirtualArray::save_with`].
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use std::ops::ControlFlow;
    /// use vmarray::file::SaveOptions;
    /// # let path = std::env::temp_dir().join(format!("vmarray-nd-save-with-{}", std::process::id()));
    /// let image = NdArray::<u8, 2>::builder([30, 40]).build()?;
    /// assert!(image.save_with(&path, SaveOptions::new(), |_| ControlFlow::Break(())).is_err() && !path.exists());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
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
    /// Creates a persistent array of zeroes, in rows, in a new file: [`NdBuilder::create`] with the default
    /// settings.
    ///
    /// # Errors
    /// The errors of [`NdBuilder::create`].
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-nd-create-one-{}", std::process::id()));
    /// let image = NdArray::<u16, 2>::create(&path, [300, 400])?;
    /// image.set([299, 399], 7)?;
    /// image.sync()?;
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn create(path: impl AsRef<Path>, shape: [usize; N]) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder(shape).create([path])
    }

    /// Opens the array of a file for reading and writing: [`NdBuilder::open`] with the default settings. The
    /// file defines the shape.
    ///
    /// # Errors
    /// The errors of [`NdBuilder::open`].
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-nd-open-one-{}", std::process::id()));
    /// drop(NdArray::<u16, 2>::create(&path, [300, 400])?);
    /// assert_eq!(NdArray::<u16, 2>::open(&path)?.shape(), [300, 400]);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder([0; N]).open([path])
    }

    /// Opens the array of a file for reading only: [`NdBuilder::open_read_only`] with the default settings.
    ///
    /// # Errors
    /// The errors of [`NdBuilder::open_read_only`].
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-nd-read-only-one-{}", std::process::id()));
    /// drop(NdArray::<u16, 2>::create(&path, [300, 400])?);
    /// let image = NdArray::<u16, 2>::open_read_only(&path)?;
    /// assert!(image.set([1, 1], 1).is_err() && image.get([1, 1])? == 0);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder([0; N]).open_read_only([path])
    }

    /// Copies a [saved](Self::save) array with its shape and layout to a new array: [`NdBuilder::load`] with
    /// the default settings. To work on the file itself, [`open`](Self::open) it.
    ///
    /// # Errors
    /// The errors of [`NdBuilder::load`].
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-nd-load-one-{}", std::process::id()));
    /// NdArray::<u8, 2>::builder([30, 40]).build()?.save(&path)?;
    /// assert_eq!(NdArray::<u8, 2>::load(&path)?.shape(), [30, 40]);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
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
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-nd-created-{}", std::process::id()));
    /// let image = NdArray::<u16, 2>::builder([300, 400]).tiled().create([&path])?;
    /// image.set([299, 399], 7)?;
    /// image.sync()?;
    /// drop(image);
    /// let image = NdArray::<u16, 2>::builder([0, 0]).open([&path])?;
    /// assert_eq!((image.shape(), image.get([299, 399])?), ([300, 400], 7));
    /// // Of another number of dimensions it is refused.
    /// drop(image);
    /// assert!(NdArray::<u16, 3>::builder([0; 3]).open([&path]).is_err());
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn create<P: AsRef<Path>>(self, files: impl IntoIterator<Item = P>) -> Result<NdArray<T, N>> {
        let words = in_words(self.shape, self.layout);
        let (elements, geometry) = self.into_elements()?;
        Ok(NdArray::assemble(elements.create_as(files, &words)?, geometry))
    }

    /// Opens an array in files, to read and write: [`Builder::open`](crate::Builder::open). Shape and layout
    /// come from the file.
    ///
    /// # Errors
    /// The errors of [`Builder::open`](crate::Builder::open).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-nd-opened-{}", std::process::id()));
    /// drop(NdArray::<u16, 2>::builder([300, 400]).create([&path])?);
    /// assert_eq!(NdArray::<u16, 2>::builder([0, 0]).open([&path])?.shape(), [300, 400]);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn open<P: AsRef<Path>>(self, files: impl IntoIterator<Item = P>) -> Result<NdArray<T, N>> {
        self.open_for(files, false)
    }

    /// Opens an array in files for reading only: [`Builder::open_read_only`](crate::Builder::open_read_only).
    ///
    /// # Errors
    /// The errors of [`Builder::open_read_only`](crate::Builder::open_read_only).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-nd-read-only-{}", std::process::id()));
    /// drop(NdArray::<u8, 2>::builder([30, 40]).create([&path])?);
    /// let image = NdArray::<u8, 2>::builder([0, 0]).open_read_only([&path])?;
    /// assert!(image.set([1, 1], 1).is_err() && image.get([1, 1])? == 0);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
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
        Ok(NdArray::assemble(elements, LayoutGeometry::new(shape.0, shape.1)?.0))
    }

    /// Builds an array with these settings, and with the shape, layout and elements of a
    /// [saved](NdArray::save) array: [`Builder::load`](crate::Builder::load).
    ///
    /// # Errors
    /// The errors of [`Builder::load`](crate::Builder::load).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-nd-loaded-{}", std::process::id()));
    /// NdArray::<u8, 2>::builder([30, 40]).build()?.save(&path)?;
    /// assert_eq!(NdArray::<u8, 2>::builder([0, 0]).load(&path)?.shape(), [30, 40]);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn load(self, path: impl AsRef<Path>) -> Result<NdArray<T, N, D>> {
        self.load_with(path, |_| ControlFlow::Continue(()))
    }

    /// Loads an array like [`load`](Self::load), and reports progress like
    /// [`Builder::load_with`](crate::Builder::load_with).
    ///
    /// # Errors
    /// The errors of [`Builder::load_with`](crate::Builder::load_with).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use std::ops::ControlFlow;
    /// # let path = std::env::temp_dir().join(format!("vmarray-nd-load-with-{}", std::process::id()));
    /// NdArray::<u8, 2>::builder([30, 40]).build()?.save(&path)?;
    /// let mut bytes = 0;
    /// NdArray::<u8, 2>::builder([0, 0]).load_with(&path, |progress| {
    ///     bytes = progress.done_bytes;
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(bytes, 1200);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
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

/// Describes shape and layout in words: extents of the array and of tiles.
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
