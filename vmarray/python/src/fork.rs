//! Detects processes that were forked from one that uses the package: they have neither its threads nor its
//! devices.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

/// Number of forks between this process and the first one that loaded the package.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns a number that differs between a process and the processes that it forks. Makes no system call.
pub fn process() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Records that this process is a fork. Python calls this in the new process.
#[pyfunction]
pub fn started() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// True in a process that was forked after the package had been imported.
pub fn is_forked() -> bool {
    process() != 0
}
