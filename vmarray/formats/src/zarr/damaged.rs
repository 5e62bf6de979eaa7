//! Reads of Zarr chunks with classified errors: a damaged chunk, or a failure of the storage.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use zarrs::array::{ArrayBytes, ArrayError, ArraySubset, CodecError, CodecOptions};

use super::stored::Stored;
use crate::error::{Error, Result};

/// Reads the bytes of a box of an array.
///
/// # Errors
/// [`Corrupted`](Error::Corrupted) with the damaged chunk, or [`Zarr`](Error::Zarr) if the storage fails.
pub(super) fn read_box<'a>(
    stored: &'a Stored,
    bounds: &ArraySubset,
    codecs: &CodecOptions,
    path: &Path,
) -> Result<ArrayBytes<'a>> {
    let bytes = decoded(|| stored.array.retrieve_array_subset_opt(bounds, codecs));
    bytes.map_err(|failure| match failure {
        Failure::Storage(error) => Error::zarr(path)(error),
        Failure::Damage(reason) => Error::Corrupted {
            path: path.to_path_buf(),
            chunk: damaged_chunk(stored, bounds, codecs),
            reason,
        },
    })
}

/// A failed read of chunks.
enum Failure {
    Storage(ArrayError),
    /// The bytes are not a valid chunk; the text is the reason.
    Damage(String),
}

/// Reads chunks, and classifies a failure as damage or as a failure of the storage.
fn decoded<B>(read: impl FnOnce() -> Result<B, ArrayError>) -> Result<B, Failure> {
    // Catch panics: a damaged index can cause an overflow in zarrs, even while zarrs formats the error.
    // Unwinding is safe, because later code uses no value that a panic has left incomplete.
    let read = || read().map_err(classified);
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(Failure::Damage("its index points outside of the file".into())))
}

fn classified(error: ArrayError) -> Failure {
    match error {
        error if is_of_storage(&error) => Failure::Storage(error),
        ArrayError::CodecError(CodecError::InvalidChecksum) => Failure::Damage("its checksum differs".into()),
        error => Failure::Damage(error.to_string()),
    }
}

/// Returns true if the storage failed, false if the decoding failed.
fn is_of_storage(error: &ArrayError) -> bool {
    use zarrs::storage::StorageError::InvalidByteRangeError;
    match error {
        ArrayError::StorageError(cause) | ArrayError::CodecError(CodecError::StorageError(cause)) => {
            !matches!(cause, InvalidByteRangeError(_))
        }
        ArrayError::CodecError(CodecError::IOError(_)) => true,
        _ => false,
    }
}

/// Returns the key of the damaged chunk in a box. If the box has several chunks, reads each one separately.
fn damaged_chunk(stored: &Stored, bounds: &ArraySubset, codecs: &CodecOptions) -> String {
    let array = &stored.array;
    let chunks = array.chunks_in_array_subset(bounds).ok().flatten();
    let places: Vec<Vec<u64>> =
        chunks.iter().flat_map(ArraySubset::indices).map(|place| place.to_vec()).collect();
    let is_damaged = |place: &&Vec<u64>| {
        let read = || array.retrieve_chunk_opt::<ArrayBytes<'static>>(place, codecs);
        places.len() == 1 || matches!(decoded(read), Err(Failure::Damage(_)))
    };
    let place = places.iter().find(is_damaged).or(places.first());
    place.map_or_else(|| array.path().to_string(), |place| array.chunk_key(place).to_string())
}
