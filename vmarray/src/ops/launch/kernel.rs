//! Kernels as devices are given them, each lowered once.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use backend_api::kernel::{self, Access, Code, HostForm, Op, Report};
use parking_lot::Mutex;
use vmarray_kernel::launch::{Form, host_form_of, lower_for};
use vmarray_kernel::{Kernel, Lowered};

use super::options::Options;
use crate::base::error::{Error, ErrorKind, Result};
use crate::ops::expr::refused;

/// A kernel that can be launched.
#[derive(Clone, Debug)]
pub(super) struct PreparedKernel {
    pub lowered: Lowered,
    pub kernel: kernel::Kernel,
}

/// Those that were lowered so far, each with its type and const parameters, and the form of its launches.
static PREPARED: LazyLock<Mutex<Prepared>> = LazyLock::new(Mutex::default);
type Prepared = HashMap<(TypeId, Form), Arc<PreparedKernel>>;

/// A kernel that is lowered for each form of launch.
pub(super) struct Kernels {
    /// That for most launches.
    pub usual: Arc<PreparedKernel>,
    /// How many items a group has, if groups are along one axis.
    pub group_len: Option<usize>,
    /// How many items a group has along each axis, if groups are tiles of the result.
    pub tile: Vec<usize>,
    prepared: fn(Form) -> Result<Arc<PreparedKernel>>,
    /// What devices that can use it run in its place.
    pub code: Option<Code>,
    /// How the host carries out groups, which it interprets else.
    pub host: Option<HostForm>,
}

impl Kernels {
    pub fn of<K: Kernel>() -> Result<Self> {
        let (usual, group) = (prepared::<K>(Form::default())?, K::group());
        let tile =
            if group.len() > 1 { group.iter().map(|extent| *extent as usize).collect() } else { Vec::new() };
        Ok(Self {
            usual,
            group_len: (group.len() == 1).then(|| group[0].max(1) as usize),
            tile,
            prepared: prepared::<K>,
            code: None,
            host: None,
        })
    }

    /// That for a form, lowered now if it has not been before.
    pub fn prepared(&self, form: Form) -> Result<Arc<PreparedKernel>> {
        let prepared = (self.prepared)(form)?;
        if self.code.is_none() && self.host.is_none() {
            return Ok(prepared);
        }
        let PreparedKernel { lowered, mut kernel } = Arc::unwrap_or_clone(prepared);
        if let Some(code) = &self.code {
            kernel = kernel.with_code(code.clone());
        }
        if let Some(form) = self.host {
            kernel = kernel.with_host(form);
        }
        Ok(Arc::new(PreparedKernel { lowered, kernel }))
    }
}

/// A kernel for a form of launch, lowered now if it has not been before.
pub(super) fn prepared<K: Kernel>(form: Form) -> Result<Arc<PreparedKernel>> {
    // Groups are interpreted.
    let host_form = |form: &Form| match K::group_len() {
        Some(_) => None,
        None => host_form_of::<K>(form.axes, form.returns),
    };
    prepared_by(lower_for::<K>, host_form, (TypeId::of::<K>(), form))
}

/// The same by what a kernel's type knows: a program has one of it.
fn prepared_by(
    lower: fn(&Form) -> std::result::Result<Lowered, vmarray_kernel::Error>,
    host_form: fn(&Form) -> Option<HostForm>,
    key: (TypeId, Form),
) -> Result<Arc<PreparedKernel>> {
    if let Some(known) = PREPARED.lock().get(&key) {
        return Ok(Arc::clone(known));
    }
    // Not under the lock: two threads may do it both.
    let lowered = lower(&key.1).map_err(|error| refused(&error))?;
    let mut kernel = kernel::Kernel::new(lowered.body.clone())?.named(lowered.name);
    if let Some(form) = host_form(&key.1) {
        kernel = kernel.with_host(form);
    }
    let prepared = Arc::new(PreparedKernel { lowered, kernel });
    Ok(Arc::clone(PREPARED.lock().entry(key).or_insert(prepared)))
}

impl PreparedKernel {
    /// Refuses a launch.
    pub fn refused(&self, reason: &str) -> Error {
        let reason = format!("{reason} ({})", self.lowered.defined_at());
        ErrorKind::KernelRefused { kernel: self.lowered.name.into(), reason }.into()
    }

    /// The same error with the place of the kernel, if a launch was refused.
    pub fn placed(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::KernelRefused { kernel, reason } if kernel == self.lowered.name => {
                self.refused(reason)
            }
            _ => error,
        }
    }

    /// What a report says, of which this is the number of the item.
    pub fn outcome(
        &self,
        report: Report,
        item: usize,
        options: &Options,
    ) -> std::result::Result<(), ErrorKind> {
        if report.failures == 0 {
            return Ok(());
        }
        let (kernel, items) = (self.lowered.name.into(), report.failures);
        let in_source = self.lowered.place_of(report.site);
        let place = in_source.map(|place| place.to_string()).unwrap_or_default();
        if let (Some(site), Some(limit)) = (report.loop_over_time(), options.time_limit) {
            let place = self.lowered.place_of(site).map(|place| place.to_string()).unwrap_or_default();
            return Err(ErrorKind::KernelTime { kernel, place, limit, item });
        }
        Err(match self.kernel.body().operation(report.site) {
            Some(Op::Loop { .. }) => {
                ErrorKind::KernelBudget { kernel, place, turns: report.detail, item, items }
            }
            Some(Op::Arena { .. }) => {
                let arena_bytes = options.arena_bytes;
                ErrorKind::KernelArena { kernel, place, asked: report.detail, arena_bytes, item, items }
            }
            _ => {
                let index = self.lowered.index_of(&report);
                ErrorKind::KernelOutside { kernel, place, index, item, items }
            }
        })
    }

    /// Whether every item writes all of so many bytes of its element of a view, and reads none of them.
    pub fn overwrites(&self, view: usize, element_bytes: usize) -> bool {
        let body = self.kernel.body();
        let mut is_read = false;
        body.operations(|_, op| {
            is_read |= matches!(op, Op::Load { view: of, .. } if usize::from(*of) == view)
        });
        let written = |op: &Op| match op {
            Op::Store { view: of, offset, of: memory, .. } if usize::from(*of) == view => {
                Some(*offset..*offset + memory.bytes())
            }
            _ => None,
        };
        let mut bytes: Vec<bool> = vec![false; element_bytes];
        for range in body.code.iter().filter_map(written) {
            range.for_each(|byte| bytes[byte as usize] = true);
        }
        let is_own = matches!(body.views[view].access, Access::Write { tile: 1 });
        is_own && !is_read && bytes.into_iter().all(|is_written| is_written)
    }
}
