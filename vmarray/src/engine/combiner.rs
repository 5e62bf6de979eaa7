//! One queue of requests that many ask and one serves at a time: flat combining for threads that must not
//! wait.
//!
//! A thread or task leaves its request in the inbox. The thread that finds nobody serving serves all requests
//! that are there; the thread that finds somebody leaves a note, and the one who serves looks again before it
//! goes. So nobody ever waits for the lock, and no request is overlooked. The idea is that of D. Hendler, I.
//! Incze, N. Shavit, M. Tzafrir, "Flat combining and the synchronization-parallelism tradeoff", 2010.
//!
//! Of what was submitted to a device so much may be under way at a time. As long as it is, the thread that
//! asks does not even try to serve: the end of a submission does. loom checks that no request is left behind
//! between the two.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicUsize, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use parking_lot::{Mutex, MutexGuard};

/// Somebody has left a request.
pub(crate) const ASKED: usize = 1;
/// Something that was submitted may have ended, or what was in the way may be gone.
pub(crate) const ENDED: usize = 2;

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

/// Many push at the same time, which a lock would make them wait for.
#[cfg(not(loom))]
type Inbox<R> = crossbeam_queue::SegQueue<R>;

/// What loom can look into; it need not check the queue's own steps.
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

/// Requests of type `R`, and what is known to the thread that serves them.
#[derive(Debug)]
pub(crate) struct Combiner<R, S> {
    inbox: Inbox<R>,
    /// Why the thread that serves is to look once more: [`ASKED`], [`ENDED`].
    news: AtomicUsize,
    under_way: AtomicUsize,
    under_way_max: usize,
    serving: Mutex<S>,
}

impl<R, S> Combiner<R, S> {
    pub(crate) fn new(under_way_max: usize, state: S) -> Self {
        Self {
            inbox: Inbox::default(),
            news: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            under_way_max,
            serving: Mutex::new(state),
        }
    }

    /// Leaves a request. Whether the caller has to [serve](Self::serve); else the end of what is under way
    /// does.
    #[must_use]
    pub(crate) fn ask(&self, request: R) -> bool {
        self.inbox.push(request);
        // Either this load sees that something has ended, or the thread that ended it finds the request.
        fence(Ordering::SeqCst);
        self.has_room()
    }

    /// Whether more may be submitted.
    pub(crate) fn has_room(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) < self.under_way_max
    }

    /// Notes that something is about to be submitted.
    pub(crate) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that something that was submitted has ended. The caller has others [serve](Self::serve) next.
    pub(crate) fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        // As in `ask`.
        fence(Ordering::SeqCst);
    }

    /// Takes all requests that were left before.
    pub(crate) fn take(&self) -> impl Iterator<Item = R> + '_ {
        (0..self.inbox.len()).map_while(|_| self.inbox.pop())
    }

    /// Runs `serve` until there is no news, or has the thread that is at it do so. `serve` is told why.
    pub(crate) fn serve(&self, why: usize, mut serve: impl FnMut(&mut S, usize)) {
        self.news.fetch_or(why, Ordering::SeqCst);
        loop {
            // Either this look finds the lock free, or the thread that has it finds the news after it.
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

    /// The state, if nobody serves.
    #[cfg(all(test, loom))]
    pub(crate) fn try_state(&self) -> Option<MutexGuard<'_, S>> {
        try_lock(&self.serving)
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A server that submits one request at a time; its device is another thread, which tells when it has
    /// ended.
    type Server = Combiner<usize, Vec<usize>>;

    /// Takes what was left and submits the first request of it, if there is room.
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
            // The device: each submission ends once, whenever it likes.
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
    fn whoever_comes_while_another_serves_is_served() {
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
