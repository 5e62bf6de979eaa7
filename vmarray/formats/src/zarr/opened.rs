//! Opened Zarr stores, and reads of their elements.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::PathBuf;

use vmarray::bytemuck::cast_slice_mut;
use vmarray::kernel::KernelType;
use vmarray::{Element, ErrorKind};
use zarrs::array::{ArraySubset, CodecOptions};
use zarrs::storage::ReadableWritableStorage;

use super::chunks::{codec_options, limit_threads};
use super::damaged;
use super::described;
use super::grid::{Grid, lengths};
use super::leaves::{LeafArray, joined};
use super::location::Location;
use super::stored::{self, Stored};
use crate::error::{Error, Result, zeroed};
use crate::options::FileOptions;
use crate::pieces::{element_count, in_parallel};
use crate::views::{FileView, FileViewMut};

/// A Zarr store opened for an element type: an array, or a group with an array for each field of a struct.
///
/// ```
/// use vmarray::{bytemuck::{Pod, Zeroable}, kernel::KernelType, prelude::*};
/// use vmarray_formats::{FileOptions, zarr::{self, Encoding, Zarr}};
///
/// #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable, KernelType)]
/// #[bytemuck(crate = "vmarray::bytemuck")]
/// #[repr(C)]
/// struct Sale {
///     price: f64,
///     count: u32,
///     shop: [u16; 2],
/// }
///
/// let path = std::env::temp_dir().join(format!("sales {}.zarr", std::process::id()));
/// let sales = VirtualArray::<Sale>::new(1000)?;
/// sales.set(7, Sale { price: 9.99, count: 3, shop: [1, 2] })?;
/// // A table with the columns price, count and shop: xarray.open_zarr(path)
/// zarr::write(&path, &sales, Encoding::new(), FileOptions::new())?;
///
/// let mut store = Zarr::<Sale>::open(&path)?;
/// let [len] = store.extents()?;
/// let again = VirtualArray::<Sale>::new(len)?;
/// store.read(&again, FileOptions::new())?;
/// assert_eq!(again.get(7)?, sales.get(7)?);
/// // One column.
/// let prices = VirtualArray::<f64>::new(1000)?;
/// Zarr::open(path.join("price"))?.read(&prices, FileOptions::new())?;
/// assert_eq!(prices.get(7)?, 9.99);
/// assert!(Zarr::<f32>::open(path.join("price")).is_err());
///
/// // Overwrite a part, and append.
/// store.write_box([0]..[10], again.section(7..17)?, FileOptions::new())?;
/// store.append(again.section(..500)?, FileOptions::new())?;
/// assert_eq!((store.shape(), store.chunk()), (&[1500][..], &[1000][..]));
/// store.read_box([0]..[1000], &again, FileOptions::new())?;
/// assert_eq!(again.get(0)?, sales.get(7)?);
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Zarr<T> {
    pub(super) store: ReadableWritableStorage,
    pub(super) location: Location,
    /// Name of the store's location, for messages.
    pub(super) path: PathBuf,
    /// Path of the node with the elements.
    pub(super) node: String,
    pub(super) fields: Vec<(LeafArray, Stored)>,
    elements: PhantomData<fn() -> T>,
}

impl<T: Element + KernelType> Zarr<T> {
    /// Opens a Zarr store and reads the descriptions of its arrays.
    ///
    /// # Errors
    /// [`Malformed`](Error::Malformed) if the location has no Zarr store, or a damaged one;
    /// [`ElementMismatch`] if the element type differs; [`Unsupported`](Error::Unsupported) for features that
    /// this crate does not [read](super); [`Zarr`](Error::Zarr).
    ///
    /// [`ElementMismatch`]: Error::ElementMismatch
    pub fn open(at: impl Into<Location>) -> Result<Self> {
        let at = at.into();
        Self::open_node(at.open()?, &at, "")
    }

