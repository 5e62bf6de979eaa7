//! Conversion of error codes of OpenCL drivers to [`Error`]s of the device contract.

use backend_api::{Error, ErrorKind};
use opencl3::error_codes as code;
use opencl3::types::cl_int;

/// NVIDIA's code for an illegal access by a kernel, after which the context is unusable.
pub(crate) const NVIDIA_ILLEGAL_ACCESS: cl_int = -9999;

/// The driver's name for a code.
pub(crate) fn name(status: cl_int) -> String {
    match status {
        code::DLOPEN_RUNTIME_LOAD_FAILED => "libOpenCL not found".into(),
        code::DLOPEN_FUNCTION_NOT_AVAILABLE => "function not in libOpenCL".into(),
        code::CL_PLATFORM_NOT_FOUND_KHR => "CL_PLATFORM_NOT_FOUND_KHR".into(),
        code::CL_CONTEXT_TERMINATED_KHR => "CL_CONTEXT_TERMINATED_KHR".into(),
        NVIDIA_ILLEGAL_ACCESS => "NVIDIA: illegal memory access by a kernel".into(),
        _ => match code::error_text(status) {
            "UNKNOWN_ERROR" => format!("OpenCL error {status}"),
            known => known.into(),
        },
    }
}

/// Meaning of a driver's error code without its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// The device, or this context on it, is gone.
    Lost,
    /// Ambiguous: the device is gone, or only this call failed. The caller must probe the device.
    Doubtful,
    /// Only this call failed.
    Single,
}

/// Returns the severity of a code. Queues, contexts and events in calls are valid by construction. If a
/// driver calls them invalid, the device is gone.
pub(crate) fn severity(status: cl_int) -> Severity {
    match status {
        code::CL_DEVICE_NOT_AVAILABLE
        | code::CL_CONTEXT_TERMINATED_KHR
        | code::CL_INVALID_COMMAND_QUEUE
        | code::CL_INVALID_CONTEXT
        | NVIDIA_ILLEGAL_ACCESS => Severity::Lost,
        code::CL_OUT_OF_RESOURCES
        | code::CL_OUT_OF_HOST_MEMORY
        | code::CL_INVALID_EVENT
        | code::CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST => Severity::Doubtful,
        status if status <= -10_000 => Severity::Doubtful,
        _ => Severity::Single,
    }
}

/// Returns the kind of error for a code if the code is specific, else `otherwise`.
fn kind(status: cl_int, otherwise: ErrorKind) -> ErrorKind {
    match status {
        code::CL_MEM_OBJECT_ALLOCATION_FAILURE | code::CL_OUT_OF_RESOURCES | code::CL_OUT_OF_HOST_MEMORY => {
            ErrorKind::OutOfMemory
        }
        code::DLOPEN_RUNTIME_LOAD_FAILED | code::DLOPEN_FUNCTION_NOT_AVAILABLE => ErrorKind::Driver,
        code::CL_COMPILER_NOT_AVAILABLE => ErrorKind::Unsupported,
        _ if severity(status) == Severity::Lost => ErrorKind::Lost,
        _ => otherwise,
    }
}

/// Creates an error with the driver's code and its name. `otherwise` is the kind for an unspecific code.
pub(crate) fn driver(operation: &'static str, otherwise: ErrorKind, status: cl_int) -> Error {
    Error::new(kind(status, otherwise), operation).with_driver(i64::from(status), name(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_carry_their_names() {
        let error = driver("submit", ErrorKind::CopyFailed, code::CL_INVALID_VALUE);
        assert_eq!(error.kind(), ErrorKind::CopyFailed);
        assert_eq!(error.driver().unwrap().name, "CL_INVALID_VALUE");
        assert_eq!(error.driver().unwrap().code, -30);
        assert_eq!(name(-4711), "OpenCL error -4711");
    }

    #[test]
    fn a_lost_device_is_distinguished_from_a_lack_of_memory() {
        for status in [code::CL_DEVICE_NOT_AVAILABLE, code::CL_INVALID_COMMAND_QUEUE, NVIDIA_ILLEGAL_ACCESS] {
            assert_eq!(driver("submit", ErrorKind::CopyFailed, status).kind(), ErrorKind::Lost);
        }
        for status in [code::CL_MEM_OBJECT_ALLOCATION_FAILURE, code::CL_OUT_OF_RESOURCES] {
            assert_eq!(driver("allocate", ErrorKind::Driver, status).kind(), ErrorKind::OutOfMemory);
        }
    }
}
