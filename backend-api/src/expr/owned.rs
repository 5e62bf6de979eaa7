//! Owned copies of compute requests, for queues that execute them later.

use super::{Action, Compute, FieldStore, Geometry, Program};
use crate::{Elements, HostSpan};

/// A [`Compute`] request without a lifetime: it owns its program and its list of sources (arrays).
///
/// ```
/// use backend_api::expr::OwnedCompute;
/// fn keep(compute: &backend_api::Compute<'_>) -> u64 {
///     // SAFETY: it goes before the places of the request do.
///     let kept = unsafe { OwnedCompute::new(compute) };
///     kept.with(|compute| compute.count())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct OwnedCompute {
    program: Program,
    sources: Vec<Elements<'static>>,
    geometry: Geometry,
    action: Action<'static>,
    stores: Vec<FieldStore>,
}

impl OwnedCompute {
    /// Copies a request, so that the copy borrows nothing.
    ///
    /// # Safety
    /// The requirements of [`HostSpan::detach`](crate::HostSpan::detach), for all memory that the request
    /// names.
    #[must_use]
    pub unsafe fn new(compute: &Compute<'_>) -> Self {
        // SAFETY: guaranteed by the caller.
        let detached = |answer: HostSpan<'_>| unsafe { answer.detach() };
        let (action, stores) = match compute.action {
            Action::Find { predicate, limit, count_all, answer } => {
                (Action::Find { predicate, limit, count_all, answer: detached(answer) }, Vec::new())
            }
            Action::Sum { value, filter, answer } => {
                (Action::Sum { value, filter, answer: detached(answer) }, Vec::new())
            }
            Action::Extremes { value, filter, least, greatest, answer } => {
                (Action::Extremes { value, filter, least, greatest, answer: detached(answer) }, Vec::new())
            }
            Action::Histogram { value, filter, bins, answer } => {
                (Action::Histogram { value, filter, bins, answer: detached(answer) }, Vec::new())
            }
            Action::Store { stores, filter } => (Action::Store { stores: &[], filter }, stores.to_vec()),
        };
        let source = |source: &Elements<'_>| Elements {
            // SAFETY: guaranteed by the caller.
            start: unsafe { source.start.detach() },
            count: source.count,
            stride: source.stride,
        };
        Self {
            program: compute.program.clone(),
            sources: compute.sources.iter().map(source).collect(),
            geometry: compute.geometry,
            action,
            stores,
        }
    }

    /// Calls `run` with the request, and returns the result of `run`.
    pub fn with<R>(&self, run: impl FnOnce(&Compute<'_>) -> R) -> R {
        let action = match self.action {
            Action::Store { filter, .. } => Action::Store { stores: &self.stores, filter },
            other => other,
        };
        let (program, sources) = (&self.program, &self.sources[..]);
        run(&Compute { program, sources, geometry: self.geometry, action })
    }
}
