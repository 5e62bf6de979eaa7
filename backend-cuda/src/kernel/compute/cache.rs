//! Cache of the kernels that were translated from expression programs to PTX.

use std::sync::{Arc, OnceLock};

use backend_api::Compute;
use backend_api::expr::{Action, ProgramCache, Task};

use super::codegen;
use super::shape::ProgramKey;
use crate::context::CudaContext;
use crate::driver::objects::LoadedKernel;
use crate::driver::{DriverResult, Function, once};
use crate::kernel::ptx;

/// The translated kernels of one program.
#[derive(Debug)]
pub(super) struct Computing {
    pub kernels: Vec<LoadedKernel>,
    /// Number of blocks of the program's first kernel that a multiprocessor runs concurrently.
    pub blocks: u32,
    shape: ProgramKey,
    list: OnceLock<LoadedKernel>,
}

impl Computing {
    /// Returns the kernel that lists the matches of a search. The first call translates and loads the kernel.
    pub fn list(&self, context: &Arc<CudaContext>) -> DriverResult<Function> {
        let list = once(&self.list, || load(context, &self.shape, "compute_find/compute_list"))?;
        Ok(list.function)
    }
}

/// Translates and loads one kernel of a program.
fn load(context: &Arc<CudaContext>, shape: &ProgramKey, text: &str) -> DriverResult<LoadedKernel> {
    let (_, name) = text.split_once('/').unwrap_or(("", text));
    LoadedKernel::load(context, &codegen::splice(ptx(text), shape), name)
}

#[derive(Debug, Default)]
pub(crate) struct TranslatedProgramCache(ProgramCache<ProgramKey, Computing>);

impl TranslatedProgramCache {
    /// Returns the kernels of a program, and translates them if they are not cached. The context must be
    /// current.
    pub(super) fn get(&self, context: &Arc<CudaContext>, shape: ProgramKey) -> DriverResult<Arc<Computing>> {
        if let Some(found) = self.0.find(&shape) {
            return Ok(found);
        }
        // Do not lock the cache here, so other threads can use other programs meanwhile. Two threads may then
        // translate the same program.
        let kernels = kernel_texts(&shape).iter().map(|text| load(context, &shape, text));
        let kernels = kernels.collect::<DriverResult<Vec<_>>>()?;
        let blocks = kernels.first().map_or(1, LoadedKernel::blocks);
        let computing = Computing { kernels, blocks, shape: shape.clone(), list: OnceLock::new() };
        let (made, forgotten) = self.0.add(shape, computing);
        // The kernels of the evicted program may still run. If the wait for them fails, leak the kernels
        // instead of unloading them.
        if let Some(forgotten) = forgotten
            && let Err(code) = context.synchronize()
        {
            std::mem::forget(forgotten);
            return Err(code);
        }
        Ok(made)
    }

    /// Translates the kernels for a request with these source addresses, unless cached. The context must be
    /// current.
    pub(crate) fn prepare(
        &self,
        context: &Arc<CudaContext>,
        compute: &Compute<'_>,
        starts: &[u64],
    ) -> DriverResult {
        let computing = self.get(context, ProgramKey::new(compute, starts).0)?;
        match compute.action {
            Action::Find { limit: 1.., .. } => computing.list(context).map(drop),
            _ => Ok(()),
        }
    }
}

/// Returns the names of the PTX texts that each request of this shape needs.
pub(super) fn kernel_texts(shape: &ProgramKey) -> &'static [&'static str] {
    match &shape.task {
        Task::Find { .. } => &["compute_find/compute_count"],
        Task::Sum { value, .. } if shape.of(*value).is_float() => &["compute_sum/compute_sum_floats"],
        Task::Sum { .. } => &["compute_sum/compute_sum"],
        Task::Extremes { value, .. } if shape.of(*value).bytes() == 8 => {
            &["compute_extremes/compute_extremes_64"]
        }
        Task::Extremes { .. } => &["compute_extremes/compute_extremes_32"],
        Task::Histogram { .. } => {
            &["compute_histogram/compute_histogram", "compute_histogram/compute_histogram_answer"]
        }
        Task::Store { .. } => &["compute_store/compute_store"],
    }
}
