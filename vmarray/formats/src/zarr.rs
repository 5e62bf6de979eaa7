//! Zarr stores, version 3: folders of compressed chunks, which many programs read and write in part.
//!
//! | elements | in the store |
//! |---|---|
//! | numbers | an array; `bool` can be read as `u8` |
//! | arrays `[T; N]` | an array with an axis more |
//! | structs with `#[derive(KernelType)]` | a group with an array for each field, in which structs are groups |
//! | rows of a [`RaggedArray`](vmarray::RaggedArray) | a group of `offsets` and `items`: [`write_ragged`] |
//!
//! Chunks are what is copied at once: by default the tiles of a tiled array, or about 1 MiB. A few are in RAM
//! at a time. Stores are read whose arrays have regular chunks and the codecs `bytes`, `transpose`,
//! `sharding_indexed`, `zstd`, `gzip`, `blosc` and `crc32c`, and chunks or shards of at most 1 GiB.
//!
//! ```
//! use vmarray::prelude::*;
//! use vmarray_formats::{Options, zarr::{self, Encoding, Zarr}};
//!
//! let path = std::env::temp_dir().join(format!("image {}.zarr", std::process::id()));
//! let image = NdArray::<u16, 2>::builder([480, 640]).tiled().build()?;
//! image.set([10, 20], 7)?;
//! // zarr.open_array(path)[10, 20] == 7
//! zarr::write(&path, &image, Encoding::new(), Options::new())?;
//!
//! let mut store = Zarr::<u16>::open(&path)?;
//! assert_eq!((store.shape(), store.chunk()), (&[480, 640][..], &[128, 256][..]));
//! let again = NdArray::<u16, 2>::builder(store.extents()?).tiled().build()?;
//! store.read(&again, Options::new())?;
//! assert_eq!(again.get([10, 20])?, 7);
//!
//! // More rows.
//! store.append(image.section(..[20, 640])?, Options::new())?;
//! assert_eq!(Zarr::<u16>::open(&path)?.shape(), [500, 640]);
//! # std::fs::remove_dir_all(path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bounded;
mod encoding;
mod folder;
mod grid;
mod leaves;
mod ragged;
mod stored;

use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use vmarray::bytemuck::{cast_slice, cast_slice_mut};
use vmarray::kernel::KernelType;
use vmarray::{Element, ErrorKind};
use zarrs::array::codec::BytesCodec;
use zarrs::array::{Array, ArrayBuilder, ArrayBytes, ArraySubset, CodecOptions, FillValue};
use zarrs::group::GroupBuilder;
use zarrs::metadata::Endianness;
use zarrs::storage::{ReadableWritableStorage, ReadableWritableStorageTraits, StoreKey};

use crate::error::{Error, Result, zeroed};
use crate::files::{self, Unfinished};
use crate::options::{ByteOrder, Options};
use crate::pieces::{element_count, in_parallel};
use crate::views::{FileView, FileViewMut};
use grid::Grid;
use leaves::Leaf;
use stored::Stored;

pub use encoding::{Blosc, Compression, Encoding};
pub use ragged::{read_ragged, write_ragged};

/// The longest chunk, or shard, that is read and written.
const CHUNK_MAX: u64 = 1 << 30;
/// How many bytes a chunk has by default, about.
const CHUNK_BYTES: usize = 1 << 20;
/// How much of chunks may be in RAM at once, about.
const IN_RAM: usize = 1 << 30;

/// Writes the elements of a view to a folder, which must not exist yet.
///
/// The folder has its name when it is whole and synchronised; until then it has another one in the same
/// place, which ends in `.unfinished` and stays only if the process is killed. Blocks; chunks are compressed
/// and written by several threads, in the [order of bytes](Options::byte_order) that is wanted.
///
/// # Errors
/// [`Exists`](Error::Exists), [`File`](Error::File), [`Zarr`](Error::Zarr), [`Array`](Error::Array),
/// [`Cancelled`](Error::Cancelled); [`Unsupported`](Error::Unsupported) for an encoding that there is not.
pub fn write<V>(
    path: impl AsRef<Path>,
    view: V,
    encoding: Encoding<V::Element>,
    mut options: Options<'_>,
) -> Result<()>
where
    V: FileView<Element: KernelType>,
{
    let path = path.as_ref();
    in_new_folder(path, |store| write_arrays(store, path, "", view, &encoding, &mut options))
}

