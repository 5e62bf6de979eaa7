//! Conversion of CUDA driver error codes to [`Error`]s of the device contract.

use backend_api::{Absence, AbsenceKind, DeviceInfo, Error, ErrorKind};

use crate::driver::{Missing, StatusCode};

impl StatusCode {
    /// Returns the kind of error for this driver code in a method of [`Device`](backend_api::Device).
    pub(crate) fn kind(self, operation: &str) -> ErrorKind {
        if self.is_fatal() {
            return ErrorKind::Lost;
        }
        match (self, operation) {
            (Self::OUT_OF_MEMORY, _) => ErrorKind::OutOfMemory,
            (Self::NOT_SUPPORTED | Self::NOT_PERMITTED, _) => ErrorKind::Unsupported,
            (_, "submit") => ErrorKind::CopyFailed,
            (_, "fill" | "search" | "gather" | "scatter" | "compute" | "launch") => ErrorKind::KernelFailed,
            _ => ErrorKind::Driver,
        }
    }

    /// Creates an error of this code's kind.
    pub(crate) fn error(self, operation: &'static str) -> Error {
        self.error_of(self.kind(operation), operation)
    }

    /// Creates an error of a given kind with this code.
    pub(crate) fn error_of(self, kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, operation)
            .with_driver(i64::from(self.get()), self.name())
            .with_detail(self.sentence())
    }
}

impl Missing {
    /// The error of opening a device without a driver.
    pub(crate) fn error(&self, operation: &'static str) -> Error {
        let error = Error::new(ErrorKind::Driver, operation).with_detail(self.absence().reason);
        match self {
            Self::Refused { code, name, .. } => error.with_driver(i64::from(code.get()), name),
            _ => error,
        }
    }

    /// The reason why the backend has no devices.
    pub(crate) fn absence(&self) -> Absence {
        let (kind, reason) = match self {
            Self::Library => (
                AbsenceKind::NotInstalled,
                "there is no library of the CUDA driver (libcuda); for an NVIDIA card install its driver".into(),
            ),
            Self::Broken(reason) => (
                AbsenceKind::Unusable,
                format!("the library of the CUDA driver cannot be loaded ({reason}); reinstall the driver"),
            ),
            Self::Symbol(name) => (
                AbsenceKind::Unusable,
                format!("the library of the CUDA driver has no function {name}; install a newer driver"),
            ),
            Self::Refused { code: StatusCode::NO_DEVICE, .. } => (
                AbsenceKind::NoDevices,
                "the CUDA driver finds no GPU; if there is one, check CUDA_VISIBLE_DEVICES and `nvidia-smi`".into(),
            ),
            Self::Refused { code: StatusCode::STUB_LIBRARY, .. } => (
                AbsenceKind::Unusable,
                "the stub library of the CUDA toolkit is loaded instead of the driver; remove its folder from LD_LIBRARY_PATH".into(),
            ),
            Self::Refused { code, name, sentence } => (
                AbsenceKind::Unusable,
                format!(
                    "the CUDA driver refuses to start: {name} ({}) {sentence}; check the output of \
                     `nvidia-smi`, and that the kernel module and the library have the same version",
                    code.get()
                ),
            ),
        };
        Absence::new("cuda", kind, reason)
    }
}

/// The error of all calls after the loss of the device.
pub(crate) fn lost(code: StatusCode, info: &DeviceInfo, operation: &'static str) -> Error {
    code.error_of(ErrorKind::Lost, operation).on(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_distinguished() {
        assert_eq!(StatusCode::OUT_OF_MEMORY.kind("allocate"), ErrorKind::OutOfMemory);
        assert_eq!(StatusCode::INVALID_VALUE.kind("submit"), ErrorKind::CopyFailed);
        for kernel in ["fill", "search", "gather", "scatter", "compute", "launch"] {
            assert_eq!(StatusCode::INVALID_VALUE.kind(kernel), ErrorKind::KernelFailed);
        }
        assert_eq!(StatusCode::INVALID_VALUE.kind("create_queue"), ErrorKind::Driver);
        assert_eq!(StatusCode::NOT_SUPPORTED.kind("import_host"), ErrorKind::Unsupported);
        for code in [
            StatusCode::ILLEGAL_ADDRESS,
            StatusCode::LAUNCH_FAILED,
            StatusCode::UNKNOWN,
            StatusCode::DEVICE_UNAVAILABLE,
        ] {
            assert_eq!(code.kind("submit"), ErrorKind::Lost);
        }
    }

    #[test]
    fn unknown_codes_have_a_name_and_no_undefined_behaviour() {
        let code = crate::driver::check(99_999).unwrap_err();
        let error = code.error("submit");
        assert_eq!(error.driver().unwrap().code, 99_999);
        assert!(!error.driver().unwrap().name.is_empty());
        assert_eq!(error.kind(), ErrorKind::CopyFailed);
    }
}
