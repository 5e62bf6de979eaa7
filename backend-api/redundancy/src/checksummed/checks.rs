//! Pending verifications of checksums: the [`Checksummed`](super::Checksummed) device verifies data when the
//! copy of the data to the host has ended.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use twox_hash::XxHash3_64;

use super::table::{ChecksumTable, UnitWord};
use crate::access_set::Ranges;
use backend_api::{DeviceInfo, Error, ErrorKind, HostId, QueueId, Result, Ticket, racy};

/// A range of host memory, by its address.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostBytes {
    pub(super) address: NonNull<u8>,
    pub(super) bytes: usize,
}

// SAFETY: the address is used only while the memory exists, by functions for memory that other code
// accesses.
unsafe impl Send for HostBytes {}
// SAFETY: as above.
unsafe impl Sync for HostBytes {}

impl HostBytes {
    /// Returns the range of `bytes` bytes at `offset` in this range; `None` if it ends outside.
    pub(super) fn part(&self, offset: u64, bytes: u64) -> Option<Self> {
        let (start, bytes) = (usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?);
        let is_inside = start.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        // SAFETY: inside of the memory, by the check above.
        is_inside.then(|| Self { address: unsafe { self.address.add(start) }, bytes })
    }

    /// Copies the current bytes of the range to `buffer`.
    ///
    /// # Safety
    /// The memory exists.
    pub(super) unsafe fn read<'b>(&self, buffer: &'b mut Vec<u8>) -> &'b [u8] {
        buffer.resize(self.bytes, 0);
        // SAFETY: the memory exists and has this length, by the caller's promise; other code may write to
        // it.
        unsafe { racy::read(self.address.as_ptr(), buffer) };
        buffer
    }
}

pub(super) fn checksum(bytes: &[u8]) -> u64 {
    // Avoid 0, because a stored 0 marks an unknown checksum.
    XxHash3_64::oneshot(bytes).max(1)
}

/// A whole unit that a submission copies to host memory, or writes by a copy within device memory.
#[derive(Debug)]
pub(super) struct WholeUnit {
    pub(super) table: Arc<ChecksumTable>,
    pub(super) unit: u64,
    /// The unit's checksum when the work was submitted, or as set later.
    pub(super) word: UnitWord,
    /// If the submission copies the unit to the host: the target in host memory.
    pub(super) to: Option<(HostId, Range<u64>, HostBytes)>,
}

/// The verification to make when a submission's work is done.
#[derive(Debug)]
pub(super) struct PendingVerification {
    /// The units to verify. A thread holds the lock while it compares them.
    parts: Mutex<Vec<WholeUnit>>,
    host_writes: Ranges<HostId>,
    outcome: OnceLock<Result<()>>,
}

impl PendingVerification {
    pub(super) fn new(parts: Vec<WholeUnit>, host_writes: Ranges<HostId>) -> Self {
        Self { parts: Mutex::new(parts), host_writes, outcome: OnceLock::new() }
    }

    /// Returns true if there are neither units to verify nor ranges of host memory that the work writes.
    pub(super) fn is_nothing(&mut self) -> bool {
        self.parts.get_mut().is_empty() && self.host_writes.iter().next().is_none()
    }

    /// Returns true if a unit that is not yet verified meets the condition.
    pub(super) fn concerns(&self, holds: impl Fn(&WholeUnit) -> bool) -> bool {
        self.parts.lock().iter().any(holds)
    }

    /// Marks the checksums of the written units as unknown, after a failure.
    pub(super) fn forget(&self) {
        for part in self.parts.lock().iter().filter(|part| part.to.is_none()) {
            part.table.replace(part.unit, part.word, 0);
        }
    }

    /// Verifies the units. If several threads call it, one thread verifies for all.
    fn compare(&self, device: &DeviceInfo) -> Result<()> {
        let mut parts = self.parts.lock();
        if let Some(outcome) = self.outcome.get() {
            return outcome.clone();
        }
        let (mut buffer, mut outcome) = (Vec::new(), Ok(()));
        for WholeUnit { table, unit, word, to } in parts.drain(..) {
            let Some((_, _, place)) = to else { continue };
            // SAFETY: the release of host memory waits until its parts are verified.
            let sum = checksum(unsafe { place.read(&mut buffer) });
            if word.sum == 0 {
                table.replace(unit, word, sum);
            } else if sum != word.sum && outcome.is_ok() {
                outcome = Err(corrupted(unit, table.unit_bytes).on(device));
            }
        }
        self.outcome.get_or_init(|| outcome).clone()
    }
}

fn corrupted(unit: u64, unit_bytes: u64) -> Error {
    Error::new(ErrorKind::Corrupted, "submit")
        .with_offset(unit * unit_bytes)
        .with_bytes(unit_bytes)
        .with_detail(format!("unit {unit} of this memory differs from the data that was written"))
        .with_advice("write the whole unit again, and replace the device if the error occurs again")
}

