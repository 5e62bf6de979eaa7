//! File access: positioned reads and writes, and atomic replacement of a file by a complete new one.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use vmarray::support::private_dir;

use crate::error::{Error, Result};

/// Fills a buffer with the bytes of a file at `offset`.
pub(crate) fn read_at(file: &File, path: &Path, offset: u64, into: &mut [u8]) -> Result<()> {
    #[cfg(unix)]
    let read = std::os::unix::fs::FileExt::read_exact_at(file, into, offset);
    #[cfg(windows)]
    let read = all(into.len(), |done| {
        std::os::windows::fs::FileExt::seek_read(file, &mut into[done..], offset + done as u64)
    });
    read.map_err(Error::file("read", path))
}

/// Writes all bytes to a file at `offset`.
pub(crate) fn write_at(file: &File, path: &Path, offset: u64, from: &[u8]) -> Result<()> {
    #[cfg(unix)]
    let written = std::os::unix::fs::FileExt::write_all_at(file, from, offset);
    #[cfg(windows)]
    let written = all(from.len(), |done| {
        std::os::windows::fs::FileExt::seek_write(file, &from[done..], offset + done as u64)
    });
    written.map_err(Error::file("write to", path))
}

/// Repeats a call that may read or write only a part, until all `len` bytes are done.
#[cfg(windows)]
fn all(len: usize, mut part: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match part(done) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A file or folder that has a temporary name in the same folder until it is complete. A drop before that
/// removes it.
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    temporary: PathBuf,
    path: PathBuf,
    is_folder: bool,
}

impl TemporaryFile {
    /// Creates a temporary file for writing; `path` is its final name.
    pub(crate) fn file(path: &Path) -> Result<(File, Self)> {
        Self::new(path, false, |temporary| OpenOptions::new().write(true).create_new(true).open(temporary))
    }

    /// Creates a temporary folder for files; `path` is its final name.
    ///
    /// # Errors
    /// [`Exists`](Error::Exists) if the name exists, because a folder cannot be replaced atomically.
    #[cfg(feature = "zarr")]
    pub(crate) fn folder(path: &Path) -> Result<Self> {
        if path.symlink_metadata().is_ok() {
            return Err(Error::Exists { path: path.to_path_buf() });
        }
        Ok(Self::new(path, true, |temporary| fs::create_dir(temporary))?.1)
    }

    #[cfg(feature = "zarr")]
    pub(crate) fn temporary(&self) -> &Path {
        &self.temporary
    }

    fn new<F>(path: &Path, is_folder: bool, make: impl Fn(&Path) -> io::Result<F>) -> Result<(F, Self)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = path.file_name().ok_or_else(|| {
            Error::file("write to", path)(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path has no file name",
            ))
        })?;
        loop {
            let mut hidden = OsString::from(".");
            hidden.push(short(name));
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            hidden.push(format!(".{}-{number}.unfinished", std::process::id()));
            let temporary = path.with_file_name(hidden);
            match make(&temporary) {
                Ok(made) => return Ok((made, Self { temporary, path: path.to_path_buf(), is_folder })),
                // The file is left over from a killed process with the same id, so try the next name.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(cause) => return Err(Error::file("create", &temporary)(cause)),
            }
        }
    }

    /// Renames the file or folder to its final name, and waits until the name is durable. The caller has
    /// synchronised a file before.
    pub(crate) fn finish(self) -> Result<()> {
        if self.is_folder && self.path.symlink_metadata().is_ok() {
            return Err(Error::Exists { path: self.path.clone() });
        }
        fs::rename(&self.temporary, &self.path).map_err(Error::file("rename to", &self.path))?;
        let path = self.path.clone();
        std::mem::forget(self);
        private_dir::sync_folder_of(&path).map_err(Error::file("synchronise the folder of", &path))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // Ignore a failed removal, because a drop cannot return an error.
        let _ = if self.is_folder {
            fs::remove_dir_all(&self.temporary)
        } else {
            fs::remove_file(&self.temporary)
        };
    }
}

/// Returns a name short enough to append a suffix.
fn short(name: &OsStr) -> OsString {
    if name.len() <= 200 { name.into() } else { "long".into() }
}

/// Waits until all names in a folder, and in the folders below it, are durable.
#[cfg(feature = "zarr")]
pub(crate) fn sync_folders(folder: &Path) -> Result<()> {
    let failed = |cause| Error::file("list the folder", folder)(cause);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    private_dir::sync_folder(folder).map_err(Error::file("synchronise the folder", folder))
}

/// Synchronises a file before its rename.
pub(crate) fn sync(file: &File, path: &Path) -> Result<()> {
    file.sync_all().map_err(Error::file("synchronise", path))
}
