//! Arrays in files, which outlive the program: making, opening, and what is written down of them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend_api::Device;
use backend_host::{StoreDevice, Tier};
use vmarray_kernel::{KernelType, Layout};

use crate::array::VirtualArray;
use crate::array::builder::{Builder, Homes, OpenDevices, PAGE_BYTES};
use crate::base::element::{self, Element};
use crate::base::error::{ErrorKind, Result};
use crate::engine::page::state::{HOME, ZEROED};
use crate::setup::any::AnyDevice;

/// The first line of what is written down of an array, and its version.
const FORMAT: &str = "vmarray array 1";
/// The shape of arrays of one dimension.
pub(crate) const LINEAR: &str = "linear";

/// What is written down of an array in each of its files: lines of `name: value`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Description {
    byte_order: String,
    element: String,
    elements: usize,
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
            "{FORMAT}\nbyte order: {}\nelement: {}\nelements: {}\nshape: {}\nelements of a page: {}\n\
             files of channels: {turns}\nfile: {}\nfiles: {}\narray: {:016x}\n",
            self.byte_order,
            self.element,
            self.elements,
            self.shape,
            self.page_elements,
            self.file,
            self.files,
            self.array,
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
            elements: number("elements")?,
            shape: (*lines.get("shape")?).into(),
            page_elements: number("elements of a page")?,
            turns: turns.collect::<Option<_>>()?,
            file: number("file")?,
            files: number("files")?,
            array: u64::from_str_radix(lines.get("array")?, 16).ok()?,
        };
        let Self { page_elements, ref turns, file, files, .. } = description;
        let is_sound = page_elements > 0
            && description.elements <= isize::MAX as usize
            && file < files
            && turns.iter().all(|turn| *turn < files);
        (is_sound && !turns.is_empty()).then_some(description)
    }

    fn pages(&self) -> u64 {
        self.elements.div_ceil(self.page_elements) as u64
    }

    /// How many pages a channel has.
    fn slots(&self, channel: usize) -> u64 {
        let channels = self.turns.len() as u64;
        (self.pages() + channels - 1 - channel as u64) / channels
    }

    /// How many pages are in a file.
    fn pages_of(&self, file: usize) -> u64 {
        (0..self.turns.len())
            .filter(|channel| self.turns[*channel] == file)
            .map(|channel| self.slots(channel))
            .sum()
    }
}

