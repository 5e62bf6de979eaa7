//! Files that benchmarks create: their temporary paths, and their removal from Linux's page cache.

use anyhow::Result;
use std::fs::File;
use std::path::{Path, PathBuf};
use vmarray::support::private_dir;

/// The path of a temporary file in the build folder, which is not on a RAM disk. The drop removes the file.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Result<Self> {
        let folder = Path::new("target/tmp");
        std::fs::create_dir_all(folder)?;
        Ok(Self(folder.join(private_dir::random_name())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Removes a file from the system's page cache, except for pages that are not written back yet. Returns false
/// if the system does not support this.
pub fn forget(file: &File) -> bool {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        // SAFETY: the descriptor is open, and the call changes no memory of the program.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        false
    }
}
