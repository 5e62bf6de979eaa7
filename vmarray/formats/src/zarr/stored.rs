//! One array of a Zarr store: parses and fully validates its description: `zarr.json`, or `.zarray` of
//! version 2, which is converted first.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use zarrs::array::codec::{BytesCodec, BytesCodecConfiguration, ShardingCodecBuilder};
use zarrs::array::data_type::BoolDataType;
use zarrs::array::{
    Array, ArrayBuilder, ArrayToArrayCodecTraits, ArrayToBytesCodecTraits, BytesToBytesCodecTraits,
    ChunkKeyEncoding, Codec, DataType, FillValueMetadata,
};
use zarrs::convert::array_metadata_v2_to_v3;
use zarrs::metadata::v2::ArrayMetadataV2;
use zarrs::metadata::v3::MetadataV3;
use zarrs::metadata_ext::codec::sharding::ShardingIndexLocation;
use zarrs::storage::{ReadableStorageTraits, ReadableWritableStorage, StoreKey};

use super::bounded::{BoundedCodec, EncodedBy};
use super::described::Described;
use super::grid::CHUNK_MAX;
use super::leaves::LeafArray;
use crate::data_type::NumberKind;
use crate::error::{Error, Result};

/// The maximum length of a description in bytes.
const METADATA_MAX: u64 = 1 << 20;
/// The maximum number of axes, as in NumPy.
const AXES_MAX: usize = 64;
/// The maximum number of chained codecs.
const CODECS_MAX: usize = 16;
/// The maximum nesting of shards.
const DEPTH_MAX: u32 = 4;

/// An opened array of a store.
pub(super) struct Stored {
    pub(super) array: Array<dyn ReadableStorageTraits>,
    /// Extents of the array of elements, without the axes within an element.
    pub(super) shape: Vec<usize>,
    /// Extents of a chunk along the axes of `shape`.
    pub(super) chunk: Vec<usize>,
    /// Extents of a chunk along the axes within an element, such as 3 for `[f32; 3]`.
    pub(super) own_chunk: Vec<usize>,
    /// Extents of the unit of reads along the axes of `shape`: of a chunk, or of a chunk within a shard.
    pub(super) part: Vec<usize>,
    /// True for elements of type `bool`, which are read as bytes.
    pub(super) is_truth: bool,
    /// The key of the description.
    pub(super) key: StoreKey,
    /// The description, in version 3.
    pub(super) metadata: Value,
}

/// The file name of a description of version 2.
const VERSION_2: &str = ".zarray";

/// Returns the key of a node's description.
fn metadata_key(node: &str, name: &str, path: &Path) -> Result<StoreKey> {
    let name = if node.is_empty() { name.to_owned() } else { format!("{node}/{name}") };
    StoreKey::new(name).map_err(Error::zarr(path))
}

impl Stored {
    /// Returns true if the store has version 2 of Zarr.
    pub(super) fn is_version_2(&self) -> bool {
        self.key.as_str().ends_with(VERSION_2)
    }
}

/// Opens the array that stores a leaf.
pub(super) fn open(
    store: &ReadableWritableStorage,
    node: &str,
    leaf: &LeafArray,
    path: &Path,
) -> Result<Stored> {
    let (key, metadata) = read(store, node, path)?;
    described(store, node, leaf, path, (key, metadata))
}

/// Opens the array of a leaf, given its description and the description's key.
pub(super) fn described(
    store: &ReadableWritableStorage,
    node: &str,
    leaf: &LeafArray,
    path: &Path,
    (key, metadata): (StoreKey, Value),
) -> Result<Stored> {
    let (array, shape, mut chunk, part) =
        Description { metadata: &metadata, node, key: &key, path }.open(store, leaf)?;
    let own_chunk = chunk.split_off(shape.len());
    let part = part.map_or_else(|| chunk.clone(), |part| part[..shape.len()].to_vec());
    let is_truth = array.data_type().is::<BoolDataType>();
    Ok(Stored { array, shape, chunk, own_chunk, part, is_truth, key, metadata })
}

