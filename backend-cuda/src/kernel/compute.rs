//! Computations on a CUDA device: generates kernels from expression programs, and launches them.

#[forbid(unsafe_code)]
pub(super) mod cache;
#[forbid(unsafe_code)]
mod codegen;
#[forbid(unsafe_code)]
mod shape;

use backend_api::expr::{Action, Partial};
use backend_api::{Compute, Search};

use self::cache::Computing;
use self::shape::{LITERALS_MAX, ProgramKey, head};
use super::modules::FixedKernel;
use super::search::{Aim, AnswerPlace, SearchChunks, SearchScratch};
use super::{argument, scratch};
use crate::driver::DriverResult;
use crate::driver::objects::THREADS;
use crate::host_memory::HostAddress;
use crate::submission::CudaSubmission;

/// The number of elements that a block processes at a time: 8 for each thread.
const TILE: u64 = 8 * THREADS as u64;

/// The kernels' first parameter, the type `Space` in `kernels/splice.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Space {
    base: [u64; Compute::SOURCES_MAX],
    literals: [u64; LITERALS_MAX],
    first: u64,
    channel: u64,
    count: u64,
}

const _: () = assert!(size_of::<Space>() == codegen::SPACE_BYTES);

impl Space {
    fn new(compute: &Compute<'_>, starts: &[u64], parameters: &[u64]) -> Self {
        let mut space = Self {
            base: [0; Compute::SOURCES_MAX],
            literals: [0; LITERALS_MAX],
            first: compute.geometry.first,
            channel: compute.geometry.channel,
            count: compute.count(),
        };
        space.base[..starts.len()].copy_from_slice(starts);
        space.literals[..parameters.len()].copy_from_slice(parameters);
        space
    }
}

/// Divides the elements of a search ([`Action::Find`]) into chunks.
fn chunks((head, count): (u64, u64), bytes_each: u64, blocks: u64, aim: Aim, tile: u64) -> SearchChunks {
    /// The number of chunks that each block should get.
    const CHUNKS_PER_BLOCK: u64 = 16;
    let even = count.div_ceil(blocks.max(1) * CHUNKS_PER_BLOCK);
    let most = (aim.chunk_bytes_max() / bytes_each.max(1)).max(tile);
    let least = count.div_ceil(scratch::CHUNKS_MAX);
    let per_chunk = even.clamp(tile, most).max(least).next_multiple_of(tile);
    let chunks = if count == 0 { 0 } else { count.saturating_sub(head).div_ceil(per_chunk).max(1) };
    SearchChunks { count, head, per_chunk, chunks, tile }
}

