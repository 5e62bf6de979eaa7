//! Completion of the work in an OpenCL queue.
//!
//! Each submission leaves a [`Mark`]: its number and the event of its last command. By default no thread
//! watches the events. A thread that polls or waits queries the driver about the one event that it needs. It
//! then moves all completed marks from the list to the [`Timeline`]. The device registers a driver callback
//! only for a submission with a waker.
//!
//! Wakers are foreign code that may call the device. A thread therefore runs them only when it holds no lock
//! and is not in a callback of the driver: a thread that polls or waits, or the device's [completion
//! thread](crate::wakers). A submission that must wait while it locks its queue calls [`Track::settle`],
//! which runs no waker.
//!
//! Threads record marks from the oldest on, so a later success never hides an earlier failure. A thread
//! removes a mark only after the timeline has its outcome. Two threads may record the same mark, which is
//! harmless.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Instant;

use backend_api::{Error, ErrorKind, QueueId, QueueProgress, Result};
use opencl3::types::{cl_event, cl_int};
use parking_lot::Mutex;
use vmarray_support::Timeline;
use vmarray_support::backends::wake_all;

use crate::core::OpenClCore;
use crate::driver::objects::Event;
use crate::error::{Severity, severity};
use crate::retry::{PATIENCE, insist, keep_for_good};
use crate::wakers::{DoneSubmission, WakeJob, WakeableQueue, settle};

/// Stands for any positive status of an event: queued, submitted, running.
const PENDING: cl_int = 1;

/// An object that must live until a submission is done.
pub(crate) type Keep = Box<dyn Send + Sync>;

/// Function that is called after the commands are done; it returns an error if a kernel rejected its input.
pub(crate) type KernelVerdict = Box<dyn Fn() -> Option<Error> + Send + Sync>;

/// Mark of one submission: its ticket value (number in the queue), its event and its status.
pub(crate) struct Mark {
    pub value: u64,
    event: Event,
    /// The final status, after any thread knows it.
    status: AtomicI32,
    /// True if the driver has reported the final status. Otherwise the driver has only refused to answer, and
    /// the commands may still be running.
    over: AtomicBool,
    /// Start of the driver's refusals, in milliseconds after the mark's creation, plus 1; 0 while it answers.
    refused_since: AtomicU64,
    made: Instant,
    called_back: AtomicBool,
    operation: &'static str,
    kind: ErrorKind,
    verdict: Option<KernelVerdict>,
    /// The result of the verdict, after the commands were done.
    judged: OnceLock<Option<Error>>,
    keep: Vec<Keep>,
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mark({} of {})", self.value, self.operation)
    }
}

impl Mark {
    /// Creates the mark (number `value` and last `event`) of a submission. If the driver reports a failure,
    /// the submission fails with an error of kind `kind`; `verdict` can report a failure of a kernel.
    pub fn new(
        value: u64,
        event: Event,
        operation: &'static str,
        kind: ErrorKind,
        verdict: Option<KernelVerdict>,
        keep: Vec<Keep>,
    ) -> Self {
        Self {
            value,
            event,
            status: AtomicI32::new(PENDING),
            over: AtomicBool::new(false),
            refused_since: AtomicU64::new(0),
            made: Instant::now(),
            called_back: AtomicBool::new(false),
            operation,
            kind,
            verdict,
            judged: OnceLock::new(),
            keep,
        }
    }

    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Returns the last known status of the event, without a query of the driver: positive while pending.
    pub fn known(&self) -> cl_int {
        self.status.load(Ordering::Acquire)
    }

    /// Queries the event's status: positive while pending, 0 when done, negative after a failure. Never
    /// blocks.
    pub fn status(&self) -> cl_int {
        let known = self.known();
        if known <= 0 {
            return known;
        }
        match self.event.status() {
            Ok(status) => {
                if status <= 0 {
                    self.settle(status, true);
                } else if self.refused_since.load(Ordering::Relaxed) != 0 {
                    self.refused_since.store(0, Ordering::Relaxed);
                }
                status
            }
            // The query may have failed for lack of resources while the commands continue, so report the
            // commands as pending for a limited time.
            Err(refusal) if severity(refusal) != Severity::Lost && !self.is_out_of_patience() => PENDING,
            Err(refusal) => {
                self.settle(refusal.min(-1), false);
                self.known()
            }
        }
    }

    fn is_out_of_patience(&self) -> bool {
        let now = self.made.elapsed().as_millis() as u64 + 1;
        let since = self.refused_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        since.is_err_and(|since| now.saturating_sub(since) >= PATIENCE.as_millis() as u64)
    }

