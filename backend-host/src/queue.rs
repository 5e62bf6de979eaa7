//! In-order queue of a device: a worker thread, or a thread that waits for a submission, executes requests.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use backend_api::{DeviceInfo, Error, ErrorKind, QueueId, QueueProgress, Result, Ticket};
use parking_lot::{Condvar, Mutex, MutexGuard};
use vmarray_support::Timeline;
use vmarray_support::backends::wake_all;
use vmarray_support::contended::spin_until;

use crate::worker::{Crew, Pool, Urgency, WorkerTask};

/// Number of jobs after which a worker thread lets other queues run.
const JOBS_IN_A_TURN: u32 = 8;

/// A submitted request in a queue.
pub(crate) trait Job: Send + Sync + 'static {
    /// Executes the request on the threads of `crew`.
    fn run(&self, crew: Crew<'_>) -> Result<()>;

    /// Returns the urgency, which determines if the job is worth the wake-up of a thread.
    fn urgency(&self) -> Urgency;

    /// Returns true if the job accesses the memory at this address.
    fn touches(&self, memory: *const ()) -> bool;
}

/// One in-order queue of a device.
///
/// | phase | owner of the front | end |
/// |---|---|---|
/// | idle | none: the queue is empty | a push makes it ready |
/// | ready | none | a thread claims it: running |
/// | running | the thread that claimed it | empty: idle; turn is over: ready; an open `After`: blocked |
/// | blocked | none | the awaited ticket is done: ready; or a waiting thread claims it: running |
///
/// The pool always knows of a ready queue. A thread never holds two locks, except the locks of the timelines
/// and of the pool, which are leaves. Wakers are foreign code. A thread runs them while it holds no lock and
/// has claimed no queue, because they may submit, wait, and drop the device.
pub(crate) struct QueueLane<J> {
    timeline: Timeline,
    pool: Arc<Pool>,
    info: Arc<DeviceInfo>,
    state: Mutex<State<J>>,
    /// True while a thread has claimed the queue: a hint for waiting threads, which read it without the lock.
    running: AtomicBool,
    /// Notified, if a thread sleeps on it, when work completes and when a thread releases the queue.
    changed: Condvar,
    /// Number of calls of `last_touching`, for tests.
    #[cfg(test)]
    pub(crate) looks: std::sync::atomic::AtomicUsize,
}

struct State<J> {
    items: VecDeque<Item<J>>,
    phase: Phase,
    /// The urgency with which the pool refers to this queue, if no worker has taken the reference yet. The
    /// pool has at most one.
    announced: Option<Urgency>,
    running: Option<(u64, Arc<J>)>,
    wakers: Vec<(u64, Waker)>,
    sleepers: u32,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Ready,
    Running,
    Blocked,
}

enum Item<J> {
    Work { value: u64, job: Arc<J> },
    After { lane: Arc<QueueLane<J>>, value: u64 },
}

/// Result of an attempt of a waiting thread to execute the queue's work.
enum Helped<J> {
    /// The calling thread did the work up to the ticket, or the queue was empty.
    Ran,
    /// Another thread runs the queue.
    Busy,
    /// The next job waits for this ticket of another queue.
    After(Arc<QueueLane<J>>, u64),
}

impl<J> std::fmt::Debug for QueueLane<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("newest", &self.timeline.newest()).finish_non_exhaustive()
    }
}

impl<J: Job> QueueLane<J> {
    /// Returns an empty queue.
    pub fn new(id: QueueId, pool: &Arc<Pool>, info: &Arc<DeviceInfo>) -> Arc<Self> {
        Arc::new(Self {
            timeline: Timeline::new(id),
            pool: Arc::clone(pool),
            info: Arc::clone(info),
            state: Mutex::new(State {
                items: VecDeque::new(),
                phase: Phase::Idle,
                announced: None,
                running: None,
                wakers: Vec::new(),
                sleepers: 0,
                ended: false,
            }),
            running: AtomicBool::new(false),
            changed: Condvar::new(),
            #[cfg(test)]
            looks: std::sync::atomic::AtomicUsize::new(0),
        })
    }

    /// Returns the timeline (record of completed submissions). Callers may only query the timeline.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Appends a job (one submitted request) to the queue, and returns its ticket (number in the queue).
    pub fn push(self: &Arc<Self>, operation: &'static str, job: J) -> Result<Ticket> {
        let urgency = job.urgency();
        let job = Arc::new(job);
        let mut state = self.state.lock();
        if state.ended {
            return Err(Error::new(ErrorKind::UnknownHandle, operation).with_detail("the queue is released"));
        }
        let ticket = self.timeline.begin()?;
        state.items.push_back(Item::Work { value: ticket.value, job });
        match state.phase {
            Phase::Idle => self.ready(state, urgency),
            Phase::Ready if urgency == Urgency::Long => self.hurry(state),
            _ => {}
        }
        Ok(ticket)
    }

