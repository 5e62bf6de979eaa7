//! What can go wrong on a device.

use std::fmt;
use std::sync::Arc;

use crate::DeviceInfo;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of trouble it is: the only thing that paging logic reacts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Not enough memory now; less, or later, may work.
    OutOfMemory,
    /// More than the device could ever hold.
    TooLarge,
    /// The system refuses to page-lock host memory.
    PinRefused,
    /// An argument is outside of what the contract allows. Nothing was started.
    InvalidArgument,
    /// A buffer, queue or ticket that this device does not know. Nothing was started.
    UnknownHandle,
    /// A copy was started and failed; the device goes on.
    CopyFailed,
    /// A kernel was refused or failed; the device goes on.
    KernelFailed,
    /// The device is gone, for good: unplugged, reset, or its context destroyed.
    Lost,
    /// The device cannot do that at all.
    Unsupported,
    /// The operating system refused: a file, a mapping, a thread.
    System,
    /// The driver is missing, or answered with something that fits nowhere else.
    Driver,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfMemory => "out of memory",
            Self::TooLarge => "larger than the device",
            Self::PinRefused => "page-locking refused",
            Self::InvalidArgument => "invalid argument",
            Self::UnknownHandle => "unknown handle",
            Self::CopyFailed => "copy failed",
            Self::KernelFailed => "kernel failed",
            Self::Lost => "device lost",
            Self::Unsupported => "not supported",
            Self::System => "refused by the system",
            Self::Driver => "driver error",
        })
    }
}

/// The driver's or system's own code for a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverCode {
    /// The number, as the driver gave it.
    pub code: i64,
    /// The driver's name for it, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Context {
    kind: ErrorKind,
    device: String,
    operation: &'static str,
    detail: String,
    bytes: Option<u64>,
    available_bytes: Option<u64>,
    offset: Option<u64>,
    driver: Option<DriverCode>,
}

/// A failure of a device: what kind, on which device, in which operation, with the figures that belong to it.
///
/// One pointer in size, cheap to clone: all who wait for one copy get the same error.
///
/// ```
/// use backend_api::{Error, ErrorKind};
/// let error = Error::new(ErrorKind::OutOfMemory, "allocate").with_bytes(4096).with_available_bytes(1024);
/// assert_eq!(error.to_string(), "out of memory in allocate: 4096 bytes asked, 1024 bytes available");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Arc<Context>);

impl Error {
    /// An error of a kind, in an operation of the contract.
    #[must_use]
    pub fn new(kind: ErrorKind, operation: &'static str) -> Self {
        Self(Arc::new(Context {
            kind,
            device: String::new(),
            operation,
            detail: String::new(),
            bytes: None,
            available_bytes: None,
            offset: None,
            driver: None,
        }))
    }

    fn map(mut self, change: impl FnOnce(&mut Context)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Names the device.
    #[must_use]
    pub fn on(self, device: &DeviceInfo) -> Self {
        let name = device.to_string();
        self.map(|c| c.device = name)
    }

    /// Adds a sentence for people.
    #[must_use]
    pub fn with_detail(self, detail: impl Into<String>) -> Self {
        self.map(|c| c.detail = detail.into())
    }

    /// Adds how many bytes were asked for or moved.
    #[must_use]
    pub fn with_bytes(self, bytes: u64) -> Self {
        self.map(|c| c.bytes = Some(bytes))
    }

    /// Adds how many bytes were to be had.
    #[must_use]
    pub fn with_available_bytes(self, bytes: u64) -> Self {
        self.map(|c| c.available_bytes = Some(bytes))
    }

    /// Adds the byte offset at which it went wrong.
    #[must_use]
    pub fn with_offset(self, offset: u64) -> Self {
        self.map(|c| c.offset = Some(offset))
    }

    /// Adds the driver's code and its name.
    #[must_use]
    pub fn with_driver(self, code: i64, name: impl Into<String>) -> Self {
        self.map(|c| c.driver = Some(DriverCode { code, name: name.into() }))
    }

    /// What kind of trouble it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The device, as [`DeviceInfo`] displays it; empty where no device is concerned.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.0.device
    }

    /// The operation of the contract that failed.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// A sentence for people; may be empty.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// How many bytes were asked for or moved, where that says something.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.0.bytes
    }

    /// How many bytes were to be had, for the kinds that are about memory.
    #[must_use]
    pub fn available_bytes(&self) -> Option<u64> {
        self.0.available_bytes
    }

    /// The byte offset at which it went wrong, where there is one.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// The driver's own code, where a driver was asked.
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
        let mut separator = ": ";
        let mut part = |f: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>| {
            let result = write!(f, "{separator}{text}");
            separator = ", ";
            result
        };
        if let Some(bytes) = c.bytes {
            part(f, format_args!("{bytes} bytes asked"))?;
        }
        if let Some(bytes) = c.available_bytes {
            part(f, format_args!("{bytes} bytes available"))?;
        }
        if let Some(offset) = c.offset {
            part(f, format_args!("at byte {offset}"))?;
        }
        if let Some(driver) = &c.driver {
            part(f, format_args!("{} ({})", driver.name, driver.code))?;
        }
        if !c.detail.is_empty() {
            part(f, format_args!("{}", c.detail))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {}