    pub(super) fn open_node(store: ReadableWritableStorage, at: &Location, node: &str) -> Result<Self> {
        let path = at.path();
        let open = |leaf: LeafArray| {
            let stored = stored::open(&store, &joined(node, &leaf.path), &leaf, path)?;
            Ok((leaf, stored))
        };
        let fields = LeafArray::of::<T>(path)?.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        let first = fields.first().map(|(_, first)| first.shape.clone()).unwrap_or_default();
        let bytes = first.iter().try_fold(size_of::<T>(), |bytes, extent| bytes.checked_mul(*extent));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            let what = format!("a shape of {first:?} has more bytes than the address space");
            return Err(Error::malformed(path, what));
        }
        if let Some((leaf, stored)) = fields.iter().find(|(_, stored)| stored.shape != first) {
            let what = format!(
                "`{}` has the shape {:?}, but the first field has {first:?}",
                leaf.path, stored.shape
            );
            return Err(Error::malformed(path, what));
        }
        let (location, path, node) = (at.clone(), path.to_path_buf(), node.to_owned());
        Ok(Self { store, location, path, node, fields, elements: PhantomData })
    }

    /// Number of elements along each axis of the store.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.fields[0].1.shape
    }

    /// Returns the extents of a chunk in elements, or of a shard if the store has shards. For a struct, these
    /// are the extents in the array of the first field.
    #[must_use]
    pub fn chunk(&self) -> &[usize] {
        &self.fields[0].1.chunk
    }

    /// Returns the store's shape as an array of `N` extents.
    ///
    /// # Errors
    /// [`RankMismatch`](Error::RankMismatch).
    pub fn extents<const N: usize>(&self) -> Result<[usize; N]> {
        let found = self.shape().len();
        self.shape().try_into().map_err(|_| Error::RankMismatch {
            path: self.path.clone(),
            expected: N,
            found,
        })
    }

    /// Reads all elements into a view, which must have the shape of the store. Blocks; several threads read
    /// and decompress chunks.
    ///
    /// # Errors
    /// [`ShapeMismatch`](Error::ShapeMismatch), before anything is read; [`Corrupted`](Error::Corrupted) with
    /// the damaged chunk, [`Zarr`](Error::Zarr), [`Array`](Error::Array), [`Cancelled`](Error::Cancelled),
    /// after which only a part of the view has been written. Damage in [stores without checksums](super) can
    /// stay undetected.
    pub fn read<V: FileViewMut<Element = T>>(&self, view: V, options: FileOptions<'_>) -> Result<()> {
        self.read_grid(&Grid::whole(self.shape(), self.chunk()), view, options)
    }

    /// Reads a box of the store's elements into a view of the same shape. Use this method to process a store
    /// larger than memory part by part. The method reads each chunk that overlaps the box as a whole.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read), and [`RankMismatch`](Error::RankMismatch),
    /// [`BoxOutside`](ErrorKind::BoxOutside), [`BoxReversed`](ErrorKind::BoxReversed).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray_formats::{FileOptions, zarr::{self, Encoding, Zarr}};
    /// let path = std::env::temp_dir().join(format!("boxes {}.zarr", std::process::id()));
    /// let empty = NdArray::<u32, 2>::new([1000, 100])?;
    /// zarr::write(&path, &empty, Encoding::new().chunk([64, 64]), FileOptions::new())?;
    /// let mut store = Zarr::<u32>::open(&path)?;
    /// // A hundred rows at a time.
    /// let rows = NdArray::<u32, 2>::new([100, 100])?;
    /// for first in (0..1000).step_by(100) {
    ///     store.read_box([first, 0]..[first + 100, 100], &rows, FileOptions::new())?;
    ///     rows.transform(.., Field::whole().set(Field::whole() + first as u32))?;
    ///     store.write_box([first, 0]..[first + 100, 100], &rows, FileOptions::new())?;
    /// }
    /// let two = VirtualArray::<u32>::new(2)?;
    /// let two = vmarray::nd::NdSection::over_mut(&two, [2, 1])?;
    /// store.read_box([799, 5]..[801, 6], two, FileOptions::new())?;
    /// assert_eq!(two.to_vec(..)?, [700, 800]);
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_box<V: FileViewMut<Element = T>, const N: usize>(
        &self,
        bounds: Range<[usize; N]>,
        view: V,
        options: FileOptions<'_>,
    ) -> Result<()> {
        self.read_grid(&self.grid(bounds)?, view, options)
    }

    fn read_grid<V: FileViewMut<Element = T>>(
        &self,
        grid: &Grid,
        view: V,
        mut options: FileOptions<'_>,
    ) -> Result<()> {
        self.check_shape(view, grid)?;
        let total = grid.len() as u64 * size_of::<T>() as u64;
        limit_threads::<T>(element_count(&grid.chunk), &mut options);
        let codecs = codec_options(&options);
        let buffer = || zeroed::<T>(grid.largest());
        in_parallel(grid.count(), total, &self.path, &mut options, buffer, |elements, number| {
            let cell = grid.cell(number);
            let piece = grid.piece(&cell);
            let elements = &mut elements[..piece.len()];
            self.read_elements(&cell.part, elements, &codecs)?;
            view.write_piece(&piece, elements)?;
            Ok(size_of_val(elements) as u64)
        })
    }

    /// Returns the chunks of a box, after a check that the box is within the store.
    pub(super) fn grid<const N: usize>(&self, bounds: Range<[usize; N]>) -> Result<Grid> {
        let shape: [usize; N] = self.extents()?;
        let mut ranges = Vec::with_capacity(N);
        for (axis, extent) in shape.into_iter().enumerate() {
            let (start, end) = (bounds.start[axis], bounds.end[axis]);
            if start > end {
                return Err(Error::Array(ErrorKind::BoxReversed { axis, start, end }.into()));
            }
            if end > extent {
                return Err(Error::Array(ErrorKind::BoxOutside { axis, start, end, extent }.into()));
            }
            ranges.push(start..end);
        }
        Ok(Grid { bounds: ranges, chunk: self.chunk().to_vec() })
    }

    pub(super) fn check_shape(&self, view: impl FileView, grid: &Grid) -> Result<()> {
        let (expected, found) = (view.extents(), lengths(&grid.bounds));
        if expected == found {
            return Ok(());
        }
        Err(Error::ShapeMismatch { path: self.path.clone(), expected, found })
    }

    /// Reads the elements of a box into memory.
    pub(super) fn read_elements(
        &self,
        bounds: &[Range<usize>],
        elements: &mut [T],
        codecs: &CodecOptions,
    ) -> Result<()> {
        for (leaf, stored) in &self.fields {
            let own = leaf.axes.iter().map(|len| 0..*len as u64);
            let of = bounds.iter().map(|of| of.start as u64..of.end as u64).chain(own);
            let subset = ArraySubset::new_with_ranges(&of.collect::<Vec<_>>());
            let bytes = damaged::read_box(stored, &subset, codecs, &self.path)?;
            let bytes = bytes.into_fixed().map_err(Error::zarr(&self.path))?;
            if bytes.len() != elements.len() * leaf.bytes() {
                let needed = elements.len() * leaf.bytes();
                let what = format!("a chunk has {} bytes, but its elements need {needed}", bytes.len());
                return Err(Error::malformed(&self.path, what));
            }
            leaf.put(&bytes, cast_slice_mut(elements));
        }
        Ok(())
    }

    /// Returns an error if the store was removed.
    pub(super) fn expect_described(&self) -> Result<()> {
        let described = |(_, stored): &(LeafArray, Stored)| {
            described::expect(&self.store, &stored.key).map_err(Error::zarr(&self.path))
        };
        self.fields.iter().try_for_each(described)
    }

    /// Returns the value of elements that are not stored.
    pub(super) fn fill_value(&self) -> T {
        let mut fill = [T::zeroed()];
        for (leaf, stored) in &self.fields {
            let number = stored.array.fill_value().as_ne_bytes();
            leaf.put(&number.repeat(leaf.bytes() / number.len().max(1)), cast_slice_mut(&mut fill));
        }
        fill[0]
    }
}

impl<T> fmt::Debug for Zarr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zarr").field("path", &self.path).field("node", &self.node).finish_non_exhaustive()
    }
}
