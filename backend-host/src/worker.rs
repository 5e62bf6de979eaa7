//! Pool of worker threads, which sleep without work; also divides one request among several threads.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};

/// Interval between two polls of the watcher thread. Short work without a waiting thread starts at most about
/// this much later.
const LOOK: Duration = Duration::from_micros(100);
/// Number of polls without work after which the watcher thread sleeps until it is woken: some milliseconds.
const LOOKS_MAX: u32 = 20;

/// Number of files whose requests can run at the same time, each with all threads of a pool. Files may be on
/// several drives.
const FILES_AT_ONCE: usize = 4;

/// Urgency of a queue's work: determines if the submission of work wakes a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Short work, which wakes no thread: a wake-up costs microseconds, more than the work. The thread that
    /// waits for the work probably does it; otherwise the pool's watcher thread finds it.
    Short,
    /// Long work, worth the wake-up of a thread.
    Long,
}

/// Work that a worker thread executes, such as a queue.
pub trait WorkerTask: Send + Sync {
    /// Executes all work that is present.
    fn run(self: Arc<Self>);
}

enum Work {
    Task(Arc<dyn WorkerTask>),
    Assist(Arc<Team>),
}

/// Pool of worker threads, for one device or several.
pub struct Pool {
    threads: Arc<Threads>,
    /// Maximum number of threads that work on one request.
    width: usize,
    /// Lock that each request takes for reading while it runs, if there is one. A thread that takes the lock
    /// for writing stops all work.
    gate: OnceLock<Arc<RwLock<()>>>,
    /// Reference that ends the shared threads when the last device drops it.
    shared: Option<Arc<SharedThreads>>,
}

/// Threads that several devices share.
struct SharedThreads(Arc<Threads>);

impl Drop for SharedThreads {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The shared threads, and the id of the process that started them: a forked process has no threads.
static SHARED: Mutex<(u32, Weak<SharedThreads>)> = Mutex::new((0, Weak::new()));

/// Worker threads, which start when there is work, and sleep without work.
///
/// One of the idle threads is the *watcher*: for some milliseconds after it last found work it polls at
/// intervals, so a submission of short work wakes no thread. All other idle threads sleep until they are
/// woken. Without work the watcher sleeps as well, so an idle pool uses no processor time.
struct Threads {
    name: String,
    threads_max: usize,
    state: Mutex<State>,
    work_or_stop: Condvar,
    /// True if [`State::work`] is not empty; a hint, read without the lock.
    backlog: AtomicBool,
}

#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    threads: Vec<Worker>,
    sleeping: usize,
    watching: bool,
    stopping: bool,
}

struct Worker {
    handle: JoinHandle<()>,
    is_busy: bool,
}

impl State {
    /// Records if a worker is busy, until the threads are stopped.
    fn set_busy(&mut self, number: usize, is_busy: bool) {
        if let Some(worker) = self.threads.get_mut(number) {
            worker.is_busy = is_busy;
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("name", &self.threads.name).field("width", &self.width).finish()
    }
}

impl Pool {
    /// Returns a pool of at most `threads_max` threads. The pool starts a thread only when there is work.
    pub fn new(name: &str, threads_max: usize) -> Arc<Self> {
        let threads = Threads::new(name, threads_max);
        Arc::new(Self { width: threads.threads_max, threads, gate: OnceLock::new(), shared: None })
    }

    /// Returns a pool that uses the worker threads of the process, together with other such pools. At most
    /// `width` threads work on one request.
    pub fn shared(width: usize) -> Arc<Self> {
        let shared = &mut *SHARED.lock();
        let process = std::process::id();
        let present = if shared.0 == process { shared.1.upgrade() } else { None };
        let owner = present.unwrap_or_else(|| {
            let owner = Arc::new(SharedThreads(Threads::new("vmarray-files", FILES_AT_ONCE * width)));
            *shared = (process, Arc::downgrade(&owner));
            owner
        });
        let (threads, gate) = (Arc::clone(&owner.0), OnceLock::new());
        Arc::new(Self { threads, width: width.max(1), gate, shared: Some(owner) })
    }

    /// Makes each later request lock `gate` for reading while it runs. So while another thread locks `gate`
    /// for writing, no request is half done.
    pub fn pass_through(&self, gate: Arc<RwLock<()>>) {
        let _ = self.gate.set(gate);
    }

    /// Locks the gate of [`pass_through`](Self::pass_through), if there is one, for reading. A request runs
    /// while the caller keeps the lock.
    pub fn enter(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.gate.get().map(|gate| gate.read())
    }

    /// Maximum number of threads that work on one request.
    pub fn threads_max(&self) -> usize {
        self.width
    }

    /// Returns true if there is work that no thread has taken; the answer may be outdated.
    pub fn has_backlog(&self) -> bool {
        self.threads.backlog.load(Ordering::Relaxed)
    }

    /// Starts the first thread. Then later submissions cannot fail for lack of a thread.
    pub fn ensure_started(&self) -> std::io::Result<()> {
        self.threads.ensure_started()
    }

