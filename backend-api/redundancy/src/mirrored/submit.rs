//! Submission of a mirror's requests: reads go to one device, writes to each device.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::core::MirrorCore;
use super::member::{Adapted, Member, MemberStatus};
use super::pending_requests::OwnedRequest;
use super::rebuild::CopyEnd;
use super::state::{MemberPart, MirrorState, MirrorSubmission};
use super::wakers::DeferringCall;
use crate::access_set::{AccessSet, Effect};
use backend_api::kernel::{Access, Report, Space};
use backend_api::{
    BufferId, DeviceKind, Error, ErrorKind, HostMemory, QueueHandle, QueueId, Request, Result, Ticket,
    Transfer,
};

/// Number of unobserved submissions in a queue from which each new submission polls them.
const LOOK_FROM: usize = 64;

impl MirrorCore {
    /// Locks the mirror for a submission. First waits until no copy from device to device runs.
    fn enter(&self) -> MutexGuard<'_, MirrorState> {
        let mut state = self.lock();
        if state.is_closed {
            state.waiting += 1;
            while state.is_closed {
                self.opened.wait(&mut state);
            }
            state.waiting -= 1;
            if state.waiting == 0 {
                self.opened.notify_all();
            }
        }
        state
    }

    pub(super) fn start(self: &Arc<Self>, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let _call = DeferringCall::begin();
        let id = queue.id();
        let mut state = self.enter();
        let touches = loop {
            if !state.queues.contains_key(&id) {
                return Err(self.unknown(
                    request.operation(),
                    "the queue is released, or belongs to another \
                        device",
                ));
            }
            request.check(&*state).map_err(|error| error.on(&self.info))?;
            let touches = AccessSet::of(request);
            let Some(part) = state.find_part(|entry| touches.must_follow(&entry.touches)) else {
                // On every device except the first, the launch writes its report to separate host memory.
                let reports = if matches!(request, Request::Launch(_)) { state.members.len() } else { 0 };
                if state.spare_reports.len() >= reports {
                    break touches;
                }
                drop(state);
                let report = self.allocate_host(Report::BYTES as usize, HostMemory::Pageable)?;
                state = self.enter();
                state.spare_reports.push(report);
                continue;
            };
            drop(state);
            let _ = part.device.wait(part.ticket);
            state = self.enter();
        };
        if state.queues.get(&id).is_some_and(|log| log.entries.len() >= LOOK_FROM) {
            let newest = state.queues[&id].newest;
            let _ = state.settle_up_to(id, newest);
        }
        let mut entry = MirrorSubmission::new(request.operation(), touches);
        let behind = if entry.touches.effect == Effect::Read {
            self.begin_read(&mut state, id, request, &mut entry)?;
            Vec::new()
        } else {
            self.begin_write(&mut state, id, request, &mut entry)?
        };
        let ranges: Vec<_> =
            if behind.is_empty() { Vec::new() } else { entry.touches.writes.iter().cloned().collect() };
        let first = entry.parts.first().cloned();
        let Some(log) = state.queues.get_mut(&id) else {
            return Err(self.unknown(
                request.operation(),
                "the queue is released, or belongs to another \
                    device",
            ));
        };
        log.newest += 1;
        entry.value = log.newest;
        let ticket = Ticket { queue: id, value: log.newest };
        log.entries.push_back(entry);
        if let Some(first) = first.filter(|_| !behind.is_empty()) {
            state.is_closed = true;
            drop(state);
            self.copy_results(ticket, &first, &behind, &ranges);
            self.open();
        }
        Ok(ticket)
    }

    fn begin_read(
        &self,
        state: &mut MirrorState,
        queue: QueueId,
        request: &Request<'_>,
        entry: &mut MirrorSubmission,
    ) -> Result<()> {
        begin_on(MirrorState::least_busy, state, queue, request, entry)?;
        if state.members.iter().filter(|member| member.is_there()).count() > 1 {
            // SAFETY: memory is released after the entries that touch it are over, and the kept request ends
            // with its entry.
            entry.kept = Some(unsafe { OwnedRequest::new(request) });
        }
        Ok(())
    }

    /// Starts a request that writes. Returns the devices that must receive copies of the written data.
    fn begin_write(
        &self,
        state: &mut MirrorState,
        queue: QueueId,
        request: &Request<'_>,
        entry: &mut MirrorSubmission,
    ) -> Result<Vec<u64>> {
        let first = begin_on(MirrorState::primary, state, queue, request, entry)?;
        if let Request::Copies(transfers, route) = *request {
            let is_download = |transfer: &&Transfer<'_>| matches!(transfer, Transfer::Download { .. });
            let downloads: Vec<_> = transfers.iter().filter(is_download).copied().collect();
            if !downloads.is_empty() {
                // SAFETY: as above.
                entry.kept = Some(unsafe { OwnedRequest::new(&Request::Copies(&downloads, route)) });
            }
        }
        if let Request::Launch(launch) = request {
            entry.report = Some((launch.report.host(), launch.report.offset()));
        }
        let ranges = || -> Vec<(BufferId, Range<u64>)> { entry.touches.writes.iter().cloned().collect() };
        let (effect, ranges) = (entry.touches.effect, ranges());
        let mut behind = Vec::new();
        for at in 0..state.members.len() {
            let (id, status) = (state.members[at].id, state.members[at].status);
            if id == first || !state.members[at].is_there() {
                continue;
            }
            if status == MemberStatus::Rebuilding && effect == Effect::FromDevice {
                // A device that is being rebuilt may lack data that the request reads. So record the results
                // as missing on this device, too.
                state.add_missing(id, ranges.clone());
                continue;
            }
            let is_first = |member: &&Member| member.id == first;
            let is_repeatable = effect == Effect::FromHost
                || state
                    .members
                    .iter()
                    .find(is_first)
                    .is_some_and(|one| is_repeatable(request, one, &state.members[at]));
            if !is_repeatable {
                behind.push(id);
                continue;
            }
            let report = entry.report.and_then(|_| state.spare_reports.pop());
            let adapted = Adapted { is_repeated: true, report: report.as_ref().map(|report| report.at(0)) };
            match state.members[at].start(queue, request, adapted) {
                Ok(ticket) => {
                    entry.reports.extend(report.map(|report| (id, report)));
                    state.begin_part(entry, id, ticket);
                }
                Err(error) => {
                    state.spare_reports.extend(report);
                    if error.kind() == ErrorKind::Lost {
                        state.lose(id, &error);
                    } else if status == MemberStatus::Rebuilding {
                        state.add_missing(id, ranges.clone());
                    } else {
                        behind.push(id);
                    }
                }
            }
        }
        Ok(behind)
    }

    /// Waits for the work of one device, and copies its results to other devices. Submissions wait meanwhile.
    fn copy_results(
        &self,
        ticket: Ticket,
        first: &MemberPart,
        behind: &[u64],
        ranges: &[(BufferId, Range<u64>)],
    ) {
        // Return only if the device is lost, because its results are then unreadable. Copy after other errors
        // too: the memory must be equal on all devices. The request's ticket reports these errors.
        if first.device.wait(first.ticket).is_err_and(|error| error.kind() == ErrorKind::Lost) {
            return;
        }
        for target in behind {
            for (buffer, range) in ranges {
                match self.copy(first.member, *target, *buffer, range.clone()) {
                    CopyEnd::Copied => {}
                    CopyEnd::TargetLost => break,
                    CopyEnd::SourceLost => {
                        // The first device is lost before all results are copied, so the request fails.
                        self.lock().fail(ticket);
                        return;
                    }
                }
            }
        }
    }

    /// Lets submissions begin again.
    pub(super) fn open(&self) {
        self.lock().is_closed = false;
        self.opened.notify_all();
    }

    pub(super) fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        const OPERATION: &str = "order_after";
        let (_call, id) = (DeferringCall::begin(), queue.id());
        let mut state = self.enter();
        if !state.queues.contains_key(&id) {
            return Err(self.unknown(OPERATION, "the queue is released, or belongs to another device"));
        }
        if self.check_ticket(&state, OPERATION, ticket)? {
            return Ok(());
        }
        if state.settle_up_to(ticket.queue, ticket.value).is_none() {
            return Ok(());
        }
        let mut before = Vec::new();
        for at in 0..state.members.len() {
            let member = &state.members[at];
            if !member.is_there() {
                continue;
            }
            match order_member(&state, member, id, ticket) {
                Ok(part) => before.push(part),
                Err(error) if error.kind() == ErrorKind::Lost => {
                    let id = member.id;
                    state.lose(id, &error);
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(log) = state.queues.get_mut(&id) {
            log.entries.push_back(MirrorSubmission::order(log.newest + 1, before));
        }
        state.primary().map(drop).ok_or_else(|| state.all_lost(OPERATION))
    }
}

/// Orders a device's queue after the work of the same device up to a ticket.
fn order_member(state: &MirrorState, member: &Member, queue: QueueId, ticket: Ticket) -> Result<MemberPart> {
    let unknown = || {
        Error::new(ErrorKind::UnknownHandle, "order_after")
            .with_detail("the queue is released, or belongs to another device")
    };
    let entries = state.queues.get(&ticket.queue).map(|log| &log.entries);
    // Search from the newest entry: an `order_after` with the same number comes before the submission.
    let entry = entries.and_then(|entries| entries.iter().rev().find(|entry| entry.value == ticket.value));
    let own = entry.and_then(|entry| entry.parts.iter().find(|part| part.member == member.id));
    let before = match own {
        Some(part) => part.ticket,
        // The submission ran only on other devices. Nevertheless wait for this device's earlier work in the
        // queue, and for the queue's orders after other queues.
        None => {
            let queue = member.queues.get(&ticket.queue).ok_or_else(unknown)?;
            member.device.submit(queue, &Request::Copies(&[], None))?
        }
    };
    member.device.order_after(member.queues.get(&queue).ok_or_else(unknown)?, before)?;
    Ok(MemberPart { member: member.id, device: Arc::clone(&member.device), ticket: before })
}

/// Returns true if a request that reads device memory produces the same bytes on two devices.
fn is_repeatable(request: &Request<'_>, first: &Member, other: &Member) -> bool {
    let [one, two] = [first, other].map(|member| member.device.info());
    // Devices that compute on the CPU give equal results. So do GPUs of one model with equal drivers.
    let on_host = |kind| matches!(kind, DeviceKind::HostMemory | DeviceKind::File | DeviceKind::Simulated);
    let are_alike = one.backend == two.backend
        && one.driver == two.driver
        && (one.name == two.name || on_host(one.kind) && on_host(two.kind));
    match request {
        // Copies do not compute, so their results are equal on all devices.
        Request::Copies(..) => true,
        Request::Launch(launch) => {
            let body = launch.kernel.body();
            // The results of atomics, appends and groups may depend on the order of items (threads).
            let is_open =
                body.views.iter().any(|view| matches!(view.access, Access::Atomic | Access::Append))
                    || body.arrays.iter().any(|array| array.space == Space::Group);
            are_alike && !is_open
        }
        _ => are_alike,
    }
}

/// Starts a request on the device that `choose` returns. If that device is lost, calls `choose` again.
/// Returns the device's id.
fn begin_on(
    choose: fn(&MirrorState) -> Option<u64>,
    state: &mut MirrorState,
    queue: QueueId,
    request: &Request<'_>,
    entry: &mut MirrorSubmission,
) -> Result<u64> {
    loop {
        let Some(id) = choose(state) else { return Err(state.all_lost(request.operation())) };
        let Some(member) = state.member(id) else { continue };
        match member.start(queue, request, Adapted::default()) {
            Err(error) if error.kind() == ErrorKind::Lost => state.lose(id, &error),
            Err(error) => return Err(error),
            Ok(ticket) => {
                state.begin_part(entry, id, ticket);
                return Ok(id);
            }
        }
    }
}
