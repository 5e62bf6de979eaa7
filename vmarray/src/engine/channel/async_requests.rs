//! Requests of tasks (futures) for pages that are not in the cache.
//!
//! A task must not block. It is not enough to wake the task after the load, because the cache may evict the
//! page before the next poll. So a task leaves a request, and the thread that completes the load *serves* it:
//! this thread copies the requested bytes, or writes the task's bytes, before other threads can take the
//! page. Hence the bound: **every load started for a task serves that task**. For any number of tasks and
//! frames, an element is loaded at most once for each request (once more, alone, if a submission of several
//! loads fails).
//!
//! A request for a guard needs the page itself. The page's channel (share of a device)
//! [reserves](super::frame_reservation) the frame until the task takes the page, and meanwhile the future
//! counts as a guard. Reads of more than 256 bytes may also reserve frames, up to a quarter of all; beyond
//! this limit the serving thread copies the bytes at once.
//!
//! A waiting request holds no page and no frame. If the task drops its future, the channel skips the request,
//! or the cache keeps the loaded page.

use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::places::FrameBytes;
use crate::base::error::Error;
use crate::engine::page::this_thread;

/// The bytes of an element, or of a part of a page. Short ones need no allocation.
pub(crate) type Bytes = SmallVec<[u8; 64]>;

/// Number of bytes above which a task [copies the bytes itself](super::frame_reservation) while frames
/// suffice, because a second copy would take longer than a second access to the page.
const LONG_BYTES: usize = 256;

/// The action that a request does on the page in its frame.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Copies bytes out of the page.
    Read { offset: usize, len: usize },
    /// Writes bytes to the page.
    Write { offset: usize, bytes: Bytes },
    /// Reserves the frame, so that the task gets a guard of the page.
    Reserve,
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) enum RequestAnswer {
    Read(Bytes),
    Written,
    /// The index of the frame, which the task must [release](super::Channel::unreserve).
    Reserved(u32),
    /// Another thread holds the page, so the task must retry.
    Busy,
    Failed(Error),
}

#[derive(Debug)]
enum RequestStage {
    Waiting(Waker),
    Answered(RequestAnswer),
    /// A frame is reserved for the task's read. The task reads, or waits for an exclusive holder of the page.
    Kept {
        frame: u32,
        is_at_page: bool,
        waker: Option<Waker>,
    },
    /// The task no longer waits for an answer.
    Over,
}

/// A task's request for a page.
#[derive(Debug)]
pub(crate) struct PageRequest {
    pub(super) page: u64,
    pub(super) ask: Ask,
    /// The number of the [thread](this_thread) that polled the task first.
    pub(super) thread: usize,
    stage: Mutex<RequestStage>,
    /// True if the page was loaded for this request, and not for an earlier request or a thread.
    pub(crate) is_first: AtomicBool,
    /// True if the page must be loaded alone, because a submission of several pages has failed.
    pub(super) is_alone: AtomicBool,
}

/// The result of taking a reserved frame from a task.
#[derive(Debug)]
pub(super) enum TakenRequest {
    /// The frame was taken. Contains the waker of the task, if the task knew of the frame.
    Yes(Option<Waker>),
    /// The task is using the page, and reports when it has finished.
    NotYet,
    /// The task has finished with the frame already.
    Over,
}

impl PageRequest {
    pub(crate) fn new(page: u64, ask: Ask, waker: Waker) -> Self {
        Self {
            page,
            ask,
            thread: this_thread(),
            stage: Mutex::new(RequestStage::Waiting(waker)),
            is_first: AtomicBool::new(false),
            is_alone: AtomicBool::new(false),
        }
    }