/// Reads the description of a node. Returns it with its key.
fn read(store: &ReadableWritableStorage, node: &str, path: &Path) -> Result<(StoreKey, Value)> {
    let newer = metadata_key(node, "zarr.json", path)?;
    let malformed = |reason: String| Error::malformed(path, reason);
    let (mut key, mut length) = (newer.clone(), store.size_key(&newer).map_err(Error::zarr(path))?);
    if length.is_none() {
        key = metadata_key(node, VERSION_2, path)?;
        length = store.size_key(&key).map_err(Error::zarr(path))?;
    }
    match length {
        None => return Err(malformed(format!("{newer} does not exist"))),
        Some(bytes) if bytes > METADATA_MAX => {
            return Err(malformed(format!(
                "{key} has {bytes} bytes, but at most {METADATA_MAX} are supported"
            )));
        }
        Some(_) => {}
    }
    let bytes = store.get(&key).map_err(Error::zarr(path))?;
    let bytes = bytes.ok_or_else(|| malformed(format!("{key} does not exist")))?;
    let parsed = serde_json::from_slice(&bytes).map_err(|error| malformed(format!("{key}: {error}")));
    if key == newer {
        return Ok((key, parsed?));
    }
    let old = parsed.and_then(|metadata: Value| {
        serde_json::from_value::<ArrayMetadataV2>(metadata)
            .map_err(|error| malformed(format!("{key}: {error}")))
    })?;
    let converted = array_metadata_v2_to_v3(&old).map_err(|error| error.to_string());
    let metadata = converted.and_then(|new| serde_json::to_value(new).map_err(|error| error.to_string()));
    Ok((key.clone(), metadata.map_err(|error| Error::unsupported(path, format!("{key}: {error}")))?))
}

/// A description that is not validated yet.
struct Description<'a> {
    metadata: &'a Value,
    node: &'a str,
    key: &'a StoreKey,
    path: &'a Path,
}

/// An array, its extents, the extents of its chunks along all axes, and of chunks within shards.
type Opened = (Array<dyn ReadableStorageTraits>, Vec<usize>, Vec<usize>, Option<Vec<usize>>);

#[derive(Default)]
struct Codecs {
    to_arrays: Vec<Arc<dyn ArrayToArrayCodecTraits>>,
    to_bytes: Option<Arc<dyn ArrayToBytesCodecTraits>>,
    of_bytes: Vec<Arc<dyn BytesToBytesCodecTraits>>,
    /// Extents of chunks in shards, if they can be read separately.
    part: Option<Vec<usize>>,
}

