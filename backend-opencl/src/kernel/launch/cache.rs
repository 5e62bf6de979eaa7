//! Cache of the program's kernels after translation and build, and of built OpenCL C texts of the program.

use std::sync::Arc;

use backend_api::expr::ProgramCache;

use super::codegen::LaunchKey;
use crate::driver::objects::Program;

/// A kernel of a built program, and its memory needs.
#[derive(Debug)]
pub(super) struct BuiltKernel {
    pub program: Arc<Program>,
    pub name: String,
    /// Bytes of device memory that an OpenCL work-item needs to save values, if it runs a whole group of the
    /// kernel.
    pub kept_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct BuiltKernelCache {
    pub(super) built: ProgramCache<LaunchKey, BuiltKernel>,
    pub(super) texts: TextCache,
}

/// Cache of built OpenCL C texts, which may contain several kernels.
pub(super) type TextCache = ProgramCache<Arc<str>, Program>;
