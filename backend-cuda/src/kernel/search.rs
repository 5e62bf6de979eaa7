//! Searches: the choice of a kernel, and the division of elements into chunks.

use backend_api::Search;

use crate::core::Submission;
use crate::driver::{Function, Outcome};
use crate::host_memory::HostAddress;
use crate::kernel::{argument, scratch};

/// The first parameter of the counting and listing kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    pub base: u64,
    pub count: u64,
    pub stride: u64,
    pub head: u64,
    pub per_chunk: u64,
    pub chunks: u64,
}

/// The plan of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    chunks: Chunks,
    /// Log2 of the bytes of the compared word. 16 bytes only if `is_packed`.
    word: usize,
    /// True if the elements consist of the value alone, and are aligned to it.
    is_packed: bool,
}

/// The goal that decides the length of chunks. Longer chunks mean fewer counts to scan at the end, shorter
/// ones less work beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// The search only counts.
    Count,
    /// The search lists: each chunk with a match is read once more.
    List,
    /// The search stops early: when it has enough matches, each block finishes its current chunk.
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

    /// Returns the maximum length in bytes of a chunk: the part of GPU memory that a block processes at once.
    /// If this length would result in too many chunks, chunks are longer. On an H200, the counting kernel is
    /// as fast with 64 KiB as with 512, within 1 %.
    pub fn chunk_bytes_max(self) -> u64 {
        match self {
            Self::Count => 512 << 10,
            Self::List => 128 << 10,
            Self::Stop => 64 << 10,
        }
    }
}

/// The bytes that the four loads in flight of each thread of a block cover.
const CHUNK_BYTES_MIN: u64 = 16 << 10;
/// The same in elements, for elements that are far apart.
const CHUNK_ELEMENTS_MIN: u64 = 1024;
/// The most bytes that are read of one element.
const ELEMENT_BYTES_READ: u64 = 64;
/// The number of chunks that each block should get.
const CHUNKS_PER_BLOCK: u64 = 16;

impl Plan {
    fn new(base: u64, count: u64, stride: u64, value_bytes: u64, blocks: u64, aim: Aim) -> Self {
        let is_packed = stride == value_bytes
            && value_bytes.is_power_of_two()
            && value_bytes <= 16
            && base.is_multiple_of(value_bytes);
        let even = count.div_ceil(blocks.max(1) * CHUNKS_PER_BLOCK);
        let least = count.div_ceil(scratch::CHUNKS_MAX);
        if is_packed {
            let head = (base.wrapping_neg() & 15) / value_bytes;
            let unit = CHUNK_BYTES_MIN / value_bytes;
            let most = aim.chunk_bytes_max() / value_bytes;
            let per_chunk = even.clamp(unit, most).max(least).next_multiple_of(unit);
            let chunks = if count == 0 { 0 } else { count.saturating_sub(head).div_ceil(per_chunk).max(1) };
            let chunks = Chunks { base, count, stride, head, per_chunk, chunks };
            return Self { chunks, word: value_bytes.trailing_zeros() as usize, is_packed };
        }
        let word = (base | stride | 8).trailing_zeros().min(value_bytes.ilog2());
        let most = (aim.chunk_bytes_max() / stride.min(ELEMENT_BYTES_READ)).max(CHUNK_ELEMENTS_MIN);
        let per_chunk = even.clamp(CHUNK_ELEMENTS_MIN, most).max(least).next_multiple_of(CHUNK_ELEMENTS_MIN);
        let chunks = Chunks { base, count, stride, head: 0, per_chunk, chunks: count.div_ceil(per_chunk) };
        Self { chunks, word: word as usize, is_packed }
    }

    /// Log2 of the bytes of the word with which the listing kernel compares.
    fn list_word(&self) -> usize {
        self.word.min(3)
    }
}

/// Returns `value` from `start` on as a number, repeated to eight bytes if it is shorter.
fn number(value: &[u8], start: usize, bytes: usize) -> u64 {
    let part = value.get(start..).unwrap_or_default();
    let part = &part[..part.len().min(bytes)];
    if part.is_empty() {
        return 0;
    }
    u64::from_le_bytes(std::array::from_fn(|i| part[i % part.len()]))
}