impl Description<'_> {
    fn malformed(&self, what: &str) -> Error {
        Error::malformed(self.path, format!("{}: {what}", self.key))
    }

    fn unsupported(&self, what: &str) -> Error {
        Error::unsupported(self.path, format!("{}: {what}", self.key))
    }

    fn open(&self, store: &ReadableWritableStorage, leaf: &LeafArray) -> Result<Opened> {
        let metadata = self.metadata;
        if metadata["zarr_format"] != 3 {
            return Err(self.unsupported(&format!(
                "version {} of Zarr is not supported; convert the store to version 3",
                metadata["zarr_format"]
            )));
        }
        if metadata["node_type"] != "array" {
            return Err(
                self.malformed("the node is a group, not an array; open an array in the group by its path")
            );
        }
        let transformed = metadata["storage_transformers"].as_array().is_some_and(|list| !list.is_empty());
        if transformed {
            return Err(self.unsupported("storage transformers are not supported"));
        }
        let shape = self.extents(&metadata["shape"], "shape", 0)?;
        let (grid, settings) = self.named(&metadata["chunk_grid"])?;
        if grid != "regular" {
            return Err(self.unsupported(&format!("the chunk grid {grid:?} is not supported")));
        }
        let chunk = self.extents(&settings["chunk_shape"], "chunk shape", 1)?;
        if chunk.len() != shape.len() {
            return Err(self.malformed(&format!(
                "chunks have {} axes, but the array has {}",
                chunk.len(),
                shape.len()
            )));
        }
        let axes = shape.len().checked_sub(leaf.axes.len());
        let (name, settings) = self.named(&metadata["data_type"])?;
        let number = number_of(name).filter(|_| is_empty(settings));
        let is_bool = number == Some(NumberKind::Bool) && leaf.number == NumberKind::U8;
        let own = axes.map_or(&[][..], |axes| &shape[axes..]);
        let Some(number) = number.filter(|number| (*number == leaf.number || is_bool) && *own == leaf.axes)
        else {
            let named = |name: &str, axes: &[usize]| {
                let of = axes.iter().rev().fold(name.to_owned(), |of, len| format!("[{of}; {len}]"));
                if leaf.path.is_empty() { of } else { format!("{}: {of}", leaf.path) }
            };
            return Err(Error::ElementMismatch {
                path: self.path.into(),
                expected: named(leaf.number.name(), &leaf.axes),
                found: named(number.map_or(name, |number| number.name()), own),
            });
        };
        let data_type = DataType::from_metadata(&MetadataV3::new(name)).map_err(Error::zarr(self.path))?;
        self.check_bytes(&chunk, number.bytes())?;
        let codecs = self.codecs(&metadata["codecs"], &chunk, &data_type, number.bytes(), 0)?;
        let fill: FillValueMetadata = self.typed(&metadata["fill_value"])?;
        let extents: Vec<u64> = shape.iter().map(|extent| *extent as u64).collect();
        let chunks: Vec<u64> = chunk.iter().map(|extent| *extent as u64).collect();
        let mut builder = ArrayBuilder::new(extents, chunks, data_type, fill);
        let to_bytes = codecs
            .to_bytes
            .ok_or_else(|| self.malformed("the codecs lack a codec that converts numbers to bytes"))?;
        let keys: MetadataV3 = self.typed(&metadata["chunk_key_encoding"])?;
        let keys = ChunkKeyEncoding::from_metadata(&keys).map_err(Error::zarr(self.path))?;
        builder
            .array_to_array_codecs(codecs.to_arrays)
            .array_to_bytes_codec(to_bytes)
            .bytes_to_bytes_codecs(codecs.of_bytes)
            .chunk_key_encoding(keys);
        let store: Arc<dyn ReadableStorageTraits> = Arc::new(Described::new(store.clone(), self.key.clone()));
        let array = builder.build(store, &format!("/{}", self.node)).map_err(Error::zarr(self.path))?;
        let axes = axes.unwrap_or(0);
        Ok((array, shape[..axes].to_vec(), chunk, codecs.part))
    }

    /// Parses a value as a type of zarrs.
    fn typed<V: serde::de::DeserializeOwned>(&self, value: &Value) -> Result<V> {
        serde_json::from_value(value.clone()).map_err(|error| self.malformed(&error.to_string()))
    }

    /// Returns the name of an extension (such as a codec), and its settings.
    fn named<'v>(&self, value: &'v Value) -> Result<(&'v str, &'v Value)> {
        match value.as_str().or_else(|| value["name"].as_str()) {
            Some(name) => Ok((name, &value["configuration"])),
            None => Err(self.malformed("an extension has no name")),
        }
    }

    fn extents(&self, value: &Value, of: &str, least: u64) -> Result<Vec<usize>> {
        let extent = |extent: &Value| {
            let extent = extent.as_u64().filter(|extent| *extent >= least);
            extent.and_then(|extent| usize::try_from(extent).ok())
        };
        let extents = value.as_array().filter(|extents| extents.len() <= AXES_MAX);
        let extents = extents.and_then(|extents| extents.iter().map(extent).collect::<Option<Vec<_>>>());
        extents.ok_or_else(|| {
            self.malformed(&format!("its {of} is not a list of at most {AXES_MAX} numbers from {least} up"))
        })
    }

    /// Checks that a chunk of these extents does not exceed `CHUNK_MAX` bytes.
    fn check_bytes(&self, extents: &[usize], number_bytes: usize) -> Result<()> {
        let bytes =
            extents.iter().try_fold(number_bytes as u64, |bytes, extent| bytes.checked_mul(*extent as u64));
        match bytes {
            Some(bytes) if bytes <= CHUNK_MAX => Ok(()),
            _ => Err(self.unsupported(&format!("chunks of more than {CHUNK_MAX} bytes are not supported"))),
        }
    }

    /// Builds the codecs of a list. Limits decompression to the length of a chunk.
    fn codecs(
        &self,
        list: &Value,
        chunk: &[usize],
        data_type: &DataType,
        number_bytes: usize,
        depth: u32,
    ) -> Result<Codecs> {
        let list = list.as_array().filter(|list| list.len() <= CODECS_MAX);
        let list = list
            .ok_or_else(|| self.malformed(&format!("its codecs are not a list of at most {CODECS_MAX}")))?;
        let mut codecs = Codecs::default();
        for codec in list {
            let (name, settings) = self.named(codec)?;
            let known = |codec: &Value| -> Result<Codec> {
                Codec::from_metadata(&self.typed::<MetadataV3>(codec)?).map_err(Error::zarr(self.path))
            };
            match name {
                "transpose" if codecs.to_bytes.is_none() => {
                    let Codec::ArrayToArray(codec) = known(codec)? else { continue };
                    codecs.to_arrays.push(codec);
                }
                "bytes" if codecs.to_bytes.is_none() => {
                    let settings = if settings.is_null() { serde_json::json!({}) } else { settings.clone() };
                    let settings: BytesCodecConfiguration = self.typed(&settings)?;
                    let bytes =
                        BytesCodec::new_with_configuration(&settings).map_err(Error::zarr(self.path))?;
                    codecs.to_bytes = Some(Arc::new(bytes));
                }
                "sharding_indexed" if codecs.to_bytes.is_none() => {
                    // Refuse a transposition: it would also transpose the extents of chunks in a shard.
                    if !codecs.to_arrays.is_empty() {
                        return Err(self.unsupported("shards with transposed axes are not supported"));
                    }
                    codecs.to_bytes = Some(self.shards(settings, chunk, data_type, number_bytes, depth)?);
                    codecs.part =
                        Some(self.extents(&settings["chunk_shape"], "shape of chunks in shards", 1)?);
                }
                "zstd" | "gzip" | "blosc" | "crc32c" if codecs.to_bytes.is_some() => {
                    let Codec::BytesToBytes(codec) = known(codec)? else { continue };
                    let of = match name {
                        "zstd" => EncodedBy::Zstd,
                        "gzip" => EncodedBy::Gzip,
                        "blosc" => EncodedBy::Blosc,
                        _ => EncodedBy::Crc32c,
                    };
                    codecs.of_bytes.push(Arc::new(BoundedCodec { of, codec, most: 2 * CHUNK_MAX }));
                }
                _ => {
                    return Err(self.unsupported(&format!(
                        "the codec {name:?} is not supported at this position in the list of codecs"
                    )));
                }
            }
        }
        // A shard that is compressed as a whole cannot be read in parts, so the part is the shard.
        codecs.part = codecs.part.filter(|_| codecs.of_bytes.is_empty());
        Ok(codecs)
    }

    /// Builds the codec of shards.
    fn shards(
        &self,
        settings: &Value,
        shard: &[usize],
        data_type: &DataType,
        number_bytes: usize,
        depth: u32,
    ) -> Result<Arc<dyn ArrayToBytesCodecTraits>> {
        if depth == DEPTH_MAX {
            return Err(self.unsupported(&format!("shards are nested more than {DEPTH_MAX} levels deep")));
        }
        let chunk = self.extents(&settings["chunk_shape"], "shape of chunks in shards", 1)?;
        let is_part = |(shard, chunk): (&usize, &usize)| shard % chunk == 0;
        if chunk.len() != shard.len() || !shard.iter().zip(&chunk).all(is_part) {
            return Err(
                self.malformed(&format!("shards of {shard:?} are not multiples of chunks of {chunk:?}"))
            );
        }
        // The index of a shard has two numbers for each chunk: offset and length.
        let counts: Vec<usize> = shard.iter().zip(&chunk).map(|(shard, chunk)| shard / chunk).collect();
        self.check_bytes(&counts, 16)?;
        let is_plain =
            |codec: &Value| self.named(codec).is_ok_and(|(name, _)| matches!(name, "bytes" | "crc32c"));
        if !settings["index_codecs"].as_array().is_some_and(|list| list.iter().all(is_plain)) {
            return Err(self.unsupported("compressed indices of shards are not supported"));
        }
        let codecs = self.codecs(&settings["codecs"], &chunk, data_type, number_bytes, depth + 1)?;
        let index = self.codecs(&settings["index_codecs"], &[], data_type, number_bytes, DEPTH_MAX)?;
        let (Some(bytes), Some(index_bytes)) = (codecs.to_bytes, index.to_bytes) else {
            return Err(self.malformed("the codecs of shards lack a codec that converts numbers to bytes"));
        };
        let of_chunk: Vec<NonZeroU64> =
            chunk.iter().filter_map(|extent| NonZeroU64::new(*extent as u64)).collect();
        let mut builder = ShardingCodecBuilder::new(of_chunk, data_type);
        builder
            .array_to_array_codecs(codecs.to_arrays)
            .array_to_bytes_codec(bytes)
            .bytes_to_bytes_codecs(codecs.of_bytes)
            .index_array_to_bytes_codec(index_bytes)
            .index_bytes_to_bytes_codecs(index.of_bytes)
            .index_location(match settings["index_location"].as_str() {
                None | Some("end") => ShardingIndexLocation::End,
                Some("start") => ShardingIndexLocation::Start,
                Some(place) => {
                    let what =
                        format!("the index of shards is at {place:?}, but must be at \"start\" or \"end\"");
                    return Err(self.malformed(&what));
                }
            });
        Ok(Arc::new(builder.build()))
    }
}

