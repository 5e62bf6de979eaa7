//! Thread-local list of the page guards that a thread holds. Before a thread blocks on a guarded page, it
//! checks the list, because two threads with guards could deadlock.
//!
//! Lock ordering: a thread that holds guards may block on a guarded page only if this page comes after all
//! pages that it holds. Pages are ordered by the age of their arrays, then by page number. Guards cannot move
//! to other threads, so the list is complete.
//!
//! The list keeps an entry of a leaked guard, but ignores it once the guard's array is dropped.

mod wait_rule;

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, PoisonError, RwLock, RwLockWriteGuard};

use crate::page::wake_tasks_of_thread;
use crate::progress::{self, WorkHold};
use crate::scoped_threads;

pub use wait_rule::WaitRule;
use wait_rule::never_waits;

/// The numbers of all existing arrays. A thread that holds guards reads the set before an operation returns
/// `WouldDeadlock`, because leaked guards of dropped arrays do not count.
static LIVING: LazyLock<RwLock<HashSet<u64>>> = LazyLock::new(RwLock::default);

thread_local! {
    /// The array and the page of each guard of the thread.
    static HELD: RefCell<Vec<(u64, u64)>> = const { RefCell::new(Vec::new()) };
    /// The array of each future of the thread that already counts as a guard.
    static EXPECTED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn with<R>(run: impl FnOnce(&mut Vec<(u64, u64)>) -> R) -> Option<R> {
    HELD.try_with(|held| run(&mut held.borrow_mut())).ok()
}

fn living() -> RwLockWriteGuard<'static, HashSet<u64>> {
    // A panic cannot leave the set inconsistent, so ignore that the lock is poisoned.
    LIVING.write().unwrap_or_else(PoisonError::into_inner)
}

/// Removes guards of dropped arrays, which were leaked, from a list.
fn strike_out(held: &mut Vec<(u64, u64)>) {
    let living = LIVING.read().unwrap_or_else(PoisonError::into_inner);
    held.retain(|(array, _)| living.contains(array));
}

/// Returns true if the calling thread holds a page guard of any array.
#[inline]
pub fn held() -> bool {
    let is_any = |held: &mut Vec<(u64, u64)>| {
        !held.is_empty() && {
            strike_out(held);
            !held.is_empty()
        }
    };
    with(is_any).unwrap_or(false)
}

/// Returns true if the thread must not block until another thread drops a page guard. This is so if the
/// thread has a guard, if one of its futures will return a guard, or if its [`WaitRule`] forbids the wait. A
/// future keeps its page pinned until the thread polls or drops the future.
#[inline]
pub fn must_not_await_guards() -> bool {
    never_waits() || held_or_expected()
}

fn held_or_expected() -> bool {
    let expected = EXPECTED.try_with(|expected| {
        let mut expected = expected.borrow_mut();
        !expected.is_empty() && {
            let living = LIVING.read().unwrap_or_else(PoisonError::into_inner);
            expected.retain(|array| living.contains(array));
            !expected.is_empty()
        }
    });
    held() || expected.unwrap_or(false)
}

/// Returns true if other threads may wait for the calling thread: the thread holds page guards, has a future
/// that will return a guard, or runs a callback for an operation that holds pages. Such a thread must not
/// wait for threads that use arrays.
#[inline]
pub fn is_waited_for() -> bool {
    held_or_expected() || progress::inherits(|hold| matches!(hold, WorkHold::Pages { .. }))
}

/// Returns true if the thread must not use helper threads: [`is_waited_for`] is true, or it runs a function
/// of the program for a snapshot, about which helpers would not know.
fn works_alone() -> bool {
    is_waited_for() || progress::inherits(|_| true)
}

/// The identity of an array, unique in the process. The array owns this value; dropping it ends the identity.
#[derive(Debug)]
pub struct Identity(u64);

