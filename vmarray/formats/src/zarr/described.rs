//! Chunks that are not there, in stores that are not there any more.

use std::io;

use zarrs::storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs::storage::{
    Bytes, MaybeBytesIterator, ReadableStorageTraits, ReadableWritableStorage, StorageError, StoreKey,
};

/// What the chunks of an array are read from. One that is not there has fill values, but only as long as the
/// description of the array is there, which is looked for then: what was removed has no contents.
pub(super) struct Described {
    store: ReadableWritableStorage,
    description: StoreKey,
}

impl Described {
    pub fn new(store: ReadableWritableStorage, description: StoreKey) -> Self {
        Self { store, description }
    }

    /// What was found, or nothing where the description is.
    fn expect<B>(&self, found: Option<B>) -> Result<Option<B>, StorageError> {
        if found.is_none() {
            expect(&self.store, &self.description)?;
        }
        Ok(found)
    }
}

/// Fails where there is no description any more.
pub(super) fn expect(store: &ReadableWritableStorage, description: &StoreKey) -> Result<(), StorageError> {
    if store.size_key(description)?.is_some() {
        return Ok(());
    }
    let what = format!("the store was removed: there is no {description} any more");
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
