//! A barrier whose cost lies on one side.
//!
//! [`light`] on one thread and [`heavy`] on another work like two sequentially consistent fences: of two threads that
//! each store, then pass their barrier, then load what the other stored, at least one sees the other's store. `light`
//! is only a fence for the compiler; `heavy` has the kernel run a full fence on every core that runs a thread of
//! this process (Linux `membarrier`, private expedited: some microseconds).
//!
//! Where the kernel has no such call, both are full fences; [`asymmetric`] tells, and the hazard slots of
//! threads are then reached by a slower way that issues the fence.

use super::sync::{Ordering, fence};

/// The fence for the compiler that the cheap side needs; a full fence under loom, which knows no asymmetry.
#[inline(always)]
pub(crate) fn light() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// The barrier of the side that can wait.
pub(crate) fn heavy() {
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    if asymmetric() {
        os::membarrier();
    }
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

/// What a thread does between two looks at something that another thread will change within nanoseconds, unless it lost
/// its core.
pub(crate) fn relax(turns: u32) {
    #[cfg(loom)]
    {
        let _ = turns;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    if turns < 100 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

#[cfg(all(target_os = "linux", not(loom)))]
mod os {
    fn call(command: libc::c_int) -> libc::c_long {
        // SAFETY: the call takes three integers and touches no memory of the process.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
    }

    /// Asks for the use of the private expedited barrier; false if the kernel has none or forbids it.
    pub(super) fn register() -> bool {
        let wanted = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED | libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
        let supported = call(libc::MEMBARRIER_CMD_QUERY);
        supported >= 0
            && supported & libc::c_long::from(wanted) == libc::c_long::from(wanted)
            && call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0
    }

    pub(super) fn membarrier() {
        let result = call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        // After registration the call cannot fail; were it to, going on would be unsound.
        assert_eq!(result, 0, "membarrier failed after it was registered");
    }
}

#[cfg(all(not(target_os = "linux"), not(loom)))]
mod os {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn membarrier() {
        unreachable!("never registered");
    }
}