/// Makes a folder whose contents are whole when it gets its name.
fn in_new_folder(path: &Path, fill: impl FnOnce(&ReadableWritableStorage) -> Result<()>) -> Result<()> {
    let unfinished = Unfinished::folder(path)?;
    fill(&folder::create(unfinished.temporary())?)?;
    files::sync_folders(unfinished.temporary())?;
    unfinished.finish()
}

/// Writes arrays at a node, and the groups that they are in.
fn write_arrays<V>(
    store: &ReadableWritableStorage,
    path: &Path,
    node: &str,
    view: V,
    encoding: &Encoding<V::Element>,
    options: &mut Options<'_>,
) -> Result<()>
where
    V: FileView<Element: KernelType>,
{
    let leaves = Leaf::of::<V::Element>(path)?;
    let shape = view.extents();
    let chunk = encoding.chunk.clone().unwrap_or_else(|| default_chunk(view));
    let stored = encoding.shard.as_ref().unwrap_or(&chunk);
    check_chunks::<V::Element>(shape.len(), stored, &chunk, path)?;
    let grid = Grid::whole(&shape, stored);
    let mut arrays = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        let place = joined(node, &leaf.path);
        write_groups(store, path, &place)?;
        let order = options.byte_order;
        let array = Description { leaf: &leaf, shape: &shape, stored, chunk: &chunk, encoding, order, path };
        let array = array.build(store, &place)?;
        array.store_metadata().map_err(Error::zarr(path))?;
        arrays.push((leaf, array));
    }
    Chunks { arrays, grid, fill_value: encoding.fill_value, before: None, path }.write(view, options)
}

/// Chunks that are written.
struct Chunks<'a, T> {
    arrays: Vec<(Leaf, Array<dyn ReadableWritableStorageTraits>)>,
    grid: Grid,
    fill_value: T,
    /// What has the other elements of chunks of which a part is written.
    before: Option<&'a Zarr<T>>,
    path: &'a Path,
}

impl<T: Element + KernelType> Chunks<'_, T> {
    /// Writes the elements of a view of the grid's shape.
    fn write<V: FileView<Element = T>>(&self, view: V, options: &mut Options<'_>) -> Result<()> {
        let (grid, path) = (&self.grid, self.path);
        let (total, len) = (grid.len() as u64 * size_of::<T>() as u64, element_count(&grid.chunk));
        limit_threads::<T>(len, options);
        let codecs = codec_options(options);
        let buffer = || Ok((zeroed::<T>(len)?, zeroed::<T>(len)?, Vec::new()));
        in_parallel(grid.count(), total, path, options, buffer, |(chunk, part, bytes), number| {
            let cell = grid.cell(number);
            let piece = grid.piece(&cell);
            if piece.len() == len {
                view.read_piece(&piece, chunk)?;
            } else {
                chunk.fill(self.fill_value);
                if let Some(before) = self.before {
                    let known = grid.within(&cell, before.shape());
                    let covered =
                        known.iter().zip(&cell.part).all(|(a, b)| b.start <= a.start && a.end <= b.end);
                    let known_len = element_count(&grid::lengths(&known));
                    if known_len > 0 && !covered {
                        before.read_elements(&known, &mut part[..known_len], &codecs)?;
                        grid.put(&cell, &known, &part[..known_len], chunk);
                    }
                }
                view.read_piece(&piece, &mut part[..piece.len()])?;
                grid.put(&cell, &cell.part, &part[..piece.len()], chunk);
            }
            for (leaf, array) in &self.arrays {
                store_chunk(array, leaf, &cell.place, cast_slice(chunk), bytes, &codecs)
                    .map_err(Error::zarr(path))?;
            }
            Ok(piece.len() as u64 * size_of::<T>() as u64)
        })
    }
}

