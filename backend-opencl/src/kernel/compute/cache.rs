//! Cache of the OpenCL kernels that were built for expression programs.

use backend_api::expr::ProgramCache;

use super::codegen::SpecializedProgram;
use crate::driver::objects::Program;

/// The built programs of a device.
#[derive(Debug, Default)]
pub(crate) struct BuiltProgramCache(pub(super) ProgramCache<SpecializedProgram, Program>);
