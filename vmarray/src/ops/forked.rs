//! Tests that operations of the library return errors in a child process after `fork`.

use crate::array::VirtualArray;
use crate::ops::view::{View as _, ViewMut as _};
use crate::setup::discovery::{Discovery, devices};
use crate::setup::open_devices::{close_unused, with_all_locks};

/// Operations in the child return errors and take no locks. A thread of the parent holds all locks during
/// `fork`.
#[test]
fn a_child_is_refused_while_other_threads_hold_the_locks() {
    let array = VirtualArray::<u32>::new(1000).unwrap();
    array.fill(.., 7).unwrap();
    array.evict(..).unwrap();
    let both = std::sync::Barrier::new(2);
    let is_refused = |error: crate::base::error::Error| error.to_string().contains("forked");
    let as_child = || {
        is_refused(VirtualArray::<u32>::new(10).unwrap_err())
            && is_refused(devices().unwrap_err())
            && is_refused(Discovery::new().open().unwrap_err())
            && !Discovery::new().report().absences.is_empty()
            && is_refused(array.get(999).unwrap_err())
            && close_unused() == 0
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            with_all_locks(|| {
                both.wait();
                both.wait();
            });
        });
        both.wait();
        // SAFETY: the child allocates, which the C library permits, and ends by `_exit` or by the alarm.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the call only sets an alarm, which ends the child if it hangs.
            unsafe { libc::alarm(60) };
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(as_child));
            // SAFETY: ends the process.
            unsafe { libc::_exit(outcome.map_or(2, |all| i32::from(!all))) };
        }
        let mut status = 0;
        // SAFETY: the call waits for the child and writes one number.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        both.wait();
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    });
    assert_eq!(array.get(999).unwrap(), 7);
}
