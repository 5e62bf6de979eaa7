//! Ragged arrays in files: creates, opens, saves and loads them.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use backend_api::Device;
use vmarray_kernel::KernelType;

use super::growing::Growing;
use super::persistent_rows::RowsKept;
use super::{Ragged, RaggedArray, RaggedBuilder, RaggedWriter};
use crate::array::VirtualArray;
use crate::array::stored::StoredRows;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::progress::{Progress, Steps, in_reported_steps};
use crate::ops::saved::{self, SaveOptions};
use crate::ops::view::View as _;

impl<T: Element> RaggedArray<T> {
    fn of_files(stored: StoredRows<T>, total: usize) -> Self {
        let StoredRows { items, offsets, rows, kept, is_read_only } = stored;
        let kept = RowsKept { kept, rows, is_read_only };
        Self { kept: Some(kept), ..Self::of(offsets, (rows, total), items) }
    }
}

impl<T: Element> RaggedArray<T> {
    /// Creates an array without rows in a new file: [`RaggedBuilder::create`] with the default settings.
    ///
    /// # Errors
    /// The errors of [`RaggedBuilder::create`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder().create([path])
    }

    /// Opens the array in a file for reading and writing: [`RaggedBuilder::open`] with the default settings.
    ///
    /// # Errors
    /// The errors of [`RaggedBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder().open([path])
    }

    /// Opens the array in a file for reading only: [`RaggedBuilder::open_read_only`] with defaults.
    ///
    /// # Errors
    /// The errors of [`RaggedBuilder::open_read_only`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder().open_read_only([path])
    }

    /// Copies the rows of a [saved](Self::save) array to a new array: [`RaggedBuilder::load`] with the
    /// default settings. To work on the file itself, use [`open`](Self::open).
    ///
    /// # Errors
    /// The errors of [`RaggedBuilder::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder().load(path)
    }
}

impl<T: Element, D: Device> RaggedArray<T, D> {
    /// Makes all earlier rows and elements of an array in files durable: after `sync` returns, they survive
    /// the end of the process and a loss of power. After a crash the array has all rows of the last `sync` of
    /// the array or of its writer, possibly more, and each row is complete. Pages of elements have the state
    /// of that `sync`, or a later one.
    ///
    /// # Errors
    /// The errors of [`VirtualArray::sync`].
    pub fn sync(&self) -> Result<()> {
        match &self.kept {
            Some(kept) => kept.sync(self.rows, [self.items.pager(), self.offsets.pager()]),
            None => self.items.sync().and(self.offsets.sync()),
        }
    }
}

impl<T: Element, D: Device> RaggedWriter<T, D> {
    /// Makes all rows durable that threads pushed before this call to an array in files, like
    /// [`RaggedArray::sync`]. Waits for pushes in progress; later pushes may run meanwhile. If the push of a
    /// row has failed, this row and all later rows do not become durable.
    ///
    /// # Errors
    /// The errors of [`RaggedArray::sync`].
    pub fn sync(&self) -> Result<()> {
        let rows = self.complete_rows();
        let store = self.store.read();
        let (items, offsets) = (store.elements.array(), store.offsets.array());
        match &self.kept {
            Some(kept) => kept.sync(rows, [items.pager(), offsets.pager()]),
            None => items.sync().and(offsets.sync()),
        }
    }
}

impl<T: Element + KernelType, D: Device> RaggedArray<T, D> {
    /// Writes all rows to a file, as [`VirtualArray::save`] writes elements. [`RaggedArray::open`] and
    /// [`RaggedBuilder::load`] read the file.
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
        saved::atomically(path.as_ref(), |unfinished| {
            let elements = VirtualArray::<T>::builder(self.total);
            let elements = elements.page_len(self.items.page_len()).cache_bytes(0);
            let offsets = VirtualArray::builder(0).cache_bytes(0);
            let StoredRows { items, offsets, rows, kept, is_read_only } =
                elements.create_rows(offsets, [unfinished], self.rows)?;
            let items = Arc::new(items);
            let made = saved::UnfinishedFile(Some(unfinished));
            in_reported_steps(bytes_of(self.total, rows, size_of::<T>()), progress, |steps| {
                copy_offsets(&self.offsets, &offsets, rows, steps)?;
                let snapshot = options.begin(self.items.pager())?;
                saved::save_elements(&self.items, self.total, &items, snapshot, steps)
            })?;
            let items = Arc::into_inner(items).expect("an ended snapshot holds no reference to the items");
            let file = StoredRows { items, offsets, rows, kept, is_read_only };
            RaggedArray::of_files(file, self.total).sync()?;
            made.keep();
            Ok(())
        })
    }
}

