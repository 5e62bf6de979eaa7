//! Result of a search on an OpenCL device: kernels count the matches of each chunk, compute prefix sums of
//! the counts, and list the matches.

use std::sync::Arc;

use backend_api::{Result, racy};

use crate::driver::objects::DriverArgument;
use crate::host_memory::HostPiece;
use crate::memory::OwnMemory;
use crate::queue::{OpenClSubmission, QueueScratch};

/// Up to this number of indices (4 MiB) the device copies the list to the host before the host knows the
/// number of matches.
const LISTED_UNSEEN: u64 = 512 << 10;
/// Number of indices (32 MiB) that the device copies at a time if there may be more matches.
const LISTED_AT_ONCE: u64 = 4 << 20;

/// The number of matches to list, and true if the search may stop after them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    listed: u64,
    pub early: bool,
}

impl Limit {
    pub fn new(limit: u64, count: u64, count_all: bool) -> Self {
        let listed = limit.min(count);
        // The search can stop early only if it need not count all matches, and if its limit fits 32 bits.
        Self { listed, early: !count_all && listed > 0 && listed < 1 << 31 }
    }
}

/// Device memory of one search: the matches of each chunk, their positions in the list, and the list.
pub(super) struct Listing {
    limit: Limit,
    chunks: u32,
    counts: Arc<OwnMemory>,
    offsets: Arc<OwnMemory>,
    state: Arc<OwnMemory>,
    list: Arc<OwnMemory>,
}

impl Listing {
    /// Allocates device memory for a search over `chunks` chunks in `segments` segments. The elements of a
    /// segment are in one OpenCL buffer.
    pub fn new(
        submission: &mut OpenClSubmission<'_>,
        limit: Limit,
        chunks: u32,
        segments: usize,
    ) -> Result<Self> {
        let states = 1 + segments as u32;
        let room =
            if limit.listed <= LISTED_UNSEEN { limit.listed } else { LISTED_AT_ONCE.min(limit.listed) };
        let new = Self {
            limit,
            chunks,
            counts: submission.scratch(QueueScratch::Counts, u64::from(chunks) * 4)?,
            offsets: submission.scratch(QueueScratch::Offsets, u64::from(chunks) * 8)?,
            state: submission.scratch(QueueScratch::State, u64::from(states) * 4)?,
            list: submission.scratch(QueueScratch::Answer, 16 + room * 8)?,
        };
        if limit.early {
            let arguments = [
                DriverArgument::Buffer(&new.counts),
                DriverArgument::U32(chunks),
                DriverArgument::Buffer(&new.state),
                DriverArgument::U32(states),
            ];
            let groups = submission.core.kernels.groups_for(chunks.max(states).into());
            // SAFETY: both buffers have the given number of entries.
            unsafe { submission.launch("search_begin", groups, &arguments)? };
        }
        Ok(new)
    }

    /// Returns the last arguments of the kernel that counts the matches in segment `number` (elements in one
    /// OpenCL buffer), after `chunks_before` chunks of earlier segments.
    pub fn to_count(&self, number: usize, chunks_before: u32) -> [DriverArgument<'_>; 5] {
        [
            DriverArgument::U32(if self.limit.early { self.limit.listed as u32 } else { 0 }),
            DriverArgument::Buffer(&self.state),
            DriverArgument::U32(number as u32),
            DriverArgument::Buffer(&self.counts),
            DriverArgument::U32(chunks_before),
        ]
    }

    /// Returns the last arguments of the kernel that lists matches `lowest` to `highest` in one segment
    /// (elements in one OpenCL buffer), after `chunks_before` chunks and `elements_before` elements.
    pub fn to_list(
        &self,
        chunks_before: u32,
        elements_before: u64,
        (lowest, highest): (u64, u64),
    ) -> [DriverArgument<'_>; 8] {
        [
            DriverArgument::Buffer(&self.counts),
            DriverArgument::Buffer(&self.offsets),
            DriverArgument::U32(chunks_before),
            DriverArgument::U64(lowest),
            DriverArgument::U64(highest),
            DriverArgument::U64(elements_before),
            DriverArgument::Buffer(&self.list),
            // The list of indices begins after a header of two words.
            DriverArgument::U64(2),
        ]
    }

    /// Writes the result of a search: computes the prefix sums of the counts, calls `launch` to list the
    /// matches of a range of match numbers, and copies the result to `host` at the offset `at`. The caller
    /// has checked that the host memory is long enough for the result.
    pub fn answer<'q>(
        self,
        submission: &mut OpenClSubmission<'q>,
        (host, at): (&HostPiece, u64),
        mut launch: impl FnMut(&mut OpenClSubmission<'q>, &Self, (u64, u64)) -> Result<()>,
    ) -> Result<()> {
        let limit = self.limit.listed;
        let arguments = [
            DriverArgument::U32(self.chunks),
            DriverArgument::U64(limit),
            DriverArgument::Buffer(&self.counts),
            DriverArgument::Buffer(&self.offsets),
            DriverArgument::Buffer(&self.list),
        ];
        // SAFETY: `counts` and `offsets` have an entry for each chunk, and the list a header of 16 bytes.
        unsafe { submission.launch("search_scan", 1, &arguments)? };
        if limit <= LISTED_UNSEEN {
            if limit > 0 {
                launch(submission, &self, (0, limit))?;
            }
            // SAFETY: the answer has room for `limit` indices, as has the list.
            unsafe { submission.read(&self.list, 0, host.at(at), 16 + limit * 8, true)? };
        } else {
            // Read only the header first, because the list may have space for far more indices than there are
            // matches. This waits for the counting. SAFETY: an answer has a header.
            unsafe { submission.read(&self.list, 0, host.at(at), 16, false)? };
            submission.drain()?;
            let mut header = [[0_u8; 8]; 2];
            // SAFETY: as above; the device does not use it any more.
            unsafe { racy::copy(host.at(at), header.as_mut_ptr().cast(), 16) };
            let listed = u64::from_ne_bytes(header[1]).min(limit);
            let mut lowest = 0;
            while lowest < listed {
                let highest = listed.min(lowest + LISTED_AT_ONCE);
                launch(submission, &self, (lowest, highest))?;
                let (to, bytes) = (host.at(at + 16 + lowest * 8), (highest - lowest) * 8);
                // SAFETY: as above.
                unsafe { submission.read(&self.list, 16, to, bytes, highest == listed)? };
                lowest = highest;
            }
        }
        Ok(())
    }
}
