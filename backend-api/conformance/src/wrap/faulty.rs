//! [`Faulty`], a wrapper for tests that injects failures into the calls of a device.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Wake, Waker};

use parking_lot::Mutex;

use backend_api::{
    BufferHandle, Commit, Device, Error, ErrorKind, HostAllocation, HostMemory, MemoryStatus, QueueHandle,
    QueueId, QueueProgress, Request, Result, Ticket,
};

use backend_api::forward;
use backend_api::wrap::{Fault, FaultPlan, Operation};

/// A device that forwards all calls to an inner device, except for calls that [rules](Fault) select: these
/// calls fail. The device can also behave as a lost device.
///
/// - A call that fails has no effect. A failure that is [reported later](Fault::reported_later) fails only
///   the submitted work. In this case the device executes the first half of a batch of copies, and does
///   not check the arguments of the second half. The device does not execute other kinds of work at all.
/// - A lost device fails every call at once, and fails its pending tickets with [`ErrorKind::Lost`]. The
///   program can still release memory. Work in flight continues in the inner device, so a release still waits
///   for it. A thread that is blocked in [`wait`](Device::wait) at the loss returns when the inner device has
///   finished.
/// - Each rule counts all calls that match it. If several rules fail one call, the rule that was added first
///   decides. Any thread may add a rule. Each call takes one lock.
///
/// ```
/// # use std::sync::Arc;
/// use backend_api::{Commit, Device, ErrorKind, Queue, wrap::{Fault, Operation}};
/// use vmarray_conformance::wrap::Faulty;
/// let device = Arc::new(Faulty::new(backend_host::HostDevice::new(1 << 20)?));
/// let queue = Queue::new(&device)?;
/// device.inject(Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(2).reported_later());
/// let tickets = [queue.submit(&[])?, queue.submit(&[])?, queue.submit(&[])?];
/// assert!(device.wait(tickets[0]).is_ok());
/// assert_eq!(device.wait(tickets[1]).unwrap_err().kind(), ErrorKind::CopyFailed);
/// assert!(device.wait(tickets[2]).is_ok());
/// assert_eq!(device.injected(), 1);
///
/// device.inject(Fault::new(Operation::Allocate, ErrorKind::OutOfMemory));
/// let error = device.allocate(100, Commit::Lazy).unwrap_err();
/// assert_eq!((error.kind(), error.bytes()), (ErrorKind::OutOfMemory, Some(100)));
/// device.clear();
/// assert!(device.allocate(100, Commit::Lazy).is_ok());
///
/// device.lose();
/// assert!(device.is_lost());
/// assert_eq!(device.create_queue().unwrap_err().kind(), ErrorKind::Lost);
/// assert!(device.inner().create_queue().is_ok(), "the device within is sound");
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct Faulty<D> {
    inner: D,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    plan: FaultPlan,
    /// The newest ticket of each queue.
    newest: HashMap<QueueId, u64>,
    failed: HashMap<Ticket, Error>,
    lost: Option<Loss>,
    wakers: Vec<Arc<Once>>,
}

#[derive(Debug)]
struct Loss {
    error: Error,
    /// The last ticket of each queue that was done before the loss.
    done: HashMap<QueueId, u64>,
}

impl Loss {
    /// Returns true if the work of a ticket was in flight when the device was lost.
    fn interrupted(&self, ticket: Ticket) -> bool {
        ticket.value > self.done.get(&ticket.queue).copied().unwrap_or(0)
    }
}

/// A waker that passes on only the first wake-up.
#[derive(Debug)]
struct Once(Mutex<Option<Waker>>);

