//! Launches: kernels of the program, translated and kept, and what they are given.

#[forbid(unsafe_code)]
mod arena;
#[forbid(unsafe_code)]
pub(super) mod codegen;
mod foreign;
#[forbid(unsafe_code)]
mod traits;

use std::sync::Arc;

use backend_api::expr::ProgramCache;
use backend_api::kernel::{Kernel, KernelFacts, Report, Space};
use backend_api::{Error, ErrorKind, Launch, Result, View};
use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;

pub(crate) use self::codegen::Shape;
use self::codegen::windows::{ROWS, WARP};
use self::codegen::{Given, STATE_BYTES, ViewShape};
use self::traits::Traits;
use super::search::Answer;
use super::{argument, scratch};
use crate::context::Context;
use crate::core::Work;
use crate::driver::objects::Module;
use crate::driver::{Function, Outcome};
use crate::host_memory::HostAddress;

/// So many kernels are translated at once.
const KERNELS_IN_A_MODULE: usize = 256;
/// Blocks that a multiprocessor gets beyond those that it runs at once even out what it takes to run them.
const WAVES: u32 = 4;

const _: () = assert!(STATE_BYTES <= scratch::VALUE - scratch::LAUNCH);

/// A launch that was checked, ready to be carried out.
#[derive(Debug)]
pub(crate) struct Planned {
    pub shape: Shape,
    /// Where the views begin: each at its places, one view after the other.
    bases: Vec<u64>,
    /// How many items come before those that threads take several of at once.
    head: u64,
    /// How many blocks a row of places has, if that is known and whole.
    pitch: u64,
    /// How much memory a thread has that its item can take, if the kernel takes any: less than 4 GiB.
    slab_bytes: Option<u64>,
}

impl Planned {
    /// Of a kernel with these traits, whose views begin at these addresses.
    ///
    /// # Errors
    /// `Unsupported` for what is not carried out here, `OutOfMemory` for memory that no card has.
    fn new(operation: &'static str, launch: &Launch<'_>, traits: &Traits, bases: Vec<u64>) -> Result<Self> {
        let (body, mut next) = (launch.kernel.body(), 0);
        let view = |(number, view): (usize, &View<'_>)| {
            let count = view.bases().len();
            let bases = &bases[next..next + count];
            next += count;
            let starts = bases.iter().fold(view.stride() | 8, |all, base| all | base);
            // All pages at one place lie one after the other.
            let page_len = if count == 1 { 1 } else { view.page_len() };
            let access = body.views[number].access;
            let is_inside = traits.views[number].is_inside(access, view.count(), launch.items);
            let align = 1 << starts.trailing_zeros();
            ViewShape { stride: view.stride(), align, page_len, bases: count, is_inside, ahead: 0 }
        };
        let views = launch.views.iter().enumerate().map(view).collect();
        let of_index = |number: u64| if traits.needs_index { number } else { 1 };
        let mut shape = Shape {
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
        let slab_bytes = launch.kernel.needs().arena.then(|| {
            // Where loops end by their budget, registers may be read that were not written.
            let is_plain = launch.budget.is_none() || !body.meets();
            let most = is_plain.then(|| arena::most_taken(body, launch.params)).flatten();
            most.map_or(launch.arena_bytes, |most| most.min(launch.arena_bytes))
        });
        if let Some(bytes) = slab_bytes.filter(|bytes| *bytes > u32::MAX.into()) {
            let detail = format!("an item takes up to {bytes} bytes for itself");
            return Err(Error::new(ErrorKind::OutOfMemory, operation).with_detail(detail).with_bytes(bytes));
        }
        Ok(Self { shape, bases, head: head.min(launch.items), pitch, slab_bytes })
    }
}

/// Decides how many items a thread takes at once: as many as have 16 bytes in the view with the longest
/// elements, if those that items reach lie one next to the other. Gives the number of the first one that may
/// begin a piece: so that pieces are as long as can be, above all where they are stored.
fn side_by_side(shape: &mut Shape, traits: &Traits, bases: &[u64]) -> u64 {
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
        // Each item singly where words do not fit: not so many that lie apart.
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
    /// How many blocks a multiprocessor runs at once, if items can fail: each block then says when it is
    /// done. Others are as many as there is work: cards deal them out better than loops do.
    blocks: Option<u32>,
    module: Arc<Module>,
}

/// The translated kernels of a device.
#[derive(Debug)]
pub(crate) struct Launches {
    traits: ProgramCache<Kernel, Traits>,
    built: ProgramCache<Shape, Built>,
    texts: foreign::Texts,
    compute_capability: (u32, u32),
}

impl Launches {
    pub(crate) fn new(compute_capability: (u32, u32)) -> Self {
        let (traits, built, texts) = Default::default();
        Self { traits, built, texts, compute_capability }
    }

    /// A launch that was checked, whose views begin at these addresses.
    ///
    /// # Errors
    /// `Unsupported` for what is not carried out here.
    pub(crate) fn plan(
        &self,
        operation: &'static str,
        launch: &Launch<'_>,
        bases: Vec<u64>,
    ) -> Result<Planned> {
        let find = || self.traits.find(launch.kernel);
        let make = || self.traits.add(launch.kernel.clone(), Traits::new(launch.kernel.body())).0;
        Planned::new(operation, launch, &find().unwrap_or_else(make), bases)
    }

