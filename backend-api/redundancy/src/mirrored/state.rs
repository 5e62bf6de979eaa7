//! The state of a mirror: its submissions in flight on each device, their outcomes, and its memory.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use super::host::Host;
use super::member::{Adapted, Member, MemberStatus};
use super::pending_requests::OwnedRequest;
use crate::access_set::AccessSet;
use backend_api::kernel::Report;
use backend_api::{
    BufferHandle, BufferId, Commit, Device, Error, ErrorKind, Extents, HostAllocation, HostId, QueueId,
    QueueProgress, Result, Ticket, racy,
};
use vmarray_support::IdMap;

/// The execution of a submission on one device.
#[derive(Clone, Debug)]
pub(super) struct MemberPart {
    pub(super) member: u64,
    pub(super) device: Arc<dyn Device>,
    pub(super) ticket: Ticket,
}

/// One submission to a queue of a mirror.
#[derive(Debug)]
pub(super) struct MirrorSubmission {
    pub(super) value: u64,
    /// True for an entry of `order_after`: the next submission runs after it. The work before it may be done
    /// on one device and in flight on another, and so may its reads of host memory.
    is_order: bool,
    pub(super) operation: &'static str,
    pub(super) touches: AccessSet,
    /// The executions in flight, one per device.
    pub(super) parts: Vec<MemberPart>,
    /// A copy of the request, which another device repeats if the executing device is lost.
    pub(super) kept: Option<OwnedRequest>,
    /// The program's host memory for the report of a launch, and separate memory for the reports of all
    /// devices except the first.
    pub(super) report: Option<(HostId, u64)>,
    pub(super) reports: Vec<(u64, HostAllocation)>,
    /// Ids of the devices that have executed the submission.
    pub(super) done: Vec<u64>,
    lost: Option<Error>,
    failure: Option<Error>,
    /// The result of the submission; set when no execution is in flight.
    pub(super) outcome: Option<Result<()>>,
}

impl MirrorSubmission {
    pub(super) fn new(operation: &'static str, touches: AccessSet) -> Self {
        let (parts, reports, done) = (Vec::new(), Vec::new(), Vec::new());
        let (kept, report, lost, failure, outcome) = (None, None, None, None, None);
        Self {
            value: 0,
            is_order: false,
            operation,
            touches,
            parts,
            kept,
            report,
            reports,
            done,
            lost,
            failure,
            outcome,
        }
    }

    /// Creates an entry of `order_after`, which comes before the submission with the number `value`.
    pub(super) fn order(value: u64, parts: Vec<MemberPart>) -> Self {
        let touches = AccessSet::default();
        Self { value, is_order: true, parts, ..Self::new("order_after", touches) }
    }
}

/// The submissions to a queue whose end the mirror has not yet observed.
#[derive(Debug, Default)]
pub(super) struct QueueLog {
    pub(super) newest: u64,
    pub(super) entries: VecDeque<MirrorSubmission>,
    failed: HashMap<u64, Error>,
}

/// The length of a buffer in bytes and, if it is extensible, its maximum length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Length {
    pub(super) bytes: u64,
    pub(super) most: Option<u64>,
}

