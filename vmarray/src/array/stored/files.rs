//! The files that store an array's pages: creates and describes them, and opens them as devices.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend_api::Device as _;
use vmarray_kernel::{KernelType, Layout, LayoutField};
use vmarray_store::{StoreDevice, StoreFile, Tier};

use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::array::settings::{CommonSettings, Homes, OpenDevices};
use crate::base::element::{self, Element};
use crate::base::error::{Error, ErrorKind, Result};
use crate::engine::page::state::{HOME, ZEROED};
use crate::engine::pager::{KeptLength, Pager, PersistentLen};
use crate::setup::any::AnyDevice;
use crate::setup::inherited;

/// Default maximum of pages to which an array in files can grow until it is closed, unless pages are short.
const SPARE_PAGES: usize = 1 << 24;
const SHORT_PAGE_BYTES: usize = 4096;
const SPARE_SHORT_PAGES: usize = 1 << 16;
/// Length of a row's start, in bytes.
pub(super) const PLACE_BYTES: usize = size_of::<u64>();

/// The first line of the description of an array, with its version.
const FORMAT: &str = "vmarray array 1";
/// The words for the shape of an array of one dimension.
pub(crate) const LINEAR: &str = "linear";
/// The words for the shape of a ragged array. The first file stores the starts of rows as 64-bit numbers, in
/// a share before its shares for elements. The stored length is the number of rows.
pub(super) const ROWS: &str = "rows";

/// The description of an array in each of its files: lines of `name: value`. It does not contain the length,
/// which each commit stores separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Description {
    pub byte_order: String,
    pub element: String,
    /// The shape of the array in words, such as the extents of an N-dimensional array.
    pub shape: String,
    pub page_elements: usize,
    /// For each channel (share of an array), the number of the file that stores the channel's pages.
    pub stripe_pattern: Vec<usize>,
    /// The number of this file, and the number of all files of the array.
    pub file: usize,
    pub files: usize,
    /// A random number that identifies the array in all of its files.
    pub array: u64,
    /// A line of text of the program that created the files.
    pub annotation: String,
}

pub(super) fn native_byte_order() -> String {
    if cfg!(target_endian = "little") { "little" } else { "big" }.into()
}

/// Returns an element type in words: names of structs and fields, kinds, sizes, and offsets of fields.
pub(super) fn in_words(layout: &Layout) -> String {
    match layout {
        Layout::Scalar(of) => format!("{of:?}").to_lowercase(),
        Layout::Array(of, count) => format!("[{}; {count}]", in_words(of)),
        Layout::Tuple(parts) => format!("({})", parts.iter().map(in_words).collect::<Vec<_>>().join(", ")),
        Layout::Struct { name, fields, bytes } => {
            let field = |field: &LayoutField| {
                format!("{}: {} at {}", field.name, in_words(&field.layout), field.offset)
            };
            let fields = fields.iter().map(field).collect::<Vec<_>>().join(", ");
            format!("{name} of {bytes} bytes {{ {fields} }}")
        }
    }
}

impl Description {
    fn to_text(&self) -> String {
        let stripe_pattern =
            self.stripe_pattern.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        format!(
            "{FORMAT}\nbyte order: {}\nelement: {}\nshape: {}\nelements of a page: {}\n\
             files of channels: {stripe_pattern}\nfile: {}\nfiles: {}\narray: {:016x}\n{}",
            self.byte_order,
            self.element,
            self.shape,
            self.page_elements,
            self.file,
            self.files,
            self.array,
            // Files without an annotation are the same as those of versions that had none.
            if self.annotation.is_empty() {
                String::new()
            } else {
                format!("annotation: {}\n", self.annotation)
            },
        )
    }

