//! Converts errors of the library to Python exceptions, in the classes that NumPy's users expect.

use pyo3::prelude::*;
use pyo3::types::PyType;
use vmarray::ErrorKind;

/// Error of work that runs without Python's global interpreter lock: of the library, or of Python.
#[derive(Debug)]
pub enum Fault {
    /// Error of the library or of a device.
    Library(vmarray::Error),
    /// Exception of Python: a signal, or an error of NumPy.
    Python(PyErr),
}

pub type Result<T, E = Fault> = std::result::Result<T, E>;

impl From<vmarray::Error> for Fault {
    fn from(error: vmarray::Error) -> Self {
        Self::Library(error)
    }
}

impl From<vmarray::device::Error> for Fault {
    fn from(error: vmarray::device::Error) -> Self {
        Self::Library(error.into())
    }
}

impl From<PyErr> for Fault {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Python(error) => error,
            Fault::Library(error) => Python::attach(|py| exception(py, &error).unwrap_or_else(|error| error)),
        }
    }
}

/// Runs `work` without Python's global interpreter lock, so that other Python threads continue.
pub fn off<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    Ok(py.detach(work)?)
}

/// Runs Python's handlers of pending signals, such as Ctrl-C.
pub fn interrupted() -> Result<()> {
    Ok(Python::attach(|py| py.check_signals())?)
}

/// Returns the name of the package's exception class for a kind of error.
fn class(kind: &ErrorKind) -> &'static str {
    use vmarray::device::ErrorKind as Device;
    match kind {
        ErrorKind::IndexOutside { .. }
        | ErrorKind::ListedIndexOutside { .. }
        | ErrorKind::PageOutside { .. }
        | ErrorKind::RangeOutside { .. }
        | ErrorKind::PositionOutside { .. }
        | ErrorKind::BoxOutside { .. }
        | ErrorKind::RowOutside { .. } => "OutsideError",
        ErrorKind::DoesNotFit { .. }
        | ErrorKind::NoRoomToGrow { .. }
        | ErrorKind::NoTableMemory { .. }
        | ErrorKind::NoMemory { .. }
        | ErrorKind::TooLong { .. } => "OutOfMemoryError",
        ErrorKind::NoDevices | ErrorKind::NoneFound { .. } => "NoDeviceError",
        ErrorKind::FileRefused { .. } | ErrorKind::FileMismatch { .. } => "FileError",
        ErrorKind::Device(error) | ErrorKind::Interrupted { cause: error, .. } => match error.kind() {
            Device::OutOfMemory | Device::TooLarge => "OutOfMemoryError",
            Device::Lost if error.detail().contains("forked") => "ForkedError",
            Device::InUse | Device::WrongFormat | Device::ReadOnly | Device::Corrupted => "FileError",
            _ => "DeviceError",
        },
        _ => "InvalidError",
    }
}

/// Creates the Python exception for an error of the library: its text, its kind and its advice.
fn exception(py: Python<'_>, error: &vmarray::Error) -> PyResult<PyErr> {
    let class = py.import("vmarray._errors")?.getattr(class(error.kind()))?;
    let exception = class.call1((error.to_string(),))?;
    exception.setattr("advice", error.kind().advice())?;
    let name = format!("{:?}", error.kind());
    let name: String = name.chars().take_while(|letter| letter.is_alphanumeric()).collect();
    exception.setattr("kind", name)?;
    Ok(PyErr::from_value(exception))
}

/// Creates an exception of the package's class with this name.
pub fn raised(py: Python<'_>, class: &str, text: &str) -> PyErr {
    let class =
        py.import("vmarray._errors").and_then(|module| Ok(module.getattr(class)?.cast_into::<PyType>()?));
    match class {
        Ok(class) => PyErr::from_type(class, text.to_owned()),
        Err(error) => error,
    }
}
