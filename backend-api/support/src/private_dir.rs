//! Private folders and files, which only their owner can write to.
//!
//! A program trusts stored data, such as compiled kernels, when it reads the data in a later run. The data is
//! therefore in a folder in which no other user can create files, and the program accepts only files that its
//! own user wrote.

use std::collections::hash_map::RandomState;
use std::fs::{DirBuilder, File};
use std::hash::BuildHasher;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Returns an unpredictable and unique name for a file.
#[must_use]
pub fn random_name() -> String {
    // The standard library seeds each `RandomState` with random bytes of the operating system.
    let random = || RandomState::new().hash_one(0);
    format!(".vmarray-{:016x}{:016x}", random(), random())
}

/// Writes the entries of the folder that contains `path` to the disk, on systems that can sync folders.
/// Returns when they are durable.
///
/// # Errors
/// The system's error.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    sync_folder(folder.unwrap_or(Path::new(".")))
}

/// Writes a folder's entries to the disk, on systems that can sync folders. Returns when they are durable.
///
/// # Errors
/// The system's error.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    #[cfg(unix)]
    match File::open(folder)?.sync_all() {
        // Ignore this error, because some file systems cannot sync folders.
        Err(cause) if matches!(cause.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {}
        other => return other,
    }
    let _ = folder;
    Ok(())
}

/// Returns the path of a folder for files that this user's programs need only while they run: `name` in
/// `$XDG_RUNTIME_DIR`, else a folder of this user in the system's folder for temporary files. The folder need
/// not exist.
#[must_use]
pub fn runtime_path(name: &str) -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        // The XDG standard requires programs to ignore a relative path.
        Some(base) if base.is_absolute() => base.join(name),
        _ => std::env::temp_dir().join(format!("{name}-{}", user())),
    }
}

/// Returns the number of the process's user; 0 on systems without numbers of users.
fn user() -> u32 {
    #[cfg(unix)]
    // SAFETY: the call has no preconditions.
    return unsafe { libc::geteuid() };
    #[cfg(not(unix))]
    0
}

/// An open folder that only its owner can write to.
///
/// On Unix, the process's effective user must own the folder and its files, and no other user may have write
/// access. The folder must not be a link, and files must be regular. Accesses go through the open folder, so
/// a user with write access to a parent folder cannot replace the folder. On other systems this type checks
/// only the kinds of files; the permissions of the parent folder control write access.
///
/// Any number of threads and processes can use one folder at the same time: a new file appears by a rename.
///
/// ```
/// use vmarray_support::private_dir::{PrivateDir, random_name};
/// let path = std::env::temp_dir().join(random_name());
/// let folder = PrivateDir::create(&path)?;
/// folder.write("greeting", &[b"hel", b"lo"])?;
/// folder.write("greeting", &[b"hello there"])?;
/// assert!(folder.read("greeting", 5).is_err(), "it is longer");
/// assert_eq!(PrivateDir::open(folder.path())?.read("greeting", 100)?, b"hello there");
/// folder.remove("greeting")?;
/// assert_eq!(folder.read("greeting", 100).unwrap_err().kind(), std::io::ErrorKind::NotFound);
/// # std::fs::remove_dir(path)?;
/// # Ok::<_, std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct PrivateDir {
    place: os::DirPlace,
    path: PathBuf,
}

