//! Sleep of a thread or task until another thread releases a page, and the wake-up at the release.

use std::task::Waker;

use super::barrier::relax;
use super::entry::Entry;
use super::state::{State, WAITED};
use super::sync::Ordering;
use super::wakers::{Asleep, wake_tasks};

/// Number of checks of a busy page before the waiting thread sleeps.
const TURNS: u64 = 150;

/// Waits while `busy` holds for the page's state: spins, yields, then sleeps until another thread calls
/// [`unpark`]. May return early. The conditions of [`sleep`] apply to `busy`.
#[inline]
pub fn park(entry: &Entry, busy: impl Fn(State) -> bool) {
    for turn in 0..TURNS {
        if !busy(entry.state(Ordering::Acquire)) {
            return;
        }
        relax(turn);
    }
    if entry.ask_to_wake(&busy) {
        sleep(entry, busy);
    }
}

/// Sleeps until another thread calls [`unpark`], after [requesting](Entry::ask_to_wake) the wake-up. Returns
/// at once if `busy` no longer holds.
///
/// `busy` runs under a lock of the parking lot, so it must neither panic nor take locks of `parking_lot`. It
/// may take locks of the standard library.
pub fn sleep(entry: &Entry, busy: impl Fn(State) -> bool) {
    // SAFETY: the key is the address of an entry, which no other user of the parking lot parks on. The first
    // closure neither panics nor parks, as the callers have promised for `busy`; the others do nothing.
    unsafe {
        parking_lot_core::park(
            key(entry),
            || {
                let state = entry.state(Ordering::Acquire);
                state.any(WAITED) && busy(state)
            },
            || {},
            |_, _| {},
            parking_lot_core::DEFAULT_PARK_TOKEN,
            None,
        );
    }
}

/// Registers the waker of a task that waits while `busy` holds, as [`park`] does for a thread. Returns `None`
/// if the task need not wait.
#[inline]
pub fn park_task(entry: &Entry, waker: &Waker, busy: impl Fn(State) -> bool) -> Option<Asleep> {
    let asleep = Asleep::at(key(entry), waker);
    entry.ask_to_wake(busy).then_some(asleep)
}

/// Wakes all threads and tasks that sleep for the page. The thread that cleared `WAITED` calls this.
#[cold]
pub fn unpark(entry: &Entry) {
    // SAFETY: as in `sleep`: the key is the address of an entry.
    unsafe {
        parking_lot_core::unpark_all(key(entry), parking_lot_core::DEFAULT_UNPARK_TOKEN);
    }
    wake_tasks(key(entry));
}

fn key(entry: &Entry) -> usize {
    std::ptr::from_ref(entry).addr()
}
