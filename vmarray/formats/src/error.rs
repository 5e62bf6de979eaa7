//! Errors of the import and export of files.

use std::io;
use std::path::{Path, PathBuf};

/// Result type of this crate.
///
/// ```
/// use vmarray_formats::{Result, npy::NpyFile};
/// fn extents(path: &str) -> Result<Vec<usize>> {
///     Ok(NpyFile::open(path)?.shape().to_vec())
/// }
/// assert!(extents("no such file.npy").is_err());
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of an import or export. The message contains the values concerned and, if possible, a remedy.
///
/// ```
/// use vmarray_formats::{Error, npy::NpyFile};
/// let error = NpyFile::open("no such file.npy").unwrap_err();
/// assert!(matches!(&error, Error::File { action: "open", .. }));
/// assert!(error.to_string().starts_with("cannot open no such file.npy: "));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields whose names say what they are")]
pub enum Error {
    /// The operating system reported an error for a file or folder. `action` is the failed step.
    #[error("cannot {action} {}: {cause}; {}", path.display(), file_advice(cause))]
    File { action: &'static str, path: PathBuf, cause: io::Error },
    /// The header or description in a file is invalid.
    #[error(
        "{} is damaged or of another format: {}",
        path.display(),
        with_remedy(reason, "name another path, write the file again, or restore it from a copy")
    )]
    Malformed { path: PathBuf, reason: String },
    /// A valid file has contents that this crate does not read; or a format cannot store the elements.
    #[error(
        "{}: {}",
        path.display(),
        with_remedy(what, "use another element type or setting, or convert the file with its own program")
    )]
    Unsupported { path: PathBuf, what: String },
    /// A file has fewer bytes than its description says, or its length differs from the view's.
    #[error(
        "{} has {found_bytes} bytes, but needs {expected_bytes}; write it again, or copy the whole file",
        path.display()
    )]
    LengthMismatch { path: PathBuf, expected_bytes: u64, found_bytes: u64 },
    /// The type of a file's elements differs from the view's.
    #[error(
        "{} has elements of type {found}, the view has {expected}; use an array of elements of the file's type",
        path.display()
    )]
    ElementMismatch { path: PathBuf, expected: String, found: String },
    /// The shape of a file differs from the view's.
    #[error(
        "{} has the shape {found:?}, the view has {expected:?}; use an array of the file's shape",
        path.display()
    )]
    ShapeMismatch { path: PathBuf, expected: Vec<usize>, found: Vec<usize> },
    /// The number of axes of a file differs from the number that the program requested.
    #[error(
        "{} has {found} axes, but the program expects {expected}; use an array of {found} axes",
        path.display()
    )]
    RankMismatch { path: PathBuf, expected: usize, found: usize },
    /// The path of a new folder exists already; it was not changed.
    #[error("{} exists already; remove it first, or choose another name", path.display())]
    Exists { path: PathBuf },
    /// A chunk of a Zarr store is damaged: its checksum differs, or its bytes cannot be decoded.
    #[error(
        "chunk {chunk} of {} is damaged: {reason}; write the chunk again, or restore its file from a copy",
        path.display()
    )]
    Corrupted { path: PathBuf, chunk: String, reason: String },
    /// A Zarr store could not be read or written.
    #[error(
        "{}: {cause}; check that the path names a whole Zarr store that this user may use",
        path.display()
    )]
    Zarr { path: PathBuf, cause: Box<dyn std::error::Error + Send + Sync> },
    /// The program's callback cancelled the import or export. An unfinished file is removed; a view has some
    /// of the elements of the file.
    #[error("cancelled after {done_bytes} of {total_bytes} bytes; call it again to start from the beginning")]
    Cancelled { done_bytes: u64, total_bytes: u64 },
    /// The array returned an error.
    #[error(transparent)]
    Array(#[from] vmarray::Error),
}

impl Error {
    /// Returns a function that creates errors of one action on one file.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |cause| Self::File { action, path: path.to_path_buf(), cause }
    }

    pub(crate) fn malformed(path: &Path, reason: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_path_buf(), reason: reason.into() }
    }

    /// Returns a function that creates errors of a Zarr store.
    #[cfg(feature = "zarr")]
    pub(crate) fn zarr<E: std::error::Error + Send + Sync + 'static>(path: &Path) -> impl Fn(E) -> Self {
        move |cause| Self::Zarr { path: path.to_path_buf(), cause: Box::new(cause) }
    }

    pub(crate) fn unsupported(path: &Path, what: impl Into<String>) -> Self {
        Self::Unsupported { path: path.to_path_buf(), what: what.into() }
    }
}

/// Returns a description followed by a remedy: its own after a semicolon, or else `usual`.
fn with_remedy(what: &str, usual: &str) -> String {
    if what.contains("; ") { what.to_owned() } else { format!("{what}; {usual}") }
}

/// Returns advice for a failed action on a file.
fn file_advice(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::NotFound => "name a path that exists, or create its folder first",
        io::ErrorKind::PermissionDenied => "check that this user may read and write the file and its folder",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space on the disk, and try again",
        io::ErrorKind::ReadOnlyFilesystem => "name a path on another disk",
        io::ErrorKind::IsADirectory | io::ErrorKind::InvalidInput => "name a regular file",
        io::ErrorKind::NotADirectory => "a folder in the path is a file; name another path",
        io::ErrorKind::AlreadyExists => "remove it first, or name another path",
        io::ErrorKind::UnexpectedEof => "write the file again, or copy the whole file",
        _ => "try again; if it persists, look for faults of the drive in the log of the system",
    }
}

/// Allocates a buffer of zeroed elements.
///
/// # Errors
/// [`NoMemory`](vmarray::ErrorKind::NoMemory).
pub(crate) fn zeroed<T: vmarray::Element>(len: usize) -> Result<Box<[T]>> {
    let bytes = len.saturating_mul(size_of::<T>());
    vmarray::bytemuck::allocation::try_zeroed_slice_box(len)
        .map_err(|()| Error::Array(vmarray::ErrorKind::NoMemory { bytes }.into()))
}
