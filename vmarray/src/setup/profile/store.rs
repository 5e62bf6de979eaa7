//! Measured profiles on disk, one in each file, in a folder that only the user can write (see
//! [`PrivateDir`]).
//!
//! A file begins with its complete key. The library ignores and replaces a file with another key or with
//! invalid contents. If it cannot read or write a file, it returns no error but measures the device again.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backend_api::{DeviceInfo, Route};
use vmarray_support::private_dir::PrivateDir;

use super::{Profile, classes};

/// The environment variable with the folder of profiles, or `off`.
const VARIABLE: &str = "VMARRAY_PROFILES";
/// The first line of a file. Its number changes with the format, or with the method of measurement.
const TITLE: &str = "vmarray profile 2";
/// The last line of a file.
const END: &str = "end";

/// Maximum bytes of a file that the library reads.
const BYTES_MAX: u64 = 64 << 10;

/// The folder for profiles of one device.
pub(super) struct Kept<'a> {
    info: &'a DeviceInfo,
    folder: PrivateDir,
}

/// Opens or creates the folder for a device's profile; `None` if the environment switches it off.
pub(super) fn open(info: &DeviceInfo) -> Option<Kept<'_>> {
    open_at(&folder_for(info)?, info)
}

fn open_at<'a>(folder: &Path, info: &'a DeviceInfo) -> Option<Kept<'a>> {
    match PrivateDir::create(folder) {
        Ok(folder) => Some(Kept { info, folder }),
        Err(error) => {
            crate::base::trace::not_kept("the profile", info, &error);
            None
        }
    }
}

impl Kept<'_> {
    /// Returns the stored profile with this key, or `None`. Logs an error if the file cannot be read.
    pub fn load(&self, key: &str) -> Option<Profile> {
        read(&self.folder, key).unwrap_or_else(|error| {
            crate::base::trace::not_kept("the profile", self.info, &error);
            None
        })
    }

    /// Stores a profile under a key. Logs an error if the file cannot be written.
    pub fn keep(&self, key: &str, profile: &Profile) {
        if let Err(error) = write(&self.folder, key, profile) {
            crate::base::trace::not_kept("the profile", self.info, &error);
        }
    }

    /// Deletes the profile with this key.
    pub fn delete(&self, key: &str) {
        // Ignore the error, because the file may not exist.
        let _ = self.folder.remove(&file(key));
    }
}

/// Returns the folder of profiles; `None` for devices that are no GPUs, because their identity has no meaning
/// in a later process.
fn folder_for(info: &DeviceInfo) -> Option<PathBuf> {
    if info.kind.is_gpu() { folder(|name| std::env::var_os(name).map(PathBuf::from)) } else { None }
}

fn folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let variable = |name| variable(name).filter(|path| !path.as_os_str().is_empty());
    match variable(VARIABLE) {
        Some(word) if word.as_os_str() == "off" => None,
        Some(folder) => Some(folder),
        None => {
            // The XDG standard requires that relative paths are ignored.
            let base = variable("XDG_CACHE_HOME")
                .filter(|path| path.is_absolute())
                .or_else(|| Some(variable("HOME")?.join(".cache")))?;
            Some(base.join("vmarray").join("profiles"))
        }
    }
}

/// The 64-bit FNV-1a hash, because the hashes of the standard library may differ between compiler versions.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn file(key: &str) -> String {
    format!("{:016x}.profile", hash(key))
}

/// Parses arbitrary bytes as a profile file.
#[cfg(fuzzing)]
pub fn fuzz_profile(bytes: &[u8]) {
    // Also parse the bytes after valid first lines, because random bytes rarely contain them.
    let _ = std::str::from_utf8(bytes).map(|text| {
        let _ = (parse(text, "key"), parse(&format!("{TITLE}\nkey\n{text}"), "key"));
    });
}