/// The submissions of one queue that may need verification.
#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<u64, Arc<PendingVerification>>,
    failed: HashMap<u64, Error>,
    /// For each other queue: its newest ticket after which this queue's work runs.
    after: HashMap<QueueId, u64>,
}

/// All submissions that may need verification.
#[derive(Debug, Default)]
pub(super) struct Checks(Mutex<HashMap<QueueId, Queue>>);

impl Checks {
    pub(super) fn add(&self, ticket: Ticket, check: PendingVerification) {
        self.0.lock().entry(ticket.queue).or_default().waiting.insert(ticket.value, Arc::new(check));
    }

    /// Records that all later work of a queue runs after a ticket.
    pub(super) fn order_after(&self, queue: QueueId, ticket: Ticket) {
        let mut queues = self.0.lock();
        let newest = queues.entry(queue).or_default().after.entry(ticket.queue).or_default();
        *newest = ticket.value.max(*newest);
    }

    pub(super) fn end_queue(&self, queue: QueueId) {
        self.0.lock().remove(&queue);
    }

    /// Returns the tickets of unfinished submissions that meet the condition.
    pub(super) fn waiting(&self, holds: impl Fn(QueueId, &PendingVerification) -> bool) -> Vec<Ticket> {
        let queues = self.0.lock();
        let all = queues.iter().flat_map(|(queue, of)| {
            let held = of.waiting.iter().filter(|(_, check)| holds(*queue, check));
            held.map(|(value, _)| Ticket { queue: *queue, value: *value })
        });
        all.collect()
    }

    /// Returns true if unfinished work writes to ranges of host memory.
    pub(super) fn writes_to(&self, ranges: &Ranges<HostId>) -> bool {
        let queues = self.0.lock();
        let mut checks = queues.values().flat_map(|queue| queue.waiting.values());
        checks.any(|check| check.host_writes.overlap(ranges))
    }

    /// Cancels verifications that read ranges of host memory to which new work will write. Waits for running
    /// verifications of these ranges.
    pub(super) fn supersede(&self, ranges: &Ranges<HostId>) {
        let concerned: Vec<Arc<PendingVerification>> = {
            let queues = self.0.lock();
            let checks = queues.values().flat_map(|queue| queue.waiting.values());
            checks.filter(|check| check.host_writes.overlap(ranges)).map(Arc::clone).collect()
        };
        for check in concerned {
            let is_kept =
                |part: &WholeUnit| part.to.as_ref().is_none_or(|(host, at, _)| !ranges.meet(*host, at));
            check.parts.lock().retain(is_kept);
        }
    }

    /// Verifies the data of a finished ticket, and of all work that has ended with it. Returns the ticket's
    /// outcome. `has_failed` polls the device for a ticket, and returns `None` if the ticket is pending.
    pub(super) fn settle(
        &self,
        ticket: Ticket,
        device: &DeviceInfo,
        has_failed: impl Fn(Ticket) -> Option<bool>,
    ) -> Result<()> {
        // A caller that observes a ticket may read the results of all earlier work, so verify all these
        // results.
        let (mut open, mut seen) = (vec![ticket], Vec::<Ticket>::new());
        while let Some(Ticket { queue, value }) = open.pop() {
            let (due, after) = {
                let queues = self.0.lock();
                let Some(of) = queues.get(&queue) else { continue };
                let due = of.waiting.range(..=value).map(|(value, check)| (*value, Arc::clone(check)));
                let after = of.after.iter().map(|(queue, value)| Ticket { queue: *queue, value: *value });
                (due.collect::<Vec<_>>(), after.collect::<Vec<_>>())
            };
            for (value, check) in due {
                let Some(has_failed) = has_failed(Ticket { queue, value }) else { break };
                let outcome = if has_failed {
                    // Discard the work's failure here, because the next poll of the ticket returns the
                    // failure.
                    check.forget();
                    Ok(())
                } else {
                    check.compare(device)
                };
                let mut queues = self.0.lock();
                if let Some(of) = queues.get_mut(&queue)
                    && of.waiting.remove(&value).is_some()
                    && let Err(error) = outcome
                {
                    of.failed.insert(value, error);
                }
            }
            seen.push(Ticket { queue, value });
            let is_seen = |before: &Ticket| {
                seen.iter().any(|seen| seen.queue == before.queue && seen.value >= before.value)
            };
            open.extend(after.into_iter().filter(|before| !is_seen(before)));
        }
        let queues = self.0.lock();
        let failed = queues.get(&ticket.queue).and_then(|of| of.failed.get(&ticket.value));
        failed.map_or(Ok(()), |error| Err(error.clone()))
    }
}
