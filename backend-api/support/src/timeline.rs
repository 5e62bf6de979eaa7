//! The tickets (numbers of submissions) of a queue whose work software executes, for example in threads.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::{Condvar, Mutex};

use crate::contended::spin_until;
use backend_api::{Error, ErrorKind, QueueId, QueueProgress, Result, Ticket};

/// Maximum number of entries in the history of failures: about 4 MiB. Real programs have far fewer.
const FAILURES_MAX: usize = 1 << 14;

/// Counts a queue's submitted and completed work, records failures, and wakes waiting threads and tasks.
///
/// For backends that execute a queue's work in threads, in callbacks, or in the submitting call itself. Each
/// queue has one timeline, which the submitting and the completing thread share. Work completes in the order
/// of submission. Errors of the timeline do not name the device; add it by [`Error::on`].
///
/// The timeline never forgets a failure. Its memory is bounded nevertheless: consecutive failures with the
/// same error share one entry, and beyond 16384 entries the two oldest are merged, with all tickets between
/// them. Therefore a very late poll may return another ticket's failure for its ticket, but never misses a
/// failure.
///
/// ```
/// use backend_api::{Error, ErrorKind, QueueProgress, QueueHandle};
/// use vmarray_support::Timeline;
/// let timeline = Timeline::new(QueueHandle::unique().id());
/// assert_eq!(timeline.newest().value, 0);
/// let (copy, kernel, last) = (timeline.begin()?, timeline.begin()?, timeline.begin()?);
/// assert_eq!((copy.value, copy.queue, timeline.newest()), (1, timeline.queue(), last));
/// timeline.complete(copy.value, Ok(()));
/// timeline.wait(copy.value)?;
/// timeline.wake(copy.value, std::task::Waker::noop().clone());
/// timeline.complete(kernel.value, Err(Error::new(ErrorKind::KernelFailed, "search")));
/// assert_eq!(timeline.poll(kernel.value).unwrap_err().kind(), ErrorKind::KernelFailed);
/// assert_eq!(timeline.poll(last.value)?, QueueProgress::Pending);
/// timeline.lose(Error::new(ErrorKind::Lost, "submit"));
/// assert_eq!(timeline.poll(last.value).unwrap_err().kind(), ErrorKind::Lost);
/// assert_eq!(timeline.begin().unwrap_err().kind(), ErrorKind::Lost);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct Timeline {
    queue: QueueId,
    submitted: AtomicU64,
    /// The newest completed value. Threads store it with release ordering under the lock, after they have
    /// recorded a failure of the value.
    completed: AtomicU64,
    state: Mutex<State>,
    advanced: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The failures: maps the first of consecutive failed values to the last one and their common error.
    failures: BTreeMap<u64, (u64, Error)>,
    wakers: Vec<(u64, Waker)>,
    sleepers: u32,
    lost: Option<Error>,
}

impl Timeline {
    /// Creates the timeline of a queue without submissions.
    #[must_use]
    pub fn new(queue: QueueId) -> Self {
        Self {
            queue,
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            state: Mutex::default(),
            advanced: Condvar::new(),
        }
    }

    /// Returns the id of the queue.
    #[must_use]
    pub fn queue(&self) -> QueueId {
        self.queue
    }

    /// Returns the ticket (number in the queue) of the newest submission; 0 before the first one.
    ///
    /// When a backend releases the queue, it keeps this value and drops the timeline. Tickets up to the value
    /// stay valid; later tickets are unknown.
    #[must_use]
    pub fn newest(&self) -> Ticket {
        Ticket { queue: self.queue, value: self.submitted.load(Ordering::Acquire) }
    }

    /// Issues the next submission's ticket (number in the queue). The caller must submit work in the order of
    /// the tickets, and therefore call this method under the lock that orders its submissions.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] after [`lose`](Self::lose).
    pub fn begin(&self) -> Result<Ticket> {
        let state = self.state.lock();
        if let Some(error) = &state.lost {
            return Err(error.clone());
        }
        Ok(Ticket { queue: self.queue, value: self.submitted.fetch_add(1, Ordering::AcqRel) + 1 })
    }

