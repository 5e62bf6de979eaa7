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
    /// In the order of the bytes; several only for reading.
    parts: Vec<FilePart>,
    bytes: u64,
    page_bytes: usize,
    access: FileAccess,
    changes: Option<Changes>,
}

/// Bytes of one file, from the byte `start` of the section on.
#[derive(Debug)]
struct FilePart {
    disk: FileDisk,
    path: PathBuf,
    offset: u64,
    start: u64,
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
        let parts = vec![FilePart { disk, path, offset, start: 0 }];
        let mut section = Self { parts, bytes, page_bytes: PAGE_BYTES, access, changes: None };
        if access == FileAccess::CopyOnWrite {
            section.changes = Some(Changes::create(bytes, PAGE_BYTES)?);
        }
        Ok(section)
    }

    /// Creates a section of `bytes` zeroes in a temporary file without a name, in the system's folder for
    /// such files. The file takes space on the disk when it is written, and disappears with the section.
    ///
    /// ```
    /// use vmarray_store::{Backing, FileSection};
    /// let section = FileSection::temporary(100)?.with_page_bytes(64);
    /// section.write_page(1, &[7; 64]).unwrap();
    /// let mut page = [1; 64];
    /// section.read_page(1, &mut page).unwrap();
    /// assert_eq!((&page[..36], &page[36..]), (&[7; 36][..], &[0; 28][..]));
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`System`](ErrorKind::System) if the folder is missing or read only. The environment variable `TMPDIR`
    /// selects another folder on Unix.
    pub fn temporary(bytes: u64) -> Result<Self> {
        let disk = temporary_file(bytes)?;
        let path = std::env::temp_dir().join("temporary file");
        let parts = vec![FilePart { disk, path, offset: 0, start: 0 }];
        let access = FileAccess::CopyOnWrite;
        Ok(Self { parts, bytes, page_bytes: PAGE_BYTES, access, changes: None })
    }

    /// Joins sections that are open for reading, such as the shards of a table, to one section: the bytes of
    /// the first one, then the ones of the second, and so on.
    ///
    /// ```
    /// use vmarray_store::{Backing, FileAccess, FileSection};
    /// let paths = [0, 1].map(|i| std::env::temp_dir().join(format!("shard {i} {}", std::process::id())));
    /// paths.iter().for_each(|path| std::fs::write(path, b"head 0123").unwrap());
    /// let open = |path| FileSection::open(path, 5.., FileAccess::ReadOnly);
    /// let joined = FileSection::join([open(&paths[0])?, open(&paths[1])?])?;
    /// let mut bytes = [0; 8];
    /// joined.with_page_bytes(8).read_page(0, &mut bytes).unwrap();
    /// assert_eq!(&bytes, b"01230123");
    /// # paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    /// # Ok::<_, backend_api::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) without a section, or with one that is open for
    /// writing.
    pub fn join(sections: impl IntoIterator<Item = Self>) -> Result<Self> {
        let access = FileAccess::ReadOnly;
        let mut all = Self { parts: Vec::new(), bytes: 0, page_bytes: PAGE_BYTES, access, changes: None };
        for section in sections {
            if section.access != access {
                let error = Error::new(ErrorKind::InvalidArgument, "join");
                return Err(
                    error.with_detail(format!("{} is not open for reading only", section.path().display()))
                );
            }
            let start = all.bytes;
            all.parts
                .extend(section.parts.into_iter().map(|part| FilePart { start: start + part.start, ..part }));
            all.bytes += section.bytes;
        }
        match all.parts[..] {
            [] => Err(Error::new(ErrorKind::InvalidArgument, "join").with_detail("there is no section")),
            _ => Ok(all),
        }
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

    /// Path of the file; of several, the first one.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.parts[0].path
    }

    /// Path of the file with a byte of the section.
    pub(crate) fn path_at(&self, at: u64) -> &Path {
        &self.part_at(at).path
    }

    /// The last part that starts at or before a byte.
    fn part_at(&self, at: u64) -> &FilePart {
        &self.parts[self.parts.partition_point(|part| part.start <= at).saturating_sub(1)]
    }

    /// Makes all writes durable. Reports a file that was shortened, removed or replaced.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if self.access != FileAccess::ReadWrite {
            return Ok(());
        }
        let FilePart { disk, offset, .. } = &self.parts[0];
        if disk.len()? < offset + self.bytes {
            return Err(shortened(io::ErrorKind::UnexpectedEof.into()));
        }
        match disk.loss() {
            Some(Loss::Removed) => Err(io::Error::other("the file was removed while it was open")),
            Some(Loss::Replaced) => Err(io::Error::other("another file has replaced the file at its path")),
            None => disk.sync(),
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
            let FilePart { disk, offset, .. } = &self.parts[0];
            return disk.write_at(offset + at, from).map_err(shortened);
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
        let part = self.part_at(at);
        let is_in_part = bytes == 0 || std::ptr::eq(part, self.part_at(at + bytes as u64 - 1));
        (is_whole && is_in_part).then_some((&part.disk, part.offset + at - part.start))
    }

    fn read_file(&self, mut at: u64, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            let part = self.part_at(at);
            let next = self.parts.iter().map(|next| next.start).find(|start| *start > at);
            let here = next.map_or(into.len(), |next| into.len().min((next - at) as usize));
            let (now, rest) = into.split_at_mut(here);
            let named = |cause: io::Error| match self.parts.len() {
                1 => cause,
                _ => io::Error::new(cause.kind(), format!("{}: {cause}", part.path.display())),
            };
            part.disk.read_at(part.offset + at - part.start, now).map_err(shortened).map_err(named)?;
            (at, into) = (at + here as u64, rest);
        }
        Ok(())
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

