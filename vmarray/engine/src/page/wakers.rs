//! Wakers of tasks that wait until a thread releases an object, such as a page. `park` is for threads.
//!
//! A task registers its waker under a key, the address of the awaited object, and then checks the object
//! again. The thread that releases the object wakes all tasks under its key. Wakers are foreign code, and run
//! while the thread holds no locks.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

use super::deferred_wakes::wake;

/// Number of lists of sleeping tasks; a task's key selects its list.
const LISTS: usize = 64;

#[derive(Debug)]
struct Sleeper {
    key: usize,
    number: u64,
    /// The thread that last polled the task.
    thread: usize,
    waker: Waker,
}

static SLEEPERS: [Mutex<Vec<Sleeper>>; LISTS] = [const { Mutex::new(Vec::new()) }; LISTS];
/// At least the number of tasks in all lists. A thread that releases an object reads this first, so it
/// usually needs no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The registration of a waiting task in a list. Dropping this value removes the task from the list.
#[derive(Debug)]
pub struct Asleep {
    key: usize,
    number: u64,
}

fn list(key: usize) -> &'static Mutex<Vec<Sleeper>> {
    &SLEEPERS[(key as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> (usize::BITS - LISTS.ilog2())]
}

/// Returns a number that identifies the calling thread.
#[inline]
pub fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    // The access fails only if the thread is ending. Such a thread polls no tasks, so any number is right.
    PLACE.try_with(|place| std::ptr::from_ref(place).addr()).unwrap_or(0)
}

impl Asleep {
    /// Registers the waker of a task that waits for the object at the address `key`. Afterwards the caller
    /// must check again if the task must wait.
    pub fn at(key: usize, waker: &Waker) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let sleeper = Sleeper { key, number, thread: this_thread(), waker: waker.clone() };
        // Increment first, so that the count is never too low. Otherwise a thread that wakes this task
        // between the two steps would decrement the count too early. The count would miss another task, and
        // no thread would look for it.
        COUNT.fetch_add(1, Ordering::SeqCst);
        list(key).lock().push(sleeper);
        Self { key, number }
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        let mut list = list(self.key).lock();
        if let Some(at) = list.iter().position(|sleeper| sleeper.number == self.number) {
            let gone = list.swap_remove(at);
            COUNT.fetch_sub(1, Ordering::SeqCst);
            drop(list);
            // Drop the waker without the lock, because its drop is code of the program.
            drop(gone);
        }
    }
}

/// Wakes all tasks that wait for the object at the address `key`.
pub fn wake_tasks(key: usize) {
    if COUNT.load(Ordering::SeqCst) > 0 {
        wake_matching(list(key), |sleeper| sleeper.key == key);
    }
}

/// Wakes all tasks that were last polled on the calling thread, so that they check again. The thread holds
/// one more guard now, so it may no longer wait for some objects.
pub fn wake_tasks_of_thread() {
    if COUNT.load(Ordering::SeqCst) > 0 {
        let thread = this_thread();
        SLEEPERS.iter().for_each(|list| wake_matching(list, |sleeper| sleeper.thread == thread));
    }
}

/// Removes the tasks for which `is_due` holds from a list, and wakes them. A task may register again.
fn wake_matching(list: &Mutex<Vec<Sleeper>>, is_due: impl Fn(&Sleeper) -> bool) {
    // Move the wakers out of the list, because a clone would run code of the program under the lock.
    let woken: Vec<Sleeper> = list.lock().extract_if(.., |sleeper| is_due(sleeper)).collect();
    COUNT.fetch_sub(woken.len(), Ordering::SeqCst);
    woken.into_iter().for_each(|sleeper| wake(sleeper.waker));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{RawWaker, RawWakerVTable, Wake};
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn no_sleeper_is_overlooked_while_others_come_and_are_woken() {
        const TURNS: usize = if cfg!(miri) { 30 } else { 100_000 };
        let places = [0_u8; 2];
        let keys = [0, 1].map(|i| std::ptr::from_ref(&places[i]).addr());
        let (count, is_over) = (Arc::new(Count::default()), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while is_over.load(Ordering::Relaxed) == 0 {
                    drop(Asleep::at(keys[0], Waker::noop()));
                }
            });
            scope.spawn(|| {
                while is_over.load(Ordering::Relaxed) == 0 {
                    wake_tasks(keys[0]);
                }
            });
            let waker = Waker::from(count.clone());
            for turn in 0..TURNS {
                let _asleep = Asleep::at(keys[1], &waker);
                wake_tasks(keys[1]);
                if count.0.load(Ordering::SeqCst) != turn + 1 {
                    break;
                }
            }
            is_over.store(1, Ordering::Relaxed);
        });
        assert_eq!(count.0.load(Ordering::SeqCst), TURNS);
    }

    #[test]
    fn tasks_are_woken_once_by_their_key_alone() {
        let counts = [(); 3].map(|()| Arc::new(Count::default()));
        let wakers = counts.clone().map(Waker::from);
        let keys = [0, 1].map(|i| std::ptr::from_ref(&counts[i]).addr());
        let first = Asleep::at(keys[0], &wakers[0]);
        let _second = Asleep::at(keys[1], &wakers[1]);
        drop(Asleep::at(keys[0], &wakers[2]));
        wake_tasks(keys[0]);
        wake_tasks(keys[0]);
        drop(first);
        let seen = |i: usize| counts[i].0.load(Ordering::SeqCst);
        assert_eq!([seen(0), seen(1), seen(2)], [1, 0, 0]);
        // Only tasks of this thread check again.
        std::thread::scope(|scope| drop(scope.spawn(wake_tasks_of_thread)));
        assert_eq!(seen(1), 0);
        wake_tasks_of_thread();
        assert_eq!(seen(1), 1);
        wake_tasks(keys[1]);
        assert_eq!(seen(1), 1);
    }

    /// Waker functions that test whether the lock of the key's list is free. The key is their data.
    static NOSY: RawWakerVTable = RawWakerVTable::new(
        |key| {
            look(key);
            RawWaker::new(key, &NOSY)
        },
        look,
        look,
        look,
    );

    fn look(key: *const ()) {
        let is_free = list(key.addr()).try_lock_for(Duration::from_secs(10)).is_some();
        assert!(is_free, "foreign code runs under the lock of a list");
    }

    #[test]
    fn wakers_are_cloned_woken_and_dropped_under_no_lock() {
        let place = 0_u8;
        let key = std::ptr::from_ref(&place);
        // SAFETY: any thread may call the functions at any time, because they treat the data as a number.
        let waker = unsafe { Waker::new(key.cast(), &NOSY) };
        for wake in [|_| (), wake_tasks, |_| wake_tasks_of_thread()] {
            let asleep = Asleep::at(key.addr(), &waker);
            wake(key.addr());
            drop(asleep);
        }
    }
}
