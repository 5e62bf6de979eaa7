//! Submissions to a member of a parity group, and the member's thread, which executes work that needs several
//! devices.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use super::Core;
use super::member_queue::{MemberQueue, MemberQueueState, Pending, Stand};
use crate::several::access_set::{AccessSet, Effect};
use crate::several::member::Adapted;
use crate::several::pending_requests::OwnedRequest;
use crate::several::wakers::{Chain, DeferringCall, Woken};
use backend_api::{
    DeviceInfo, Error, ErrorKind, QueueHandle, QueueId, QueueProgress, Request, Result, Ticket,
};

/// The number of submissions from which a queue is polled for finished ones.
const LOOK_FROM: usize = 64;

/// A member and its group, for code that uses one member.
#[derive(Debug)]
pub(super) struct MemberWorker {
    pub(super) core: Arc<Core>,
    pub(super) at: usize,
    pub(super) info: DeviceInfo,
}

impl MemberWorker {
    pub(super) fn member_queue(&self) -> &MemberQueue {
        &self.core.member_queues[self.at]
    }

    pub(super) fn start(self: &Arc<Self>, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let _call = DeferringCall::begin();
        let (core, id) = (&self.core, queue.id());
        let member_queue = &core.member_queues[self.at];
        let mut state = member_queue.lock();
        let unknown = || {
            let error = Error::new(ErrorKind::UnknownHandle, request.operation());
            error.with_detail("the queue is released, or belongs to another device").on(&self.info)
        };
        if !state.queues.contains_key(&id) {
            return Err(unknown());
        }
        request.check(&*state).map_err(|error| error.on(&self.info))?;
        let touches = AccessSet::of(request);
        if state.queues.get(&id).is_some_and(|log| log.entries.len() >= LOOK_FROM) {
            let value = state.queues[&id].newest;
            let _ = state.settle(Ticket { queue: id, value });
        }
        let is_nothing = matches!(request, Request::Copies([], _));
        let is_read = touches.effect == Effect::Read || is_nothing;
        let follows = state.queues.get(&id).is_some_and(|log| log.follows > state.done_job);
        let member = state.member.id;
        let mut stand = Stand::Job;
        if state.member.is_current() {
            let begun = if is_read && !follows {
                state.member.start(id, request, Adapted::default()).map(Stand::Direct)
            } else {
                // The thread of the member submits this request later. Check now that the device can execute
                // it.
                state.member.prepare(request).map(|()| Stand::Job)
            };
            match begun {
                Ok(begun) => stand = begun,
                Err(error) if error.kind() == ErrorKind::Lost => state.lose(member, &error),
                Err(error) => return Err(error),
            }
        }
        // SAFETY: memory is released after the submissions that touch it are over, and this copy ends with
        // its submission.
        let kept = unsafe { OwnedRequest::new(request) };
        let ticket = state.add(id, stand, kept, touches).ok_or_else(unknown)?;
        Ok(ticket)
    }

