//! Creation of the file of a file device, and reads and writes at byte offsets.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use backend_api::{Error, ErrorKind, Result};
use vmarray_support::{private_dir, warn};

use crate::error::{failure, file_advice, is_full};
use backend_host::parts::system;

/// An open file with a fixed length.
#[derive(Debug)]
pub(super) struct OpenFile {
    file: Positioned,
    path: PathBuf,
    bytes: u64,
    /// True if the file is removed on close.
    remove: bool,
}

impl OpenFile {
    /// Creates a file of zeroes for this user alone, and reserves its blocks. The call opens no existing file
    /// and follows no link, so two devices never share a file.
    pub fn create(path: &Path, bytes: u64) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path).map_err(|cause| refused("create", path, &cause))?;
        let made = reserve(&file, path, bytes).and_then(|()| file.set_len(bytes));
        if let Err(cause) = made {
            drop(file);
            // Ignore a failed removal: the first error is more useful.
            let _ = std::fs::remove_file(path);
            return Err(with_free(refused("create", path, &cause).with_bytes(bytes), path));
        }
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Ok(Self { file: Positioned::new(file), path, bytes, remove: false })
    }

    /// Creates a temporary file in `folder`. If the system allows it, the file loses its name at once, else
    /// when it is closed. The name is random, so another process cannot create it first.
    pub fn create_temporary(folder: &Path, bytes: u64) -> Result<Self> {
        let mut file = Self::create(&folder.join(private_dir::random_name()), bytes)?;
        file.remove = !cfg!(unix) || std::fs::remove_file(&file.path).is_err();
        Ok(file)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn sync(&self) -> Result<()> {
        self.file.with(File::sync_data).map_err(|cause| refused("sync", &self.path, &cause))
    }

    /// Reads `bytes` bytes at byte `offset` of the file.
    ///
    /// # Safety
    /// `to` is writable for `bytes` bytes. Other threads may access them at the same time, by the rules of
    /// [`backend_api::racy`].
    pub unsafe fn read(&self, operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()> {
        let mut done = 0;
        while done < bytes {
            let at = offset + done as u64;
            // SAFETY: `done` is below `bytes`.
            match unsafe { self.file.read(at, to.wrapping_add(done), bytes - done) } {
                Ok(0) => return Err(self.truncated(operation, at)),
                Ok(some) => done += some,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(failed(operation, at, &cause)),
            }
        }
        Ok(())
    }

    /// Hints to the operating system to read a range of the file into its page cache; does not block.
    pub fn announce(&self, offset: u64, bytes: usize) {
        #[cfg(target_os = "linux")]
        announce(&self.file.0, offset, bytes);
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, bytes);
    }

    /// Writes `bytes` bytes at byte `offset` of the file.
    ///
    /// # Safety
    /// `from` is readable for `bytes` bytes; other threads may race as [`backend_api::racy`] describes.
    pub unsafe fn write(
        &self,
        operation: &'static str,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        // Check for a truncation first: a write beyond the end would replace the lost part by zeroes.
        let length = self.file.with(|file| Ok(file.metadata()?.len()));
        if length.map_err(|cause| failed(operation, offset, &cause))? < offset + bytes as u64 {
            return Err(self.truncated(operation, offset));
        }
        let mut done = 0;
        while done < bytes {
            let at = offset + done as u64;
            // SAFETY: `done` is below `bytes`.
            match unsafe { self.file.write(at, from.wrapping_add(done), bytes - done) } {
                Ok(0) => return Err(failed(operation, at, &io::ErrorKind::WriteZero.into())),
                Ok(some) => done += some,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(failed(operation, at, &cause)),
            }
        }
        Ok(())
    }

    /// Present length of the file in bytes; the original length if the system cannot report it.
    pub fn length(&self) -> u64 {
        self.file.with(|file| Ok(file.metadata()?.len())).unwrap_or(self.bytes)
    }

    /// Makes all later reads of the file fail, for tests.
    #[cfg(all(test, unix, not(miri)))]
    pub fn write_only(&mut self) {
        self.file = Positioned::new(OpenOptions::new().write(true).open(&self.path).unwrap());
    }

    #[cold]
    pub fn truncated(&self, operation: &'static str, offset: u64) -> Error {
        let length = self.file.with(|file| Ok(file.metadata()?.len())).unwrap_or(0);
        failure(operation)
            .with_offset(offset)
            .with_detail(format!(
                "the file was truncated from {} to {length} bytes by another program",
                self.bytes
            ))
            .with_advice(
                "let no other program change the file, and write it again: the removed data are lost",
            )
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.remove
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            let path = self.path.display();
            warn::warn(format!("the temporary file {path} cannot be removed: {error}; remove it"));
        }
    }
}

