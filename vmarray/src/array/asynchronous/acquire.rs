//! Non-blocking acquisition of a page or its bytes by a task: the steps that all futures of an array share.
//!
//! Each poll first looks for the page in the cache. If the page is absent, the task queues a
//! [request](PageRequest). The answer to the request contains the data, because the cache may evict the page
//! before the next poll.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use crate::base::error::Result;
use crate::engine::channel::{Ask, Bytes, PageRequest, RequestAnswer, TaskWait};
use crate::engine::page::state::{EXCLUSIVE, IN_FLIGHT, RESIDENT, UNSAVED};
use crate::engine::page::{Asleep, Refusal, State, park_task, wake};
use crate::engine::pager::Pager;

/// Maximum number of attempts on a page in one poll.
const TURNS: u32 = 64;

/// The event that a task waits for. Meanwhile the task holds no page.
#[derive(Debug)]
enum Wait {
    Nothing,
    /// The answer to a request. The second value registers the task for other events that may end the wait.
    Answer(
        Arc<PageRequest>,
        #[expect(dead_code, reason = "the drop of this value unregisters the waiter")] Option<Asleep>,
    ),
    /// The release of a page or a guard, for which the task is registered.
    Asleep(Asleep),
}

/// The access that the task needs to the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Share,
    Exclusive,
}

/// The result of a successful attempt.
#[derive(Debug)]
pub(crate) enum Got<R> {
    /// The page was in the cache, so the attempt `R` has used it.
    Tried(R),
    /// Bytes that were copied out of the page.
    Read(Bytes),
    /// The task's bytes were written to the page.
    Written,
}

/// The acquisition of pages by a task, one page after another.
#[derive(Debug)]
pub(crate) struct Acquire<'a> {
    pager: &'a Pager,
    page: u64,
    want: Want,
    wait: Wait,
    /// The frame reserved for the task's guard or read.
    reserved: Option<(u32, Arc<PageRequest>)>,
    /// True if another thread held the page when a thread served the request.
    was_busy: bool,
    /// True if the page was loaded for this task.
    has_missed: bool,
}

impl<'a> Acquire<'a> {
    pub(crate) fn new(pager: &'a Pager, page: u64, want: Want) -> Self {
        let wait = Wait::Nothing;
        Self { pager, page, want, wait, reserved: None, was_busy: false, has_missed: false }
    }

    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    /// Returns true if the page was loaded for this task, so its use does not count as a hit.
    pub(crate) fn has_missed(&self) -> bool {
        self.has_missed
    }

    pub(crate) fn has_reserved(&self) -> bool {
        self.reserved.is_some()
    }

    /// Continues with another page, after the work on the previous one.
    pub(crate) fn turn_to(&mut self, page: u64) {
        self.stop();
        *self = Self::new(self.pager, page, self.want);
    }

