//! The disk of a store: a trait for reads and writes at a byte offset, and its implementation for files.

use std::fmt::Debug;
#[cfg(unix)]
use std::fs::Metadata;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use vmarray_support::private_dir;

/// Storage that outlives the process. Writes since the last [`sync`](Self::sync) may or may not persist,
/// sector by sector and in any order.
pub(crate) trait Disk: Debug + Send + Sync + 'static {
    /// Reads bytes at an offset; a range beyond the end is an error.
    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<()>;

    /// Writes all of `from` to a [reserved](Self::reserve) range.
    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Length of the disk in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Reserves disk blocks for the first `bytes` bytes.
    fn reserve(&self, bytes: u64) -> io::Result<()>;

    /// Starts asynchronous readahead of a range.
    fn announce(&self, offset: u64, bytes: usize) {
        let _ = (offset, bytes);
    }

    /// Starts asynchronous write-back of a range that will not change again before the next sync.
    fn begin_to_store(&self, offset: u64, bytes: usize) {
        let _ = (offset, bytes);
    }

    /// Blocks until all earlier writes are durable.
    fn sync(&self) -> io::Result<()>;

    /// Reason why a later program will not find the writes, if there is one.
    fn loss(&self) -> Option<Loss> {
        None
    }
}

/// Reason why no later program will find the writes to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The file was removed: it has no name any more.
    Removed,
    /// The file was replaced: its name refers to another file.
    Replaced,
}

/// The file of a store, locked while it is open.
#[derive(Debug)]
pub(crate) struct FileDisk {
    file: File,
    #[cfg_attr(not(unix), expect(dead_code, reason = "only Unix systems detect a replaced file"))]
    path: PathBuf,
    /// The process that opened the file. A fork shares file and lock, but not later commits.
    process: u32,
}

impl FileDisk {
    /// Creates a file that only this user can access. The call opens no existing file and follows no link.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        let locked =
            file.try_lock().map_err(io::Error::from).and_then(|()| private_dir::sync_folder_of(path));
        if let Err(cause) = locked {
            // Ignore a failed removal: the first error is more useful.
            let _ = std::fs::remove_file(path);
            return Err(cause);
        }
        Ok(Self::new(file, path))
    }

    /// Locks the file at a path against all other readers and writers. Returns `None` if there is no file
    /// that this user may read.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn lock(path: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        options.read(true);
        // Open without blocking, because the path may be a named pipe.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
        // Skip a file that cannot be opened: either it is no open store, or it belongs to another user. Open
        // it for writing if possible, because NFS grants exclusive locks on writable descriptors only.
        let file = options.clone().write(true).open(path).or_else(|_| options.open(path));
        let Ok(file) = file else { return Ok(None) };
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        file.try_lock().map_err(io::Error::from)?;
        Ok(Some(Self::new(file, path)))
    }

    /// The disk of an open file, whose lock the caller owns.
    pub fn new(file: File, path: &Path) -> Self {
        // Store an absolute path, because the program may change the current folder later.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self { file, path, process: std::process::id() }
    }

    /// Opens an existing file of a store, either as its only writer or as one of any number of readers.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if another process has the file open for writing, or for
    /// reading while this call opens it for writing.
    pub fn open(path: &Path, is_read_only: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(!is_read_only);
        // Open without blocking, because the path may be a named pipe.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
        loop {
            let file = options.open(path)?;
            if !file.metadata()?.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            let locked = if is_read_only { file.try_lock_shared() } else { file.try_lock() };
            locked.map_err(io::Error::from)?;
            let disk = Self::new(file, path);
            // Return the file only if no other file replaced it at the path before it was locked.
            if disk.loss().is_none() {
                return Ok(disk);
            }
        }
    }

    /// Identity of a file: device and inode number.
    #[cfg(unix)]
    fn identity(metadata: &Metadata) -> (u64, u64) {
        use std::os::unix::fs::MetadataExt;
        (metadata.dev(), metadata.ino())
    }
}

impl Drop for FileDisk {
    /// Unlocks the file explicitly, because a process that another thread has forked may still have it open.
    fn drop(&mut self) {
        // Only the process that locked the file may unlock it. A forked child must not.
        if self.is_own() {
            // Ignore an error, because closing the file unlocks it as well.
            let _ = self.file.unlock();
        }
    }
}

