//! Encoding of new Zarr stores: codecs, chunk shapes, checksums.

use std::sync::Arc;

use vmarray::Element;
use zarrs::array::BytesToBytesCodecTraits;
use zarrs::array::codec::{
    BloscCodec, BloscCompressionLevel, BloscCompressor, BloscShuffleMode, Crc32cCodec, GzipCodec, ZstdCodec,
};

/// Compression of the chunks of a Zarr store.
///
/// ```
/// use vmarray_formats::zarr::{Blosc, Compression};
/// assert_eq!(Compression::default(), Compression::Zstd { level: 3 });
/// let fast = Compression::Blosc { by: Blosc::Lz4, level: 5 };
/// assert_ne!(fast, Compression::Gzip { level: 5 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Stores the bytes of elements without compression.
    None,
    /// Zstandard, with a level from 1 to 22.
    Zstd {
        /// Higher levels take longer.
        level: i32,
    },
    /// gzip, with a level from 0 to 9.
    Gzip {
        /// Higher levels take longer.
        level: u32,
    },
    /// Blosc with byte shuffle, with a level from 0 to 9.
    Blosc {
        /// The inner codec.
        by: Blosc,
        /// Higher levels take longer.
        level: u8,
    },
}

impl Default for Compression {
    fn default() -> Self {
        Self::Zstd { level: 3 }
    }
}

/// Inner codec of [Blosc](Compression::Blosc), which compresses the shuffled bytes.
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

/// Encoding of a new Zarr store; every setting has a default.
///
/// | setting | default |
/// |---|---|
/// | chunk | a tile of a tiled array; else about 1 MiB, of whole pages if possible |
/// | shard, a file with several chunks | none: each chunk is a file |
/// | compression | Zstandard, level 3 |
/// | checksums | a CRC-32C after each chunk: the codec `crc32c` |
/// | fill value; chunks of fill values only are not stored | zeroes |
/// | names of axes | `dim_0`, `dim_1` and so on |
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray_formats::{FileOptions, zarr::{self, Compression, Encoding, Zarr}};
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
/// zarr::write(&path, &volume, encoding, FileOptions::new())?;
/// assert!(path.join("c/0/0/0").exists() && !path.join("c/1/0/0").exists());
///
/// let again = NdArray::<f32, 3>::new(Zarr::<f32>::open(&path)?.extents()?)?;
/// Zarr::open(&path)?.read(&again, FileOptions::new())?;
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
    pub(super) checksums: bool,
    pub(super) fill_value: T,
    pub(super) axis_names: Option<Vec<String>>,
}

impl<T: Element> Encoding<T> {
    /// Creates the default encoding.
    pub fn new() -> Self {
        Self {
            chunk: None,
            shard: None,
            compression: Compression::default(),
            checksums: true,
            fill_value: T::zeroed(),
            axis_names: None,
        }
    }

    /// Sets the extents of a chunk, in elements along each axis. A chunk is the unit of reads and writes.
    pub fn chunk(mut self, extents: impl Into<Vec<usize>>) -> Self {
        self.chunk = Some(extents.into());
        self
    }

    /// Sets the extents of a shard, a file with several chunks, in elements along each axis. They must be
    /// multiples of the chunk's extents. A shard is assembled in RAM.
    pub fn shard(mut self, extents: impl Into<Vec<usize>>) -> Self {
        self.shard = Some(extents.into());
        self
    }

    /// Sets the compression of chunks.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Enables or disables checksums; the default is `true`. With checksums, each chunk ends with a CRC-32C
    /// (four bytes) of its compressed bytes, by which every reader detects damage. Without checksums, a
    /// reader detects damage only if it cannot decode the compressed bytes; otherwise it returns wrong
    /// values. The index of a shard always has a checksum.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray_formats::{Error, FileOptions, zarr::{self, Encoding, Zarr}};
    /// let path = std::env::temp_dir().join(format!("checksums {}.zarr", std::process::id()));
    /// let numbers = VirtualArray::<u32>::new(100)?;
    /// numbers.fill(.., 7)?;
    /// zarr::write(&path, &numbers, Encoding::new().chunk([50]), FileOptions::new())?;
    /// let chunk = path.join("c/1");
    /// let mut bytes = std::fs::read(&chunk)?;
    /// bytes[5] ^= 1;
    /// std::fs::write(&chunk, bytes)?;
    /// let error = Zarr::open(&path)?.read(&numbers, FileOptions::new()).unwrap_err();
    /// assert!(matches!(error, Error::Corrupted { chunk, .. } if chunk == "c/1"));
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn checksums(mut self, are_written: bool) -> Self {
        self.checksums = are_written;
        self
    }

    /// Returns the codecs for numbers of a length: from numbers to stored bytes.
    pub(super) fn codecs(
        &self,
        number_bytes: usize,
    ) -> Result<Vec<Arc<dyn BytesToBytesCodecTraits>>, String> {
        let mut codecs = self.compression.codecs(number_bytes)?;
        if self.checksums {
            codecs.push(Arc::new(Crc32cCodec::new()));
        }
        Ok(codecs)
    }

    /// Sets the fill value: the value of all elements in chunks that are not stored.
    pub fn fill_value(mut self, value: T) -> Self {
        self.fill_value = value;
        self
    }

    /// Sets the names of axes, which xarray uses.
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
    /// Returns the codecs for numbers of a length; an error names a codec that this build lacks.
    fn codecs(self, number_bytes: usize) -> Result<Vec<Arc<dyn BytesToBytesCodecTraits>>, String> {
        Ok(match self {
            Self::None => Vec::new(),
            Self::Zstd { level } => {
                if !(1..=22).contains(&level) {
                    return Err(format!("Zstandard has no level {level}; use one from 1 to 22"));
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
                    .map_err(|level| format!("Blosc has no level {level}; use one from 0 to 9"))?;
                let codec = BloscCodec::new(by, level, None, BloscShuffleMode::Shuffle, Some(number_bytes));
                vec![Arc::new(codec.map_err(|error| error.to_string())?)]
            }
        })
    }
}