    /// Tries `attempt` until it succeeds or must wait. If the page is absent, requests `ask` from the
    /// channel; if `ask` is `None`, only waits for other threads.
    pub(crate) fn poll<R>(
        &mut self,
        context: &mut Context<'_>,
        attempt: impl FnMut(&Self, &mut Context<'_>) -> Result<R, AcquireRefusal>,
        ask: impl Fn() -> Option<Ask>,
    ) -> Poll<Result<Got<R>>> {
        let polled = self.poll_turns(context, attempt, ask);
        if polled.is_ready() {
            self.stop();
        } else {
            self.wait_kept(context);
        }
        polled
    }

    /// Waits while a frame is reserved for the task's read. A thread that needs the frame may read for it.
    fn wait_kept(&mut self, context: &Context<'_>) {
        let Some((_, request)) = self.reserved.take_if(|(_, request)| !request.is_for_guard()) else {
            return;
        };
        request.wait_kept(context.waker());
        let asleep = match std::mem::replace(&mut self.wait, Wait::Nothing) {
            Wait::Asleep(asleep) => Some(asleep),
            Wait::Nothing | Wait::Answer(..) => None,
        };
        self.wait = Wait::Answer(request, asleep);
        self.pager.channel(self.page).announce_reservation();
    }

    /// Polls as [`poll`](Self::poll) does, but requests no page.
    pub(crate) fn poll_others<R>(
        &mut self,
        context: &mut Context<'_>,
        attempt: impl FnMut(&Self, &mut Context<'_>) -> Result<R, AcquireRefusal>,
    ) -> Poll<Result<R>> {
        self.poll(context, attempt, || None).map_ok(|got| match got {
            Got::Tried(result) => result,
            Got::Read(_) | Got::Written => unreachable!("this request asks for a hold only"),
        })
    }

    fn poll_turns<R>(
        &mut self,
        context: &mut Context<'_>,
        mut attempt: impl FnMut(&Self, &mut Context<'_>) -> Result<R, AcquireRefusal>,
        ask: impl Fn() -> Option<Ask>,
    ) -> Poll<Result<Got<R>>> {
        for _ in 0..TURNS {
            if let Wait::Answer(..) = self.wait {
                match ready!(self.poll_answer(context)) {
                    RequestAnswer::Failed(error) => return Poll::Ready(Err(error)),
                    RequestAnswer::Read(bytes) => return Poll::Ready(Ok(Got::Read(bytes))),
                    RequestAnswer::Written => return Poll::Ready(Ok(Got::Written)),
                    RequestAnswer::Reserved(_) => {}
                    RequestAnswer::Busy => self.was_busy = true,
                }
            }
            self.wait = Wait::Nothing;
            let refusal = match attempt(self, context) {
                Ok(result) => return Poll::Ready(Ok(Got::Tried(result))),
                Err(AcquireRefusal::Page(refusal)) => refusal,
                Err(AcquireRefusal::Wait(wait)) => {
                    ready!(self.wait_for(wait));
                    continue;
                }
                Err(AcquireRefusal::Error(error)) => return Poll::Ready(Err(error)),
            };
            let is_busy = |state: State| {
                state.any(RESIDENT)
                    || state.any(UNSAVED) && self.want == Want::Exclusive
                    // Other threads hold the page without loading it, or share it for reads of device memory.
                    || !state.any(IN_FLIGHT) && (state.any(EXCLUSIVE) || state.shared())
                    // The page is loading for another purpose, so its load cannot serve this task's request.
                    || state.any(IN_FLIGHT) && self.was_busy
            };
            match refusal {
                Refusal::Busy(state) if is_busy(state) => {
                    self.was_busy = false;
                    ready!(self.poll_busy(state, context))?;
                }
                refusal => {
                    if let Some(ask) = ask() {
                        // If this task has reserved the page's frame, the program has evicted the page since.
                        self.unreserve();
                        let request = Arc::new(PageRequest::new(self.page, ask, context.waker().clone()));
                        self.pager.channel(self.page).ask(self.pager.table(), &request);
                        self.wait = Wait::Answer(request, None);
                    } else if let Refusal::Busy(state) = refusal {
                        ready!(self.poll_busy(state, context))?;
                    }
                }
            }
        }
        wake(context.waker().clone());
        Poll::Pending
    }

    /// Waits until the request is answered.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<RequestAnswer> {
        let Wait::Answer(request, _) = &self.wait else { return Poll::Ready(RequestAnswer::Busy) };
        let request = Arc::clone(request);
        if let Poll::Ready(answer) = request.poll(context) {
            self.has_missed |= request.is_first.load(Ordering::Relaxed);
            self.wait = Wait::Nothing;
            if let RequestAnswer::Reserved(frame) = answer {
                self.reserved = Some((frame, request));
            }
            return Poll::Ready(answer);
        }
        match self.pager.channel(self.page).poll_frames(context.waker()) {
            Ok(TaskWait::No | TaskWait::Woken) => Poll::Pending,
            Ok(TaskWait::Asleep(asleep)) => {
                self.wait = Wait::Answer(request, Some(asleep));
                Poll::Pending
            }
            // The answer may have arrived before the error. Then use the answer.
            Err(error) => {
                let answer = request.cancel().unwrap_or(RequestAnswer::Failed(error));
                if let RequestAnswer::Reserved(frame) = answer {
                    self.reserved = Some((frame, request));
                }
                Poll::Ready(answer)
            }
        }
    }

    fn wait_for(&mut self, wait: TaskWait) -> Poll<()> {
        match wait {
            TaskWait::No => return Poll::Ready(()),
            TaskWait::Woken => {}
            TaskWait::Asleep(asleep) => self.wait = Wait::Asleep(asleep),
        }
        Poll::Pending
    }

    /// Waits until the page is released, or its transfer completes. `Ready` means to try again.
    fn poll_busy(&mut self, state: State, context: &mut Context<'_>) -> Poll<Result<()>> {
        let table = self.pager.table();
        let channel = self.pager.channel(self.page);
        let is_unsaved = state.any(UNSAVED) && self.want == Want::Exclusive;
        if is_unsaved {
            let Some(marks) = self.pager.want_saved(self.page) else { return Poll::Ready(Ok(())) };
            channel.counters.waits.add(1);
            let is_marked = |state| marks.has_marked(state);
            let asleep = park_task(table.entry(self.page), context.waker(), is_marked);
            return self.wait_for(asleep.map_or(TaskWait::No, TaskWait::Asleep)).map(Ok);
        }
        if state.any(IN_FLIGHT) {
            let wait = channel.poll_transfer(table, self.page, context.waker());
            return self.wait_for(wait).map(Ok);
        }
        self.pager.check_wait(self.page, state)?;
        if !state.any(RESIDENT) {
            // Submit the load of this page, unless a thread that waits for the page submits the load.
            channel.combine_if_needed(table);
        }
        channel.counters.waits.add(1);
        // When this thread takes another guard, it wakes the task, to check if the task may still wait.
        let is_busy = |s| self.pager.is_worth_a_wait(self.page, s, self.want == Want::Exclusive);
        let asleep = park_task(table.entry(self.page), context.waker(), is_busy);
        self.wait_for(asleep.map_or(TaskWait::No, TaskWait::Asleep)).map(Ok)
    }

    /// Ends the reservation of the frame, because the guard holds the page now or the future was dropped.
    fn unreserve(&mut self) {
        if let Some((frame, request)) = self.reserved.take() {
            self.pager.channel(self.page).unreserve(frame, &request);
        }
    }

    /// Cancels all waits of the task.
    pub(crate) fn stop(&mut self) {
        if let Wait::Answer(request, _) = std::mem::replace(&mut self.wait, Wait::Nothing)
            && let Some(RequestAnswer::Reserved(frame)) = request.cancel()
        {
            self.reserved = Some((frame, request));
        }
        self.unreserve();
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The reason of a failed attempt.
#[derive(Debug)]
pub(crate) enum AcquireRefusal {
    Page(Refusal),
    /// The task must wait for an event other than the arrival of the page.
    Wait(TaskWait),
    Error(crate::Error),
}

impl From<Refusal> for AcquireRefusal {
    fn from(refusal: Refusal) -> Self {
        Self::Page(refusal)
    }
}