    fn of_text(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let lines: HashMap<&str, &str> =
            text.strip_prefix(FORMAT)?.lines().filter_map(|line| line.split_once(": ")).collect();
        let number = |name: &str| lines.get(name)?.parse::<usize>().ok();
        let stripe_pattern = lines.get("files of channels")?.split(' ').map(|turn| turn.parse().ok());
        let description = Self {
            byte_order: (*lines.get("byte order")?).into(),
            element: (*lines.get("element")?).into(),
            shape: (*lines.get("shape")?).into(),
            page_elements: number("elements of a page")?,
            stripe_pattern: stripe_pattern.collect::<Option<_>>()?,
            file: number("file")?,
            files: number("files")?,
            array: u64::from_str_radix(lines.get("array")?, 16).ok()?,
            annotation: lines.get("annotation").map_or_else(String::new, |text| (*text).into()),
        };
        let Self { page_elements, ref stripe_pattern, file, files, .. } = description;
        let is_sound = page_elements > 0 && file < files && stripe_pattern.iter().all(|turn| *turn < files);
        (is_sound && !stripe_pattern.is_empty()).then_some(description)
    }

    /// Returns the number of shares of a file: one for each channel of elements. In the first file of a
    /// ragged array, one more precedes them, for the starts of rows.
    fn shares_of(&self, file: usize) -> u64 {
        let channels = self.stripe_pattern.iter().filter(|turn| **turn == file).count() as u64;
        // A file must have at least one share (room for one channel's pages), even if no channel uses it.
        (channels + self.first_share(file)).max(1)
    }

    /// Returns the index of a file's first share (pages of one channel) for elements.
    fn first_share(&self, file: usize) -> u64 {
        u64::from(self.shape == ROWS && file == 0)
    }

    /// Returns the file of each channel.
    fn stripe_pattern_of(&self, part: FilePart) -> Vec<usize> {
        if part == FilePart::Places { vec![0] } else { self.stripe_pattern.clone() }
    }

    /// Returns the index of a channel's share (the channel's pages) in its file.
    fn share(&self, part: FilePart, channel: usize) -> u64 {
        if part == FilePart::Places {
            return 0;
        }
        let file = self.stripe_pattern[channel];
        let before = self.stripe_pattern[..channel].iter().filter(|turn| **turn == file).count() as u64;
        before + self.first_share(file)
    }

    /// Returns the least number of pages of a file, if the given part of the array has `pages` pages.
    fn pages_of_file(&self, file: usize, part: FilePart, pages: u64) -> u64 {
        let (stripe_pattern, shares) = (self.stripe_pattern_of(part), self.shares_of(file));
        let of_channel = |channel: usize| {
            let last = Pager::slots_in(channel as u64, stripe_pattern.len() as u64, pages).checked_sub(1)?;
            Some(StoreDevice::shared_page(shares, self.share(part, channel), last).saturating_add(1))
        };
        (0..stripe_pattern.len())
            .filter(|channel| stripe_pattern[*channel] == file)
            .filter_map(of_channel)
            .max()
            .unwrap_or(0)
    }
}

/// Returns the text of [`Builder::annotation`](crate::Builder::annotation) that was stored when a file of an
/// array was created; empty if there was none.
///
/// # Errors
/// The errors of [`description`].
pub fn annotation(path: impl AsRef<Path>) -> Result<String> {
    Ok(described(path.as_ref())?.annotation)
}

/// Returns the element type and the shape of the array in a file, in words, such as `f32` and `linear`.
///
/// # Errors
/// [`FileMismatch`](ErrorKind::FileMismatch) if the file has no array; [`Device`](ErrorKind::Device) with the
/// errors of [`StoreFile::read`].
///
/// ```
/// use vmarray::{file, prelude::*};
/// # let path = std::env::temp_dir().join(format!("vmarray-description-{}", std::process::id()));
/// VirtualArray::<[u16; 3]>::create(&path, 100)?;
/// assert_eq!(file::description(&path)?, ("[u16; 3]".into(), "linear".into()));
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), vmarray::Error>(())
/// ```
pub fn description(path: impl AsRef<Path>) -> Result<(String, String)> {
    let description = described(path.as_ref())?;
    Ok((description.element, description.shape))
}

