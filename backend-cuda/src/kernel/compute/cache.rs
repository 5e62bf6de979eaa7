//! Cache of translated programs.

use std::sync::{Arc, OnceLock};

use backend_api::Compute;
use backend_api::expr::{Action, ProgramCache, Task};

use super::codegen;
use super::shape::ProgramKey;
use crate::context::CudaContext;
use crate::driver::objects::{Module, THREADS};
use crate::driver::{DriverResult, Function, once};
use crate::kernel::ptx;

/// The kernels of one shape.
#[derive(Debug)]
pub(super) struct Computing {
    pub functions: Vec<Function>,
    /// The number of blocks of the first kernel that a multiprocessor runs at once.
    pub blocks: u32,
    _module: Module,
    shape: ProgramKey,
    list: OnceLock<(Function, Module)>,
}

impl Computing {
    /// Returns the kernel that lists the matches of a search. Only searches for indices translate it.
    pub fn list(&self, context: &Arc<CudaContext>) -> DriverResult<Function> {
        let load = || {
            let names = ["compute_list"];
            let module = Module::load(context, &codegen::splice(ptx("compute_find"), &self.shape, &names))?;
            Ok((module.function(names[0])?, module))
        };
        once(&self.list, load).map(|(list, _)| *list)
    }
}

/// The translated programs of a device.
#[derive(Debug, Default)]
pub(crate) struct TranslatedProgramCache(ProgramCache<ProgramKey, Computing>);

impl TranslatedProgramCache {
    /// Returns the kernels for a shape, and translates them if they are unknown. The context is current.
    pub(super) fn get(&self, context: &Arc<CudaContext>, shape: ProgramKey) -> DriverResult<Arc<Computing>> {
        if let Some(found) = self.0.find(&shape) {
            return Ok(found);
        }
        // Do not hold a lock here, so that other programs continue. Two threads may translate the same
        // program.
        let (text, names) = source(&shape);
        let module = Module::load(context, &codegen::splice(text, &shape, names))?;
        let functions = names.iter().map(|name| module.function(name)).collect::<DriverResult<Vec<_>>>()?;
        let blocks = functions.first().map_or(1, |function| module.occupancy(*function, THREADS));
        let list = OnceLock::new();
        let computing = Computing { functions, blocks, _module: module, shape: shape.clone(), list };
        let (made, forgotten) = self.0.add(shape, computing);
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
        let computing = self.get(context, ProgramKey::new(compute, starts).0)?;
        match compute.action {
            Action::Find { limit: 1.., .. } => computing.list(context).map(drop),
            _ => Ok(()),
        }
    }
}

/// Returns the text that contains a shape's kernels, and the names of the kernels that each request needs.
pub(super) fn source(shape: &ProgramKey) -> (&'static str, &'static [&'static str]) {
    let (task, kernels): (_, &[_]) = match &shape.task {
        Task::Find { .. } => ("find", &["compute_count"]),
        Task::Sum { value, .. } if shape.of(*value).is_float() => ("sum", &["compute_sum_floats"]),
        Task::Sum { .. } => ("sum", &["compute_sum"]),
        Task::Extremes { value, .. } if shape.of(*value).bytes() == 8 => {
            ("extremes", &["compute_extremes_64"])
        }
        Task::Extremes { .. } => ("extremes", &["compute_extremes_32"]),
        Task::Histogram { .. } => ("histogram", &["compute_histogram", "compute_histogram_answer"]),
        Task::Store { .. } => ("store", &["compute_store"]),
    };
    (ptx(&format!("compute_{task}")), kernels)
}
