//! How a task comes to a page without blocking: the steps that all futures of this library share.

use std::sync::Arc;
use std::task::{Context, Poll};

use backend_api::{Device, racy};

use super::forecast;
use crate::channel::{Batch, Fate, FrameWait, Patience, Reached};
use crate::error::{ErrorKind, Result};
use crate::guards;
use crate::memory::prefetch;
use crate::page::state::{EXCLUSIVE, HOME, IN_FLIGHT, RESIDENT, USED, WAITED, WANTED};
use crate::page::{Asleep, Holder, Refusal, State, park_task, unpark, wake};
use crate::pager::Pager;

/// How often a page is tried within one poll before other tasks get their turn.
const TURNS: u32 = 64;

/// The how-manieth after it a task has the bytes of brought near the processor: those who wait for a batch are woken in
/// the order of their places.
const NEXT: usize = 2;

/// What a task waits for. None of it keeps anybody from anything.
#[derive(Debug)]
enum Wait {
    Nothing,
    /// The end of a load, at this place of its batch.
    Load(Arc<Batch>, usize),
    /// A page to be released, or a frame.
    Asleep(#[expect(dead_code, reason = "held for its drop")] Asleep),
}

/// Whether the task may have a page loaded. The number is its place in the line, which it keeps until it has its page.
#[derive(Clone, Copy, Debug)]
enum Admitted {
    No,
    /// It is in the line, or was called, or is woken by something else and may try then.
    Waits(u64),
    /// For the length of a poll: others wait for the place.
    Yes(u64),
}

/// What a page is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Share,
    Exclusive,
}

/// A task's way to one page after another.
#[derive(Debug)]
pub(super) struct Approach<'a, D: Device> {
    pager: &'a Pager<D>,
    page: u64,
    want: Want,
    wait: Wait,
    admitted: Admitted,
    /// Whether the page is to be loaded without others, since a load of several failed.
    alone: bool,
    /// Whether this task has got the page its frame.
    has_missed: bool,
    /// Whether that was filled by a load.
    has_loaded: bool,
    /// What is going to be read, as offset and length in bytes within the page; a hint.
    element: (usize, usize),
}

impl<'a, D: Device> Approach<'a, D> {
    pub(super) fn new(pager: &'a Pager<D>, page: u64, want: Want) -> Self {
        Self {
            pager,
            page,
            want,
            wait: Wait::Nothing,
            admitted: Admitted::No,
            alone: false,
            has_missed: false,
            has_loaded: false,
            element: (0, 0),
        }
    }

    /// The same, for so many bytes at an offset within the page, which are brought near the processor once they have
    /// come.
    pub(super) fn reading(mut self, offset: usize, len: usize) -> Self {
        self.element = (offset, len);
        self
    }

    /// Has the page looked at when other tasks' are, and loaded if it is absent. Whether the task will be woken.
    pub(super) fn look_with_others(&mut self, context: &mut Context<'_>) -> bool {
        let channel = self.pager.channel(self.page);
        let looked = channel.look_for_task(self.pager.table(), self.page, self.element, context.waker());
        let is_woken = looked.is_some();
        if let Some((batch, place)) = looked {
            self.wait = Wait::Load(batch, place);
        }
        is_woken
    }

    pub(super) fn page(&self) -> u64 {
        self.page
    }

    /// Whether this task has got the page its frame, so that to find it there is no hit.
    pub(super) fn has_missed(&self) -> bool {
        self.has_missed
    }

    /// Whether the page had contents, too, for which the task had to wait.
    pub(super) fn has_loaded(&self) -> bool {
        self.has_loaded
    }

    /// Goes on to another page.
    pub(super) fn turn_to(&mut self, page: u64) {
        self.stop();
        *self = Self::new(self.pager, page, self.want);
    }

