//! Cache of the program's kernels after translation to PTX, and of loaded PTX texts of the program.

use std::sync::Arc;

use backend_api::expr::ProgramCache;
use backend_api::kernel::{self, KernelFacts, Space, VerifiedKernel};
use backend_api::{Launch, Result};
use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;

use super::codegen::{self, KernelKey};
use super::plan::Planned;
use super::traits::LaunchTraits;
use crate::context::CudaContext;
use crate::driver::objects::{LoadedKernel, Module};
use crate::driver::{DriverResult, Function};

/// Maximum number of kernels in one module.
const KERNELS_IN_A_MODULE: usize = 256;

#[derive(Debug)]
pub(super) struct TranslatedKernel {
    pub function: Function,
    /// Number of blocks that a multiprocessor runs concurrently, if work-items of the kernel can fail; else
    /// `None`. A kernel that can fail has few blocks, each with a loop, because each block updates a shared
    /// counter at its end. Other kernels have one block for each part of the work.
    pub blocks: Option<u32>,
    module: Arc<Module>,
}

#[derive(Debug)]
pub(crate) struct TranslatedKernelCache {
    traits: ProgramCache<VerifiedKernel, LaunchTraits>,
    built: ProgramCache<KernelKey, TranslatedKernel>,
    pub(super) texts: ModuleCache,
    compute_capability: (u32, u32),
}

impl TranslatedKernelCache {
    pub(crate) fn new(compute_capability: (u32, u32)) -> Self {
        let (traits, built, texts) = Default::default();
        Self { traits, built, texts, compute_capability }
    }

    /// Plans a checked launch; `bases` has the start addresses of its views.
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

    /// Translates the kernels of these keys, unless cached. The context must be current, here and below.
    pub(crate) fn prepare(&self, context: &Arc<CudaContext>, shapes: Vec<KernelKey>) -> DriverResult {
        let mut missing: Vec<KernelKey> = Vec::new();
        for shape in shapes {
            if self.built.find(&shape).is_none() && !missing.contains(&shape) {
                missing.push(shape);
            }
        }
        missing.chunks(KERNELS_IN_A_MODULE).try_for_each(|shapes| self.build(context, shapes).map(drop))
    }

    /// Returns the kernel of a key, and translates it if it is not in the cache.
    pub(super) fn get(
        &self,
        context: &Arc<CudaContext>,
        shape: KernelKey,
    ) -> DriverResult<Option<Arc<TranslatedKernel>>> {
        match self.built.find(&shape) {
            Some(found) => Ok(Some(found)),
            None => self.build(context, &[shape]),
        }
    }

    /// Translates kernels in one module; returns the last kernel. Two threads may translate the same kernel.
    fn build(
        &self,
        context: &Arc<CudaContext>,
        shapes: &[KernelKey],
    ) -> DriverResult<Option<Arc<TranslatedKernel>>> {
        let (text, can_fail) = codegen::module(shapes, self.compute_capability);
        let module = Arc::new(Module::load(context, &text)?);
        let mut last = None;
        for (number, (shape, can_fail)) in shapes.iter().zip(can_fail).enumerate() {
            let function = module.function(&codegen::name(number))?;
            let built = TranslatedKernel {
                function,
                blocks: can_fail.then(|| module.occupancy(function, shape.threads())),
                module: Arc::clone(&module),
            };
            let (made, forgotten) = self.built.add(shape.clone(), built);
            last = Some(made);
            // Work in flight may use the evicted kernel. If the wait for that work fails, leak the module.
            if let Some(forgotten) = forgotten
                && let Err(code) = context.synchronize()
            {
                std::mem::forget(forgotten);
                return Err(code);
            }
        }
        Ok(last)
    }

    /// Returns the driver's properties of a kernel, such as its registers.
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

/// Cache of loaded PTX texts of the program.
pub(super) type ModuleCache = ProgramCache<kernel::Code, LoadedKernel>;
