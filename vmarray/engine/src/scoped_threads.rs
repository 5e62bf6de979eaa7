//! Scoped threads for parallel work within one call: idle threads of earlier calls, or new ones.
//!
//! Starting and joining 16 threads takes 0.4 ms, as long as a bus takes for 20 MB. So a thread that has
//! finished its part of the work waits some seconds for the next call.
//!
//! A thread for which other threads may wait, such as a holder of page guards, works alone. It would wait for
//! its helper threads, and a helper could block on the thread's own guards. [`works_alone`] checks this rule,
//! which the engine [sets](set_rule).
//!
//! This is no thread pool: a call uses the threads that are idle at that moment, and starts new ones if there
//! are too few. So no call waits for another call's work, and all threads of a program may call.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
#[cfg(target_os = "linux")]
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::thread;
use std::time::Duration;

use backend_api::numa::{OnNode, Processors};
use parking_lot::{Condvar, Mutex};
use vmarray_support::contended;

/// The time that an idle thread waits for the next call before it ends.
const IDLE_FOR: Duration = Duration::from_secs(5);
/// The time that the calling thread polls for the end of its helpers before it sleeps.
const SPIN: Duration = Duration::from_micros(30);
const PATIENCE: Duration = Duration::from_micros(60);

/// The number of cores that this process may use, or the number in the variable `VMARRAY_THREADS`.
pub static CORES: LazyLock<usize> = LazyLock::new(|| {
    let chosen = std::env::var("VMARRAY_THREADS").ok().and_then(|text| text.trim().parse().ok());
    chosen.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZero::get)
});
/// Idle threads that wait for a job, at most as many as cores.
static IDLE: Mutex<Vec<Arc<JobSlot>>> = Mutex::new(Vec::new());

/// The function that returns true if the calling thread must work alone.
static RULE: OnceLock<fn() -> bool> = OnceLock::new();

thread_local! {
    /// True if this module has started the thread.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
    /// The processors of a thread outside of calls of [`near`].
    static ELSEWHERE: RefCell<Option<Arc<Processors>>> = const { RefCell::new(None) };
}

/// The mailbox of an idle thread, through which a caller gives it a job.
#[derive(Default)]
struct JobSlot {
    job: Mutex<Option<Job>>,
    called: Condvar,
}

/// A job for a helper thread: a closure that the calling thread borrows from its stack.
struct Job {
    work: BorrowedWork,
    call: Arc<Call>,
}

#[derive(Clone, Copy)]
struct BorrowedWork(*const (dyn Fn() + Sync));

// SAFETY: the target is `Sync`, and is used as a shared reference only.
unsafe impl Send for BorrowedWork {}

/// The state of one call, shared by its threads.
#[derive(Default)]
struct Call {
    state: Mutex<CallState>,
    done: Condvar,
}

#[derive(Default)]
struct CallState {
    /// The number of threads that may still use the borrowed closure.
    users: usize,
    panic: Option<Box<dyn Any + Send>>,
}

/// True in a process that was forked after [`watch_forks`]. It has only one thread of its parent.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Makes [`is_forked`] detect processes that are forked from now on, unless memory is exhausted.
#[cfg(target_os = "linux")]
pub fn watch_forks() {
    static WATCHES: Once = Once::new();
    extern "C" fn in_child() {
        IS_FORKED.store(true, Ordering::Relaxed);
    }
    WATCHES.call_once(|| {
        // SAFETY: the function stores to a static variable and does nothing else.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        // Ignore a failure, which means that memory is exhausted. Forks are then not detected.
        let _ = failed;
    });
}

/// Returns true in a process that was forked after [`watch_forks`].
#[inline]
pub fn is_forked() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

/// Sets the function that decides if the calling thread must work alone. Only the first call has an effect.
#[inline]
pub fn set_rule(works_alone: fn() -> bool) {
    let _ = RULE.set(works_alone);
}

/// Returns true if the calling thread must not use helper threads.
#[inline]
pub fn works_alone() -> bool {
    RULE.get().is_some_and(|works_alone| works_alone())
}

