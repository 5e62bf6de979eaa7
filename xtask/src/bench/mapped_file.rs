//! A peer of the array: a memory-mapped file that is not in RAM yet.

use super::elements::Payload;
use anyhow::{Context, Result};
use memmap2::{MmapMut, MmapOptions};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use vmarray::support::private_dir;

/// Elements in a memory-mapped temporary file. Reads access the map as a slice, and writes go to the page
/// cache.
pub struct MappedFile<T> {
    file: File,
    map: Option<MmapMut>,
    len: usize,
    marker: PhantomData<T>,
}

impl<T: Payload> MappedFile<T> {
    /// Creates a file of about `bytes` bytes in the system's folder for temporary files, and unlinks it at
    /// once.
    pub fn new(bytes: usize) -> Result<Self> {
        let len = bytes / size_of::<T>();
        let path = std::env::temp_dir().join(format!("vmarray-bench-{}", std::process::id()));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        std::fs::remove_file(&path)?;
        let mut writer = BufWriter::with_capacity(1 << 20, &file);
        for index in 0..len {
            writer.write_all(bytemuck::bytes_of(&T::of(index)))?;
        }
        writer.flush()?;
        drop(writer);
        let mut file = Self { file, map: None, len, marker: PhantomData };
        file.forget()?;
        Ok(file)
    }

    /// Writes back all changes, and removes the file from the system's page cache. A system may still keep
    /// the file in RAM, for example if its temporary files are in RAM.
    pub fn forget(&mut self) -> Result<()> {
        self.map = None;
        self.file.sync_all()?;
        forget(&self.file);
        // SAFETY: the file has no name, so no other process changes or truncates it.
        self.map = Some(unsafe { MmapOptions::new().len(self.len * size_of::<T>()).map_mut(&self.file)? });
        Ok(())
    }

    /// The elements.
    pub fn slice(&self) -> &[T] {
        self.map.as_deref().map_or(&[], |bytes| bytemuck::cast_slice(bytes))
    }
}

/// A path in the build folder, whose disk is not in RAM; removed on drop.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::elements::Record;

    #[test]
    fn elements_are_in_the_file() {
        let mut file = MappedFile::<Record>::new(100_000).unwrap();
        assert_eq!(file.slice().len(), 100_000 / 44);
        file.forget().unwrap();
        assert!(file.slice().iter().enumerate().all(|(index, record)| record.belongs_to(index)));
    }
}
