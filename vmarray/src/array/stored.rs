//! Arrays in files: `create`, `open` and `sync`, and the description of an array in its file.

mod files;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend_api::Device;
use vmarray_kernel::KernelType;
use vmarray_store::Tier;

use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::array::settings::PAGE_BYTES;
use crate::base::element::{self, Element};
use crate::base::error::Result;
use crate::engine::pager::{KeptLength, PersistentLen};

pub(crate) use files::LINEAR;
use files::{Description, FilePart, Files, PLACE_BYTES, ROWS, in_words, native_byte_order};
pub use files::{annotation, description};

impl<T: Element> VirtualArray<T> {
    /// Creates a persistent array of `len` zeroes in a new file: [`Builder::create`] with default settings.
    ///
    /// # Errors
    /// The errors of [`Builder::create`].
    pub fn create(path: impl AsRef<Path>, len: usize) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder(len).create([path])
    }

    /// Opens the array of a file for reading and writing: [`Builder::open`] with the default settings.
    ///
    /// # Errors
    /// The errors of [`Builder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder(0).open([path])
    }

    /// Opens the array of a file for reading only: [`Builder::open_read_only`] with the default settings.
    ///
    /// # Errors
    /// The errors of [`Builder::open_read_only`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder(0).open_read_only([path])
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Makes all earlier writes and the length durable: after `sync` returns, they survive any end of the
    /// process, and a loss of power. Concurrent writes and pushes may be included or not.
    ///
    /// After a crash, each page and the length have the state of the last completed `sync`, or a later one.
    /// No page is torn, and no element below the length is missing. All pages of all files have the state of
    /// the same `sync`. If a file was replaced by a copy from another time, [`open`](Builder::open) returns
    /// an error.
    ///
    /// Blocks until dirty pages are written back and the drives have stored them; hits continue meanwhile.
    ///
    /// # Errors
    /// [`Device`](crate::ErrorKind::Device) with the error of the drive, or of kind `Unsupported` if the
    /// array is not in [files](Builder::create); [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) if the
    /// calling thread holds a page exclusively. The next call repeats failed writes.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-sync-{}", std::process::id()));
    /// let array = VirtualArray::<u64>::create(&path, 1_000_000)?;
    /// array.set(7, 8)?;
    /// array.sync()?;
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn sync(&self) -> Result<()> {
        self.pager().sync()
    }
}