impl Wake for Once {
    fn wake(self: Arc<Self>) {
        let waker = self.0.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<D: Device> Faulty<D> {
    /// Wraps a device. Without rules, no call fails.
    #[must_use]
    pub fn new(inner: D) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Returns the inner device.
    #[must_use]
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Adds a rule of fault injection: calls that match the rule fail from now on.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().plan.add(fault);
    }

    /// Removes all rules. Failed submissions stay failed, and a lost device stays lost.
    pub fn clear(&self) {
        self.state.lock().plan.clear();
    }

    /// Returns the number of calls that failed because of a rule, not counting calls after the device's loss.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.state.lock().plan.struck()
    }

    /// Returns true if the device is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.state.lock().lost.is_some()
    }

    /// Makes the device lost from now on.
    pub fn lose(&self) {
        self.lose_and_wake(self.state.lock(), "lose");
    }

    /// Makes the device lost: records the tickets of each queue that are done, and wakes all waiting tasks.
    fn lose_and_wake(&self, mut state: parking_lot::MutexGuard<'_, State>, operation: &'static str) {
        if state.lost.is_some() {
            return;
        }
        let done =
            state.newest.iter().map(|(&queue, &newest)| (queue, self.last_done(queue, newest))).collect();
        let error = Error::new(ErrorKind::Lost, operation).with_detail("injected").on(self.inner.info());
        state.lost = Some(Loss { error, done });
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        for waker in wakers {
            waker.wake();
        }
    }

    /// Returns the newest ticket of 1 to `newest` that is not pending.
    fn last_done(&self, queue: QueueId, newest: u64) -> u64 {
        let (mut done, mut pending) = (0, newest + 1);
        while pending - done > 1 {
            let value = done + (pending - done) / 2;
            match self.inner.poll(Ticket { queue, value }) {
                Ok(QueueProgress::Pending) => pending = value,
                _ => done = value,
            }
        }
        done
    }

    /// Counts a call against the rules. If a rule selects it, returns the error, or the error with which its
    /// ticket will fail. May make the device lost.
    fn judge(
        &self,
        operation: Operation,
        queue: Option<QueueId>,
        bytes: Option<u64>,
    ) -> Result<Option<Error>> {
        let mut state = self.state.lock();
        if let Some(loss) = &state.lost {
            return Err(loss.error.clone());
        }
        let Some(strike) = state.plan.strike(operation, queue) else { return Ok(None) };
        let kind = strike.kind;
        let mut error = Error::new(kind, operation.name()).with_detail("injected").on(self.inner.info());
        if let Some(bytes) = bytes {
            error = error.with_bytes(bytes).with_available_bytes(0);
        }
        if strike.later {
            return Ok(Some(error));
        }
        if kind == ErrorKind::Lost {
            self.lose_and_wake(state, operation.name());
        }
        Err(error)
    }

    fn note(&self, ticket: Ticket, failure: Option<Error>) {
        let mut state = self.state.lock();
        let newest = state.newest.entry(ticket.queue).or_default();
        *newest = ticket.value.max(*newest);
        let Some(error) = failure else { return };
        if error.kind() == ErrorKind::Lost {
            let operation = error.operation();
            self.lose_and_wake(state, operation);
            // The ticket was in flight when the device was lost, so this ticket and later ones of the queue
            // fail.
            if let Some(loss) = &mut self.state.lock().lost {
                let done = loss.done.entry(ticket.queue).or_default();
                *done = (*done).min(ticket.value - 1);
            }
            return;
        }
        state.failed.insert(ticket, error);
    }

    /// Returns the inner device's answer for a ticket, unless an injected failure or a loss replaces it.
    fn ask<T>(&self, ticket: Ticket, answer: Result<T>, is_done: impl FnOnce(&T) -> bool) -> Result<T> {
        if matches!(&answer, Err(error) if error.kind() == ErrorKind::UnknownHandle) {
            return answer;
        }
        let state = self.state.lock();
        if let Some(loss) = &state.lost
            && state.newest.contains_key(&ticket.queue)
            && loss.interrupted(ticket)
        {
            return Err(loss.error.clone());
        }
        match state.failed.get(&ticket) {
            Some(error) if answer.as_ref().map_or(true, is_done) => Err(error.clone()),
            _ => answer,
        }
    }

    fn grant<T>(
        &self,
        operation: Operation,
        bytes: Option<u64>,
        really: impl FnOnce(&D) -> Result<T>,
    ) -> Result<T> {
        self.judge(operation, None, bytes)?;
        really(&self.inner)
    }
}

