//! Launches of the program's kernels: translation, cache, and arguments.

#[forbid(unsafe_code)]
pub(super) mod codegen;
mod foreign;
#[forbid(unsafe_code)]
mod private_heap;
#[forbid(unsafe_code)]
mod traits;

use std::sync::Arc;

use backend_api::expr::ProgramCache;
use backend_api::kernel::{KernelFacts, Report, Space, VerifiedKernel};
use backend_api::{Error, ErrorKind, Launch, LaunchView, Result};
use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;

pub(crate) use self::codegen::KernelKey;
use self::codegen::windows::{ROWS, WARP};
use self::codegen::{LeadingParameters, STATE_BYTES, ViewLayout};
use self::traits::LaunchTraits;
use super::search::AnswerPlace;
use super::{argument, scratch};
use crate::context::CudaContext;
use crate::core::CudaSubmission;
use crate::driver::objects::Module;
use crate::driver::{DriverResult, Function};
use crate::host_memory::HostAddress;

/// Number of kernels in one module.
const KERNELS_IN_A_MODULE: usize = 256;
/// Blocks for each multiprocessor, relative to its concurrent blocks; more blocks even out their run times.
const WAVES: u32 = 4;

const _: () = assert!(STATE_BYTES <= scratch::VALUE - scratch::LAUNCH);

/// A checked launch, ready to submit.
#[derive(Debug)]
pub(crate) struct Planned {
    pub shape: KernelKey,
    /// Start addresses of the views: all places of one view, then of the next.
    bases: Vec<u64>,
    /// Number of items before the ones that threads process several at a time.
    head: u64,
    /// Number of blocks in a row of positions, if it is known and whole.
    pitch: u64,
    /// Bytes of private memory for each thread, if the kernel allocates any: less than 4 GiB.
    slab_bytes: Option<u64>,
}

impl Planned {
    /// Plans a launch of a kernel with these traits and start addresses of views.
    ///
    /// # Errors
    /// `Unsupported` for kernels that this backend cannot run, `OutOfMemory` for more memory than any GPU
    /// has.
    fn new(
        operation: &'static str,
        launch: &Launch<'_>,
        traits: &LaunchTraits,
        bases: Vec<u64>,
    ) -> Result<Self> {
        let (body, mut next) = (launch.kernel.body(), 0);
        let view = |(number, view): (usize, &LaunchView<'_>)| {
            let count = view.bases().len();
            let bases = &bases[next..next + count];
            next += count;
            let starts = bases.iter().fold(view.stride() | 8, |all, base| all | base);
            // With a single base all pages are contiguous, so their length does not matter.
            let page_len = if count == 1 { 1 } else { view.page_len() };
            let access = body.views[number].access;
            let is_inside = traits.views[number].is_inside(access, view.count(), launch.items);
            let align = 1 << starts.trailing_zeros();
            ViewLayout { stride: view.stride(), align, page_len, bases: count, is_inside, ahead: 0 }
        };
        let views = launch.views.iter().enumerate().map(view).collect();
        let of_index = |number: u64| if traits.needs_index { number } else { 1 };
        let mut shape = KernelKey {
            kernel: launch.kernel.clone(),
            views,
            page_len: of_index(launch.geometry.page_len),
            channels: of_index(launch.geometry.channels),
            has_budget: launch.budget.is_some(),
            gives_tables: traits.gives_tables,
            lanes: 1,
            is_around: false,
        };
        shape.check(operation)?;
        let around = traits.around.as_ref().filter(|_| shape.channels == 1);
        let head =
            if traits.is_plain || around.is_some() { side_by_side(&mut shape, traits, &bases) } else { 0 };
        shape.is_around = around.is_some() && shape.lanes > 1;
        let pitch = around.and_then(|around| around.pitch).filter(|_| shape.is_around);
        let row = u64::from(WARP * shape.lanes);
        let pitch = pitch.map_or(0, |number| launch.params[usize::from(number)]);
        let pitch = if pitch.is_multiple_of(row) { pitch / row } else { 0 };
        let slab_bytes = launch.kernel.needs().private_heap.then(|| {
            // If loops end by their budget, the kernel may read registers that it has not written.
            let is_plain = launch.budget.is_none() || !body.meets();
            let most = is_plain.then(|| private_heap::most_taken(body, launch.params)).flatten();
            most.map_or(launch.private_heap_bytes, |most| most.min(launch.private_heap_bytes))
        });
        if let Some(bytes) = slab_bytes.filter(|bytes| *bytes > u32::MAX.into()) {
            let detail = format!(
                "an item needs up to {bytes} bytes of private memory, but 4 GiB are \
                                  supported"
            );
            return Err(Error::new(ErrorKind::OutOfMemory, operation).with_detail(detail).with_bytes(bytes));
        }
        Ok(Self { shape, bases, head: head.min(launch.items), pitch, slab_bytes })
    }
}

