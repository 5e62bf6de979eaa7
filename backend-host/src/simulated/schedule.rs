//! Schedule of a simulated device: the start, end and failure of each submission in virtual time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use backend_api::kernel::Report;
use backend_api::wrap::{Fault, FaultPlan, Operation, Strike};
use backend_api::{DeviceInfo, Error, ErrorKind, QueueId, Result, Ticket};
use vmarray_support::Timeline;

use super::damage::Chance;
use super::link::SimulatedLink;
use super::trace::SimulatedOperation;
use crate::job::HostSubmission;
use crate::kernel::copy::CheckedCopy;
use crate::queue::Job;
use crate::ram::Ram;
use crate::worker::Crew;

/// Settings of a simulated device. Bandwidths are in bytes per second.
#[derive(Clone, Debug)]
pub(super) struct SimulationSettings {
    pub seed: u64,
    pub latency_ns: u64,
    pub jitter: f64,
    pub upload_bandwidth: u64,
    pub download_bandwidth: u64,
    pub device_bandwidth: u64,
    pub link_bandwidth: u64,
    pub poll_step_ns: u64,
    pub trace: bool,
    pub plan: FaultPlan,
}

impl SimulationSettings {
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            latency_ns: 10_000,
            jitter: 4.0,
            upload_bandwidth: 10_000_000_000,
            download_bandwidth: 10_000_000_000,
            device_bandwidth: 10_000_000_000,
            link_bandwidth: 10_000_000_000,
            poll_step_ns: 1_000,
            trace: false,
            plan: FaultPlan::default(),
        }
    }
}

/// State of a simulated device, under one lock.
#[derive(Debug)]
pub(super) struct Schedule {
    settings: SimulationSettings,
    info: Arc<DeviceInfo>,
    chance: Chance,
    now_ns: u64,
    submissions: u64,
    lost: bool,
    queues: HashMap<QueueId, QueueClock>,
    /// Pending submissions, by end time in nanoseconds and number of the submission.
    pending: BTreeMap<(u64, u64), Pending>,
    upload: SimulatedLink,
    download: SimulatedLink,
    device: SimulatedLink,
    /// Link to other devices, shared by all queues.
    link: SimulatedLink,
    wakers: Vec<(Ticket, Waker)>,
    trace: Vec<SimulatedOperation>,
}

#[derive(Debug)]
struct QueueClock {
    timeline: Arc<Timeline>,
    /// Earliest start of the next submission: the end of the last one, or of an awaited ticket.
    ready_ns: u64,
    /// Ticket value and end time in nanoseconds of pending submissions, in order.
    pending: VecDeque<(u64, u64)>,
}

#[derive(Debug)]
struct Pending {
    operation: SimulatedOperation,
    timeline: Arc<Timeline>,
    work: HostSubmission<Ram>,
    /// Kind of the error with which the submission fails at its end.
    failure: Option<ErrorKind>,
    /// True if a broken link makes copies between devices transfer wrong bytes.
    is_broken: bool,
}

/// Traffic of a submission over links to other devices.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkTraffic {
    /// Number of bytes that the copy transfers over the link.
    pub bytes: u64,
    /// Latency that the link adds, in nanoseconds.
    pub latency_ns: u64,
    /// True if a broken link makes the copy transfer wrong bytes.
    pub is_broken: bool,
}

impl Schedule {
    pub fn new(settings: SimulationSettings, info: Arc<DeviceInfo>) -> Self {
        Self {
            chance: Chance::new(settings.seed),
            info,
            now_ns: 0,
            submissions: 0,
            lost: false,
            queues: HashMap::new(),
            pending: BTreeMap::new(),
            upload: SimulatedLink::new(settings.upload_bandwidth),
            download: SimulatedLink::new(settings.download_bandwidth),
            device: SimulatedLink::new(settings.device_bandwidth),
            link: SimulatedLink::new(settings.link_bandwidth),
            wakers: Vec::new(),
            trace: Vec::new(),
            settings,
        }
    }

    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub fn submissions(&self) -> u64 {
        self.submissions
    }

    pub fn trace(&self) -> &[SimulatedOperation] {
        &self.trace
    }

    pub fn is_lost(&self) -> bool {
        self.lost
    }

    pub fn inject(&mut self, fault: Fault) {
        self.settings.plan.add(fault);
    }

    /// Fills new memory with random bytes.
    pub fn litter(&mut self, ram: &Ram, part: Range<u64>) {
        self.chance.litter_new(ram, part);
    }

    pub fn add_queue(&mut self, timeline: &Arc<Timeline>) {
        let clock =
            QueueClock { timeline: Arc::clone(timeline), ready_ns: self.now_ns, pending: VecDeque::new() };
        self.queues.insert(timeline.queue(), clock);
        if self.lost {
            timeline.lose(lost("create_queue").on(&self.info));
        }
    }

    /// Finishes the work of a queue, and removes the queue.
    pub fn end_queue(&mut self, queue: QueueId) {
        self.drain(queue);
        self.queues.remove(&queue);
    }

