//! [`FileSection`]: elements at a byte offset of a file that other programs also read and write.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use vmarray_support::private_dir;

use crate::store::disk::{Disk, FileDisk, Loss};
use crate::store::refused;

/// Default length of a page in bytes.
const PAGE_BYTES: usize = 64 << 10;

/// Permitted accesses to the file of a [`FileSection`].
///
/// ```
/// use vmarray_store::{FileAccess, FileSection};
/// let path = std::env::temp_dir().join(format!("vmarray-access-{}", std::process::id()));
/// std::fs::write(&path, b"0123").unwrap();
/// let one = FileSection::open(&path, .., FileAccess::ReadOnly)?;
/// let other = FileSection::open(&path, .., FileAccess::CopyOnWrite)?;
/// assert!(FileSection::open(&path, .., FileAccess::ReadWrite).is_err());
/// # drop((one, other));
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileAccess {
    /// Reads. Any number of programs may read the file at the same time.
    ReadOnly,
    /// Reads and writes. No other program may use the file as a `FileSection` meanwhile.
    ReadWrite,
    /// Reads and writes, but the file never changes: changed pages go to a temporary file without a name, in
    /// the system's folder for such files. The changes are lost when the section is dropped.
    CopyOnWrite,
}

/// A byte range of a file, as pages of an array: the contents of a raw file, or the elements behind a header.
///
/// The section reads and writes the file by positioned system calls, never through a memory map. So a file
/// that another program shortens causes an error of kind [`Corrupted`](ErrorKind::Corrupted), and no signal.
/// The section locks the file (`flock` on Linux) for one writer or any number of readers. Programs that do
/// not lock the file are not excluded; the array does not notice their writes to pages in its cache.
///
/// Several threads may use a section at the same time. Bytes of the last page behind the section's end are
/// zero, and writes to these bytes have no effect.
///
/// ```
/// use backend_api::ErrorKind;
/// use vmarray_store::{Backing, FileAccess, FileSection};
/// let path = std::env::temp_dir().join(format!("vmarray-section-{}", std::process::id()));
/// std::fs::write(&path, b"header: 0123456789").unwrap();
/// let section = FileSection::open(&path, 8.., FileAccess::ReadWrite)?.with_page_bytes(4);
/// assert_eq!((section.bytes(), section.page_bytes(), section.pages()), (10, 4, 3));
/// assert_eq!((section.access(), section.path()), (FileAccess::ReadWrite, &*path));
/// assert!(section.file_section().is_some());
/// section.write_page(1, b"abcd").unwrap();
/// let mut page = [1; 4];
/// section.read_page(2, &mut page).unwrap();
/// assert_eq!(&page, b"89\0\0");
/// assert_eq!(std::fs::read(&path).unwrap(), b"header: 0123abcd89");
///
/// let error = FileSection::open(&path, 8.., FileAccess::ReadOnly).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InUse);
/// drop(section);
/// let error = FileSection::open(&path, ..100, FileAccess::ReadOnly).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::WrongFormat);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct FileSection {
    disk: FileDisk,
    path: PathBuf,
    offset: u64,
    bytes: u64,
    page_bytes: usize,
    access: FileAccess,
    changes: Option<Changes>,
}

