//! A barrier whose cost lies on one side.
//!
//! [`light`] on one thread and [`heavy`] on another work like two sequentially consistent fences: of two
//! threads that each store, then pass their barrier, then load what the other stored, at least one sees the
//! other's store. `light` is only a fence for the compiler; `heavy` has the kernel run a full fence on every
//! core that runs a thread of this process (Linux `membarrier`, private expedited: some microseconds).
//!
//! Where the kernel has no such call, both are full fences; [`asymmetric`] tells, and the hazard slots of
//! threads are then reached by a slower way that issues the fence.
//!
//! A kernel that has granted the call may still refuse it later, to a seccomp filter that the program
//! installs. Others have passed `light` by then, so `heavy` has to do without: the calling thread visits
//! every processor that the others may run on. A thread that runs there makes room for it, and the scheduler
//! orders what a thread did before it is taken from a processor before whatever runs there next, and that
//! before what the thread does afterwards. So at the end each thread has either shown its store, or sees the
//! caller's when it goes on. It takes some 10 microseconds for each idle processor and a time slice for each
//! busy one. (Changing the protection of a page, which has the other processors interrupted on most systems,
//! is faster and not enough: AArch64, and AMD processors with `INVLPGB`, do that without interrupting
//! anybody.) Where that is refused as well, the process ends: the thread that holds a page cannot go on, and
//! all others would wait for it.

use super::sync::{Ordering, fence};

/// The fence for the compiler that the cheap side needs; a full fence under loom, which knows no asymmetry.
#[inline(always)]
pub(crate) fn light() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// The barrier of the side that can wait. `threads` gives threads that may have passed [`light`].
pub(crate) fn heavy(threads: impl FnOnce() -> Vec<Thread>) {
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    if asymmetric()
        && let Err(refused) = os::membarrier()
        && let Err(error) = os::visit_processors(&threads())
    {
        eprintln!(
            "vmarray: the system has refused membarrier ({refused}), which it had granted to this process before, and \
             to move a thread in its place ({error}). Pages cannot be taken from other threads without, so the process \
             ends. Allow membarrier or sched_setaffinity in the seccomp filter, or install it before the first array \
             is used."
        );
        std::process::abort();
    }
    #[cfg(loom)]
    drop(threads);
}

/// A thread, as the system names it.
pub(crate) type Thread = i32;

/// The calling thread.
#[cfg(not(loom))]
pub(crate) fn this_thread() -> Thread {
    os::this_thread()
}

/// Whether [`light`] suffices on the other side.
pub(crate) fn asymmetric() -> bool {
    #[cfg(loom)]
    return true;
    #[cfg(not(loom))]
    {
        use std::sync::OnceLock;
        static ASYMMETRIC: OnceLock<bool> = OnceLock::new();
        *ASYMMETRIC.get_or_init(|| std::env::var_os("VMARRAY_NO_MEMBARRIER").is_none() && os::register())
    }
}

/// What a thread does between two looks at something that another thread will change within nanoseconds,
/// unless it lost its core: then this one gives its own away, and at last sleeps, so that a thread of lower
/// priority gets on, too.
pub(crate) fn relax(turns: u64) {
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
        // SAFETY: the call takes three integers and touches no memory of the process.
        outcome(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) })
    }

    /// Asks for the use of the private expedited barrier; false if the kernel has none or forbids it.
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

    /// Those that any of some threads may run on.
    fn of_any(threads: &[Thread]) -> io::Result<Processors> {
        threads.iter().try_fold(Processors::default(), |all, &thread| match Processors::of(thread) {
            Ok(set) => Ok(all.or(&set)),
            // It has ended, and so given its processor away.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(all),
            Err(error) => Err(error),
        })
    }

    /// Runs on each processor that any of the threads may run on, one after the other.
    pub(super) fn visit_processors(threads: &[Thread]) -> io::Result<()> {
        let (home, all) = (Processors::of(0)?, of_any(threads)?);
        for processor in (0..Processors::ROOM).filter(|&processor| all.has(processor)) {
            if let Err(error) = Processors::from_iter([processor]).move_here() {
                // Switched off meanwhile, or forbidden to them: then they were taken from it.
                if of_any(threads)?.has(processor) {
                    return Err(error);
                }
            }
        }
        home.move_here()
    }
}

/// Systems without such a call; and Miri, which knows none.
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