impl PrivateDir {
    /// Opens a folder. If the folder or a parent does not exist, creates it, with access only for this user
    /// (mode 0700 on Unix).
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), and the system's error if the folder cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path)?;
        Self::open(path)
    }

    /// Opens an existing folder.
    ///
    /// # Errors
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied), with a reason and advice, if other users can
    /// write to the folder; otherwise the system's error.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Remove a slash at the path's end: with a final slash, the system would follow a link.
        let path: PathBuf = path.components().collect();
        Ok(Self { place: os::DirPlace::open(&path)?, path })
    }

    /// The path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file `name`, of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound); [`PermissionDenied`](io::ErrorKind::PermissionDenied) if the
    /// file is a link or not a regular file, or if other users can write to it;
    /// [`FileTooLarge`](io::ErrorKind::FileTooLarge) for more than `bytes_max` bytes; otherwise the system's
    /// error.
    pub fn read(&self, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
        let file = self.place.open_file(name)?;
        let metadata = file.metadata()?;
        check(&metadata, metadata.is_file(), || self.path.join(name))?;
        let mut bytes = Vec::new();
        file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            let text =
                format!("{} has more than {bytes_max} bytes; remove it", self.path.join(name).display());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        Ok(bytes)
    }

    /// Writes the concatenation of `parts` to the file `name`, with access only for this user (mode 0600 on
    /// Unix). The file replaces an old file of this name atomically: a reader sees either the old or the new
    /// file. If the name is a link, the file replaces the link, not its target.
    ///
    /// # Errors
    /// The system's error. The old file then stays as it was.
    pub fn write(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let scratch = random_name();
        let mut file = self.place.create_file(&scratch)?;
        let written = parts.iter().try_for_each(|part| file.write_all(part));
        drop(file);
        let result = written.and_then(|()| self.place.rename(&scratch, name));
        if result.is_err() {
            // Ignore the error of the removal, and return the first error.
            let _ = self.place.remove(&scratch);
        }
        result
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.place.remove(name)
    }
}

fn refused(path: &Path, reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {reason}", path.display()))
}

/// Refuses a file or folder of the wrong type, or one that other users can write to.
fn check(metadata: &std::fs::Metadata, fits: bool, path: impl Fn() -> PathBuf) -> io::Result<()> {
    if !fits {
        return Err(refused(&path(), "is not a regular file; remove it"));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let user = user();
        let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
        if owner != user {
            let reason = format!(
                "belongs to user {owner}, but this program runs as user {user}; remove it, or name a folder \
                 of this user"
            );
            return Err(refused(&path(), &reason));
        }
        if mode & 0o022 != 0 {
            let reason = format!(
                "can be written to by other users (mode {mode:04o}), so another user may have written to it; \
                 remove it, or check its contents and run `chmod go-w` on it"
            );
            return Err(refused(&path(), &reason));
        }
    }
    #[cfg(not(unix))]
    let _ = metadata;
    Ok(())
}

/// An open folder on Unix: accesses to its files go through the descriptor, independent of the folder's path.
#[cfg(unix)]
mod os {
    use std::ffi::{CString, c_int};
    use std::fs::OpenOptions;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::fs::OpenOptionsExt;

    use super::{File, Path, check, io, refused};

    #[derive(Debug)]
    pub(super) struct DirPlace(File);

