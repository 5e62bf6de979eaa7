//! Flat combining: threads push requests to a queue, and one thread at a time, the server, submits all to the
//! device.
//!
//! A thread or task pushes its request, then becomes the server if no other thread is. Otherwise it sets a
//! flag, which the server checks before it stops serving. So no thread waits for the server, and no request
//! is lost. After D. Hendler, I. Incze, N. Shavit, M. Tzafrir, "Flat combining and the
//! synchronization-parallelism tradeoff", 2010.
//!
//! A device accepts a limited number of submissions in flight. At this limit no requester serves: the thread
//! that sees a submission end serves the queued requests. A loom test checks that no request is lost between
//! a requester and that thread.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicUsize, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use parking_lot::{Mutex, MutexGuard};

/// Reason to call `serve`: a thread pushed a request.
pub const ASKED: usize = 1;
/// Reason to call `serve`: a submission may have ended, or the device may accept submissions again.
pub const ENDED: usize = 2;

#[cfg(loom)]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    #[cfg(loom)]
    return mutex.try_lock().ok();
    #[cfg(not(loom))]
    mutex.try_lock()
}

/// The request queue, lock-free because many threads push at the same time.
#[cfg(not(loom))]
type Inbox<R> = crossbeam_queue::SegQueue<R>;

/// A queue with a lock for loom, whose tests need not cover the steps of the lock-free queue.
#[cfg(loom)]
#[derive(Debug)]
struct Inbox<R>(Mutex<std::collections::VecDeque<R>>);

#[cfg(loom)]
impl<R> Default for Inbox<R> {
    fn default() -> Self {
        Self(Mutex::new(std::collections::VecDeque::new()))
    }
}

#[cfg(loom)]
impl<R> Inbox<R> {
    fn push(&self, request: R) {
        lock(&self.0).push_back(request);
    }

    fn pop(&self) -> Option<R> {
        lock(&self.0).pop_front()
    }

    fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

/// Queue of requests of type `R`, which one thread at a time serves with the shared state `S`.
#[derive(Debug)]
pub struct Combiner<R, S> {
    inbox: Inbox<R>,
    /// Reasons for another round of the server: [`ASKED`] and [`ENDED`].
    news: AtomicUsize,
    under_way: AtomicUsize,
    under_way_max: usize,
    serving: Mutex<S>,
}

impl<R, S> Combiner<R, S> {
    pub fn new(under_way_max: usize, state: S) -> Self {
        Self {
            inbox: Inbox::default(),
            news: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            under_way_max,
            serving: Mutex::new(state),
        }
    }

    /// Pushes a request. Returns true if the caller must call [`serve`](Self::serve). Otherwise the limit of
    /// submissions in flight is reached, and the thread that sees a submission end serves the request.
    #[must_use]
    #[inline]
    pub fn ask(&self, request: R) -> bool {
        self.inbox.push(request);
        // Pairs with the fence in `end`: either this load sees that a submission has ended, or the thread
        // that ended it sees the request in the inbox.
        fence(Ordering::SeqCst);
        self.has_room()
    }

    /// Returns true if fewer submissions are in flight than the device's limit allows.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) < self.under_way_max
    }

    /// Counts a submission that the server is about to begin.
    #[inline]
    pub fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts the end of a submission. The caller then calls [`serve`](Self::serve).
    #[inline]
    pub fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        // Pairs with the fence in `ask`: either `ask` sees the lower count, or this thread sees the request.
        fence(Ordering::SeqCst);
    }

    /// Pops all requests that threads pushed before this call.
    #[inline]
    pub fn take(&self) -> impl Iterator<Item = R> + '_ {
        (0..self.inbox.len()).map_while(|_| self.inbox.pop())
    }

    /// Adds the reason `why`, and calls `serve` with all reasons until none is left. If another thread is
    /// serving, that thread also serves this reason, and this call returns at once.
    pub fn serve(&self, why: usize, mut serve: impl FnMut(&mut S, usize)) {
        self.news.fetch_or(why, Ordering::SeqCst);
        loop {
            // Pairs with the unlock: either this thread gets the lock, or the lock's holder sees `why`.
            fence(Ordering::SeqCst);
            let Some(mut state) = try_lock(&self.serving) else { return };
            loop {
                let news = self.news.swap(0, Ordering::SeqCst);
                if news == 0 {
                    break;
                }
                serve(&mut state, news);
            }
            drop(state);
            fence(Ordering::SeqCst);
            if self.news.load(Ordering::SeqCst) == 0 {
                return;
            }
        }
    }

    /// Returns the server's state, or `None` while a thread serves.
    #[cfg(all(test, loom))]
    #[inline]
    pub fn try_state(&self) -> Option<MutexGuard<'_, S>> {
        try_lock(&self.serving)
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A server for the test, which submits one request at a time. Another thread acts as its device.
    type Server = Combiner<usize, Vec<usize>>;

    /// One round of the server: pops the requests, and submits the first one below the limit in flight.
    fn step(server: &Server, submitted: &Mutex<Vec<usize>>) {
        server.serve(ASKED, |queue, _| {
            queue.extend(server.take());
            while server.has_room()
                && let Some(request) = queue.pop()
            {
                server.begin();
                lock(submitted).push(request);
            }
        });
    }

    fn ask(server: &Server, submitted: &Mutex<Vec<usize>>, request: usize) {
        if server.ask(request) {
            step(server, submitted);
        }
    }

    #[test]
    fn no_request_is_left_behind() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let server = Arc::new((Server::new(1, Vec::new()), Mutex::new(Vec::new())));
            let other = Arc::clone(&server);
            let asker = thread::spawn(move || ask(&other.0, &other.1, 2));
            ask(&server.0, &server.1, 1);
            // In this test, the thread acts as the device: it ends each submission once, at any time.
            let mut ended = Vec::new();
            while ended.len() < 2 {
                let next = lock(&server.1).pop();
                if let Some(request) = next {
                    ended.push(request);
                    server.0.end();
                    step(&server.0, &server.1);
                } else {
                    thread::yield_now();
                }
            }
            asker.join().unwrap();
            ended.sort_unstable();
            assert_eq!(ended, [1, 2]);
        });
    }

    #[test]
    fn later_requests_are_served_by_the_combiner() {
        loom::model(|| {
            let server = Arc::new(Combiner::<usize, usize>::new(usize::MAX, 0));
            let serve = |server: &Combiner<usize, usize>| {
                assert!(server.ask(1));
                server.serve(ASKED, |sum, _| *sum += server.take().sum::<usize>());
            };
            let other = Arc::clone(&server);
            let other = thread::spawn(move || serve(&other));
            serve(&server);
            other.join().unwrap();
            assert_eq!(*server.try_state().unwrap(), 2);
        });
    }
}
