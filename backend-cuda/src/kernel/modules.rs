//! Cache of the kernels that are loaded on a CUDA device: hand-written kernels, and kernels of the program.

use std::sync::{Arc, OnceLock};

use super::compute::cache::TranslatedProgramCache;
use super::launch::cache::TranslatedKernelCache;
use super::ptx;
use crate::context::CudaContext;
use crate::driver::objects::LoadedKernel;
use crate::driver::{DriverResult, Function, once};

/// A hand-written kernel of the folder `kernels`, which contains no generated code.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FixedKernel {
    CopyFew,
    CopyList,
    Fill,
    SearchScan,
    /// Gathers elements in words of 1, 2, 4, 8 or 16 bytes; the number is log2 of the word's length.
    Gather(usize),
    /// Scatters elements in such words.
    Scatter(usize),
}

impl FixedKernel {
    /// The files and kernels, in the order of [`place`](Self::place).
    const TEXTS: [&str; 14] = [
        "copy/copy_few",
        "copy/copy_list",
        "copy/fill",
        "search/search_scan",
        "gather/gather_1",
        "gather/gather_2",
        "gather/gather_4",
        "gather/gather_8",
        "gather/gather_16",
        "gather/scatter_1",
        "gather/scatter_2",
        "gather/scatter_4",
        "gather/scatter_8",
        "gather/scatter_16",
    ];

    fn place(self) -> usize {
        match self {
            Self::CopyFew => 0,
            Self::CopyList => 1,
            Self::Fill => 2,
            Self::SearchScan => 3,
            Self::Gather(log2) => 4 + log2,
            Self::Scatter(log2) => 9 + log2,
        }
    }
}

/// The loaded kernels of a device.
#[derive(Debug)]
pub(crate) struct ModuleKernels {
    fixed: [OnceLock<LoadedKernel>; FixedKernel::TEXTS.len()],
    pub(crate) programs: TranslatedProgramCache,
    pub(crate) launches: TranslatedKernelCache,
}

impl ModuleKernels {
    /// Creates the kernels for a GPU of this compute capability; none is loaded yet.
    pub(crate) fn new(compute_capability: (u32, u32)) -> Self {
        Self {
            fixed: [const { OnceLock::new() }; FixedKernel::TEXTS.len()],
            programs: TranslatedProgramCache::default(),
            launches: TranslatedKernelCache::new(compute_capability),
        }
    }

    /// Returns a kernel, and loads it at its first use. The context must be current.
    pub(crate) fn fixed(&self, context: &Arc<CudaContext>, kernel: FixedKernel) -> DriverResult<Function> {
        let text = FixedKernel::TEXTS[kernel.place()];
        let name = text.split('/').next_back().unwrap_or(text);
        let loaded = once(&self.fixed[kernel.place()], || LoadedKernel::load(context, ptx(text), name))?;
        Ok(loaded.function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_complete_and_holds_one_kernel() {
        for name in FixedKernel::TEXTS {
            let text = ptx(name);
            assert!(text.ends_with("}\n\0"), "the text is cut off");
            let (_, kernel) = name.split_once('/').unwrap();
            let entries: Vec<_> = text.matches(".entry ").collect();
            assert_eq!(entries.len(), 1);
            assert!(text.contains(&format!(".visible .entry {kernel}(")));
            assert!(text.contains(".target sm_50"));
        }
    }
}
