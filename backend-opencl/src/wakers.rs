//! Completion thread of an OpenCL device: runs wakers after a driver's callback.
//!
//! OpenCL forbids long calls in a driver's callback, and some drivers hold locks during it. A waker may do
//! anything: wait for other work, release memory, drop the device. So callbacks only send a message to this
//! thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::thread::ThreadId;

use backend_api::Error;
use parking_lot::{Condvar, Mutex};
use vmarray_support::backends::wake_all;

/// Message to the completion thread about a queue: a submission is done, or the queue is lost.
///
/// A message counts in the device's `callbacks`, from before it is sent until it drops the device.
pub(crate) struct WakeJob {
    pub track: Arc<dyn WakeableQueue>,
    pub done: Option<Arc<dyn DoneSubmission>>,
}

/// The completion tracker of a queue with waiters; its submissions fail when the device is lost.
pub(crate) trait WakeableQueue: std::fmt::Debug + Send + Sync {
    /// Blocks until all submissions up to a ticket value are done and recorded. Runs no waker.
    fn await_outcome(&self, value: u64);

    /// Removes and returns the wakers whose submissions are done, have failed or are lost.
    fn take_due(&self) -> Vec<Waker>;

    /// Fails all pending submissions.
    fn lose(&self, error: Error);

    /// Starts a thread that waits for all work so far, and then calls the wakers. The backend calls this
    /// method when the device is lost but its work may still run.
    fn see_off(self: Arc<Self>);
}

/// A submission whose commands are done.
pub(crate) trait DoneSubmission: Send + Sync {
    /// The ticket value of the submission.
    fn value(&self) -> u64;
}

/// The messages that no thread has taken, and the wakers of the messages that were taken.
#[derive(Default)]
struct Inbox {
    jobs: VecDeque<WakeJob>,
    due: Vec<Waker>,
    /// True if no more messages will arrive.
    is_closed: bool,
}

struct Mailbox {
    inbox: Mutex<Inbox>,
    changed: Condvar,
    callbacks: Arc<AtomicUsize>,
}

/// Waits for a ticket value if one is given, removes and returns the wakers that are then due, and drops this
/// reference to the device.
pub(crate) fn settle(
    track: Arc<dyn WakeableQueue>,
    value: Option<u64>,
    callbacks: &AtomicUsize,
) -> Vec<Waker> {
    if let Some(value) = value {
        track.await_outcome(value);
    }
    let due = track.take_due();
    drop(track);
    callbacks.fetch_sub(1, Ordering::AcqRel);
    due
}

impl Mailbox {
    /// Processes a message whose commands are done. If this call blocks, it blocks only until the driver has
    /// completed earlier commands.
    fn settle(&self, WakeJob { track, done }: WakeJob) -> Vec<Waker> {
        settle(track, done.map(|done| done.value()), &self.callbacks)
    }

    fn work(&self) {
        loop {
            let mut inbox = self.inbox.lock();
            while inbox.jobs.is_empty() && inbox.due.is_empty() {
                if inbox.is_closed {
                    return;
                }
                self.changed.wait(&mut inbox);
            }
            let (mut due, job) = (std::mem::take(&mut inbox.due), inbox.jobs.pop_front());
            drop(inbox);
            due.extend(job.into_iter().flat_map(|job| self.settle(job)));
            wake_all(due);
        }
    }
}

/// The sending side of the completion thread, which ends when this value is dropped.
pub(crate) struct CompletionSender {
    mailbox: Arc<Mailbox>,
    thread: ThreadId,
}

impl std::fmt::Debug for CompletionSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompletionThread({:?})", self.thread)
    }
}

impl Drop for CompletionSender {
    fn drop(&mut self) {
        self.mailbox.inbox.lock().is_closed = true;
        self.mailbox.changed.notify_one();
    }
}

impl CompletionSender {
    /// Starts the completion thread.
    pub fn new(callbacks: &Arc<AtomicUsize>) -> std::io::Result<Self> {
        let callbacks = Arc::clone(callbacks);
        let mailbox = Arc::new(Mailbox { inbox: Mutex::default(), changed: Condvar::new(), callbacks });
        let builder = std::thread::Builder::new().name("opencl-wakers".into());
        let worked = Arc::clone(&mailbox);
        let thread = builder.spawn(move || worked.work())?.thread().id();
        Ok(Self { mailbox, thread })
    }

    /// Sends a wake-up job (a submission with waiters) to the completion thread. Never blocks.
    pub fn send(&self, job: WakeJob) {
        self.mailbox.inbox.lock().jobs.push_back(job);
        self.mailbox.changed.notify_one();
    }

    /// Processes the next job in the calling thread, but leaves its wakers to the completion thread. Returns
    /// false if there is no job. A caller needs this method because the completion thread may be running a
    /// waker that waits for the caller.
    pub fn settle_next(&self) -> bool {
        let Some(job) = self.mailbox.inbox.lock().jobs.pop_front() else { return false };
        let due = self.mailbox.settle(job);
        self.mailbox.inbox.lock().due.extend(due);
        self.mailbox.changed.notify_one();
        true
    }

    /// Returns true if the calling thread is the completion thread itself, which means that a waker calls
    /// this method.
    pub fn is_this_thread(&self) -> bool {
        self.thread == std::thread::current().id()
    }
}
