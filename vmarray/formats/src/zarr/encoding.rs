//! How a Zarr store is written.

use std::sync::Arc;

use vmarray::Element;
use zarrs::array::BytesToBytesCodecTraits;
use zarrs::array::codec::{
    BloscCodec, BloscCompressionLevel, BloscCompressor, BloscShuffleMode, GzipCodec, ZstdCodec,
};

/// How chunks are compressed.
///
/// ```
/// use vmarray_formats::zarr::{Blosc, Compression};
/// assert_eq!(Compression::default(), Compression::Zstd { level: 3 });
/// let fast = Compression::Blosc { by: Blosc::Lz4, level: 5 };
/// assert_ne!(fast, Compression::Gzip { level: 5 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// By Zstandard, with a level from 1 to 22.
    Zstd {
        /// Higher ones take longer.
        level: i32,
    },
    /// By gzip, with a level from 0 to 9.
    Gzip {
        /// Higher ones take longer.
        level: u32,
    },
    /// By Blosc, bytes of the same place in each number together, with a level from 0 to 9.
    Blosc {
        /// What it uses.
        by: Blosc,
        /// Higher ones take longer.
        level: u8,
    },
}

impl Default for Compression {
    fn default() -> Self {
        Self::Zstd { level: 3 }
    }
}

/// What [Blosc](Compression::Blosc) compresses by.
///
/// ```
/// use vmarray_formats::zarr::{Blosc, Compression};
/// let compression = Compression::Blosc { by: Blosc::Zstd, level: 3 };
/// assert!(matches!(compression, Compression::Blosc { by: Blosc::Zstd, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "names of methods")]
pub enum Blosc {
    BloscLz,
    Lz4,
    Lz4Hc,
    Zlib,
    Zstd,
}

/// How a Zarr store is written; every setting has a default that works.
///
/// | setting | default |
/// |---|---|
/// | chunk | a tile of a tiled array; else about 1 MiB, of whole pages where that is possible |
/// | shard, a file that has several chunks | none: each chunk is a file |
/// | compression | Zstandard, level 3 |
/// | fill value: chunks of nothing else are not stored | zeroes |
/// | names of axes | `dim_0`, `dim_1` and so on |
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray_formats::{Options, zarr::{self, Compression, Encoding, Zarr}};
///
/// let path = std::env::temp_dir().join(format!("encoding {}.zarr", std::process::id()));
/// let volume = NdArray::<f32, 3>::new([40, 50, 60])?;
/// volume.fill(.., f32::NAN)?;
/// volume.set([7, 8, 9], 1.0)?;
/// let encoding = Encoding::new()
///     .chunk([8, 8, 8])
///     .shard([16, 16, 64])
///     .compression(Compression::Zstd { level: 1 })
///     .fill_value(f32::NAN)
///     .axis_names(["z", "y", "x"]);
/// zarr::write(&path, &volume, encoding, Options::new())?;
/// assert!(path.join("c/0/0/0").exists() && !path.join("c/1/0/0").exists());
///
/// let again = NdArray::<f32, 3>::new(Zarr::<f32>::open(&path)?.extents()?)?;
/// Zarr::open(&path)?.read(&again, Options::new())?;
/// assert_eq!(again.get([7, 8, 9])?, 1.0);
/// assert!(again.get([39, 0, 0])?.is_nan());
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "says how a store is written"]
pub struct Encoding<T> {
    pub(super) chunk: Option<Vec<usize>>,
    pub(super) shard: Option<Vec<usize>>,
    pub(super) compression: Compression,
    pub(super) fill_value: T,
    pub(super) axis_names: Option<Vec<String>>,
}

impl<T: Element> Encoding<T> {
    /// All defaults.
    pub fn new() -> Self {
        Self {
            chunk: None,
            shard: None,
            compression: Compression::default(),
            fill_value: T::zeroed(),
            axis_names: None,
        }
    }

    /// The extents of a chunk, which is read and written whole.
    pub fn chunk(mut self, extents: impl Into<Vec<usize>>) -> Self {
        self.chunk = Some(extents.into());
        self
    }

    /// The extents of a shard, along each axis a multiple of the chunk's. A shard is put together in RAM.
    pub fn shard(mut self, extents: impl Into<Vec<usize>>) -> Self {
        self.shard = Some(extents.into());
        self
    }

    /// How chunks are compressed.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// What elements are that are not stored.
    pub fn fill_value(mut self, value: T) -> Self {
        self.fill_value = value;
        self
    }

    /// The names of axes, by which xarray calls them.
    pub fn axis_names(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.axis_names = Some(names.into_iter().map(Into::into).collect());
        self
    }
}

impl<T: Element> Default for Encoding<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl Compression {
    /// The codecs for numbers of a length; an error says which of them there is not.
    pub(super) fn codecs(self, number_bytes: usize) -> Result<Vec<Arc<dyn BytesToBytesCodecTraits>>, String> {
        Ok(match self {
            Self::None => Vec::new(),
            Self::Zstd { level } => {
                if !(1..=22).contains(&level) {
                    return Err(format!("Zstandard has no level {level}; take one from 1 to 22"));
                }
                vec![Arc::new(ZstdCodec::new(level, false))]
            }
            Self::Gzip { level } => vec![Arc::new(GzipCodec::new(level).map_err(|error| error.to_string())?)],
            Self::Blosc { by, level } => {
                let by = match by {
                    Blosc::BloscLz => BloscCompressor::BloscLZ,
                    Blosc::Lz4 => BloscCompressor::LZ4,
                    Blosc::Lz4Hc => BloscCompressor::LZ4HC,
                    Blosc::Zlib => BloscCompressor::Zlib,
                    Blosc::Zstd => BloscCompressor::Zstd,
                };
                let level = BloscCompressionLevel::try_from(level)
                    .map_err(|level| format!("Blosc has no level {level}; take one from 0 to 9"))?;
                let codec = BloscCodec::new(by, level, None, BloscShuffleMode::Shuffle, Some(number_bytes));
                vec![Arc::new(codec.map_err(|error| error.to_string())?)]
            }
        })
    }
}