    /// Submits work to the threads of the pool.
    pub fn push(&self, task: Arc<dyn WorkerTask>, urgency: Urgency) {
        self.threads.push(task, urgency);
    }

    /// Wakes a thread for queued short work, because another thread waits for the result.
    pub fn hurry(&self) {
        self.threads.hurry();
    }

    /// Ends the pool's own threads after all work is done. Threads that several pools share keep running.
    pub fn stop(&self) {
        if self.shared.is_none() {
            self.threads.stop();
        }
    }
}

impl Threads {
    fn new(name: &str, threads_max: usize) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            threads_max: threads_max.max(1),
            state: Mutex::default(),
            work_or_stop: Condvar::new(),
            backlog: AtomicBool::new(false),
        })
    }

    /// Starts the first thread. Then later submissions cannot fail for lack of a thread.
    fn ensure_started(self: &Arc<Self>) -> std::io::Result<()> {
        let mut state = self.state.lock();
        if state.threads.is_empty() { self.start_one(&mut state) } else { Ok(()) }
    }

    fn push(self: &Arc<Self>, task: Arc<dyn WorkerTask>, urgency: Urgency) {
        let mut state = self.state.lock();
        state.work.push_back(Work::Task(task));
        self.backlog.store(true, Ordering::Relaxed);
        if urgency == Urgency::Long || !state.watching {
            self.rouse(&mut state, 1);
        }
    }

    fn hurry(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if !state.work.is_empty() {
            self.rouse(&mut state, 1);
        }
    }

    fn assist(self: &Arc<Self>, team: &Arc<Team>, helpers: usize) {
        let mut state = self.state.lock();
        for _ in 0..helpers {
            // Push the part to the front, because workers should finish started requests first.
            state.work.push_front(Work::Assist(Arc::clone(team)));
        }
        self.backlog.store(true, Ordering::Relaxed);
        self.rouse(&mut state, helpers);
    }

    fn rouse(self: &Arc<Self>, state: &mut State, added: usize) {
        let idle = state.sleeping + usize::from(state.watching);
        for _ in 0..added.min(idle) {
            self.work_or_stop.notify_one();
        }
        let mut wanted = state.work.len().saturating_sub(idle);
        while wanted > 0 && state.threads.len() < self.threads_max && !state.stopping {
            wanted -= 1;
            if let Err(error) = self.start_one(state) {
                // Continue with the existing threads, of which there is at least one.
                tracing::warn!(%error, threads = state.threads.len(), "cannot start another worker thread");
                break;
            }
        }
    }

    fn start_one(self: &Arc<Self>, state: &mut State) -> std::io::Result<()> {
        let (pool, number) = (Arc::clone(self), state.threads.len());
        let thread = std::thread::Builder::new().name(format!("{}-{number}", self.name));
        let handle = thread.spawn(move || pool.work(number))?;
        state.threads.push(Worker { handle, is_busy: false });
        Ok(())
    }

    fn work(&self, number: usize) {
        let mut looks = 0;
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.work.pop_front() {
                looks = 0;
                self.backlog.store(!state.work.is_empty(), Ordering::Relaxed);
                state.set_busy(number, true);
                drop(state);
                match work {
                    Work::Task(task) => {
                        // Requests catch their own panics; this call catches panics of the program's wakers.
                        if catch_unwind(AssertUnwindSafe(|| task.run())).is_err() {
                            tracing::error!("a waker panicked");
                        }
                    }
                    Work::Assist(team) => team.work(),
                }
                state = self.state.lock();
                state.set_busy(number, false);
            } else if state.stopping {
                return;
            } else if !state.watching && looks < LOOKS_MAX {
                looks += 1;
                state.watching = true;
                self.work_or_stop.wait_for(&mut state, LOOK);
                state.watching = false;
            } else {
                state.sleeping += 1;
                self.work_or_stop.wait(&mut state);
                state.sleeping -= 1;
                looks = 0;
            }
        }
    }

    /// Ends the threads after all work is done, and waits for the idle ones.
    ///
    /// The call does not wait for busy threads, because a busy thread may run a waker that waits for a lock
    /// of the caller. A busy thread owns all that its work needs, and ends after the work.
    fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        let mut threads = std::mem::take(&mut state.threads);
        let has_work = !state.work.is_empty();
        self.work_or_stop.notify_all();
        drop(state);
        threads.retain(|worker| !has_work && !worker.is_busy);
        for worker in threads {
            // `join` returns no error, because workers catch the panics of their work.
            let _ = worker.handle.join();
        }
    }
}

/// Threads that execute one request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Crew<'a> {
    Alone,
    /// The calling thread, and free threads of a pool.
    Pool(&'a Arc<Pool>),
}

