//! The requests to one device of a parity group, and their outcomes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::several::access_set::AccessSet;
use crate::several::host::{Host, HostBlock};
use crate::several::member::{Member, MemberStatus};
use crate::several::pending_requests::OwnedRequest;
use backend_api::{
    BufferId, Device, Error, ErrorKind, Extents, HostAllocation, HostId, QueueId, QueueProgress, Result,
    Ticket,
};
use vmarray_support::{IdMap, contended};

/// A device's place in a group: it stays when the device is lost and a spare replaces it.
#[derive(Debug)]
pub(super) struct MemberQueue {
    state: Mutex<MemberQueueState>,
    /// Notified when a job is over, and when the thread begins to run wakers or ends.
    pub(super) done: Condvar,
    /// Held while a part of this member's parities is read, changed and written.
    pub(super) parity: Mutex<()>,
}

#[derive(Debug)]
pub(super) struct MemberQueueState {
    pub(super) member: Member,
    pub(super) queues: IdMap<QueueId, Log>,
    /// The newest ticket of each queue that has ended.
    pub(super) ended: IdMap<QueueId, u64>,
    pub(super) buffers: IdMap<BufferId, u64>,
    pub(super) hosts: IdMap<HostId, Host>,
    pub(super) jobs: VecDeque<MemberJob>,
    /// Notified when a job arrives, when wakers are due, or when no more jobs will arrive.
    pub(super) work: Arc<Condvar>,
    /// The numbers of the newest job and of the newest finished one; jobs run in this order.
    pub(super) newest_job: u64,
    pub(super) done_job: u64,
    /// The queue of the running job.
    pub(super) busy_queue: Option<QueueId>,
    /// True while a thread runs a job.
    pub(super) runs_job: bool,
    /// True while the member's thread runs wakers. Threads that wait for jobs run them meanwhile.
    pub(super) is_waking: bool,
    /// True if no more jobs will arrive.
    pub(super) is_closed: bool,
    /// True if the member's thread has ended.
    pub(super) has_ended: bool,
    /// The error by which the device was lost.
    pub(super) lost: Option<Error>,
    /// The bytes that a spare still lacks.
    pub(super) missing_bytes: u64,
    /// Host memory for copies of the group.
    pub(super) stages: Vec<MemberStage>,
    /// Wakers of finished tickets, with their tickets.
    pub(super) due: Vec<(Ticket, Waker)>,
    /// Host memory of the program.
    pub(super) imported: HashSet<HostId>,
    /// Host memory that lost devices have allocated, and memory allocated without a device. Both are
    /// dropped after the device that copies from and to them.
    pub(super) of_lost: IdMap<HostId, MemberStage>,
    pub(super) own: IdMap<HostId, HostBlock>,
}

/// A submission for the thread of a member; without a value, a submission that was lost with the device.
#[derive(Debug)]
pub(super) struct MemberJob {
    pub(super) number: Option<u64>,
    pub(super) queue: QueueId,
    pub(super) value: u64,
}

/// The submissions to a queue that are not known to be over.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) newest: u64,
    /// Ascending and without gaps.
    pub(super) entries: VecDeque<MemberSubmission>,
    failed: HashMap<u64, Error>,
    /// The tickets that the next submission runs after.
    pub(super) before: Vec<Ticket>,
    /// The last job that submissions run after.
    pub(super) follows: u64,
}

/// The state of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// The device executes the request, under its own ticket.
    Direct(Ticket),
    /// The member's thread executes the request.
    Job,
    Over,
}

/// One submission.
#[derive(Debug)]
pub(super) struct MemberSubmission {
    pub(super) value: u64,
    pub(super) stand: Stand,
    /// The request, until the member's thread has executed it.
    pub(super) kept: Option<OwnedRequest>,
    pub(super) touches: AccessSet,
    /// The tickets of other queues that it runs after.
    pub(super) before: Vec<Ticket>,
    failure: Option<Error>,
    wakers: Vec<(Ticket, Waker)>,
}

/// Work that must end first.
#[derive(Debug)]
pub(super) enum Pending {
    Direct(Arc<dyn Device>, Ticket),
    Job,
}

/// Host memory that one device knows.
#[derive(Debug)]
pub(super) struct MemberStage {
    /// The device that knows it.
    pub(super) member: u64,
    device: Arc<dyn Device>,
    memory: Option<HostAllocation>,
}

