//! Arrays in files, which outlive the program: making, opening, and what is written down of them.

mod files;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend_api::Device;
use backend_host::Tier;
use vmarray_kernel::{KernelType, Layout};

use crate::array::VirtualArray;
use crate::array::builder::{Builder, PAGE_BYTES};
use crate::base::element::{self, Element};
use crate::base::error::Result;
use crate::engine::pager::{KeptLength, StoredLength};

use files::{FilePart, Files, PLACE_BYTES};

/// The first line of what is written down of an array, and its version.
const FORMAT: &str = "vmarray array 1";
/// The shape of arrays of one dimension.
pub(crate) const LINEAR: &str = "linear";
/// The shape of rows of any lengths: elements, and in pages of the first file, before its channels of these,
/// 64-bit numbers that say where rows begin. What is written down as the length is how many rows there are.
pub(crate) const ROWS: &str = "rows";

/// What is written down of an array in each of its files: lines of `name: value`. How long it is changes, and
/// is noted with each commit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Description {
    byte_order: String,
    element: String,
    /// What the elements make up, in words.
    shape: String,
    page_elements: usize,
    /// Which file each channel is in.
    turns: Vec<usize>,
    /// Which of how many files this is.
    file: usize,
    files: usize,
    /// A number of this array alone.
    array: u64,
}

fn native_byte_order() -> String {
    if cfg!(target_endian = "little") { "little" } else { "big" }.into()
}

/// An element type in words: names of structs and fields, kinds, sizes, and where fields are.
fn in_words(layout: &Layout) -> String {
    match layout {
        Layout::Scalar(of) => format!("{of:?}").to_lowercase(),
        Layout::Array(of, count) => format!("[{}; {count}]", in_words(of)),
        Layout::Tuple(parts) => format!("({})", parts.iter().map(in_words).collect::<Vec<_>>().join(", ")),
        Layout::Struct { name, fields, bytes } => {
            let field = |field: &vmarray_kernel::Field| {
                format!("{}: {} at {}", field.name, in_words(&field.layout), field.offset)
            };
            let fields = fields.iter().map(field).collect::<Vec<_>>().join(", ");
            format!("{name} of {bytes} bytes {{ {fields} }}")
        }
    }
}

impl Description {
    fn to_text(&self) -> String {
        let turns = self.turns.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        format!(
            "{FORMAT}\nbyte order: {}\nelement: {}\nshape: {}\nelements of a page: {}\n\
             files of channels: {turns}\nfile: {}\nfiles: {}\narray: {:016x}\n",
            self.byte_order, self.element, self.shape, self.page_elements, self.file, self.files, self.array,
        )
    }

    fn of_text(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let lines: HashMap<&str, &str> =
            text.strip_prefix(FORMAT)?.lines().filter_map(|line| line.split_once(": ")).collect();
        let number = |name: &str| lines.get(name)?.parse::<usize>().ok();
        let turns = lines.get("files of channels")?.split(' ').map(|turn| turn.parse().ok());
        let description = Self {
            byte_order: (*lines.get("byte order")?).into(),
            element: (*lines.get("element")?).into(),
            shape: (*lines.get("shape")?).into(),
            page_elements: number("elements of a page")?,
            turns: turns.collect::<Option<_>>()?,
            file: number("file")?,
            files: number("files")?,
            array: u64::from_str_radix(lines.get("array")?, 16).ok()?,
        };
        let Self { page_elements, ref turns, file, files, .. } = description;
        let is_sound = page_elements > 0 && file < files && turns.iter().all(|turn| *turn < files);
        (is_sound && !turns.is_empty()).then_some(description)
    }
}

impl<T: Element + KernelType> VirtualArray<T> {
    /// Makes an array of zeroes in a new file, whose elements stay: [`Builder::create`] with the default
    /// settings.
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-create-one-{}", std::process::id()));
    /// let array = VirtualArray::<u64>::create(&path, 1000)?;
    /// array.set(7, 8)?;
    /// array.sync()?;
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn create(path: impl AsRef<Path>, len: usize) -> Result<Self> {
        Self::builder(len).create([path])
    }