    pub(super) fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        const OPERATION: &str = "order_after";
        let (_call, id) = (DeferringCall::begin(), queue.id());
        let mut state = self.core.member_queues[self.at].lock();
        if !state.queues.contains_key(&id) {
            let error = Error::new(ErrorKind::UnknownHandle, OPERATION)
                .with_detail("the queue is released, or belongs to another device");
            return Err(error.on(&self.info));
        }
        if state.check_ticket(OPERATION, ticket)? || state.settle(ticket).is_none() {
            return Ok(());
        }
        if state.member.is_current() {
            let log = state.queues.get(&ticket.queue);
            let entries = log.into_iter().flat_map(|log| log.entries.iter().rev());
            let part =
                entries.filter(|entry| entry.value <= ticket.value).find_map(|entry| match entry.stand {
                    Stand::Direct(part) => Some(part),
                    _ => None,
                });
            let own = state.member.queues.get(&id);
            if let (Some(part), Some(own)) = (part, own)
                && let Err(error) = state.member.device.order_after(own, part)
            {
                let member = state.member.id;
                if error.kind() != ErrorKind::Lost {
                    return Err(error);
                }
                state.lose(member, &error);
            }
        }
        let follows = state.queues.get(&ticket.queue).map_or(0, |log| log.follows);
        if let Some(log) = state.queues.get_mut(&id) {
            log.follows = log.follows.max(follows);
            log.before.push(ticket);
        }
        Ok(())
    }

    pub(super) fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        let _call = DeferringCall::begin();
        let mut state = self.core.member_queues[self.at].lock();
        if state.check_ticket("poll", ticket)? {
            return Ok(QueueProgress::Done);
        }
        match state.settle(ticket) {
            Some(_) => Ok(QueueProgress::Pending),
            None => state.outcome(ticket).map(|()| QueueProgress::Done),
        }
    }

    pub(super) fn wait(&self, ticket: Ticket) -> Result<()> {
        let call = DeferringCall::begin();
        let outcome = self.wait_for("wait", ticket);
        drop(call);
        outcome
    }

    fn wait_for(&self, operation: &'static str, ticket: Ticket) -> Result<()> {
        loop {
            let mut state = self.core.member_queues[self.at].lock();
            if state.check_ticket(operation, ticket)? {
                return Ok(());
            }
            match state.settle(ticket) {
                None => return state.outcome(ticket),
                Some(pending) => self.pause(state, pending),
            }
        }
    }

    /// Waits for all submissions that meet a condition.
    pub(super) fn wait_for_all(&self, is_wanted: impl Fn(&super::member_queue::MemberSubmission) -> bool) {
        loop {
            let mut state = self.core.member_queues[self.at].lock();
            let Some((_, pending)) = state.find(&is_wanted) else { return };
            self.pause(state, pending);
        }
    }

    /// Waits until no work that the device received is in flight.
    pub(super) fn wait_for_direct(&self) {
        loop {
            let mut state = self.core.member_queues[self.at].lock();
            let is_direct =
                |entry: &super::member_queue::MemberSubmission| matches!(entry.stand, Stand::Direct(_));
            match state.find(is_direct) {
                Some((_, Pending::Direct(device, part))) => {
                    drop(state);
                    let _ = device.wait(part);
                }
                // The thread of the member still has jobs of this queue, and waits for the device itself.
                Some((_, Pending::Job)) => self.pause(state, Pending::Job),
                None => return,
            }
        }
    }

    /// Waits for some work to end.
    fn pause(&self, mut state: parking_lot::MutexGuard<'_, MemberQueueState>, pending: Pending) {
        let member_queue = &self.core.member_queues[self.at];
        match pending {
            Pending::Direct(device, part) => {
                drop(state);
                // Ignore the outcome here, because the next poll returns it.
                let _ = device.wait(part);
            }
            // While the thread of the member runs a waker, the caller executes jobs itself: the waker may
            // wait for the caller, or be the caller.
            Pending::Job => match if state.is_waking { state.take_job() } else { None } {
                Some(job) => {
                    drop(state);
                    self.do_job(&job);
                }
                None => member_queue.done.wait(&mut state),
            },
        }
    }

    /// Runs jobs until no more will arrive.
    pub(super) fn work(self: &Arc<Self>) {
        let member_queue = &self.core.member_queues[self.at];
        let work = Arc::clone(&member_queue.lock().work);
        loop {
            let mut state = member_queue.lock();
            let job = loop {
                let job = state.take_job();
                if job.is_some() || !state.due.is_empty() {
                    break job;
                }
                if state.is_closed && state.jobs.is_empty() {
                    state.has_ended = true;
                    drop(state);
                    member_queue.done.notify_all();
                    return;
                }
                work.wait(&mut state);
            };
            drop(state);
            let call = DeferringCall::begin();
            job.iter().for_each(|job| self.do_job(job));
            member_queue.lock().is_waking = true;
            member_queue.done.notify_all();
            drop(call);
            self.wake_due();
            member_queue.lock().is_waking = false;
        }
    }

    fn do_job(&self, job: &super::member_queue::MemberJob) {
        let _call = DeferringCall::begin();
        self.finish(job.queue, job.value);
        let member_queue = &self.core.member_queues[self.at];
        let mut state = member_queue.lock();
        state.done_job = job.number.unwrap_or(state.done_job);
        state.runs_job = false;
        state.work.notify_one();
        drop(state);
        member_queue.done.notify_all();
    }

    /// Executes a submission, unless it is over, after all work before it.
    fn finish(&self, queue: QueueId, value: u64) {
        let member_queue = &self.core.member_queues[self.at];
        let before = match member_queue.lock().entry(queue, value) {
            Some(entry) => std::mem::take(&mut entry.before),
            None => return,
        };
        for ticket in before {
            self.finish_all(ticket.queue, ticket.value);
        }
        self.finish_all(queue, value - 1);
        let mut state = member_queue.lock();
        let Some(kept) = state.entry(queue, value).and_then(|entry| entry.kept.take()) else { return };
        state.busy_queue = Some(queue);
        drop(state);
        let run = || kept.with(|request| self.core.carry_out(self.at, request));
        let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            // The work failed, so the contents of the device are unknown.
            let error =
                Error::new(ErrorKind::KernelFailed, "parity").with_detail("a call of a device panicked");
            let id = member_queue.lock().member.id;
            self.core.lose(self.at, id, &error);
            Err(error)
        });
        member_queue.lock().end(queue, value, outcome);
        // After this, the owner may release the memory of the request.
        drop(kept);
    }

    /// Completes all submissions of a queue up to a value.
    fn finish_all(&self, queue: QueueId, value: u64) {
        let member_queue = &self.core.member_queues[self.at];
        loop {
            let mut state = member_queue.lock();
            let Some(entry) = state.first_open(queue, value) else { return };
            let (value, stand) = (entry.value, entry.stand);
            match stand {
                Stand::Direct(part) => {
                    let device = Arc::clone(&state.member.device);
                    drop(state);
                    let outcome = device.wait(part);
                    state = member_queue.lock();
                    state.end_direct(queue, value, part, outcome);
                }
                _ => {
                    drop(state);
                    self.finish(queue, value);
                }
            }
        }
    }

    /// Wakes the waiters of finished work. The caller holds no lock, and is inside of no call.
    fn wake_due(self: &Arc<Self>) {
        loop {
            // A waker may submit more work to this thread.
            let due = std::mem::take(&mut self.core.member_queues[self.at].lock().due);
            if due.is_empty() {
                return;
            }
            due.into_iter().for_each(|(ticket, waker)| self.wake(ticket, waker));
        }
    }
}

impl Woken for MemberWorker {
    fn wake(self: &Arc<Self>, ticket: Ticket, waker: Waker) {
        let call = DeferringCall::begin();
        let mut state = self.core.member_queues[self.at].lock();
        let is_over = state.check_ticket("wake", ticket).unwrap_or(true);
        let pending = if is_over { None } else { state.settle(ticket) };
        match pending {
            Some(Pending::Direct(device, part)) => {
                drop(state);
                device.wake(part, Chain::waker(self, ticket, waker));
            }
            Some(Pending::Job) => state.wake_later(ticket, waker),
            None => {
                drop(state);
                drop(call);
                vmarray_support::backends::wake_all([waker]);
            }
        }
    }
}
