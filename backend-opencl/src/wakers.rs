//! Completion thread: runs wakers after a driver's callback.
//!
//! OpenCL forbids long calls in a driver's callback, and some drivers hold locks meanwhile. A waker may do
//! anything: wait for other work, release memory, drop the device. So callbacks only send a message to
//! this thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::ThreadId;

use backend_api::backends::wake_all;

use crate::completion::{Mark, Track};

/// A message about a queue in which a submission is done, or which is lost.
///
/// It counts in the device's `callbacks`, from before the sending until it holds no part of the device any
/// more.
pub(crate) struct WakeJob {
    pub track: Arc<Track>,
    pub done: Option<Arc<Mark>>,
}

/// The sending side. The thread ends when this is dropped.
#[derive(Debug)]
pub(crate) struct CompletionThread {
    jobs: Sender<WakeJob>,
    thread: ThreadId,
}

impl CompletionThread {
    /// Starts the thread.
    pub fn new(counter: &Arc<AtomicUsize>) -> std::io::Result<Self> {
        let (jobs, received) = channel::<WakeJob>();
        let counter = Arc::clone(counter);
        let work = move || {
            for WakeJob { track, done } in received {
                if let Some(mark) = done {
                    // The commands are done. If this call blocks, it blocks only until the driver has marked
                    // earlier commands.
                    drop(track.wait_for_outcome(mark.value));
                }
                let due = track.due();
                drop(track);
                counter.fetch_sub(1, Ordering::AcqRel);
                wake_all(due);
            }
        };
        let thread = std::thread::Builder::new().name("opencl-wakers".into()).spawn(work)?.thread().id();
        Ok(Self { jobs, thread })
    }

    /// Sends a message. Never blocks.
    pub fn send(&self, job: WakeJob) {
        // The thread lives as long as this sender, so it receives the message.
        drop(self.jobs.send(job));
    }

    /// Returns true if the calling thread is the completion thread itself, so that a waker is running.
    pub fn is_this_thread(&self) -> bool {
        self.thread == std::thread::current().id()
    }
}