/// Returns the bytes of `total` elements and of the offsets of `rows` rows.
fn bytes_of(total: usize, rows: usize, element_bytes: usize) -> usize {
    total * element_bytes + (rows + 1) * size_of::<u64>()
}

/// Copies the offsets of `rows` rows to another array.
fn copy_offsets<D: Device, E: Device>(
    from: &VirtualArray<u64, D>,
    to: &VirtualArray<u64, E>,
    rows: usize,
    steps: &Steps,
) -> Result<()> {
    saved::copy(rows + 1, from.page_len(), |at, into| from.read(at, into), to, steps)
}

impl<T: Element + KernelType, D: Device> RaggedBuilder<T, D> {
    /// Creates an array without rows in new files; the array outlives the program. Its
    /// [writer](RaggedArray::into_writer) accepts rows at any time; [`sync`](RaggedWriter::sync) makes them
    /// durable.
    ///
    /// The elements are distributed over all files as in [`Builder::create`](crate::Builder::create). The
    /// first file also has the offsets of rows. Pages of elements and of offsets have equal lengths in bytes:
    /// the page length of the elements, or the next multiple of it that holds whole offsets of eight bytes.
    /// Elements and offsets have separate [`max_len`](crate::Builder::max_len) settings.
    ///
    /// # Errors
    /// The errors of [`Builder::create`](crate::Builder::create).
    pub fn create<P: AsRef<Path>>(self, files: impl IntoIterator<Item = P>) -> Result<RaggedArray<T>> {
        let offsets = self.describe_offsets();
        Ok(RaggedArray::of_files(self.elements.with_len(0).create_rows(offsets, files, 0)?, 0))
    }

    /// Opens an array in files to read, write and add rows, like [`Builder::open`](crate::Builder::open) for
    /// elements.
    ///
    /// # Errors
    /// The errors of [`Builder::open`](crate::Builder::open).
    pub fn open<P: AsRef<Path>>(self, files: impl IntoIterator<Item = P>) -> Result<RaggedArray<T>> {
        self.open_for(files, false)
    }

    /// Opens an array in files for reading only, as
    /// [`Builder::open_read_only`](crate::Builder::open_read_only) does.
    ///
    /// # Errors
    /// The errors of [`Builder::open_read_only`](crate::Builder::open_read_only).
    pub fn open_read_only<P: AsRef<Path>>(
        self,
        files: impl IntoIterator<Item = P>,
    ) -> Result<RaggedArray<T>> {
        self.open_for(files, true)
    }

    fn open_for<P: AsRef<Path>>(
        self,
        files: impl IntoIterator<Item = P>,
        is_read_only: bool,
    ) -> Result<RaggedArray<T>> {
        let offsets = self.describe_offsets();
        let stored = self.elements.open_rows(offsets, files, is_read_only)?;
        let total = stored.items.len();
        Ok(RaggedArray::of_files(stored, total))
    }

    /// Builds an array with these settings, and copies to it the rows of a file: of a
    /// [saved](RaggedArray::save) array or of an array in files. See [`Builder::load`](crate::Builder::load).
    /// The new array can grow if its devices can.
    ///
    /// # Errors
    /// The errors of [`Builder::load`](crate::Builder::load).
    pub fn load(self, path: impl AsRef<Path>) -> Result<RaggedArray<T, D>> {
        self.load_with(path, |_| ControlFlow::Continue(()))
    }

    /// Loads an array like [`load`](Self::load), and reports progress like
    /// [`Builder::load_with`](crate::Builder::load_with).
    ///
    /// # Errors
    /// The errors of [`Builder::load_with`](crate::Builder::load_with).
    pub fn load_with(
        self,
        path: impl AsRef<Path>,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    ) -> Result<RaggedArray<T, D>> {
        let reader = RaggedArray::<T>::builder().elements(|elements| elements.cache_bytes(0));
        let file = reader.open_read_only([path])?;
        let (rows, total) = (file.rows, file.total);
        let offsets = Growing::in_place(self.describe_offsets(), rows + 1)?.into_array();
        let items = Growing::in_place(self.elements, total)?.into_array();
        in_reported_steps(bytes_of(total, rows, size_of::<T>()), progress, |steps| {
            copy_offsets(&file.offsets, &offsets, rows, steps)?;
            saved::copy(total, file.items.page_len(), |at, into| file.items.read(at, into), &items, steps)
        })?;
        Ok(Ragged::of(offsets, (rows, total), items))
    }
}
