//! What a store is written to: bytes at offsets, and the moment at which they stay.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use backend_api::own_files;

/// Bytes that outlive the process. Between two [`sync`](Self::sync) what was written may stay or not, sector
/// by sector and in any order.
pub(crate) trait Disk: Debug + Send + Sync + 'static {
    /// Fills `to` with what is at an offset; bytes beyond the end are an error.
    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<()>;

    /// Writes all of `from`; what lies beyond the end makes it longer.
    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()>;

    /// How many bytes there are.
    fn len(&self) -> io::Result<u64>;

    /// Sets blocks aside, so that the first `bytes` bytes can be written.
    fn reserve(&self, bytes: u64) -> io::Result<()>;

    /// Has the system begin to read what is read next.
    fn announce(&self, offset: u64, bytes: usize) {
        let _ = (offset, bytes);
    }

    /// Has the drive begin to store what was just written, which will not change any more.
    fn begin_to_store(&self, offset: u64, bytes: usize) {
        let _ = (offset, bytes);
    }

    /// Returns when all that was written before stays.
    fn sync(&self) -> io::Result<()>;
}

/// A file, locked while it is open.
#[derive(Debug)]
pub(crate) struct FileDisk(File);

impl FileDisk {
    /// A new file for this user alone. Nothing that exists is opened, and no link followed.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        let locked = file.try_lock().map_err(io::Error::from).and_then(|()| own_files::sync_folder_of(path));
        if let Err(cause) = locked {
            // The first error is the one to tell.
            let _ = std::fs::remove_file(path);
            return Err(cause);
        }
        Ok(Self(file))
    }

    /// A file that exists: for one writer, or for any number of readers.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if others have it open in a way that excludes this one.
    pub fn open(path: &Path, is_read_only: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(!is_read_only);
        // Nobody waits at the end of a pipe.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
        let file = options.open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let locked = if is_read_only { file.try_lock_shared() } else { file.try_lock() };
        locked.map_err(io::Error::from)?;
        Ok(Self(file))
    }
}

impl Drop for FileDisk {
    /// Gives the lock up. To close the file does not, as long as a process that another thread has just
    /// forked has it open, too.
    fn drop(&mut self) {
        // Closing it may still do.
        let _ = self.0.unlock();
    }
}

impl Disk for FileDisk {
    #[cfg(unix)]
    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, to, offset)
    }

    #[cfg(unix)]
    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.0, from, offset)
    }

    #[cfg(windows)]
    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < to.len() {
            match std::os::windows::fs::FileExt::seek_read(&self.0, &mut to[done..], offset + done as u64) {
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
        let mut done = 0;
        while done < from.len() {
            match std::os::windows::fs::FileExt::seek_write(&self.0, &from[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(some) => done += some,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let length = self.len()?;
        // Only what is new: what is there already may be written to meanwhile.
        #[cfg(target_os = "linux")]
        if bytes > length {
            use std::os::fd::AsRawFd;
            let offset = |bytes: u64| {
                libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
            };
            let (from, more) = (offset(length)?, offset(bytes - length)?);
            loop {
                // SAFETY: the descriptor is open; no memory is handed over.
                if unsafe { libc::fallocate(self.0.as_raw_fd(), 0, from, more) } == 0 {
                    return Ok(());
                }
                let cause = io::Error::last_os_error();
                match cause.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // Blocks are found when they are written to, and a full disk then.
                    Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => break,
                    _ => return Err(cause),
                }
            }
        }
        if length < bytes { self.0.set_len(bytes) } else { Ok(()) }
    }

    #[cfg(target_os = "linux")]
    fn announce(&self, offset: u64, bytes: usize) {
        crate::file::announce(&self.0, offset, bytes);
    }

    #[cfg(target_os = "linux")]
    fn begin_to_store(&self, offset: u64, bytes: usize) {
        use std::os::fd::AsRawFd;
        if let (Ok(offset), Ok(bytes)) = (offset.try_into(), bytes.try_into()) {
            // SAFETY: the descriptor is open; no memory is handed over. What comes of it is told by `sync`.
            unsafe { libc::sync_file_range(self.0.as_raw_fd(), offset, bytes, libc::SYNC_FILE_RANGE_WRITE) };
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_closed_is_free_though_a_forked_process_has_it_open() {
        let path = std::env::temp_dir().join(format!("vmarray-lock-{}", std::process::id()));
        let disk = FileDisk::create(&path).unwrap();
        // As in a process that was forked and has not begun its own program.
        let inherited = disk.0.try_clone().unwrap();
        let refused = FileDisk::open(&path, true).map(drop).map_err(|cause| cause.kind());
        assert_eq!(refused, Err(io::ErrorKind::WouldBlock));
        drop(disk);
        let opened = FileDisk::open(&path, false).map(drop);
        drop(inherited);
        std::fs::remove_file(&path).unwrap();
        opened.unwrap();
    }
}