impl Crew<'_> {
    /// Returns the maximum number of threads that work on this request.
    pub fn width(&self) -> usize {
        match self {
            Self::Alone => 1,
            Self::Pool(pool) => pool.threads_max(),
        }
    }

    /// Calls `body` once for each number below `parts`, on several threads, started in ascending order.
    /// Returns after all calls have returned.
    pub fn each(&self, parts: usize, body: &(dyn Fn(usize) + Sync)) {
        match self {
            Self::Pool(pool) if parts > 1 && pool.threads_max() > 1 => Team::each(pool, parts, body),
            _ => (0..parts).for_each(body),
        }
    }
}

/// A running request of several parts, and the threads that work on it.
struct Team {
    /// Function for one part, on the stack of the thread that called [`each`](Team::each).
    body: Body,
    parts: usize,
    next: AtomicUsize,
    finished: Mutex<usize>,
    all_finished: Condvar,
    panicked: AtomicBool,
}

struct Body(*const (dyn Fn(usize) + Sync));

// SAFETY: the closure is `Sync`, and only `Team::work` calls it, as described there.
unsafe impl Send for Body {}
// SAFETY: as above.
unsafe impl Sync for Body {}

impl Team {
    fn each(pool: &Arc<Pool>, parts: usize, body: &(dyn Fn(usize) + Sync)) {
        let body: *const (dyn Fn(usize) + Sync + '_) = body;
        // SAFETY: the cast only extends the lifetime of the closure. `Team::work` explains why no call
        // outlives it.
        let body: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(body) };
        let team = Arc::new(Self {
            body: Body(body),
            parts,
            next: AtomicUsize::new(0),
            finished: Mutex::new(0),
            all_finished: Condvar::new(),
            panicked: AtomicBool::new(false),
        });
        pool.threads.assist(&team, pool.width.min(parts) - 1);
        team.work();
        let mut finished = team.finished.lock();
        while *finished < parts {
            team.all_finished.wait(&mut finished);
        }
        drop(finished);
        assert!(!team.panicked.load(Ordering::Relaxed), "a thread panicked in its part of a request");
    }

    fn work(&self) {
        let mut mine = 0;
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.parts {
                break;
            }
            // SAFETY: `each` does not return before `finished` has reached `parts`. This part is not counted
            // yet, so the body still exists. A thread that comes later gets no part, and does not reach this
            // line.
            let body = unsafe { &*self.body.0 };
            if catch_unwind(AssertUnwindSafe(|| body(part))).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            mine += 1;
        }
        if mine > 0 {
            let mut finished = self.finished.lock();
            *finished += mine;
            if *finished == self.parts {
                self.all_finished.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_done_once() {
        let pool = Pool::new("test", 3);
        for parts in [0, 1, 2, 3, 100] {
            let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
            Crew::Pool(&pool).each(parts, &|part| {
                counts[part].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
        pool.stop();
    }

    #[test]
    fn a_panic_comes_out_after_all_parts_and_the_pool_lives_on() {
        let pool = Pool::new("test", 2);
        let done = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            Crew::Pool(&pool).each(10, &|part| {
                done.fetch_add(1, Ordering::Relaxed);
                assert!(part != 3, "expected by this test");
            });
        }));
        assert!(result.is_err());
        assert_eq!(done.load(Ordering::Relaxed), 10);
        Crew::Pool(&pool).each(10, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 20);
        pool.stop();
    }

    #[test]
    fn an_idle_pool_sleeps_until_it_is_woken() {
        struct Nothing;
        impl WorkerTask for Nothing {
            fn run(self: Arc<Self>) {}
        }
        let pool = Pool::new("test", 2);
        pool.ensure_started().unwrap();
        for urgency in [Urgency::Short, Urgency::Long] {
            pool.push(Arc::new(Nothing), urgency);
            // Run without a time limit: the loop ends when all threads sleep without a timeout.
            loop {
                let state = pool.threads.state.lock();
                if state.work.is_empty() && !state.watching && state.sleeping == state.threads.len() {
                    break;
                }
                drop(state);
                std::thread::yield_now();
            }
        }
        pool.stop();
    }

    #[test]
    fn threads_are_started_when_there_is_work_and_not_before() {
        let pool = Pool::new("test", 4);
        assert!(pool.threads.state.lock().threads.is_empty());
        pool.ensure_started().unwrap();
        pool.ensure_started().unwrap();
        assert_eq!(pool.threads.state.lock().threads.len(), 1);
        pool.stop();
    }

    #[test]
    fn pools_of_files_share_their_threads() {
        let pools: Vec<_> = (0..100).map(|_| Pool::shared(2)).collect();
        pools.iter().for_each(|pool| pool.ensure_started().unwrap());
        let threads = Arc::clone(&pools[0].threads);
        assert!(pools.iter().all(|pool| Arc::ptr_eq(&pool.threads, &threads) && pool.threads_max() == 2));
        assert!((1..=2 * FILES_AT_ONCE).contains(&threads.state.lock().threads.len()));
        pools.iter().for_each(|pool| pool.stop());
        let done = AtomicUsize::new(0);
        Crew::Pool(&pools[7]).each(10, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 10, "other pools go on");
    }
}