    /// Stores the final status unless one is stored already. `over` is true if the driver reported it.
    fn settle(&self, status: cl_int, over: bool) {
        if over {
            self.over.store(true, Ordering::Release);
        }
        // Ignore a failed exchange, because another thread has stored the status first.
        let _ = self.status.compare_exchange(PENDING, status, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns true if the driver has reported, or reports now, that the commands are done or have failed.
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || matches!(self.event.status(), Ok(..=0))
    }

    /// Returns the error that a kernel has reported, after its commands are done. Reads the report only once,
    /// because its memory is then reused.
    fn judge(&self) -> Option<Error> {
        self.judged.get_or_init(|| self.verdict.as_ref().and_then(|verdict| verdict())).clone()
    }

    /// Blocks until the commands of the submission are done or have failed. Uses the driver's own wait,
    /// because polling was not faster, and contends with threads that submit.
    pub fn wait(&self) {
        if self.known() <= 0 {
            return;
        }
        let waited = insist(PATIENCE, || match self.event.wait() {
            Ok(()) => {
                self.settle(0, true);
                Ok(())
            }
            // The driver's wait also returns an error if the commands have failed, so query their status.
            Err(_) if self.status() <= 0 => Ok(()),
            refused => refused,
        });
        if let Err(refusal) = waited {
            self.settle(refusal.min(-1), false);
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if (self.verdict.is_some() || !self.keep.is_empty()) && !self.is_over() {
            keep_for_good((self.verdict.take(), std::mem::take(&mut self.keep)));
        }
    }
}

/// Completion tracker of one queue: its marks, its timeline and its wakers.
#[derive(Debug)]
pub(crate) struct Track {
    core: Arc<OpenClCore>,
    pub timeline: Timeline,
    pending: Mutex<VecDeque<Arc<Mark>>>,
    wakers: Mutex<Vec<(u64, Waker)>>,
    /// True if the driver did not report the end of some work.
    unknown: AtomicBool,
}

impl Track {
    pub fn new(core: &Arc<OpenClCore>, queue: QueueId) -> Arc<Self> {
        let track = Arc::new(Self {
            core: Arc::clone(core),
            timeline: Timeline::new(queue),
            pending: Mutex::default(),
            wakers: Mutex::default(),
            unknown: AtomicBool::new(false),
        });
        let history: Arc<dyn WakeableQueue> = Arc::<Self>::clone(&track);
        core.watch(&history);
        track
    }

    /// Adds a submission's mark (event and status). Afterwards the caller issues the submission's ticket (the
    /// number for waits), with the queue still locked. So each thread that has the ticket finds the mark.
    pub fn push(&self, mark: Mark) {
        self.pending.lock().push_back(Arc::new(mark));
    }

    /// Number of submissions that are not known to be done.
    pub fn backlog(&self) -> usize {
        self.pending.lock().len()
    }

    /// Returns the mark (event and status) of the submission with this ticket value; `None` if the submission
    /// is known to be done.
    pub fn find(&self, value: u64) -> Option<Arc<Mark>> {
        let pending = self.pending.lock();
        let first = pending.front()?.value;
        // Ticket values in the list are consecutive, so the difference is the position.
        let at = usize::try_from(value.checked_sub(first)?).ok()?;
        pending.get(at).cloned()
    }

    /// Records the outcomes of completed submissions, up to the ticket `value`, in the timeline, and removes
    /// their marks (events). After a failure, blocks briefly to probe the device. Runs no waker.
    pub fn collect(&self, value: u64) {
        loop {
            let front = self.pending.lock().front().cloned();
            let Some(mark) = front else { return };
            if mark.value > value {
                return;
            }
            let outcome = match mark.status() {
                status if status > 0 => return,
                0 => match mark.judge() {
                    None => Ok(()),
                    Some(error) => Err(error.on(&self.core.info)),
                },
                status if mark.is_over() => Err(self.core.fail(mark.operation, mark.kind, status)),
                status => {
                    self.lose_sight();
                    Err(self.core.give_up(mark.operation, status))
                }
            };
            self.timeline.complete(mark.value, outcome);
            let mut pending = self.pending.lock();
            let taken = if pending.front().is_some_and(|front| front.value == mark.value) {
                pending.pop_front()
            } else {
                None
            };
            drop(pending);
            drop(taken);
        }
    }

    /// Records that the driver failed to report the end of some work; [`is_over`](Self::is_over) is then
    /// false.
    pub fn lose_sight(&self) {
        self.unknown.store(true, Ordering::Release);
    }

    /// Returns true if the driver has reported the end of all submissions up to number `value`.
    pub fn is_over(&self, value: u64) -> bool {
        let pending = self.pending.lock();
        let mut asked = pending.iter().take_while(|mark| mark.value <= value);
        asked.all(|mark| mark.is_over()) && !self.unknown.load(Ordering::Acquire)
    }

    /// Removes and returns the wakers whose submissions are done, have failed or are lost.
    pub fn due(&self) -> Vec<Waker> {
        let mut wakers = self.wakers.lock();
        let pending = |value| matches!(self.timeline.poll(value), Ok(QueueProgress::Pending));
        wakers.extract_if(.., |(value, _)| !pending(*value)).map(|(_, waker)| waker).collect()
    }

    /// Records the outcomes of completed submissions, up to `value`, and calls the wakers of their tickets.
    /// The calling thread must hold no lock.
    fn advance(&self, value: u64) {
        self.collect(value);
        wake_all(self.due());
    }

    /// Polls a submission: [`Device::poll`](backend_api::Device::poll). May run wakers. Callers hold no lock.
    pub fn poll(&self, value: u64) -> Result<QueueProgress> {
        if self.timeline.poll(value)? == QueueProgress::Done {
            return Ok(QueueProgress::Done);
        }
        match self.find(value) {
            Some(mark) if mark.status() > 0 => Ok(QueueProgress::Pending),
            _ => {
                self.advance(value);
                self.timeline.poll(value)
            }
        }
    }

    /// Waits for a submission, as [`Device::wait`](backend_api::Device::wait). Callers must hold no lock.
    pub fn wait(&self, value: u64) -> Result<()> {
        let outcome = self.wait_for_outcome(value);
        wake_all(self.due());
        outcome
    }

    /// Blocks until all submissions up to the number `value` are done and recorded. Runs no waker.
    pub fn wait_for_outcome(&self, value: u64) -> Result<()> {
        if self.timeline.poll(value)? == QueueProgress::Done {
            return Ok(());
        }
        if let Some(mark) = self.find(value) {
            mark.wait();
        }
        loop {
            self.collect(value);
            if self.timeline.poll(value)? == QueueProgress::Done {
                return Ok(());
            }
            // The driver reported this submission before an earlier one, so wait for the earliest pending.
            let front = self.pending.lock().front().cloned();
            match front {
                Some(mark) => mark.wait(),
                None => std::thread::yield_now(),
            }
        }
    }

    /// Blocks until the commands of one submission are done and their status is known; returns at once for
    /// unknown values. Runs no waker and handles no failure, so callers may hold any lock.
    pub fn settle(&self, value: u64) {
        let Some(mark) = self.find(value) else { return };
        mark.wait();
        if mark.known() == 0 {
            mark.judge();
        }
    }

    pub fn wake(self: &Arc<Self>, value: u64, waker: Waker) {
        if !matches!(self.poll(value), Ok(QueueProgress::Pending)) {
            return waker.wake();
        }
        self.wakers.lock().push((value, waker));
        let Some(mark) = self.find(value) else { return self.advance(u64::MAX) };
        // Check again: the device may have been lost meanwhile. The thread that declared the loss may have
        // looked for wakers before this waker was added.
        if !matches!(self.timeline.poll(value), Ok(QueueProgress::Pending)) {
            return wake_all(self.due());
        }
        if mark.called_back.swap(true, Ordering::AcqRel) {
            return;
        }
        self.core.callbacks.fetch_add(1, Ordering::AcqRel);
        let call = Box::into_raw(Box::new(Call { track: Arc::clone(self), mark: Arc::clone(&mark) }));
        // SAFETY: `on_event` takes the box back; the driver calls it once.
        if let Err(status) = unsafe { mark.event.on_completion(on_event, call.cast()) } {
            tracing::debug!(status, "the driver did not register a callback");
            // SAFETY: the driver did not take it.
            drop(unsafe { Box::from_raw(call) });
            elsewhere(Arc::clone(self), value);
            self.core.callbacks.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl WakeableQueue for Track {
    fn await_outcome(&self, value: u64) {
        // Ignore the result, because the timeline stores it.
        drop(self.wait_for_outcome(value));
    }

    fn take_due(&self) -> Vec<Waker> {
        self.due()
    }

    fn lose(&self, error: Error) {
        self.timeline.lose(error);
    }

    fn see_off(self: Arc<Self>) {
        if self.backlog() == 0 {
            return;
        }
        let newest = self.timeline.newest().value;
        elsewhere(self, newest);
    }
}

impl DoneSubmission for Mark {
    fn value(&self) -> u64 {
        self.value
    }
}

/// The data of a driver's callback.
struct Call {
    track: Arc<Track>,
    mark: Arc<Mark>,
}

/// Callback that a thread of the driver runs. OpenCL forbids long calls in it, so it passes the event to the
/// completion thread.
extern "C" fn on_event(_event: cl_event, status: cl_int, data: *mut c_void) {
    // SAFETY: `wake` passed this box, and the driver calls once.
    let call = unsafe { Box::from_raw(data.cast::<Call>()) };
    // Catch panics, because a panic must not unwind into the driver.
    let result = catch_unwind(AssertUnwindSafe(move || {
        let Call { track, mark } = *call;
        mark.settle(status.min(0), true);
        // This reference is never the last one, because the drop of the device waits for all callbacks.
        let core = Arc::clone(&track.core);
        core.completion_thread.send(WakeJob { track, done: Some(mark) });
    }));
    if result.is_err() {
        tracing::error!("a callback from the driver panicked");
    }
}

/// Waits for a ticket value in a new thread, and then calls its wakers; for drivers that refuse callbacks,
/// and after a loss. Counts as a callback until the thread refers to no part of the device.
fn elsewhere(track: Arc<Track>, value: u64) {
    let counter = Arc::clone(&track.core.callbacks);
    counter.fetch_add(1, Ordering::AcqRel);
    let done = Arc::clone(&counter);
    let work = move || wake_all(settle(track, Some(value), &done));
    if let Err(error) = std::thread::Builder::new().name("opencl-wake".into()).spawn(work) {
        tracing::error!(%error, "the completion thread cannot wake a waiter; the next poll wakes it");
        counter.fetch_sub(1, Ordering::AcqRel);
    }
}