/// Data that the kernels of one search share, in scratch memory of the queue: the search's state, the
/// number of matches of each chunk, and the chunks with matches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub state: u64,
    pub counts: u64,
    pub hits: u64,
}

impl Places {
    /// Returns scratch memory for the next search, with a zeroed state. A completely submitted search zeroes
    /// the state again, and sets `search_ready`.
    pub fn new(work: &mut Submission<'_>) -> Outcome<Self> {
        let scratch = work.scratch()?;
        let state = scratch + scratch::STATE;
        if !std::mem::take(&mut work.order.search_ready) {
            // SAFETY: the state is in this queue's scratch memory.
            unsafe { work.stream().clear(state, scratch::STATE_BYTES) }?;
        }
        Ok(Self { state, counts: scratch + scratch::COUNTS, hits: scratch + scratch::HITS })
    }

    /// Launches the kernel that computes the position of each chunk's matches in the answer, and writes the
    /// answer's header.
    ///
    /// # Safety
    /// The search must have at most `CHUNKS_MAX` chunks, and room for a header at `answer`.
    pub unsafe fn scan(
        self,
        work: &Submission<'_>,
        scan: Function,
        chunks: u64,
        limit: u64,
        answer: u64,
    ) -> Outcome {
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

/// The place at which kernels write an answer: its own, or, for pageable memory, one on the GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    host: HostAddress,
    pub address: u64,
}

impl Answer {
    pub fn new(work: &mut Submission<'_>, host: HostAddress, bytes: u64) -> Outcome<Self> {
        let address = host.mapped.map_or_else(|| work.bounce(bytes), Ok)?;
        Ok(Self { host, address })
    }

