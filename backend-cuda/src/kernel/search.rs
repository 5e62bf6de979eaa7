//! Search on a CUDA device: kernels count the matches of each chunk, compute prefix sums, and list matches.

use crate::driver::{DriverResult, Function};
use crate::host_memory::HostAddress;
use crate::kernel::{argument, scratch};
use crate::submission::CudaSubmission;

/// The second parameter of the counting and listing kernels; `SearchChunks` in `kernels/chunks.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SearchChunks {
    pub count: u64,
    pub head: u64,
    pub per_chunk: u64,
    pub chunks: u64,
    pub tile: u64,
}

/// The goal that decides the length of chunks. Longer chunks mean fewer counts in the prefix sum, shorter
/// chunks less work beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// The search only counts.
    Count,
    /// The search lists matches: it reads each chunk with a match once more.
    List,
    /// The search stops early: after it has enough matches, each block finishes its current chunk.
    Stop,
}

impl Aim {
    pub fn new(limit: u64, count_all: bool) -> Self {
        match (limit, count_all) {
            (_, false) => Self::Stop,
            (0, true) => Self::Count,
            (_, true) => Self::List,
        }
    }

    /// Returns the maximum length of a search's chunk in bytes. A block searches one chunk. If this length
    /// would result in too many chunks, chunks are longer. On an H200, the counting kernel is as fast with 64
    /// KiB as with 512, within 1 %.
    pub fn chunk_bytes_max(self) -> u64 {
        match self {
            Self::Count => 512 << 10,
            Self::List => 128 << 10,
            Self::Stop => 64 << 10,
        }
    }
}

/// Scratch memory of one search, which its kernels share: the search's state, the number of matches of each
/// chunk, and the chunks with matches.
#[derive(Clone, Copy, Debug)]
pub(super) struct SearchScratch {
    pub state: u64,
    pub counts: u64,
    pub hits: u64,
}

impl SearchScratch {
    /// Returns scratch memory for the next search. Zeroes the memory's state, unless `search_ready` is set:
    /// the kernels of a complete search leave the state zero, and the submission then sets `search_ready`.
    pub fn new(work: &mut CudaSubmission<'_>) -> DriverResult<Self> {
        let scratch = work.scratch()?;
        let state = scratch + scratch::STATE;
        if !std::mem::take(&mut work.order.search_ready) {
            // SAFETY: the state is in this queue's scratch memory.
            unsafe { work.stream().clear(state, scratch::STATE_BYTES) }?;
        }
        Ok(Self { state, counts: scratch + scratch::COUNTS, hits: scratch + scratch::HITS })
    }

    /// Launches the kernel that computes each chunk's position in the list, and writes the result's header.
    ///
    /// # Safety
    /// The search must have at most `CHUNKS_MAX` chunks, and there must be memory for a header at `answer`.
    pub unsafe fn scan(
        self,
        work: &CudaSubmission<'_>,
        scan: Function,
        chunks: u64,
        limit: u64,
        answer: u64,
    ) -> DriverResult {
        let Self { state, counts, hits } = self;
        let mut arguments = [
            argument(&chunks),
            argument(&limit),
            argument(&state),
            argument(&counts),
            argument(&hits),
            argument(&answer),
        ];
        // SAFETY: these are the parameters in `kernels/search.cu`; the caller guarantees the rest.
        unsafe { work.stream().launch(scan, 1, &mut arguments) }
    }
}

/// Memory in which kernels write a result: the result itself or, if it is pageable, memory on the GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerPlace {
    host: HostAddress,
    pub address: u64,
}

impl AnswerPlace {
    pub fn new(work: &mut CudaSubmission<'_>, host: HostAddress, bytes: u64) -> DriverResult<Self> {
        let address = host.mapped.map_or_else(|| work.bounce(bytes), Ok)?;
        Ok(Self { host, address })
    }

    /// Copies the result's first `bytes` bytes to the host; does nothing if kernels write there directly.
    ///
    /// # Safety
    /// The result on the GPU and its memory on the host must have at least `bytes` bytes.
    pub unsafe fn fetch(self, work: &CudaSubmission<'_>, bytes: u64) -> DriverResult {
        if self.host.mapped.is_some() {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller.
        unsafe { work.stream().download(self.host.host, self.address, bytes) }
    }
}