// SAFETY: calls are forwarded unchanged to the inner device, except for copies that must fail, of which a
// part is forwarded. A ticket fails only after the inner device has done the work that it received for it.
unsafe impl<D: Device> Device for Faulty<D> {
    forward! { self => self.inner;
        info release release_host routes routing set_routing wipe_on_release sync kernel_facts
        reaches
    }

    fn memory(&self) -> Result<MemoryStatus> {
        self.grant(Operation::Memory, None, D::memory)
    }

    fn create_queue(&self) -> Result<QueueHandle> {
        self.grant(Operation::CreateQueue, None, D::create_queue)
    }

    fn release_queue(&self, queue: QueueHandle) {
        let id = queue.id();
        self.inner.release_queue(queue);
        let mut state = self.state.lock();
        state.newest.remove(&id);
        state.failed.retain(|ticket, _| ticket.queue != id);
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        self.grant(Operation::Allocate, Some(bytes), |inner| inner.allocate(bytes, commit))
    }

    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        self.grant(Operation::AllocateExtensible, Some(bytes), |inner| {
            inner.allocate_extensible(bytes, most, commit)
        })
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, commit: Commit) -> Result<()> {
        self.grant(Operation::Extend, Some(bytes), |inner| inner.extend(buffer, bytes, commit))
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.grant(Operation::AllocateHost, Some(bytes as u64), |inner| inner.allocate_host(bytes, kind))
    }

    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        self.grant(Operation::ImportHost, Some(bytes as u64), |inner| {
            // SAFETY: guaranteed by the caller.
            unsafe { inner.import_host(address, bytes, kind) }
        })
    }

    /// Forwards a submission. If a rule makes its ticket fail, submits only a part of the work.
    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let failure = self.judge(Operation::of(request), Some(queue.id()), None)?;
        let ticket = match *request {
            _ if failure.is_none() => self.inner.submit(queue, request)?,
            Request::Copies(transfers, _) => {
                self.inner.submit(queue, &Request::Copies(&transfers[..transfers.len() / 2], None))?
            }
            _ => self.inner.submit(queue, &Request::Copies(&[], None))?,
        };
        self.note(ticket, failure);
        Ok(ticket)
    }

    fn prepare(&self, requests: &[Request<'_>]) -> Result<()> {
        self.grant(Operation::Prepare, None, |inner| inner.prepare(requests))
    }

    fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        let answer = self.ask(ticket, self.inner.poll(ticket), |progress| *progress == QueueProgress::Done);
        if matches!(&answer, Err(error) if error.kind() == ErrorKind::Lost) {
            // After the loss no work may access memory, but the inner device still works. So wait for its
            // work.
            let _ = self.inner.wait(ticket);
        }
        answer
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.ask(ticket, self.inner.wait(ticket), |()| true)
    }

    fn wake(&self, ticket: Ticket, waker: Waker) {
        let once = Arc::new(Once(Mutex::new(Some(waker))));
        let mut state = self.state.lock();
        if state.lost.is_none() {
            // When the list is full, remove the wakers that have already run.
            if state.wakers.len() == state.wakers.capacity() {
                state.wakers.retain(|once| once.0.lock().is_some());
            }
            state.wakers.push(Arc::clone(&once));
        }
        let interrupted = state.lost.as_ref().is_some_and(|loss| loss.interrupted(ticket));
        drop(state);
        if interrupted {
            once.wake();
        } else {
            self.inner.wake(ticket, once.into());
        }
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        self.judge(Operation::OrderAfter, Some(queue.id()), None)?;
        self.inner.order_after(queue, ticket)
    }
}
