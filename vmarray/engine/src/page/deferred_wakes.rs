//! Deferred wake-ups: while a thread holds locks of this library, or serves requests, it collects the wakers
//! of tasks and calls them later.
//!
//! A waker is code of the program: it may poll a task at once or drop an array, which would deadlock under a
//! lock. A device may call a waker inside any of its functions.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::guards::WaitRule;
use crate::trace;

#[derive(Default)]
struct Deferred {
    /// Number of [`DeferredWakes`] that the thread has.
    deferrals: Cell<usize>,
    /// Number of [`LockScope`]s that the thread has.
    locks: Cell<usize>,
    tasks: RefCell<Vec<Waker>>,
    drivers: RefCell<Vec<Waker>>,
}

thread_local! {
    static DEFERRED: Deferred = Deferred::default();
}

impl Deferred {
    /// Runs the collected wakers of tasks, unless they must still be deferred.
    fn wake_tasks(&self) {
        while self.deferrals.get() == 0 && self.locks.get() == 0 {
            let tasks = self.tasks.take();
            if tasks.is_empty() {
                return;
            }
            tasks.into_iter().for_each(run);
        }
    }
}

fn add(count: &Cell<usize>, change: isize) {
    count.set(count.get().wrapping_add_signed(change));
}

/// Calls a waker, and catches its panic. So the panic affects neither other tasks nor the calling thread,
/// which may be releasing a page.
fn run(waker: Waker) {
    let _rule = WaitRule::usual();
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        trace::waker_panicked();
    }
}

/// Wakes a task, at once or as soon as the calling thread may run code of the program.
pub fn wake(waker: Waker) {
    let mut waker = Some(waker);
    // The access fails if the thread is ending. Such a thread holds no locks, so it runs the waker at once.
    let _ = DEFERRED.try_with(|deferred| {
        if deferred.deferrals.get() > 0 || deferred.locks.get() > 0 {
            deferred.tasks.borrow_mut().extend(waker.take());
        }
    });
    waker.into_iter().for_each(run);
}

/// While a thread has such a value, it collects wake-ups of tasks. The drop of its last value runs them.
pub struct DeferredWakes(PhantomData<*const ()>);

impl DeferredWakes {
    #[inline]
    pub fn begin() -> Self {
        let _ = DEFERRED.try_with(|deferred| add(&deferred.deferrals, 1));
        Self(PhantomData)
    }
}

impl Drop for DeferredWakes {
    fn drop(&mut self) {
        let _ = DEFERRED.try_with(|deferred| {
            add(&deferred.deferrals, -1);
            deferred.wake_tasks();
        });
    }
}

/// A thread has this value while it holds a lock and calls devices under the lock. During this time the
/// thread calls neither wakers of tasks nor the wakers that [`postpone`](Self::postpone) gets.
#[derive(Debug)]
pub struct LockScope(PhantomData<*const ()>);

impl LockScope {
    #[inline]
    pub fn begin() -> Self {
        let _ = DEFERRED.try_with(|deferred| add(&deferred.locks, 1));
        Self(PhantomData)
    }

    /// Defers the call of `driver`, a waker that serves requests of tasks, until the calling thread has
    /// dropped its last `LockScope`. Returns `false` and defers nothing if the thread has none.
    #[inline]
    pub fn postpone(driver: impl FnOnce() -> Waker) -> bool {
        DEFERRED
            .try_with(|deferred| {
                let is_locked = deferred.locks.get() > 0;
                if is_locked {
                    deferred.drivers.borrow_mut().push(driver());
                }
                is_locked
            })
            .unwrap_or(false)
    }
}

impl Drop for LockScope {
    fn drop(&mut self) {
        let _ = DEFERRED.try_with(|deferred| {
            add(&deferred.locks, -1);
            if deferred.locks.get() == 0 {
                deferred.drivers.take().into_iter().for_each(Waker::wake);
                deferred.wake_tasks();
            }
        });
    }
}

/// A task's waker that is safe to give to a device: it wakes the task when the thread may run program code.
pub struct OutsideLocks(pub Waker);

impl OutsideLocks {
    #[inline]
    pub fn waker(waker: &Waker) -> Waker {
        Arc::new(Self(waker.clone())).into()
    }
}

impl Wake for OutsideLocks {
    fn wake(self: Arc<Self>) {
        wake(self.0.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn tasks_and_drivers_are_woken_when_the_last_scope_is_gone() {
        let counts = [(); 2].map(|()| Arc::new(Count(AtomicUsize::new(0))));
        let [task, driver] = counts.clone().map(Waker::from);
        let seen = || [0, 1].map(|i| counts[i].0.load(Ordering::Relaxed));
        assert!(!LockScope::postpone(|| driver.clone()));
        wake(task.clone());
        assert_eq!(seen(), [1, 0]);
        let outer = DeferredWakes::begin();
        wake(task.clone());
        assert!(!LockScope::postpone(|| driver.clone()), "no lock is held");
        let lock = LockScope::begin();
        wake(task.clone());
        assert!(LockScope::postpone(|| driver.clone()));
        drop(LockScope::begin());
        assert_eq!(seen(), [1, 0]);
        drop(lock);
        assert_eq!(seen(), [1, 1], "tasks are deferred still");
        drop(DeferredWakes::begin());
        assert_eq!(seen(), [1, 1]);
        drop(outer);
        assert_eq!(seen(), [3, 1]);
    }
}