/// Returns the number type with a name in Zarr.
fn number_of(name: &str) -> Option<NumberKind> {
    Some(match name {
        "bool" => NumberKind::Bool,
        "uint8" => NumberKind::U8,
        "uint16" => NumberKind::U16,
        "uint32" => NumberKind::U32,
        "uint64" => NumberKind::U64,
        "int8" => NumberKind::I8,
        "int16" => NumberKind::I16,
        "int32" => NumberKind::I32,
        "int64" => NumberKind::I64,
        "float16" => NumberKind::F16,
        "bfloat16" => NumberKind::Bf16,
        "float32" => NumberKind::F32,
        "float64" => NumberKind::F64,
        "complex64" => NumberKind::Complex64,
        "complex128" => NumberKind::Complex128,
        _ => return None,
    })
}

/// Returns Zarr's name of a number type.
pub(super) fn name_of(number: NumberKind) -> &'static str {
    match number {
        NumberKind::Bool => "bool",
        NumberKind::U8 => "uint8",
        NumberKind::U16 => "uint16",
        NumberKind::U32 => "uint32",
        NumberKind::U64 => "uint64",
        NumberKind::I8 => "int8",
        NumberKind::I16 => "int16",
        NumberKind::I32 => "int32",
        NumberKind::I64 => "int64",
        NumberKind::F16 => "float16",
        NumberKind::Bf16 => "bfloat16",
        NumberKind::F32 => "float32",
        NumberKind::F64 => "float64",
        NumberKind::Complex64 => "complex64",
        NumberKind::Complex128 => "complex128",
    }
}

fn is_empty(settings: &Value) -> bool {
    settings.is_null() || settings.as_object().is_some_and(serde_json::Map::is_empty)
}
