//! Errors of a volume, and allocation of memory for its tables.

use std::io;

use backend_api::{Error, ErrorKind, Result};
use backend_host::parts::system;
use bytemuck::Zeroable;
use bytemuck::allocation::try_zeroed_vec;

use crate::error::{file_advice, is_full};

/// Allocates `count` zeroes in memory that the system has not committed yet.
pub(super) fn zeroes<T: Zeroable>(operation: &'static str, count: u64) -> Result<Vec<T>> {
    let bytes = count.saturating_mul(size_of::<T>() as u64);
    let zeroes = usize::try_from(count).ok().and_then(|count| try_zeroed_vec(count).ok());
    zeroes.ok_or_else(|| Error::new(ErrorKind::OutOfMemory, operation).with_bytes(bytes))
}

/// Returns the error of a failed read or write of the file.
#[cold]
pub(in super::super) fn failed(operation: &'static str, cause: &io::Error) -> Error {
    let kind = if is_full(cause) { ErrorKind::OutOfMemory } else { ErrorKind::System };
    system(kind, operation, cause).with_advice(file_advice(operation, cause))
}

/// Returns the error of bytes on the disk that differ from the written bytes.
#[cold]
pub(in super::super) fn corrupted(operation: &'static str, detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupted, operation).with_detail(detail)
}
