//! Index sets in files: saves, loads and opens them.

use std::ops::ControlFlow;
use std::path::Path;

use backend_api::Device;

use super::{Dimension, IndexSet, PagedIndexSet, Tuples as _, distinct, whole_tuples};
use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::progress::{Progress, in_reported_steps};
use crate::ops::saved::{self, SaveOptions};
use crate::ops::view::View as _;
use crate::setup::any::AnyDevice;

/// The beginning of a description of a set, as error messages show it.
const ASKED: &str = "tuples of dimensions";

/// Returns the description of a set in words, for its file.
fn in_words(dimensions: &[Dimension], len: usize) -> String {
    let dimensions = dimensions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    format!("{len} {ASKED} {dimensions}")
}

fn of_words(words: &str) -> Option<(Vec<Dimension>, usize)> {
    let (len, dimensions) = words.split_once(&format!(" {ASKED} "))?;
    let dimensions = dimensions.split(' ').filter(|dimension| !dimension.is_empty());
    let dimensions = dimensions.map(|dimension| dimension.parse().ok()).collect::<Option<Vec<_>>>()?;
    Some((distinct(dimensions).ok()?, len.parse().ok()?))
}

/// Opens a file of tuples. Returns the array of values, the dimensions, and the number of tuples.
fn open_values(
    builder: Builder<u64, AnyDevice>,
    path: &Path,
    is_read_only: bool,
) -> Result<(VirtualArray<u64>, Vec<Dimension>, usize)> {
    let (file, (dimensions, len)) = builder.open_as([path], is_read_only, of_words, ASKED)?;
    // The number of values gives the number of tuples. Without dimensions, use the stored number.
    let tuples = whole_tuples(file.len(), dimensions.len())?;
    let len = if dimensions.is_empty() { len } else { tuples };
    Ok((file, dimensions, len))
}

impl IndexSet {
    /// Writes all tuples and their labels to a file, in the format of [`VirtualArray::save`].
    /// [`load`](Self::load), [`PagedIndexSet::load`] and [`PagedIndexSet::open`] read such a file.
    ///
    /// # Errors
    /// The errors of [`VirtualArray::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_with(path, |_| ControlFlow::Continue(()))
    }

    /// Saves the set like [`save`](Self::save), and reports progress like [`VirtualArray::save_with`].
    ///
    /// # Errors
    /// The errors of [`VirtualArray::save_with`].
    pub fn save_with(
        &self,
        path: impl AsRef<Path>,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    ) -> Result<()> {
        let values = self.values.len();
        let read = |at: usize, into: &mut [u64]| {
            into.copy_from_slice(&self.values[at..at + into.len()]);
            Ok(())
        };
        saved::atomically(path.as_ref(), |unfinished| {
            let builder = VirtualArray::<u64>::builder(values).cache_bytes(0);
            let file = builder.create_as([unfinished], &in_words(&self.dimensions, self.len))?;
            let made = saved::UnfinishedFile(Some(unfinished));
            in_reported_steps(values * size_of::<u64>(), progress, |steps| {
                saved::copy(values, file.page_len(), read, &file, steps)
            })?;
            file.sync()?;
            made.keep();
            Ok(())
        })
    }

    /// Reads all tuples of a file to RAM. No program may have the file open for writing.
    ///
    /// # Errors
    /// The errors of [`Builder::load`], and [`NoMemory`](crate::ErrorKind::NoMemory).
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let (file, dimensions, len) = open_values(VirtualArray::builder(0), path.as_ref(), true)?;
        let mut values = zeroed_vec(file.len())?;
        file.read(0, &mut values)?;
        Ok(Self::assemble(dimensions, values, len))
    }
}

impl<D: Device> PagedIndexSet<D> {
    /// Writes all tuples and labels to a file, as [`IndexSet::save`] does.
    ///
    /// # Errors
    /// The errors of [`IndexSet::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_with(path, |_| ControlFlow::Continue(()))
    }

    /// Saves the set like [`save`](Self::save), and reports progress like [`VirtualArray::save_with`].
    ///
    /// # Errors
    /// The errors of [`VirtualArray::save_with`].
    pub fn save_with(
        &self,
        path: impl AsRef<Path>,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    ) -> Result<()> {
        let words = in_words(self.dimensions(), self.len());
        self.array().save_as(path.as_ref(), &words, SaveOptions::new(), progress)
    }

    /// Copies the tuples of a [saved](Self::save) set to a new array, and returns it as an index set. The
    /// closure `describe` gets the array's builder, and may set its devices and its cache.
    ///
    /// # Errors
    /// The errors of [`Builder::load`].
    pub fn load(
        path: impl AsRef<Path>,
        describe: impl FnOnce(Builder<u64, AnyDevice>) -> Builder<u64, D>,
    ) -> Result<Self> {
        Self::load_with(path, describe, |_| ControlFlow::Continue(()))
    }

    /// Loads a set like [`load`](Self::load), and reports progress like [`Builder::load_with`].
    ///
    /// # Errors
    /// The errors of [`Builder::load_with`].
    pub fn load_with(
        path: impl AsRef<Path>,
        describe: impl FnOnce(Builder<u64, AnyDevice>) -> Builder<u64, D>,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    ) -> Result<Self> {
        let reader = VirtualArray::builder(0).cache_bytes(0);
        let (file, dimensions, len) = open_values(reader, path.as_ref(), true)?;
        let array = describe(VirtualArray::builder(file.len())).with_len(file.len()).build()?;
        saved::copy_all(&file, &array, progress)?;
        Ok(Self::assemble(dimensions, array, len))
    }
}

impl PagedIndexSet {
    /// Opens a [saved](Self::save) set, to read and write its tuples in the file itself. The number of tuples
    /// is fixed. The closure `describe` gets the array's builder, and may set its cache. Writes to the
    /// [array](Self::array) become durable with [`sync`](VirtualArray::sync).
    ///
    /// # Errors
    /// The errors of [`Builder::open`].
    pub fn open(
        path: impl AsRef<Path>,
        describe: impl FnOnce(Builder<u64, AnyDevice>) -> Builder<u64, AnyDevice>,
    ) -> Result<Self> {
        let builder = describe(VirtualArray::builder(0));
        let (array, dimensions, len) = open_values(builder, path.as_ref(), false)?;
        Ok(Self::assemble(dimensions, array, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_read_as_they_were_written() {
        for dimensions in [&[][..], &[7], &[u32::MAX, 0, 3]] {
            assert_eq!(of_words(&in_words(dimensions, 12)), Some((dimensions.to_vec(), 12)));
        }
        for words in ["linear", "rows", "30 x 40", "2 tuples of dimensions 1 1", "x tuples of dimensions 1"] {
            assert_eq!(of_words(words), None, "{words}");
        }
    }
}