fn described(path: &Path) -> Result<Description> {
    let store = StoreFile::read(path, true)?;
    Description::of_text(store.metadata()).ok_or_else(|| mismatch(path, "contents", "no array", FORMAT))
}

/// The open files of an array, and their common description.
pub(super) struct Files {
    /// Erased, so that a dependent crate does not compile the drops of all types of devices.
    devices: Box<dyn AsRef<[Arc<AnyDevice>]>>,
    paths: Vec<PathBuf>,
    pub description: Description,
    /// The stored length, which `sync` updates.
    pub kept: Arc<PersistentLen>,
    /// The number of elements, or of rows in a ragged array.
    pub len: usize,
    pub is_read_only: bool,
}

/// A part of an array in files: its elements, or the starts of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilePart {
    Elements,
    /// The starts of the rows of a ragged array.
    Places,
}

/// The paths of new files, which the drop removes unless the creation succeeded.
pub(super) struct Made(Vec<PathBuf>);

impl Made {
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // The caller reports an earlier error, so ignore errors of the removal.
        self.0.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Clears pages of elements in the files, through their devices.
struct PageCleaner {
    devices: Vec<Arc<AnyDevice>>,
    description: Description,
}

impl PageCleaner {
    /// Zeroes a page and frees its space in the file.
    fn clear(&self, page: u64) {
        let stripe_pattern = self.description.stripe_pattern_of(FilePart::Elements);
        let (channel, slot) =
            ((page % stripe_pattern.len() as u64) as usize, page / stripe_pattern.len() as u64);
        let file = stripe_pattern[channel];
        let share = self.description.share(FilePart::Elements, channel);
        let shares = self.description.shares_of(file);
        store(&self.devices[file]).clear(StoreDevice::shared_page(shares, share, slot));
    }
}

/// Returns the error of a file that does not match the request.
fn mismatch(path: &Path, what: &'static str, stored: impl Into<String>, asked: impl Into<String>) -> Error {
    let (path, stored, asked) = (path.display().to_string(), stored.into(), asked.into());
    ErrorKind::FileMismatch { path, what, stored, asked }.into()
}

fn store(device: &AnyDevice) -> &StoreDevice {
    match device {
        AnyDevice::Store(store) => store,
        _ => unreachable!("arrays in files have stores as devices"),
    }
}

impl Files {
    /// Creates files for `pages[0]` pages of elements and, in a ragged array, `pages[1]` pages of row starts.
    /// All pages have the same length.
    pub fn make(
        paths: Vec<PathBuf>,
        description: Description,
        page_bytes: usize,
        pages: [u64; 2],
        len: usize,
        tier: Option<&Tier>,
    ) -> Result<(Made, Self)> {
        inherited::expect_own_process("create")?;
        let (mut made, mut stores) = (Made(Vec::new()), Vec::new());
        for (file, path) in paths.iter().enumerate() {
            let words = Description { file, ..description.clone() }.to_text();
            let parts = [FilePart::Elements, FilePart::Places].into_iter().zip(pages);
            let pages = parts.map(|(part, pages)| description.pages_of_file(file, part, pages)).max();
            let note = PersistentLen::new_note(len as u64);
            let pages = pages.unwrap_or(0);
            stores.push(StoreDevice::create(path, page_bytes, pages, words.as_bytes(), note)?);
            made.0.push(path.clone());
        }
        StoreDevice::join(&mut stores);
        Ok((made, Self::new(stores, paths, description, tier)))
    }