/// Refuses a file that is not what is asked for.
fn mismatch(
    path: &Path,
    what: &'static str,
    stored: impl Into<String>,
    asked: impl Into<String>,
) -> crate::Error {
    let (path, stored, asked) = (path.display().to_string(), stored.into(), asked.into());
    ErrorKind::FileMismatch { path, what, stored, asked }.into()
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
    /// Has the elements stay that were written before: returns when they are there after the end of the
    /// process, however it ends, and after a loss of power. Elements that others write meanwhile may stay or
    /// not. After a crash each page is as at the last `sync` that returned, or as later; no page is torn.
    ///
    /// Blocks until dirty pages are written back and the drives have stored what they were given; hits go on
    /// meanwhile.
    ///
    /// # Errors
    /// [`Device`](ErrorKind::Device) with what the drive says, or of kind `Unsupported` for an array whose
    /// devices are no [files](Builder::create); [`WouldDeadlock`](ErrorKind::WouldDeadlock) if the calling
    /// thread holds a page exclusively. What does not stay is tried again by the next call.
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
    /// [`FileRefused`](ErrorKind::FileRefused). A [`FileDevice`](crate::host::FileDevice) is given a tier
    /// when it is made.
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
    /// Of the settings, devices do not count, and the placement is [`Equal`](crate::Placement::Equal) or by
    /// [`Ratios`](crate::Placement::Ratios), over files, which may be on different drives. Each file has
    /// several channels, so that the drive is asked for several pages at once.
    ///
    /// # Errors
    /// [`FileRefused`](ErrorKind::FileRefused) for no files, other placements, and arrays that are to be
    /// movable or to [grow](Self::max_len); [`Device`](ErrorKind::Device) of kind `AlreadyExists` if there is
    /// anything at a path, which is left as it is, of kind `InvalidArgument` if element type, files and
    /// shares take more than some 3900 bytes to describe, and what the system says; else as
    /// [`build`](Self::build). No file is left behind; a loss of power in the middle leaves one that cannot
    /// be opened.
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
        if self.max_len > self.len {
            return Err(ErrorKind::FileRefused { reason: "arrays in files do not grow as yet" }.into());
        }
        let paths: Vec<PathBuf> = files.into_iter().map(|path| path.as_ref().to_owned()).collect();
        let page_len = self.settings.common.page_len::<T>(self.len, PAGE_BYTES)?;
        let pages = self.len.div_ceil(page_len) as u64;
        let mut turns = self.settings.common.placement.turns_of_files(paths.len())?;
        turns.truncate(usize::try_from(pages).unwrap_or(usize::MAX).max(1));
        let elements = self.len;
        let of_file = |file| Description {
            byte_order: native_byte_order(),
            element: in_words(&T::layout()),
            elements,
            shape: shape.into(),
            page_elements: page_len,
            turns: turns.clone(),
            file,
            files: paths.len(),
            array: std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), &paths),
        };
        let array = of_file(0).array;
        let mut stores: Vec<StoreDevice> = Vec::new();
        let made = paths.iter().enumerate().try_for_each(|(file, path)| {
            let description = Description { array, ..of_file(file) };
            let page_bytes = page_len * element::Layout::<T>::BYTES;
            let pages = description.pages_of(file);
            stores.push(StoreDevice::create(path, page_bytes, pages, description.to_text().as_bytes())?);
            Ok::<_, crate::Error>(())
        });
        let count = stores.len();
        let built = made.and_then(|()| self.with_stores(stores, &Description { array, ..of_file(0) }));
        if built.is_err() {
            // The first error is the one to tell.
            paths[..count].iter().for_each(|path| drop(std::fs::remove_file(path)));
        }
        built
    }

    /// Opens the array that files have, in any order, to read and write. Nobody else may have them open.
    ///
    /// Length, page length and placement are as they were made; those of the builder are not looked at, and
    /// its other settings count. Opening reads 16 bytes a page, and up to 16 MiB of pages if the array was
    /// not closed as it should be.
    ///
    /// # Errors
    /// [`FileMismatch`](ErrorKind::FileMismatch) for elements of another type or byte order, and files that
    /// are not those of one array, with both sides named; [`Device`](ErrorKind::Device) of kind `InUse`,
    /// `WrongFormat` or `Corrupted`, or with what the system says; else as [`create`](Self::create).
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-opened-{}", std::process::id()));
    /// VirtualArray::<u32>::create(&path, 1000)?.fill(.., 7)?;
    /// let array = VirtualArray::<u32>::builder(0).cache_bytes(1 << 20).open([&path])?;
    /// assert_eq!(array.sum(.., Field::whole())?, 7000);
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
        let mut parts = Vec::new();
        for path in files {
            let path = path.as_ref().to_owned();
            let store =
                if is_read_only { StoreDevice::open_read_only(&path) } else { StoreDevice::open(&path) }?;
            let metadata = store.metadata();
            let Some(description) = Description::of_text(&metadata) else {
                let stored = String::from_utf8_lossy(&metadata).lines().next().unwrap_or_default().to_owned();
                return Err(mismatch(&path, "contents", stored, FORMAT));
            };
            parts.push((description, store, path));
        }
        parts.sort_by_key(|(description, ..)| description.file);
        let Some((first, ..)) = parts.first() else {
            return Err(ErrorKind::FileRefused { reason: "no file is named" }.into());
        };
        let first = first.clone();
        for (at, (description, store, path)) in parts.iter().enumerate() {
            let element = in_words(&T::layout());
            if description.byte_order != native_byte_order() {
                let asked = native_byte_order();
                return Err(mismatch(path, "byte order", &description.byte_order, asked));
            }
            if description.element != element {
                return Err(mismatch(path, "element", &description.element, element));
            }
            if read(&description.shape).is_none() {
                return Err(mismatch(path, "shape", &description.shape, asked));
            }
            let expected = Description { file: at, files: parts.len(), ..first.clone() };
            if *description != expected {
                let files = |of: &Description| {
                    format!("file {} of {} of array {:016x}", of.file + 1, of.files, of.array)
                };
                return Err(mismatch(path, "place in the array", files(description), files(&expected)));
            }
            let shape = |page_bytes: usize, pages: u64| format!("{pages} pages of {page_bytes} bytes");
            let asked = description.page_elements.saturating_mul(element::Layout::<T>::BYTES);
            let (stored, asked) =
                (shape(store.page_bytes(), store.pages()), shape(asked, description.pages_of(at)));
            if stored != asked {
                return Err(mismatch(path, "length", stored, asked));
            }
        }
        let shape = read(&first.shape);
        let array = self.with_stores(parts.into_iter().map(|(_, store, _)| store).collect(), &first)?;
        shape.map(|shape| (array, shape)).ok_or(ErrorKind::FileRefused { reason: "no file is named" }.into())
    }

    /// The array on files that have its pages.
    fn with_stores(self, stores: Vec<StoreDevice>, description: &Description) -> Result<VirtualArray<T>> {
        if self.settings.is_movable() {
            return Err(ErrorKind::FileRefused { reason: "its pages stay in their files" }.into());
        }
        let is_read_only = stores.iter().any(StoreDevice::is_read_only);
        // What the slots of the channels have, in the order of their allocation.
        let mut next = vec![0; stores.len()];
        let mut first_of = Vec::new();
        for (channel, file) in description.turns.iter().enumerate() {
            first_of.push(next[*file]);
            next[*file] += description.slots(channel);
        }
        let states = |page: u64| {
            let channels = description.turns.len() as u64;
            let (channel, slot) = ((page % channels) as usize, page / channels);
            let store = &stores[description.turns[channel]];
            if store.has_contents(first_of[channel] + slot) { HOME } else { ZEROED }
        };
        let states: Vec<u64> = (0..description.pages()).map(states).collect();
        let settings = self.settings;
        let tiered = |store: StoreDevice| match &settings.tier {
            Some(tier) => store.with_tier(tier),
            None => store,
        };
        let devices: Vec<_> =
            stores.into_iter().map(|store| Arc::new(AnyDevice::from(tiered(store)))).collect();
        let homes = Homes {
            open: OpenDevices::of(devices.clone(), &settings.common)?,
            len: description.elements,
            max_len: description.elements,
            pages_most: description.pages(),
            is_open: false,
            page_len: description.page_elements,
            turns: description.turns.clone(),
            redundant: None,
        };
        Builder::<T, AnyDevice>::build_on(settings, homes, |pager| {
            (0..).zip(&states).for_each(|(page, state)| pager.table().entry(page).begin_with(*state));
            pager.keep(is_read_only);
            // All pages have their slots.
            devices.iter().for_each(|device| match &**device {
                AnyDevice::Store(store) => store.serve_work(),
                _ => unreachable!("these are stores"),
            });
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_read_as_it_was_written() {
        let description = Description {
            byte_order: "little".into(),
            element: in_words(&<[(u8, f32); 3]>::layout()),
            elements: 1000,
            shape: LINEAR.into(),
            page_elements: 7,
            turns: vec![0, 1, 0],
            file: 1,
            files: 2,
            array: 0x123,
        };
        assert_eq!(description.element, "[(u8, f32); 3]");
        let text = description.to_text();
        assert_eq!(Description::of_text(text.as_bytes()), Some(description.clone()));
        assert_eq!((description.pages(), description.pages_of(0), description.pages_of(1)), (143, 95, 48));
        for line in text.lines() {
            let without = text.replace(line, "");
            assert_eq!(Description::of_text(without.as_bytes()), None, "without {line}");
        }
    }
}