impl MemberStage {
    pub(super) fn new(member: u64, device: Arc<dyn Device>, memory: HostAllocation) -> Self {
        Self { member, device, memory: Some(memory) }
    }

    pub(super) fn memory(&self) -> Option<&HostAllocation> {
        self.memory.as_ref()
    }
}

impl Drop for MemberStage {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.device.release_host(memory);
        }
    }
}

impl MemberQueue {
    pub(super) fn new(member: Member) -> Self {
        let state = MemberQueueState {
            member,
            queues: IdMap::default(),
            ended: IdMap::default(),
            buffers: IdMap::default(),
            hosts: IdMap::default(),
            jobs: VecDeque::new(),
            work: Arc::default(),
            newest_job: 0,
            done_job: 0,
            busy_queue: None,
            runs_job: false,
            is_waking: false,
            is_closed: false,
            has_ended: false,
            lost: None,
            missing_bytes: 0,
            stages: Vec::new(),
            due: Vec::new(),
            imported: HashSet::new(),
            of_lost: IdMap::default(),
            own: IdMap::default(),
        };
        Self { state: Mutex::new(state), done: Condvar::new(), parity: Mutex::new(()) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, MemberQueueState> {
        contended::lock(&self.state)
    }
}

impl Extents for MemberQueueState {
    fn device_bytes(&self, buffer: BufferId) -> Option<u64> {
        self.buffers.get(&buffer).copied()
    }

    fn host_bytes(&self, host: HostId) -> Option<u64> {
        self.hosts.get(&host).map(|host| host.bytes)
    }
}

impl MemberQueueState {
    /// Takes the next job, if no thread runs one.
    pub(super) fn take_job(&mut self) -> Option<MemberJob> {
        let job = if self.runs_job { None } else { self.jobs.pop_front() };
        self.runs_job |= job.is_some();
        job
    }

    /// Records the loss of the device, unless it has been replaced.
    pub(super) fn lose(&mut self, member: u64, error: &Error) {
        if self.member.id == member && self.member.is_there() {
            tracing::warn!(device = %self.member.device.info(), %error, "a device of a parity group is lost");
            self.member.status = MemberStatus::Lost;
            self.lost = Some(error.clone());
        }
    }

    /// The error if neither the device nor its substitute works.
    pub(super) fn lost_error(&self, operation: &'static str) -> Error {
        self.lost.clone().unwrap_or_else(|| Error::new(ErrorKind::Lost, operation))
    }

    /// Returns true if a ticket is done because its queue was released; an error if the queue has not issued
    /// it.
    pub(super) fn check_ticket(&self, operation: &'static str, ticket: Ticket) -> Result<bool> {
        let ended = self.ended.get(&ticket.queue).copied();
        let newest = ended.or_else(|| self.queues.get(&ticket.queue).map(|log| log.newest));
        let unknown = |detail: String| Error::new(ErrorKind::UnknownHandle, operation).with_detail(detail);
        match newest {
            Some(newest) if ticket.value <= newest => Ok(ended.is_some()),
            Some(_) => Err(unknown(format!("ticket {} was never issued", ticket.value))),
            None => Err(unknown("the queue is released, or belongs to another device".into())),
        }
    }

    /// Returns a submission that is not known to be over.
    pub(super) fn entry(&mut self, queue: QueueId, value: u64) -> Option<&mut MemberSubmission> {
        let entries = &mut self.queues.get_mut(&queue)?.entries;
        let first = entries.front()?.value;
        let entry = entries.get_mut(usize::try_from(value.checked_sub(first)?).ok()?)?;
        (entry.stand != Stand::Over).then_some(entry)
    }

    /// Returns the first submission of a queue, up to a value, that is not over, without polling the
    /// device.
    pub(super) fn first_open(&self, queue: QueueId, value: u64) -> Option<&MemberSubmission> {
        let mut entries = self.queues.get(&queue)?.entries.iter().take_while(|entry| entry.value <= value);
        entries.find(|entry| entry.stand != Stand::Over)
    }

    /// Adds a submission to its queue.
    pub(super) fn add(
        &mut self,
        queue: QueueId,
        stand: Stand,
        kept: OwnedRequest,
        touches: AccessSet,
    ) -> Option<Ticket> {
        let log = self.queues.get_mut(&queue)?;
        log.newest += 1;
        let (value, before) = (log.newest, mem::take(&mut log.before));
        let (failure, wakers) = (None, Vec::new());
        log.entries.push_back(MemberSubmission {
            value,
            stand,
            kept: Some(kept),
            touches,
            before,
            failure,
            wakers,
        });
        if stand == Stand::Job {
            self.newest_job += 1;
            log.follows = self.newest_job;
            self.jobs.push_back(MemberJob { number: Some(self.newest_job), queue, value });
            self.work.notify_one();
        }
        Some(Ticket { queue, value })
    }

    /// Records the outcome of a submission to the device. If it was lost with the device, the member's
    /// thread executes it before its other jobs.
    pub(super) fn end_direct(&mut self, queue: QueueId, value: u64, ticket: Ticket, outcome: Result<()>) {
        let member = self.member.id;
        let is_it = |entry: &MemberSubmission| entry.stand == Stand::Direct(ticket);
        if !self.entry(queue, value).is_some_and(|entry| is_it(entry)) {
            return;
        }
        match outcome {
            Err(error) if error.kind() == ErrorKind::Lost => {
                self.lose(member, &error);
                if let Some(entry) = self.entry(queue, value) {
                    entry.stand = Stand::Job;
                }
                self.jobs.push_front(MemberJob { number: None, queue, value });
                self.work.notify_one();
            }
            outcome => self.end(queue, value, outcome),
        }
    }

    /// Records the outcome of a submission.
    pub(super) fn end(&mut self, queue: QueueId, value: u64, outcome: Result<()>) {
        let Some(entry) = self.entry(queue, value) else { return };
        (entry.stand, entry.kept, entry.failure) = (Stand::Over, None, outcome.err());
        let wakers = mem::take(&mut entry.wakers);
        if !wakers.is_empty() {
            self.due.extend(wakers);
            self.work.notify_one();
        }
        let Some(log) = self.queues.get_mut(&queue) else { return };
        while let Some(entry) = log.entries.pop_front_if(|entry| entry.stand == Stand::Over) {
            log.failed.extend(entry.failure.map(|failure| (entry.value, failure)));
        }
    }

    /// Polls a queue up to a ticket. Returns the work to wait for, if any.
    pub(super) fn settle(&mut self, ticket: Ticket) -> Option<Pending> {
        loop {
            let entry = self.first_open(ticket.queue, ticket.value)?;
            let (value, Stand::Direct(part)) = (entry.value, entry.stand) else { return Some(Pending::Job) };
            let device = Arc::clone(&self.member.device);
            match device.poll(part) {
                Ok(QueueProgress::Pending) => return Some(Pending::Direct(device, part)),
                outcome => self.end_direct(ticket.queue, value, part, outcome.map(drop)),
            }
        }
    }

    /// Returns the first of all unfinished submissions that meet a condition.
    pub(super) fn find(
        &mut self,
        is_wanted: impl Fn(&MemberSubmission) -> bool,
    ) -> Option<(Ticket, Pending)> {
        loop {
            let is_open = |entry: &&MemberSubmission| entry.stand != Stand::Over && is_wanted(entry);
            let found = self.queues.iter().find_map(|(queue, log)| {
                let value = log.entries.iter().find(is_open)?.value;
                Some(Ticket { queue: *queue, value })
            });
            let ticket = found?;
            if let Some(pending) = self.settle(ticket) {
                return Some((ticket, pending));
            }
        }
    }

    /// Returns the outcome of a ticket after all work up to it is over.
    pub(super) fn outcome(&self, ticket: Ticket) -> Result<()> {
        let Some(log) = self.queues.get(&ticket.queue) else { return Ok(()) };
        let entry = log.entries.iter().find(|entry| entry.value == ticket.value);
        let failure =
            entry.and_then(|entry| entry.failure.as_ref()).or_else(|| log.failed.get(&ticket.value));
        failure.map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Wakes a waker when the thread's first submission up to its ticket is over.
    pub(super) fn wake_later(&mut self, ticket: Ticket, waker: Waker) {
        let value = self.first_open(ticket.queue, ticket.value).map(|entry| entry.value);
        let entry = value.and_then(|value| self.entry(ticket.queue, value));
        match entry {
            Some(entry) => entry.wakers.push((ticket, waker)),
            None => self.due.push((ticket, waker)),
        }
    }
}
