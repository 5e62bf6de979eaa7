//! The simulated device with one deliberate flaw, which has an effect only while work is in flight.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use backend_api::{
    BufferHandle, BufferId, Commit, Device, DeviceSpan, Fill, HostAllocation, HostSpan, QueueHandle, QueueId,
    QueueProgress, Request, Result, Search, Ticket, racy,
};
use backend_host::SimulatedDevice;
use parking_lot::Mutex;

super::flaws! {
    /// Contract violations of devices with work in flight, and the checks that find them if the work of
    /// queues happens to overlap.
    OrderAfterIsIgnored:
        order_after_carries_effects_between_queues order_after_several_tickets_waits_for_all
        order_after_in_both_directions_does_not_block random_programs_that_move_between_queues;
    WorkOvertakesWork:
        work_in_a_queue_sees_earlier_work the_last_of_many_writes_stays
        kernels_and_copies_keep_their_order;
    BatchesOverlap: batches_of_mixed_directions;
    DeviceMemoryDoesNotWait: giving_device_memory_back_waits_for_work things_can_be_given_back_in_any_order;
    HostMemoryDoesNotWait: giving_host_memory_back_waits_for_work;
    QueuesDoNotWait: ending_a_queue_waits_for_its_work memory_in_use_by_others_can_be_given_back_meanwhile;
    EndsOfQueuesSpoilOthersWork: queues_do_not_block_each_others_memory;
    DoneTooEarly: done_means_all_work_before_is_done;
    WakersComeTooEarly: wakers_are_woken_once_when_work_is_done;
    WorkNeedsAWaitingThread: done_stays_done wakers_are_woken_once_when_work_is_done;
    WakersOfFailuresAreLost: wakers_for_work_that_fails_are_woken;
    SearchesShareTheirAnswer: searches_in_flight_at_once_do_not_mix;
}

#[derive(Debug)]
pub struct Late {
    inner: SimulatedDevice,
    flaw: Flaw,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The twin of each queue, whose work has no order relative to the queue's.
    twins: HashMap<QueueId, QueueHandle>,
    submissions: u64,
    /// The newest ticket of each queue that a thread has waited for.
    waited: HashMap<QueueId, u64>,
    last_answer: Option<HostSpan<'static>>,
    /// The target of the newest fill.
    last_fill: Option<(DeviceSpan<'static>, u64)>,
    /// Device memory by its name, with its length; memory whose handle is kept here was released.
    buffers: HashMap<BufferId, (u64, Option<BufferHandle>)>,
    /// Other objects that were released without a wait.
    hosts: Vec<HostAllocation>,
    queues: Vec<QueueHandle>,
}

impl Late {
    pub fn new(flaw: Flaw) -> Self {
        static SEED: AtomicU64 = AtomicU64::new(0);
        let inner = SimulatedDevice::builder(SEED.fetch_add(1, Ordering::Relaxed)).bytes(64 << 20).build();
        Self { inner, flaw, state: Mutex::default() }
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    /// Submits a request to the twin of a queue, in no order with the queue's work.
    fn start_unordered(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let state = self.state.lock();
        match state.twins.get(&queue.id()) {
            Some(twin) => self.inner.submit(twin, request),
            // The inner device refuses the request, because it does not know the queue.
            None => self.inner.submit(queue, request),
        }
    }

    /// Overwrites device memory, if it exists, in no order with other work. Does not wait.
    fn spoil(&self, buffer: DeviceSpan<'_>, bytes: u64) -> Option<Ticket> {
        let queue = self.inner.create_queue().ok()?;
        let ticket = self.inner.submit(&queue, &Request::Fill(&Fill { to: buffer, bytes, pattern: &[0xA5] }));
        self.state.lock().queues.push(queue);
        ticket.ok()
    }
}

// SAFETY: the simulation owns the memory, and keeps it while work touches it. If a flaw omits the wait for
// work, the memory stays allocated as long as the device exists.
unsafe impl Device for Late {
    backend_api::forward! { self => self.inner;
        info memory allocate_host import_host wipe_on_release prepare
    }

    fn create_queue(&self) -> Result<QueueHandle> {
        let (queue, twin) = (self.inner.create_queue()?, self.inner.create_queue()?);
        self.state.lock().twins.insert(queue.id(), twin);
        Ok(queue)
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        let buffer = self.inner.allocate(bytes, commit)?;
        self.state.lock().buffers.insert(buffer.id(), (bytes, None));
        Ok(buffer)
    }