    /// Sees to it that the kernels for these shapes are translated. The context is current, here and below.
    pub(crate) fn prepare(&self, context: &Arc<Context>, shapes: Vec<Shape>) -> Outcome {
        let mut missing: Vec<Shape> = Vec::new();
        for shape in shapes {
            if self.built.find(&shape).is_none() && !missing.contains(&shape) {
                missing.push(shape);
            }
        }
        missing.chunks(KERNELS_IN_A_MODULE).try_for_each(|shapes| self.build(context, shapes).map(drop))
    }

    /// The kernel for a shape, translated now if it is not known.
    fn get(&self, context: &Arc<Context>, shape: Shape) -> Outcome<Option<Arc<Built>>> {
        match self.built.find(&shape) {
            Some(found) => Ok(Some(found)),
            None => self.build(context, &[shape]),
        }
    }

    /// Translates kernels in one module; gives the last one. Two threads may translate the same.
    fn build(&self, context: &Arc<Context>, shapes: &[Shape]) -> Outcome<Option<Arc<Built>>> {
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
            // The forgotten one may still run: better left loaded than unloaded while it does.
            if let Some(forgotten) = forgotten
                && let Err(code) = context.synchronize()
            {
                std::mem::forget(forgotten);
                return Err(code);
            }
        }
        Ok(last)
    }

    /// What the driver tells of a kernel.
    pub(crate) fn facts(&self, context: &Arc<Context>, shape: Shape) -> Outcome<KernelFacts> {
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

/// Whether a kernel's body is translated for a launch.
pub(crate) fn is_translated(launch: &Launch<'_>) -> bool {
    foreign::code_of(launch).is_none()
}

/// Carries a launch out. An error of the program's own is left in `told`.
pub(crate) fn run(
    work: &mut Work<'_>,
    planned: Planned,
    launch: &Launch<'_>,
    report: HostAddress,
    told: &mut Option<Error>,
) -> Outcome {
    let Planned { shape, bases, head, pitch, slab_bytes } = planned;
    if let Some(code) = foreign::code_of(launch) {
        return foreign::run(work, launch, code, &bases, report, told);
    }
    let core = work.core;
    let (gives_tables, threads, lanes) = (shape.gives_tables, shape.threads(), u64::from(shape.lanes));
    let is_around = shape.is_around;
    let Some(built) = core.kernels.launches.get(work.context(), shape)? else { return Ok(()) };
    let scratch = work.scratch()?;
    let state = scratch + scratch::LAUNCH;
    if !std::mem::take(&mut work.order.launch_ready) {
        // SAFETY: the state lies in this queue's scratch memory.
        unsafe { work.stream().clear(state, STATE_BYTES) }?;
    }
    let report = Answer::new(work, report, Report::BYTES)?;
    let mut pieces = if lanes > 1 { (launch.items - head) / lanes } else { 0 };
    if is_around {
        // Whole warps have some.
        pieces -= pieces % u64::from(WARP);
    }
    // Blocks of rows, of which each warp takes one.
    let dealt = pieces / u64::from(WARP * ROWS) / pitch.max(1) * pitch;
    let items = launch.items - pieces * (lanes - 1);
    let at_once = built.blocks.map_or(u32::MAX, |blocks| core.card.multiprocessors.saturating_mul(blocks));
    let mut blocks = items.div_ceil(threads.into()).min(at_once.saturating_mul(WAVES).into());
    let mut slabs = 0;
    if let Some(bytes) = slab_bytes {
        (slabs, blocks) = work.slabs(bytes * u64::from(threads), blocks.min(at_once.into()))?;
    }
    let mut words = Vec::with_capacity(32);
    words.resize(Given::COUNT, 0);
    for (place, word) in [
        (Given::Items, items),
        (Given::Head, head),
        (Given::Pieces, pieces),
        (Given::Pitch, pitch),
        (Given::Reciprocal, reciprocal(pitch)),
        (Given::Dealt, if dealt >> 31 == 0 { dealt } else { 0 }),
        (Given::First, launch.geometry.first),
        (Given::Channel, launch.geometry.channel),
        (Given::Budget, launch.budget.unwrap_or(0)),
        (Given::State, state),
        (Given::Report, report.address),
        (Given::Tables, scratch + scratch::PATTERN),
        (Given::Slabs, slabs),
        (Given::SlabBytes, slab_bytes.unwrap_or(0)),
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
        // Tables begin at multiples of 8 bytes, and end at one.
        words.extend(launch.table.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)));
    } else if !launch.table.is_empty() {
        work.send(launch.table, scratch + scratch::PATTERN)?;
    }
    // SAFETY: the kernel takes these words, as its shape says. Views were checked to be inside of their
    // memory, fields inside of their elements, and tables to be as long as declared; the kernel compares
    // every index with these lengths. State and tables are in scratch memory of this queue, and the report
    // was checked to have room. Each thread of so many blocks has a slab, and compares with what was taken.
    unsafe {
        work.stream().launch_of(built.function, blocks, (threads, 0), &mut [argument(&words[0])])?;
    }
    work.order.launch_ready = true;
    // SAFETY: the report has so many bytes.
    unsafe { report.fetch(work, Report::BYTES) }
}

/// By what numbers of 31 bits are divided by another: a factor of 32 bits, and behind it by how many bits
/// the upper half of the product with twice the number is shifted (Granlund and Montgomery, "Division by
/// invariant integers using multiplication").
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