    /// Makes later jobs of this queue wait for the job with number `value` of the queue `lane`.
    pub fn order_after(&self, lane: &Arc<Self>, value: u64) {
        if !lane.reached(value) && lane.timeline.queue() != self.timeline.queue() {
            self.state.lock().items.push_back(Item::After { lane: Arc::clone(lane), value });
        }
    }

    /// Makes the queue refuse all later jobs.
    pub fn end(&self) {
        self.state.lock().ended = true;
    }

    /// Returns true if all jobs up to number `value` are done, with or without errors.
    pub fn reached(&self, value: u64) -> bool {
        !matches!(self.timeline.poll(value), Ok(QueueProgress::Pending))
    }

    /// Returns the number of the last unfinished job that accesses the memory at this address.
    pub fn last_touching(&self, memory: *const ()) -> Option<u64> {
        #[cfg(test)]
        self.looks.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock();
        let queued = state.items.iter().rev().find_map(|item| match item {
            Item::Work { value, job } if job.touches(memory) => Some(*value),
            _ => None,
        });
        let running =
            || state.running.as_ref().filter(|(_, job)| job.touches(memory)).map(|(value, _)| *value);
        queued.or_else(running)
    }

    /// Calls `waker` when all jobs up to number `value` are done; at once if they are already done.
    pub fn wake_at(self: &Arc<Self>, value: u64, waker: Waker) {
        let mut state = self.state.lock();
        if self.reached(value) {
            drop(state);
            waker.wake();
            return;
        }
        state.wakers.push((value, waker));
        // The caller does not execute queued work, unlike a thread that waits. So wake a worker.
        if state.phase == Phase::Ready {
            self.hurry(state);
        }
    }

    /// Blocks until all jobs up to number `value` are done. The calling thread executes jobs that no
    /// other thread has begun.
    pub fn wait(self: &Arc<Self>, value: u64) -> Result<()> {
        while self.timeline.poll(value)? == QueueProgress::Pending {
            let (mut lane, mut wanted) = (Arc::clone(self), value);
            loop {
                match lane.help(wanted) {
                    Helped::Ran => break,
                    Helped::Busy => {
                        lane.watch(wanted);
                        break;
                    }
                    Helped::After(before, value) => (lane, wanted) = (before, value),
                }
            }
        }
        Ok(())
    }

    fn help(self: &Arc<Self>, value: u64) -> Helped<J> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Idle => return Helped::Ran,
            Phase::Running => return Helped::Busy,
            Phase::Blocked => {
                if let Some(Item::After { lane, value }) = state.items.front()
                    && !lane.reached(*value)
                {
                    return Helped::After(Arc::clone(lane), *value);
                }
            }
            Phase::Ready => {}
        }
        self.enter(&mut state, Phase::Running);
        self.drive(state, Some(value));
        Helped::Ran
    }

    /// Waits until all jobs up to the ticket `value` are done, or until the running thread releases the
    /// queue. Spins briefly, then yields, then sleeps.
    fn watch(&self, value: u64) {
        if spin_until(|| self.reached(value) || !self.running.load(Ordering::Relaxed)) {
            return;
        }
        let mut state = self.state.lock();
        while state.phase == Phase::Running && !self.reached(value) {
            state.sleepers += 1;
            self.changed.wait(&mut state);
            state.sleepers -= 1;
        }
    }

    fn enter(&self, state: &mut State<J>, phase: Phase) {
        state.phase = phase;
        self.running.store(phase == Phase::Running, Ordering::Relaxed);
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Makes the queue ready and informs the pool.
    fn ready(self: &Arc<Self>, mut state: MutexGuard<'_, State<J>>, urgency: Urgency) {
        self.enter(&mut state, Phase::Ready);
        if state.announced.is_some() {
            if urgency == Urgency::Long {
                self.hurry(state);
            }
            return;
        }
        state.announced = Some(urgency);
        drop(state);
        self.pool.push(Arc::clone(self) as Arc<dyn WorkerTask>, urgency);
    }

    /// Raises the urgency with which the pool refers to this queue.
    fn hurry(&self, mut state: MutexGuard<'_, State<J>>) {
        if state.announced == Some(Urgency::Short) {
            state.announced = Some(Urgency::Long);
            drop(state);
            self.pool.hurry();
        }
    }

    /// Runs jobs up to the ticket `until`. Without `until`, runs them until the queue is empty or blocked, or
    /// its turn is over. The caller has claimed the queue.
    fn drive<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State<J>>, until: Option<u64>) {
        let mut turn = 0;
        loop {
            let (value, job) = match state.items.pop_front() {
                None => {
                    self.enter(&mut state, Phase::Idle);
                    return;
                }
                Some(Item::After { lane, value }) => {
                    if lane.reached(value) {
                        continue;
                    }
                    state.items.push_front(Item::After { lane: Arc::clone(&lane), value });
                    self.enter(&mut state, Phase::Blocked);
                    drop(state);
                    return lane.wake_at(value, Waker::from(Arc::clone(self)));
                }
                Some(Item::Work { value, job }) => {
                    let enough = match until {
                        Some(until) => value > until,
                        None => turn >= JOBS_IN_A_TURN && self.pool.has_backlog(),
                    };
                    if enough {
                        let urgency = job.urgency();
                        state.items.push_front(Item::Work { value, job });
                        return self.ready(state, urgency);
                    }
                    (value, job)
                }
            };
            state.running = Some((value, Arc::clone(&job)));
            drop(state);
            turn += 1;
            let entered = self.pool.enter();
            let outcome = catch_unwind(AssertUnwindSafe(|| job.run(Crew::Pool(&self.pool))))
                .unwrap_or_else(|_| Err(panicked()))
                .map_err(|error| error.on(&self.info));
            drop(entered);
            // Drop the job before its ticket is done. A caller that waits for the ticket and releases the
            // memory is then the memory's last owner.
            drop(job);
            state = self.state.lock();
            state.running = None;
            self.timeline.complete(value, outcome);
            if state.sleepers > 0 {
                self.changed.notify_all();
            }
            if state.wakers.iter().any(|(wanted, _)| *wanted <= value) {
                let due: Vec<_> = state.wakers.extract_if(.., |(wanted, _)| *wanted <= value).collect();
                if state.items.is_empty() {
                    self.enter(&mut state, Phase::Idle);
                    drop(state);
                } else {
                    self.ready(state, Urgency::Long);
                }
                wake_all(due.into_iter().map(|(_, waker)| waker));
                state = self.state.lock();
                if state.phase != Phase::Ready {
                    return;
                }
                self.enter(&mut state, Phase::Running);
            }
        }
    }
}

