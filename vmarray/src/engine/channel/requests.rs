//! What tasks ask of pages that are not in the cache.
//!
//! A task must not block, and to come back when its page has been loaded is not enough: while it waits to be
//! polled the page may have gone again. So a task leaves a request, and the thread that ends the load
//! *serves* it: copies the bytes that it asked for, or writes those that it brought, while nobody else can
//! have the page. Hence the bound: **every load that is begun for a task serves that task**, and however many
//! tasks share however few frames, an element is loaded at most once for each time that it is asked for.
//! (Once more, by itself, if a submission of several fails.)
//!
//! A page that is to be held by a guard cannot be served like that. Its frame is [reserved](super::reserve)
//! until the task has taken it, and its future counts as a guard from then on. So is, for reads of more than
//! 256 bytes, up to a quarter of the frames; what is read beyond that is copied at once.
//!
//! No request holds anything while it waits. One whose future is dropped is left out, or its page goes to the
//! cache.

use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};

use backend_api::racy;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::base::error::Error;
use crate::engine::page::this_thread;

/// An element's bytes, or those of a part of a page; short ones need no memory of their own.
pub(crate) type Bytes = SmallVec<[u8; 64]>;

/// Longer reads are [left to their tasks](super::reserve), as far as there are frames for that: to copy them
/// twice costs more than to come to the page once more.
const LONG_BYTES: usize = 256;

/// What is to be done as soon as the page is in a frame.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Bytes are copied out of it.
    Read { offset: usize, len: usize },
    /// Bytes are written to it.
    Write { offset: usize, bytes: Bytes },
    /// The frame is kept for the guard of a task.
    Reserve,
}

/// What came of a request.
#[derive(Debug)]
pub(crate) enum RequestAnswer {
    Read(Bytes),
    Written,
    /// The number of the frame, which the task has to [give up](super::Channel::unreserve).
    Reserved(u32),
    /// Somebody else has the page: the task has to look for itself.
    Busy,
    Failed(Error),
}

#[derive(Debug)]
enum RequestStage {
    Waiting(Waker),
    Answered(RequestAnswer),
    /// The task was told of a frame that is kept for what it reads: it is at the page right now, or else
    /// waits for somebody who has the page for itself.
    Kept {
        frame: u32,
        is_at_page: bool,
        waker: Option<Waker>,
    },
    /// Nobody waits for the answer any more.
    Over,
}

/// What a task asks of a page.
#[derive(Debug)]
pub(crate) struct Request {
    pub(super) page: u64,
    pub(super) ask: Ask,
    /// The [thread](this_thread) that has polled the task first.
    pub(super) thread: usize,
    stage: Mutex<RequestStage>,
    /// Whether the page was brought for this request, and not for an earlier one or a thread.
    pub(crate) is_first: AtomicBool,
    /// Whether the page is to be loaded without others, since a submission of several failed.
    pub(super) is_alone: AtomicBool,
}

/// Whether a frame could be taken away from a task.
#[derive(Debug)]
pub(super) enum TakenRequest {
    /// And whom to wake, if the task was told of the frame.
    Yes(Option<Waker>),
    /// The task is at the page right now, and tells when it is done.
    NotYet,
    /// It is done with the frame.
    Over,
}

impl Request {
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

    /// The answer, given once; else the task is woken when it is there.
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
        // To clone and to drop wakers is the program's code, which must not run under the lock.
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

    /// Ends the wait for an answer. One that was given already is returned.
    pub(crate) fn cancel(&self) -> Option<RequestAnswer> {
        let mut stage = self.stage.lock();
        if !matches!(*stage, RequestStage::Waiting(_)) {
            return self.take_answer(&mut stage);
        }
        let old = std::mem::replace(&mut *stage, RequestStage::Over);
        // To drop a waker is the program's code, which must not run under the lock.
        drop(stage);
        drop(old);
        None
    }

    /// The answer, if there is one that was not taken; again, if it is a frame that the task could not use.
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

