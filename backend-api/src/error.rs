//! The type of all errors that devices return.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::DeviceInfo;

/// A result whose error is an [`Error`] of a device.
///
/// ```
/// use backend_api::{Device, Result};
/// fn free_mebibytes(device: &impl Device) -> Result<u64> {
///     Ok(device.memory()?.free_bytes >> 20)
/// }
/// assert_eq!(free_mebibytes(&backend_host::HostDevice::new(8 << 20)?)?, 8);
/// # Ok::<_, backend_api::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! kinds {
    ($($(#[$doc:meta])* $Kind:ident $name:literal, $advice:literal;)*) => {
        /// The kind of an error. Programs select their reaction by the kind. The kind's `Display` text is a
        /// few words.
        ///
        /// ```
        /// use backend_api::{Commit, Device, Error, ErrorKind};
        /// # let device = backend_host::HostDevice::new(1000)?;
        /// let buffer = match device.allocate(2000, Commit::Lazy) {
        ///     Err(error) if error.kind() == ErrorKind::TooLarge => device.allocate(1000, Commit::Lazy)?,
        ///     other => other?,
        /// };
        /// assert_eq!(device.memory()?.free_bytes, 0);
        /// let error = Error::new(ErrorKind::Unsupported, "import_host");
        /// assert!(error.to_string().ends_with(ErrorKind::Unsupported.advice()));
        /// # Ok::<_, backend_api::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* $Kind,)*
        }

        impl ErrorKind {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$Kind,)*];

            /// Returns advice for errors of this kind, in a few words. The text of an [`Error`] ends with
            /// this advice, unless the error has its [own advice](Error::advice).
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self {
                    $(Self::$Kind => $advice,)*
                }
            }
        }

        impl fmt::Display for ErrorKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$Kind => $name,)*
                })
            }
        }
    };
}

kinds! {
    /// A temporary lack of memory. A smaller or a later request may succeed.
    OutOfMemory "out of memory", "release memory on the device, or request less";
    /// A request for more than the device could ever hold.
    TooLarge "larger than the device", "request less, or split it over several devices or allocations";
    /// The system refuses to page-lock host memory.
    PinRefused "page-locking refused",
        "raise the limit of locked memory (`ulimit -l`), request less, or use HostMemory::Pageable";
    /// An argument breaks a rule of the [contract](crate#the-contract). The device has started no work.
    InvalidArgument "invalid argument", "correct the request: nothing was started";
    /// A buffer, queue or ticket (submission) that this device does not know. The device started no work.
    UnknownHandle "unknown handle", "use a handle that this device has made and not released: nothing was started";
    /// The device has started a copy, which failed. The device can continue.
    CopyFailed "copy failed",
        "try again; if it persists, look for hardware faults in the logs of system and driver";
    /// The device has refused a kernel, or a kernel has failed. The device can continue.
    KernelFailed "kernel failed",
        "try again; if it persists, update the driver, or do this work on the host or on another device";
    /// The device is lost for good: unplugged, reset, or its context destroyed.
    Lost "device lost", "drop everything on this device, then open it again, or continue with the other devices";
    /// The device does not support the operation.
    Unsupported "not supported", "use another method, device or backend";
    /// The device has read other data than the program wrote: a bit has flipped, or another program has
    /// overwritten the data. The library does not return such data.
    Corrupted "corrupted",
        "restore the damaged data from a copy, or write it again; look for faults of the drive or device";
    /// Another program, or another part of this program, uses the resource.
    InUse "in use", "close it there first, or open it for reading everywhere";
    /// The file or the data has another format than expected.
    WrongFormat "wrong format", "name the right file, with the type and shape that it was made with";
    /// A write to an object that the program opened for reading only.
    ReadOnly "opened read-only", "open it for writing, or write to a copy";
    /// A file exists at that path already and would be overwritten. It stays unchanged.
    AlreadyExists "exists already", "name another path, or remove the existing file if it is no longer needed";
    /// The operating system refused an operation on a file, a mapping or a thread.
    System "refused by the system", "check the system's reason: permissions, limits, space on the disk, or the path";
    /// The driver is missing, or returned an error that no other kind covers.
    Driver "driver error", "install or update the device's driver, and check that this user has access to the device";
}

/// The code of the driver or of the system for a failure.
///
/// ```
/// use backend_api::{DriverCode, Error, ErrorKind};
/// let error = Error::new(ErrorKind::OutOfMemory, "allocate").with_driver(2, "CUDA_ERROR_OUT_OF_MEMORY");
/// assert_eq!(error.driver(), Some(&DriverCode { code: 2, name: "CUDA_ERROR_OUT_OF_MEMORY".into() }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverCode {
    /// The number that the driver returned.
    pub code: i64,
    /// Name of the code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
}

