//! Zarr stores as the storage of arrays: the array reads chunks on demand, and writes changed chunks back.

use std::fmt;
use std::io;

use vmarray::bytemuck::{cast_slice, try_cast_slice_mut};
use vmarray::kernel::KernelType;
use vmarray::store::Backing;
use vmarray::{AnyDevice, Builder, Element, NdArray};
use zarrs::array::{ArrayError, CodecError, CodecOptions};
use zarrs::storage::StorageError;

use super::Zarr;
use super::chunks::{ChunkArrays, codec_options};
use super::grid::{Grid, lengths};
use crate::error::{Error, Result, zeroed};
use crate::options::FileOptions;
use crate::pieces::element_count;

impl<T: Element + KernelType> Zarr<T> {
    /// Builds an array whose elements stay in the store. The array reads chunks on demand, so a program can
    /// work on stores larger than RAM and GPU memory. The tiles of the array (boxes of elements, one in each
    /// page) are the chunks of the store, or its shards.
    ///
    /// `settings` configures the array's elements, such as the cache in RAM and GPUs as a cache of the store
    /// ([`Builder::tier`](vmarray::Builder::tier)). The array compresses and writes changed chunks
    ///
    /// - when they leave the cache;
    /// - in `flush`, and in [`sync`](vmarray::VirtualArray::sync), which also waits for durability;
    /// - when it is dropped, which can only warn of a failure.
    ///
    /// If the process ends at any time, each chunk has its old or its new contents, never a mixture;
    /// different chunks may be from different times. No other writer may use the store meanwhile, and its
    /// shape must not change. Missing chunks have the fill value; each read of a missing chunk checks that
    /// the store's description still exists.
    ///
    /// # Errors
    /// [`RankMismatch`](Error::RankMismatch); [`Unsupported`](Error::Unsupported) for `bool`, and for stores
    /// of other programs in which the arrays of a struct's fields have different chunk shapes;
    /// [`Array`](Error::Array) for errors of the array. Later, the array reports a damaged chunk as a device
    /// error of kind `Corrupted` that names store and chunk, [if the store has checksums](super). If a chunk
    /// cannot be written, it stays in the cache for the next attempt. After the store has been removed,
    /// `sync` and reads of chunks fail.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray_formats::{FileOptions, zarr::{self, Encoding, Zarr}};
    /// let path = std::env::temp_dir().join(format!("home {}.zarr", std::process::id()));
    /// let empty = NdArray::<u32, 2>::new([1000, 1000])?;
    /// zarr::write(&path, &empty, Encoding::new().chunk([64, 64]), FileOptions::new())?;
    ///
    /// let image: NdArray<u32, 2> = Zarr::open(&path)?.into_array(|elements| elements.cache_bytes(1 << 20))?;
    /// image.set([500, 500], 7)?;
    /// image.transform([0, 0]..[100, 100], Field::whole().set(1))?;
    /// assert_eq!(image.sum(.., Field::whole())?, 10_007);
    /// image.elements().sync()?;
    /// # drop(image);
    /// # let box_of = |store: Zarr<u32>| -> Result<u32, Box<dyn std::error::Error>> {
    /// #     let two = NdArray::<u32, 2>::new([1, 2])?;
    /// #     store.read_box([500, 499]..[501, 501], &two, FileOptions::new())?;
    /// #     Ok(two.get([0, 1])?)
    /// # };
    /// # assert_eq!(box_of(Zarr::open(&path)?)?, 7);
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_array<const N: usize>(
        self,
        settings: impl FnOnce(Builder<T, AnyDevice>) -> Builder<T, AnyDevice>,
    ) -> Result<NdArray<T, N>> {
        let page = self.chunk().to_vec();
        self.into_array_of(page, true, settings)
    }

    /// Builds a read-only array whose elements stay in the store, as [`into_array`](Self::into_array) does;
    /// writes to the array are errors. The chunks of the store are the tiles of the array (boxes of elements,
    /// one in each page). Of a shard, the array reads only the needed chunks. Other programs may write to the
    /// store; the array sees a changed chunk when it reads this chunk again.
    ///
    /// # Errors
    /// The errors of [`into_array`](Self::into_array).
    ///
    /// ```
    /// use vmarray::{nd::NdLayout, prelude::*};
    /// use vmarray_formats::{FileOptions, zarr::{self, Encoding, Zarr}};
    /// let path = std::env::temp_dir().join(format!("read only {}.zarr", std::process::id()));
    /// let encoding = Encoding::new().chunk([16, 16]).shard([128, 128]);
    /// zarr::write(&path, &NdArray::<u8, 2>::new([500, 500])?, encoding, FileOptions::new())?;
    /// let image: NdArray<u8, 2> = Zarr::open(&path)?.into_read_only_array(|elements| elements)?;
    /// assert_eq!((image.layout(), image.get([499, 0])?), (NdLayout::Tiled([16, 16]), 0));
    /// assert!(image.set([0, 0], 1).is_err());
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_read_only_array<const N: usize>(
        self,
        settings: impl FnOnce(Builder<T, AnyDevice>) -> Builder<T, AnyDevice>,
    ) -> Result<NdArray<T, N>> {
        let page = self.fields[0].1.part.clone();
        self.into_array_of(page, false, settings)
    }