    /// Notes that the task waits for somebody who has the page for itself, with a frame kept for what it
    /// reads.
    pub(crate) fn wait_kept(&self, waker: &Waker) {
        // Outside the lock: it is the program's code.
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

    /// Whether the frame is to be reserved for the guard of a task.
    pub(crate) fn is_for_guard(&self) -> bool {
        matches!(self.ask, Ask::Reserve)
    }

    /// Whether so much is read that it had better be copied once, by the task, where there are frames enough.
    pub(super) fn is_long_read(&self) -> bool {
        matches!(self.ask, Ask::Read { len, .. } if len > LONG_BYTES)
    }

    /// Where in the page the bytes are that will be touched, and how many they are.
    pub(super) fn bytes(&self) -> (usize, usize) {
        match &self.ask {
            Ask::Read { offset, len } => (*offset, *len),
            Ask::Write { offset, bytes } => (*offset, bytes.len()),
            Ask::Reserve => (0, 0),
        }
    }

    /// Answers, if the task still waits: whom to wake then.
    pub(super) fn answer(&self, answer: RequestAnswer) -> Option<Waker> {
        self.answer_with(|| answer)
    }

    /// As [`answer`](Self::answer); `answer` runs only if the task still waits, which it goes on to do
    /// meanwhile.
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

    /// Reads or writes, for a task that still waits: whom to wake then.
    ///
    /// # Safety
    /// `frame` is the first byte of a frame that holds the page. No other thread or device writes to it, nor,
    /// if the request [writes](Self::is_write), reads it in any way but those of [`racy`], until this
    /// returns.
    pub(super) unsafe fn serve(&self, frame: *mut u8) -> Option<Waker> {
        // SAFETY: passed on.
        self.answer_with(|| unsafe { self.read_or_write(frame) })
    }

    /// Does what is asked for, with the page in a frame.
    ///
    /// # Safety
    /// As [`serve`](Self::serve).
    pub(super) unsafe fn read_or_write(&self, frame: *mut u8) -> RequestAnswer {
        match &self.ask {
            Ask::Read { offset, len } => {
                let mut bytes = Bytes::new();
                if bytes.try_reserve_exact(*len).is_err() {
                    return RequestAnswer::Failed(
                        crate::base::error::ErrorKind::NoMemory { bytes: *len }.into(),
                    );
                }
                bytes.resize(*len, 0);
                // SAFETY: the task's part lies inside of the page; the caller vouches for the rest.
                unsafe { racy::read(frame.add(*offset), &mut bytes) };
                RequestAnswer::Read(bytes)
            }
            Ask::Write { offset, bytes } => {
                // SAFETY: as above.
                unsafe { racy::write(frame.add(*offset), bytes) };
                RequestAnswer::Written
            }
            Ask::Reserve => RequestAnswer::Busy,
        }
    }

    /// Whether a frame is kept for what is read.
    pub(super) fn has_kept(&self) -> bool {
        matches!(
            *self.stage.lock(),
            RequestStage::Answered(RequestAnswer::Reserved(_)) | RequestStage::Kept { .. }
        )
    }

    /// Ends that a frame is kept for what the task reads, which it has done. `false`: the frame was taken
    /// away from it.
    pub(super) fn let_go(&self) -> bool {
        let mut stage = self.stage.lock();
        let old = std::mem::replace(&mut *stage, RequestStage::Over);
        drop(stage);
        matches!(old, RequestStage::Kept { .. })
    }

    /// Takes a frame away from a task that was to read it, and reads for it. `None`: the page is not there
    /// any more.
    ///
    /// # Safety
    /// As [`serve`](Self::serve).
    pub(super) unsafe fn take_kept(&self, frame: Option<*mut u8>) -> TakenRequest {
        let mut stage = self.stage.lock();
        let waker = match &mut *stage {
            RequestStage::Answered(RequestAnswer::Reserved(_)) => None,
            RequestStage::Kept { is_at_page: true, .. } => return TakenRequest::NotYet,
            RequestStage::Kept { waker, .. } => waker.take(),
            _ => return TakenRequest::Over,
        };
        // SAFETY: passed on.
        *stage = RequestStage::Answered(
            frame.map_or(RequestAnswer::Busy, |frame| unsafe { self.read_or_write(frame) }),
        );
        TakenRequest::Yes(waker)
    }

    /// Has the task polled, though there is no answer, so that it looks for itself why.
    pub(super) fn nudge(&self) -> Option<Waker> {
        // A clone of its waker is the program's code; so it is taken, and the task leaves another one.
        let mut stage = self.stage.lock();
        let RequestStage::Waiting(known) = &mut *stage else { return None };
        Some(std::mem::replace(known, Waker::noop().clone()))
    }
}