    /// Marks all work up to `value` as done, and `value` itself as failed if the outcome is an error.
    ///
    /// Callers complete values in ascending order: the call ignores a value that is not greater than the
    /// completed values, even with an error. [`lose`](Self::lose) completes all values, so a worker may still
    /// call this method afterwards.
    ///
    /// The wakers of completed values run in this thread before the call returns, and may call the device.
    /// The caller must therefore hold no lock that the device needs, unless [`wake`](Self::wake) cannot have
    /// been called for the value.
    pub fn complete(&self, value: u64, outcome: Result<()>) {
        let mut state = self.state.lock();
        if value <= self.completed.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = outcome {
            state.note(value, value, error);
        }
        self.advance(state, value);
    }

    /// Marks the queue as lost: pending work and later calls of [`begin`](Self::begin) fail with `error`.
    ///
    /// `error` should be of kind [`ErrorKind::Lost`]. The second and later calls change nothing.
    pub fn lose(&self, error: Error) {
        let mut state = self.state.lock();
        if state.lost.is_some() {
            return;
        }
        state.lost = Some(error.clone());
        let (done, newest) = (self.completed.load(Ordering::Relaxed), self.submitted.load(Ordering::Relaxed));
        if newest > done {
            state.note(done + 1, newest, error);
        }
        self.advance(state, newest);
    }

    fn advance(&self, mut state: parking_lot::MutexGuard<'_, State>, value: u64) {
        self.completed.store(value, Ordering::Release);
        let due: Vec<_> = state.wakers.extract_if(.., |(wanted, _)| *wanted <= value).collect();
        if state.sleepers > 0 {
            self.advanced.notify_all();
        }
        drop(state);
        // Wakers can run any code. So run them without the lock, and run all of them even if one panics.
        let mut panicked = None;
        for (_, waker) in due {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                panicked.get_or_insert(panic);
            }
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }

    fn outcome(&self, value: u64) -> Result<()> {
        match self.state.lock().failures.range(..=value).next_back() {
            Some((_, (last, error))) if value <= *last => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn check(&self, value: u64) -> Result<()> {
        if value <= self.submitted.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::UnknownHandle, "poll")
            .with_detail(format!("ticket {value} was never issued")))
    }

    /// Returns [`Done`](QueueProgress::Done) if all work up to `value` is done. Value 0 is always done.
    ///
    /// # Errors
    /// The errors of [`Device::poll`](backend_api::Device::poll).
    pub fn poll(&self, value: u64) -> Result<QueueProgress> {
        self.check(value)?;
        if self.completed.load(Ordering::Acquire) < value {
            return Ok(QueueProgress::Pending);
        }
        self.outcome(value).map(|()| QueueProgress::Done)
    }

    /// Blocks until all work up to `value` is done.
    ///
    /// # Errors
    /// The errors of [`Device::poll`](backend_api::Device::poll).
    pub fn wait(&self, value: u64) -> Result<()> {
        self.check(value)?;
        let done = || self.completed.load(Ordering::Acquire) >= value;
        if spin_until(done) {
            return self.outcome(value);
        }
        let mut state = self.state.lock();
        state.sleepers += 1;
        while !done() {
            self.advanced.wait(&mut state);
        }
        state.sleepers -= 1;
        drop(state);
        self.outcome(value)
    }

    /// Calls `waker` once: when submission `value` is done or has failed, at once if it is done or unknown.
    pub fn wake(&self, value: u64, waker: Waker) {
        let mut state = self.state.lock();
        if self.completed.load(Ordering::Relaxed) >= value || value > self.submitted.load(Ordering::Relaxed) {
            drop(state);
            waker.wake();
        } else {
            state.wakers.push((value, waker));
        }
    }
}