/// Writes what a chunk of elements has of a leaf.
fn store_chunk(
    array: &Array<dyn ReadableWritableStorageTraits>,
    leaf: &Leaf,
    place: &[u64],
    elements: &[u8],
    bytes: &mut Vec<u8>,
    codecs: &CodecOptions,
) -> Result<(), zarrs::array::ArrayError> {
    leaf.take(elements, bytes);
    let place = [place, &vec![0; leaf.axes.len()]].concat();
    array.store_chunk_opt(&place, ArrayBytes::new_flen(&bytes[..]), codecs)
}

/// The path of something within a node.
fn joined(node: &str, path: &str) -> String {
    if node.is_empty() || path.is_empty() { format!("{node}{path}") } else { format!("{node}/{path}") }
}

/// Writes the groups that a node is in, those that are there already again.
fn write_groups(store: &ReadableWritableStorage, path: &Path, node: &str) -> Result<()> {
    for (end, _) in std::iter::once((0, "")).chain(node.match_indices('/')).filter(|_| !node.is_empty()) {
        let group = GroupBuilder::new().build(store.clone(), &format!("/{}", &node[..end]));
        group.map_err(Error::zarr(path))?.store_metadata().map_err(Error::zarr(path))?;
    }
    Ok(())
}

/// An array that is to be made.
struct Description<'a, T> {
    leaf: &'a Leaf,
    shape: &'a [usize],
    /// A chunk, or a shard where chunks are in shards.
    stored: &'a [usize],
    chunk: &'a [usize],
    encoding: &'a Encoding<T>,
    order: ByteOrder,
    path: &'a Path,
}

impl<T: Element> Description<'_, T> {
    fn build(
        &self,
        store: &ReadableWritableStorage,
        node: &str,
    ) -> Result<Array<dyn ReadableWritableStorageTraits>> {
        let Self { leaf, encoding, path, .. } = self;
        let unsupported = |what| Error::unsupported(path, what);
        let with_axes = |extents: &[usize]| -> Vec<u64> {
            extents.iter().chain(&leaf.axes).map(|extent| *extent as u64).collect()
        };
        let mut fill = Vec::new();
        leaf.take(cast_slice(std::slice::from_ref(&encoding.fill_value)), &mut fill);
        let (number_bytes, mut fills) = (leaf.number.bytes(), fill.chunks(leaf.number.bytes()));
        let first = fills.next().unwrap_or_default().to_vec();
        if fills.any(|other| other != first) {
            return Err(unsupported("numbers of one array have one fill value".to_owned()));
        }
        let (shape, chunk) = (with_axes(self.shape), with_axes(self.stored));
        let mut builder =
            ArrayBuilder::new(shape, chunk, stored::name_of(leaf.number), FillValue::new(first));
        let order = match self.order {
            _ if number_bytes == 1 => None,
            ByteOrder::Little => Some(Endianness::Little),
            ByteOrder::Big => Some(Endianness::Big),
        };
        builder
            .array_to_bytes_codec(std::sync::Arc::new(BytesCodec::new(order)))
            .bytes_to_bytes_codecs(encoding.compression.codecs(number_bytes).map_err(unsupported)?)
            .dimension_names(Some(self.axis_names()?));
        if encoding.shard.is_some() {
            builder.subchunk_shape(with_axes(self.chunk));
        }
        builder.build(store.clone(), &format!("/{node}")).map_err(Error::zarr(path))
    }

    /// The names of axes. Those within an element are its field's.
    fn axis_names(&self) -> Result<Vec<String>> {
        let axes = self.shape.len();
        let mut names = self.encoding.axis_names.clone();
        let names_of = names.get_or_insert_with(|| (0..axes).map(|axis| format!("dim_{axis}")).collect());
        if names_of.len() != axes {
            let what = format!("there are {} names for {axes} axes", names_of.len());
            return Err(Error::unsupported(self.path, what));
        }
        let field = self.leaf.path.rsplit('/').next().filter(|field| !field.is_empty()).unwrap_or("element");
        names_of.extend((0..self.leaf.axes.len()).map(|axis| format!("{field}_dim_{axis}")));
        Ok(names.unwrap_or_default())
    }
}