/// The details of an error: a call of a scalar function in an expression ran longer than its [time
/// limit](crate::kernel::ScalarFunction::with_time_limit).
///
/// ```
/// use backend_api::kernel::{Body, ScalarFunction, Op, Reg, Type};
/// use std::time::Duration;
/// let one = Op::Literal { to: Reg(0), bits: 1 };
/// let body = Body { registers: vec![Type::U8], code: vec![one], ..Body::default() };
/// let limit = Duration::from_secs(1);
/// let function = ScalarFunction::new(body, Vec::new())?.named("f").with_time_limit(Some(limit));
/// let error = function.with_loops(vec![(3, "main.rs:7".into())]).over_time(3, 42);
/// let late = error.over_time().unwrap();
/// assert_eq!((&*late.function, &*late.place, late.limit, late.element), ("f", "main.rs:7", limit, 42));
/// assert!(error.to_string().contains("`f` ran longer than 1s for element 42, in the loop at main.rs:7"));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverTime {
    /// The name of the function.
    pub function: String,
    /// Source location (file and line) of the loop; empty if unknown.
    pub place: String,
    /// Time limit that the call exceeded.
    pub limit: Duration,
    /// Index of the element in the program's array, for which the function was called.
    pub element: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Context {
    kind: ErrorKind,
    device: String,
    operation: &'static str,
    detail: String,
    advice: Option<&'static str>,
    bytes: Option<u64>,
    available_bytes: Option<u64>,
    offset: Option<u64>,
    driver: Option<DriverCode>,
    over_time: Option<OverTime>,
}

/// An error of a device: the kind, the device, the operation, and details such as numbers of bytes.
///
/// An error has the size of one pointer and is cheap to clone. If several callers wait for one ticket, each
/// gets a clone.
///
/// ```
/// use backend_api::{Commit, Device, DriverCode, Error, ErrorKind};
/// let device = backend_host::HostDevice::new(1000)?;
/// let error = device.allocate(2000, Commit::Lazy).unwrap_err();
/// assert_eq!((error.kind(), error.operation()), (ErrorKind::TooLarge, "allocate"));
/// assert_eq!((error.bytes(), error.available_bytes(), error.offset()), (Some(2000), Some(1000), None));
/// assert_eq!((error.device(), error.driver()), (&*device.info().to_string(), None));
/// assert!(error.detail().is_empty() && error.to_string().ends_with(error.advice()));
///
/// // A backend creates an error with all values that it knows.
/// let full = Error::new(ErrorKind::OutOfMemory, "submit").with_bytes(800).with_available_bytes(500).with_offset(64);
/// let full = full.with_driver(2, "OUT_OF_MEMORY").with_detail("no room").with_advice("make room").on(device.info());
/// assert_eq!(full.driver().unwrap().code, 2);
/// let what = "800 bytes requested, 500 bytes available, at byte 64, OUT_OF_MEMORY (2), no room; make room";
/// assert_eq!(full.to_string(), format!("out of memory in submit on {}: {what}", device.info()));
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Arc<Context>);

impl Error {
    /// Creates an error of a kind. `operation` is the name of the method that failed, such as `"submit"`.
    #[must_use]
    pub fn new(kind: ErrorKind, operation: &'static str) -> Self {
        Self(Arc::new(Context {
            kind,
            device: String::new(),
            operation,
            detail: String::new(),
            advice: None,
            bytes: None,
            available_bytes: None,
            offset: None,
            driver: None,
            over_time: None,
        }))
    }

    /// Creates the error of a gather or scatter whose list has an index out of bounds.
    #[doc(hidden)]
    #[must_use]
    pub fn index_outside(operation: &'static str) -> Self {
        Self::new(ErrorKind::KernelFailed, operation).with_advice("correct the list of indices")
    }

    /// Creates the error for a call of a scalar function that exceeded its time limit.
    pub(crate) fn over_time_of(call: OverTime) -> Self {
        let OverTime { function, place, limit, element } = &call;
        let detail = format!(
            "function `{function}` ran longer than {limit:?} for element {element}, in the loop at {place}"
        );
        let error = Self::new(ErrorKind::KernelFailed, "compute").with_detail(detail);
        let error = error.with_advice("check for an endless loop there, or allow more time");
        error.map(|c| c.over_time = Some(call))
    }