    fn into_array_of<const N: usize>(
        self,
        page: Vec<usize>,
        is_written: bool,
        settings: impl FnOnce(Builder<T, AnyDevice>) -> Builder<T, AnyDevice>,
    ) -> Result<NdArray<T, N>> {
        let shape: [usize; N] = self.extents()?;
        let tile: [usize; N] = page.as_slice().try_into().unwrap_or([1; N]);
        let grid = Grid::whole(self.shape(), &page);
        let writes = if is_written { Some(self.chunk_arrays(self.shape())?) } else { None };
        // `threads(2)` keeps codecs off the thread pool, whose threads could all be waiting for this chunk.
        let codecs = codec_options(&FileOptions::new().threads(2));
        let home = Home { store: self, grid, writes, codecs };
        let builder = NdArray::<T, N>::builder(shape).tile(tile).elements(settings);
        Ok(builder.build_over(home)?)
    }
}

/// Storage of an array whose pages are the chunks of a store.
struct Home<T> {
    store: Zarr<T>,
    /// The chunks in tile order: page `n` of the array is chunk `n`.
    grid: Grid,
    /// Arrays that receive written chunks; `None` for a read-only array.
    writes: Option<ChunkArrays>,
    codecs: CodecOptions,
}

impl<T> fmt::Debug for Home<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home")
            .field("store", &self.store.path)
            .field("grid", &self.grid)
            .finish_non_exhaustive()
    }
}

impl<T: Element + KernelType> Home<T> {
    fn page_len(&self) -> usize {
        element_count(&self.grid.chunk)
    }

    /// Reads a chunk; elements beyond the edges of the array are zero.
    fn read(&self, page: u64, chunk: &mut [T]) -> Result<()> {
        let cell = self.grid.cell(page as usize);
        let len = element_count(&lengths(&cell.part));
        if len == chunk.len() {
            return self.store.read_elements(&cell.part, chunk, &self.codecs);
        }
        let mut part = zeroed::<T>(len)?;
        self.store.read_elements(&cell.part, &mut part, &self.codecs)?;
        chunk.fill(T::zeroed());
        self.grid.put(&cell, &cell.part, &part, chunk);
        Ok(())
    }

    /// Writes a chunk. Elements beyond the edges get the fill value, because the array may grow there.
    fn write(&self, page: u64, chunk: &mut [T]) -> Result<()> {
        let Some(writes) = &self.writes else {
            return Err(Error::unsupported(
                &self.store.path,
                "the store is open for reading only; open it for writing",
            ));
        };
        let cell = self.grid.cell(page as usize);
        let len = element_count(&lengths(&cell.part));
        if len < chunk.len() {
            let mut part = zeroed::<T>(len)?;
            self.grid.take(&cell, &cell.part, chunk, &mut part);
            chunk.fill(self.store.fill_value());
            self.grid.put(&cell, &cell.part, &part, chunk);
        }
        let stored = writes.store(&cell.place, cast_slice(chunk), &mut Vec::new(), &self.codecs);
        stored.map_err(Error::zarr(&self.store.path))
    }
}

impl<T: Element + KernelType> Backing for Home<T> {
    fn page_bytes(&self) -> usize {
        self.page_len() * size_of::<T>()
    }

    fn pages(&self) -> u64 {
        self.grid.count() as u64
    }

    fn read_page(&self, page: u64, into: &mut [u8]) -> io::Result<()> {
        if let Ok(chunk) = try_cast_slice_mut(into) {
            return self.read(page, chunk).map_err(io_error);
        }
        let mut chunk = zeroed::<T>(self.page_len()).map_err(io_error)?;
        self.read(page, &mut chunk).map_err(io_error)?;
        into.copy_from_slice(cast_slice(&chunk));
        Ok(())
    }

    fn write_page(&self, page: u64, from: &[u8]) -> io::Result<()> {
        let mut chunk = zeroed::<T>(self.page_len()).map_err(io_error)?;
        vmarray::bytemuck::cast_slice_mut(&mut chunk).copy_from_slice(from);
        self.write(page, &mut chunk).map_err(io_error)
    }

    fn sync(&self) -> io::Result<()> {
        // Synchronise only folders, because files were synchronised before their renames. If the store was
        // removed, report an error, because its chunks are lost.
        self.store.expect_described().and_then(|()| self.store.location.sync()).map_err(io_error)
    }

    fn is_read_only(&self) -> bool {
        self.writes.is_none()
    }

    fn name(&self) -> String {
        self.store.path.display().to_string()
    }
}

/// Converts an error to an I/O error of a page: invalid chunks become `InvalidData`, system errors stay.
fn io_error(error: Error) -> io::Error {
    let kind = match &error {
        Error::Corrupted { .. } | Error::Malformed { .. } => io::ErrorKind::InvalidData,
        Error::Array(_) => io::ErrorKind::OutOfMemory,
        Error::File { cause, .. } => cause.kind(),
        Error::Zarr { cause, .. } => match cause.downcast_ref::<ArrayError>() {
            Some(
                ArrayError::StorageError(cause) | ArrayError::CodecError(CodecError::StorageError(cause)),
            ) => of_storage(cause),
            Some(ArrayError::CodecError(CodecError::IOError(cause))) => cause.kind(),
            Some(_) => io::ErrorKind::Other,
            None => cause.downcast_ref::<StorageError>().map_or(io::ErrorKind::Other, of_storage),
        },
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

fn of_storage(error: &StorageError) -> io::ErrorKind {
    match error {
        StorageError::IOError(cause) => cause.kind(),
        StorageError::InvalidByteRangeError(_) => io::ErrorKind::InvalidData,
        _ => io::ErrorKind::Other,
    }
}