    /// Opens the files of an array with elements `T`, in any order. `read` parses the shape in a file's
    /// description, and the call also returns this shape. If `read` returns `None`, the call returns an error
    /// that names the expected shape `asked`.
    pub fn open<T: Element + KernelType, P: AsRef<Path>, S>(
        files: impl IntoIterator<Item = P>,
        is_read_only: bool,
        read: impl Fn(&str) -> Option<S>,
        asked: &str,
        tier: Option<&Tier>,
    ) -> Result<(Self, S)> {
        inherited::expect_own_process("open")?;
        let mut parts = Vec::new();
        for path in files {
            let path = path.as_ref().to_owned();
            let store = StoreFile::read(&path, is_read_only)?;
            let Some(description) = Description::of_text(store.metadata()) else {
                let stored =
                    String::from_utf8_lossy(store.metadata()).lines().next().unwrap_or_default().to_owned();
                return Err(mismatch(&path, "contents", stored, FORMAT));
            };
            parts.push((description, store, path));
        }
        parts.sort_by_key(|(description, ..)| description.file);
        let nothing = ErrorKind::FileRefused { reason: "no file is named; name at least one" };
        let (first, mut shape) = (parts.first().ok_or(nothing.clone())?.0.clone(), None);
        for (at, (description, store, path)) in parts.iter().enumerate() {
            let element = in_words(&T::layout());
            if description.byte_order != native_byte_order() {
                let asked = native_byte_order();
                return Err(mismatch(path, "byte order", &description.byte_order, asked));
            }
            // Check the shape first, because arrays of other shapes may have the same element type.
            shape = read(&description.shape);
            if shape.is_none() {
                return Err(mismatch(path, "shape", &description.shape, asked));
            }
            if description.element != element {
                return Err(mismatch(path, "element", &description.element, element));
            }
            let expected = Description { file: at, files: parts.len(), ..first.clone() };
            if *description != expected {
                let files = |of: &Description| {
                    format!("file {} of {} of array {:016x}", of.file + 1, of.files, of.array)
                };
                return Err(mismatch(path, "place in the array", files(description), files(&expected)));
            }
            let bytes = |bytes: usize| format!("{bytes} bytes");
            let asked = description.page_elements.saturating_mul(element::ElementLayout::<T>::BYTES);
            if store.page_bytes() != asked {
                return Err(mismatch(path, "length of a page", bytes(store.page_bytes()), bytes(asked)));
            }
        }
        let shape = shape.ok_or(nothing)?;
        let (files, paths) = parts.into_iter().map(|(_, store, path)| (store, path)).unzip();
        Ok((Self::new(StoreDevice::open_together(files)?, paths, first, tier), shape))
    }

    fn new(
        stores: Vec<StoreDevice>,
        paths: Vec<PathBuf>,
        description: Description,
        tier: Option<&Tier>,
    ) -> Self {
        let notes: Vec<_> = stores.iter().map(StoreDevice::note).collect();
        let is_read_only = stores.iter().any(StoreDevice::is_read_only);
        for (file, store) in stores.iter().enumerate() {
            store.share_out(description.shares_of(file));
        }
        let tiered = |store: StoreDevice| match tier {
            Some(tier) => store.with_tier(tier),
            None => store,
        };
        let devices: Vec<_> =
            stores.into_iter().map(|store| Arc::new(AnyDevice::from(tiered(store)))).collect();
        let one = || devices.first().cloned();
        let (noting, storing) = (one(), one());
        let places = PageCleaner { devices: devices.clone(), description: description.clone() };
        let (kept, len) = PersistentLen::found(
            &notes,
            // Both closures use the device of the first file, if there is one. This file stores the length,
            // and a sync of its device commits all files of the array together.
            move |note| Ok(noting.iter().try_for_each(|device| store(device).set_note(note))?),
            move || Ok(storing.iter().try_for_each(|device| device.sync())?),
            move |pages| pages.for_each(|page| places.clear(page)),
        );
        let (kept, len) = (Arc::new(kept), usize::try_from(len).unwrap_or(usize::MAX));
        Self { devices: Box::new(devices), paths, description, kept, len, is_read_only }
    }

    fn devices(&self) -> &[Arc<AnyDevice>] {
        (*self.devices).as_ref()
    }

    /// Returns the open files as devices of an array.
    fn open_devices(&self, settings: &CommonSettings) -> Result<OpenDevices> {
        OpenDevices::of(self.devices().iter().map(|device| Arc::clone(device) as _).collect(), settings)
    }