/// Submits a checked computation on sources at these addresses.
pub(crate) fn run(
    work: &mut CudaSubmission<'_>,
    compute: &Compute<'_>,
    starts: &[u64],
    answer: Option<HostAddress>,
) -> DriverResult {
    let core = work.core;
    let (shape, mut parameters) = ProgramKey::new(compute, starts);
    let tile = shape.tile();
    if let (Some(comparison), Some((_, _, _, bytes))) = (shape.comparison, compute.program.field_equals())
        && comparison.is_long
    {
        let value = work.scratch()? + scratch::VALUE;
        work.send(bytes, value)?;
        parameters[comparison.parameters] = value;
    }
    let computing = core.kernels.programs.get(work.context(), shape)?;
    let kernels = &computing.kernels;
    let space = Space::new(compute, starts, &parameters);
    let tiles = space.count.div_ceil(TILE);
    let blocks = tiles.min(core.card.multiprocessors.saturating_mul(computing.blocks).into());
    let Some(answer) = answer else {
        if tiles > 0 {
            // SAFETY: the kernel takes the space alone. All fields were checked to be inside of their
            // sources, which have `count` elements; the kernel writes nowhere else.
            unsafe { work.stream().launch(kernels[0].function, blocks, &mut [argument(&space)]) }?;
        }
        return Ok(());
    };
    let mut answer_bytes = compute.answer_bytes();
    let answer = AnswerPlace::new(work, answer, answer_bytes)?;
    let answer_at = argument(&answer.address);
    match compute.action {
        Action::Find { limit, count_all, .. } => {
            let (limit, head) = (limit.min(space.count), head(compute, starts));
            let seek = Seek { limit, count_all, head, tile, answer: answer.address };
            find(work, &computing, &space, compute, seek)?;
        }
        Action::Histogram { bins, .. } => {
            let totals = work.scratch()? + scratch::BINS;
            let (bins_at, totals_at) = (argument(&bins), argument(&totals));
            // SAFETY: these are the parameters in `kernels/compute_histogram.cu`. The totals are in this
            // queue's scratch memory. The number of bins is at most the room there and in the answer,
            // which were checked.
            unsafe {
                let stream = work.stream();
                stream.clear(totals, u64::from(bins) * 8)?;
                stream.launch(kernels[0].function, blocks, &mut [argument(&space), bins_at, totals_at])?;
                let blocks = bins.div_ceil(THREADS).into();
                stream.launch(kernels[1].function, blocks, &mut [bins_at, totals_at, answer_at])?;
            }
        }
        Action::Sum { .. } | Action::Extremes { .. } | Action::Store { .. } => {
            let blocks = blocks.clamp(1, Compute::PARTIALS_MAX);
            // SAFETY: these are the parameters in `kernels/compute_sum.cu` and
            // `kernels/compute_extremes.cu`; the answer has room for `blocks` partial results.
            unsafe { work.stream().launch(kernels[0].function, blocks, &mut [argument(&space), answer_at]) }?;
            answer_bytes = 8 + blocks * Partial::BYTES;
        }
    }
    // SAFETY: the answer has at least this number of bytes.
    unsafe { answer.fetch(work, answer_bytes) }
}

/// The parameters of a search for elements that meet a predicate.
struct Seek {
    /// The maximum number of indices to list.
    limit: u64,
    /// True if the search also counts the matches beyond the limit.
    count_all: bool,
    /// Number of elements before the first whole tile, and number of elements of a tile.
    head: u64,
    tile: u64,
    /// The address of the search's result.
    answer: u64,
}

/// Counts, computes prefix sums, and lists, in three launches without the host in between. If no element
/// matches, the kernels read the elements only once.
fn find(
    work: &mut CudaSubmission<'_>,
    computing: &Computing,
    space: &Space,
    compute: &Compute<'_>,
    seek: Seek,
) -> DriverResult {
    let Seek { limit, count_all, head, tile, answer } = seek;
    let core = work.core;
    let scan = core.kernels.fixed(work.context(), FixedKernel::SearchScan)?;
    let places = SearchScratch::new(work)?;
    let stop_at = if count_all { u64::MAX } else { limit };
    let bytes_each = compute.sources.iter().map(|source| source.stride.min(64)).sum();
    let most = u64::from(core.card.multiprocessors.saturating_mul(computing.blocks));
    let chunks = chunks((head, space.count), bytes_each, most, Aim::new(limit, count_all), tile);
    let blocks = chunks.chunks.min(most);
    let indices = answer + Search::HEADER_BYTES;
    let (space, chunks_at, state) = (argument(space), argument(&chunks), argument(&places.state));
    let mut count = [space, chunks_at, argument(&stop_at), state, argument(&places.counts)];
    let mut list = [space, chunks_at, state, argument(&places.hits), argument(&indices)];
    // SAFETY: these are the parameters in `kernels/compute_find.cu`. Fields were checked to be inside of
    // their sources. State, counts and hits are in scratch memory of this queue, with room for
    // `CHUNKS_MAX` chunks, the most there can be. The answer has room for the header and `limit` indices.
    unsafe {
        if chunks.chunks > 0 {
            work.stream().launch(computing.kernels[0].function, blocks, &mut count)?;
        }
        places.scan(work, scan, chunks.chunks, limit, answer)?;
        if limit > 0 && chunks.chunks > 0 {
            let kernel = computing.list(work.context())?;
            work.stream().launch(kernel, blocks, &mut list)?;
        }
    }
    work.order.search_ready = true;
    Ok(())
}

#[cfg(test)]
mod tests;
