//! Reasons why a backend finds no devices in this machine, such as a missing GPU driver.

use std::fmt;

/// The reason why a backend finds no devices in this machine, or fewer than expected.
///
/// ```
/// use backend_api::{Absence, AbsenceKind};
/// let absence = Absence::new("cuda", AbsenceKind::NotInstalled, "there is no libcuda; install the driver");
/// assert_eq!(absence.to_string(), "cuda: not installed: there is no libcuda; install the driver");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Absence {
    /// The backend's name, as in [`DeviceInfo::backend`](crate::DeviceInfo::backend).
    pub backend: String,
    /// Category of the reason.
    pub kind: AbsenceKind,
    /// Text for users: the reason, and advice.
    pub reason: String,
}

/// Category of the reason why a backend has no devices.
///
/// ```
/// use backend_api::AbsenceKind;
/// // This kind needs attention, unlike a missing driver.
/// assert_eq!(AbsenceKind::Unusable.to_string(), "unusable");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AbsenceKind {
    /// The driver is not installed.
    NotInstalled,
    /// A driver or a device exists, but does not work.
    Unusable,
    /// The driver works, but reports no device.
    NoDevices,
}

impl Absence {
    /// Creates the report that a backend has no devices, or fewer than expected, for this reason.
    #[must_use]
    pub fn new(backend: &str, kind: AbsenceKind, reason: impl Into<String>) -> Self {
        Self { backend: backend.to_owned(), kind, reason: reason.into() }
    }
}

impl fmt::Display for AbsenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotInstalled => "not installed",
            Self::Unusable => "unusable",
            Self::NoDevices => "no devices",
        })
    }
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, kind, reason } = self;
        write!(f, "{backend}: {kind}: {reason}")
    }
}

/// Returns the system's message about a library that failed to load. Also returns true if no library of this
/// name exists, and false if the load failed for another reason, such as a missing dependency.
#[doc(hidden)]
#[must_use]
pub fn refused_library(name: &str, error: &dyn std::error::Error) -> (String, bool) {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    let missing = ["No such file", "no such file", "os error 126"].iter().any(|part| text.contains(part));
    // If the message does not name the library, the library exists, but a library that it needs is missing.
    let is_needed = text.contains("needed by") || (cfg!(unix) && !text.contains(name));
    (text, missing && !is_needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_library_that_lacks_another_one_is_there() {
        let absent =
            |text: &str| refused_library("libcuda.so.1", &*Box::<dyn std::error::Error>::from(text)).1;
        assert!(absent("libcuda.so.1: cannot open shared object file: No such file or directory"));
        assert!(absent("Error loading shared library libcuda.so.1: No such file or directory"));
        assert!(!absent("libnvidia.so: cannot open shared object file: No such file or directory"));
        assert!(!absent(
            "Error loading shared library libx.so: No such file or directory (needed by libcuda.so.1)"
        ));
        assert!(!absent("libcuda.so.1: file too short"));
        assert!(!absent("libcuda.so.1: cannot open shared object file: Permission denied"));
    }
}
