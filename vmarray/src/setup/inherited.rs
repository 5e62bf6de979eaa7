//! Detection of a forked child process. A child has neither the threads nor the GPU contexts of its parent,
//! and a lock that another thread held during the fork stays locked. So in the child the library returns an
//! error before it takes a lock.

#[cfg(not(target_os = "linux"))]
use std::sync::atomic::{AtomicU32, Ordering};

use backend_api::{Error, ErrorKind, Result};

#[cfg(target_os = "linux")]
use crate::base::scoped_threads;

/// The id of the process that uses the library; 0 before the first use.
#[cfg(not(target_os = "linux"))]
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Records that this process uses the library, for [`is_child`]. Call this before taking a lock.
///
/// # Errors
/// `Lost` in a forked child process.
pub(crate) fn expect_own_process(operation: &'static str) -> Result<()> {
    if is_child() {
        return Err(refused(operation));
    }
    #[cfg(target_os = "linux")]
    scoped_threads::watch_forks();
    #[cfg(not(target_os = "linux"))]
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    Ok(())
}

/// Returns true in a process that was forked from one that uses the library.
pub(crate) fn is_child() -> bool {
    #[cfg(target_os = "linux")]
    {
        scoped_threads::is_forked()
    }
    #[cfg(not(target_os = "linux"))]
    {
        !matches!(PROCESS.load(Ordering::Relaxed), process if process == 0 || process == std::process::id())
    }
}

pub(crate) fn refused(operation: &'static str) -> Error {
    Error::new(ErrorKind::Lost, operation)
        .with_detail("this process was forked from a process that uses arrays; only the parent can use them")
        .with_advice("start processes by `exec`, and make or open arrays in them")
}