/// Runs `work` on `threads` threads. The calling thread is one of them; it is the only one if it must [work
/// alone](works_alone). If the system cannot start enough threads, fewer run `work`. Returns when all end.
///
/// # Panics
/// If `work` panics on any thread.
#[inline]
pub fn together(threads: usize, work: impl Fn() + Sync) {
    run_together(threads, &work);
}

/// The body of [`together`], compiled once for all types of closures.
fn run_together(threads: usize, work: &(dyn Fn() + Sync)) {
    if threads <= 1 || works_alone() {
        return work();
    }
    let call = Arc::new(Call::default());
    // SAFETY: only the lifetime is extended. No thread uses the reference after the last of the call's
    // users has signed off. `until_done`, which is dropped before this function returns, also when the stack
    // unwinds, waits for that.
    let borrowed = BorrowedWork(unsafe {
        std::mem::transmute::<*const (dyn Fn() + Sync + '_), *const (dyn Fn() + Sync + 'static)>(work)
    });
    let until_done = UntilDone(&call);
    for _ in 1..threads {
        if !run_on_worker(borrowed, &call) {
            break;
        }
    }
    work();
    drop(until_done);
    let panic = call.state.lock().panic.take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// Calls `work` with each number below `end`, on at most `threads` threads.
///
/// # Panics
/// As [`together`].
#[inline]
pub fn each(threads: usize, end: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    together(threads.min(end), || {
        while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < end) {
            work(number);
        }
    });
}

/// Runs `work` on the processors of one NUMA node, if this module has started the calling thread. The
/// program's own threads stay on their processors.
#[inline]
pub fn near<R>(node: Option<u32>, work: impl FnOnce() -> R) -> R {
    let _there = move_near(node);
    work()
}

/// Moves a thread that this module has started to the processors of a node, until the result is dropped.
fn move_near(node: Option<u32>) -> Option<(Option<PutBack>, OnNode)> {
    if !IS_WORKER.get() {
        return None;
    }
    let there = OnNode::run(node);
    let back = there.processors_before().map(|elsewhere| {
        let outer = ELSEWHERE.with_borrow(Option::clone);
        PutBack(ELSEWHERE.replace(Some(outer.unwrap_or_else(|| Arc::clone(elsewhere)))))
    });
    Some((back, there))
}

/// Restores the thread's former processors on drop.
struct PutBack(Option<Arc<Processors>>);

impl Drop for PutBack {
    fn drop(&mut self) {
        ELSEWHERE.set(self.0.take());
    }
}

/// Waits on drop until no helper thread uses the borrowed closure.
struct UntilDone<'a>(&'a Call);

impl Drop for UntilDone<'_> {
    fn drop(&mut self) {
        let is_used = || self.0.state.lock().users > 0;
        if !contended::spin_while(SPIN, PATIENCE, is_used) {
            self.0.done.wait_while(&mut self.0.state.lock(), |state| state.users > 0);
        }
    }
}

/// Gives borrowed work to an idle thread, or to a new one; returns false if neither is available.
fn run_on_worker(work: BorrowedWork, call: &Arc<Call>) -> bool {
    call.state.lock().users += 1;
    let job = Job { work, call: Arc::clone(call) };
    let idle = IDLE.lock().pop();
    if let Some(slot) = idle {
        *slot.job.lock() = Some(job);
        slot.called.notify_one();
        return true;
    }
    // A new thread inherits the CPU affinity of its creator. Move the new thread to the processors that the
    // creator usually has, because the thread will work for other callers too.
    let elsewhere = ELSEWHERE.with_borrow(Option::clone);
    let started = thread::Builder::new().name("vmarray-worker".into()).spawn(move || {
        elsewhere.inspect(|elsewhere| drop(elsewhere.move_here()));
        serve(job);
    });
    if started.is_err() {
        call.state.lock().users -= 1;
    }
    started.is_ok()
}

/// The main function of a helper thread: runs its first job, and later jobs that arrive in time.
fn serve(first: Job) {
    IS_WORKER.set(true);
    let slot = Arc::new(JobSlot::default());
    let mut next = Some(first);
    while let Some(job) = next {
        job.run();
        next = slot.wait();
    }
}