/// Whether chunks and shards are such that they can be read again.
fn check_chunks<T: Element>(axes: usize, stored: &[usize], chunk: &[usize], path: &Path) -> Result<()> {
    for extents in [stored, chunk] {
        if extents.len() != axes {
            let what =
                format!("chunks and shards have {axes} axes here, {} extents are given", extents.len());
            return Err(Error::unsupported(path, what));
        }
        if let Some(axis) = extents.iter().position(|extent| *extent == 0) {
            return Err(Error::Array(ErrorKind::EmptyTile { axis }.into()));
        }
    }
    if stored.iter().zip(chunk).any(|(shard, chunk)| shard % chunk != 0) {
        return Err(Error::unsupported(path, "shards are multiples of chunks along each axis"));
    }
    let bytes = stored.iter().try_fold(size_of::<T>() as u64, |bytes, of| bytes.checked_mul(*of as u64));
    if bytes.is_none_or(|bytes| bytes > CHUNK_MAX) {
        let what = format!("chunks and shards have at most {CHUNK_MAX} bytes; take shorter ones");
        return Err(Error::unsupported(path, what));
    }
    Ok(())
}

/// The extents of a chunk where none are given.
fn default_chunk<V: FileView>(view: V) -> Vec<usize> {
    if let Some(tile) = view.tile_extents() {
        return tile;
    }
    let (extents, steps) = (view.extents(), view.steps());
    let room = (CHUNK_BYTES / size_of::<V::Element>()).max(1);
    if let ([extent], [step]) = (&extents[..], &steps[..]) {
        let len = if *step < room { room - room % step } else { room };
        return vec![len.min(*extent).max(1)];
    }
    // Alike along all axes, as far as the shape is; the last axis first, whose elements are neighbours.
    let mut chunk = vec![1; extents.len()];
    let mut left = room;
    loop {
        let before = left;
        for axis in (0..chunk.len()).rev() {
            if left >= 2 && chunk[axis] < extents[axis] {
                chunk[axis] *= 2;
                left /= 2;
            }
        }
        if left == before {
            return chunk.iter().zip(&extents).map(|(chunk, extent)| *chunk.min(extent.max(&1))).collect();
        }
    }
}

/// Takes fewer threads for long chunks, of which each has several copies.
fn limit_threads<T>(chunk_len: usize, options: &mut Options<'_>) {
    let bytes = chunk_len.saturating_mul(size_of::<T>()).max(1).saturating_mul(3);
    options.threads = options.threads.min(IN_RAM / bytes).max(1);
}

/// Threads of zarrs for work on one chunk: none, where chunks have threads.
fn codec_options(options: &Options<'_>) -> CodecOptions {
    let codecs = CodecOptions::default();
    if options.threads > 1 { codecs.with_concurrent_target(1) } else { codecs }
}

