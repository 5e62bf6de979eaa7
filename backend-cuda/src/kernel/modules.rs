//! The loaded kernels of a device.

use std::sync::{Arc, OnceLock};

use super::compute::cache::TranslatedProgramCache;
use super::launch::cache::TranslatedKernelCache;
use super::ptx;
use crate::context::CudaContext;
use crate::driver::objects::Module;
use crate::driver::{DriverResult, Function, once};

/// The loaded kernels of a device, file by file.
#[derive(Debug)]
pub(crate) struct ModuleKernels {
    copy: OnceLock<Copying>,
    indexed: OnceLock<IndexedKernels>,
    search: OnceLock<Searching>,
    pub(crate) programs: TranslatedProgramCache,
    pub(crate) launches: TranslatedKernelCache,
}

/// Kernels that move and write bytes.
#[derive(Debug)]
pub(crate) struct Copying {
    pub(crate) few: Function,
    pub(crate) list: Function,
    pub(crate) fill: Function,
    _module: Module,
}

/// Kernels that collect and distribute elements, for pieces of 1, 2, 4, 8 and 16 bytes.
#[derive(Debug)]
pub(crate) struct IndexedKernels {
    pub(crate) gather: [Function; 5],
    pub(crate) scatter: [Function; 5],
    _module: Module,
}

/// The kernel that scans the counts of a search.
#[derive(Debug)]
struct Searching {
    scan: Function,
    _module: Module,
}

impl ModuleKernels {
    /// Creates the kernels for a GPU of this compute capability; none is loaded yet.
    pub(crate) fn new(compute_capability: (u32, u32)) -> Self {
        Self {
            copy: OnceLock::new(),
            indexed: OnceLock::new(),
            search: OnceLock::new(),
            programs: TranslatedProgramCache::default(),
            launches: TranslatedKernelCache::new(compute_capability),
        }
    }

    /// The context is current, here and below.
    pub(crate) fn copying(&self, context: &Arc<CudaContext>) -> DriverResult<&Copying> {
        once(&self.copy, || {
            let module = Module::load(context, ptx("copy"))?;
            let [few, list, fill] = ["copy_few", "copy_list", "fill"].map(|name| module.function(name));
            Ok(Copying { few: few?, list: list?, fill: fill?, _module: module })
        })
    }

    pub(crate) fn indexed(&self, context: &Arc<CudaContext>) -> DriverResult<&IndexedKernels> {
        once(&self.indexed, || {
            let module = Module::load(context, ptx("gather"))?;
            let (gather, scatter) = (module.family("gather")?, module.family("scatter")?);
            Ok(IndexedKernels { gather, scatter, _module: module })
        })
    }

    pub(crate) fn scan(&self, context: &Arc<CudaContext>) -> DriverResult<Function> {
        let load = || {
            let module = Module::load(context, ptx("search"))?;
            Ok(Searching { scan: module.function("search_scan")?, _module: module })
        };
        once(&self.search, load).map(|search| search.scan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_complete_and_hold_every_kernel() {
        for (text, kernels) in [("copy", 3), ("gather", 10), ("search", 1)] {
            let text = ptx(text);
            assert!(text.ends_with("}\n\n\0") || text.ends_with("}\n\0"), "the text is cut off");
            assert_eq!(text.matches(".visible .entry ").count(), kernels);
            assert!(text.contains(".target sm_50"));
        }
    }
}