fn read(folder: &PrivateDir, key: &str) -> io::Result<Option<Profile>> {
    match folder.read(&file(key), BYTES_MAX) {
        Ok(bytes) => Ok(std::str::from_utf8(&bytes).ok().and_then(|text| parse(text, key))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(folder: &PrivateDir, key: &str, profile: &Profile) -> io::Result<()> {
    folder.write(&file(key), &[print(key, profile).as_bytes()])
}

fn print(key: &str, profile: &Profile) -> String {
    let Profile { read, write, both, page_bytes, call, device_memory, search, host_memory, routing } =
        profile;
    let call = call.as_nanos();
    let uploads = print_table(|pieces, bytes| routing.upload(pieces, pieces as u64 * bytes));
    let downloads = print_table(|pieces, bytes| routing.download(pieces, pieces as u64 * bytes));
    format!(
        "{TITLE}\n{key}\nread {read}\nwrite {write}\nboth {both}\npage_bytes {page_bytes}\ncall {call}\n\
         device_memory {device_memory}\nsearch {search}\nhost_memory {host_memory}\nuploads {uploads}\ndownloads {downloads}\n{END}\n"
    )
}

fn parse(text: &str, key: &str) -> Option<Profile> {
    let mut lines = text.lines();
    if lines.next()? != TITLE || lines.next()? != key {
        return None;
    }
    let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let mut number = |name| value(name)?.parse::<u64>().ok();
    let (read, write, both) = (number("read")?, number("write")?, number("both")?);
    let page_bytes = usize::try_from(number("page_bytes")?).ok().filter(|bytes| bytes.is_power_of_two())?;
    let mut profile = Profile::new(read, write, both, page_bytes);
    profile.call = Duration::from_nanos(number("call")?);
    (profile.device_memory, profile.search) = (number("device_memory")?, number("search")?);
    profile.host_memory = number("host_memory")?;
    let routing = &mut profile.routing;
    parse_table(value("uploads")?, |pieces, bytes, route| routing.set_upload(pieces, bytes, route))?;
    parse_table(value("downloads")?, |pieces, bytes, route| routing.set_download(pieces, bytes, route))?;
    (lines.next()? == END).then_some(profile)
}

const LETTERS: [(char, Option<Route>); 4] =
    [('-', None), ('s', Some(Route::Single)), ('b', Some(Route::Batch)), ('k', Some(Route::Kernel))];

fn print_table(route: impl Fn(usize, u64) -> Option<Route>) -> String {
    let letter = |route| LETTERS.iter().find(|(_, named)| *named == route).map_or('-', |(letter, _)| *letter);
    classes().map(|(pieces, bytes)| letter(route(pieces, bytes))).collect()
}

fn parse_table(letters: &str, mut set: impl FnMut(usize, u64, Option<Route>)) -> Option<()> {
    if letters.chars().count() != classes().count() {
        return None;
    }
    for ((pieces, bytes), letter) in classes().zip(letters.chars()) {
        let (_, route) = LETTERS.iter().find(|(named, _)| *named == letter)?;
        set(pieces, bytes, *route);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use backend_api::DeviceKind;
    use vmarray_support::private_dir;

    use super::*;

    fn profile() -> Profile {
        let mut profile = Profile::new(50_000_000_000, 49, 80_000_000_000, 65_536);
        profile.call = Duration::from_nanos(5_500);
        (profile.device_memory, profile.search) = (4_000_000_000_000, 3_000_000_000_000);
        profile.host_memory = 12_000_000_000;
        profile.routing.set_upload(2, 4096, Some(Route::Single));
        profile.routing.set_upload(512, 1 << 20, Some(Route::Batch));
        profile.routing.set_download(16, 64 << 10, Some(Route::Kernel));
        profile
    }

    fn scratch() -> PrivateDir {
        PrivateDir::create(&std::env::temp_dir().join(private_dir::random_name())).unwrap()
    }

    #[test]
    fn stored_entries_load_for_the_same_key_only() {
        let folder = scratch();
        assert_eq!(read(&folder, "one").unwrap(), None);
        write(&folder, "one", &profile()).unwrap();
        write(&folder, "two", &Profile::new(1, 2, 3, 4096)).unwrap();
        assert_eq!(read(&folder, "one").unwrap(), Some(profile()));
        assert_eq!(read(&folder, "two").unwrap(), Some(Profile::new(1, 2, 3, 4096)));
        assert_eq!(read(&folder, "three").unwrap(), None);
        // Another key is in the same file, like two keys with one hash.
        let path = folder.path();
        fs::rename(path.join(file("one")), path.join(file("three"))).unwrap();
        assert_eq!(read(&folder, "three").unwrap(), None);
        assert_eq!(fs::read_dir(path).unwrap().count(), 2, "whole files only");
        fs::write(path.join(file("two")), [0xFF; 100]).unwrap();
        assert_eq!(read(&folder, "two").unwrap(), None);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn a_folder_that_others_can_write_to_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let (folder, info) = (scratch(), DeviceInfo::new("cuda", "", DeviceKind::DiscreteGpu, "pci:1"));
        let path = folder.path();
        open_at(path, &info).unwrap().keep("one", &profile());
        assert_eq!(open_at(path, &info).unwrap().load("one"), Some(profile()));
        fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(open_at(path, &info).is_none());
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn cut_and_damaged_entries_are_ignored() {
        let text = print("key", &profile());
        assert_eq!(parse(&text, "key"), Some(profile()));
        for end in 0..text.len() - 1 {
            assert_eq!(parse(&text[..end], "key"), None, "cut at {end}");
        }
        for (old, new) in
            [("read", "raed"), ("65536", "65537"), ("49", "-49"), ("s", "x"), ("\nboth", " both")]
        {
            assert_eq!(parse(&text.replacen(old, new, 1), "key"), None, "{new}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn only_cards_have_files_and_the_user_says_where() {
        let with = |values: &'static [(&str, &str)]| {
            folder(|name| {
                values.iter().find(|(given, _)| *given == name).map(|(_, value)| PathBuf::from(value))
            })
        };
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[("HOME", "/h")]), Some("/h/.cache/vmarray/profiles".into()));
        assert_eq!(with(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]), Some("/c/vmarray/profiles".into()));
        assert_eq!(
            with(&[("HOME", "/h"), ("XDG_CACHE_HOME", "c")]),
            Some("/h/.cache/vmarray/profiles".into())
        );
        assert_eq!(with(&[("HOME", "/h"), (VARIABLE, "/p")]), Some("/p".into()));
        assert_eq!(with(&[("HOME", "/h"), (VARIABLE, "off")]), None);
        for kind in [DeviceKind::HostMemory, DeviceKind::File, DeviceKind::Simulated, DeviceKind::Cpu] {
            assert_eq!(folder_for(&DeviceInfo::new("host", "", kind, "host:0")), None);
        }
    }
}
