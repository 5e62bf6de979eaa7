//! A small executor for tests: runs tasks of one thread in the order of their wake-ups.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Longer than any wait of a test.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time of a wait for other threads before the executor is idle again.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Ready {
    tasks: Mutex<VecDeque<usize>>,
    woken: Condvar,
}

struct Task {
    number: usize,
    is_ready: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.is_ready.swap(true, Ordering::SeqCst) {
            self.ready.tasks.lock().unwrap().push_back(self.number);
            self.ready.woken.notify_one();
        }
    }
}

type Boxed<'a, R> = Pin<Box<dyn Future<Output = R> + 'a>>;

/// Tasks, and the set of tasks to poll.
pub struct Executor<'a, R> {
    tasks: Vec<Option<(Boxed<'a, R>, Arc<Task>)>>,
    results: Vec<Option<R>>,
    forgotten: Vec<Boxed<'a, R>>,
    ready: Arc<Ready>,
    pub polls: usize,
}

impl<'a, R> Default for Executor<'a, R> {
    fn default() -> Self {
        Self {
            tasks: Vec::new(),
            results: Vec::new(),
            forgotten: Vec::new(),
            ready: Arc::default(),
            polls: 0,
        }
    }
}

impl<'a, R> Executor<'a, R> {
    /// Adds a task, which is polled next time; returns its number.
    pub fn spawn(&mut self, future: impl Future<Output = R> + 'a) -> usize {
        let number = self.tasks.len();
        let task = Arc::new(Task { number, is_ready: AtomicBool::new(false), ready: self.ready.clone() });
        task.clone().wake();
        self.tasks.push(Some((Box::pin(future), task)));
        self.results.push(None);
        number
    }

    /// Drops a task, finished or not.
    pub fn drop_task(&mut self, number: usize) {
        self.tasks[number] = None;
    }

    /// Stops polling a task, but keeps it, like a task that waits for another one of its futures.
    pub fn forget_task(&mut self, number: usize) {
        self.forgotten.extend(self.tasks[number].take().map(|(future, _)| future));
    }

    /// Polls one task that is ready; false if there is none.
    pub fn step(&mut self) -> bool {
        let Some(number) = self.ready.tasks.lock().unwrap().pop_front() else { return false };
        let Some((future, task)) = &mut self.tasks[number] else { return true };
        task.is_ready.store(false, Ordering::SeqCst);
        let waker = Waker::from(task.clone());
        self.polls += 1;
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            self.results[number] = Some(result);
            self.tasks[number] = None;
        }
        true
    }

    /// Polls until no task is ready.
    pub fn settle(&mut self) {
        while self.step() {}
    }

    pub fn unfinished(&self) -> usize {
        self.tasks.iter().flatten().count()
    }

    /// Runs all tasks to their end; calls `idle` whenever none is ready.
    pub fn run(mut self, mut idle: impl FnMut()) -> Vec<R> {
        while self.unfinished() > 0 {
            self.settle();
            let begun = Instant::now();
            while self.unfinished() > 0 && self.ready.tasks.lock().unwrap().is_empty() {
                assert!(begun.elapsed() < PATIENCE, "{} tasks are stuck", self.unfinished());
                // Call this repeatedly: the end of work may submit further work before it wakes a task.
                idle();
                let ready = self.ready.tasks.lock().unwrap();
                let wait = self.ready.woken.wait_timeout_while(ready, PAUSE, |ready| ready.is_empty());
                drop(wait.unwrap());
            }
        }
        self.results.into_iter().flatten().collect()
    }
}

/// Runs one future on the calling thread.
pub fn block_on<R>(future: impl Future<Output = R>) -> R {
    let mut executor = Executor::default();
    executor.spawn(future);
    executor.run(|| ()).pop().expect("one task")
}

/// Runs futures concurrently; returns their results in order.
pub fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut executor = Executor::default();
    futures.into_iter().for_each(|future| {
        executor.spawn(future);
    });
    executor.run(|| ())
}