    fn release(&self, buffer: BufferHandle) {
        if !self.is(Flaw::DeviceMemoryDoesNotWait) {
            self.state.lock().buffers.remove(&buffer.id());
            return self.inner.release(buffer);
        }
        let bytes = self.state.lock().buffers.get(&buffer.id()).map_or(0, |(bytes, _)| *bytes);
        self.spoil(buffer.at(0), bytes);
        self.state.lock().buffers.insert(buffer.id(), (bytes, Some(buffer)));
    }

    fn release_host(&self, host: HostAllocation) {
        if !self.is(Flaw::HostMemoryDoesNotWait) {
            return self.inner.release_host(host);
        }
        // SAFETY: the memory has this length, and is kept; the former owner has no reference to it.
        unsafe { racy::fill(host.address().as_ptr(), 0xA5, host.bytes()) };
        self.state.lock().hosts.push(host);
    }

    fn release_queue(&self, queue: QueueHandle) {
        if self.is(Flaw::QueuesDoNotWait) {
            return self.state.lock().queues.push(queue);
        }
        if self.is(Flaw::EndsOfQueuesSpoilOthersWork) {
            let last = self.state.lock().last_fill;
            let spoilt = last.and_then(|(at, bytes)| self.spoil(at, bytes));
            spoilt.into_iter().for_each(|ticket| self.inner.wait(ticket).expect("the fill must succeed"));
        }
        let twin = self.state.lock().twins.remove(&queue.id());
        twin.into_iter().chain([queue]).for_each(|queue| self.inner.release_queue(queue));
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let submission = {
            let mut state = self.state.lock();
            state.submissions += 1;
            state.submissions
        };
        match *request {
            _ if self.is(Flaw::WorkOvertakesWork) && submission.is_multiple_of(2) => {
                self.start_unordered(queue, request)?;
                self.inner.submit(queue, &Request::Copies(&[], None))
            }
            Request::Copies([first @ .., last], route)
                if self.is(Flaw::BatchesOverlap) && !first.is_empty() =>
            {
                self.start_unordered(queue, &Request::Copies(std::slice::from_ref(last), route))?;
                self.inner.submit(queue, &Request::Copies(first, None))
            }
            Request::Search(search) if self.is(Flaw::SearchesShareTheirAnswer) => {
                // SAFETY: the inner device refuses a place that no longer exists.
                let own = unsafe { search.answer.detach() };
                let last = self.state.lock().last_answer.replace(own);
                if let Some(answer) = last.filter(|last| last.host() == own.host()) {
                    // The flaw: also write this search's answer to the place of the previous answer.
                    self.start_unordered(queue, &Request::Search(&Search { answer, ..*search }))?;
                }
                self.inner.submit(queue, request)
            }
            Request::Fill(fill) if self.is(Flaw::EndsOfQueuesSpoilOthersWork) => {
                // SAFETY: as above.
                self.state.lock().last_fill = Some((unsafe { fill.to.detach() }, fill.bytes));
                self.inner.submit(queue, request)
            }
            _ => self.inner.submit(queue, request),
        }
    }

    fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        let progress = self.inner.poll(ticket)?;
        let waited = self.state.lock().waited.get(&ticket.queue).copied();
        match self.flaw {
            Flaw::DoneTooEarly => Ok(QueueProgress::Done),
            Flaw::WorkNeedsAWaitingThread if waited < Some(ticket.value) => Ok(QueueProgress::Pending),
            _ => Ok(progress),
        }
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        if self.is(Flaw::DoneTooEarly) {
            return self.inner.poll(ticket).map(drop);
        }
        let outcome = self.inner.wait(ticket);
        let mut state = self.state.lock();
        let newest = state.waited.entry(ticket.queue).or_default();
        *newest = ticket.value.max(*newest);
        outcome
    }

    fn wake(&self, ticket: Ticket, waker: Waker) {
        match self.flaw {
            Flaw::WakersComeTooEarly => waker.wake(),
            Flaw::WorkNeedsAWaitingThread => {}
            Flaw::WakersOfFailuresAreLost if self.inner.wait(ticket).is_err() => {}
            _ => self.inner.wake(ticket, waker),
        }
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        if self.is(Flaw::OrderAfterIsIgnored) {
            return Ok(());
        }
        self.inner.order_after(queue, ticket)
    }
}
