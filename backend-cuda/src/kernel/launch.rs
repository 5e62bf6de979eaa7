//! Launches: kernels of the program, translated and kept, and what they are given.

#[forbid(unsafe_code)]
mod codegen;

use std::sync::Arc;

use backend_api::expr::ProgramCache;
use backend_api::kernel::{KernelFacts, Needs, Report, Space};
use backend_api::{Launch, Result, View};
use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;

pub(crate) use self::codegen::Shape;
use self::codegen::{Given, STATE_BYTES, ViewShape};
use super::search::Answer;
use super::{argument, scratch};
use crate::context::Context;
use crate::core::Work;
use crate::driver::objects::Module;
use crate::driver::{Function, Outcome};
use crate::host_memory::HostAddress;

/// What is carried out.
const CAN: Needs = Needs { arena: false, ..Needs::ALL };
/// So many kernels are translated at once.
const KERNELS_IN_A_MODULE: usize = 256;
/// Blocks that a multiprocessor gets beyond those that it runs at once even out what it takes to run them.
const WAVES: u32 = 4;

const _: () = assert!(STATE_BYTES <= scratch::VALUE - scratch::LAUNCH);

impl Shape {
    /// The shape of a launch that was checked, whose views begin at these addresses.
    ///
    /// # Errors
    /// `Unsupported` for what is not carried out here.
    pub(crate) fn new(operation: &'static str, launch: &Launch<'_>, bases: &[Vec<u64>]) -> Result<Self> {
        launch.kernel.needs().check(operation, CAN)?;
        let view = |(view, bases): (&View<'_>, &Vec<u64>)| {
            let starts = bases.iter().fold(view.stride() | 8, |all, base| all | base);
            // All pages at one place lie one after the other.
            let page_len = if bases.len() == 1 { 1 } else { view.page_len() };
            let align = 1 << starts.trailing_zeros();
            ViewShape { stride: view.stride(), align, page_len, bases: bases.len() }
        };
        let needs_index = Self::needs_index(launch.kernel.body());
        let of_index = |number: u64| if needs_index { number } else { 1 };
        let shape = Self {
            kernel: launch.kernel.clone(),
            views: launch.views.iter().zip(bases).map(view).collect(),
            page_len: of_index(launch.geometry.page_len),
            channels: of_index(launch.geometry.channels),
            has_budget: launch.budget.is_some(),
        };
        shape.check(operation)?;
        Ok(shape)
    }
}

/// A translated kernel.
#[derive(Debug)]
struct Built {
    function: Function,
    /// How many blocks a multiprocessor runs at once.
    blocks: u32,
    module: Arc<Module>,
}

/// The translated kernels of a device.
#[derive(Debug)]
pub(crate) struct Launches {
    built: ProgramCache<Shape, Built>,
    compute_capability: (u32, u32),
}

impl Launches {
    pub(crate) fn new(compute_capability: (u32, u32)) -> Self {
        Self { built: ProgramCache::default(), compute_capability }
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
        let module = Arc::new(Module::load(context, &codegen::module(shapes, self.compute_capability))?);
        let mut last = None;
        for (number, shape) in shapes.iter().enumerate() {
            let function = module.function(&codegen::name(number))?;
            let built = Built {
                function,
                blocks: module.occupancy(function, shape.threads()),
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

/// Carries a checked launch out, whose views begin at these addresses.
pub(crate) fn run(
    work: &mut Work<'_>,
    shape: Shape,
    launch: &Launch<'_>,
    bases: &[Vec<u64>],
    report: HostAddress,
) -> Outcome {
    let core = work.core;
    let (gives_tables, threads) = (shape.gives_tables(), shape.threads());
    let Some(built) = core.kernels.launches.get(work.context(), shape)? else { return Ok(()) };
    let scratch = work.scratch()?;
    let state = scratch + scratch::LAUNCH;
    if !std::mem::take(&mut work.order.launch_ready) {
        // SAFETY: the state lies in this queue's scratch memory.
        unsafe { work.stream().clear(state, STATE_BYTES) }?;
    }
    let report = Answer::new(work, report, Report::BYTES)?;
    let mut words = vec![0; Given::COUNT];
    for (place, word) in [
        (Given::Items, launch.items),
        (Given::First, launch.geometry.first),
        (Given::Channel, launch.geometry.channel),
        (Given::Budget, launch.budget.unwrap_or(0)),
        (Given::State, state),
        (Given::Report, report.address),
        (Given::Tables, scratch + scratch::PATTERN),
    ] {
        words[place as usize] = word;
    }
    for (view, bases) in launch.views.iter().zip(bases) {
        words.push(view.count());
        words.extend(bases);
    }
    words.extend(launch.params);
    if gives_tables {
        // Tables begin at multiples of 8 bytes, and end at one.
        words.extend(launch.table.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)));
    } else {
        work.send(launch.table, scratch + scratch::PATTERN)?;
    }
    let blocks = launch.items.div_ceil(threads.into());
    let most = core.card.multiprocessors.saturating_mul(built.blocks).saturating_mul(WAVES);
    // SAFETY: the kernel takes these words, as its shape says. Views were checked to be inside of their
    // memory, fields inside of their elements, and tables to be as long as declared; the kernel compares
    // every index with these lengths. State and tables are in scratch memory of this queue, and the report
    // was checked to have room.
    unsafe {
        let blocks = blocks.min(most.into());
        work.stream().launch_of(built.function, blocks, threads, &mut [argument(&words[0])])?;
    }
    work.order.launch_ready = true;
    // SAFETY: the report has so many bytes.
    unsafe { report.fetch(work, Report::BYTES) }
}

#[cfg(test)]
mod tests;