/// Chooses the number of items that a thread processes at once: 16 bytes of the longest elements, if the
/// items' elements are contiguous. Returns the first item that can start a piece. The choice makes pieces as
/// long as possible, in particular for stores.
fn side_by_side(shape: &mut KernelKey, traits: &LaunchTraits, bases: &[u64]) -> u64 {
    let around =
        |view: usize| traits.around.iter().flat_map(|around| &around.runs).find(|run| run.view == view);
    let is_dense = |view: usize| {
        let (shape, own) = (&shape.views[view], traits.views[view].own.flatten());
        let run = around(view);
        let of = run.map(|run| run.of).or(own);
        let is_dense = of.is_none_or(|of| u64::from(of.bytes()) == shape.stride);
        is_dense && shape.bases == 1 && (shape.is_inside || run.is_some())
    };
    let own = |number: &usize| traits.views[*number].own.is_some();
    let views: Vec<usize> = (0..shape.views.len()).filter(own).collect();
    let reached = (0..shape.views.len()).filter(|view| own(view) || around(*view).is_some());
    let longest = reached.map(|view| shape.views[view].stride).max();
    let Some(longest) = longest.filter(|_| (0..shape.views.len()).all(is_dense)) else {
        return 0;
    };
    let ahead = |lanes: u64, head: u64, view: usize| {
        let stride = shape.views[view].stride;
        1_u64 << ((bases[view] + head * stride) | (stride * lanes) | 16).trailing_zeros()
    };
    let body = shape.kernel.body();
    let weight = |view: usize| if body.views[view].access.is_written() { 4 } else { 1 };
    let best = |lanes: u64| {
        let score =
            |head: u64| views.iter().map(|view| weight(*view) * ahead(lanes, head, *view)).sum::<u64>();
        (0..lanes).rev().max_by_key(|head| score(*head)).unwrap_or(0)
    };
    let mut lanes = 16 / longest;
    let mut head = best(lanes);
    if longest < 4 && views.iter().any(|view| ahead(lanes, head, *view) < 4) {
        // If accesses of whole words are impossible, the kernel accesses items one by one, so limit their
        // number.
        lanes = 4 / longest;
        head = best(lanes);
    }
    let found: Vec<u64> = views.iter().map(|view| ahead(lanes, head, *view)).collect();
    views.into_iter().zip(found).for_each(|(view, ahead)| shape.views[view].ahead = ahead);
    shape.lanes = lanes as u32;
    head
}

/// A translated kernel.
#[derive(Debug)]
struct Built {
    function: Function,
    /// Number of concurrent blocks of a multiprocessor, if items can fail: then each block counts as done at
    /// its end. Other kernels get one block for each part of the work, because GPUs schedule blocks better
    /// than loops do.
    blocks: Option<u32>,
    module: Arc<Module>,
}

/// Cache of translated kernels of a device.
#[derive(Debug)]
pub(crate) struct TranslatedKernelCache {
    traits: ProgramCache<VerifiedKernel, LaunchTraits>,
    built: ProgramCache<KernelKey, Built>,
    texts: foreign::ModuleCache,
    compute_capability: (u32, u32),
}

impl TranslatedKernelCache {
    pub(crate) fn new(compute_capability: (u32, u32)) -> Self {
        let (traits, built, texts) = Default::default();
        Self { traits, built, texts, compute_capability }
    }

    /// Plans a checked launch with these start addresses of views.
    ///
    /// # Errors
    /// `Unsupported` for launches that this backend cannot run.
    pub(crate) fn plan(
        &self,
        operation: &'static str,
        launch: &Launch<'_>,
        bases: Vec<u64>,
    ) -> Result<Planned> {
        let find = || self.traits.find(launch.kernel);
        let make = || self.traits.add(launch.kernel.clone(), LaunchTraits::new(launch.kernel.body())).0;
        Planned::new(operation, launch, &find().unwrap_or_else(make), bases)
    }

    /// Translates missing kernels of these shapes. The context is current, here and below.
    pub(crate) fn prepare(&self, context: &Arc<CudaContext>, shapes: Vec<KernelKey>) -> DriverResult {
        let mut missing: Vec<KernelKey> = Vec::new();
        for shape in shapes {
            if self.built.find(&shape).is_none() && !missing.contains(&shape) {
                missing.push(shape);
            }
        }
        missing.chunks(KERNELS_IN_A_MODULE).try_for_each(|shapes| self.build(context, shapes).map(drop))
    }

    /// Returns the kernel of a shape, and translates it if it is not in the cache.
    fn get(&self, context: &Arc<CudaContext>, shape: KernelKey) -> DriverResult<Option<Arc<Built>>> {
        match self.built.find(&shape) {
            Some(found) => Ok(Some(found)),
            None => self.build(context, &[shape]),
        }
    }