/// Hints to the operating system to read a range of the file into its page cache; does not block.
#[cfg(target_os = "linux")]
pub(crate) fn announce(file: &File, offset: u64, bytes: usize) {
    use std::os::fd::AsRawFd;
    if let (Ok(offset), Ok(bytes)) = (offset.try_into(), bytes.try_into()) {
        // SAFETY: the descriptor is open, and the call changes no memory. The read reports failures.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, bytes, libc::POSIX_FADV_WILLNEED) };
    }
}

/// Reserves blocks for the whole file; its contents stay unchanged.
#[cfg(target_os = "linux")]
fn reserve(file: &File, path: &Path, bytes: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    /// The unit of `st_blocks` on all file systems.
    const BLOCK_BYTES: u64 = 512;
    let length = libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    if length == 0 {
        return Ok(());
    }
    // Check the free space first, because the system would fill the disk before it reports an error.
    let missing = bytes.saturating_sub(file.metadata()?.blocks().saturating_mul(BLOCK_BYTES));
    if free_on_disk(path).is_some_and(|free| missing > free) {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    loop {
        // SAFETY: the descriptor is open; the call takes no memory.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => return Ok(()),
            libc::EINTR => {}
            // The file system does not support this call. If the disk becomes full, a later write reports it.
            libc::EOPNOTSUPP | libc::EINVAL => {
                tracing::warn!(bytes, "the file system does not reserve blocks");
                return Ok(());
            }
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// Does nothing on this system: a full disk is an error of a later copy.
#[cfg(not(target_os = "linux"))]
fn reserve(_file: &File, _path: &Path, _bytes: u64) -> io::Result<()> {
    Ok(())
}

/// Free bytes for this user on the disk that contains `path`.
#[cfg(unix)]
fn free_on_disk(path: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
    let mut answer = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero and there is room for the answer.
    if unsafe { libc::statvfs(folder.as_ptr(), answer.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it has filled in the answer.
    let answer = unsafe { answer.assume_init() };
    #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
    Some((answer.f_bavail as u64).saturating_mul(answer.f_frsize as u64))
}

#[cfg(not(unix))]
fn free_on_disk(_path: &Path) -> Option<u64> {
    None
}

/// Returns the error of a failed creation or sync.
fn refused(operation: &'static str, path: &Path, cause: &io::Error) -> Error {
    let (kind, also) = match cause.kind() {
        io::ErrorKind::AlreadyExists => (ErrorKind::AlreadyExists, ", and stays unchanged"),
        _ if is_full(cause) => (ErrorKind::OutOfMemory, ""),
        _ => (ErrorKind::System, ""),
    };
    let error = system(kind, operation, cause).with_detail(format!("{}: {cause}{also}", path.display()));
    match kind {
        ErrorKind::AlreadyExists => error,
        ErrorKind::OutOfMemory => error.with_advice("free space on the disk, or request less"),
        _ => error.with_advice(file_advice(operation, cause)),
    }
}

/// Adds the free space of the disk to an error of a full disk.
fn with_free(error: Error, path: &Path) -> Error {
    match free_on_disk(path) {
        Some(free) if error.kind() == ErrorKind::OutOfMemory => error.with_available_bytes(free),
        _ => error,
    }
}

/// Returns the error of a failed copy or kernel.
#[cold]
fn failed(operation: &'static str, offset: u64, cause: &io::Error) -> Error {
    let error = system(failure(operation).kind(), operation, cause).with_offset(offset);
    error.with_advice(file_advice(operation, cause))
}

/// A file for reads and writes at offsets by several threads, from and to memory that others may access.
#[cfg(unix)]
#[derive(Debug)]
struct Positioned(File);

#[cfg(unix)]
impl Positioned {
    fn new(file: File) -> Self {
        Self(file)
    }

    fn with<T>(&self, body: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        body(&self.0)
    }

    /// # Safety
    /// As [`OpenFile::read`].
    unsafe fn read(&self, offset: u64, to: *mut u8, bytes: usize) -> io::Result<usize> {
        use std::os::fd::AsRawFd;
        let offset = libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: the descriptor is open, and the caller guarantees the memory. In Rust's memory model,
        // accesses by the operating system count like accesses by a device.
        let count = unsafe { libc::pread(self.0.as_raw_fd(), to.cast(), bytes, offset) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// # Safety
    /// As [`OpenFile::write`].
    unsafe fn write(&self, offset: u64, from: *const u8, bytes: usize) -> io::Result<usize> {
        use std::os::fd::AsRawFd;
        let offset = libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: as in `read`.
        let count = unsafe { libc::pwrite(self.0.as_raw_fd(), from.cast(), bytes, offset) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

/// Version for other systems: one thread at a time, through an intermediate buffer.
#[cfg(not(unix))]
#[derive(Debug)]
struct Positioned(parking_lot::Mutex<(File, backend_host::parts::Passage<u8>)>);

#[cfg(not(unix))]
impl Positioned {
    const DETOUR_BYTES: usize = 256 << 10;

    fn new(file: File) -> Self {
        Self(parking_lot::Mutex::new((file, backend_host::parts::Passage(vec![0; Self::DETOUR_BYTES]))))
    }

    fn with<T>(&self, body: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        body(&self.0.lock().0)
    }

    /// # Safety
    /// As [`OpenFile::read`].
    unsafe fn read(&self, offset: u64, to: *mut u8, bytes: usize) -> io::Result<usize> {
        use io::{Read, Seek};
        let (file, backend_host::parts::Passage(detour)) = &mut *self.0.lock();
        file.seek(io::SeekFrom::Start(offset))?;
        let count = file.read(&mut detour[..bytes.min(Self::DETOUR_BYTES)])?;
        // SAFETY: the caller guarantees the target; `count` is at most `bytes`.
        unsafe { backend_api::racy::write(to, &detour[..count]) };
        Ok(count)
    }

    /// # Safety
    /// As [`OpenFile::write`].
    unsafe fn write(&self, offset: u64, from: *const u8, bytes: usize) -> io::Result<usize> {
        use io::{Seek, Write};
        let (file, backend_host::parts::Passage(detour)) = &mut *self.0.lock();
        let count = bytes.min(Self::DETOUR_BYTES);
        // SAFETY: the caller guarantees the source; the buffer is long enough.
        unsafe { backend_api::racy::copy(from, detour.as_mut_ptr(), count) };
        file.seek(io::SeekFrom::Start(offset))?;
        file.write(&detour[..count])
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_full_after_all_is_an_error_of_the_copy() {
        let full = Positioned::new(OpenOptions::new().write(true).open("/dev/full").unwrap());
        // SAFETY: the source is one byte long.
        let cause = unsafe { full.write(0, (&raw const *b"x").cast(), 1) }.unwrap_err();
        let error = failed("submit", 7, &cause);
        assert_eq!((error.kind(), error.offset()), (ErrorKind::CopyFailed, Some(7)));
        assert_eq!(error.driver().unwrap().name, "ENOSPC");
        assert!(error.to_string().ends_with("; free space on the disk, and try again"), "{error}");
        let faulty = failed("fill", 7, &io::Error::from_raw_os_error(libc::EIO));
        assert!(faulty.advice().contains("drive") && !faulty.to_string().contains("driver;"), "{faulty}");
        assert_eq!(failed("fill", 7, &cause).kind(), ErrorKind::KernelFailed);
    }
}