/// Creates a sparse file without a name in the system's folder for temporary files.
fn temporary_file(bytes: u64) -> Result<FileDisk> {
    let path = std::env::temp_dir().join(private_dir::random_name());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let create = || {
        let file: File = options.open(&path)?;
        let made = file.set_len(bytes);
        // Other systems keep the name until the system removes temporary files.
        let removed = if cfg!(unix) { std::fs::remove_file(&path) } else { Ok(()) };
        made.and(removed).map(|()| FileDisk::new(file, &path))
    };
    create().map_err(|cause| refused("create", &std::env::temp_dir(), &cause))
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
    fn create(bytes: u64, page_bytes: usize) -> Result<Self> {
        let (file, pages) = (temporary_file(bytes)?, Self::bits(bytes, page_bytes));
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

    #[test]
    fn joined_sections_are_read_across_their_ends() {
        let paths = [10_u64, 0, 7, 30].map(|len| {
            let path = std::env::temp_dir().join(private_dir::random_name());
            std::fs::write(&path, (0..3 + len).map(|i| (7 * len + i) as u8).collect::<Vec<_>>()).unwrap();
            path
        });
        let open = |path| FileSection::open(path, 3.., FileAccess::ReadOnly).unwrap();
        let expected: Vec<u8> =
            paths.iter().flat_map(|path| std::fs::read(path).unwrap().split_off(3)).collect();
        // The middle section is itself joined.
        let inner = FileSection::join([open(&paths[1]), open(&paths[2])]).unwrap();
        let joined = FileSection::join([open(&paths[0]), inner, open(&paths[3])]).unwrap();
        assert_eq!(joined.bytes(), 47);
        for (at, len) in [(0, 47), (9, 1), (9, 2), (10, 7), (16, 2), (17, 30), (46, 1), (3, 0)] {
            let mut found = vec![1; len];
            joined.read(at as u64, &mut found).unwrap();
            assert_eq!(found, expected[at..at + len]);
            let is_in_one =
                [0..10, 10..17, 17..47].iter().any(|part| part.start <= at && at + len <= part.end);
            assert_eq!(joined.in_file(at as u64, len).is_some(), is_in_one, "{at} {len}");
        }
        File::options().write(true).open(&paths[2]).unwrap().set_len(5).unwrap();
        assert_eq!(joined.path_at(12), paths[2]);
        let error = joined.read(8, &mut [0; 9]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains(&paths[2].display().to_string()), "{error}");
        assert_eq!(FileSection::join([]).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let written = FileSection::open(&paths[0], .., FileAccess::CopyOnWrite).unwrap();
        assert_eq!(FileSection::join([written]).unwrap_err().kind(), ErrorKind::InvalidArgument);
        paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}
