//! Cache of the OpenCL kernels that were built for expression programs.

use backend_api::expr::ProgramCache;

use super::codegen::SpecializedProgram;
use crate::driver::objects::Program;

#[derive(Debug, Default)]
pub(crate) struct BuiltProgramCache(pub(super) ProgramCache<SpecializedProgram, Program>);
