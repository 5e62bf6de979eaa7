//! What is to be compared when work is done, and who waits for that.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use twox_hash::XxHash3_64;

use super::table::{Table, Word};
use crate::wrap::several::touches::Ranges;
use crate::{DeviceInfo, Error, ErrorKind, HostId, QueueId, Result, Ticket, racy};

/// A piece of host memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostPlace {
    pub(super) address: NonNull<u8>,
    pub(super) bytes: usize,
}

// SAFETY: the address is reached only while the memory is there, by functions for memory that others see.
unsafe impl Send for HostPlace {}
// SAFETY: as above.
unsafe impl Sync for HostPlace {}

impl HostPlace {
    /// A part of it, if it is inside of it.
    pub(super) fn part(&self, offset: u64, bytes: u64) -> Option<Self> {
        let (start, bytes) = (usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?);
        let is_inside = start.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        // SAFETY: inside of the memory, which was just compared.
        is_inside.then(|| Self { address: unsafe { self.address.add(start) }, bytes })
    }

    /// Its bytes as they are now.
    ///
    /// # Safety
    /// The memory is there.
    pub(super) unsafe fn read<'b>(&self, buffer: &'b mut Vec<u8>) -> &'b [u8] {
        buffer.resize(self.bytes, 0);
        // SAFETY: the memory is there, by the caller's promise, and so long; others may write to it.
        unsafe { racy::read(self.address.as_ptr(), buffer) };
        buffer
    }
}

pub(super) fn checksum(bytes: &[u8]) -> u64 {
    // 0 says that nothing is known.
    XxHash3_64::oneshot(bytes).max(1)
}

/// A whole unit that a submission reads, or writes a copy to.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) table: Arc<Table>,
    pub(super) unit: u64,
    /// What was known of it when it was submitted, or has been since.
    pub(super) word: Word,
    /// Where it goes, if it is read.
    pub(super) to: Option<(HostId, Range<u64>, HostPlace)>,
}

/// What is to be done when a submission is done.
#[derive(Debug)]
pub(super) struct Check {
    /// Held while they are compared.
    parts: Mutex<Vec<Part>>,
    host_writes: Ranges<HostId>,
    outcome: OnceLock<Result<()>>,
}

impl Check {
    pub(super) fn new(parts: Vec<Part>, host_writes: Ranges<HostId>) -> Self {
        Self { parts: Mutex::new(parts), host_writes, outcome: OnceLock::new() }
    }

    /// Whether nothing has to be done, nor be known of it.
    pub(super) fn is_nothing(&mut self) -> bool {
        self.parts.get_mut().is_empty() && self.host_writes.iter().next().is_none()
    }

    /// Whether it has yet to look at host memory, or at what is known of device memory, of which that holds.
    pub(super) fn concerns(&self, holds: impl Fn(&Part) -> bool) -> bool {
        self.parts.lock().iter().any(holds)
    }

    /// After a failure nothing is known of what was to be written.
    pub(super) fn forget(&self) {
        for part in self.parts.lock().iter().filter(|part| part.to.is_none()) {
            part.table.replace(part.unit, part.word, 0);
        }
    }

    /// Compares what was read, by one thread for all that ask.
    fn compare(&self, device: &DeviceInfo) -> Result<()> {
        let mut parts = self.parts.lock();
        if let Some(outcome) = self.outcome.get() {
            return outcome.clone();
        }
        let (mut buffer, mut outcome) = (Vec::new(), Ok(()));
        for Part { table, unit, word, to } in parts.drain(..) {
            let Some((_, _, place)) = to else { continue };
            // SAFETY: who releases host memory waits until what is read there was compared.
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
        .with_detail(format!("unit {unit} of this memory is not what was written to it"))
        .with_advice("write all of it anew, and have the device looked after if that comes again")
}

/// The submissions of a queue.
#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<u64, Arc<Check>>,
    failed: HashMap<u64, Error>,
    /// The newest ticket of each other queue that work here runs after.
    after: HashMap<QueueId, u64>,
}

/// All submissions that may have something left to compare.
#[derive(Debug, Default)]
pub(super) struct Checks(Mutex<HashMap<QueueId, Queue>>);

impl Checks {
    pub(super) fn add(&self, ticket: Ticket, check: Check) {
        self.0.lock().entry(ticket.queue).or_default().waiting.insert(ticket.value, Arc::new(check));
    }

    /// Notes that work of a queue runs after a ticket from now on.
    pub(super) fn order_after(&self, queue: QueueId, ticket: Ticket) {
        let mut queues = self.0.lock();
        let newest = queues.entry(queue).or_default().after.entry(ticket.queue).or_default();
        *newest = ticket.value.max(*newest);
    }

    pub(super) fn end_queue(&self, queue: QueueId) {
        self.0.lock().remove(&queue);
    }

    /// Submissions that are not known to be done, and of which that holds.
    pub(super) fn waiting(&self, holds: impl Fn(QueueId, &Check) -> bool) -> Vec<Ticket> {
        let queues = self.0.lock();
        let all = queues.iter().flat_map(|(queue, of)| {
            let held = of.waiting.iter().filter(|(_, check)| holds(*queue, check));
            held.map(|(value, _)| Ticket { queue: *queue, value: *value })
        });
        all.collect()
    }

    /// Whether work that is not known to be done writes to ranges of host memory.
    pub(super) fn writes_to(&self, ranges: &Ranges<HostId>) -> bool {
        let queues = self.0.lock();
        let mut checks = queues.values().flat_map(|queue| queue.waiting.values());
        checks.any(|check| check.host_writes.overlap(ranges))
    }

    /// Has nothing compared any more where ranges of host memory are about to be written to. What is being
    /// compared there is waited for.
    pub(super) fn supersede(&self, ranges: &Ranges<HostId>) {
        let concerned: Vec<Arc<Check>> = {
            let queues = self.0.lock();
            let checks = queues.values().flat_map(|queue| queue.waiting.values());
            checks.filter(|check| check.host_writes.overlap(ranges)).map(Arc::clone).collect()
        };
        for check in concerned {
            let is_kept = |part: &Part| part.to.as_ref().is_none_or(|(host, at, _)| !ranges.meet(*host, at));
            check.parts.lock().retain(is_kept);
        }
    }

    /// Compares what a ticket, which is over, and all work that is over with it have read, and tells what
    /// came of the ticket. `has_failed` asks the device about each: `None` while it is not over.
    pub(super) fn settle(
        &self,
        ticket: Ticket,
        device: &DeviceInfo,
        has_failed: impl Fn(Ticket) -> Option<bool>,
    ) -> Result<()> {
        // Whoever learns of a ticket has learnt of all that ran before it, and may use their host memory.
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
                    // It has its own answer, however late its ticket is asked for.
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
