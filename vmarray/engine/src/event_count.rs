//! Eventcount: a condition variable without a lock. Threads sleep until another one changes a value.
//!
//! A consumer calls [`prepare`](EventCount::prepare), checks its condition, and calls
//! [`wait`](EventCount::wait) if the condition is false. A producer changes the value, calls
//! [`advance`](EventCount::advance), and then [`notify`](EventCount::notify), which wakes the sleeping
//! threads. A change after `prepare` ends the wait, so no wake-up is lost between check and sleep; a loom
//! test checks this. If no thread sleeps, a change costs one atomic addition.
//!
//! D. P. Reed, R. K. Kanodia, "Synchronization with eventcounts and sequencers", 1979.

use crate::page::sync::{AtomicU32, AtomicU64, Condvar, Mutex, Ordering, fence};

/// The value of the event count when a thread prepared to wait; the thread waits for a greater value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKey(u64);

#[derive(Debug, Default)]
pub struct EventCount {
    count: AtomicU64,
    sleepers: AtomicU32,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl EventCount {
    /// Begins a wait. Then the caller checks a condition and, if it is false, calls [`wait`](Self::wait).
    #[inline]
    pub fn prepare(&self) -> EventKey {
        EventKey(self.count.load(Ordering::SeqCst))
    }

    /// Returns true if no producer has advanced the count since the call of `prepare` that returned `key`.
    #[inline]
    pub fn is_current(&self, key: EventKey) -> bool {
        self.prepare() == key
    }

    /// Blocks until the first [`advance`](Self::advance) after the call of `prepare` that returned `key`.
    #[inline]
    pub fn wait(&self, key: EventKey) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `notify`: this check sees the new count, or the producer sees this sleeper.
        fence(Ordering::SeqCst);
        let mut sleep = self.sleep.lock();
        while self.is_current(key) {
            self.wake.wait(&mut sleep);
        }
        drop(sleep);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends all prepared waits. A thread that is still awake returns at once; a sleeping one returns at the
    /// next [`notify`](Self::notify).
    #[inline]
    pub fn advance(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Wakes the sleeping threads whose waits [`advance`](Self::advance) has ended.
    #[inline]
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // Take the lock once: a thread that is about to sleep holds the lock, so afterwards it sleeps or
            // has checked the count again.
            drop(self.sleep.lock());
            self.wake.notify_all();
        }
    }

    /// Returns the number of threads that sleep or are about to sleep, for tests.
    #[must_use]
    pub fn sleepers(&self) -> u32 {
        self.sleepers.load(Ordering::SeqCst)
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    /// Loom test of two consumers and one producer. Loom reports a deadlock if a consumer sleeps on.
    #[test]
    fn no_change_is_overlooked() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let shared = Arc::new((EventCount::default(), AtomicBool::new(false)));
            let wait = |(events, is_there): &(EventCount, AtomicBool)| loop {
                let key = events.prepare();
                if is_there.load(Ordering::Acquire) {
                    break;
                }
                events.wait(key);
            };
            let threads = [(); 2].map(|()| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || wait(&shared))
            });
            shared.1.store(true, Ordering::Release);
            shared.0.advance();
            shared.0.notify();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(shared.0.sleepers(), 0);
        });
    }
}
