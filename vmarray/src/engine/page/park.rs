//! Sleeping until a page is released.

use std::task::Waker;

use super::barrier::relax;
use super::entry::Entry;
use super::state::{State, WAITED};
use super::sync::Ordering;
use super::wakers::{Asleep, wake_tasks};

/// Looks at a busy page before its waiter goes to sleep.
const TURNS: u64 = 150;

/// Waits while `busy` holds of the page's state: spins, yields, then sleeps until [`unpark`]. May return
/// early.
pub(crate) fn park(entry: &Entry, busy: impl Fn(State) -> bool) {
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

/// Sleeps until [`unpark`], after the thread has [asked for it](Entry::ask_to_wake), unless `busy` does not
/// hold any more.
pub(crate) fn sleep(entry: &Entry, busy: impl Fn(State) -> bool) {
    // SAFETY: the key is the address of an entry, which no other user of the parking lot parks on; the
    // closures neither panic nor park.
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

/// As [`park`], for a task. `None` if there is no need to wait.
pub(crate) fn park_task(entry: &Entry, waker: &Waker, busy: impl Fn(State) -> bool) -> Option<Asleep> {
    let asleep = Asleep::at(key(entry), waker);
    entry.ask_to_wake(busy).then_some(asleep)
}

/// Wakes all who sleep for the page. Called by the thread that cleared `WAITED`.
#[cold]
pub(crate) fn unpark(entry: &Entry) {
    // SAFETY: as in `park`.
    unsafe {
        parking_lot_core::unpark_all(key(entry), parking_lot_core::DEFAULT_UNPARK_TOKEN);
    }
    wake_tasks(key(entry));
}

fn key(entry: &Entry) -> usize {
    std::ptr::from_ref(entry).addr()
}
