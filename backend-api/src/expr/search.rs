//! The conversion of a [`Search`] to an expression, for devices that have no code for searches.

use super::{Action, Compute, Geometry, Instruction, Program, Value};
use crate::{Error, ErrorKind, Result, Search};

impl Search<'_> {
    /// Calls `run` with this search as a [`Compute`] request whose answer is the search's answer.
    ///
    /// A device that supports compute requests can execute searches by this request, and needs no code for
    /// searches. Kernels take the searched value as a parameter, so a new value needs no new kernel.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the field begins beyond 4 GiB of its element; errors of
    /// `run`.
    pub fn as_compute<R>(&self, run: impl FnOnce(&Compute<'_>) -> Result<R>) -> Result<R> {
        let offset = u32::try_from(self.field_offset).map_err(|_| {
            Error::new(ErrorKind::Unsupported, "search")
                .with_detail("the field lies beyond the first 4 GiB of its element")
        })?;
        let program =
            Program::new(vec![Instruction::FieldEquals { source: 0, offset, bytes: self.value.into() }])?;
        let Self { limit, count_all, answer, .. } = *self;
        let action = Action::Find { predicate: Value(0), limit, count_all, answer };
        let sources = &[self.elements];
        run(&Compute { program: &program, sources, geometry: Geometry::plain(0), action })
    }
}