    /// Advances the virtual time until a queue is empty.
    pub fn drain(&mut self, queue: QueueId) {
        if let Some(&(_, finish_ns)) = self.queues.get(&queue).and_then(|clock| clock.pending.back()) {
            self.run_until(finish_ns);
        }
    }

    /// Makes later submissions to `queue` start after the work of `ticket` is done.
    pub fn order_after(&mut self, queue: QueueId, ticket: Ticket) {
        let finish_ns = self.finish_ns(ticket).unwrap_or(self.now_ns);
        if let Some(clock) = self.queues.get_mut(&queue) {
            clock.ready_ns = clock.ready_ns.max(finish_ns);
        }
    }

    /// End time of a pending ticket.
    fn finish_ns(&self, ticket: Ticket) -> Option<u64> {
        let pending = &self.queues.get(&ticket.queue)?.pending;
        let position = pending.partition_point(|&(value, _)| value < ticket.value);
        let &(value, finish_ns) = pending.get(position)?;
        (value == ticket.value).then_some(finish_ns)
    }

    /// Submits `work`. The work takes its latency, plus `cost_ns`, plus the transfer time of its bytes.
    pub fn submit(
        &mut self,
        operation: &'static str,
        timeline: &Arc<Timeline>,
        work: HostSubmission<Ram>,
        cost_ns: u64,
        passage: LinkTraffic,
    ) -> Result<Ticket> {
        let queue = timeline.queue();
        self.submissions += 1;
        // Ask the fault plan, which counts this submission, if the submission must fail.
        let strike = Operation::of_name(operation)
            .and_then(|operation| self.settings.plan.strike(operation, Some(queue)));
        let failure = match strike {
            None => None,
            Some(Strike { kind, later: true }) => Some(kind),
            Some(Strike { kind: ErrorKind::Lost, .. }) => {
                self.lose();
                return Err(lost(operation));
            }
            Some(Strike { kind, .. }) => {
                // Simulate a call that fails after half of its work was queued: a driver waits for that half
                // before it reports the error.
                self.drain(queue);
                if !self.lost {
                    self.chance.spoil(&work);
                }
                return Err(Error::new(kind, operation)
                    .with_detail("the simulation injected this error at submission"));
            }
        };
        let ticket = timeline.begin()?;
        let jitter = self.settings.latency_ns as f64 * self.settings.jitter * self.chance.fraction();
        let latency_ns = self.settings.latency_ns.saturating_add(jitter as u64).saturating_add(cost_ns);
        let latency_ns = latency_ns.saturating_add(passage.latency_ns);
        let mut operation = describe(operation, ticket, &work);
        operation.link_bytes = passage.bytes;
        operation.device_bytes = operation.device_bytes.saturating_sub(passage.bytes);
        let Some(clock) = self.queues.get_mut(&queue) else {
            // The queue has ended since the look-up of its timeline.
            return Err(Error::new(ErrorKind::UnknownHandle, operation.operation));
        };
        let start_ns = clock.ready_ns.max(self.now_ns);
        let ready_ns = start_ns.saturating_add(latency_ns);
        let links = [
            (&mut self.upload, operation.upload_bytes),
            (&mut self.download, operation.download_bytes),
            (&mut self.device, operation.device_bytes),
            (&mut self.link, operation.link_bytes),
        ];
        let finish_ns = links
            .into_iter()
            .map(|(link, bytes)| link.reserve(self.now_ns, ready_ns, bytes))
            .fold(ready_ns, u64::max);
        clock.ready_ns = finish_ns;
        clock.pending.push_back((ticket.value, finish_ns));
        operation.submitted = Duration::from_nanos(self.now_ns);
        operation.started = Duration::from_nanos(start_ns);
        operation.finished = Duration::from_nanos(finish_ns);
        let pending = Pending {
            operation,
            timeline: Arc::clone(timeline),
            work,
            failure,
            is_broken: passage.is_broken,
        };
        self.pending.insert((finish_ns, self.submissions), pending);
        Ok(ticket)
    }

    /// Advances the virtual time to `moment_ns`, and finishes all work that is due.
    pub fn run_until(&mut self, moment_ns: u64) {
        while let Some(entry) = self.pending.first_entry() {
            if entry.key().0 > moment_ns {
                break;
            }
            let ((finish_ns, _), pending) = entry.remove_entry();
            self.now_ns = self.now_ns.max(finish_ns);
            self.finish(pending);
        }
        self.now_ns = self.now_ns.max(moment_ns);
    }

    /// Advances the virtual time until no work is pending.
    pub fn run_all(&mut self) {
        while let Some((&(finish_ns, _), _)) = self.pending.last_key_value() {
            self.run_until(finish_ns);
        }
    }

    /// Advances the virtual time until a ticket (submission) is done.
    pub fn run_until_done(&mut self, ticket: Ticket) {
        if let Some(finish_ns) = self.finish_ns(ticket) {
            self.run_until(finish_ns);
        }
    }

    /// Advances the virtual time by the step of one poll.
    pub fn poll_step(&mut self) {
        self.run_until(self.now_ns.saturating_add(self.settings.poll_step_ns));
    }