    fn answer(code: c_int) -> io::Result<c_int> {
        if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code) }
    }

    impl DirPlace {
        pub fn open(path: &Path) -> io::Result<Self> {
            let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
            let folder = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| {
                // Systems return different error codes if the path is a link.
                let is_other =
                    matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR | libc::EMLINK));
                if is_other {
                    refused(path, "is not a folder, or is a link to a folder; name the folder itself")
                } else {
                    error
                }
            })?;
            let metadata = folder.metadata()?;
            check(&metadata, metadata.is_dir(), || path.to_owned())?;
            Ok(Self(folder))
        }

        fn open_at(&self, name: &str, flags: c_int) -> io::Result<File> {
            let name = CString::new(name)?;
            let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC;
            const MODE: libc::c_uint = 0o600;
            // SAFETY: the descriptor is open, and the name ends with a zero. No other value owns the new
            // descriptor.
            unsafe {
                let file = answer(libc::openat(self.0.as_raw_fd(), name.as_ptr(), flags, MODE))?;
                Ok(File::from_raw_fd(file))
            }
        }

        /// Opens a file for reading, in non-blocking mode because opening a named pipe could block forever.
        pub fn open_file(&self, name: &str) -> io::Result<File> {
            self.open_at(name, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY).map_err(|error| {
                let is_link = matches!(error.raw_os_error(), Some(libc::ELOOP | libc::EMLINK));
                if is_link { refused(Path::new(name), "is a link; remove it") } else { error }
            })
        }

        pub fn create_file(&self, name: &str) -> io::Result<File> {
            self.open_at(name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)
        }

        pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            let (from, to, folder) = (CString::new(from)?, CString::new(to)?, self.0.as_raw_fd());
            // SAFETY: the descriptor is open, and the names end with a zero.
            answer(unsafe { libc::renameat(folder, from.as_ptr(), folder, to.as_ptr()) }).map(drop)
        }

        pub fn remove(&self, name: &str) -> io::Result<()> {
            let name = CString::new(name)?;
            // SAFETY: the descriptor is open, and the name ends with a zero.
            answer(unsafe { libc::unlinkat(self.0.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
        }
    }
}

/// A folder by its path, for other systems.
#[cfg(not(unix))]
mod os {
    use std::fs;
    use std::path::PathBuf;

    use super::{File, Path, io, refused};

    #[derive(Debug)]
    pub(super) struct DirPlace(PathBuf);

    impl DirPlace {
        pub fn open(path: &Path) -> io::Result<Self> {
            if !fs::symlink_metadata(path)?.is_dir() {
                return Err(refused(
                    path,
                    "is not a folder, or is a link to a folder; name the folder itself",
                ));
            }
            Ok(Self(path.to_owned()))
        }

        pub fn open_file(&self, name: &str) -> io::Result<File> {
            let path = self.0.join(name);
            if !fs::symlink_metadata(&path)?.is_file() {
                return Err(refused(&path, "is not a regular file; remove it"));
            }
            File::open(path)
        }

        pub fn create_file(&self, name: &str) -> io::Result<File> {
            File::create_new(self.0.join(name))
        }

        pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            fs::rename(self.0.join(from), self.0.join(to))
        }

        pub fn remove(&self, name: &str) -> io::Result<()> {
            fs::remove_file(self.0.join(name))
        }
    }
}

