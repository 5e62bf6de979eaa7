//! Profiles on disk, one a file.
//!
//! A file begins with everything that decides whether it fits, word for word; what does not match in full or cannot be
//! understood is ignored and replaced. Files appear by renaming, so that a reader never sees half of one. Nothing that
//! goes wrong here is an error: the device is measured again as if there were no file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::{DeviceInfo, DeviceKind, Route, Routing};

use super::Profile;

/// Names the folder, or `off`.
const VARIABLE: &str = "VMARRAY_PROFILES";
/// The first line. Another number for another format, or when the measurement finds something else.
const TITLE: &str = "vmarray profile 1";
/// The last line.
const END: &str = "end";

/// The profile of a device with this key, if one was kept.
pub(super) fn load(info: &DeviceInfo, key: &str) -> Option<Profile> {
    read(&folder_for(info)?, key)
}

/// Keeps a profile.
pub(super) fn keep(info: &DeviceInfo, key: &str, profile: &Profile) {
    if let Some(folder) = folder_for(info)
        && let Err(error) = write(&folder, key, profile)
    {
        crate::trace::profile_not_kept(info, &error);
    }
}

/// Deletes the profile of a device.
pub(super) fn delete(info: &DeviceInfo, key: &str) {
    if let Some(folder) = folder_for(info) {
        // It may not even exist.
        drop(fs::remove_file(file(&folder, key)));
    }
}

/// Where profiles are kept; nowhere for what stands in for a card, whose identity means nothing to the next process.
fn folder_for(info: &DeviceInfo) -> Option<PathBuf> {
    let is_card = matches!(info.kind, DeviceKind::DiscreteGpu | DeviceKind::IntegratedGpu);
    if is_card { folder(|name| std::env::var_os(name).map(PathBuf::from)) } else { None }
}

fn folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let variable = |name| variable(name).filter(|path| !path.as_os_str().is_empty());
    match variable(VARIABLE) {
        Some(word) if word.as_os_str() == "off" => None,
        Some(folder) => Some(folder),
        None => {
            // The standard says that a relative path is to be ignored.
            let base = variable("XDG_CACHE_HOME")
                .filter(|path| path.is_absolute())
                .or_else(|| Some(variable("HOME")?.join(".cache")))?;
            Some(base.join("vmarray").join("profiles"))
        }
    }
}

/// FNV-1a, 64 bits: stable between versions of the compiler, which the standard library's hashes are not.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn file(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("{:016x}.profile", hash(key)))
}

fn read(folder: &Path, key: &str) -> Option<Profile> {
    parse(&fs::read_to_string(file(folder, key)).ok()?, key)
}

fn write(folder: &Path, key: &str, profile: &Profile) -> std::io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(folder)?;
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let scratch = folder.join(format!(".{}-{number}.tmp", std::process::id()));
    let result =
        fs::write(&scratch, print(key, profile)).and_then(|()| fs::rename(&scratch, file(folder, key)));
    if result.is_err() {
        // It may not even exist.
        drop(fs::remove_file(&scratch));
    }
    result
}

fn print(key: &str, profile: &Profile) -> String {
    let Profile { read, write, both, page_bytes, routing } = profile;
    let uploads = print_table(|pieces, bytes| routing.upload(pieces, pieces as u64 * bytes));
    let downloads = print_table(|pieces, bytes| routing.download(pieces, pieces as u64 * bytes));
    format!(
        "{TITLE}\n{key}\nread {read}\nwrite {write}\nboth {both}\npage_bytes {page_bytes}\nuploads {uploads}\n\
         downloads {downloads}\n{END}\n"
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
    let routing = &mut profile.routing;
    parse_table(value("uploads")?, |pieces, bytes, route| routing.set_upload(pieces, bytes, route))?;
    parse_table(value("downloads")?, |pieces, bytes, route| routing.set_download(pieces, bytes, route))?;
    (lines.next()? == END).then_some(profile)
}

const LETTERS: [(char, Option<Route>); 4] =
    [('-', None), ('s', Some(Route::Single)), ('b', Some(Route::Batch)), ('k', Some(Route::Kernel))];

/// All classes of lengths and numbers of pieces, in order.
fn classes() -> impl Iterator<Item = (usize, u64)> {
    Routing::PIECE_BYTES
        .into_iter()
        .flat_map(|bytes| Routing::PIECES.into_iter().map(move |pieces| (pieces, bytes)))
}

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
    use super::*;

    fn profile() -> Profile {
        let mut profile = Profile::new(50_000_000_000, 49, 80_000_000_000, 65_536);
        profile.routing.set_upload(2, 4096, Some(Route::Single));
        profile.routing.set_upload(512, 1 << 20, Some(Route::Batch));
        profile.routing.set_download(16, 64 << 10, Some(Route::Kernel));
        profile
    }

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("vmarray-profiles-{}-{name}", std::process::id()));
        drop(fs::remove_dir_all(&folder));
        folder
    }

    #[test]
    fn what_was_kept_comes_back_for_the_same_key_alone() {
        let folder = scratch("same");
        assert_eq!(read(&folder, "one"), None);
        write(&folder, "one", &profile()).unwrap();
        write(&folder, "two", &Profile::new(1, 2, 3, 4096)).unwrap();
        assert_eq!(read(&folder, "one"), Some(profile()));
        assert_eq!(read(&folder, "two"), Some(Profile::new(1, 2, 3, 4096)));
        assert_eq!(read(&folder, "three"), None);
        // Another key in the same file, as if two keys had one hash.
        fs::rename(file(&folder, "one"), file(&folder, "three")).unwrap();
        assert_eq!(read(&folder, "three"), None);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "whole files only");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_cut_or_damaged_is_ignored() {
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
