//! Safetensors files: tensors with names, in place.
//!
//! | type of a tensor | elements here |
//! |---|---|
//! | `U8`, `I8`, … `U64`, `I64`, `F32`, `F64` | the same numbers; `BOOL` as `u8` |
//! | `F16`, `BF16` | `f16` and `bf16` of the crate `half` |
//! | other types of 8 bits, such as `F8_E4M3` | `u8` |
//!
//! The last axes of a tensor can be elements `[T; N]`, for example a row of a table as one element.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use vmarray::kernel::KernelType;
use vmarray::store::{FileAccess, FileSection};
use vmarray::{AnyDevice, Builder, Element, NdArray};

use crate::data_type::{DataType, NumberKind};
use crate::error::{Error, Result};
use crate::files;
use crate::in_place::StoredElements;
use crate::options::ByteOrder;

/// Maximum length of a header in bytes, as in the crate of the format.
const HEADER_MAX: u64 = 100_000_000;
/// Maximum number of axes, as in `.npy` files.
const AXES_MAX: usize = 64;

/// The header of a safetensors file: the tensors' names, types and places.
///
/// The crate checks that the tensors fill the file without gaps and overlaps, and that lengths agree with
/// types and shapes.
///
/// ```
/// use vmarray::NdArray;
/// use vmarray::prelude::*;
/// use vmarray::store::FileAccess;
/// use vmarray_formats::safetensors::SafeTensors;
///
/// let path = std::env::temp_dir().join(format!("table {}.safetensors", std::process::id()));
/// let header = br#"{"table":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;
/// let values: Vec<u8> = [0_f32, 1.0, 2.0, 3.0, 4.0, 5.0].iter().flat_map(|x| x.to_le_bytes()).collect();
/// std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), &header[..], &values].concat())?;
///
/// let file = SafeTensors::open(&path)?;
/// assert_eq!(file.names().collect::<Vec<_>>(), ["table"]);
/// assert_eq!((file.type_name("table"), file.shape("table")), (Some("F32"), Some(&[2, 3][..])));
/// let rows: NdArray<[f32; 3], 1> = file.array("table", FileAccess::ReadOnly, |rows| rows.cache_bytes(1 << 20))?;
/// assert_eq!(rows.get([1])?, [3.0, 4.0, 5.0]);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SafeTensors {
    path: PathBuf,
    start: u64,
    tensors: BTreeMap<String, Tensor>,
}

#[derive(Debug)]
struct Tensor {
    kind: String,
    of: DataType,
    shape: Vec<usize>,
    /// First byte and end, from the end of the header on.
    place: (u64, u64),
}