// Miri does not support the system calls of these tests.
#[cfg(all(test, unix, not(miri)))]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    use std::process::Command;

    use super::*;

    const DENIED: io::ErrorKind = io::ErrorKind::PermissionDenied;

    /// A folder for one test, removed on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            let path = std::env::temp_dir().join(random_name());
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn set_mode(&self, name: &str, mode: u32) {
            fs::set_permissions(self.0.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }

        fn names(&self, folder: &str) -> Vec<String> {
            let entries = fs::read_dir(self.0.join(folder)).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn scratch_and_folder() -> (Scratch, PrivateDir) {
        let scratch = Scratch::new();
        let folder = PrivateDir::create(&scratch.0.join("folder")).unwrap();
        (scratch, folder)
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn created_files_are_private_to_the_user() {
        let scratch = Scratch::new();
        let path = scratch.0.join("above/folder");
        let folder = PrivateDir::create(&path).unwrap();
        folder.write("file", &[b"a", b"", b"bc"]).unwrap();
        assert_eq!(folder.read("file", 3).unwrap(), b"abc");
        assert_eq!([&scratch.0.join("above"), &path].map(|path| mode(path)), [0o700; 2]);
        assert_eq!(mode(&path.join("file")), 0o600);
        assert_eq!(scratch.names("above/folder"), ["file"], "no scratch file stays");
        assert_eq!(PrivateDir::create(&path).unwrap().read("file", 3).unwrap(), b"abc");
    }

    #[test]
    fn folders_that_others_can_write_to_are_refused() {
        let (scratch, _) = scratch_and_folder();
        for bad in [0o777, 0o770, 0o702, 0o1777] {
            scratch.set_mode("folder", bad);
            for open in [PrivateDir::open, PrivateDir::create] {
                let error = open(&scratch.0.join("folder")).unwrap_err();
                assert_eq!(error.kind(), DENIED, "{bad:o}");
                assert!(error.to_string().contains(&format!("mode {bad:04o}")), "{error}");
            }
        }
        scratch.set_mode("folder", 0o755);
        PrivateDir::open(&scratch.0.join("folder")).unwrap();
    }

    #[test]
    fn a_link_and_a_file_are_no_folders() {
        let (scratch, _) = scratch_and_folder();
        symlink(scratch.0.join("folder"), scratch.0.join("link")).unwrap();
        fs::write(scratch.0.join("file"), b"").unwrap();
        for name in ["link", "link/", "file"] {
            let error = PrivateDir::open(&scratch.0.join(name)).unwrap_err();
            assert_eq!(error.kind(), DENIED, "{name}: {error}");
        }
        // The user is responsible for links in the path above the folder, so this link is allowed.
        PrivateDir::create(&scratch.0.join("link/below")).unwrap();
        assert_eq!(PrivateDir::open(&scratch.0.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn files_of_other_users_are_refused() {
        // SAFETY: the call has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let (scratch, folder) = scratch_and_folder();
        let path = scratch.0.join("folder");
        folder.write("file", &[b"abc"]).unwrap();
        chown(path.join("file"), Some(12_345), None).unwrap();
        let error = folder.read("file", 3).unwrap_err();
        assert_eq!(error.kind(), DENIED);
        assert!(error.to_string().contains("belongs to user 12345"), "{error}");
        chown(&path, Some(12_345), None).unwrap();
        assert_eq!(PrivateDir::open(&path).unwrap_err().kind(), DENIED);
    }

    #[test]
    fn only_short_regular_files_writable_by_the_user_alone_are_read() {
        let (scratch, folder) = scratch_and_folder();
        fs::write(scratch.0.join("victim"), b"abc").unwrap();
        symlink(scratch.0.join("victim"), scratch.0.join("folder/link")).unwrap();
        assert!(Command::new("mkfifo").arg(scratch.0.join("folder/pipe")).status().unwrap().success());
        fs::create_dir(scratch.0.join("folder/below")).unwrap();
        folder.write("writable", &[b"abc"]).unwrap();
        scratch.set_mode("folder/writable", 0o620);
        for name in ["link", "pipe", "below", "writable"] {
            let error = folder.read(name, 100).unwrap_err();
            assert_eq!(error.kind(), DENIED, "{name}: {error}");
        }
        folder.write("long", &[&[1; 1000]]).unwrap();
        assert_eq!(folder.read("long", 1000).unwrap(), [1; 1000]);
        assert_eq!(folder.read("long", 999).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(folder.read("long", u64::MAX).unwrap(), [1; 1000]);
    }

    #[test]
    fn a_link_at_the_name_is_replaced_and_its_target_left_alone() {
        let (scratch, folder) = scratch_and_folder();
        fs::write(scratch.0.join("victim"), b"precious").unwrap();
        for name in ["victim", "dangling"] {
            symlink(scratch.0.join(name), scratch.0.join("folder/file")).unwrap();
            // The creation of a scratch file never replaces an existing file.
            assert_eq!(folder.place.create_file("file").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            folder.write("file", &[b"new"]).unwrap();
            assert_eq!(folder.read("file", 3).unwrap(), b"new");
            folder.remove("file").unwrap();
        }
        assert_eq!(fs::read(scratch.0.join("victim")).unwrap(), b"precious");
        assert!(!scratch.0.join("dangling").exists());
    }

    #[test]
    fn another_folder_in_its_place_is_not_taken_for_it() {
        let (scratch, folder) = scratch_and_folder();
        fs::rename(scratch.0.join("folder"), scratch.0.join("moved")).unwrap();
        fs::create_dir(scratch.0.join("folder")).unwrap();
        fs::write(scratch.0.join("folder/file"), b"foreign").unwrap();
        assert_eq!(folder.read("file", 100).unwrap_err().kind(), io::ErrorKind::NotFound);
        folder.write("file", &[b"own"]).unwrap();
        assert_eq!(fs::read(scratch.0.join("folder/file")).unwrap(), b"foreign");
        assert_eq!(fs::read(scratch.0.join("moved/file")).unwrap(), b"own");
    }

    #[test]
    fn a_write_that_fails_leaves_nothing_behind() {
        let (scratch, folder) = scratch_and_folder();
        fs::create_dir(scratch.0.join("folder/below")).unwrap();
        folder.write("below", &[b"a file is no folder"]).unwrap_err();
        assert_eq!(scratch.names("folder"), ["below"]);
    }
}