impl<J: Job> WorkerTask for QueueLane<J> {
    fn run(self: Arc<Self>) {
        let mut state = self.state.lock();
        state.announced = None;
        if state.phase == Phase::Ready {
            self.enter(&mut state, Phase::Running);
            self.drive(state, None);
        }
    }
}

/// Called when the ticket is done for which a blocked queue waits.
impl<J: Job> Wake for QueueLane<J> {
    fn wake(self: Arc<Self>) {
        let state = self.state.lock();
        // If a waiting thread has already claimed the queue, no worker need wake.
        if state.phase == Phase::Blocked {
            self.ready(state, Urgency::Long);
        }
    }
}

#[cold]
fn panicked() -> Error {
    Error::new(ErrorKind::KernelFailed, "run")
        .with_detail("the work panicked")
        .with_advice("report this bug of the library, with the message of the panic")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::ThreadId;

    use backend_api::waker;

    use super::*;

    /// A job that calls a closure of a test.
    struct Act(Box<dyn Fn() -> Result<()> + Send + Sync>, *const ());

    // SAFETY: the pointer serves as a name; no code dereferences it.
    unsafe impl Send for Act {}
    // SAFETY: as above.
    unsafe impl Sync for Act {}

    impl Job for Act {
        fn run(&self, _crew: Crew<'_>) -> Result<()> {
            self.0()
        }
        fn urgency(&self) -> Urgency {
            Urgency::Short
        }
        fn touches(&self, memory: *const ()) -> bool {
            self.1 == memory
        }
    }

    fn act(action: impl Fn() -> Result<()> + Send + Sync + 'static) -> Act {
        Act(Box::new(action), std::ptr::null())
    }

    fn lanes<const N: usize>(threads: usize) -> (Arc<Pool>, [Arc<QueueLane<Act>>; N]) {
        let pool = Pool::new("test", threads);
        let info = Arc::new(DeviceInfo::new("host", "test", backend_api::DeviceKind::HostMemory, "test"));
        let lanes =
            std::array::from_fn(|_| QueueLane::new(backend_api::QueueHandle::unique().id(), &pool, &info));
        (pool, lanes)
    }

    /// A job that signals its start, and ends on a signal.
    fn gate() -> (Act, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((begun, has_begun), (end, may_end)) = (mpsc::channel(), mpsc::channel());
        let may_end = Mutex::new(may_end);
        let job = act(move || {
            begun.send(()).unwrap();
            may_end.lock().recv().unwrap();
            Ok(())
        });
        (job, has_begun, end)
    }

    #[test]
    fn a_waiting_thread_does_the_work_if_all_workers_are_busy() {
        let (pool, [busy, lane]) = lanes(1);
        let (job, has_begun, end) = gate();
        let blocked = busy.push("test", job).unwrap();
        has_begun.recv().unwrap();
        let (sender, receiver) = mpsc::channel::<ThreadId>();
        let note = act(move || {
            sender.send(std::thread::current().id()).unwrap();
            Ok(())
        });
        let ticket = lane.push("test", note).unwrap();
        lane.wait(ticket.value).unwrap();
        assert_eq!(receiver.recv().unwrap(), std::thread::current().id());
        end.send(()).unwrap();
        busy.wait(blocked.value).unwrap();
        pool.stop();
    }

    #[test]
    fn a_waker_may_wait_for_later_work_of_the_same_queue() {
        let (pool, [lane]) = lanes(1);
        let (job, has_begun, end) = gate();
        let first = lane.push("test", job).unwrap();
        has_begun.recv().unwrap();
        let second = lane.push("test", act(|| Ok(()))).unwrap();
        let (woken, was_woken) = mpsc::channel();
        let same = Arc::clone(&lane);
        let waits = move || {
            same.wait(second.value).unwrap();
            woken.send(()).unwrap();
        };
        lane.wake_at(first.value, waker(waits));
        end.send(()).unwrap();
        was_woken.recv().unwrap();
        pool.stop();
    }

    #[test]
    fn a_waiter_takes_over_when_the_thread_at_work_leaves_early() {
        let (pool, [busy, lane]) = lanes(1);
        let (job, has_begun, end_busy) = gate();
        busy.push("test", job).unwrap();
        has_begun.recv().unwrap();
        // No worker is free. One thread runs the first job and leaves; the other thread must continue with
        // the second.
        let (job, has_begun, end) = gate();
        let first = lane.push("test", job).unwrap();
        let second = lane.push("test", act(|| Ok(()))).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| lane.wait(first.value).unwrap());
            has_begun.recv().unwrap();
            scope.spawn(|| lane.wait(second.value).unwrap());
            // Wait until the second thread sleeps, or is about to.
            while lane.state.lock().sleepers == 0 {
                std::thread::yield_now();
            }
            end.send(()).unwrap();
        });
        end_busy.send(()).unwrap();
        pool.stop();
    }

    #[test]
    fn a_job_that_panics_is_a_failure_and_the_queue_goes_on() {
        let (pool, [lane]) = lanes(1);
        let failed = lane.push("test", act(|| panic!("expected by this test"))).unwrap();
        let later = lane.push("test", act(|| Ok(()))).unwrap();
        lane.wait(later.value).unwrap();
        let error = lane.wait(failed.value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::KernelFailed);
        assert_eq!(error.device(), "test (host test)");
        pool.stop();
    }

    #[test]
    fn a_panicking_waker_harms_no_other_work() {
        let (pool, [lane]) = lanes(1);
        let (job, has_begun, end) = gate();
        let ticket = lane.push("test", job).unwrap();
        has_begun.recv().unwrap();
        let (woken, was_woken) = mpsc::channel();
        lane.wake_at(ticket.value, waker(|| panic!("expected by this test")));
        lane.wake_at(ticket.value, waker(move || woken.send(()).unwrap()));
        end.send(()).unwrap();
        was_woken.recv().unwrap();
        pool.stop();
    }

    #[test]
    fn only_work_that_touches_a_piece_of_memory_holds_it() {
        let (pool, [lane]) = lanes(1);
        let (job, has_begun, end) = gate();
        let [a, b, c] = [&1_u8, &2, &3].map(|place| std::ptr::from_ref(place).cast::<()>());
        let with = |memory| Act(Box::new(|| Ok(())), memory);
        let first = lane.push("test", Act(job.0, a)).unwrap();
        has_begun.recv().unwrap();
        let second = lane.push("test", with(b)).unwrap();
        let third = lane.push("test", with(a)).unwrap();
        lane.push("test", with(std::ptr::null())).unwrap();
        assert_eq!(lane.last_touching(a), Some(third.value));
        assert_eq!(lane.last_touching(b), Some(second.value));
        assert_eq!(lane.last_touching(c), None);
        end.send(()).unwrap();
        lane.wait(third.value).unwrap();
        assert_eq!(lane.last_touching(a), None);
        assert!(lane.reached(first.value));
        pool.stop();
    }

    #[test]
    fn an_ended_queue_takes_nothing_more() {
        let (pool, [lane]) = lanes(1);
        lane.end();
        assert_eq!(lane.push("test", act(|| Ok(()))).unwrap_err().kind(), ErrorKind::UnknownHandle);
        pool.stop();
    }
}