impl FileSection {
    /// Opens and locks a file, and takes a range of its bytes. Without an end, the range ends at the present
    /// end of the file.
    ///
    /// # Errors
    /// [`InUse`](ErrorKind::InUse) if the file is locked; [`WrongFormat`](ErrorKind::WrongFormat) if the file
    /// is shorter than the range; [`System`](ErrorKind::System) for other failures, such as a missing file.
    pub fn open(path: impl AsRef<Path>, range: impl RangeBounds<u64>, access: FileAccess) -> Result<Self> {
        const OPERATION: &str = "open";
        let path = path.as_ref();
        let disk = FileDisk::open(path, access != FileAccess::ReadWrite)
            .map_err(|cause| refused(OPERATION, path, &cause))?;
        let length = disk.len().map_err(|cause| refused(OPERATION, path, &cause))?;
        let offset = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => length.max(offset),
        };
        if end > length || offset > end {
            let name = path.display();
            let detail = format!("{name}: the file has {length} bytes, and no bytes {offset}..{end}");
            return Err(Error::new(ErrorKind::WrongFormat, OPERATION)
                .with_detail(detail)
                .with_advice("name a range inside the file, or restore the file"));
        }
        let (path, bytes) = (path.to_owned(), end - offset);
        let mut section = Self { disk, path, offset, bytes, page_bytes: PAGE_BYTES, access, changes: None };
        if access == FileAccess::CopyOnWrite {
            let changes = Changes::create(bytes, PAGE_BYTES);
            section.changes =
                Some(changes.map_err(|cause| refused("create", &std::env::temp_dir(), &cause))?);
        }
        Ok(section)
    }

    /// Sets the length of a page, in bytes; 64 KiB by default.
    ///
    /// # Panics
    /// If `bytes` is 0.
    #[must_use]
    pub fn with_page_bytes(mut self, bytes: usize) -> Self {
        assert!(bytes > 0, "the length of a page must not be 0");
        self.page_bytes = bytes;
        self.changes = self.changes.map(|changes| changes.with_page_bytes(self.bytes, bytes));
        self
    }

    /// Length of the section in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Permitted accesses to the file.
    #[must_use]
    pub fn access(&self) -> FileAccess {
        self.access
    }

    /// Length of a page in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes all writes durable. Reports a file that was shortened, removed or replaced.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if self.access != FileAccess::ReadWrite {
            return Ok(());
        }
        if self.disk.len()? < self.offset + self.bytes {
            return Err(shortened(io::ErrorKind::UnexpectedEof.into()));
        }
        match self.disk.loss() {
            Some(Loss::Removed) => Err(io::Error::other("the file was removed while it was open")),
            Some(Loss::Replaced) => Err(io::Error::other("another file has replaced the file at its path")),
            None => self.disk.sync(),
        }
    }

    /// Reads bytes from `at` on, which counts from the start of the section.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let stored = self.stored(at, into.len());
        into[stored..].fill(0);
        let Some(changes) = &self.changes else {
            return self.read_file(at, &mut into[..stored]);
        };
        changes.pieces(at, stored, |page, at, part| {
            let into = &mut into[part];
            if changes.has(page) { changes.file.read_at(at, into) } else { self.read_file(at, into) }
        })
    }

    /// Writes bytes from `at` on, which counts from the start of the section.
    pub(crate) fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let from = &from[..self.stored(at, from.len())];
        let Some(changes) = &self.changes else {
            return self.disk.write_at(self.offset + at, from).map_err(shortened);
        };
        changes.pieces(at, from.len(), |page, at, part| {
            if part.len() == self.page_bytes {
                changes.file.write_at(at, &from[part])?;
                changes.add(page);
                return Ok(());
            }
            // Other threads may write to other parts of the page, so one of them copies the page first.
            let copying = (!changes.has(page)).then(|| changes.copying.lock());
            if copying.is_some() && !changes.has(page) {
                let start = page * self.page_bytes as u64;
                let mut whole = vec![0; self.stored(start, self.page_bytes)];
                self.read_file(start, &mut whole)?;
                changes.file.write_at(start, &whole)?;
                changes.add(page);
            }
            drop(copying);
            changes.file.write_at(at, &from[part])
        })
    }

    /// The file and the offset in the file of bytes of the section, if the file has all of their values.
    pub(crate) fn in_file(&self, at: u64, bytes: usize) -> Option<(&FileDisk, u64)> {
        let is_whole = self.changes.is_none() && self.stored(at, bytes) == bytes;
        is_whole.then_some((&self.disk, self.offset + at))
    }

    fn read_file(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(self.offset + at, into).map_err(shortened)
    }

    /// Number of bytes from `at` on that are inside the section, at most `bytes`.
    fn stored(&self, at: u64, bytes: usize) -> usize {
        self.bytes.saturating_sub(at).min(bytes as u64) as usize
    }
}

/// Replaces the error of an access beyond the end of the file.
pub(crate) fn shortened(cause: io::Error) -> io::Error {
    match cause.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(io::ErrorKind::InvalidData, "another program has shortened the file")
        }
        _ => cause,
    }
}

