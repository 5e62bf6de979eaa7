//! Locks that many threads want at the same moment, each for some microseconds.
//!
//! ```
//! use std::time::Duration;
//! use backend_api::contended::{lock, spin_until, spin_while};
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

/// How long a thread looks without giving its time slice away, and in all before it sleeps.
const SPIN: Duration = Duration::from_micros(30);
const PATIENCE: Duration = Duration::from_micros(60);
/// Looks before the clock is read again.
const LOOKS: u32 = 8;
/// Pauses between two looks at most: who looks less often disturbs the owner less.
const PAUSES_MAX: u32 = 16;

/// Locks a mutex whose owners hold it for microseconds: looks for a while, then sleeps.
///
/// To put a thread to sleep and to wake it takes the system tens of microseconds. A mutex that does so after
/// a few looks is handed on at that pace once several threads want it at the same time, and a call into a
/// driver that takes 3 µs costs 15 to 25. To look for 60 µs at most costs less than that.
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

/// Looks, less and less often, while something holds: for `spin` without giving the time slice away, and for
/// `patience` in all. Whether it has ended.
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

/// Looks for some microseconds, in which a page is copied, and gives the time slice away for the last of
/// them, until something holds. Whether it does; if not, the caller sleeps.
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
    fn whoever_looked_long_enough_sleeps_and_is_woken() {
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
