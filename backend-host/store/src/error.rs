//! Errors of file operations: conversion to device errors, with advice for the user.

use std::io;

use backend_api::{Error, ErrorKind};

/// Returns the error of a failed operation: `CopyFailed` for copies, else `KernelFailed`.
pub(crate) fn failure(operation: &'static str) -> Error {
    let is_copy = matches!(operation, "submit" | "read_directly");
    Error::new(if is_copy { ErrorKind::CopyFailed } else { ErrorKind::KernelFailed }, operation)
}

/// Returns advice for an error in creating, opening, reading or writing a file.
pub(crate) fn file_advice(operation: &'static str, error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space on the disk, and try again",
        io::ErrorKind::NotFound if operation == "create" => {
            "create the folder first, or name one that exists"
        }
        io::ErrorKind::NotFound => "name a file that exists, or create it by `create`",
        io::ErrorKind::NotADirectory => "a folder in the path is a file; name another path",
        io::ErrorKind::IsADirectory | io::ErrorKind::InvalidInput => "name a regular file",
        io::ErrorKind::PermissionDenied => "check that this user may read and write the file and its folder",
        io::ErrorKind::ReadOnlyFilesystem => "open the file for reading only, or name one on another disk",
        io::ErrorKind::InvalidFilename => "name a shorter path",
        _ => match error.raw_os_error() {
            #[cfg(unix)]
            Some(libc::EMFILE | libc::ENFILE) => {
                "close files, or raise the limit of open files (`ulimit -n`)"
            }
            _ => "try again; if it persists, look for faults of the drive in the log of the system",
        },
    }
}

/// Returns true if a disk or a quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn advice_fits_the_cause() {
        let advice = |operation, code| file_advice(operation, &io::Error::from_raw_os_error(code));
        assert!(advice("open", libc::ENOENT).contains("that exists"));
        assert!(advice("create", libc::ENOENT).contains("folder"));
        assert!(advice("open", libc::EACCES).contains("this user"));
        assert!(advice("open", libc::EISDIR).contains("regular file"));
        assert!(advice("create", libc::ENOTDIR).contains("is a file"));
        assert!(advice("create", libc::EROFS).contains("another disk"));
        assert!(advice("open", libc::EMFILE).contains("ulimit"));
        assert!(advice("sync", libc::ENOSPC).contains("free space"));
        assert!(advice("sync", libc::EIO).contains("drive"));
    }

    #[test]
    fn a_full_disk_and_a_full_quota_are_the_same() {
        assert!(is_full(&io::Error::from_raw_os_error(libc::ENOSPC)));
        assert!(is_full(&io::Error::from_raw_os_error(libc::EDQUOT)));
        assert!(!is_full(&io::Error::from_raw_os_error(libc::EIO)));
    }
}
