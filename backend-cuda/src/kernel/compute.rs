//! Computations: kernels made for a program, and how they are launched.

mod codegen;
mod shape;

use std::collections::HashMap;
use std::sync::Arc;

use backend_api::expr::{Action, Partial};
use backend_api::{Compute, Search};
use parking_lot::Mutex;

use self::shape::{LITERALS_MAX, Shape, Task};
use super::search::{Aim, Chunks};
use super::{Code, Kernels, argument, ptx as text, scratch};
use crate::context::Context;
use crate::core::Work;
use crate::driver::{Function, Outcome, check};
use crate::memory::HostAddress;

const FIND: &str = text!("compute_find");
const SUM: &str = text!("compute_sum");
const EXTREMES: &str = text!("compute_extremes");
const HISTOGRAM: &str = text!("compute_histogram");
const STORE: &str = text!("compute_store");

/// So many elements a block works on at a time: 8 for each thread.
const TILE: u64 = 8 * super::THREADS as u64;
/// So many programs are kept translated.
const PROGRAMS_MAX: usize = 256;

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
    /// How many blocks of the first kernel a multiprocessor runs at once.
    blocks: u32,
    _code: Code,
}

/// The translated programs of a device.
#[derive(Debug, Default)]
pub(crate) struct Programs(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    programs: HashMap<Shape, (u64, Arc<Computing>)>,
    /// Counts the times that a program was asked for, to tell which one has not been for longest.
    clock: u64,
}

impl Programs {
    /// The kernels for a shape, translated now if they are not known. The context is current.
    fn get(&self, context: &Arc<Context>, shape: Shape) -> Outcome<Arc<Computing>> {
        if let Some(found) = self.find(&shape) {
            return Ok(found);
        }
        // Not under the lock: other programs go on meanwhile. Two threads may translate the same.
        let (text, names) = source(&shape);
        let code = Code::load(context, &codegen::splice(text, &shape, names))?;
        let functions = names
            .iter()
            .map(|name| code.function(&std::ffi::CString::new(*name).unwrap_or_default()))
            .collect::<Outcome<Vec<_>>>()?;
        let blocks = functions.first().map_or(1, |function| code.occupancy(*function));
        let made = Arc::new(Computing { functions, blocks, _code: code });
        let (made, forgotten) = self.0.lock().add(shape, made);
        if let Some(forgotten) = forgotten {
            // Its kernels may still run.
            // SAFETY: the context is current.
            if let Err(code) = check(unsafe { (context.driver.table.context_synchronize)() }) {
                // Better left loaded than unloaded while they do.
                std::mem::forget(forgotten);
                return Err(code);
            }
        }
        Ok(made)
    }

    /// Sees to it that the kernels for a request whose sources begin at these addresses are translated. The
    /// context is current.
    pub(crate) fn prepare(&self, context: &Arc<Context>, compute: &Compute<'_>, starts: &[u64]) -> Outcome {
        self.get(context, Shape::new(compute, starts).0).map(drop)
    }

    fn find(&self, shape: &Shape) -> Option<Arc<Computing>> {
        let mut known = self.0.lock();
        known.clock += 1;
        let clock = known.clock;
        let (used, found) = known.programs.get_mut(shape)?;
        *used = clock;
        Some(Arc::clone(found))
    }
}

impl Known {
    /// Adds a program. Gives the one to be used and the one to be unloaded, if any.
    fn add(&mut self, shape: Shape, made: Arc<Computing>) -> (Arc<Computing>, Option<Arc<Computing>>) {
        self.clock += 1;
        // If another thread was faster, its kernels stay: they may run already, and these do not.
        let (used, kept) = self.programs.entry(shape).or_insert((0, made));
        *used = self.clock;
        let kept = Arc::clone(kept);
        (kept, self.forget_one())
    }

    /// Takes out the program that nobody has asked for for longest, if there are too many. Those that are
    /// being launched stay.
    fn forget_one(&mut self) -> Option<Arc<Computing>> {
        if self.programs.len() <= PROGRAMS_MAX {
            return None;
        }
        let idle = self.programs.iter().filter(|(_, (_, program))| Arc::strong_count(program) == 1);
        let oldest = idle.min_by_key(|(_, (used, _))| *used).map(|(shape, _)| shape.clone())?;
        self.programs.remove(&oldest).map(|(_, program)| program)
    }
}