    /// Creates the array whose pages are stored in the opened files.
    pub fn array<T: Element, D: backend_api::Device>(
        &self,
        builder: Builder<T, D>,
    ) -> Result<VirtualArray<T>> {
        let length = KeptLength::Own(Arc::clone(&self.kept));
        let array = self.part(builder, FilePart::Elements, self.len, length)?;
        self.serve_work();
        Ok(array)
    }

    /// Makes the devices treat buffers allocated from now on as scratch memory, which is not stored. Call
    /// this after [`part`](Self::part) has returned all arrays in the files.
    pub fn serve_work(&self) {
        self.devices().iter().for_each(|device| store(device).serve_work());
    }

    /// Checks that the pages of a part suffice for `len` elements. Returns the number of elements of a page,
    /// and the number of pages.
    fn pages_of(&self, part: FilePart, len: usize, element_bytes: usize) -> Result<(usize, u64)> {
        let page_bytes = store(&self.devices()[0]).page_bytes();
        if !page_bytes.is_multiple_of(element_bytes) {
            let asked = format!("a multiple of {element_bytes} bytes");
            return Err(mismatch(&self.paths[0], "length of a page", format!("{page_bytes} bytes"), asked));
        }
        if len > isize::MAX as usize {
            return Err(ErrorKind::TooLong { elements: len as u64, element_bytes }.into());
        }
        let page_len = page_bytes / element_bytes;
        let pages = len.div_ceil(page_len) as u64;
        for (file, (device, path)) in self.devices().iter().zip(&self.paths).enumerate() {
            let (stored, asked) = (store(device).pages(), self.description.pages_of_file(file, part, pages));
            if stored < asked {
                return Err(mismatch(path, "number of pages", stored.to_string(), asked.to_string()));
            }
        }
        Ok((page_len, pages))
    }

