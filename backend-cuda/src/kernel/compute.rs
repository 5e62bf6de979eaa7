//! Computations: kernels generated for a program, and their launches.

#[forbid(unsafe_code)]
mod codegen;
#[forbid(unsafe_code)]
mod shape;

use std::sync::Arc;

use backend_api::expr::{Action, Partial, ProgramCache, Task};
use backend_api::{Compute, Search};

use self::shape::{LITERALS_MAX, ProgramKey, head};
use super::search::{Aim, AnswerPlace, SearchChunks, SearchScratch};
use super::{argument, ptx as text, scratch};
use crate::context::CudaContext;
use crate::core::CudaSubmission;
use crate::driver::objects::{Module, THREADS};
use crate::driver::{DriverResult, Function};
use crate::host_memory::HostAddress;

const FIND: &str = text!("compute_find");
const SUM: &str = text!("compute_sum");
const EXTREMES: &str = text!("compute_extremes");
const HISTOGRAM: &str = text!("compute_histogram");
const STORE: &str = text!("compute_store");

/// The number of elements that a block processes at a time: 8 for each thread.
const TILE: u64 = 8 * THREADS as u64;

/// The kernels' first parameter; `Space` in `kernels/splice.h`.
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

/// The kernels of one shape.
#[derive(Debug)]
struct Computing {
    functions: Vec<Function>,
    /// The number of blocks of the first kernel that a multiprocessor runs at once.
    blocks: u32,
    _module: Module,
}

/// The translated programs of a device.
#[derive(Debug, Default)]
pub(crate) struct TranslatedProgramCache(ProgramCache<ProgramKey, Computing>);

impl TranslatedProgramCache {
    /// Returns the kernels for a shape, and translates them if they are unknown. The context is current.
    fn get(&self, context: &Arc<CudaContext>, shape: ProgramKey) -> DriverResult<Arc<Computing>> {
        if let Some(found) = self.0.find(&shape) {
            return Ok(found);
        }
        // Do not hold a lock here, so that other programs continue. Two threads may translate the same
        // program.
        let (text, names) = source(&shape);
        let module = Module::load(context, &codegen::splice(text, &shape, names))?;
        let functions = names.iter().map(|name| module.function(name)).collect::<DriverResult<Vec<_>>>()?;
        let blocks = functions.first().map_or(1, |function| module.occupancy(*function, THREADS));
        let (made, forgotten) = self.0.add(shape, Computing { functions, blocks, _module: module });
        // If the wait fails, the kernels of the evicted program may still run: leak them instead of unloading
        // them.
        if let Some(forgotten) = forgotten
            && let Err(code) = context.synchronize()
        {
            std::mem::forget(forgotten);
            return Err(code);
        }
        Ok(made)
    }

    /// Translates the kernels for a request with these source addresses, if they are unknown. The context
    /// is current.
    pub(crate) fn prepare(
        &self,
        context: &Arc<CudaContext>,
        compute: &Compute<'_>,
        starts: &[u64],
    ) -> DriverResult {
        self.get(context, ProgramKey::new(compute, starts).0).map(drop)
    }
}

/// Returns the text that contains a shape's kernels, and their names.
fn source(shape: &ProgramKey) -> (&'static str, &'static [&'static str]) {
    match &shape.task {
        Task::Find { .. } => (FIND, &["compute_count", "compute_list"]),
        Task::Sum { value, .. } if shape.of(*value).is_float() => (SUM, &["compute_sum_floats"]),
        Task::Sum { .. } => (SUM, &["compute_sum"]),
        Task::Extremes { value, .. } if shape.of(*value).bytes() == 8 => (EXTREMES, &["compute_extremes_64"]),
        Task::Extremes { .. } => (EXTREMES, &["compute_extremes_32"]),
        Task::Histogram { .. } => (HISTOGRAM, &["compute_histogram", "compute_histogram_answer"]),
        Task::Store { .. } => (STORE, &["compute_store"]),
    }
}

/// Divides elements into chunks for [`Action::Find`].
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

/// Executes a checked computation on sources at these addresses.
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
    let functions = &computing.functions;
    let mut space = Space {
        base: [0; Compute::SOURCES_MAX],
        literals: [0; LITERALS_MAX],
        first: compute.geometry.first,
        channel: compute.geometry.channel,
        count: compute.count(),
    };
    space.base[..starts.len()].copy_from_slice(starts);
    space.literals[..parameters.len()].copy_from_slice(&parameters);
    let tiles = space.count.div_ceil(TILE);
    let blocks = tiles.min(core.card.multiprocessors.saturating_mul(computing.blocks).into());
    let Some(answer) = answer else {
        if tiles > 0 {
            // SAFETY: the kernel takes the space alone. All fields were checked to be inside of their
            // sources, which have `count` elements; the kernel writes nowhere else.
            unsafe { work.stream().launch(functions[0], blocks, &mut [argument(&space)]) }?;
        }
        return Ok(());
    };
    let mut answer_bytes = compute.answer_bytes();
    let answer = AnswerPlace::new(work, answer, answer_bytes)?;
    let answer_at = argument(&answer.address);
    match compute.action {
        Action::Find { limit, count_all, .. } => {
            let limit = limit.min(space.count);
            let head = head(compute, starts);
            find(work, &computing, &space, compute, (limit, count_all), (head, tile), answer.address)?;
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
                stream.launch(functions[0], blocks, &mut [argument(&space), bins_at, totals_at])?;
                let blocks = bins.div_ceil(THREADS).into();
                stream.launch(functions[1], blocks, &mut [bins_at, totals_at, answer_at])?;
            }
        }
        Action::Sum { .. } | Action::Extremes { .. } | Action::Store { .. } => {
            let blocks = blocks.clamp(1, Compute::PARTIALS_MAX);
            // SAFETY: these are the parameters in `kernels/compute_sum.cu` and
            // `kernels/compute_extremes.cu`; the answer has room for `blocks` partial results.
            unsafe { work.stream().launch(functions[0], blocks, &mut [argument(&space), answer_at]) }?;
            answer_bytes = 8 + blocks * Partial::BYTES;
        }
    }
    // SAFETY: the answer has at least this number of bytes.
    unsafe { answer.fetch(work, answer_bytes) }
}

/// Counts, scans and lists, in three launches without the host in between; one pass over the elements if
/// none matches.
fn find(
    work: &mut CudaSubmission<'_>,
    computing: &Computing,
    space: &Space,
    compute: &Compute<'_>,
    (limit, count_all): (u64, bool),
    (head, tile): (u64, u64),
    answer: u64,
) -> DriverResult {
    let core = work.core;
    let scan = core.kernels.scan(work.context())?;
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
            work.stream().launch(computing.functions[0], blocks, &mut count)?;
        }
        places.scan(work, scan, chunks.chunks, limit, answer)?;
        if limit > 0 && chunks.chunks > 0 {
            work.stream().launch(computing.functions[1], blocks, &mut list)?;
        }
    }
    work.order.search_ready = true;
    Ok(())
}

#[cfg(test)]
mod tests;
