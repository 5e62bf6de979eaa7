//! Sleeping until something changes that is no lock's own matter: an *eventcount*.
//!
//! A thread [prepares](EventCount::prepare), looks whether what it needs is there, and if not
//! [waits](EventCount::wait). A thread that brings something [advances](EventCount::advance) the count
//! afterwards, and then [notifies](EventCount::notify) those asleep. Whatever is brought after the first
//! thread has prepared ends its wait, so no change falls between the look and the sleep; and to bring
//! something costs one addition where nobody sleeps. loom checks that.
//!
//! D. P. Reed, R. K. Kanodia, "Synchronization with eventcounts and sequencers", 1979.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::{Condvar, Mutex};
#[cfg(not(loom))]
use parking_lot::{Condvar, Mutex};

/// What the count was when a thread prepared to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventKey(u64);

#[derive(Debug, Default)]
pub(crate) struct EventCount {
    count: AtomicU64,
    sleepers: AtomicU32,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl EventCount {
    /// To be called before the look that finds nothing.
    pub(crate) fn prepare(&self) -> EventKey {
        EventKey(self.count.load(Ordering::SeqCst))
    }

    /// Whether nothing was brought since a thread prepared.
    pub(crate) fn is_current(&self, key: EventKey) -> bool {
        self.prepare() == key
    }

    /// Sleeps until something is brought after the key was made.
    pub(crate) fn wait(&self, key: EventKey) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Either the look below sees the change, or the thread that made it sees this sleeper.
        fence(Ordering::SeqCst);
        #[cfg(not(loom))]
        {
            let mut sleep = self.sleep.lock();
            while self.is_current(key) {
                self.wake.wait(&mut sleep);
            }
        }
        #[cfg(loom)]
        {
            let mut sleep = self.sleep.lock().unwrap();
            while self.is_current(key) {
                sleep = self.wake.wait(sleep).unwrap();
            }
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends all waits that were prepared so far: of threads that look at once, of those asleep with the next
    /// [`notify`](Self::notify).
    pub(crate) fn advance(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Wakes threads whose waits have ended.
    pub(crate) fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // A thread about to sleep holds the lock: after this it sleeps, or has looked again.
            drop(self.sleep.lock());
            self.wake.notify_all();
        }
    }

    /// How many threads sleep, or are about to.
    #[cfg(test)]
    pub(crate) fn sleepers(&self) -> u32 {
        self.sleepers.load(Ordering::SeqCst)
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    /// Two threads that wait, one that brings: loom reports a deadlock if one of them sleeps on.
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
