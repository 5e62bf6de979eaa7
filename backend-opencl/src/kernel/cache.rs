//! On-disk cache of built OpenCL kernels.
//!
//! A driver runs any binary that it receives as a built kernel. So the cache uses a folder only if no other
//! user can write to it (see [`PrivateDir`]). A file has a checksum, and contains word for word everything
//! that must match: device, driver, source and build options. A file that does not match in full is ignored
//! and replaced. If the driver rejects a binary, the device builds the kernel again. No error here prevents
//! opening a device: the device then builds its kernels as without a cache.

use std::io;
use std::path::PathBuf;

use vmarray_support::private_dir::PrivateDir;

use crate::options::KernelCache;

/// Maximum length of a file in bytes, more than any driver's binary: PoCL's have 1 MB.
const BYTES_MAX: u64 = 64 << 20;
const MAGIC: &[u8; 8] = b"vmaclk1\n";

/// FNV-1a, 64 bits: equal for all versions of the compiler, unlike the standard library's hashes.
fn hash(parts: &[&[u8]]) -> u64 {
    parts.iter().flat_map(|part| part.iter()).fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The cache file of one OpenCL program for one device.
#[derive(Debug)]
pub(crate) struct CacheFile {
    folder: PrivateDir,
    name: String,
    key: String,
}

impl CacheFile {
    /// Returns the cache file of the built kernels for `key`; `None` if caching is off.
    ///
    /// # Errors
    /// The folder cannot be created, or other users can write to it.
    pub fn new(cache: &KernelCache, key: String) -> io::Result<Option<Self>> {
        let path = match cache {
            KernelCache::Off => None,
            KernelCache::Folder(folder) => Some(folder.clone()),
            KernelCache::User => user_folder(),
        };
        let Some(path) = path else { return Ok(None) };
        let name = format!("{:016x}.clbin", hash(&[key.as_bytes()]));
        Ok(Some(Self { folder: PrivateDir::create(&path)?, name, key }))
    }

    /// A number that identifies the cached file: a hash of its path.
    pub fn number(&self) -> u64 {
        hash(&[self.folder.path().as_os_str().as_encoded_bytes(), b"/", self.name.as_bytes()])
    }

    /// Returns the cached binary; `None` if the file does not exist, does not match the key, or is damaged.
    ///
    /// # Errors
    /// The file does not belong to this user, or cannot be read.
    pub fn load(&self) -> io::Result<Option<Vec<u8>>> {
        match self.folder.read(&self.name, BYTES_MAX) {
            Ok(file) => Ok(self.binary(&file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn binary(&self, file: &[u8]) -> Option<Vec<u8>> {
        let rest = file.strip_prefix(MAGIC)?;
        let (sum, rest) = rest.split_first_chunk::<8>()?;
        if hash(&[rest]) != u64::from_le_bytes(*sum) {
            tracing::debug!(name = self.name, "a file of the kernel cache is damaged");
            return None;
        }
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let (key, binary) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        (key == self.key.as_bytes()).then(|| binary.to_vec())
    }

    /// Stores a binary in the cache, and replaces an older file.
    ///
    /// # Errors
    /// The system's error.
    pub fn store(&self, binary: &[u8]) -> io::Result<()> {
        let length = (self.key.len() as u64).to_le_bytes();
        let sum = hash(&[&length, self.key.as_bytes(), binary]).to_le_bytes();
        self.folder.write(&self.name, &[MAGIC.as_slice(), &sum, &length, self.key.as_bytes(), binary])
    }
}

/// Fuzz target: reads a cache file with arbitrary contents.
#[cfg(fuzzing)]
pub fn fuzz_cached_kernel(bytes: &[u8]) {
    use std::sync::LazyLock;
    static ENTRY: LazyLock<Option<CacheFile>> = LazyLock::new(|| {
        let folder = std::env::temp_dir().join(vmarray_support::private_dir::random_name());
        CacheFile::new(&KernelCache::Folder(folder), "key".into()).ok().flatten()
    });
    let Some(entry) = &*ENTRY else { return };
    let checked = [MAGIC, &hash(&[bytes]).to_le_bytes(), bytes].concat();
    let _ = (entry.binary(bytes), entry.binary(&checked));
}

fn user_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG standard requires programs to ignore a relative path.
    let base = variable("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("vmarray").join("opencl"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use vmarray_support::private_dir::random_name;

    use super::*;

    fn folder() -> PathBuf {
        std::env::temp_dir().join(random_name())
    }

    fn entry(folder: &Path, key: &str) -> CacheFile {
        CacheFile::new(&KernelCache::Folder(folder.to_owned()), key.to_owned()).unwrap().unwrap()
    }

    #[test]
    fn stored_entries_load_for_the_same_key_only() {
        let folder = folder();
        let one = entry(&folder, "one");
        assert_eq!(one.load().unwrap(), None);
        one.store(b"binary").unwrap();
        assert_eq!(one.load().unwrap().unwrap(), b"binary");
        assert_eq!(entry(&folder, "two").load().unwrap(), None);
        // Another key in the same file, as if two keys had one hash.
        let stranger = CacheFile { key: "two".into(), ..one };
        assert_eq!(stranger.load().unwrap(), None);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "whole files only");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_damaged_file_is_ignored_wherever_the_damage_is() {
        let folder = folder();
        let one = entry(&folder, "key");
        one.store(b"binary").unwrap();
        let path = folder.join(&one.name);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(one.load().unwrap(), None, "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(one.load().unwrap(), None, "cut at {at}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn off_keeps_nothing() {
        assert!(CacheFile::new(&KernelCache::Off, "key".into()).unwrap().is_none());
    }

    #[test]
    #[cfg(unix)]
    fn a_file_that_is_not_ours_is_not_read_and_gets_replaced() {
        let (folder, victim) = (folder(), folder());
        let one = entry(&folder, "key");
        one.store(b"binary").unwrap();
        let path = folder.join(&one.name);
        fs::rename(&path, &victim).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert_eq!(one.load().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let before = fs::read(&victim).unwrap();
        one.store(b"other").unwrap();
        assert_eq!(one.load().unwrap().unwrap(), b"other");
        assert_eq!(fs::read(&victim).unwrap(), before);
        fs::remove_dir_all(folder).unwrap();
        fs::remove_file(victim).unwrap();
    }

    #[test]
    fn a_file_without_end_is_not_read() {
        let folder = folder();
        let one = entry(&folder, "key");
        fs::File::create(folder.join(&one.name)).unwrap().set_len(BYTES_MAX + 1).unwrap();
        assert_eq!(one.load().unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        fs::remove_dir_all(folder).unwrap();
    }
}
