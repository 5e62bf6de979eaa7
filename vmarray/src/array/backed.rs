//! Arrays over a storage that the program implements as functions that read and write one page.

use std::sync::Arc;

use backend_api::Device;
use vmarray_store::{BackedDevice, Backing, FileSection};

use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::array::settings::{Homes, OpenDevices, PAGE_BYTES};
use crate::base::element::{self, Element};
use crate::base::error::{ErrorKind, Result};
use crate::engine::page::state::HOME;
use crate::engine::pager::KeptLength;
use crate::setup::inherited;

impl<T: Element, D: Device> Builder<T, D> {
    /// Builds an array whose pages are read and written by the program's own code, the [`Backing`]. A page
    /// can be a chunk of a compressed file, an object of a server, or the result of a function. Page `p` has
    /// the elements from `p * page_len` on, in native byte order. A thread that needs a page calls the
    /// backing, and reads the whole page. The array caches pages in RAM, and on GPUs with a
    /// [tier](Self::tier).
    ///
    /// The array writes changed pages when it evicts them from the cache; in [`flush`]; in
    /// [`sync`](VirtualArray::sync), which also [syncs](Backing::sync) the backing; and when it is dropped,
    /// which can only warn of a failure. The array does not grow. The builder's devices, placement and page
    /// length are ignored.
    ///
    /// [`flush`]: crate::views::View::flush
    ///
    /// # Errors
    /// [`FileMismatch`](ErrorKind::FileMismatch) if the backing's page length is no multiple of the element
    /// size, or if the backing has too few pages for the array's length;
    /// [`FileRefused`](ErrorKind::FileRefused) for a [movable](Self::movable) array;
    /// [`Device`](ErrorKind::Device) with the errors of [`BackedDevice::new`]. Later accesses return errors
    /// of the backing, with the page.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use std::io;
    /// use vmarray::store::Backing;
    /// /// Squares, computed on demand.
    /// #[derive(Debug)]
    /// struct Squares;
    /// impl Backing for Squares {
    ///     fn page_bytes(&self) -> usize {
    ///         8 * 512
    ///     }
    ///     fn pages(&self) -> u64 {
    ///         1 << 40
    ///     }
    ///     fn read_page(&self, page: u64, into: &mut [u8]) -> io::Result<()> {
    ///         for (i, square) in (512 * page..).zip(into.chunks_exact_mut(8)) {
    ///             square.copy_from_slice(&i.wrapping_mul(i).to_ne_bytes());
    ///         }
    ///         Ok(())
    ///     }
    ///     fn write_page(&self, _: u64, _: &[u8]) -> io::Result<()> {
    ///         Err(io::ErrorKind::ReadOnlyFilesystem.into())
    ///     }
    ///     fn is_read_only(&self) -> bool {
    ///         true
    ///     }
    /// }
    /// let squares = VirtualArray::<u64>::builder(1 << 30).build_over(Squares)?;
    /// assert_eq!((squares.get(1 << 20)?, squares.page_len()), (1 << 40, 512));
    /// assert_eq!(squares.count(..1000, Field::whole(), &81)?, 1);
    /// assert!(squares.set(0, 1).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn build_over(self, backing: impl Backing) -> Result<VirtualArray<T>> {
        self.over(backing)
    }

    /// Builds an array as [`build_over`](Self::build_over), with any device type as parameter.
    pub(crate) fn over<E: Device>(self, backing: impl Backing) -> Result<VirtualArray<T, E>> {
        inherited::expect_own_process("build")?;
        let mismatch = |what, stored: String, asked: String| ErrorKind::FileMismatch {
            path: backing.name(),
            what,
            stored,
            asked,
        };
        let (page_bytes, element_bytes) = (backing.page_bytes(), element::ElementLayout::<T>::BYTES);
        let page_len = page_bytes / element_bytes;
        if page_len == 0 || !page_bytes.is_multiple_of(element_bytes) {
            let asked = format!("a multiple of {element_bytes} bytes");
            return Err(mismatch("length of a page", format!("{page_bytes} bytes"), asked).into());
        }
        let pages = self.len.div_ceil(page_len) as u64;
        if backing.pages() < pages {
            let (stored, asked) = (backing.pages().to_string(), pages.to_string());
            return Err(mismatch("number of pages", stored, asked).into());
        }
        if self.settings.movable {
            return Err(ErrorKind::FileRefused {
                reason: "pages in the program's storage cannot move to other devices; leave `movable` out",
            }
            .into());
        }
        let is_read_only = backing.is_read_only();
        let mut device = BackedDevice::new(backing)?;
        if let Some(tier) = &self.settings.tier {
            device = device.with_tier(tier);
        }
        let device = Arc::new(device);
        let own: Arc<dyn Device> = Arc::<BackedDevice>::clone(&device);
        let homes = Homes {
            open: OpenDevices::of(vec![own], &self.settings.common)?,
            len: self.len,
            max_len: self.len,
            pages_most: pages,
            is_open: false,
            page_len,
            stripe_pattern: vec![0],
            pairs: None,
            is_exclusive: true,
        };
        let array = Builder::<T, E>::build_on(self.settings, homes, |pager| {
            (0..pages).for_each(|page| pager.table().entry(page).begin_with(HOME));
            pager.keep(is_read_only, KeptLength::None);
        })?;
        device.serve_work();
        Ok(array)
    }

    /// Builds an array over a byte range of a file of another program, in place: a raw file, or the elements
    /// behind a header. Elements are in native byte order. The section determines whether the array reads,
    /// writes, or keeps its changes to itself; see [`FileAccess`](vmarray_store::FileAccess).
    ///
    /// With a length of 0 in the builder, the array has all elements of the section. Changed pages are
    /// written as by [`build_over`](Self::build_over). A thread that reads a few uncached elements reads only
    /// these bytes from the file.
    ///
    /// # Errors
    /// [`FileMismatch`](ErrorKind::FileMismatch) if the section is shorter than the array or, for a length of
    /// 0, no multiple of the element size; the other errors of [`build_over`](Self::build_over). If another
    /// program shortens the file, accesses to the missing part and [`sync`](VirtualArray::sync) return errors
    /// of kind `Corrupted`.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::store::{FileAccess, FileSection};
    /// # let path = std::env::temp_dir().join(format!("vmarray-over-file-{}", std::process::id()));
    /// std::fs::write(&path, [&b"head"[..], bytemuck::cast_slice(&[1_u32, 2, 3])].concat()).unwrap();
    /// let section = FileSection::open(&path, 4.., FileAccess::ReadWrite)?;
    /// let array = VirtualArray::<u32>::builder(0).cache_bytes(1 << 20).build_over_file(section)?;
    /// array.transform(.., Field::whole().set(Field::whole() * 10_u32))?;
    /// array.sync()?;
    /// assert_eq!(std::fs::read(&path).unwrap()[8..12], 20_u32.to_ne_bytes());
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn build_over_file(mut self, section: FileSection) -> Result<VirtualArray<T>> {
        let element_bytes = element::ElementLayout::<T>::BYTES;
        let whole = section.bytes() / element_bytes as u64;
        let len = if self.len == 0 { usize::try_from(whole).unwrap_or(usize::MAX) } else { self.len };
        let is_divisible = section.bytes().is_multiple_of(element_bytes as u64);
        if len as u64 > whole || (self.len == 0 && !is_divisible) {
            let asked = match self.len {
                0 => format!("a multiple of {element_bytes} bytes"),
                len => format!("{} bytes", len.saturating_mul(element_bytes)),
            };
            let (path, stored) = (section.name(), format!("{} bytes", section.bytes()));
            return Err(ErrorKind::FileMismatch { path, what: "length", stored, asked }.into());
        }
        self.len = len;
        let page_len = self.settings.common.page_len(len, element_bytes, PAGE_BYTES)?;
        self.build_over(section.with_page_bytes(page_len * element_bytes))
    }
}