impl Length {
    /// Allocates a buffer of this length on a device.
    pub(super) fn allocate(self, device: &dyn Device, commit: Commit) -> Result<BufferHandle> {
        match self.most {
            None => device.allocate(self.bytes, commit),
            Some(most) => device.allocate_extensible(self.bytes, most, commit),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct MirrorState {
    pub(super) members: Vec<Member>,
    pub(super) queues: IdMap<QueueId, QueueLog>,
    /// For each released queue, its newest ticket.
    pub(super) ended: IdMap<QueueId, u64>,
    pub(super) buffers: IdMap<BufferId, Length>,
    pub(super) hosts: IdMap<HostId, Host>,
    /// Unused host memory for launch reports; each allocation has one report.
    pub(super) spare_reports: Vec<HostAllocation>,
    /// The intermediate host memory for copies from device to device.
    pub(super) bounce: Option<HostAllocation>,
    /// The error of the loss of the last device.
    pub(super) lost: Option<Error>,
    /// True while a thread copies from device to device. Submissions wait in the meantime.
    pub(super) is_closed: bool,
    /// The number of submissions that wait until `is_closed` is false.
    pub(super) waiting: usize,
}

impl Extents for MirrorState {
    fn device_bytes(&self, buffer: BufferId) -> Option<u64> {
        self.buffers.get(&buffer).map(|length| length.bytes)
    }

    fn host_bytes(&self, host: HostId) -> Option<u64> {
        self.hosts.get(&host).map(|host| host.bytes)
    }
}

impl MirrorState {
    pub(super) fn new(members: Vec<Member>) -> Self {
        Self { members, ..Self::default() }
    }

    pub(super) fn member(&mut self, id: u64) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.id == id)
    }

    /// Returns the working devices.
    pub(super) fn devices(&self) -> Vec<(u64, Arc<dyn Device>)> {
        let there = self.members.iter().filter(|member| member.is_there());
        there.map(|member| (member.id, Arc::clone(&member.device))).collect()
    }

    /// Records the loss of a device, and its error.
    pub(super) fn lose(&mut self, id: u64, error: &Error) {
        if let Some(member) = self.member(id)
            && member.is_there()
        {
            tracing::warn!(device = %member.device.info(), %error, "a device of a mirror is lost");
            member.status = MemberStatus::Lost;
            member.missing = Vec::new();
            self.lost = Some(error.clone());
        }
    }

    /// Returns the error of calls if no device has all data.
    pub(super) fn all_lost(&self, operation: &'static str) -> Error {
        self.lost.clone().unwrap_or_else(|| Error::new(ErrorKind::Lost, operation))
    }

    /// Returns the first device that has all data.
    pub(super) fn primary(&self) -> Option<u64> {
        self.members.iter().find(|member| member.is_current()).map(|member| member.id)
    }

    /// Returns the least busy device that has all data; of several, the first. Mirrors of the same devices
    /// list them in different orders, so one request to each mirror keeps all devices busy.
    pub(super) fn least_busy(&self) -> Option<u64> {
        let current = self.members.iter().filter(|member| member.is_current());
        current.min_by_key(|member| member.busy_bytes).map(|member| member.id)
    }

    /// Adds the execution that a device has begun to a submission.
    pub(super) fn begin_part(&mut self, entry: &mut MirrorSubmission, id: u64, ticket: Ticket) {
        let bytes = entry.touches.bytes();
        if let Some(member) = self.member(id) {
            member.busy_bytes += bytes;
            entry.parts.push(MemberPart { member: id, device: Arc::clone(&member.device), ticket });
        }
    }

    /// Polls the submissions of a queue up to a ticket. Returns the first execution that is still pending.
    pub(super) fn settle_up_to(&mut self, queue: QueueId, value: u64) -> Option<MemberPart> {
        let mut entries = mem::take(&mut self.queues.get_mut(&queue)?.entries);
        let mut pending = None;
        for entry in entries.iter_mut().take_while(|entry| entry.value <= value) {
            self.settle(queue, entry);
            if entry.outcome.is_none() {
                pending = entry.parts.first().cloned();
                break;
            }
        }
        let log = self.queues.get_mut(&queue)?;
        while let Some(MirrorSubmission { value: of, outcome: Some(outcome), .. }) = entries.front() {
            // Keep later tickets, because the copies of their results to other devices may still fail.
            if *of > value {
                break;
            }
            if let Err(error) = outcome {
                log.failed.insert(*of, error.clone());
            }
            entries.pop_front();
        }
        log.entries = entries;
        pending
    }

    /// Returns the outcome of a ticket when all submissions up to it are done.
    pub(super) fn outcome(&self, ticket: Ticket) -> Result<()> {
        let failure = self.queues.get(&ticket.queue).and_then(|log| log.failed.get(&ticket.value));
        failure.map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Polls the executions of a submission. If a device is lost, another device repeats the work.
    fn settle(&mut self, queue: QueueId, entry: &mut MirrorSubmission) {
        while entry.outcome.is_none() {
            let mut at = 0;
            while let Some(part) = entry.parts.get(at) {
                match part.device.poll(part.ticket) {
                    Ok(QueueProgress::Pending) => at += 1,
                    outcome => {
                        let part = entry.parts.remove(at);
                        self.end_part(entry, &part, outcome.map(drop));
                    }
                }
            }
            if !entry.parts.is_empty() {
                return;
            }
            // `None` means that another device now executes this submission.
            if let Some(outcome) = self.ask_another(queue, entry) {
                self.end_entry(entry, outcome);
            }
        }
    }

    fn end_part(&mut self, entry: &mut MirrorSubmission, part: &MemberPart, outcome: Result<()>) {
        let bytes = entry.touches.bytes();
        if let Some(member) = self.member(part.member) {
            member.busy_bytes = member.busy_bytes.saturating_sub(bytes);
        }
        match outcome {
            Ok(()) => entry.done.push(part.member),
            Err(error) if error.kind() == ErrorKind::Lost => {
                self.lose(part.member, &error);
                entry.lost = Some(error);
            }
            // After a failure the contents are unspecified, and may differ between devices.
            Err(error) => entry.failure = Some(error),
        }
    }

    /// Returns the outcome of a submission that no device executes; `None` if a device now executes it again.
    fn ask_another(&mut self, queue: QueueId, entry: &mut MirrorSubmission) -> Option<Result<()>> {
        if entry.is_order {
            return Some(Ok(()));
        }
        if let Some(failure) = entry.failure.take() {
            return Some(Err(failure));
        }
        if entry.lost.is_none() {
            return Some(Ok(()));
        }
        let Some(kept) = entry.kept.take() else {
            let is_done = !entry.done.is_empty();
            return Some(if is_done { Ok(()) } else { Err(self.lost_work(entry)) });
        };
        let started = loop {
            let Some(id) = self.least_busy() else { break Err(self.all_lost(entry.operation)) };
            let Some(member) = self.member(id) else { continue };
            match kept.with(|request| member.start(queue, request, Adapted::default())) {
                Err(error) if error.kind() == ErrorKind::Lost => self.lose(id, &error),
                other => break other.map(|ticket| (id, ticket)),
            }
        };
        match started {
            Ok((id, ticket)) => {
                (entry.kept, entry.lost) = (Some(kept), None);
                self.begin_part(entry, id, ticket);
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Returns the error for work if a lost device had the only results.
    fn lost_work(&self, entry: &MirrorSubmission) -> Error {
        if self.primary().is_none() {
            return entry.lost.clone().unwrap_or_else(|| self.all_lost(entry.operation));
        }
        lost_results(entry.operation)
    }

    fn end_entry(&mut self, entry: &mut MirrorSubmission, outcome: Result<()>) {
        let reports = mem::take(&mut entry.reports);
        if let Some((host, offset)) = entry.report
            && outcome.is_ok()
        {
            // The first device writes its report to the host memory that the program named. If this device is
            // lost, the mirror copies another device's report there.
            let is_written = entry.done.iter().any(|id| reports.iter().all(|(other, _)| other != id));
            let other = reports.iter().find(|(id, _)| !is_written && entry.done.contains(id));
            if let (Some((_, report)), Some(target)) = (other, self.hosts.get(&host)) {
                let mut bytes = [0; Report::BYTES as usize];
                // SAFETY: the place has a report's length and is in memory that the mirror owns; all work
                // on it is over.
                unsafe { racy::read(report.address().as_ptr(), &mut bytes) };
                let to = std::ptr::with_exposed_provenance_mut::<u8>(target.address + offset as usize);
                // SAFETY: the request was checked, so the report is in memory that exists until its
                // release, which waits for this entry; accesses of its owner are tolerated.
                unsafe { racy::write(to, &bytes) };
            }
        }
        self.spare_reports.extend(reports.into_iter().map(|(_, report)| report));
        entry.kept = None;
        entry.outcome = Some(outcome);
    }

    /// Returns the first pending execution of a submission that meets a condition.
    pub(super) fn find_part(&mut self, is_wanted: impl Fn(&MirrorSubmission) -> bool) -> Option<MemberPart> {
        loop {
            let mut found = None;
            for (queue, log) in &self.queues {
                let wanted = |entry: &MirrorSubmission| entry.outcome.is_none() && is_wanted(entry);
                if let Some(at) = log.entries.iter().position(wanted) {
                    found = Some((*queue, at));
                    break;
                }
            }
            let (queue, at) = found?;
            let mut entries = mem::take(&mut self.queues.get_mut(&queue)?.entries);
            let pending = entries.get_mut(at).and_then(|entry| {
                self.settle(queue, entry);
                entry.parts.first().cloned()
            });
            self.queues.get_mut(&queue)?.entries = entries;
            if pending.is_some() {
                return pending;
            }
        }
    }

    /// Returns the newest ticket of each of a device's queues with work in flight.
    pub(super) fn newest_parts(&self, id: u64) -> Vec<Ticket> {
        let newest = |log: &QueueLog| {
            // Skip entries of `order_after`, because their parts belong to other queues.
            let own = log.entries.iter().rev().filter(|entry| !entry.is_order);
            let parts = own.flat_map(|entry| &entry.parts);
            parts.into_iter().find(|part| part.member == id).map(|part| part.ticket)
        };
        self.queues.values().filter_map(newest).collect()
    }

    /// Marks a submission as failed because its results are lost. No caller has observed its outcome yet.
    pub(super) fn fail(&mut self, ticket: Ticket) {
        let log = self.queues.get_mut(&ticket.queue);
        let is_it = |entry: &&mut MirrorSubmission| entry.value == ticket.value && !entry.is_order;
        let entry = log.and_then(|log| log.entries.iter_mut().find(is_it));
        if let Some(entry) = entry {
            entry.outcome = Some(Err(lost_results(entry.operation)));
        }
    }

    /// Records ranges that a device still needs during a rebuild.
    pub(super) fn add_missing(&mut self, id: u64, ranges: Vec<(BufferId, Range<u64>)>) {
        if let Some(member) = self.member(id) {
            member.missing.extend(ranges);
        }
    }
}

/// Returns the error for work whose only executing device was lost, while other devices still work.
fn lost_results(operation: &'static str) -> Error {
    Error::new(ErrorKind::KernelFailed, operation)
        .with_detail("the device was lost before its results were copied to another device")
        .with_advice("write the targets of this request again: their contents are unspecified")
}
