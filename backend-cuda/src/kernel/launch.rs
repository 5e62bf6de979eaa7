//! Launches of the program's kernels on a CUDA device: translation to PTX, cache, and kernel arguments.

#[forbid(unsafe_code)]
pub(super) mod cache;
#[forbid(unsafe_code)]
pub(super) mod codegen;
mod foreign;
mod on_stream;
#[forbid(unsafe_code)]
mod plan;
#[forbid(unsafe_code)]
mod private_heap;
#[forbid(unsafe_code)]
mod traits;

use backend_api::kernel::Report;
use backend_api::{Error, Launch, LaunchView};

pub(crate) use self::codegen::KernelKey;
use self::codegen::warps::{ROWS, WARP};
use self::codegen::{LeadingParameters, STATE_BYTES};
pub(crate) use self::plan::Planned;
use super::search::AnswerPlace;
use super::{argument, scratch};
use crate::driver::DriverResult;
use crate::host_memory::HostAddress;
use crate::submission::CudaSubmission;

/// Number of blocks of a launch, as a multiple of the concurrent blocks; more blocks even out their run
/// times.
const WAVES: u32 = 4;

const _: () = assert!(STATE_BYTES <= scratch::VALUE - scratch::LAUNCH);

/// Returns true if a launch runs code translated from the kernel's body, not code of the program.
pub(crate) fn is_translated(launch: &Launch<'_>) -> bool {
    foreign::code_of(launch).is_none()
}

/// Submits a launch. Stores an error of the program's own code in `foreign_error`.
pub(crate) fn run(
    work: &mut CudaSubmission<'_>,
    planned: Planned,
    launch: &Launch<'_>,
    report: HostAddress,
    foreign_error: &mut Option<Error>,
) -> DriverResult {
    let Planned { shape, bases, head, pitch, slab_bytes } = planned;
    if foreign::run(work, launch, &bases, report, foreign_error)? {
        return Ok(());
    }
    let core = work.core;
    let (gives_tables, threads, lanes) = (shape.gives_tables, shape.threads(), u64::from(shape.lanes));
    let is_around = shape.is_around;
    let Some(built) = core.kernels.launches.get(work.context(), shape)? else { return Ok(()) };
    let scratch = work.scratch()?;
    let state = ready_state(work, scratch)?;
    let report = AnswerPlace::new(work, report, Report::BYTES)?;
    let mut pieces = if lanes > 1 { (launch.items - head) / lanes } else { 0 };
    if is_around {
        // Only whole warps process several work-items per thread, so round down.
        pieces -= pieces % u64::from(WARP);
    }
    // Divide the work into thread blocks of several rows (ranges of elements); each warp processes one row.
    let even_pieces = pieces / u64::from(WARP * ROWS) / pitch.max(1) * pitch;
    let items = launch.items - pieces * (lanes - 1);
    let at_once = built.blocks.map_or(u32::MAX, |blocks| core.card.multiprocessors.saturating_mul(blocks));
    let mut blocks = items.div_ceil(threads.into()).min(at_once.saturating_mul(WAVES).into());
    let mut slabs = 0;
    if let Some(bytes) = slab_bytes {
        (slabs, blocks) = work.slabs(bytes * u64::from(threads), blocks.min(at_once.into()))?;
    }
    let mut words = leading_words(&[
        (LeadingParameters::Items, items),
        (LeadingParameters::Head, head),
        (LeadingParameters::Pieces, pieces),
        (LeadingParameters::Pitch, pitch),
        (LeadingParameters::Reciprocal, reciprocal(pitch)),
        (LeadingParameters::Striped, if even_pieces >> 31 == 0 { even_pieces } else { 0 }),
        (LeadingParameters::First, launch.geometry.first),
        (LeadingParameters::Channel, launch.geometry.channel),
        (LeadingParameters::Budget, launch.budget.unwrap_or(0)),
        (LeadingParameters::State, state),
        (LeadingParameters::Report, report.address),
        (LeadingParameters::Tables, scratch + scratch::PATTERN),
        (LeadingParameters::Slabs, slabs),
        (LeadingParameters::SlabBytes, slab_bytes.unwrap_or(0)),
    ]);
    push_views(&mut words, launch.views, &bases);
    words.extend(launch.params);
    if gives_tables {
        // Tables start and end at multiples of 8 bytes, so these words contain all of their bytes.
        words.extend(launch.table.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)));
    } else if !launch.table.is_empty() {
        work.send(launch.table, scratch + scratch::PATTERN)?;
    }
    // SAFETY: the kernel takes these words, as its shape specifies. Views were checked to be inside their
    // memory, fields inside their elements, and tables to have the declared length. The kernel compares every
    // index with these lengths. State and tables are in scratch memory of this queue, and the report was
    // checked to have room. Each thread of the `blocks` blocks has a slab, and compares accesses with the
    // allocated part.
    unsafe {
        work.stream().launch_of(built.function, blocks, (threads, 0), &mut [argument(&words[0])])?;
    }
    work.order.launch_ready = true;
    // SAFETY: the report has this length.
    unsafe { report.fetch(work, Report::BYTES) }
}

/// Returns the address of the launches' state in the scratch memory; the state is zero.
fn ready_state(work: &mut CudaSubmission<'_>, scratch: u64) -> DriverResult<u64> {
    let state = scratch + scratch::LAUNCH;
    if !std::mem::take(&mut work.order.launch_ready) {
        // SAFETY: the state is in this queue's scratch memory.
        unsafe { work.stream().clear(state, STATE_BYTES) }?;
    }
    Ok(state)
}

/// Returns the values of a kernel's leading parameters in their order.
fn leading_words(given: &[(LeadingParameters, u64)]) -> Vec<u64> {
    let mut words = Vec::with_capacity(32);
    words.resize(LeadingParameters::COUNT, 0);
    for (place, word) in given {
        words[*place as usize] = *word;
    }
    words
}

/// Appends the parameters of views: for each view its number of elements and its addresses.
fn push_views(words: &mut Vec<u64>, views: &[LaunchView<'_>], mut bases: &[u64]) {
    for view in views {
        let (own, others) = bases.split_at(view.bases().len());
        words.push(view.count());
        words.extend(own);
        bases = others;
    }
}

/// Reciprocal for the division of 31-bit numbers. The result has a factor of 32 bits, and above it the shift
/// for the upper half of the product with twice the number (Granlund and Montgomery, "Division by invariant
/// integers using multiplication").
fn reciprocal(divisor: u64) -> u64 {
    if divisor >> 31 != 0 {
        return 0;
    }
    let divisor = divisor.max(1);
    let shift = divisor.next_power_of_two().ilog2();
    (1_u64 << (31 + shift)).div_ceil(divisor) | u64::from(shift) << 32
}

#[cfg(test)]
mod tests;
