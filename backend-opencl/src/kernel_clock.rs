//! Clock for kernels on a processor: a word of shared memory, which a thread of the process increments while
//! launches with a time limit are in flight.
//!
//! OpenCL C has no clock, and a running kernel cannot be stopped from outside. On a processor, kernels and
//! the host share memory coherently, so a kernel that reads the word regularly learns how long it has run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use backend_api::HostMemory;
use parking_lot::{Condvar, Mutex};

use crate::core::OpenClCore;
use crate::host_memory::HostPiece;

/// The time from one increment to the next.
const TICK: Duration = Duration::from_millis(5);
const BYTES: usize = 64;

/// Clock of a queue's launches: a word of shared memory. It is never zero before 2^32 ticks.
#[derive(Debug)]
pub(crate) struct KernelClock(HostPiece);

/// Guard of a launch in flight that reads a clock; the clock runs while guards exist.
#[derive(Debug)]
pub(crate) struct ClockUse(Arc<KernelClock>);

/// The clocks of launches in flight, each with the number of its launches.
struct Running {
    clocks: Vec<(Arc<KernelClock>, usize)>,
    has_thread: bool,
}

static RUNNING: Mutex<Running> = Mutex::new(Running { clocks: Vec::new(), has_thread: false });
static STARTED: Condvar = Condvar::new();

impl KernelClock {
    /// Creates a clock for kernels; `None` without memory that kernels share with the host.
    pub fn new(core: &Arc<OpenClCore>) -> Option<Self> {
        let piece = HostPiece::allocate(core, BYTES, HostMemory::Pinned).ok()?;
        let clock = Self(piece).filter_shared()?;
        clock.word().store(1, Relaxed);
        Some(clock)
    }

    /// Returns the memory if kernels share it with the host; otherwise a kernel would read a copy.
    fn filter_shared(self) -> Option<Self> {
        self.0.shared.then_some(self)
    }

    /// Returns the address of the word from which kernels read the clock.
    pub fn address(&self) -> *mut u8 {
        self.0.at(0)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the memory is zeroed, aligned to 64 bytes at least, and lives as long as the clock. The
        // host writes to it by this atomic alone, and kernels only read.
        unsafe { AtomicU32::from_ptr(self.address().cast()) }
    }

    /// Converts a time limit to ticks of the clock, at least 1.
    pub fn ticks(limit: Duration) -> u32 {
        u32::try_from(limit.as_millis() / TICK.as_millis()).unwrap_or(u32::MAX >> 1).clamp(1, u32::MAX >> 1)
    }
}

impl ClockUse {
    /// Starts the clock, which runs until the returned value is dropped. Returns `None` if the system cannot
    /// start a thread for it.
    pub fn start(clock: &Arc<KernelClock>) -> Option<Self> {
        let mut running = RUNNING.lock();
        if !running.has_thread {
            std::thread::Builder::new().name("opencl-clock".into()).spawn(tick).ok()?;
            running.has_thread = true;
        }
        if running.clocks.is_empty() {
            STARTED.notify_one();
        }
        match running.clocks.iter_mut().find(|(known, _)| Arc::ptr_eq(known, clock)) {
            Some((_, launches)) => *launches += 1,
            None => running.clocks.push((Arc::clone(clock), 1)),
        }
        Some(Self(Arc::clone(clock)))
    }
}

impl Drop for ClockUse {
    fn drop(&mut self) {
        let mut running = RUNNING.lock();
        if let Some(at) = running.clocks.iter().position(|(known, _)| Arc::ptr_eq(known, &self.0)) {
            running.clocks[at].1 -= 1;
            if running.clocks[at].1 == 0 {
                // Remove only the list's reference under the lock. `self` still owns the clock, and releases
                // its memory without the lock.
                running.clocks.swap_remove(at);
            }
        }
    }
}

/// Body of the thread that increments the clocks.
fn tick() {
    let mut running = RUNNING.lock();
    loop {
        if running.clocks.is_empty() {
            STARTED.wait(&mut running);
        } else {
            // A new launch has woken this thread before the end of a tick, so start a new tick.
            if !STARTED.wait_for(&mut running, TICK).timed_out() {
                continue;
            }
            for (clock, _) in &running.clocks {
                clock.word().fetch_add(1, Relaxed);
            }
        }
    }
}
