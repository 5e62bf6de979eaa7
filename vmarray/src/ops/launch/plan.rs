//! Plan of a launch: everything that is the same for all its runs (contiguous elements on a device).
//! [`run`](super::execution::run) and a `Session` build the plan from arguments, and launch it on each run.

use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::{HostSpan, Launch, LaunchView};
use vmarray_kernel::launch::{DomainAxis, LaunchVariant};
use vmarray_kernel::{ScalarSource, StencilPart};

use super::groups::LinearGroups;
use super::kernel::PreparedKernel;
use super::options::LaunchOptions;
use crate::ops::view::StoredBox;

/// A launch's kernel variant, and its scalar parameters.
pub(super) struct LaunchPlan<'o> {
    pub kernel: Arc<PreparedKernel>,
    /// The kernel's scalar parameters. Parameters that differ from run (contiguous elements on a device) to
    /// run are 0.
    pub params: Vec<u64>,
    table: Vec<u8>,
    /// The work-groups, if the kernel has work-groups along one axis.
    pub groups: Option<LinearGroups>,
    pub options: &'o LaunchOptions,
}

/// The work-items of a launch, and its arguments passed by value.
pub(super) struct PlannedItems<'p> {
    pub form: &'p LaunchVariant,
    /// The storage positions of the elements that belong to the work-items (GPU threads).
    pub domain: &'p StoredBox,
    /// Number of elements in a tile of the result.
    pub tile_len: usize,
    /// Scalars of the arguments passed by value, for each kernel parameter.
    pub values: &'p [Vec<u64>],
    pub groups: Option<LinearGroups>,
}

impl<'o> LaunchPlan<'o> {
    /// Computes the scalar parameters of a launch. `stencil` returns a scalar of an argument whose
    /// neighbourhoods work-items read. `len` returns the number of elements of a parameter's argument.
    pub fn new(
        kernel: Arc<PreparedKernel>,
        options: &'o LaunchOptions,
        items: &PlannedItems<'_>,
        stencil: impl Fn(usize, StencilPart) -> u64,
        len: impl Fn(usize) -> usize,
    ) -> Self {
        let &PlannedItems { form, domain, tile_len, values, groups } = items;
        let scalar = |source: &ScalarSource| match *source {
            ScalarSource::Value { parameter, position } => values[parameter][position],
            ScalarSource::Origin => domain.range().start as u64,
            ScalarSource::LaunchVariant => form.number(),
            // Use 0 for a value that depends on the run (contiguous elements on a device), because
            // `params_of` sets it for each run.
            ScalarSource::Groups(_) => 0,
            ScalarSource::Axis { axis, part } => domain.axes[axis].scalar(part, form.is_short),
            ScalarSource::TileLen(part) => {
                DomainAxis { tile: tile_len, ..domain.axes[0] }.scalar(part, form.is_short)
            }
            ScalarSource::Stencil { parameter, part } => stencil(parameter, part),
            ScalarSource::Length { parameter } => len(parameter) as u64,
        };
        let params = kernel.lowered.scalars.iter().map(scalar).collect();
        let table = kernel.lowered.table_bytes(|parameter| &values[parameter]);
        Self { kernel, params, table, groups, options }
    }

    /// Returns the scalar parameters for a run (contiguous elements on a device) of `count` GPU threads.
    pub fn params_of(&self, geometry: Geometry, count: u64) -> Vec<u64> {
        let mut params = self.params.clone();
        if let Some(groups) = self.groups {
            groups.set(&self.kernel.lowered.scalars, &mut params, geometry, count);
        }
        params
    }

    /// Returns the request that launches the kernel on a run (contiguous elements on a device) of `count`
    /// work-items (GPU threads).
    pub fn launch<'l>(
        &'l self,
        views: &'l [LaunchView<'l>],
        params: &'l [u64],
        (geometry, count): (Geometry, u64),
        report: HostSpan<'l>,
    ) -> Launch<'l> {
        Launch {
            views,
            params,
            table: &self.table,
            private_heap_bytes: self.options.private_heap_bytes,
            budget: self.options.budget,
            time_limit: self.options.time_limit,
            ..Launch::new(&self.kernel.kernel, count, geometry, report)
        }
    }
}
