//! Staging memory of a CUDA queue: small pieces of pinned memory that a call reserves until its work is done.
//! Also reads the results (reports) of gather and scatter kernels.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::Error;
use backend_api::numa::OnNode;

use crate::context::CudaContext;
use crate::driver::DriverResult;
use crate::host_memory::HostRange;

/// The bytes of staging memory of a queue. The pinned memory is allocated at its first use.
pub(crate) const STAGING_BYTES: usize = 512 << 10;
const ALIGNMENT: u64 = 16;

/// The staging memory of one queue: a ring buffer, borrowed and returned in the order of submission.
///
/// Positions in the ring only rise; the offset in the memory is the position modulo the length.
#[derive(Debug, Default)]
pub(crate) struct StagingRing {
    memory: Option<HostRange>,
    head: u64,
    leases: VecDeque<Lease>,
    failures: BTreeMap<u64, Error>,
}

#[derive(Debug)]
struct Lease {
    /// The ticket value after which the GPU no longer uses the piece.
    value: u64,
    start: u64,
    /// The report to read when the ticket is done.
    report: Option<Report>,
}

/// Two numbers that a gather or scatter kernel writes: 1 if an index was out of bounds, and the position of
/// that index in the list of its launch.
#[derive(Debug)]
struct Report {
    operation: &'static str,
    /// The position in the call's list of indices at which the launch began.
    first: u64,
}

/// A borrowed piece of staging memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loan {
    pub(crate) host: *mut u8,
    pub(crate) mapped: u64,
}

/// The result of [`StagingRing::lend`].
#[derive(Debug)]
pub(crate) enum Lent {
    Piece(Loan),
    /// The ring has free memory after this ticket is done.
    After(u64),
}

impl StagingRing {
    /// Borrows `bytes` bytes, at most [`STAGING_BYTES`], until the ticket `value` is done. `reached` is the
    /// newest completed value, and `node` the GPU's NUMA node.
    pub(crate) fn lend(
        &mut self,
        (context, node): (&Arc<CudaContext>, Option<u32>),
        bytes: usize,
        (value, reached): (u64, u64),
        attention: &AtomicU64,
    ) -> DriverResult<Lent> {
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

    /// Marks the piece borrowed last as a report. The caller has zeroed the piece.
    pub(crate) fn expect_report(&mut self, operation: &'static str, first: u64, attention: &AtomicU64) {
        if let Some(lease) = self.leases.back_mut() {
            lease.report = Some(Report { operation, first });
            attention.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns the pieces of tickets up to `reached` to the ring, and reads their reports.
    pub(crate) fn settle(&mut self, reached: u64, attention: &AtomicU64) {
        while let Some(lease) = self.leases.pop_front_if(|lease| lease.value <= reached) {
            let Some(report) = lease.report else { continue };
            let failed = self.read(lease.start);
            if let Some(position) = failed
                && !self.failures.contains_key(&lease.value)
            {
                // Do not decrement `attention`, the count of reports and failures: a failure replaces this
                // report, so the count is unchanged.
                let position = report.first + position;
                let error = Error::index_outside(report.operation)
                    .with_offset(position.saturating_mul(8))
                    .with_detail(format!(
                        "the index at position {position} of the list is outside of the elements"
                    ));
                self.failures.insert(lease.value, error);
            } else {
                attention.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Reads the report at a position of the ring: the list position of an index out of bounds.
    fn read(&self, start: u64) -> Option<u64> {
        let memory = self.memory.as_ref()?;
        let offset = (start % STAGING_BYTES as u64) as usize;
        // SAFETY: at this offset is a lease of at least 16 bytes, aligned to 16 bytes. The GPU does not use
        // the lease any more.
        let (failed, position) = unsafe {
            let at = memory.address.as_ptr().add(offset).cast::<AtomicU64>();
            ((*at).load(Ordering::Acquire), (*at.add(1)).load(Ordering::Acquire))
        };
        (failed != 0).then_some(position)
    }

    /// Returns the pieces of a failed call, whose work is no longer in flight.
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
