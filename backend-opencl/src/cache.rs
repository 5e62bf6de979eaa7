//! Built kernels on disk.
//!
//! A file holds everything that decides whether it fits (device, driver, source, build options) word for word, and a
//! checksum. Whatever does not match in full is ignored and replaced. Files appear by renaming, so that a reader
//! never sees half of one. Nothing that goes wrong here is an error: kernels are then built as if there were no
//! cache.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::options::KernelCache;

const MAGIC: &[u8; 8] = b"vmaclk1\n";

/// FNV-1a, 64 bits: stable between versions of the compiler, which the standard library's hashes are not.
fn hash(parts: &[&[u8]]) -> u64 {
    parts.iter().flat_map(|part| part.iter()).fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// One place on disk for one program on one device.
#[derive(Debug)]
pub(crate) struct Entry {
    path: PathBuf,
    key: String,
}

impl Entry {
    /// The place for what `key` describes; `None` if nothing is to be kept.
    pub fn new(cache: &KernelCache, key: String) -> Option<Self> {
        let folder = match cache {
            KernelCache::Off => return None,
            KernelCache::Folder(folder) => folder.clone(),
            KernelCache::User => user_folder()?,
        };
        let path = folder.join(format!("{:016x}.clbin", hash(&[key.as_bytes()])));
        Some(Self { path, key })
    }

    /// A number that stands for the place.
    pub fn number(&self) -> u64 {
        hash(&[self.path.as_os_str().as_encoded_bytes()])
    }

    /// The binary, if there is one that fits and is whole.
    pub fn load(&self) -> Option<Vec<u8>> {
        let file = fs::read(&self.path).ok()?;
        let rest = file.strip_prefix(MAGIC)?;
        let (sum, rest) = rest.split_first_chunk::<8>()?;
        if hash(&[rest]) != u64::from_le_bytes(*sum) {
            tracing::debug!(path = %self.path.display(), "a damaged kernel cache file");
            return None;
        }
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let (key, binary) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        (key == self.key.as_bytes()).then(|| binary.to_vec())
    }

    /// Keeps a binary.
    pub fn store(&self, binary: &[u8]) {
        if let Err(error) = self.try_store(binary) {
            tracing::debug!(%error, path = %self.path.display(), "kernels could not be kept");
        }
    }

    fn try_store(&self, binary: &[u8]) -> std::io::Result<()> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let scratch = folder.join(format!(".{}-{number}.tmp", std::process::id()));
        let length = (self.key.len() as u64).to_le_bytes();
        let sum = hash(&[&length, self.key.as_bytes(), binary]).to_le_bytes();
        let write = || {
            let mut file = fs::File::create(&scratch)?;
            for part in [MAGIC.as_slice(), &sum, &length, self.key.as_bytes(), binary] {
                file.write_all(part)?;
            }
            drop(file);
            fs::rename(&scratch, &self.path)
        };
        let result = write();
        if result.is_err() {
            // It may not even exist.
            drop(fs::remove_file(&scratch));
        }
        result
    }

    /// Forgets a binary that the driver did not like.
    pub fn forget(&self) {
        drop(fs::remove_file(&self.path));
    }
}

fn user_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The standard says that a relative path is to be ignored.
    let base = variable("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("vmarray").join("opencl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("vmarray-cache-{}-{name}", std::process::id()));
        drop(fs::remove_dir_all(&folder));
        folder
    }

    fn entry(folder: &Path, key: &str) -> Entry {
        Entry::new(&KernelCache::Folder(folder.to_owned()), key.to_owned()).unwrap()
    }

    #[test]
    fn what_was_kept_comes_back_for_the_same_key_alone() {
        let folder = folder("same");
        let one = entry(&folder, "one");
        assert_eq!(one.load(), None);
        one.store(b"binary");
        assert_eq!(one.load().unwrap(), b"binary");
        assert_eq!(entry(&folder, "two").load(), None);
        // Another key at the same place, as if two keys had one hash.
        let stranger = Entry { path: one.path.clone(), key: "two".into() };
        assert_eq!(stranger.load(), None);
        one.forget();
        assert_eq!(one.load(), None);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_damaged_file_is_ignored_wherever_the_damage_is() {
        let folder = folder("damaged");
        let one = entry(&folder, "key");
        one.store(b"binary");
        let whole = fs::read(&one.path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&one.path, &damaged).unwrap();
            assert_eq!(one.load(), None, "byte {at}");
            fs::write(&one.path, &whole[..at]).unwrap();
            assert_eq!(one.load(), None, "cut at {at}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_whole_files_are_left_behind() {
        let folder = folder("rename");
        entry(&folder, "key").store(b"binary");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn off_keeps_nothing() {
        assert!(Entry::new(&KernelCache::Off, "key".into()).is_none());
    }
}