/// A Zarr store that was opened for elements of a type: an array, or a group of arrays for the fields of a
/// struct.
///
/// ```
/// use vmarray::{bytemuck::{Pod, Zeroable}, kernel::KernelType, prelude::*};
/// use vmarray_formats::{Options, zarr::{self, Encoding, Zarr}};
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
/// zarr::write(&path, &sales, Encoding::new(), Options::new())?;
///
/// let mut store = Zarr::<Sale>::open(&path)?;
/// let [len] = store.extents()?;
/// let again = VirtualArray::<Sale>::new(len)?;
/// store.read(&again, Options::new())?;
/// assert_eq!(again.get(7)?, sales.get(7)?);
/// // One column.
/// let prices = VirtualArray::<f64>::new(1000)?;
/// Zarr::open(path.join("price"))?.read(&prices, Options::new())?;
/// assert_eq!(prices.get(7)?, 9.99);
/// assert!(Zarr::<f32>::open(path.join("price")).is_err());
///
/// // Changed in place, and made longer.
/// store.write_box([0]..[10], again.section(7..17)?, Options::new())?;
/// store.append(again.section(..500)?, Options::new())?;
/// assert_eq!((store.shape(), store.chunk()), (&[1500][..], &[1000][..]));
/// store.read_box([0]..[1000], &again, Options::new())?;
/// assert_eq!(again.get(0)?, sales.get(7)?);
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Zarr<T> {
    store: ReadableWritableStorage,
    path: PathBuf,
    /// The node of the elements.
    node: String,
    fields: Vec<(Leaf, Stored)>,
    elements: PhantomData<fn() -> T>,
}