impl State {
    fn note(&mut self, first: u64, last: u64, error: Error) {
        if let Some((_, (end, known))) = self.failures.range_mut(..first).next_back()
            && *end + 1 == first
            && *known == error
        {
            *end = last;
            return;
        }
        self.failures.insert(first, (last, error));
        if self.failures.len() > FAILURES_MAX
            && let Some((oldest, (_, error))) = self.failures.pop_first()
            && let Some((_, (last, _))) = self.failures.pop_first()
        {
            self.failures.insert(oldest, (last, error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend_api::QueueHandle;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::{RawWaker, RawWakerVTable, Wake};

    /// Counts wake-ups.
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn lost() -> Error {
        Error::new(ErrorKind::Lost, "submit")
    }

    #[test]
    #[cfg_attr(miri, ignore = "too long for an interpreter")]
    fn equal_failures_in_a_row_take_one_entry() {
        let t = Timeline::new(QueueHandle::unique().id());
        for value in 1..=1000 {
            t.begin().unwrap();
            t.complete(value, Err(Error::new(ErrorKind::CopyFailed, "submit")));
        }
        assert_eq!(t.state.lock().failures.len(), 1);
        assert!(t.poll(500).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "too long for an interpreter")]
    fn failures_now_and_then_are_bounded_and_none_is_missed() {
        let t = Timeline::new(QueueHandle::unique().id());
        let newest = 2 * FAILURES_MAX as u64 + 1000;
        for value in 1..=newest {
            t.begin().unwrap();
            let outcome =
                if value % 2 == 0 { Err(Error::new(ErrorKind::CopyFailed, "fill")) } else { Ok(()) };
            t.complete(value, outcome);
        }
        assert_eq!(t.state.lock().failures.len(), FAILURES_MAX);
        assert!((2..=newest).step_by(2).all(|value| t.poll(value).is_err()));
        // The timeline has merged only the oldest failures with successful neighbours.
        assert!((1003..=newest).step_by(2).all(|value| t.poll(value).is_ok()));
        assert!(t.poll(1).is_ok() && t.poll(501).is_err());
    }

    #[test]
    fn a_lost_queue_is_never_pending() {
        let t = Timeline::new(QueueHandle::unique().id());
        t.begin().unwrap();
        t.begin().unwrap();
        t.complete(1, Ok(()));
        t.lose(lost());
        t.complete(2, Ok(()));
        assert_eq!(t.poll(1).unwrap(), QueueProgress::Done);
        assert_eq!(t.poll(2).unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(t.begin().unwrap_err().kind(), ErrorKind::Lost);
    }

    #[test]
    fn sleepers_and_wakers_are_woken() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let t = Arc::new(Timeline::new(QueueHandle::unique().id()));
        t.begin().unwrap();
        t.begin().unwrap();
        t.wake(1, count.clone().into());
        t.wake(2, count.clone().into());
        let sleeper = std::thread::spawn({
            let t = t.clone();
            move || t.wait(2)
        });
        t.complete(1, Ok(()));
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        t.complete(2, Ok(()));
        sleeper.join().unwrap().unwrap();
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
        t.wake(1, count.clone().into());
        assert_eq!(count.0.load(Ordering::SeqCst), 3);
    }

    /// The functions of a waker, each of which checks that the lock of the timeline, its data, is free.
    static NOSY: RawWakerVTable = RawWakerVTable::new(
        |timeline| {
            look(timeline);
            RawWaker::new(timeline, &NOSY)
        },
        look,
        look,
        look,
    );

    fn look(timeline: *const ()) {
        // SAFETY: the test points such wakers to a timeline that outlives them.
        let timeline = unsafe { &*timeline.cast::<Timeline>() };
        assert!(timeline.state.try_lock().is_some(), "foreign code runs under the lock");
    }

    #[test]
    fn wakers_are_cloned_woken_and_dropped_under_no_lock() {
        let t = Timeline::new(QueueHandle::unique().id());
        // SAFETY: the functions may be called by any thread as long as the timeline lives.
        let waker = unsafe { Waker::new(std::ptr::from_ref(&t).cast(), &NOSY) };
        t.begin().unwrap();
        t.begin().unwrap();
        t.wake(1, waker.clone());
        t.wake(2, waker.clone());
        t.complete(1, Ok(()));
        t.lose(lost());
    }

    #[test]
    fn a_waker_that_panics_comes_out_once_the_others_were_woken() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("expected by this test");
            }
        }
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let t = Timeline::new(QueueHandle::unique().id());
        t.begin().unwrap();
        t.wake(1, Arc::new(Panics).into());
        t.wake(1, count.clone().into());
        assert!(catch_unwind(AssertUnwindSafe(|| t.complete(1, Ok(())))).is_err());
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
    }
}