    /// Translates kernels in one module; returns the last. Two threads may translate the same kernel.
    fn build(&self, context: &Arc<CudaContext>, shapes: &[KernelKey]) -> DriverResult<Option<Arc<Built>>> {
        let (text, can_fail) = codegen::module(shapes, self.compute_capability);
        let module = Arc::new(Module::load(context, &text)?);
        let mut last = None;
        for (number, (shape, can_fail)) in shapes.iter().zip(can_fail).enumerate() {
            let function = module.function(&codegen::name(number))?;
            let built = Built {
                function,
                blocks: can_fail.then(|| module.occupancy(function, shape.threads())),
                module: Arc::clone(&module),
            };
            let (made, forgotten) = self.built.add(shape.clone(), built);
            last = Some(made);
            // An evicted kernel may still run. If the wait for it fails, leak its module.
            if let Some(forgotten) = forgotten
                && let Err(code) = context.synchronize()
            {
                std::mem::forget(forgotten);
                return Err(code);
            }
        }
        Ok(last)
    }

    /// Returns the driver's facts about a kernel.
    pub(crate) fn facts(&self, context: &Arc<CudaContext>, shape: KernelKey) -> DriverResult<KernelFacts> {
        let arrays = shape.kernel.body().arrays.iter();
        let of_item = arrays.filter(|array| array.space == Space::Item);
        let declared: u64 = of_item.map(|array| array.bytes().next_multiple_of(8)).sum();
        let (mut facts, threads) = (KernelFacts::default(), shape.threads());
        let Some(built) = self.get(context, shape)? else { return Ok(facts) };
        let ask = |which| built.module.attribute(built.function, which);
        facts.registers = Some(ask(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?);
        let local = ask(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?;
        facts.spilled_bytes = Some(u64::from(local).saturating_sub(declared));
        facts.group_len = Some(threads);
        Ok(facts)
    }
}

/// Returns true if a launch runs the translation of the kernel's body.
pub(crate) fn is_translated(launch: &Launch<'_>) -> bool {
    foreign::code_of(launch).is_none()
}

/// Runs a launch. Stores an error of foreign code in `foreign_error`.
pub(crate) fn run(
    work: &mut CudaSubmission<'_>,
    planned: Planned,
    launch: &Launch<'_>,
    report: HostAddress,
    foreign_error: &mut Option<Error>,
) -> DriverResult {
    let Planned { shape, bases, head, pitch, slab_bytes } = planned;
    if let Some(code) = foreign::code_of(launch) {
        return foreign::run(work, launch, code, &bases, report, foreign_error);
    }
    let core = work.core;
    let (gives_tables, threads, lanes) = (shape.gives_tables, shape.threads(), u64::from(shape.lanes));
    let is_around = shape.is_around;
    let Some(built) = core.kernels.launches.get(work.context(), shape)? else { return Ok(()) };
    let scratch = work.scratch()?;
    let state = scratch + scratch::LAUNCH;
    if !std::mem::take(&mut work.order.launch_ready) {
        // SAFETY: the state is in this queue's scratch memory.
        unsafe { work.stream().clear(state, STATE_BYTES) }?;
    }
    let report = AnswerPlace::new(work, report, Report::BYTES)?;
    let mut pieces = if lanes > 1 { (launch.items - head) / lanes } else { 0 };
    if is_around {
        // Only whole warps process pieces.
        pieces -= pieces % u64::from(WARP);
    }
    // The work is divided into blocks of rows; each warp takes one row.
    let even_pieces = pieces / u64::from(WARP * ROWS) / pitch.max(1) * pitch;
    let items = launch.items - pieces * (lanes - 1);
    let at_once = built.blocks.map_or(u32::MAX, |blocks| core.card.multiprocessors.saturating_mul(blocks));
    let mut blocks = items.div_ceil(threads.into()).min(at_once.saturating_mul(WAVES).into());
    let mut slabs = 0;
    if let Some(bytes) = slab_bytes {
        (slabs, blocks) = work.slabs(bytes * u64::from(threads), blocks.min(at_once.into()))?;
    }
    let mut words = Vec::with_capacity(32);
    words.resize(LeadingParameters::COUNT, 0);
    for (place, word) in [
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
    ] {
        words[place as usize] = word;
    }
    let mut bases = &bases[..];
    for view in launch.views {
        let (own, others) = bases.split_at(view.bases().len());
        words.push(view.count());
        words.extend(own);
        bases = others;
    }
    words.extend(launch.params);
    if gives_tables {
        // Tables start and end at multiples of 8 bytes.
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

/// Reciprocal for the division of numbers of 31 bits: a factor of 32 bits, and above it the shift in bytes
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