impl<T: Element + KernelType, D: Device> Builder<T, D> {
    /// Caches pages of the array's files in the memory of GPUs, as a tier between the drive and the cache in
    /// RAM. Reads of frequently used pages that do not fit into RAM then have the speed of the bus. The
    /// setting applies to arrays in files that this builder creates or opens, also read-only. With a tier,
    /// [`build`](Self::build), which uses no files, fails with
    /// [`FileRefused`](crate::ErrorKind::FileRefused). For a [`FileDevice`](crate::store::FileDevice), set
    /// the tier when you create the device.
    ///
    /// The call that creates or opens the array allocates GPU memory. The tier skips a GPU that has too
    /// little memory or fails later, without an error: [`Tier::status`](crate::store::Tier::status) has the
    /// reason. Several arrays with the same page length can share a tier.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::host::HostDevice;
    /// use vmarray::store::Tier;
    /// use std::sync::Arc;
    /// # let path = std::env::temp_dir().join(format!("vmarray-tier-{}", std::process::id()));
    /// // With GPUs: `Tier::new(vmarray::devices()?)`. Here RAM replaces a GPU.
    /// let tier = Tier::new([Arc::new(HostDevice::new(4 << 20)?)]).bytes(2 << 20);
    /// let builder = VirtualArray::<u64>::builder(1 << 20).cache_bytes(1 << 20).tier(&tier);
    /// let array = builder.create([&path])?;
    /// array.fill(.., 7)?;
    /// for _ in 0..3 {
    ///     for i in (0..200_000).step_by(1000) {
    ///         assert_eq!(array.get(i)?, 7);
    ///     }
    /// }
    /// assert!(tier.status().hits > 0);
    /// # drop(array);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn tier(mut self, tier: &Tier) -> Self {
        self.settings.tier = Some(tier.clone());
        self
    }

    /// Sets a line of text that [`create`](Self::create) stores in the description of new files, for example
    /// the names of columns. Another program reads it by [`annotation`](crate::file::annotation).
    ///
    /// ```
    /// use vmarray::{file, prelude::*};
    /// # let path = std::env::temp_dir().join(format!("vmarray-annotation-{}", std::process::id()));
    /// VirtualArray::<f32>::builder(100).annotation("temperatures in K").create([&path])?;
    /// assert_eq!(file::annotation(&path)?, "temperatures in K");
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn annotation(mut self, text: impl Into<String>) -> Self {
        self.settings.annotation = text.into().replace(['\n', '\r'], " ");
        self
    }

    /// Creates an array of zeroes in new files. Only this user can access the files, and the array locks them
    /// while it is open. A later program [opens](Self::open) the array again.
    ///
    /// Writes are durable after [`sync`](VirtualArray::sync), or after dropping the array, which syncs and
    /// can only warn of a failure. Files take space for non-zero pages, and a second time for each page
    /// changed between two calls of `sync`. [`StoreDevice`](crate::store::StoreDevice) documents overhead,
    /// crash safety and checksums.
    ///
    /// The array can [grow](VirtualArray#growth), now and whenever it is open for writing. Files store no
    /// greatest length, so [`max_len`](Self::max_len) applies until the array is dropped; it only reserves a
    /// page table. The default is 16 Mi pages (a TiB, with the default page length), or 65536 pages if they
    /// are shorter than 4 KiB, but at least four times the present length. The default page has 64 KiB, or
    /// the greatest length of the array.
    ///
    /// The devices of the builder are ignored. The placement is [`Equal`](crate::Placement::Equal) or
    /// [`Ratios`](crate::Placement::Ratios) over the files, which may be on different drives.
    ///
    /// # Errors
    /// [`FileRefused`](crate::ErrorKind::FileRefused) for an empty list of files, for other placements, and
    /// for [movable](Self::movable) arrays; [`Device`](crate::ErrorKind::Device) of kind `AlreadyExists` if a
    /// path exists, whose file stays unchanged; of kind `InvalidArgument` if the description of element type,
    /// files and shares takes more than some 3900 bytes; and with errors of the system. The other errors of
    /// [`build`](Self::build). After an error, the call removes the files that it has created. A loss of
    /// power during the call leaves a file that cannot be opened.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::kernel::KernelType;
    /// use vmarray::bytemuck::{Pod, Zeroable};
    /// #[derive(Clone, Copy, Pod, Zeroable, KernelType)]
    /// #[bytemuck(crate = "vmarray::bytemuck")]
    /// #[repr(C)]
    /// struct Point { x: f32, y: f32 }
    ///
    /// # let name = |n| std::env::temp_dir().join(format!("vmarray-created-{n}-{}", std::process::id()));
    /// # let files = [name(0), name(1)];
    /// let points = VirtualArray::<Point>::builder(1000).page_len(64).create(&files)?;
    /// points.set(999, Point { x: 1.0, y: 2.0 })?;
    /// drop(points);
    ///
    /// let points = VirtualArray::<Point>::builder(0).cache_bytes(1 << 20).open(&files)?;
    /// assert_eq!((points.len(), points.page_len(), points.get(999)?.y), (1000, 64, 2.0));
    /// // Another type is refused, and both are named.
    /// drop(points);
    /// let error = VirtualArray::<[f32; 2]>::builder(0).open(&files).unwrap_err().to_string();
    /// assert!(error.contains("Point of 8 bytes { x: f32 at 0, y: f32 at 4 }"), "{error}");
    /// # files.map(|file| std::fs::remove_file(file).unwrap());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn create<P: AsRef<Path>>(self, files: impl IntoIterator<Item = P>) -> Result<VirtualArray<T>> {
        self.create_as(files, LINEAR)
    }

    /// Creates files for an array with a shape.
    pub(crate) fn create_as<P: AsRef<Path>>(
        self,
        files: impl IntoIterator<Item = P>,
        shape: &str,
    ) -> Result<VirtualArray<T>> {
        let page_len = self.page_len_in_files(shape)?;
        let pages = self.len.div_ceil(page_len) as u64;
        let (paths, description) = self.describe_files(files, shape, page_len)?;
        let page_bytes = page_len * element::ElementLayout::<T>::BYTES;
        let (made, files) =
            Files::make(paths, description, page_bytes, [pages, 0], self.len, self.settings.tier.as_ref())?;
        let array = files.array(self)?;
        made.keep();
        Ok(array)
    }

    /// Returns the number of elements of a page in files.
    fn page_len_in_files(&self, shape: &str) -> Result<usize> {
        let is_open = self.max_len == 0 && [LINEAR, ROWS].contains(&shape);
        let most = if is_open { usize::MAX } else { self.len.max(self.max_len) };
        self.settings.common.page_len(most, element::ElementLayout::<T>::BYTES, PAGE_BYTES)
    }

    /// Returns the description to write to new files.
    fn describe_files<P: AsRef<Path>>(
        &self,
        files: impl IntoIterator<Item = P>,
        shape: &str,
        page_elements: usize,
    ) -> Result<(Vec<PathBuf>, Description)> {
        let paths: Vec<PathBuf> = files.into_iter().map(|path| path.as_ref().to_owned()).collect();
        let mut stripe_pattern = self.settings.common.placement.stripe_pattern_of_files(paths.len())?;
        if ![LINEAR, ROWS].contains(&shape) {
            // An array that cannot grow gets at most as many channels (shares of devices) as pages, because a
            // channel without pages would be useless.
            stripe_pattern.truncate(self.len.div_ceil(page_elements).max(1));
        }
        let description = Description {
            byte_order: native_byte_order(),
            element: in_words(&T::layout()),
            shape: shape.into(),
            page_elements,
            stripe_pattern,
            file: 0,
            files: paths.len(),
            array: std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), &paths),
            annotation: self.settings.annotation.clone(),
        };
        Ok((paths, description))
    }

    /// Creates the files of a ragged array, with separate builders for elements and for starts of rows.
    pub(crate) fn create_rows<P: AsRef<Path>>(
        self,
        offsets: Builder<u64, D>,
        files: impl IntoIterator<Item = P>,
        rows: usize,
    ) -> Result<StoredRows<T>> {
        let (mut page_len, bytes) = (self.page_len_in_files(ROWS)?, element::ElementLayout::<T>::BYTES);
        // Pages of elements and of row starts have the same length in bytes. So the length must be a multiple
        // of the 8 bytes of a row start.
        while !page_len.saturating_mul(bytes).is_multiple_of(PLACE_BYTES) {
            page_len = page_len.saturating_mul(2);
        }
        let (paths, description) = self.describe_files(files, ROWS, page_len)?;
        let (page_bytes, len) = (page_len * bytes, self.len);
        let places = rows.saturating_add(1).div_ceil(page_bytes / PLACE_BYTES) as u64;
        let pages = [len.div_ceil(page_len) as u64, places];
        let (made, files) =
            Files::make(paths, description, page_bytes, pages, rows, self.settings.tier.as_ref())?;
        let rows = self.rows_of(&files, offsets, |_| Ok(len))?;
        made.keep();
        Ok(rows)
    }

    /// Opens the files of a ragged array.
    pub(crate) fn open_rows<P: AsRef<Path>>(
        self,
        offsets: Builder<u64, D>,
        files: impl IntoIterator<Item = P>,
        is_read_only: bool,
    ) -> Result<StoredRows<T>> {
        let read = |shape: &str| (shape == ROWS).then_some(());
        let (files, ()) =
            Files::open::<T, P, ()>(files, is_read_only, read, ROWS, self.settings.tier.as_ref())?;
        let rows = files.len;
        // The entry at this index is the end of the last row.
        self.rows_of(&files, offsets, |offsets| Ok(offsets.get(rows)? as usize))
    }

    /// Returns the rows in opened files; `total` computes the number of their elements.
    fn rows_of(
        self,
        files: &Files,
        offsets: Builder<u64, D>,
        total: impl FnOnce(&VirtualArray<u64>) -> Result<usize>,
    ) -> Result<StoredRows<T>> {
        let length = || KeptLength::OfWhole(Arc::clone(&files.kept));
        let offsets = files.part(offsets, FilePart::Places, files.len.saturating_add(1), length())?;
        let items = files.part(self, FilePart::Elements, total(&offsets)?, length())?;
        files.serve_work();
        let (kept, rows) = (Arc::clone(&files.kept), files.len);
        Ok(StoredRows { items, offsets, rows, kept, is_read_only: files.is_read_only })
    }

    /// Opens an array in files for reading and writing. The files may be in any order, and no other program
    /// may have them open.
    ///
    /// The array has the length of the last [`sync`](VirtualArray::sync), or a later length. The files
    /// determine the page length and the placement; the builder determines the other settings. The call reads
    /// 16 bytes for each page. If the last program did not close the array properly, the call also reads up
    /// to 16 MiB of pages.
    ///
    /// # Errors
    /// [`FileMismatch`](crate::ErrorKind::FileMismatch) if the elements have another type or byte order, or
    /// if the files do not belong to one array. [`Device`](crate::ErrorKind::Device) of kind `InUse`,
    /// `WrongFormat` or `Corrupted`, for example if one file is older than the other files, or with an error
    /// of the operating system. The other errors of [`create`](Self::create).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-opened-{}", std::process::id()));
    /// VirtualArray::<u32>::create(&path, 1000)?.fill(.., 7)?;
    /// let array = VirtualArray::<u32>::builder(0).cache_bytes(1 << 20).open([&path])?;
    /// assert_eq!(array.sum(.., Field::whole())?, 7000);
    /// // Growth continues at the end.
    /// assert_eq!(array.push(8)?, 1000);
    /// array.sync()?;
    /// drop(array);
    /// assert_eq!(VirtualArray::<u32>::open(&path)?.get(1000)?, 8);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn open<P: AsRef<Path>>(self, files: impl IntoIterator<Item = P>) -> Result<VirtualArray<T>> {
        self.open_as(files, false, |shape| (shape == LINEAR).then_some(()), LINEAR).map(|(array, ())| array)
    }

    /// Opens an array in files for reading only, like [`open`](Self::open). Other programs may open the files
    /// for reading at the same time. Writes return an error of kind `ReadOnly`.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-read-only-{}", std::process::id()));
    /// VirtualArray::<u32>::create(&path, 1000)?.fill(.., 7)?;
    /// let open = || VirtualArray::<u32>::builder(0).open_read_only([&path]);
    /// let (one, other) = (open()?, open()?);
    /// assert_eq!((one.get(1)?, other.get(2)?), (7, 7));
    /// assert!(one.set(1, 8).is_err() && one.fill(.., 8).is_err() && one.get(1)? == 7);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn open_read_only<P: AsRef<Path>>(
        self,
        files: impl IntoIterator<Item = P>,
    ) -> Result<VirtualArray<T>> {
        self.open_as(files, true, |shape| (shape == LINEAR).then_some(()), LINEAR).map(|(array, ())| array)
    }

    /// Opens files with an array of the shape `asked`, and returns the shape, which `read` parses from words.
    pub(crate) fn open_as<P: AsRef<Path>, S>(
        self,
        files: impl IntoIterator<Item = P>,
        is_read_only: bool,
        read: impl Fn(&str) -> Option<S>,
        asked: &str,
    ) -> Result<(VirtualArray<T>, S)> {
        let (files, shape) =
            Files::open::<T, P, S>(files, is_read_only, read, asked, self.settings.tier.as_ref())?;
        Ok((files.array(self)?, shape))
    }
}

/// The parts of a ragged array in files.
pub(crate) struct StoredRows<T: Element> {
    pub(crate) items: VirtualArray<T>,
    /// The index of each row's first element, and the end of the last row.
    pub(crate) offsets: VirtualArray<u64>,
    pub(crate) rows: usize,
    /// The stored number of rows.
    pub(crate) kept: Arc<PersistentLen>,
    pub(crate) is_read_only: bool,
}