impl<T: Element + KernelType> Zarr<T> {
    /// Opens a store and reads what it says of its arrays.
    ///
    /// # Errors
    /// [`Malformed`](Error::Malformed) for what is no such store, or damaged; [`ElementMismatch`] with both
    /// types; [`Unsupported`](Error::Unsupported) for what is not [read](self) here; [`Zarr`](Error::Zarr).
    ///
    /// [`ElementMismatch`]: Error::ElementMismatch
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::open_node(folder::open(path)?, path, "")
    }

    fn open_node(store: ReadableWritableStorage, path: &Path, node: &str) -> Result<Self> {
        let open = |leaf: Leaf| {
            let stored = stored::open(&store, &joined(node, &leaf.path), &leaf, path)?;
            Ok((leaf, stored))
        };
        let fields = Leaf::of::<T>(path)?.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        let first = fields.first().map(|(_, first)| first.shape.clone()).unwrap_or_default();
        let bytes = first.iter().try_fold(size_of::<T>(), |bytes, extent| bytes.checked_mul(*extent));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            let what = format!("a shape of {first:?} has more bytes than can be counted");
            return Err(Error::malformed(path, what));
        }
        if let Some((leaf, stored)) = fields.iter().find(|(_, stored)| stored.shape != first) {
            let what = format!("`{}` has the shape {:?}, others have {first:?}", leaf.path, stored.shape);
            return Err(Error::malformed(path, what));
        }
        Ok(Self { store, path: path.to_path_buf(), node: node.to_owned(), fields, elements: PhantomData })
    }

    /// How many elements there are along each axis.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.fields[0].1.shape
    }

    /// The extents of a chunk, or of a shard where chunks are in shards; of several fields the first one's.
    #[must_use]
    pub fn chunk(&self) -> &[usize] {
        &self.fields[0].1.chunk
    }

    /// The shape, as arrays of so many axes are described by.
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

    /// Reads all elements into a view of the store's shape. Blocks; chunks are read and decompressed by
    /// several threads.
    ///
    /// # Errors
    /// [`ShapeMismatch`](Error::ShapeMismatch) with nothing read; [`Zarr`](Error::Zarr) for damaged chunks,
    /// [`Array`](Error::Array), [`Cancelled`](Error::Cancelled), after which some elements are read.
    pub fn read<V: FileViewMut<Element = T>>(&self, view: V, options: Options<'_>) -> Result<()> {
        self.read_grid(&Grid::whole(self.shape(), self.chunk()), view, options)
    }

    /// As [`read`](Self::read), a box of the store's elements into a view of the box's shape: what is larger
    /// than all memory is worked on a part at a time. Chunks that are partly in the box are read whole.
    ///
    /// # Errors
    /// As there, and [`RankMismatch`](Error::RankMismatch), [`BoxOutside`](ErrorKind::BoxOutside),
    /// [`BoxReversed`](ErrorKind::BoxReversed).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray_formats::{Options, zarr::{self, Encoding, Zarr}};
    /// let path = std::env::temp_dir().join(format!("boxes {}.zarr", std::process::id()));
    /// let empty = NdArray::<u32, 2>::new([1000, 100])?;
    /// zarr::write(&path, &empty, Encoding::new().chunk([64, 64]), Options::new())?;
    /// let mut store = Zarr::<u32>::open(&path)?;
    /// // A hundred rows at a time.
    /// let rows = NdArray::<u32, 2>::new([100, 100])?;
    /// for first in (0..1000).step_by(100) {
    ///     store.read_box([first, 0]..[first + 100, 100], &rows, Options::new())?;
    ///     rows.transform(.., Field::whole().set(Field::whole() + first as u32))?;
    ///     store.write_box([first, 0]..[first + 100, 100], &rows, Options::new())?;
    /// }
    /// let two = VirtualArray::<u32>::new(2)?;
    /// let two = vmarray::nd::NdSection::over_mut(&two, [2, 1])?;
    /// store.read_box([799, 5]..[801, 6], two, Options::new())?;
    /// assert_eq!(two.to_vec(..)?, [700, 800]);
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_box<V: FileViewMut<Element = T>, const N: usize>(
        &self,
        bounds: Range<[usize; N]>,
        view: V,
        options: Options<'_>,
    ) -> Result<()> {
        self.read_grid(&self.grid(bounds)?, view, options)
    }

    fn read_grid<V: FileViewMut<Element = T>>(
        &self,
        grid: &Grid,
        view: V,
        mut options: Options<'_>,
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

    /// A box that is in the store.
    fn grid<const N: usize>(&self, bounds: Range<[usize; N]>) -> Result<Grid> {
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

    fn check_shape(&self, view: impl FileView, grid: &Grid) -> Result<()> {
        let (expected, found) = (view.extents(), grid::lengths(&grid.bounds));
        if expected == found {
            return Ok(());
        }
        Err(Error::ShapeMismatch { path: self.path.clone(), expected, found })
    }

    /// Reads elements of a box.
    fn read_elements(
        &self,
        bounds: &[Range<usize>],
        elements: &mut [T],
        codecs: &CodecOptions,
    ) -> Result<()> {
        for (leaf, stored) in &self.fields {
            let own = leaf.axes.iter().map(|len| 0..*len as u64);
            let of = bounds.iter().map(|of| of.start as u64..of.end as u64).chain(own);
            let subset = ArraySubset::new_with_ranges(&of.collect::<Vec<_>>());
            let retrieve = || stored.array.retrieve_array_subset_opt::<ArrayBytes<'static>>(&subset, codecs);
            // Numbers of a damaged index overflow in zarrs, which changes nothing that is still used.
            let bytes = catch_unwind(AssertUnwindSafe(retrieve))
                .map_err(|_| Error::malformed(&self.path, "the index of a shard makes no sense"))?;
            let bytes =
                bytes.map_err(Error::zarr(&self.path))?.into_fixed().map_err(Error::zarr(&self.path))?;
            if bytes.len() != elements.len() * leaf.bytes() {
                return Err(Error::malformed(&self.path, "a chunk has other bytes than its elements"));
            }
            leaf.put(&bytes, cast_slice_mut(elements));
        }
        Ok(())
    }

    /// Writes a view to a box of the store of its shape. Chunks that are partly in the box are read before;
    /// the file of each chunk is replaced at once. Blocks; chunks are compressed by several threads. Nobody
    /// else may write to the store meanwhile.
    ///
    /// # Errors
    /// As [`write`](fn@write) and [`read_box`](Self::read_box): some chunks are written then.
    /// [`Unsupported`](Error::Unsupported) for stores of others whose fields have different chunks.
    pub fn write_box<V: FileView<Element = T>, const N: usize>(
        &mut self,
        bounds: Range<[usize; N]>,
        view: V,
        mut options: Options<'_>,
    ) -> Result<()> {
        let grid = self.grid(bounds)?;
        self.check_shape(view, &grid)?;
        let shape = self.shape().to_vec();
        self.chunks(grid, &shape)?.write(view, &mut options)
    }

    /// Appends the elements of a view along the first axis. The other axes have the same extents.
    ///
    /// What was there stays as it was until all is written: files of chunks are replaced at once, and the
    /// shape, by which readers go, is written last. A process that is killed before leaves chunks that nobody
    /// sees, and the next call writes them anew; one that is killed while the shapes of several fields are
    /// written leaves fields of different lengths, which [`open`](Self::open) refuses. Blocks. Nobody else
    /// may write to the store meanwhile.
    ///
    /// # Errors
    /// [`ShapeMismatch`](Error::ShapeMismatch), and as [`write_box`](Self::write_box); the shape is the old
    /// one then.
    pub fn append<V: FileView<Element = T>>(&mut self, view: V, mut options: Options<'_>) -> Result<()> {
        let (more, old) = (view.extents(), self.shape().to_vec());
        if more.is_empty() || old.is_empty() || more[1..] != old[1..] {
            return Err(Error::ShapeMismatch { path: self.path.clone(), expected: more, found: old });
        }
        let too_long = || Error::Array(ErrorKind::ShapeOverflow { shape: vec![old[0], more[0]] }.into());
        let mut shape = old.clone();
        shape[0] = old[0].checked_add(more[0]).ok_or_else(too_long)?;
        let bytes = shape.iter().try_fold(size_of::<T>(), |bytes, extent| bytes.checked_mul(*extent));
        bytes.filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or_else(too_long)?;
        let mut grid = Grid::whole(&shape, self.chunk());
        grid.bounds[0].start = old[0];
        self.chunks(grid, &shape)?.write(view, &mut options)?;
        for (leaf, stored) in &mut self.fields {
            let node = joined(&self.node, &leaf.path);
            stored.metadata["shape"][0] = shape[0].into();
            let text = serde_json::to_vec_pretty(&stored.metadata).unwrap_or_default();
            let key = StoreKey::new(stored::metadata_key(&node)).map_err(Error::zarr(&self.path))?;
            self.store.set(&key, text.into()).map_err(Error::zarr(&self.path))?;
        }
        *self = Self::open_node(self.store.clone(), &self.path, &self.node)?;
        Ok(())
    }

    /// Chunks of arrays as they are but for their shape, to be written.
    fn chunks(&self, grid: Grid, shape: &[usize]) -> Result<Chunks<'_, T>> {
        let array = |(leaf, stored): &(Leaf, Stored)| {
            if stored.chunk != grid.chunk || stored.own_chunk != leaf.axes {
                let what = "fields with different chunks, or in several of them, are not written to";
                return Err(Error::unsupported(&self.path, what));
            }
            if stored.is_truth {
                return Err(Error::unsupported(&self.path, "truth is read as numbers, but not written"));
            }
            let with_axes: Vec<u64> = shape.iter().chain(&leaf.axes).map(|extent| *extent as u64).collect();
            let mut builder = stored.array.builder();
            builder.shape(with_axes);
            let array = builder.build(self.store.clone(), stored.array.path().as_str());
            Ok((leaf.clone(), array.map_err(Error::zarr(&self.path))?))
        };
        let arrays = self.fields.iter().map(array).collect::<Result<_>>()?;
        Ok(Chunks { arrays, grid, fill_value: self.fill_value(), before: Some(self), path: &self.path })
    }

    /// What elements are that are not stored.
    fn fill_value(&self) -> T {
        let mut fill = [T::zeroed()];
        for (leaf, stored) in &self.fields {
            let number = stored.array.fill_value().as_ne_bytes();
            leaf.put(&number.repeat(leaf.bytes() / number.len().max(1)), cast_slice_mut(&mut fill));
        }
        fill[0]
    }
}

impl<T> std::fmt::Debug for Zarr<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zarr").field("path", &self.path).field("node", &self.node).finish_non_exhaustive()
    }
}