impl Disk for FileDisk {
    #[cfg(unix)]
    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, to, offset)
    }

    #[cfg(unix)]
    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.expect_room(offset, from.len())?;
        std::os::unix::fs::FileExt::write_all_at(&self.file, from, offset)
    }

    #[cfg(windows)]
    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < to.len() {
            match std::os::windows::fs::FileExt::seek_read(&self.file, &mut to[done..], offset + done as u64)
            {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(some) => done += some,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }

    #[cfg(windows)]
    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.expect_room(offset, from.len())?;
        let mut done = 0;
        while done < from.len() {
            match std::os::windows::fs::FileExt::seek_write(&self.file, &from[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(some) => done += some,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.expect_own()?;
        let length = self.len()?;
        // Allocate only the new part of the file, because other threads may write to the old part meanwhile.
        #[cfg(target_os = "linux")]
        if bytes > length {
            use std::os::fd::AsRawFd;
            let offset = |bytes: u64| {
                libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
            };
            let (from, more) = (offset(length)?, offset(bytes - length)?);
            loop {
                // SAFETY: the descriptor is open; the call takes no memory.
                if unsafe { libc::fallocate(self.file.as_raw_fd(), 0, from, more) } == 0 {
                    return Ok(());
                }
                let cause = io::Error::last_os_error();
                match cause.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The file system lacks this call, so it reports a full disk only on a write.
                    Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => break,
                    _ => return Err(cause),
                }
            }
        }
        if length < bytes { self.file.set_len(bytes) } else { Ok(()) }
    }

    #[cfg(target_os = "linux")]
    fn announce(&self, offset: u64, bytes: usize) {
        crate::file::announce(&self.file, offset, bytes);
    }

    #[cfg(target_os = "linux")]
    fn begin_to_store(&self, offset: u64, bytes: usize) {
        use std::os::fd::AsRawFd;
        if let (Ok(offset), Ok(bytes)) = (offset.try_into(), bytes.try_into()) {
            // SAFETY: the descriptor is open; the call takes no memory. `sync` reports failures.
            unsafe {
                libc::sync_file_range(self.file.as_raw_fd(), offset, bytes, libc::SYNC_FILE_RANGE_WRITE)
            };
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.expect_own()?;
        self.file.sync_data()
    }

    #[cfg(unix)]
    fn loss(&self) -> Option<Loss> {
        let own = self.file.metadata().ok()?;
        match self.path.metadata() {
            Ok(named) if Self::identity(&named) == Self::identity(&own) => None,
            Ok(_) => Some(Loss::Replaced),
            // No file is at the path. A renamed file still has a link, and counts as present.
            Err(_) => (std::os::unix::fs::MetadataExt::nlink(&own) == 0).then_some(Loss::Removed),
        }
    }
}

impl FileDisk {
    /// Reads bytes at an offset; a range beyond the end is an error.
    ///
    /// # Safety
    /// `to` is writable for `bytes` bytes. Other threads may access them at the same time, by the rules of
    /// [`backend_api::racy`].
    #[cfg(unix)]
    pub unsafe fn read_racy(&self, offset: u64, to: *mut u8, bytes: usize) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let mut done = 0;
        while done < bytes {
            let at = libc::off_t::try_from(offset + done as u64)
                .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
            // SAFETY: the descriptor is open, `done` is below `bytes`, and the caller guarantees the memory.
            // In Rust's memory model, accesses by the operating system count like accesses by a device.
            let count =
                unsafe { libc::pread(self.file.as_raw_fd(), to.wrapping_add(done).cast(), bytes - done, at) };
            match usize::try_from(count) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(some) => done += some,
                Err(_) => {
                    let cause = io::Error::last_os_error();
                    if cause.kind() != io::ErrorKind::Interrupted {
                        return Err(cause);
                    }
                }
            }
        }
        Ok(())
    }

    /// Version for other systems: through an intermediate buffer.
    ///
    /// # Safety
    /// `to` is writable for `bytes` bytes, which other threads may access by the rules of
    /// [`backend_api::racy`].
    #[cfg(not(unix))]
    pub unsafe fn read_racy(&self, offset: u64, to: *mut u8, bytes: usize) -> io::Result<()> {
        let mut part = backend_host::parts::Passage(vec![0; bytes]);
        self.read_at(offset, &mut part.0)?;
        // SAFETY: the caller guarantees the target.
        unsafe { backend_api::racy::write(to, &part.0) };
        Ok(())
    }

    fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns an error in a forked process, which must not change the file of its parent.
    fn expect_own(&self) -> io::Result<()> {
        let refused = || {
            io::Error::other("a forked process cannot write to a file of its parent; open it after the fork")
        };
        if self.is_own() { Ok(()) } else { Err(refused()) }
    }

    /// Refuses writes beyond the end, which would extend a truncated file with zeroes.
    fn expect_room(&self, offset: u64, bytes: usize) -> io::Result<()> {
        self.expect_own()?;
        if offset + bytes as u64 <= self.len()? {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "another program has shortened the file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_closed_is_free_though_a_forked_process_has_it_open() {
        let path = std::env::temp_dir().join(format!("vmarray-lock-{}", std::process::id()));
        let disk = FileDisk::create(&path).unwrap();
        // The clone acts like a forked process that has not called `exec` yet.
        let inherited = disk.file.try_clone().unwrap();
        let refused = FileDisk::open(&path, true).map(drop).map_err(|cause| cause.kind());
        assert_eq!(refused, Err(io::ErrorKind::WouldBlock));
        drop(disk);
        let opened = FileDisk::open(&path, false).map(drop);
        drop(inherited);
        std::fs::remove_file(&path).unwrap();
        opened.unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_forked_process_neither_writes_to_the_file_nor_ends_its_lock() {
        let path = std::env::temp_dir().join(format!("vmarray-forked-{}", std::process::id()));
        let disk = FileDisk::create(&path).unwrap();
        disk.reserve(10).unwrap();
        disk.write_at(0, &[7; 10]).unwrap();
        // SAFETY: the child makes system calls alone, and ends without running code of the parent.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_written = disk.write_at(0, &[8; 10]).is_ok() || disk.reserve(20).is_ok();
            drop(disk);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(is_written)) };
        }
        let mut status = -1;
        // SAFETY: the pointer is to a local variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        let opened = FileDisk::open(&path, false).map(drop).map_err(|cause| cause.kind());
        let mut found = [0; 10];
        disk.read_at(0, &mut found).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((status, opened, found), (0, Err(io::ErrorKind::WouldBlock), [7; 10]));
    }
}