    /// Opens the array of a file, to read and write: [`Builder::open`] with the default settings.
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-open-one-{}", std::process::id()));
    /// VirtualArray::<u64>::create(&path, 1000)?.set(7, 8)?;
    /// assert_eq!(VirtualArray::<u64>::open(&path)?.get(7)?, 8);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder(0).open([path])
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Has the elements stay that were written before, and the length that there was: returns when they are
    /// there after the end of the process, however it ends, and after a loss of power. What others write and
    /// push meanwhile may stay or not. After a crash each page is as at the last `sync` that returned, or as
    /// later, and so is the length; no page is torn, and no element missing below it. All pages of one file
    /// are as one `sync` has stored them. Those of several files may be of two, if the power fails in the
    /// midst of one: elements that [`insert`](Self::insert) or [`remove`](Self::remove) has moved since the
    /// one before may be there twice then, or not at all.
    ///
    /// Blocks until dirty pages are written back and the drives have stored what they were given; hits go on
    /// meanwhile.
    ///
    /// # Errors
    /// [`Device`](crate::ErrorKind::Device) with what the drive says, or of kind `Unsupported` for an array
    /// whose devices are no [files](Builder::create); [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) if
    /// the calling thread holds a page exclusively. What does not stay is tried again by the next call.
    ///
    /// ```
    /// # use vmarray::prelude::*;
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
    /// Caches pages of the array's files on cards, between the drive and the cache in RAM: what is read again
    /// and again, and does not fit into RAM, then comes at the speed of the bus. For arrays in files that are
    /// made or opened by this builder, to read alone, too: [`build`](Self::build) fails with
    /// [`FileRefused`](crate::ErrorKind::FileRefused). A [`FileDevice`](crate::host::FileDevice) is given a
    /// tier when it is made.
    ///
    /// The memory of the cards is taken when the array is made or opened; a card that has none, or fails
    /// later, is not used, which is no error: [`Tier::status`](crate::host::Tier::status) says why. Several
    /// arrays whose pages are of one length share a tier that all of them are given.
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use vmarray::host::{HostDevice, Tier};
    /// use std::sync::Arc;
    /// # let path = std::env::temp_dir().join(format!("vmarray-tier-{}", std::process::id()));
    /// // Cards: `Tier::new(vmarray::devices()?)`. Here RAM stands in for one.
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

    /// Makes an array of zeroes in new files, for this user alone, and nobody else while it is open. It is
    /// there again by [`open`](Self::open) when the program has ended.
    ///
    /// What is written stays when [`sync`](VirtualArray::sync) says so, or when the array is dropped, which
    /// syncs and can only warn of a failure. Files take room for what is not zero, and for each page a second
    /// time while it is changed between two calls of `sync`; what they hold beyond the elements, how they
    /// outlive crashes, and checksums are at [`StoreDevice`](crate::host::StoreDevice).
    ///
    /// The array can [grow](VirtualArray#growth), now and whenever it is opened to write. How far is nothing
    /// that files know: [`max_len`](Self::max_len) says for how many elements a page table is set aside until
    /// the array is dropped. By default that is for 16 Mi pages (a TiB, in pages of the default length), for
    /// 65536 of pages shorter than 4 KiB, or for four times as many as there are. Pages are 64 KiB long by
    /// default, or as long as the array may ever be.
    ///
    /// Of the settings, devices do not count, and the placement is [`Equal`](crate::Placement::Equal) or by
    /// [`Ratios`](crate::Placement::Ratios), over files, which may be on different drives.
    ///
    /// # Errors
    /// [`FileRefused`](crate::ErrorKind::FileRefused) for no files, other placements, and arrays that are to
    /// be movable; [`Device`](crate::ErrorKind::Device) of kind `AlreadyExists` if there is anything at a
    /// path, which is left as it is, of kind `InvalidArgument` if element type, files and shares take more
    /// than some 3900 bytes to describe, and what the system says; else as [`build`](Self::build). No file is
    /// left behind; a loss of power in the middle leaves one that cannot be opened.
    ///
    /// ```
    /// # use vmarray::prelude::*;
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

    /// Makes files of elements that make up a shape.
    pub(crate) fn create_as<P: AsRef<Path>>(
        self,
        files: impl IntoIterator<Item = P>,
        shape: &str,
    ) -> Result<VirtualArray<T>> {
        let page_len = self.page_len_in_files(shape)?;
        let pages = self.len.div_ceil(page_len) as u64;
        let (paths, description) = self.describe_files(files, shape, page_len)?;
        let page_bytes = page_len * element::Layout::<T>::BYTES;
        let (made, files) =
            Files::make(paths, description, page_bytes, [pages, 0], self.len, self.settings.tier.as_ref())?;
        let array = files.array(self)?;
        made.keep();
        Ok(array)
    }