    /// Tries something until it succeeds, or there is something to wait for.
    pub(super) fn poll<R>(
        &mut self,
        context: &mut Context<'_>,
        attempt: impl FnMut(&Self, &mut Context<'_>) -> Result<R, Refused>,
    ) -> Poll<Result<R>> {
        let polled = self.poll_turns(context, attempt);
        match polled {
            Poll::Ready(_) => self.stop(),
            Poll::Pending => self.step_out(),
        }
        polled
    }

    fn poll_turns<R>(
        &mut self,
        context: &mut Context<'_>,
        mut attempt: impl FnMut(&Self, &mut Context<'_>) -> Result<R, Refused>,
    ) -> Poll<Result<R>> {
        for _ in 0..TURNS {
            if let Wait::Load(..) = self.wait {
                match self.poll_load(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(())) => {}
                }
            }
            self.wait = Wait::Nothing;
            let refusal = match attempt(self, context) {
                Ok(result) => return Poll::Ready(Ok(result)),
                Err(Refused::Page(refusal)) => refusal,
                Err(Refused::Wait(FrameWait::No)) => continue,
                Err(Refused::Wait(FrameWait::Woken | FrameWait::Transfer)) => return Poll::Pending,
                Err(Refused::Wait(FrameWait::Asleep(asleep))) => {
                    self.wait = Wait::Asleep(asleep);
                    return Poll::Pending;
                }
                Err(Refused::Error(error)) => return Poll::Ready(Err(error)),
            };
            let step = match refusal {
                // Absent, and nobody but readers of its home slot there.
                Refusal::Busy(state) if state.any(RESIDENT | EXCLUSIVE) => {
                    // Somebody else has loaded it, or does.
                    self.leave_line();
                    self.poll_busy(state, context)
                }
                _ => self.start_load(context),
            };
            match step {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => {}
            }
        }
        wake(context.waker().clone());
        Poll::Pending
    }

    /// Shares the page as a pin. Its state before.
    pub(super) fn poll_share(&mut self, context: &mut Context<'_>) -> Poll<Result<State>> {
        let entry = self.pager.entry(self.page);
        self.poll(context, |_, _| Ok(entry.try_share(Holder::Pin, guards::held())?))
    }

    /// Waits until somebody lets go of the page, or its transfer is done. Ready: try again.
    fn poll_busy(&mut self, state: State, context: &mut Context<'_>) -> Poll<Result<()>> {
        let table = self.pager.table();
        let channel = self.pager.channel(self.page);
        if state.any(IN_FLIGHT) {
            let (batch, is_woken) = channel.poll_transfer(table, self.page, context.waker());
            if let Some((batch, place)) = batch {
                self.wait = Wait::Load(batch, place);
            }
            return if is_woken { Poll::Pending } else { Poll::Ready(Ok(())) };
        }
        // Asked again whenever somebody becomes the page's guard, or this thread another one's: both wake the task.
        let forbidden = |s: State| s.guards() > 0 && !self.pager.identity().may_wait_for(self.page);
        if forbidden(state) {
            return Poll::Ready(Err(ErrorKind::WouldDeadlock { page: self.page }.into()));
        }
        if !state.any(RESIDENT) {
            channel.push_on(table);
        }
        channel.counters.waits.add(1);
        let exclusive = self.want == Want::Exclusive;
        let asleep = park_task(table.entry(self.page), context.waker(), |s| {
            let busy =
                s.any(EXCLUSIVE) || !s.has_room() || if exclusive { s.shared() } else { s.any(WANTED) };
            busy && !s.any(IN_FLIGHT) && !forbidden(s)
        });
        match asleep {
            Some(asleep) => {
                self.wait = Wait::Asleep(asleep);
                Poll::Pending
            }
            None => Poll::Ready(Ok(())),
        }
    }

    /// Gets an absent page a frame, and has it loaded if it has contents. Ready: try again.
    fn start_load(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let table = self.pager.table();
        let channel = self.pager.channel(self.page);
        let entry = table.entry(self.page);
        let number = match self.admitted {
            Admitted::Yes(number) => number,
            Admitted::No | Admitted::Waits(_) => {
                let known = if let Admitted::Waits(number) = self.admitted { Some(number) } else { None };
                let (number, is_in) = channel.admission().enter(known, context.waker());
                self.admitted = if is_in { Admitted::Yes(number) } else { Admitted::Waits(number) };
                if !is_in {
                    // Those whose loads it waits for may never be polled again.
                    channel.submit_awaited(table);
                    return Poll::Pending;
                }
                number
            }
        };
        let frame = match channel.take_frame(table, Patience::Try) {
            Ok(Some(frame)) => frame,
            Err(error) => return Poll::Ready(Err(error)),
            Ok(None) => {
                return match channel.poll_frame(table, context.waker()) {
                    Err(error) => Poll::Ready(Err(error)),
                    Ok(FrameWait::No) => Poll::Ready(Ok(())),
                    Ok(FrameWait::Woken) => Poll::Pending,
                    Ok(FrameWait::Transfer) => {
                        self.admitted = Admitted::Waits(number);
                        Poll::Pending
                    }
                    Ok(FrameWait::Asleep(asleep)) => {
                        self.wait = Wait::Asleep(asleep);
                        Poll::Pending
                    }
                };
            }
        };
        let Ok(before) = entry.claim_to_load() else {
            // Somebody else was faster.
            channel.put_back(frame);
            return Poll::Ready(Ok(()));
        };
        self.has_missed = true;
        if before.has(HOME) {
            let load = (self.page, frame);
            let (batch, place) =
                channel.load_for_task(table, load, self.element, self.alone, context.waker());
            if before.any(WAITED) {
                // Whoever is blocked by the load can submit it.
                unpark(entry);
            }
            // The batch answers for it from now on.
            self.admitted = Admitted::No;
            self.wait = Wait::Load(batch, place);
            // A batch of its own may be done already, else the waker is with it.
            return if self.alone { self.poll_load(context) } else { Poll::Pending };
        }
        channel.counters.misses.add(1);
        // SAFETY: the frame is a page long, and this thread's alone until the page is released.
        unsafe { racy::fill(frame.address, 0, self.pager.page_bytes()) };
        entry.install(frame.address);
        channel.adopt(self.page, frame);
        self.pager.release(self.page, Holder::Pin, USED);
        Poll::Ready(Ok(()))
    }

    /// Waits until the load is done; submits it if it still is not. Ready: try again.
    fn poll_load(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Wait::Load(batch, place) = &self.wait else { return Poll::Ready(Ok(())) };
        let channel = self.pager.channel(self.page);
        let table = self.pager.table();
        let mut reached = batch.poll(*place, context.waker());
        if reached == Reached::Queued {
            channel.submit_awaited(table);
            reached = batch.poll(*place, context.waker());
        }
        match reached {
            Reached::Queued | Reached::Submitted => return Poll::Pending,
            Reached::Without => {
                self.wait = Wait::Nothing;
                return Poll::Ready(Ok(()));
            }
            Reached::Done => {
                self.has_loaded = batch.fate(*place) == Some(Fate::Loads);
                self.has_missed |= self.has_loaded;
            }
        }
        // That of one who comes soon, most likely.
        if let Some(next) = batch.place(place + NEXT) {
            table.prefetch(next.page);
            prefetch(next.element.address, next.element.len);
        }
        let outcome = channel.finish_batch(table, batch);
        let loads = batch.loads();
        self.wait = Wait::Nothing;
        match outcome {
            Ok(()) => Poll::Ready(Ok(())),
            Err(error) if loads == 1 => Poll::Ready(Err(error.into())),
            Err(_) => {
                // Another page of the batch may be to blame.
                self.alone = true;
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Gives up its place for now, since the task may never be polled again.
    fn step_out(&mut self) {
        if let Admitted::Yes(number) = self.admitted {
            self.admitted = Admitted::Waits(number);
            self.pager.channel(self.page).admission().step_out();
        }
    }

    /// Gives up its place, inside or in the line.
    fn leave_line(&mut self) {
        let admission = self.pager.channel(self.page).admission();
        match std::mem::replace(&mut self.admitted, Admitted::No) {
            Admitted::No => {}
            Admitted::Waits(number) => admission.give_up(number),
            Admitted::Yes(_) => admission.leave(1),
        }
    }

    /// Gives up all that the task waits for.
    fn stop(&mut self) {
        self.leave_line();
        let channel = self.pager.channel(self.page);
        if let Wait::Load(batch, place) = std::mem::replace(&mut self.wait, Wait::Nothing) {
            // Who gives up may come back with another future and poll it but once.
            forecast::note(self.pager, false);
            channel.leave_batch(self.pager.table(), &batch, place);
        }
    }
}

impl<D: Device> Drop for Approach<'_, D> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Why an attempt did not succeed.
#[derive(Debug)]
pub(super) enum Refused {
    Page(Refusal),
    /// For something else than the page.
    Wait(FrameWait),
    Error(crate::Error),
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Page(refusal)
    }
}
