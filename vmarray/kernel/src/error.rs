//! Errors of lowering, which translates a kernel's Rust source for devices.

use std::fmt;

/// An error of lowering: the translation of a kernel to the code that devices run. rustc reports most errors
/// in kernels; lowering reports errors that depend on the kernel's type and const parameters.
///
/// ```
/// use vmarray_kernel::{ErrorKind, At, Own, kernel, lower};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn endless(n: u64) -> u64 {
///     if n == 0 { 1 } else { n * endless(n - 1) }
/// }
///
/// #[kernel(crate = vmarray_kernel)]
/// fn factorials(at: At<1>, out: &mut Own<u64>) {
///     out.set(endless(at.index() as u64));
/// }
/// let error = lower::<factorials>().unwrap_err();
/// assert_eq!((error.kind(), error.function()), (ErrorKind::TooDeep, "endless"));
/// assert!(error.line() > 0 && error.to_string().contains("use a loop"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    function: &'static str,
    file: &'static str,
    line: u32,
    detail: String,
}

/// Kind of an [`Error`] of lowering.
///
/// ```
/// use vmarray_kernel::ErrorKind;
/// assert_ne!(ErrorKind::TooDeep, ErrorKind::TooLarge);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Calls or blocks are nested too deeply, for instance because of recursion.
    TooDeep,
    /// The kernel has too many operations, registers or parameters, or its arrays are too large.
    TooLarge,
    /// The kernel uses a feature that kernels do not support.
    Unsupported,
    /// A barrier or an operation across lanes is in code that some items of a group may skip.
    Divergent,
}

impl Error {
    pub(crate) const fn new(
        kind: ErrorKind,
        function: &'static str,
        file: &'static str,
        line: u32,
        detail: String,
    ) -> Self {
        Self { kind, function, file, line, detail }
    }

    /// Returns the kind of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the name of the kernel function.
    #[must_use]
    pub const fn function(&self) -> &'static str {
        self.function
    }

    /// Returns the path of the function's source file, as rustc reports it.
    #[must_use]
    pub const fn file(&self) -> &'static str {
        self.file
    }

    /// Returns the problem and its remedy. [`Display`](fmt::Display) adds the function, the file and the
    /// line.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the line of the problem in the source file.
    #[must_use]
    pub const fn line(&self) -> u32 {
        self.line
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { function, file, line, detail, .. } = self;
        write!(f, "kernel function `{function}` ({file}:{line}): {detail}")
    }
}

impl std::error::Error for Error {}
