//! Conversion of errors of the operating system to device [`Error`]s.

use std::io;

use backend_api::{Error, ErrorKind};

/// Returns a device error of `kind` with the code, name and message of the system's error.
pub fn system(kind: ErrorKind, operation: &'static str, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(code) => Error::new(kind, operation)
            .with_driver(i64::from(code), name(code))
            .with_detail(error.to_string()),
        None => Error::new(kind, operation).with_detail(error.to_string()),
    }
}

/// Returns the name of a system error code, as in the manual of `errno`.
#[cfg(unix)]
fn name(code: i32) -> &'static str {
    macro_rules! names {
        ($($name:ident)*) => {
            match code {
                $(libc::$name => stringify!($name),)*
                _ => "errno",
            }
        };
    }
    names!(EPERM ENOENT EINTR EIO EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV ENOTDIR EISDIR EINVAL
        ENFILE EMFILE ETXTBSY EFBIG ENOSPC ESPIPE EROFS ENAMETOOLONG ENOSYS ENOLCK EOVERFLOW EOPNOTSUPP EDQUOT
        ESTALE ETIMEDOUT)
}

#[cfg(not(unix))]
fn name(_code: i32) -> &'static str {
    "system error"
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names() {
        let error = system(ErrorKind::System, "open", &io::Error::from_raw_os_error(libc::EROFS));
        assert_eq!(error.driver().unwrap().name, "EROFS");
        assert_eq!(error.driver().unwrap().code, i64::from(libc::EROFS));
    }
}
