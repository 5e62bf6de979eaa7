//! Small pieces of pinned memory that a call lends to the card until its work is done, and what indexed
//! kernels report.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::Error;
use backend_api::numa::OnNode;

use crate::context::Context;
use crate::driver::Outcome;
use crate::host_memory::HostRange;

/// How much a queue lends out at once. Pinned memory is taken at the first use only.
pub(crate) const STAGING_BYTES: usize = 512 << 10;
const ALIGNMENT: u64 = 16;

/// The staging memory of one queue: a ring, given out in order of submission and taken back in the same
/// order.
///
/// Positions only rise; a position's place in the memory is its remainder by the length.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    memory: Option<HostRange>,
    head: u64,
    leases: VecDeque<Lease>,
    failures: BTreeMap<u64, Error>,
}

#[derive(Debug)]
struct Lease {
    /// The ticket after which the card has let go of it.
    value: u64,
    start: u64,
    /// What is to be looked at then.
    report: Option<Report>,
}

/// Two numbers that an indexed kernel writes: whether an index was outside, and where in the list of its
/// launch.
#[derive(Debug)]
struct Report {
    operation: &'static str,
    /// The position in the call's list at which the launch began.
    first: u64,
}

/// A piece that was lent out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loan {
    pub(crate) host: *mut u8,
    pub(crate) mapped: u64,
}

/// What [`Staging::lend`] answers.
#[derive(Debug)]
pub(crate) enum Lent {
    Piece(Loan),
    /// There is room once this ticket is done.
    After(u64),
}

impl Staging {
    /// Lends `bytes` bytes, at most [`STAGING_BYTES`], until ticket `value` is done. `reached` is what is
    /// done now, and `node` where the card is.
    pub(crate) fn lend(
        &mut self,
        context: &Arc<Context>,
        node: Option<u32>,
        bytes: usize,
        value: u64,
        reached: u64,
        attention: &AtomicU64,
    ) -> Outcome<Lent> {
        let memory = match &self.memory {
            Some(memory) => memory,
            None => {
                let _near = OnNode::prefer(node);
                self.memory.insert(HostRange::pinned(context, STAGING_BYTES)?)
            }
        };
        let (address, mapped) = (memory.address, memory.mapped.unwrap_or(0));
        self.settle(reached, attention);
        let length = STAGING_BYTES as u64;
        let bytes = (bytes as u64).next_multiple_of(ALIGNMENT).max(ALIGNMENT).min(length);
        let mut start = self.head;
        if start % length + bytes > length {
            start = start.next_multiple_of(length);
        }
        if let Some(oldest) = self.leases.front()
            && start + bytes - oldest.start > length
        {
            return Ok(Lent::After(oldest.value));
        }
        self.head = start + bytes;
        self.leases.push_back(Lease { value, start, report: None });
        let offset = start % length;
        // SAFETY: the offset is inside of the memory.
        let host = unsafe { address.as_ptr().add(offset as usize) };
        Ok(Lent::Piece(Loan { host, mapped: mapped + offset }))
    }

    /// Declares the piece lent last to be a report. It was set to zero.
    pub(crate) fn expect_report(&mut self, operation: &'static str, first: u64, attention: &AtomicU64) {
        if let Some(lease) = self.leases.back_mut() {
            lease.report = Some(Report { operation, first });
            attention.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Takes back what was lent until tickets up to `reached`, and reads the reports in it.
    pub(crate) fn settle(&mut self, reached: u64, attention: &AtomicU64) {
        while let Some(lease) = self.leases.pop_front_if(|lease| lease.value <= reached) {
            let Some(report) = lease.report else { continue };
            let failed = self.read(lease.start);
            if let Some(position) = failed
                && !self.failures.contains_key(&lease.value)
            {
                // The report's share of the attention stays, for the failure.
                let position = report.first + position;
                let error = Error::index_outside(report.operation)
                    .with_offset(position.saturating_mul(8))
                    .with_detail(format!("index number {position} of the list is outside of the elements"));
                self.failures.insert(lease.value, error);
            } else {
                attention.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// The report at a position: where in the list an index was outside.
    fn read(&self, start: u64) -> Option<u64> {
        let memory = self.memory.as_ref()?;
        let offset = (start % STAGING_BYTES as u64) as usize;
        // SAFETY: a lease of at least 16 bytes at a multiple of 16 lies there; the card is done with it.
        let (failed, position) = unsafe {
            let at = memory.address.as_ptr().add(offset).cast::<AtomicU64>();
            ((*at).load(Ordering::Acquire), (*at.add(1)).load(Ordering::Acquire))
        };
        (failed != 0).then_some(position)
    }

    /// Forgets what was lent to a call that failed and of which nothing is in flight any more.
    pub(crate) fn abandon(&mut self, value: u64, attention: &AtomicU64) {
        while let Some(lease) = self.leases.pop_back_if(|lease| lease.value == value) {
            self.head = lease.start;
            if lease.report.is_some() {
                attention.fetch_sub(1, Ordering::AcqRel);
            }
        }
        if self.failures.remove(&value).is_some() {
            attention.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn failure(&self, value: u64) -> Option<Error> {
        self.failures.get(&value).cloned()
    }
}
