//! Long copies in RAM on several threads, because one thread uses only a fraction of the bandwidth.
//!
//! Concurrent copies share the cores: together they use at most one thread per core.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::error::Result;
use crate::scoped_threads::{self, CORES, works_alone};

/// Minimum number of bytes per thread. Starting a thread takes a hundredth of the time of copying them.
const SHARE_BYTES: u64 = 8 << 20;
/// Greatest useful number of threads per bus; each thread copies some 8 GB/s.
const THREADS_A_BUS: usize = 12;

/// Number of threads that are in long copies, including the callers.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Returns true if a copy of `bytes` bytes would now run on several threads, or next to other copies.
#[inline]
pub fn is_shared(bytes: u64) -> bool {
    bytes >= 2 * SHARE_BYTES || BUSY.load(Ordering::Relaxed) > 0
}

/// A number of threads that a copy has reserved, until this value is dropped.
struct Taken {
    count: usize,
    busy: &'static AtomicUsize,
}

impl Taken {
    /// Reserves `useful` threads, limited by the cores that other copies do not use, but at least one.
    fn new(useful: usize, cores: usize, busy: &'static AtomicUsize) -> Self {
        let others = busy.fetch_add(useful, Ordering::Relaxed);
        let count = useful.min(cores.saturating_sub(others)).max(1);
        busy.fetch_sub(useful - count, Ordering::Relaxed);
        Self { count, busy }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.busy.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// Runs `copy` on the calling thread and on helper threads; each call copies parts until none is left. There
/// are no helpers if `bytes` is too small, or if the calling thread holds guards, because helpers could wait
/// for these guards forever. `buses` is the number of buses between host and devices that the copies use.
/// Returns the error of one thread.
#[inline]
pub fn run(bytes: u64, buses: usize, copy: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let useful = (bytes / SHARE_BYTES).clamp(1, (THREADS_A_BUS * buses) as u64) as usize;
    let taken = Taken::new(if works_alone() { 1 } else { useful }, *CORES, &BUSY);
    on_threads(taken.count, copy)
}

fn on_threads(count: usize, copy: impl Fn() -> Result<()> + Sync) -> Result<()> {
    if count == 1 {
        return copy();
    }
    let error = Mutex::new(None);
    scoped_threads::together(count, || {
        if let Err(failed) = copy() {
            error.lock().get_or_insert(failed);
        }
    });
    error.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn copies_share_the_cores() {
        static BUSY: AtomicUsize = AtomicUsize::new(0);
        let taken = [5, 4, 4, 4].map(|useful| Taken::new(useful, 8, &BUSY));
        assert_eq!(taken.each_ref().map(|taken| taken.count), [5, 3, 1, 1]);
        drop(taken);
        assert_eq!(BUSY.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn short_copies_stay_on_their_thread() {
        let caller = thread::current().id();
        run(SHARE_BYTES * 2 - 1, 4, || {
            assert_eq!(thread::current().id(), caller);
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn all_threads_run_and_an_error_is_returned() {
        let ran = AtomicUsize::new(0);
        let outcome = on_threads(5, || {
            let part = ran.fetch_add(1, Ordering::Relaxed);
            if part == 3 { Err(ErrorKind::NoMemory { bytes: part }.into()) } else { Ok(()) }
        });
        assert_eq!(ran.into_inner(), 5);
        assert_eq!(*outcome.unwrap_err().kind(), ErrorKind::NoMemory { bytes: 3 });
    }
}
