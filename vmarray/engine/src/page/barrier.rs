//! Asymmetric memory barrier, with a cheap side for frequent accesses and an expensive side for rare ones.
//!
//! [`light`] on one thread and [`heavy`] on another work like two sequentially consistent fences. If two
//! threads each store to a variable, pass their barrier, and load the other thread's variable, at least one
//! of them sees the other's store. `light` is only a compiler fence. `heavy` makes the Linux kernel run a
//! full fence on every core that runs a thread of this process (`membarrier`, private expedited; some
//! microseconds).
//!
//! Without that system call both functions are full fences, and [`asymmetric`] returns false. Accesses then
//! announce themselves by a slower path that issues the fence.
//!
//! The Linux kernel may refuse the call later, after the program installs a seccomp filter. Other threads
//! have passed `light` by then, so `heavy` needs a substitute: the calling thread visits every processor that
//! they may run on. On each processor the visit preempts the running thread. The context switches order the
//! earlier accesses of this thread before the visit, and the visit before its later accesses. So at the end
//! each thread has either published its store, or sees the caller's store when it continues. It takes some 10
//! microseconds for each idle processor and a time slice for each busy one. (Changing a page's protection,
//! which interrupts the other processors on most systems, is faster but insufficient: AArch64, and AMD
//! processors with `INVLPGB`, interrupt no processor.) If the kernel refuses that too, the process ends: the
//! thread that holds a page cannot continue, and all others would wait for it.

use super::sync::{Ordering, fence};

/// The cheap side of the asymmetric barrier: a compiler fence. Under loom, which does not model asymmetric
/// barriers, it is a full fence.
#[inline(always)]
pub fn light() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// The expensive side of the asymmetric barrier: a full fence on all cores that run threads of the process.
/// `threads` returns the threads that may have passed [`light`]; the call happens only if `membarrier` fails.
pub fn heavy(threads: impl FnOnce() -> Vec<Thread>) {
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    if asymmetric()
        && let Err(refused) = os::membarrier()
        && let Err(error) = os::visit_processors(&threads())
    {
        eprintln!(
            "vmarray: the system call membarrier failed ({refused}), although it worked before in this \
             process, and so did sched_setaffinity ({error}). Without either, no page can be evicted \
             safely, so the process aborts. Allow one of them in the seccomp filter, or install the filter \
             before the first array is used."
        );
        std::process::abort();
    }
    #[cfg(loom)]
    drop(threads);
}

/// The operating system's id of a thread.
pub type Thread = i32;

/// Returns the system's id of the calling thread.
#[cfg(not(loom))]
#[inline]
pub fn this_thread() -> Thread {
    os::this_thread()
}

/// Returns true if a thread on the cheap side needs only [`light`]; otherwise it needs a full fence.
#[cfg_attr(loom, expect(dead_code, reason = "the models assume it"))]
pub fn asymmetric() -> bool {
    #[cfg(loom)]
    return true;
    #[cfg(not(loom))]
    {
        use std::sync::OnceLock;
        static ASYMMETRIC: OnceLock<bool> = OnceLock::new();
        *ASYMMETRIC.get_or_init(|| std::env::var_os("VMARRAY_NO_MEMBARRIER").is_none() && os::register())
    }
}

/// Waits between two checks of a value that another thread will change within nanoseconds. `turns` is the
/// number of checks so far. After several checks the calling thread yields, and finally sleeps, because the
/// other thread may be preempted and have a lower priority.
pub fn relax(turns: u64) {
    #[cfg(loom)]
    {
        let _ = turns;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    match turns {
        ..100 => std::hint::spin_loop(),
        100..1000 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}

#[cfg(all(target_os = "linux", not(any(loom, miri))))]
mod os {
    use std::io;

    use backend_api::numa::Processors;

    use super::Thread;

    fn outcome(result: libc::c_long) -> io::Result<libc::c_long> {
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    fn call(command: libc::c_int) -> io::Result<libc::c_long> {
        // SAFETY: the call takes three integers and accesses no memory of the process.
        outcome(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) })
    }

    /// Registers the process for the private expedited `membarrier`. Returns false if Linux does not support
    /// it, or forbids it.
    pub(super) fn register() -> bool {
        let wanted = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED | libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
        let wanted = libc::c_long::from(wanted);
        call(libc::MEMBARRIER_CMD_QUERY).is_ok_and(|supported| supported & wanted == wanted)
            && call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_ok()
    }

    pub(super) fn membarrier() -> io::Result<()> {
        call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).map(drop)
    }

    pub(super) fn this_thread() -> Thread {
        // SAFETY: the call takes nothing and always succeeds.
        unsafe { libc::gettid() }
    }

    /// Returns the processors on which any of the threads may run.
    fn of_any(threads: &[Thread]) -> io::Result<Processors> {
        threads.iter().try_fold(Processors::default(), |all, &thread| match Processors::of(thread) {
            Ok(set) => Ok(all.or(&set)),
            // ESRCH: the thread has ended, so it runs on no processor.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(all),
            Err(error) => Err(error),
        })
    }

    /// Moves the calling thread to each processor on which any of the threads may run, one after the other.
    pub(super) fn visit_processors(threads: &[Thread]) -> io::Result<()> {
        let (home, all) = (Processors::of(0)?, of_any(threads)?);
        for processor in (0..Processors::ROOM).filter(|&processor| all.has(processor)) {
            if let Err(error) = Processors::from_iter([processor]).move_here() {
                // Ignore the error if none of the threads may run on this processor, which may be offline.
                if of_any(threads)?.has(processor) {
                    return Err(error);
                }
            }
        }
        home.move_here()
    }
}

/// Substitutes for systems without the system call, and for Miri, which does not support it.
#[cfg(all(any(not(target_os = "linux"), miri), not(loom)))]
mod os {
    use std::io;

    use super::Thread;

    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn this_thread() -> Thread {
        0
    }

    pub(super) fn membarrier() -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn visit_processors(_threads: &[Thread]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
