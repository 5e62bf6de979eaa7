//! Progress reports and cancellation (Ctrl-C) of long operations, such as sorts.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use pyo3::prelude::*;
use vmarray::progress::{Progress, with_progress};

use crate::fault::{Result, interrupted, off};
use crate::handle::lock;

/// Minimum size of work that runs on another thread, in bytes; less work ends before a user could cancel it.
const BYTES_MIN: usize = 16 << 20;
/// Time between two checks for signals.
const PERIOD: Duration = Duration::from_millis(50);

/// Runs `work`, which processes `bytes` bytes, without Python's lock; see `vmarray.progress`. Long work, or
/// work with a callback, runs on another thread. Meanwhile the calling thread handles signals, because Python
/// does so only in the main thread.
pub fn run_with_progress<T: Send>(
    py: Python<'_>,
    bytes: usize,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    let callback = py.import("vmarray._progress")?.getattr("CALLBACK")?.call_method0("get")?;
    let callback = (!callback.is_none()).then(|| callback.unbind());
    if callback.is_none() && bytes < BYTES_MIN {
        return off(py, work);
    }
    off(py, || {
        let stopped = Mutex::new(None);
        let report = |Progress { done_bytes, all_bytes, .. }: Progress| {
            // Release the lock before the call: the callback may wait for a thread that locks `stopped`.
            let is_stopped = lock(&stopped).is_some();
            if !is_stopped && let Some(callback) = &callback {
                let called = Python::attach(|py| callback.call1(py, (done_bytes, all_bytes)).map(|_| ()));
                if let Err(error) = called {
                    lock(&stopped).get_or_insert(error);
                }
            }
            if lock(&stopped).is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let result = std::thread::scope(|threads| {
            let (done, is_done) = sync_channel::<()>(0);
            let worker = threads.spawn(move || {
                let _done = done;
                with_progress(report, work)
            });
            while is_done.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                if let Err(crate::fault::Fault::Python(error)) = interrupted() {
                    lock(&stopped).get_or_insert(error);
                }
            }
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        match lock(&stopped).take() {
            Some(error) => Err(error.into()),
            None => result,
        }
    })
}