/// The changed pages of a section that does not write to its file: a sparse file without a name, with the
/// pages at their offsets in the section.
#[derive(Debug)]
struct Changes {
    file: FileDisk,
    page_bytes: usize,
    /// A bit for each page, which is set if the page has changed.
    pages: Box<[AtomicU64]>,
    /// Held by the thread that copies a page from the section's file.
    copying: Mutex<()>,
}

impl Changes {
    fn create(bytes: u64, page_bytes: usize) -> io::Result<Self> {
        let path = std::env::temp_dir().join(private_dir::random_name());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file: File = options.open(&path)?;
        let made = file.set_len(bytes);
        // Other systems keep the name until the system removes temporary files.
        let removed = if cfg!(unix) { std::fs::remove_file(&path) } else { Ok(()) };
        made.and(removed)?;
        let (file, pages) = (FileDisk::new(file, &path), Self::bits(bytes, page_bytes));
        Ok(Self { file, page_bytes, pages, copying: Mutex::new(()) })
    }

    fn bits(bytes: u64, page_bytes: usize) -> Box<[AtomicU64]> {
        let words = bytes.div_ceil(page_bytes as u64).div_ceil(64);
        (0..words).map(|_| AtomicU64::new(0)).collect()
    }

    fn with_page_bytes(self, bytes: u64, page_bytes: usize) -> Self {
        Self { page_bytes, pages: Self::bits(bytes, page_bytes), ..self }
    }

    fn has(&self, page: u64) -> bool {
        self.pages[(page / 64) as usize].load(Ordering::Acquire) >> (page % 64) & 1 != 0
    }

    fn add(&self, page: u64) {
        self.pages[(page / 64) as usize].fetch_or(1 << (page % 64), Ordering::Release);
    }

    /// Calls `work` for the part of a byte range in each page: with the page, the part's offset, and its
    /// place in the range.
    fn pieces(
        &self,
        at: u64,
        bytes: usize,
        mut work: impl FnMut(u64, u64, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (page_bytes, mut done) = (self.page_bytes as u64, 0);
        while done < bytes {
            let here = at + done as u64;
            let part = ((page_bytes - here % page_bytes) as usize).min(bytes - done);
            work(here / page_bytes, here, done..done + part)?;
            done += part;
        }
        Ok(())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn changes_leave_the_file_as_it_is() {
        let path = std::env::temp_dir().join(private_dir::random_name());
        let old: Vec<u8> = (0..100).collect();
        std::fs::write(&path, &old).unwrap();
        let section = FileSection::open(&path, 10..95, FileAccess::CopyOnWrite).unwrap().with_page_bytes(16);
        let mut expected = [old[10..95].to_vec(), vec![0; 11]].concat();
        for (at, len) in [(3, 5), (30, 40), (0, 16), (80, 16), (84, 1)] {
            let new: Vec<u8> = (0..len).map(|i| 200 + (i as u8 + at as u8) % 50).collect();
            section.write(at, &new).unwrap();
            let end = expected.len().min(at as usize + len).min(85);
            expected[at as usize..end].copy_from_slice(&new[..end - at as usize]);
            let mut found = vec![1; 96];
            section.read(0, &mut found).unwrap();
            assert_eq!(found, expected);
        }
        assert!(section.in_file(0, 1).is_none());
        section.sync().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), old);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_shortened_or_replaced_file_is_an_error() {
        let path = std::env::temp_dir().join(private_dir::random_name());
        std::fs::write(&path, [7; 100]).unwrap();
        let section = FileSection::open(&path, 10.., FileAccess::ReadWrite).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(50).unwrap();
        let mut found = [0; 90];
        section.read(0, &mut found[..40]).unwrap();
        for outcome in [section.read(0, &mut found), section.write(0, &found), section.sync()] {
            assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 50);
        File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        section.sync().unwrap();
        std::fs::remove_file(&path).unwrap();
        #[cfg(unix)]
        assert!(section.sync().unwrap_err().to_string().contains("removed"));
        std::fs::write(&path, [7; 100]).unwrap();
        #[cfg(unix)]
        assert!(section.sync().unwrap_err().to_string().contains("replaced"));
        std::fs::remove_file(path).unwrap();
    }
}