impl Identity {
    /// Returns the identity of a new array, greater than all earlier ones.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Before the first guard exists, forbid helper threads to threads that hold guards.
        scoped_threads::set_rule(works_alone);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        living().insert(number);
        Self(number)
    }

    /// Returns the number of the array, which no later array reuses.
    #[inline]
    pub fn number(&self) -> u64 {
        self.0
    }

    /// Adds a guard of this page to the calling thread's list of guards.
    #[inline]
    pub fn hold(&self, page: u64) {
        with(|held| {
            if held.len() == held.capacity() {
                // Remove leaked guards whose array is dropped, so that they take no memory.
                strike_out(held);
            }
            held.push((self.0, page));
        });
        wake_tasks_of_thread();
    }

    /// Removes a dropped guard of this page from the calling thread's list of guards.
    #[inline]
    pub fn let_go(&self, page: u64) {
        with(|held| {
            if let Some(at) = held.iter().rposition(|&known| known == (self.0, page)) {
                held.swap_remove(at);
            }
        });
    }

    /// Counts a future of the calling thread as a guard, because the future will return one.
    #[inline]
    pub fn expect(&self) {
        let _ = EXPECTED.try_with(|expected| expected.borrow_mut().push(self.0));
    }

    /// Ends the count of a future as a guard, because it has returned its guard or was dropped.
    #[inline]
    pub fn expect_no_more(&self) {
        let _ = EXPECTED.try_with(|expected| {
            let mut expected = expected.borrow_mut();
            if let Some(at) = expected.iter().rposition(|known| *known == self.0) {
                expected.swap_remove(at);
            }
        });
    }

    /// Returns the first page of a range that the calling thread holds by a guard and that satisfies `is_so`.
    #[inline]
    pub fn first_held(&self, pages: &Range<u64>, is_so: impl Fn(u64) -> bool) -> Option<u64> {
        let own = |held: &mut Vec<(u64, u64)>| {
            let own = held.iter().filter(|(array, page)| *array == self.0 && pages.contains(page));
            own.map(|(_, page)| *page).filter(|page| is_so(*page)).min()
        };
        with(own).flatten()
    }

    /// Returns true if an operation of the calling thread holds the page while it runs a callback that the
    /// caller passed to the operation. The callback must then not wait for the page.
    #[inline]
    pub fn is_held_by_work(&self, page: u64) -> bool {
        progress::inherits(|hold| match hold {
            WorkHold::Pages { array, pages } => *array == self.0 && pages.contains(&page),
            WorkHold::Snapshot { .. } => false,
        })
    }

    /// Returns true if the calling thread may wait for the end of another thread's snapshot of the array.
    /// False if the thread runs a function of the program for a snapshot of this array or of a younger one.
    #[inline]
    pub fn may_wait_for_snapshot(&self) -> bool {
        !progress::inherits(|hold| matches!(hold, WorkHold::Snapshot { array } if *array >= self.0))
    }

    /// Returns true while the thread runs a function of the program during its own snapshot of the array.
    #[inline]
    pub fn is_inside_snapshot(&self) -> bool {
        progress::inherits(|hold| *hold == WorkHold::Snapshot { array: self.0 })
    }

    /// Returns true if the calling thread may block until other threads drop their guards of this page. To
    /// avoid deadlocks, a thread waits only for pages after all pages that it guards.
    #[inline]
    pub fn may_wait_for(&self, page: u64) -> bool {
        if never_waits() {
            return false;
        }
        let after_all = |held: &Vec<(u64, u64)>| held.iter().all(|&known| known < (self.0, page));
        with(|held| {
            after_all(held) || {
                strike_out(held);
                after_all(held)
            }
        })
        .unwrap_or(true)
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        living().remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_allowed_in_ascending_order_of_age_and_page() {
        let (older, younger) = (Identity::unique(), Identity::unique());
        assert!(older.may_wait_for(0) && !held());
        older.hold(5);
        assert!(held());
        assert!(older.may_wait_for(6) && younger.may_wait_for(0));
        assert!(!older.may_wait_for(5) && !older.may_wait_for(4));
        younger.hold(3);
        assert!(!older.may_wait_for(6) && younger.may_wait_for(4));
        older.let_go(5);
        younger.let_go(3);
        assert!(older.may_wait_for(0) && !held());
    }

    #[test]
    fn a_page_held_twice_is_held_until_both_are_gone() {
        let array = Identity::unique();
        array.hold(1);
        array.hold(1);
        array.let_go(1);
        assert!(held() && !array.may_wait_for(1));
        array.let_go(1);
        assert!(!held());
    }

    #[test]
    fn leaked_guards_count_as_long_as_their_array_lives() {
        let survivor = Identity::unique();
        let leaky = Identity::unique();
        leaky.hold(7);
        assert!(held() && !survivor.may_wait_for(0));
        drop(leaky);
        assert!(survivor.may_wait_for(0) && !held());
    }

    #[test]
    fn leaked_guards_of_many_arrays_take_no_memory() {
        for _ in 0..10_000 {
            Identity::unique().hold(0);
        }
        assert!(with(|held| held.capacity()).unwrap() < 100);
        assert!(!held());
    }

    #[test]
    fn a_thread_that_never_waits_runs_program_code_by_the_usual_rule() {
        let array = Identity::unique();
        let rule = WaitRule::never();
        assert!(!array.may_wait_for(0) && must_not_await_guards() && !held());
        let usual = WaitRule::usual();
        assert!(array.may_wait_for(0) && !must_not_await_guards());
        drop(usual);
        assert!(!array.may_wait_for(0));
        drop(rule);
        assert!(array.may_wait_for(0) && !must_not_await_guards());
    }

    #[test]
    fn guards_of_other_threads_do_not_count() {
        let array = Identity::unique();
        array.hold(0);
        std::thread::scope(|threads| {
            threads.spawn(|| assert!(!held() && array.may_wait_for(0)));
        });
        array.let_go(0);
    }
}