    /// How many elements a page has in files.
    fn page_len_in_files(&self, shape: &str) -> Result<usize> {
        let is_open = self.max_len == 0 && [LINEAR, ROWS].contains(&shape);
        let most = if is_open { usize::MAX } else { self.len.max(self.max_len) };
        self.settings.common.page_len::<T>(most, PAGE_BYTES)
    }

    /// What is written down of new files.
    fn describe_files<P: AsRef<Path>>(
        &self,
        files: impl IntoIterator<Item = P>,
        shape: &str,
        page_elements: usize,
    ) -> Result<(Vec<PathBuf>, Description)> {
        let paths: Vec<PathBuf> = files.into_iter().map(|path| path.as_ref().to_owned()).collect();
        let mut turns = self.settings.common.placement.turns_of_files(paths.len())?;
        if ![LINEAR, ROWS].contains(&shape) {
            // A channel without a page would be of no use where none is added.
            turns.truncate(self.len.div_ceil(page_elements).max(1));
        }
        let description = Description {
            byte_order: native_byte_order(),
            element: in_words(&T::layout()),
            shape: shape.into(),
            page_elements,
            turns,
            file: 0,
            files: paths.len(),
            array: std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), &paths),
        };
        Ok((paths, description))
    }

    /// Makes files of so many rows, whose elements and places these builders describe.
    pub(crate) fn create_rows<P: AsRef<Path>>(
        self,
        offsets: Builder<u64, D>,
        files: impl IntoIterator<Item = P>,
        rows: usize,
    ) -> Result<StoredRows<T>> {
        let (mut page_len, bytes) = (self.page_len_in_files(ROWS)?, element::Layout::<T>::BYTES);
        // Places are in pages as long as elements.
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

    /// Opens files of rows.
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
        // Where the last row ends.
        self.rows_of(&files, offsets, |offsets| Ok(offsets.get(rows)? as usize))
    }

    /// The rows of files; `total` says how many elements they have.
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

    /// Opens the array that files have, in any order, to read and write. Nobody else may have them open.
    ///
    /// The length is that of the last [`sync`](VirtualArray::sync) or a later one, page length and placement
    /// are as they were made; those of the builder are not looked at, and its other settings count. Opening
    /// reads 16 bytes a page, and up to 16 MiB of pages if the array was not closed as it should be.
    ///
    /// # Errors
    /// [`FileMismatch`](crate::ErrorKind::FileMismatch) for elements of another type or byte order, and files
    /// that are not those of one array, with both sides named; [`Device`](crate::ErrorKind::Device) of kind
    /// `InUse`, `WrongFormat` or `Corrupted`, or with what the system says; else as [`create`](Self::create).
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-opened-{}", std::process::id()));
    /// VirtualArray::<u32>::create(&path, 1000)?.fill(.., 7)?;
    /// let array = VirtualArray::<u32>::builder(0).cache_bytes(1 << 20).open([&path])?;
    /// assert_eq!(array.sum(.., Field::whole())?, 7000);
    /// // It goes on where it ended.
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

    /// As [`open`](Self::open), to read alone; others may do so at the same time. Whatever writes is refused
    /// with an error of kind `ReadOnly`.
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use vmarray::prelude::*;
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

    /// Opens files, and what `read` makes of the shape of their elements, which is `asked`.
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

/// Rows in files.
pub(crate) struct StoredRows<T: Element> {
    pub(crate) items: VirtualArray<T>,
    /// Where they begin, and where the last one ends.
    pub(crate) offsets: VirtualArray<u64>,
    pub(crate) rows: usize,
    /// What writes down how many they are.
    pub(crate) kept: Arc<StoredLength>,
    pub(crate) is_read_only: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_read_as_it_was_written() {
        let description = Description {
            byte_order: "little".into(),
            element: in_words(&<[(u8, f32); 3]>::layout()),
            shape: LINEAR.into(),
            page_elements: 7,
            turns: vec![0, 1, 0],
            file: 1,
            files: 2,
            array: 0x123,
        };
        assert_eq!(description.element, "[(u8, f32); 3]");
        let text = description.to_text();
        assert_eq!(Description::of_text(text.as_bytes()), Some(description));
        for line in text.lines() {
            let without = text.replace(line, "");
            assert_eq!(Description::of_text(without.as_bytes()), None, "without {line}");
        }
    }
}
