//! Locking under heavy contention, for locks that threads hold for microseconds.
//!
//! ```
//! use std::time::Duration;
//! use vmarray_support::contended::{lock, spin_until, spin_while};
//!
//! let submissions = parking_lot::Mutex::new(0);
//! std::thread::scope(|scope| {
//!     for _ in 0..4 {
//!         scope.spawn(|| *lock(&submissions) += 1);
//!     }
//!     let (spin, patience) = (Duration::from_micros(20), Duration::from_secs(60));
//!     assert!(spin_while(spin, patience, || *lock(&submissions) < 4));
//! });
//! assert!(spin_until(|| *lock(&submissions) == 4) && !spin_until(|| false));
//! ```

use std::hint;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// The time for which a waiting thread polls without yielding its time slice, and before it sleeps.
const SPIN: Duration = Duration::from_micros(30);
const PATIENCE: Duration = Duration::from_micros(60);
/// Number of polls of a waiting thread between two readings of the clock.
const LOOKS: u32 = 8;
/// Maximum number of pause instructions between two polls: rare polls disturb the lock's owner less.
const PAUSES_MAX: u32 = 16;

/// Locks a mutex that threads hold only for microseconds: polls for at most 60 µs, then sleeps.
///
/// A sleep and a wake-up take tens of microseconds. If waiting threads slept after a few polls, each change
/// of the owner would cost that time: a driver call of 3 µs would take 15 to 25 µs under contention.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let mut guard = mutex.try_lock();
    if guard.is_none() {
        spin_while(SPIN, PATIENCE, || {
            guard = mutex.try_lock();
            guard.is_none()
        });
    }
    guard.unwrap_or_else(|| mutex.lock())
}

/// Polls the condition `holds` at growing intervals until it returns false. Polls for the duration `spin`
/// without yielding the time slice, and for at most `patience` in all. Returns true if `holds` returned
/// false.
pub fn spin_while(spin: Duration, patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut pauses = 1;
    loop {
        for _ in 0..LOOKS {
            if !holds() {
                return true;
            }
            for _ in 0..pauses {
                hint::spin_loop();
            }
            pauses = (2 * pauses).min(PAUSES_MAX);
        }
        let waited = start.elapsed();
        if waited > patience {
            return false;
        }
        if waited > spin {
            thread::yield_now();
        }
    }
}

/// Polls a condition for some microseconds, about the time of a page copy, until it holds. The last polls
/// yield the time slice. Returns true if the condition holds; if not, the caller should sleep.
pub fn spin_until(mut holds: impl FnMut() -> bool) -> bool {
    const SPINS: u32 = 200;
    const YIELDS: u32 = 20;
    for turn in 0..SPINS + YIELDS {
        if holds() {
            return true;
        }
        if turn < SPINS {
            hint::spin_loop();
        } else {
            thread::yield_now();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spinning_thread_sleeps_in_the_end_and_is_woken() {
        let mutex = Mutex::new(());
        let owner = mutex.lock();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(lock(&mutex)));
            assert!(!spin_while(SPIN, PATIENCE, || true));
            drop(owner);
            waiter.join().unwrap();
        });
    }
}
