//! Errors of import and export.

use std::io;
use std::path::{Path, PathBuf};

/// A result of this crate.
///
/// ```
/// use vmarray_formats::{Result, npy::NpyFile};
/// fn extents(path: &str) -> Result<Vec<usize>> {
///     Ok(NpyFile::open(path)?.shape().to_vec())
/// }
/// assert!(extents("no such file.npy").is_err());
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed import or export, with its values and, if there is one, the remedy.
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
    /// The system refused an action on a file or folder.
    #[error("cannot {action} {}: {cause}", path.display())]
    File { action: &'static str, path: PathBuf, cause: io::Error },
    /// The description in a file is invalid.
    #[error("{} is damaged, or no file of this kind: {reason}", path.display())]
    Malformed { path: PathBuf, reason: String },
    /// A valid file has contents that this crate does not read, or a format cannot store the elements.
    #[error("{}: {what}", path.display())]
    Unsupported { path: PathBuf, what: String },
    /// A file has fewer bytes than its description, or another length than requested.
    #[error(
        "{} has {found_bytes} bytes where {expected_bytes} are wanted; write it anew, or look whether it was \
         copied whole",
        path.display()
    )]
    LengthMismatch { path: PathBuf, expected_bytes: u64, found_bytes: u64 },
    /// The elements of a file have another type than the elements of the view.
    #[error(
        "{} has elements of type {found}, the view has {expected}; use an array of elements of the file's type",
        path.display()
    )]
    ElementMismatch { path: PathBuf, expected: String, found: String },
    /// A file has another shape than the view.
    #[error(
        "{} has the shape {found:?}, the view has {expected:?}; use an array of the file's shape",
        path.display()
    )]
    ShapeMismatch { path: PathBuf, expected: Vec<usize>, found: Vec<usize> },
    /// A file has another number of axes than requested.
    #[error("{} has {found} axes, {expected} were asked for", path.display())]
    RankMismatch { path: PathBuf, expected: usize, found: usize },
    /// The path of a new folder exists already.
    #[error("{} exists already; remove it first, or choose another name", path.display())]
    Exists { path: PathBuf },
    /// A chunk of a Zarr store is damaged: its checksum differs, or its bytes make no sense.
    #[error(
        "chunk {chunk} of {} is damaged: {reason}; write the chunk again, or restore its file from a copy",
        path.display()
    )]
    Corrupted { path: PathBuf, chunk: String, reason: String },
    /// A Zarr store could not be read or written.
    #[error("{}: {cause}", path.display())]
    Zarr { path: PathBuf, cause: Box<dyn std::error::Error + Send + Sync> },
    /// The program's callback cancelled the work. An unfinished file is removed; a view has some of the
    /// elements of the file.
    #[error("cancelled after {done_bytes} of {total_bytes} bytes")]
    Cancelled { done_bytes: u64, total_bytes: u64 },
    /// The array failed.
    #[error(transparent)]
    Array(#[from] vmarray::Error),
}

impl Error {
    /// Makes errors of one action on one file.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |cause| Self::File { action, path: path.to_path_buf(), cause }
    }

    pub(crate) fn malformed(path: &Path, reason: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_path_buf(), reason: reason.into() }
    }

    /// Makes errors of a Zarr store.
    #[cfg(feature = "zarr")]
    pub(crate) fn zarr<E: std::error::Error + Send + Sync + 'static>(path: &Path) -> impl Fn(E) -> Self {
        move |cause| Self::Zarr { path: path.to_path_buf(), cause: Box::new(cause) }
    }

    pub(crate) fn unsupported(path: &Path, what: impl Into<String>) -> Self {
        Self::Unsupported { path: path.to_path_buf(), what: what.into() }
    }
}

/// A buffer of zeroed elements.
///
/// # Errors
/// [`NoMemory`](vmarray::ErrorKind::NoMemory).
pub(crate) fn zeroed<T: vmarray::Element>(len: usize) -> Result<Box<[T]>> {
    let bytes = len.saturating_mul(size_of::<T>());
    vmarray::bytemuck::allocation::try_zeroed_slice_box(len)
        .map_err(|()| Error::Array(vmarray::ErrorKind::NoMemory { bytes }.into()))
}
