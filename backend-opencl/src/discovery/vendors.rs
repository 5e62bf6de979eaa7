//! Diagnosis of missing OpenCL drivers. The OpenCL loader silently omits an installed driver that fails to
//! load; this module finds the reason.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

/// A driver in the loader's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListedDriver {
    /// A file that contains the name of the driver's library.
    File(PathBuf),
    /// An entry of the variable `OCL_ICD_VENDORS`.
    Library(OsString),
}

impl fmt::Display for ListedDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Library(name) => write!(f, "{}", name.to_string_lossy()),
        }
    }
}

/// The folder in which drivers register. On Windows they use the registry, which this module does not read.
const FOLDER: &str = "/etc/OpenCL/vendors";

pub(crate) fn drivers() -> Vec<ListedDriver> {
    if cfg!(not(unix)) {
        return Vec::new();
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    listed_by(variable("OCL_ICD_VENDORS"), variable("OPENCL_VENDOR_PATH"))
}

/// Lists drivers as the loaders do: `OCL_ICD_VENDORS` names a folder, one file of such a folder, or a
/// library.
fn listed_by(vendors: Option<OsString>, folder: Option<OsString>) -> Vec<ListedDriver> {
    let is_file = |path: &Path| path.extension().is_some_and(|extension| extension == "icd");
    let named = PathBuf::from(vendors.or(folder).unwrap_or_else(|| FOLDER.into()));
    if is_file(&named) && !named.is_dir() {
        let known = Path::new(FOLDER).join(&named);
        return vec![ListedDriver::File(if named.exists() || !known.exists() { named } else { known })];
    }
    match std::fs::read_dir(&named) {
        Ok(files) => {
            let mut files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
            files.retain(|path| is_file(path));
            files.sort();
            files.into_iter().map(ListedDriver::File).collect()
        }
        Err(_) if named == Path::new(FOLDER) => Vec::new(),
        Err(_) => vec![ListedDriver::Library(named.into())],
    }
}

/// Returns the reasons why listed drivers are missing, one sentence for each. The loader must have run
/// before.
pub(crate) fn broken(listed: &[ListedDriver]) -> Vec<String> {
    listed.iter().filter_map(|driver| driver.fault()).collect()
}

impl ListedDriver {
    fn fault(&self) -> Option<String> {
        let (library, advice) = match self {
            Self::File(path) => match std::fs::read(path) {
                Ok(text) => (first_line(&text), "reinstall it, or remove that file"),
                Err(error) => return Some(format!("{self}, which names a driver, cannot be read: {error}")),
            },
            Self::Library(name) => (name.clone(), "correct OCL_ICD_VENDORS"),
        };
        let reason = refusal(&library)?;
        Some(match self {
            Self::File(_) => format!("the driver that {self} names does not load ({reason}); {advice}"),
            Self::Library(_) => format!("the driver {self} does not load ({reason}); {advice}"),
        })
    }
}

/// Returns the system's error if a library fails to load.
fn refusal(library: &OsStr) -> Option<String> {
    if library.is_empty() {
        return Some("the file names no library".into());
    }
    // SAFETY: loading a library runs its initialisers; the loader has loaded this one, or tried to, by the
    // same name.
    match unsafe { libloading::Library::new(library) } {
        Ok(library) => {
            // Never unload the library, because the loader or its threads may still use it.
            std::mem::forget(library);
            None
        }
        Err(error) => Some(backend_api::refused_library(&library.to_string_lossy(), &error).0),
    }
}

#[cfg(unix)]
fn first_line(text: &[u8]) -> OsString {
    use std::os::unix::ffi::OsStrExt;
    OsStr::from_bytes(text.split(|&byte| byte == b'\n').next().unwrap_or_default()).to_owned()
}

#[cfg(not(unix))]
fn first_line(text: &[u8]) -> OsString {
    String::from_utf8_lossy(text).lines().next().unwrap_or_default().into()
}

#[cfg(all(test, unix))]
mod tests {
    use vmarray_support::private_dir::random_name;

    use super::*;

    #[test]
    fn folders_files_and_libraries_are_distinguished() {
        let folder = std::env::temp_dir().join(random_name());
        std::fs::create_dir(&folder).unwrap();
        let named = |path: &Path| listed_by(Some(path.as_os_str().to_owned()), Some("/nowhere".into()));
        assert_eq!(named(&folder), []);
        for name in ["b.icd", "a.icd", "other.txt"] {
            std::fs::write(folder.join(name), "libnone.so\nmore\n").unwrap();
        }
        let files = ["a.icd", "b.icd"].map(|name| ListedDriver::File(folder.join(name)));
        assert_eq!(named(&folder), files);
        assert_eq!(listed_by(None, Some(folder.clone().into())), files);
        assert_eq!(named(&folder.join("a.icd")), files[..1]);
        assert_eq!(named(Path::new("libnone.so")), [ListedDriver::Library("libnone.so".into())]);
        for fault in broken(&files) {
            assert!(fault.contains(".icd names does not load (") && fault.contains("libnone.so"), "{fault}");
        }
        std::fs::write(folder.join("a.icd"), "").unwrap();
        std::fs::remove_file(folder.join("b.icd")).unwrap();
        let faults = broken(&files);
        assert!(faults[0].contains("names no library") && faults[1].contains("cannot be read"), "{faults:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
