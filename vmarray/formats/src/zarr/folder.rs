//! A folder as a Zarr store; replaces its files atomically.

use std::path::Path;
use std::sync::Arc;

use zarrs::filesystem::FilesystemStore;
use zarrs::storage::byte_range::{ByteRange, ByteRangeIterator, InvalidByteRangeError};
use zarrs::storage::{
    AtomicRenameStorageTraits, Bytes, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits,
    ReadableWritableStorage, StorageError, StoreKey, StorePrefix, WritableStorageTraits,
    store_set_partial_many,
};

use super::grid::CHUNK_MAX;
use crate::error::{Error, Result};

/// Maximum bytes of a file that are read at once: the longest chunk, uncompressed.
pub(super) const FILE_MAX: u64 = 2 * CHUNK_MAX;

/// A folder store whose files are replaced atomically.
#[derive(Debug)]
struct Folder(FilesystemStore);

/// Returns true if a file of `bytes` bytes contains a range.
fn is_within(range: &ByteRange, bytes: u64) -> bool {
    match range {
        ByteRange::FromStart(start, len) => {
            start.checked_add(len.unwrap_or(0)).is_some_and(|end| end <= bytes)
        }
        ByteRange::Suffix(len) => *len <= bytes,
    }
}

/// Opens an existing folder, which other programs may read.
pub(super) fn open(path: &Path) -> Result<ReadableWritableStorage> {
    Ok(Arc::new(Folder(store(path)?)))
}

/// Creates a new folder, which no program reads yet.
pub(super) fn create(path: &Path) -> Result<ReadableWritableStorage> {
    Ok(Arc::new(store(path)?))
}

fn store(path: &Path) -> Result<FilesystemStore> {
    FilesystemStore::new(path).map_err(Error::zarr(path))
}

impl ReadableStorageTraits for Folder {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let Some(bytes) = self.0.size_key(key)? else { return Ok(None) };
        let ranges: Vec<ByteRange> = ranges.collect();
        // Check the ranges first, because later code allocates memory before it checks them.
        for range in &ranges {
            if !is_within(range, bytes) {
                return Err(InvalidByteRangeError::new(*range, bytes).into());
            }
            if range.length(bytes) > FILE_MAX {
                return Err(StorageError::Other(format!("{key} has more than {FILE_MAX} bytes")));
            }
        }
        self.0.get_partial_many(key, Box::new(ranges.into_iter()))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.0.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        self.0.supports_get_partial()
    }
}

impl WritableStorageTraits for Folder {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        let (folder, name) = match key.as_str().rsplit_once('/') {
            Some((folder, name)) => (format!("{folder}/"), name),
            None => (String::new(), key.as_str()),
        };
        let temporary = StoreKey::new(format!("{folder}.{name}.unfinished"))?;
        self.0.set(&temporary, value)?;
        self.0.rename(&temporary, key)
    }

    fn set_partial_many(&self, key: &StoreKey, values: OffsetBytesIterator<'_>) -> Result<(), StorageError> {
        store_set_partial_many(self, key, values)
    }

    fn supports_set_partial(&self) -> bool {
        false
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.0.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.0.erase_prefix(prefix)
    }
}