impl SafeTensors {
    /// Reads and checks the header of a file.
    ///
    /// # Errors
    /// [`File`](Error::File); [`Malformed`](Error::Malformed) and [`LengthMismatch`](Error::LengthMismatch)
    /// for files of another format, and damaged and truncated files; [`Unsupported`](Error::Unsupported) for
    /// tensors whose elements are not whole bytes.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).map_err(Error::file("open", path))?;
        let found_bytes = file.metadata().map_err(Error::file("read the length of", path))?.len();
        if found_bytes < 8 {
            return Err(Error::malformed(path, "the file is too short for a header"));
        }
        let mut length = [0; 8];
        files::read_at(&file, path, 0, &mut length)?;
        let length = u64::from_le_bytes(length);
        if length > HEADER_MAX || length > found_bytes - 8 {
            return Err(Error::malformed(
                path,
                format!("a header of {length} bytes does not fit into the file"),
            ));
        }
        let mut text = vec![0; length as usize];
        files::read_at(&file, path, 8, &mut text)?;
        let Entries(entries) =
            serde_json::from_slice(&text).map_err(|error| Error::malformed(path, error.to_string()))?;
        let mut tensors = BTreeMap::new();
        for (name, entry) in entries {
            let tensor = Tensor::of(&entry, path).map_err(|fault| {
                fault.unwrap_or_else(|| Error::malformed(path, format!("the tensor {name:?}")))
            })?;
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(Error::malformed(path, format!("the tensor {name:?} occurs twice")));
            }
        }
        let start = 8 + length;
        let mut places: Vec<_> = tensors.values().map(|tensor| tensor.place).collect();
        places.sort_unstable();
        let end = places.iter().try_fold(0, |end, (first, next)| (*first == end).then_some(*next));
        let end = end.ok_or_else(|| Error::malformed(path, "its tensors overlap, or leave a gap"))?;
        if start.saturating_add(end) != found_bytes {
            let expected_bytes = start.saturating_add(end);
            return Err(Error::LengthMismatch { path: path.into(), expected_bytes, found_bytes });
        }
        Ok(Self { path: path.into(), start, tensors })
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The shape of a tensor; `None` if there is none with this name.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|tensor| &tensor.shape[..])
    }

    /// The type of a tensor's elements, in the words of the format, such as `BF16`.
    #[must_use]
    pub fn type_name(&self, name: &str) -> Option<&str> {
        self.tensors.get(name).map(|tensor| &*tensor.kind)
    }

    /// Opens the bytes of a tensor for reading. [`FileSection::join`] makes one section of the shards of a
    /// table, for [`build_over_file`](Builder::build_over_file).
    ///
    /// # Errors
    /// [`Malformed`](Error::Malformed) if there is no tensor of this name; [`Array`](Error::Array) for a file
    /// in use.
    ///
    /// ```
    /// use vmarray::{VirtualArray, prelude::*, store::FileSection};
    /// use vmarray_formats::safetensors::SafeTensors;
    /// # let path = std::env::temp_dir().join(format!("shard {}.safetensors", std::process::id()));
    /// # let header = br#"{"rows":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
    /// # std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), &header[..], &[7, 8, 9]].concat())?;
    /// let shards = [SafeTensors::open(&path)?, SafeTensors::open(&path)?];
    /// let sections = shards.iter().map(|shard| shard.section("rows")).collect::<Result<Vec<_>, _>>()?;
    /// let rows = VirtualArray::<u8>::builder(0).build_over_file(FileSection::join(sections)?)?;
    /// assert_eq!(rows.to_vec(..)?, [7, 8, 9, 7, 8, 9]);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn section(&self, name: &str) -> Result<FileSection> {
        let tensor = self.tensor(name)?;
        let range = self.start + tensor.place.0..self.start + tensor.place.1;
        Ok(FileSection::open(&self.path, range, FileAccess::ReadOnly).map_err(vmarray::Error::from)?)
    }

    fn tensor(&self, name: &str) -> Result<&Tensor> {
        let missing = || Error::malformed(&self.path, format!("it has no tensor {name:?}"));
        self.tensors.get(name).ok_or_else(missing)
    }

    /// Builds an array whose elements stay in the file. `settings` configures the array, for example its
    /// cache. Several arrays of a file can be open at the same time if all only read, or copy on write.
    ///
    /// # Errors
    /// [`Malformed`](Error::Malformed) if there is no tensor of this name;
    /// [`ElementMismatch`](Error::ElementMismatch), [`RankMismatch`](Error::RankMismatch);
    /// [`Array`](Error::Array) for errors of the array, such as a file in use.
    ///
    /// ```
    /// use vmarray::{NdArray, prelude::*, store::FileAccess};
    /// use vmarray_formats::safetensors::SafeTensors;
    /// # let path = std::env::temp_dir().join(format!("bias {}.safetensors", std::process::id()));
    /// # let header = br#"{"bias":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
    /// # std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), &header[..], &[7, 8, 9]].concat())?;
    /// let file = SafeTensors::open(&path)?;
    /// let bias = file.array::<u8, 1>("bias", FileAccess::CopyOnWrite, |array| array)?;
    /// assert_eq!(bias.get([2])?, 9);
    /// assert!(file.array::<u8, 1>("weight", FileAccess::ReadOnly, |array| array).is_err());
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn array<T: Element + KernelType, const N: usize>(
        &self,
        name: &str,
        access: FileAccess,
        settings: impl FnOnce(Builder<T, AnyDevice>) -> Builder<T, AnyDevice>,
    ) -> Result<NdArray<T, N>> {
        let tensor = self.tensor(name)?;
        let (offset, of, shape) = (self.start + tensor.place.0, &tensor.of, &*tensor.shape);
        StoredElements { path: &self.path, offset, of, shape }.into_array(access, settings)
    }
}

impl Tensor {
    /// Parses the description of a tensor. Returns `None` as the error if it is malformed.
    fn of(entry: &serde_json::Value, path: &Path) -> Result<Self, Option<Error>> {
        let kind = entry.get("dtype").and_then(|kind| kind.as_str()).ok_or(None)?;
        let numbers = |name: &str| -> Option<Vec<u64>> {
            entry.get(name)?.as_array()?.iter().map(serde_json::Value::as_u64).collect()
        };
        let (shape, offsets) = (numbers("shape").ok_or(None)?, numbers("data_offsets").ok_or(None)?);
        let &[first, end] = &offsets[..] else { return Err(None) };
        let number = match kind {
            "U16" => NumberKind::U16,
            "I16" => NumberKind::I16,
            "U32" => NumberKind::U32,
            "I32" => NumberKind::I32,
            "U64" => NumberKind::U64,
            "I64" => NumberKind::I64,
            "F16" => NumberKind::F16,
            "BF16" => NumberKind::Bf16,
            "F32" => NumberKind::F32,
            "F64" => NumberKind::F64,
            "C64" => NumberKind::Complex64,
            "I8" => NumberKind::I8,
            "BOOL" | "U8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => NumberKind::U8,
            _ => {
                return Err(Some(Error::unsupported(
                    path,
                    format!("tensors of type {kind} are not supported"),
                )));
            }
        };
        let bytes = shape.iter().try_fold(number.bytes() as u64, |bytes, extent| bytes.checked_mul(*extent));
        if shape.len() > AXES_MAX || bytes.is_none() || end.checked_sub(first) != bytes {
            return Err(None);
        }
        let shape = shape.iter().map(|extent| usize::try_from(*extent)).collect::<Result<_, _>>();
        let of = DataType::Number(number, ByteOrder::Little);
        Ok(Self { kind: kind.into(), of, shape: shape.map_err(|_| None)?, place: (first, end) })
    }
}

/// The entries of a header, in which no name is lost if it occurs twice.
struct Entries(Vec<(String, serde_json::Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, serde_json::Value>()? {
                    if name != "__metadata__" {
                        entries.push((name, value));
                    } else if !value.is_object() {
                        return Err(A::Error::custom("`__metadata__` is no object"));
                    }
                }
                Ok(Entries(entries))
            }
        }
        from.deserialize_map(All)
    }
}
