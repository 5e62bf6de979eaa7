//! Parallel loop over pages of an array, on the calling and on rayon's threads, for closures of the program.
//!
//! A rayon thread that waits within a closure runs other jobs meanwhile, also jobs of other calls. Such a job
//! must not block on a page guard: the thread that holds the guard may wait for the interrupted job on the
//! same stack. So only the calling thread, the *leader*, blocks on guards. All other threads are *helpers*.
//! If a helper would have to wait for a guard, it returns its pages to the loop and ends. A thread that holds
//! guards is no helper. The leader alone can process all pages, so the loop ends with any number of threads
//! and frames.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::scoped_threads::works_alone;
use crate::engine::guards::WaitRule;

/// Returns the number of threads for a loop over pages: at most one for each page, and one for each guard
/// that the frames allow. The calling thread works alone if it [must](works_alone).
pub(crate) fn workers(pages: usize, guards: usize) -> usize {
    if works_alone() { 1 } else { rayon::current_num_threads().min(pages).min(guards).max(1) }
}

/// The loop: `hold` returns the guard of a page, and `fold` uses the guard.
pub(crate) struct PageLoop<R, I, H, F> {
    workers: usize,
    identity: I,
    hold: H,
    fold: F,
    has_failed: AtomicBool,
    state: Mutex<LoopState<R>>,
}

struct LoopState<R> {
    /// Ranges of pages that no thread has taken, the first ones last.
    left: Vec<Range<usize>>,
    /// Results of ranges of pages, each with its first page.
    done: Vec<(usize, R)>,
    failure: Option<Error>,
    /// Number of helpers that were started and have not ended.
    helpers: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Leader,
    Helper,
}

impl<R, G, I, H, F> PageLoop<R, I, H, F>
where
    R: Send,
    I: Fn() -> R + Sync,
    H: Fn(usize) -> Result<G> + Sync,
    F: Fn(R, G) -> R + Sync,
{
    pub(crate) fn new(workers: usize, identity: I, hold: H, fold: F) -> Self {
        let state = LoopState { left: Vec::new(), done: Vec::new(), failure: None, helpers: 0 };
        Self { workers, identity, hold, fold, has_failed: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// Folds the pages `0..pages`. Returns the results of ranges of pages, in their order.
    ///
    /// # Errors
    /// The first error of `hold`; the loop then ends soon.
    pub(crate) fn run(mut self, pages: usize) -> Result<impl Iterator<Item = R>> {
        self.state.get_mut().left.push(0..pages);
        while !self.state.get_mut().left.is_empty() && !*self.has_failed.get_mut() {
            // Process pages again, because helpers may have returned pages after `lead` ended.
            self.lead();
        }
        let mut state = self.state.into_inner();
        if let Some(error) = state.failure {
            return Err(error);
        }
        state.done.sort_unstable_by_key(|(first, _)| *first);
        Ok(state.done.into_iter().map(|(_, result)| result))
    }

    fn lead(&self) {
        if self.workers == 1 {
            return self.work(Role::Leader, || ());
        }
        rayon::in_place_scope(|scope| {
            (1..self.workers).for_each(|_| self.call_helper(scope));
            self.work(Role::Leader, || self.call_helper(scope));
        });
    }

    /// Starts one more helper on a rayon thread, if there are pages for it.
    fn call_helper<'scope>(&'scope self, scope: &rayon::Scope<'scope>) {
        let mut state = self.state.lock();
        if state.helpers + 1 >= self.workers || state.left.is_empty() {
            return;
        }
        state.helpers += 1;
        drop(state);
        scope.spawn(|scope| {
            if !works_alone() {
                self.work(Role::Helper, || self.call_helper(scope));
            }
            self.state.lock().helpers -= 1;
        });
    }

    /// Processes pages until none is left. A helper also ends before it would have to wait for a guard.
    fn work(&self, role: Role, call_helper: impl Fn()) {
        while let Some(pages) = self.take() {
            let mut result = (self.identity)();
            let mut next = pages.start;
            let mut outcome = Ok(());
            while next < pages.end && outcome.is_ok() && !self.has_failed.load(Ordering::Relaxed) {
                match self.hold_as(role, next) {
                    Ok(held) => {
                        result = (self.fold)(result, held);
                        next += 1;
                    }
                    Err(error) => outcome = Err(error),
                }
            }
            let mut state = self.state.lock();
            if next > pages.start {
                state.done.push((pages.start, result));
            }
            match outcome {
                Ok(()) => {}
                Err(error) if role == Role::Helper && is_wait(&error) => {
                    state.left.push(next..pages.end);
                    return;
                }
                Err(error) => {
                    self.has_failed.store(true, Ordering::Relaxed);
                    state.failure.get_or_insert(error);
                }
            }
            drop(state);
            // A helper ends if it cannot get a guard. Start one again, because a guard may be free now.
            call_helper();
        }
    }

    fn hold_as(&self, role: Role, page: usize) -> Result<G> {
        let _rule = (role == Role::Helper).then(WaitRule::never);
        (self.hold)(page)
    }

    /// Takes the next pages for a thread: fewer towards the end, so that all threads end at the same time.
    fn take(&self) -> Option<Range<usize>> {
        if self.has_failed.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.state.lock();
        let Range { start, end } = state.left.pop()?;
        let shares = 2 * (self.workers - 1);
        let middle = start + (end - start).div_ceil(shares.max(1));
        if middle < end {
            state.left.push(middle..end);
        }
        Some(start..middle)
    }
}

/// Returns true for an error that replaces a wait for a guard.
fn is_wait(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldDeadlock { .. } | ErrorKind::TooManyGuards { .. })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn concatenated(
        workers: usize,
        pages: usize,
        hold: impl Fn(usize) -> Result<usize> + Send + Sync,
    ) -> Vec<usize> {
        let add = |mut sum: Vec<usize>, page| {
            sum.push(page);
            sum
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(workers).build().unwrap();
        let run =
            || PageLoop::new(workers, Vec::new, hold, add).run(pages).map(|parts| parts.flatten().collect());
        pool.install(run).unwrap()
    }

    #[test]
    fn results_come_in_the_order_of_pages() {
        for (workers, pages) in [(1, 9), (2, 0), (2, 1), (3, 100), (16, 1000), (64, 65)] {
            assert_eq!(concatenated(workers, pages, Ok), (0..pages).collect::<Vec<_>>());
        }
    }

    #[test]
    fn pages_that_helpers_cannot_have_are_done_by_the_leader() {
        let refused = AtomicUsize::new(0);
        let hold = |page| {
            if page % 3 > 0 || !crate::engine::guards::must_not_await_guards() {
                return Ok(page);
            }
            refused.fetch_add(1, Ordering::Relaxed);
            Err(ErrorKind::WouldDeadlock { page: page as u64 }.into())
        };
        for workers in [1, 2, 16] {
            assert_eq!(concatenated(workers, 500, hold), (0..500).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_error_ends_the_loop() {
        let hold = |page| if page == 7 { Err(ErrorKind::NoDevices.into()) } else { Ok(page) };
        for workers in [1, 2] {
            let outcome = PageLoop::new(workers, || 0, hold, |sum, page| sum + page).run(100);
            assert_eq!(*outcome.err().unwrap().kind(), ErrorKind::NoDevices);
        }
    }
}