    /// Copies the first `bytes` bytes of the answer to the host.
    ///
    /// # Safety
    /// The answer on the GPU and its memory on the host must have at least `bytes` bytes.
    pub unsafe fn fetch(self, work: &Submission<'_>, bytes: u64) -> Outcome {
        if self.host.mapped.is_some() {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller.
        unsafe { work.stream().download(self.host.host, self.address, bytes) }
    }
}

/// Counts, scans and lists, in three launches without the host in between; one pass over the elements if
/// none matches.
pub(crate) fn run(
    work: &mut Submission<'_>,
    search: &Search<'_>,
    start: u64,
    answer: HostAddress,
) -> Outcome {
    let core = work.core;
    let kernels = core.kernels.searching(work.context(), core.card.multiprocessors)?;
    let places = Places::new(work)?;
    let value = work.scratch()? + scratch::VALUE;

    let elements = search.elements;
    let base = start + search.field_offset;
    let value_bytes = search.value.len();
    let limit = search.limit.min(elements.count);
    let stop_at = if search.count_all { u64::MAX } else { limit };
    let aim = Aim::new(limit, search.count_all);
    let plan =
        Plan::new(base, elements.count, elements.stride, value_bytes as u64, kernels.blocks.into(), aim);
    let answer_bytes = Search::answer_bytes(limit);
    let answer = Answer::new(work, answer, answer_bytes)?;
    if value_bytes > 1 << plan.list_word() {
        work.send(search.value, value)?;
    }
    let bytes = value_bytes as u32;
    let first = number(search.value, 0, 1 << plan.list_word());
    let second = number(search.value, 8, 8);
    let chunks = plan.chunks;
    let blocks = chunks.chunks.min(kernels.blocks.into());
    let indices = answer.address + Search::HEADER_BYTES;
    let Places { state, counts, hits } = places;
    let (chunks_at, first_at, stop_at) = (argument(&chunks), argument(&first), argument(&stop_at));
    let (state_at, counts_at) = (argument(&state), argument(&counts));
    let (value_at, bytes_at) = (argument(&value), argument(&bytes));
    let mut packed = [chunks_at, first_at, argument(&second), stop_at, state_at, counts_at];
    let mut spread = [chunks_at, first_at, value_at, bytes_at, stop_at, state_at, counts_at];
    let (counting, count) = match plan.is_packed {
        true => (kernels.packed[plan.word], &mut packed[..]),
        false => (kernels.spread[plan.word], &mut spread[..]),
    };
    let mut list = [chunks_at, first_at, value_at, bytes_at, state_at, argument(&hits), argument(&indices)];
    // SAFETY: the parameters match the kernels in `kernels/search.cu`. The elements and the answer
    // were checked against their memory; state, counts, hits and value are in scratch memory of this
    // queue, with room for `CHUNKS_MAX` chunks, which the plan does not exceed.
    unsafe {
        if chunks.chunks > 0 {
            work.stream().launch(counting, blocks, count)?;
        }
        places.scan(work, kernels.scan, chunks.chunks, limit, answer.address)?;
        if limit > 0 && chunks.chunks > 0 {
            work.stream().launch(kernels.list[plan.list_word()], blocks, &mut list)?;
        }
        answer.fetch(work, answer_bytes)?;
    }
    work.order.search_ready = true;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: u64 = 1056;
    const AIMS: [Aim; 3] = [Aim::Count, Aim::List, Aim::Stop];

    #[test]
    fn chunks_are_few_to_count_and_short_to_stop_early() {
        let plan = |limit, count_all| Plan::new(0, 2 << 30, 4, 4, BLOCKS, Aim::new(limit, count_all)).chunks;
        assert!(plan(0, true).chunks <= 16 << 10);
        assert!(plan(1000, true).per_chunk * 4 <= 128 << 10);
        // This product is the number of bytes that all blocks together may read beyond the limit.
        assert!(plan(1, false).per_chunk * 4 * BLOCKS <= 128 << 20);
    }

    #[test]
    fn chunks_cover_all_elements_and_never_exceed_their_memory() {
        for count in [0_u64, 1, 2, 100, 4096, 1 << 20, (1 << 31) + 7, 1 << 37] {
            for (stride, bytes) in [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (44, 4), (3, 3), (4096, 100)] {
                let bases = [0, 4, 8, 9].into_iter().flat_map(|base| AIMS.map(|aim| (base, aim)));
                for (base, aim) in bases {
                    let plan = Plan::new(1 << 40 | base, count, stride, bytes, BLOCKS, aim);
                    let c = plan.chunks;
                    assert!(c.chunks <= scratch::CHUNKS_MAX);
                    assert!(c.head + c.chunks * c.per_chunk >= count, "{plan:?}");
                    assert!(c.chunks <= 1 || c.head + (c.chunks - 1) * c.per_chunk < count, "{plan:?}");
                    assert!(c.per_chunk < 1 << 31);
                    if plan.is_packed {
                        assert_eq!((c.base + c.head * stride) % 16, 0);
                        assert_eq!(c.per_chunk * stride % 16, 0);
                    }
                }
            }
        }
    }

    #[test]
    fn words_are_aligned_and_no_longer_than_the_value() {
        let word = |base, stride, bytes| Plan::new(base, 10, stride, bytes, BLOCKS, Aim::Count).word;
        assert_eq!(word(0, 44, 4), 2);
        assert_eq!(word(8, 48, 12), 3);
        assert_eq!(word(6, 44, 4), 1);
        assert_eq!(word(0, 45, 4), 0);
        assert_eq!(word(0, 64, 3), 1);
        assert_eq!(word(0, 16, 16), 4);
        // The base is not aligned to 16 bytes, so the search uses shorter words.
        assert_eq!(word(8, 16, 16), 3);
    }

    #[test]
    fn a_short_value_is_repeated() {
        assert_eq!(number(&[7], 0, 1), 0x0707_0707_0707_0707);
        assert_eq!(number(&[1, 2], 0, 2), 0x0201_0201_0201_0201);
        assert_eq!(number(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 0, 8), 0x0807_0605_0403_0201);
        assert_eq!(number(&[0; 8], 8, 8), 0);
    }
}