    /// Returns the answer once, or registers the waker that the answer calls.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<RequestAnswer> {
        let take = |stage: &mut RequestStage| match stage {
            RequestStage::Waiting(_) => None,
            _ => Some(self.take_answer(stage).unwrap_or(RequestAnswer::Busy)),
        };
        {
            let mut stage = self.stage.lock();
            if let Some(answer) = take(&mut stage) {
                return Poll::Ready(answer);
            }
            if matches!(&*stage, RequestStage::Waiting(known) if known.will_wake(context.waker())) {
                return Poll::Pending;
            }
        }
        // Clone the waker without the lock, because cloning and dropping wakers is code of the program.
        let waker = context.waker().clone();
        let mut stage = self.stage.lock();
        if let Some(answer) = take(&mut stage) {
            return Poll::Ready(answer);
        }
        let old = std::mem::replace(&mut *stage, RequestStage::Waiting(waker));
        drop(stage);
        drop(old);
        Poll::Pending
    }

    /// Ends the wait for an answer. Returns an answer that exists already.
    pub(crate) fn cancel(&self) -> Option<RequestAnswer> {
        let mut stage = self.stage.lock();
        if !matches!(*stage, RequestStage::Waiting(_)) {
            return self.take_answer(&mut stage);
        }
        let old = std::mem::replace(&mut *stage, RequestStage::Over);
        // Drop the old waker without the lock, because its drop is code of the program.
        drop(stage);
        drop(old);
        None
    }

    /// Returns the answer that the task has not taken yet, or again if the task could not use its frame.
    fn take_answer(&self, stage: &mut RequestStage) -> Option<RequestAnswer> {
        match std::mem::replace(stage, RequestStage::Over) {
            RequestStage::Answered(RequestAnswer::Reserved(frame)) if !self.is_for_guard() => {
                *stage = RequestStage::Kept { frame, is_at_page: true, waker: None };
                Some(RequestAnswer::Reserved(frame))
            }
            RequestStage::Answered(answer) => Some(answer),
            RequestStage::Kept { frame, is_at_page, waker } => {
                *stage = RequestStage::Kept { frame, is_at_page: true, waker };
                (!is_at_page).then_some(RequestAnswer::Reserved(frame))
            }
            waiting @ RequestStage::Waiting(_) => {
                *stage = waiting;
                None
            }
            RequestStage::Over => None,
        }
    }

    /// Records that the task waits for an exclusive holder of the page, with a frame reserved for its read.
    pub(crate) fn wait_kept(&self, waker: &Waker) {
        // Clone the waker without the lock, because cloning is code of the program.
        let waker = waker.clone();
        let mut stage = self.stage.lock();
        let mut old = None;
        if let RequestStage::Kept { is_at_page, waker: known, .. } = &mut *stage {
            *is_at_page = false;
            old = known.replace(waker);
        }
        drop(stage);
        drop(old);
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(*self.stage.lock(), RequestStage::Waiting(_))
    }

    pub(super) fn is_write(&self) -> bool {
        matches!(self.ask, Ask::Write { .. })
    }

    /// Returns true if the request reserves the frame for a guard.
    pub(crate) fn is_for_guard(&self) -> bool {
        matches!(self.ask, Ask::Reserve)
    }

    /// Returns true for a long read, whose bytes the task should copy itself if frames suffice.
    pub(super) fn is_long_read(&self) -> bool {
        matches!(self.ask, Ask::Read { len, .. } if len > LONG_BYTES)
    }

    /// Returns offset and length in the page of the bytes to access.
    pub(super) fn bytes(&self) -> (usize, usize) {
        match &self.ask {
            Ask::Read { offset, len } => (*offset, *len),
            Ask::Write { offset, bytes } => (*offset, bytes.len()),
            Ask::Reserve => (0, 0),
        }
    }

    /// Stores the answer if the task still waits, and returns the waker to call.
    pub(super) fn answer(&self, answer: RequestAnswer) -> Option<Waker> {
        self.answer_with(|| answer)
    }

    /// Stores the answer as [`answer`](Self::answer). Calls `answer` under the lock, if the task waits.
    pub(super) fn answer_with(&self, answer: impl FnOnce() -> RequestAnswer) -> Option<Waker> {
        let mut stage = self.stage.lock();
        if !matches!(*stage, RequestStage::Waiting(_)) {
            return None;
        }
        let answer = answer();
        match std::mem::replace(&mut *stage, RequestStage::Answered(answer)) {
            RequestStage::Waiting(waker) => Some(waker),
            _ => None,
        }
    }

    /// Reads or writes the bytes if the task still waits, and returns the waker to call.
    ///
    /// The frame must have the page, and the calling thread must hold it: exclusively if the request
    /// [writes](Self::is_write).
    pub(super) fn serve(&self, frame: FrameBytes<'_>) -> Option<Waker> {
        self.answer_with(|| self.read_or_write(frame))
    }

    /// Executes the request on the page in a frame, under the conditions of [`serve`](Self::serve).
    pub(super) fn read_or_write(&self, frame: FrameBytes<'_>) -> RequestAnswer {
        match &self.ask {
            Ask::Read { offset, len } => {
                let mut bytes = Bytes::new();
                if bytes.try_reserve_exact(*len).is_err() {
                    return RequestAnswer::Failed(
                        crate::base::error::ErrorKind::NoMemory { bytes: *len }.into(),
                    );
                }
                bytes.resize(*len, 0);
                frame.read(*offset, &mut bytes);
                RequestAnswer::Read(bytes)
            }
            Ask::Write { offset, bytes } => {
                frame.write(*offset, bytes);
                RequestAnswer::Written
            }
            Ask::Reserve => RequestAnswer::Busy,
        }
    }

    /// Returns true if a frame is reserved for the task's read.
    pub(super) fn has_kept(&self) -> bool {
        matches!(
            *self.stage.lock(),
            RequestStage::Answered(RequestAnswer::Reserved(_)) | RequestStage::Kept { .. }
        )
    }

    /// Ends the frame's reservation after the task's read. Returns `false` if another thread has taken the
    /// frame from the task.
    pub(super) fn let_go(&self) -> bool {
        let mut stage = self.stage.lock();
        let old = std::mem::replace(&mut *stage, RequestStage::Over);
        drop(stage);
        matches!(old, RequestStage::Kept { .. })
    }

    /// Takes a reserved frame from a task, and reads the bytes for the task. `None` if the page was evicted.
    pub(super) fn take_kept(&self, frame: Option<FrameBytes<'_>>) -> TakenRequest {
        let mut stage = self.stage.lock();
        let waker = match &mut *stage {
            RequestStage::Answered(RequestAnswer::Reserved(_)) => None,
            RequestStage::Kept { is_at_page: true, .. } => return TakenRequest::NotYet,
            RequestStage::Kept { waker, .. } => waker.take(),
            _ => return TakenRequest::Over,
        };
        let answer = frame.map_or(RequestAnswer::Busy, |frame| self.read_or_write(frame));
        *stage = RequestStage::Answered(answer);
        TakenRequest::Yes(waker)
    }

    /// Returns the waker to call without an answer, so that the task checks the reason itself.
    pub(super) fn nudge(&self) -> Option<Waker> {
        // Take the waker instead of cloning it under the lock, because cloning is code of the program. The
        // task stores another waker at its next poll.
        let mut stage = self.stage.lock();
        let RequestStage::Waiting(known) = &mut *stage else { return None };
        Some(std::mem::replace(known, Waker::noop().clone()))
    }
}