    /// Returns the array of `len` elements in a `part` of the files, with the settings of `builder`. `length`
    /// is the kind of length that the files store.
    pub fn part<T: Element, D: backend_api::Device>(
        &self,
        builder: Builder<T, D>,
        part: FilePart,
        len: usize,
        length: KeptLength,
    ) -> Result<VirtualArray<T>> {
        if builder.settings.movable {
            return Err(ErrorKind::FileRefused {
                reason: "pages in files cannot move to other devices; leave `movable` out",
            }
            .into());
        }
        let page_bytes = store(&self.devices()[0]).page_bytes();
        let (page_len, pages) = self.pages_of(part, len, element::ElementLayout::<T>::BYTES)?;
        let stripe_pattern = self.description.stripe_pattern_of(part);
        let channels = stripe_pattern.len() as u64;
        // For each channel: the store (open file) with its pages, the file's shares, and the channel's share.
        let homes: Vec<_> = stripe_pattern
            .iter()
            .enumerate()
            .map(|(channel, file)| {
                let store = store(&self.devices()[*file]);
                (store, self.description.shares_of(*file), self.description.share(part, channel))
            })
            .collect();
        if !self.is_read_only {
            // Clear the pages after the end of the array, because a later growth must find zeroes.
            for (channel, (store, _, share)) in (0..).zip(&homes) {
                store.clear_share(*share, Pager::slots_in(channel, channels, pages));
            }
        }
        let grows = !self.is_read_only && [LINEAR, ROWS].contains(&self.description.shape.as_str());
        let max_len = if grows { most(builder.max_len, len, page_len, page_bytes) } else { len };
        // Disable the array's own checksums, because the files have theirs.
        let mut settings = builder.settings;
        settings.checksums = false;
        let places = Homes {
            open: self.open_devices(&settings.common)?,
            len,
            max_len,
            pages_most: max_len.div_ceil(page_len) as u64,
            is_open: false,
            page_len,
            stripe_pattern: stripe_pattern.clone(),
            pairs: None,
            is_exclusive: true,
        };
        Builder::<T, AnyDevice>::build_on(settings, places, |pager| {
            for page in 0..pages {
                let (store, shares, share) = &homes[(page % channels) as usize];
                let has_contents =
                    store.has_contents(StoreDevice::shared_page(*shares, *share, page / channels));
                pager.table().entry(page).begin_with(if has_contents { HOME } else { ZEROED });
            }
            pager.keep(self.is_read_only, length);
        })
    }
}

/// Returns the greatest length of an array in files until it is closed: `asked`, or a default.
fn most(asked: usize, len: usize, page_len: usize, page_bytes: usize) -> usize {
    let spare = if page_bytes < SHORT_PAGE_BYTES { SPARE_SHORT_PAGES } else { SPARE_PAGES };
    let most = match asked {
        0 | usize::MAX => page_len.saturating_mul(spare).max(len.saturating_mul(4)),
        asked => asked,
    };
    // Every array has at most `isize::MAX` bytes.
    most.min((isize::MAX as usize / page_bytes).saturating_mul(page_len)).max(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Channels of elements and places of rows share the pages of their files, each page for one of them.
    #[test]
    fn parts_have_pages_of_their_own() {
        for (stripe_pattern, files, shape) in
            [(vec![0], 1, ROWS), (vec![0, 1, 0, 2], 4, ROWS), (vec![1, 0, 1], 2, LINEAR)]
        {
            let (byte_order, element) = (String::new(), String::new());
            let (shape, array, file) = (shape.to_owned(), 0, 0);
            let description = Description {
                byte_order,
                element,
                shape,
                page_elements: 1,
                stripe_pattern,
                file,
                files,
                array,
                annotation: String::new(),
            };
            for file in 0..files {
                let of = |part| {
                    let stripe_pattern = description.stripe_pattern_of(part).into_iter().enumerate();
                    let channels = stripe_pattern.filter(move |(_, turn)| *turn == file);
                    channels.map(|(channel, _)| description.share(part, channel)).collect::<Vec<_>>()
                };
                let mut shares = of(FilePart::Elements);
                if description.shape == ROWS {
                    shares.extend(of(FilePart::Places));
                }
                shares.sort_unstable();
                let count = if shares.is_empty() { 1 } else { shares.len() as u64 };
                assert!(shares.iter().copied().eq(0..shares.len() as u64), "{description:?}");
                assert_eq!(description.shares_of(file), count);
            }
            assert_eq!(description.pages_of_file(0, FilePart::Elements, 0), 0);
            assert!(description.pages_of_file(0, FilePart::Elements, 1000) > 0);
        }
    }

    #[test]
    fn an_array_has_room_to_grow_unless_it_is_said_how_much() {
        assert_eq!(most(1000, 10, 7, 28), 1000);
        assert_eq!(most(5, 10, 7, 28), 10);
        assert_eq!(most(0, 10, 16, 64), 16 << 16);
        assert_eq!(most(usize::MAX, 1 << 30, 16, 64), 4 << 30);
        assert_eq!(most(0, 0, 1 << 14, 1 << 16), 1 << 38);
        assert_eq!(most(usize::MAX - 1, 0, 1, 1 << 62), 1);
    }

    #[test]
    fn a_description_is_read_as_it_was_written() {
        let description = Description {
            byte_order: "little".into(),
            element: in_words(&<[(u8, f32); 3]>::layout()),
            shape: LINEAR.into(),
            page_elements: 7,
            stripe_pattern: vec![0, 1, 0],
            file: 1,
            files: 2,
            array: 0x123,
            annotation: String::new(),
        };
        assert_eq!(description.element, "[(u8, f32); 3]");
        let text = description.to_text();
        assert_eq!(Description::of_text(text.as_bytes()), Some(description.clone()));
        let annotated = Description { annotation: "a: b".into(), ..description.clone() };
        assert_eq!(Description::of_text(annotated.to_text().as_bytes()), Some(annotated));
        for line in text.lines() {
            let without = text.replace(line, "");
            assert_eq!(Description::of_text(without.as_bytes()), None, "without {line}");
        }
    }
}