    /// Advances the virtual time until no pending work uses the memory at this address.
    pub fn leave(&mut self, memory: *const ()) {
        let last = self.pending.iter().rev().find(|(_, pending)| pending.work.touches(memory));
        if let Some((&(finish_ns, _), _)) = last {
            self.run_until(finish_ns);
        }
    }

    fn finish(&mut self, pending: Pending) {
        let Pending { mut operation, timeline, work, failure, is_broken } = pending;
        if failure.is_some() {
            self.chance.spoil(&work);
        }
        let outcome = match failure {
            None => {
                // Copy the random generator, because this call must not change later delays and failures.
                self.chance.clone().litter_left_out(&work);
                let outcome = work.run(Crew::Alone);
                if is_broken {
                    self.chance.falsify(&work);
                }
                outcome
            }
            Some(ErrorKind::Lost) => Err(lost(operation.operation)),
            Some(kind) => {
                Err(Error::new(kind, operation.operation).with_detail("the simulation injected this failure"))
            }
        };
        let outcome = outcome.map_err(|error| error.on(&self.info));
        operation.failure = outcome.as_ref().err().map(Error::kind);
        let ticket = operation.ticket;
        if let Some(clock) = self.queues.get_mut(&ticket.queue) {
            clock.pending.retain(|&(value, _)| value > ticket.value);
        }
        if self.settings.trace {
            self.trace.push(operation);
        }
        // Drop the work first: a caller that waits and releases the memory is then the memory's last owner.
        drop(work);
        // Complete the ticket under the lock, because the tickets of a queue must complete in order. The
        // timeline has no wakers here, so no foreign code runs.
        timeline.complete(ticket.value, outcome);
        if failure == Some(ErrorKind::Lost) {
            self.lose();
        }
    }

    /// Discards all remaining work, because the device is dropped.
    pub fn forget_work(&mut self) {
        self.pending.clear();
    }

    /// Simulates the loss of the device, and leaves its current work half done.
    pub fn lose(&mut self) {
        if std::mem::replace(&mut self.lost, true) {
            return;
        }
        let now = Duration::from_nanos(self.now_ns);
        for (_, mut pending) in std::mem::take(&mut self.pending) {
            if pending.operation.started < now {
                self.chance.spoil(&pending.work);
            }
            if self.settings.trace {
                pending.operation.failure = Some(ErrorKind::Lost);
                pending.operation.finished = now;
                self.trace.push(pending.operation);
            }
        }
        for clock in self.queues.values_mut() {
            clock.pending.clear();
            clock.timeline.lose(lost("submit").on(&self.info));
        }
    }

    /// Stores a waker for [`take_due_wakers`](Self::take_due_wakers).
    pub fn wake_at(&mut self, ticket: Ticket, waker: Waker) {
        self.wakers.push((ticket, waker));
    }

    /// Returns the wakers of finished submissions. The caller runs wakers, as foreign code, without a lock.
    pub fn take_due_wakers(&mut self) -> Vec<Waker> {
        let wakers = std::mem::take(&mut self.wakers);
        let (later, due): (Vec<_>, Vec<_>) =
            wakers.into_iter().partition(|(ticket, _)| self.finish_ns(*ticket).is_some());
        self.wakers = later;
        due.into_iter().map(|(_, waker)| waker).collect()
    }
}

fn describe(operation: &'static str, ticket: Ticket, work: &HostSubmission<Ram>) -> SimulatedOperation {
    let mut description = SimulatedOperation {
        operation,
        ticket,
        copies: 0,
        upload_bytes: 0,
        download_bytes: 0,
        device_bytes: 0,
        link_bytes: 0,
        submitted: Duration::ZERO,
        started: Duration::ZERO,
        finished: Duration::ZERO,
        failure: None,
    };
    match work {
        HostSubmission::Copies(copies) => {
            description.copies = copies.as_slice().len();
            for copy in copies.as_slice() {
                *match copy {
                    CheckedCopy::Upload { .. } => &mut description.upload_bytes,
                    CheckedCopy::Download { .. } => &mut description.download_bytes,
                    CheckedCopy::Internal { .. } => &mut description.device_bytes,
                } += copy.bytes();
            }
        }
        HostSubmission::Fill(_) => description.device_bytes = work.bytes(),
        HostSubmission::Compute(compute) => {
            description.device_bytes = work.bytes();
            description.download_bytes = compute.answer_bytes();
        }
        HostSubmission::Launch(_) => {
            description.device_bytes = work.bytes();
            description.download_bytes = Report::BYTES;
        }
        HostSubmission::Indexed(indexed) if indexed.is_gather() => {
            description.upload_bytes = indexed.count * 8;
            description.download_bytes = indexed.bytes();
        }
        HostSubmission::Indexed(indexed) => description.upload_bytes = indexed.count * 8 + indexed.bytes(),
    }
    description
}

pub(super) fn lost(operation: &'static str) -> Error {
    Error::new(ErrorKind::Lost, operation).with_detail("the simulation injected the loss of the device")
}
