//! Ordered completion for scatters: threads prepare numbered pieces in any order, and [`InTurn`] finishes the
//! pieces in the order of their numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use vmarray_support::contended;

/// The duration for which a thread that must wait spins before it yields, and the total before it sleeps.
const SPIN: Duration = Duration::from_micros(30);
const PATIENCE: Duration = Duration::from_micros(200);

/// Finishes numbered pieces in ascending order: 0, 1, 2, … No thread waits for its turn to finish a piece.
/// Instead, a thread that is early leaves its piece to the thread with the previous piece.
#[derive(Debug)]
pub(super) struct InTurn<P> {
    /// The most pieces in work at the same time.
    window: usize,
    queue: Mutex<Queue<P>>,
    /// A copy of `Queue::next`, which threads read without the lock.
    next: AtomicUsize,
    is_over: AtomicBool,
    moved_on: Condvar,
}

#[derive(Debug)]
struct Queue<P> {
    /// The number of the first unfinished piece.
    next: usize,
    /// True while a thread is finishing pieces.
    is_busy: bool,
    left: BTreeMap<usize, P>,
}

impl<P> InTurn<P> {
    pub(super) fn new(window: usize) -> Self {
        Self {
            window,
            queue: Mutex::new(Queue { next: 0, is_busy: false, left: BTreeMap::new() }),
            next: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            moved_on: Condvar::new(),
        }
    }

    /// Waits until fewer than `window` unfinished pieces precede piece `number`, so that the thread may begin
    /// it. Returns false if all work was ended. The thread with the first unfinished piece never waits.
    pub(super) fn wait_for_room(&self, number: usize) -> bool {
        let waits = || self.is_far(number) && !self.is_over();
        if waits() && !contended::spin_while(SPIN, PATIENCE, waits) {
            let mut queue = self.queue.lock();
            while waits() {
                self.moved_on.wait(&mut queue);
            }
        }
        !self.is_over()
    }

    fn is_far(&self, number: usize) -> bool {
        number - self.next.load(Ordering::Acquire).min(number) >= self.window
    }

    /// Hands over a prepared piece. Unless another thread is finishing pieces, finishes all pieces in turn.
    pub(super) fn leave(&self, number: usize, piece: P, mut finish: impl FnMut(usize, P)) {
        let mut queue = contended::lock(&self.queue);
        queue.left.insert(number, piece);
        if std::mem::replace(&mut queue.is_busy, true) {
            return;
        }
        loop {
            let number = queue.next;
            let Some(piece) = queue.left.remove(&number) else { break };
            drop(queue);
            self.end_if_it_panics(|| finish(number, piece));
            queue = contended::lock(&self.queue);
            queue.next = number + 1;
            self.next.store(number + 1, Ordering::Release);
            self.moved_on.notify_all();
        }
        queue.is_busy = false;
    }

    /// Runs work that other threads wait for. If it panics, ends their wait.
    pub(super) fn end_if_it_panics<R>(&self, work: impl FnOnce() -> R) -> R {
        let unwinding = EndOnUnwind(self);
        let result = work();
        std::mem::forget(unwinding);
        result
    }

    /// Ends all present and later waits.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Take and release the lock once before the notification. A thread that is about to sleep has then
        // either seen the flag or is already asleep, so the notification is not lost.
        drop(self.queue.lock());
        self.moved_on.notify_all();
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Returns the pieces that were prepared but not finished.
    pub(super) fn into_left(self) -> impl Iterator<Item = P> {
        self.queue.into_inner().left.into_values()
    }
}

/// A guard that ends the waits of other threads if its thread panics.
struct EndOnUnwind<'a, P>(&'a InTurn<P>);

impl<P> Drop for EndOnUnwind<'_, P> {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::scoped_threads::together;

    #[test]
    fn pieces_are_finished_in_order_and_not_too_far_ahead() {
        let (order, next) = (InTurn::new(3), AtomicUsize::new(0));
        assert!(!order.is_far(2) && order.is_far(3));
        let (finished, in_work) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        together(4, || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= 200 {
                    break;
                }
                assert!(order.wait_for_room(number));
                assert!(in_work.fetch_add(1, Ordering::Relaxed) < 3);
                order.leave(number, 2 * number, |number, piece| {
                    in_work.fetch_sub(1, Ordering::Relaxed);
                    assert_eq!(piece, 2 * number);
                    finished.lock().push(number);
                });
            }
        });
        assert_eq!(*finished.lock(), (0..200).collect::<Vec<_>>());
        assert_eq!(order.into_left().count(), 0);
    }

    #[test]
    fn a_thread_waiting_for_an_abandoned_piece_is_released() {
        let order = InTurn::new(1);
        order.leave(1, (), |_, ()| panic!("its turn never comes"));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| order.wait_for_room(2));
            order.end();
            assert!(!waiting.join().unwrap());
        });
        assert_eq!(order.into_left().count(), 1);
    }

    #[test]
    fn a_panic_lets_the_others_go() {
        let order = InTurn::new(1);
        let panic = std::panic::AssertUnwindSafe(|| order.leave(0, (), |_, ()| panic!("as a test")));
        std::panic::catch_unwind(panic).unwrap_err();
        assert!(!order.wait_for_room(1));
        // A thread can also panic before it has finished any piece.
        let order = InTurn::<()>::new(1);
        let panic = std::panic::AssertUnwindSafe(|| order.end_if_it_panics(|| panic!("as a test")));
        std::panic::catch_unwind(panic).unwrap_err();
        assert!(!order.wait_for_room(1));
    }
}