/// Which text a shape's kernels are in, and their names.
fn source(shape: &Shape) -> (&'static str, &'static [&'static str]) {
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

/// How elements are cut into chunks for [`Action::Find`].
fn chunks(count: u64, bytes_each: u64, blocks: u64, aim: Aim) -> Chunks {
    /// Each block should get about so many chunks.
    const CHUNKS_PER_BLOCK: u64 = 16;
    let even = count.div_ceil(blocks.max(1) * CHUNKS_PER_BLOCK);
    let most = (aim.chunk_bytes_max() / bytes_each.max(1)).max(TILE);
    let least = count.div_ceil(scratch::CHUNKS_MAX);
    let per_chunk = even.clamp(TILE, most).max(least).next_multiple_of(TILE);
    Chunks { base: 0, count, stride: 0, head: 0, per_chunk, chunks: count.div_ceil(per_chunk) }
}

/// Carries a checked computation out on sources that begin at these addresses.
pub(crate) fn run(
    work: &mut Work<'_>,
    compute: &Compute<'_>,
    starts: &[u64],
    answer: Option<HostAddress>,
) -> Outcome {
    let shared = Arc::clone(work.shared);
    let (shape, literals) = Shape::new(compute, starts);
    let programs: &Programs = &shared.kernels.programs;
    let computing = programs.get(work.context(), shape)?;
    let mut base = [0; Compute::SOURCES_MAX];
    base[..starts.len()].copy_from_slice(starts);
    let space = Space {
        base,
        literals,
        first: compute.geometry.first,
        channel: compute.geometry.channel,
        count: compute.count(),
    };
    let tiles = space.count.div_ceil(TILE);
    let blocks = u64::from(shared.card.multiprocessors.saturating_mul(computing.blocks));
    let Some(answer) = answer else {
        if tiles > 0 {
            // SAFETY: the kernel takes the space alone. All fields were checked to be inside of their
            // sources, which have `count` elements; nothing else is written to.
            unsafe { work.launch(computing.functions[0], tiles.min(blocks), &mut [argument(&space)]) }?;
        }
        return Ok(());
    };
    let answer_bytes = compute.answer_bytes();
    let answer_address = match answer.mapped {
        Some(mapped) => mapped,
        None => work.bounce(answer_bytes)?,
    };
    match compute.action {
        Action::Find { limit, count_all, .. } => {
            let limit = limit.min(space.count);
            find(work, &computing, &space, compute, (limit, count_all), answer_address)?;
        }
        Action::Histogram { bins, .. } => {
            let totals = work.scratch()? + scratch::BINS;
            let table = work.context().driver.table;
            // SAFETY: the totals of all bins lie in this queue's scratch memory.
            check(unsafe { (table.memset_d8_async)(totals, 0, bins as usize * 8, work.queue.stream) })?;
            let mut arguments = [argument(&space), argument(&bins), argument(&totals)];
            // SAFETY: these are the parameters in `kernels/compute_histogram.cu`; bins are not more than
            // there is room for in scratch memory and in the answer, which were checked.
            unsafe {
                work.launch(computing.functions[0], tiles.min(blocks), &mut arguments)?;
                let mut arguments = [argument(&bins), argument(&totals), argument(&answer_address)];
                work.launch(
                    computing.functions[1],
                    u64::from(bins.div_ceil(super::THREADS)),
                    &mut arguments,
                )?;
            }
        }
        Action::Sum { .. } | Action::Extremes { .. } | Action::Store { .. } => {
            let blocks = tiles.min(blocks).min(Compute::PARTIALS_MAX);
            // SAFETY: these are the parameters in `kernels/compute_sum.cu` and `kernels/compute_extremes.cu`;
            // the answer has room for so many partial results.
            unsafe {
                work.launch(
                    computing.functions[0],
                    blocks,
                    &mut [argument(&space), argument(&answer_address)],
                )
            }?;
        }
    }
    if answer.mapped.is_none() {
        let bytes = match compute.action {
            Action::Sum { .. } | Action::Extremes { .. } => {
                8 + tiles.min(blocks).clamp(1, Compute::PARTIALS_MAX) * Partial::BYTES
            }
            _ => answer_bytes,
        };
        let to = std::ptr::with_exposed_provenance_mut(answer.host as usize);
        let table = work.context().driver.table;
        // SAFETY: the answer's room was checked, and the bounce memory is as long.
        check(unsafe { (table.memcpy_dtoh_async)(to, answer_address, bytes as usize, work.queue.stream) })?;
    }
    Ok(())
}

/// Counts, scans and lists as a search does.
fn find(
    work: &mut Work<'_>,
    computing: &Computing,
    space: &Space,
    compute: &Compute<'_>,
    (limit, count_all): (u64, bool),
    answer: u64,
) -> Outcome {
    let shared = Arc::clone(work.shared);
    let kernels: &Kernels = &shared.kernels;
    let scan = kernels.searching(work.context(), shared.card.multiprocessors)?.scan;
    let scratch_address = work.scratch()?;
    let (state, counts, hits) = (
        scratch_address + scratch::STATE,
        scratch_address + scratch::COUNTS,
        scratch_address + scratch::HITS,
    );
    if !work.order.search_ready {
        let table = work.context().driver.table;
        // SAFETY: the state lies in this queue's scratch memory.
        check(unsafe {
            (table.memset_d8_async)(state, 0, scratch::STATE_BYTES as usize, work.queue.stream)
        })?;
    }
    work.order.search_ready = false;
    let stop_at = if count_all { u64::MAX } else { limit };
    let bytes_each = compute.sources.iter().map(|source| source.stride.min(64)).sum();
    let most = u64::from(shared.card.multiprocessors.saturating_mul(computing.blocks));
    let chunks = chunks(space.count, bytes_each, most, Aim::new(limit, count_all));
    let blocks = chunks.chunks.min(most);
    // SAFETY (all three): these are the parameters in `kernels/compute_find.cu` and of `search_scan`. Fields
    // were checked to be inside of their sources; state, counts and hits are in scratch memory of this queue,
    // with room for `CHUNKS_MAX` chunks, which there are not more of; the answer has room for the header and
    // `limit` indices.
    if chunks.chunks > 0 {
        let mut arguments =
            [argument(space), argument(&chunks), argument(&stop_at), argument(&state), argument(&counts)];
        // SAFETY: see above.
        unsafe { work.launch(computing.functions[0], blocks, &mut arguments) }?;
    }
    let mut arguments = [
        argument(&chunks.chunks),
        argument(&limit),
        argument(&state),
        argument(&counts),
        argument(&hits),
        argument(&answer),
    ];
    // SAFETY: see above.
    unsafe { work.launch(scan, 1, &mut arguments) }?;
    if limit > 0 && chunks.chunks > 0 {
        let indices = answer + Search::HEADER_BYTES;
        let mut arguments =
            [argument(space), argument(&chunks), argument(&state), argument(&hits), argument(&indices)];
        // SAFETY: see above.
        unsafe { work.launch(computing.functions[1], blocks, &mut arguments) }?;
    }
    work.order.search_ready = true;
    Ok(())
}

#[cfg(test)]
mod tests;