    fn map(mut self, change: impl FnOnce(&mut Context)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Adds the device's name. A backend does this with each error that it returns, because helpers such as
    /// [`Extents`](crate::Extents) create errors without a device name.
    #[must_use]
    pub fn on(self, device: &DeviceInfo) -> Self {
        let name = device.to_string();
        self.map(|c| c.device = name)
    }

    /// Adds a sentence for the user about the cause, such as the invalid value.
    #[must_use]
    pub fn with_detail(self, detail: impl Into<String>) -> Self {
        self.map(|c| c.detail = detail.into())
    }

    /// Replaces the [advice of the kind](ErrorKind::advice) by advice that fits better, in a few words.
    #[must_use]
    pub fn with_advice(self, advice: &'static str) -> Self {
        self.map(|c| c.advice = Some(advice))
    }

    /// Adds the number of bytes that were requested or moved.
    #[must_use]
    pub fn with_bytes(self, bytes: u64) -> Self {
        self.map(|c| c.bytes = Some(bytes))
    }

    /// Adds the number of bytes that were available.
    #[must_use]
    pub fn with_available_bytes(self, bytes: u64) -> Self {
        self.map(|c| c.available_bytes = Some(bytes))
    }

    /// Adds the byte offset of the failure.
    #[must_use]
    pub fn with_offset(self, offset: u64) -> Self {
        self.map(|c| c.offset = Some(offset))
    }

    /// Adds the driver's code and its name.
    #[must_use]
    pub fn with_driver(self, code: i64, name: impl Into<String>) -> Self {
        self.map(|c| c.driver = Some(DriverCode { code, name: name.into() }))
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the device's name, as [`DeviceInfo`] displays it; empty if the error concerns no device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.0.device
    }

    /// Returns the name of the method that failed.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// Returns the sentence for the user about the cause; may be empty.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Returns the advice at the end of the error's text: the error's own advice, or else its kind's.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        self.0.advice.unwrap_or(self.0.kind.advice())
    }

    /// Returns the number of bytes that were requested or moved, if known.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.0.bytes
    }

    /// Returns the number of bytes that were available, for errors about a lack of memory.
    #[must_use]
    pub fn available_bytes(&self) -> Option<u64> {
        self.0.available_bytes
    }

    /// Returns the byte offset at which the failure occurred, if known.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// Returns the details if the failure was a call of a scalar function that exceeded its time limit.
    #[must_use]
    pub fn over_time(&self) -> Option<&OverTime> {
        self.0.over_time.as_ref()
    }

    /// Returns the code of the driver or system, if one of its calls failed.
    #[must_use]
    pub fn driver(&self) -> Option<&DriverCode> {
        self.0.driver.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &*self.0;
        write!(f, "{} in {}", c.kind, c.operation)?;
        if !c.device.is_empty() {
            write!(f, " on {}", c.device)?;
        }
        let mut parts = Vec::new();
        parts.extend(c.bytes.map(|bytes| format!("{} requested", readable_bytes(bytes))));
        parts.extend(c.available_bytes.map(|bytes| format!("{} available", readable_bytes(bytes))));
        parts.extend(c.offset.map(|offset| format!("at byte {offset}")));
        parts.extend(c.driver.as_ref().map(|driver| format!("{} ({})", driver.name, driver.code)));
        parts.extend((!c.detail.is_empty()).then(|| c.detail.clone()));
        if !parts.is_empty() {
            write!(f, ": {}", parts.join(", "))?;
        }
        write!(f, "; {}", self.advice())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {}

/// Formats a number of bytes for people, such as `1.5 GiB`. Small numbers are exact.
#[doc(hidden)]
#[must_use]
pub fn readable_bytes(bytes: u64) -> String {
    if bytes < 10 << 10 {
        return format!("{bytes} bytes");
    }
    let unit = (bytes.ilog2() / 10) as usize;
    let number = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    format!("{number:.1} {}", ["", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_readable() {
        let texts = [0, 4096, 10 << 10, (3 << 30) / 2, u64::MAX].map(readable_bytes);
        assert_eq!(texts, ["0 bytes", "4096 bytes", "10.0 KiB", "1.5 GiB", "16.0 EiB"]);
    }

    #[test]
    fn every_text_ends_with_a_remedy() {
        let mut texts: Vec<&str> = ErrorKind::ALL.iter().map(|kind| kind.advice()).collect();
        for &kind in ErrorKind::ALL {
            let text = Error::new(kind, "test").with_bytes(1).with_detail("some detail").to_string();
            assert!(text.ends_with(&format!("; {}", kind.advice())), "{text}");
            assert!(kind.advice().len() > 15, "{text}");
            let own = Error::new(kind, "test").with_advice("do this").with_detail("some detail");
            assert!(own.to_string().ends_with(": some detail; do this"), "{own}");
        }
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), ErrorKind::ALL.len(), "each kind has its own");
    }
}
