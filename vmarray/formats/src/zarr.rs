//! Zarr stores: folders of compressed chunks, a common format for partial reads and writes. The crate writes
//! version 3. It also reads arrays of version 2 and overwrites parts of them, but does not append to them.
//!
//! | elements | in the store |
//! |---|---|
//! | numbers | an array; `bool` can be read as `u8` |
//! | arrays `[T; N]` | an array with one more axis |
//! | structs with `#[derive(KernelType)]` | a group with an array for each field; nested structs are groups |
//! | rows of a [`RaggedArray`](vmarray::RaggedArray) | a group of `offsets` and `items`: [`write_ragged`] |
//!
//! Chunks are the unit of copies: by default the tiles of a tiled array, or about 1 MiB. Only a few chunks
//! are in RAM at a time. The crate reads stores with regular chunks or shards of at most 1 GiB and the codecs
//! `bytes`, `transpose`, `sharding_indexed`, `zstd`, `gzip`, `blosc` and `crc32c`.
//!
//! Each written chunk ends with a checksum (the codec `crc32c`; [`Encoding::checksums`] leaves it out), so
//! every reader of the store notices damage. This crate reports it as [`Corrupted`](Error::Corrupted) with
//! the chunk. Zarr defines no checksums for three things:
//!
//! - chunks that other programs wrote without the codec `crc32c`, as most do by default. A damaged chunk is
//!   an error if its bytes cannot be decompressed; otherwise it has wrong values;
//! - the description `zarr.json`;
//! - the set of chunks: a missing chunk has the fill value, and a swap of two chunks stays unnoticed.
//!
//! ```
//! use vmarray::prelude::*;
//! use vmarray_formats::{FileOptions, zarr::{self, Encoding, Zarr}};
//!
//! let path = std::env::temp_dir().join(format!("image {}.zarr", std::process::id()));
//! let image = NdArray::<u16, 2>::builder([480, 640]).tiled().build()?;
//! image.set([10, 20], 7)?;
//! // zarr.open_array(path)[10, 20] == 7
//! zarr::write(&path, &image, Encoding::new(), FileOptions::new())?;
//!
//! let mut store = Zarr::<u16>::open(&path)?;
//! assert_eq!((store.shape(), store.chunk()), (&[480, 640][..], &[128, 256][..]));
//! let again = NdArray::<u16, 2>::builder(store.extents()?).tiled().build()?;
//! store.read(&again, FileOptions::new())?;
//! assert_eq!(again.get([10, 20])?, 7);
//!
//! // More rows.
//! store.append(image.section(..[20, 640])?, FileOptions::new())?;
//! assert_eq!(Zarr::<u16>::open(&path)?.shape(), [500, 640]);
//! # std::fs::remove_dir_all(path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bounded;
mod chunks;
mod create;
mod damaged;
mod described;
mod encoding;
mod folder;
mod grid;
mod home;
mod leaves;
mod location;
#[cfg(feature = "object_store")]
mod objects;
mod opened;
mod ragged;
mod stored;
mod writes;

use vmarray::kernel::KernelType;

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::options::FileOptions;
use crate::views::FileView;
use create::{describe, write_chunks};

pub use encoding::{Blosc, Compression, Encoding};
pub use location::Location;
pub use opened::Zarr;
pub use ragged::{read_ragged, write_ragged};

/// Writes the elements of a view to a new Zarr store: a folder, or objects of a server. The store must not
/// exist yet.
///
/// The function writes to a temporary folder whose name ends in `.unfinished`, and renames the folder when it
/// is complete and synchronised. The temporary folder stays only if the process is killed. On a server, the
/// last written object makes the store valid; if a write fails, the function removes the objects written so
/// far. Blocks. Several threads compress and write chunks in the requested [order of
/// bytes](FileOptions::byte_order).
///
/// # Errors
/// [`Exists`](Error::Exists), [`File`](Error::File), [`Zarr`](Error::Zarr), [`Array`](Error::Array),
/// [`Cancelled`](Error::Cancelled); [`Unsupported`](Error::Unsupported) for an invalid encoding, such as an
/// unknown compression level.
pub fn write<V>(
    to: impl Into<Location>,
    view: V,
    encoding: Encoding<V::Element>,
    mut options: FileOptions<'_>,
) -> Result<()>
where
    V: FileView<Element: KernelType>,
{
    let to = to.into();
    to.make(|store| {
        let arrays = write_chunks(store, to.path(), "", view, &encoding, &mut options)?;
        describe(store, to.path(), &arrays)
    })
}
