//! Reads of missing Zarr chunks: they return fill values if the array's `zarr.json` exists, else an error.

use std::io;

use zarrs::storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs::storage::{
    Bytes, MaybeBytesIterator, ReadableStorageTraits, ReadableWritableStorage, StorageError, StoreKey,
};

/// Reader of the chunks of an array. A missing chunk has fill values if the description of the array exists.
/// The reader checks that each time, because a removed store has no contents.
pub(super) struct Described {
    store: ReadableWritableStorage,
    description: StoreKey,
}

impl Described {
    pub fn new(store: ReadableWritableStorage, description: StoreKey) -> Self {
        Self { store, description }
    }

    /// Returns the chunk; `None` if only the description exists. Fails if neither exists.
    fn expect<B>(&self, found: Option<B>) -> Result<Option<B>, StorageError> {
        if found.is_none() {
            expect(&self.store, &self.description)?;
        }
        Ok(found)
    }
}

pub(super) fn expect(store: &ReadableWritableStorage, description: &StoreKey) -> Result<(), StorageError> {
    if store.size_key(description)?.is_some() {
        return Ok(());
    }
    let what = format!("the store was removed: {description} does not exist");
    Err(io::Error::new(io::ErrorKind::NotFound, what).into())
}

impl ReadableStorageTraits for Described {
    fn get(&self, key: &StoreKey) -> Result<Option<Bytes>, StorageError> {
        self.expect(self.store.get(key)?)
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.expect(self.store.get_partial_many(key, ranges)?)
    }

    fn get_partial(&self, key: &StoreKey, range: ByteRange) -> Result<Option<Bytes>, StorageError> {
        self.expect(self.store.get_partial(key, range)?)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.expect(self.store.size_key(key)?)
    }

    fn supports_get_partial(&self) -> bool {
        self.store.supports_get_partial()
    }
}