impl Job {
    fn run(self) {
        // SAFETY: the lender waits until this thread has signed off, below.
        let work = unsafe { &*self.work.0 };
        let outcome = catch_unwind(AssertUnwindSafe(work));
        let mut state = self.call.state.lock();
        if let Err(panic) = outcome {
            state.panic.get_or_insert(panic);
        }
        state.users -= 1;
        let is_last = state.users == 0;
        drop(state);
        if is_last {
            self.call.done.notify_all();
        }
    }
}

impl JobSlot {
    /// Waits for a job as an idle thread. Returns `None` after some seconds, or if enough threads are idle.
    fn wait(self: &Arc<Self>) -> Option<Job> {
        {
            let mut idle = IDLE.lock();
            if idle.len() >= *CORES {
                return None;
            }
            idle.push(Arc::clone(self));
        }
        let mut job = self.job.lock();
        self.called.wait_while_for(&mut job, |job| job.is_none(), IDLE_FOR);
        if job.is_none() {
            drop(job);
            let mut idle = IDLE.lock();
            if let Some(at) = idle.iter().position(|slot| Arc::ptr_eq(slot, self)) {
                idle.remove(at);
                return None;
            }
            drop(idle);
            // A caller has removed this thread from the list of idle threads, and is about to give it a job.
            job = self.job.lock();
            self.called.wait_while(&mut job, |job| job.is_none());
        }
        job.take()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn all_threads_run_and_are_used_again() {
        // Test all threads of one call at the same time, and calls of several threads at the same time.
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for threads in [1, 2, 5, 3, 5] {
                        let (barrier, ran) = (Barrier::new(threads), AtomicUsize::new(0));
                        together(threads, || {
                            barrier.wait();
                            ran.fetch_add(1, Ordering::Relaxed);
                        });
                        assert_eq!(ran.into_inner(), threads);
                    }
                });
            }
        });
        assert!(IDLE.lock().len() <= *CORES);
    }

    #[test]
    fn work_within_work_is_not_kept_waiting() {
        let ran = AtomicUsize::new(0);
        together(3, || {
            together(3, || {
                ran.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(ran.into_inner(), 9);
    }

    #[cfg(all(target_os = "linux", not(any(loom, miri))))]
    #[test]
    fn threads_of_ours_go_near_a_node_and_come_back() {
        const NODE: Option<u32> = Some(1 << 22);
        let wide = Processors::of(0).unwrap();
        let first = (0..).find(|&number| wide.has(number)).unwrap();
        let narrow: Processors = [first].into_iter().collect();
        backend_api::numa::assume(NODE.unwrap(), narrow.clone());
        let (caller, barrier, inner) = (thread::current().id(), Barrier::new(2), AtomicUsize::new(0));
        together(2, || {
            // Both calls run at the same time, so that one is not on the caller's thread.
            barrier.wait();
            let is_caller = thread::current().id() == caller;
            near(NODE, || {
                assert_eq!(Processors::of(0).unwrap(), *if is_caller { &wide } else { &narrow });
                let (starter, barrier) = (thread::current().id(), Barrier::new(3));
                together(3, || {
                    barrier.wait();
                    if thread::current().id() != starter {
                        assert_eq!(
                            Processors::of(0).unwrap(),
                            wide,
                            "it does not inherit the processors of its starter"
                        );
                        inner.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
            assert_eq!(Processors::of(0).unwrap(), wide);
        });
        assert_eq!(inner.into_inner(), 4);
    }

    #[test]
    fn a_panic_of_any_thread_is_the_callers_and_all_have_done_before() {
        for panics_at in 0..3 {
            let (started, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let barrier = Barrier::new(3);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                together(3, || {
                    let number = started.fetch_add(1, Ordering::Relaxed);
                    barrier.wait();
                    ended.fetch_add(1, Ordering::Relaxed);
                    assert_ne!(number, panics_at, "as a test");
                });
            }));
            outcome.unwrap_err();
            assert_eq!(ended.into_inner(), 3);
        }
    }
}
