//! Cache of lowered kernels: the library lowers each kernel once for each launch variant.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use backend_api::kernel::{self, Access, Code, HostForm, Op, Report};
use parking_lot::Mutex;
use vmarray_kernel::launch::{LaunchVariant, host_form_of, lower_for};
use vmarray_kernel::{Kernel, LoweredKernel};

use super::options::LaunchOptions;
use crate::base::error::{Error, ErrorKind, Result};
use crate::ops::expr::refused;

#[derive(Clone, Debug)]
pub(crate) struct PreparedKernel {
    pub lowered: LoweredKernel,
    pub kernel: kernel::VerifiedKernel,
}

/// Cache of lowered kernels. The key is the type, including const parameters, and the variant.
static PREPARED: LazyLock<Mutex<Prepared>> = LazyLock::new(Mutex::default);
type Prepared = HashMap<(TypeId, LaunchVariant), Arc<PreparedKernel>>;

/// A kernel that is lowered once for each variant of a launch.
pub(crate) struct KernelVariants {
    /// The variant of the kernel for most launches, which the library lowers in advance.
    pub usual: Arc<PreparedKernel>,
    /// Number of work-items (GPU threads) in a work-group, if the work-groups are along one axis.
    pub group_len: Option<usize>,
    /// Work-items (GPU threads) in a work-group along each axis, if work-groups are tiles of the result.
    pub tile: Vec<usize>,
    prepared: fn(LaunchVariant) -> Result<Arc<PreparedKernel>>,
    /// Native code, such as OpenCL C, which devices that support its language run instead of the kernel.
    pub code: Option<Code>,
    /// Compiled Rust function that runs work-groups on the host. Without it, the host interprets the kernel.
    pub host: Option<HostForm>,
}

impl KernelVariants {
    pub fn of<K: Kernel>() -> Result<Self> {
        let (usual, group) = (prepared::<K>(LaunchVariant::default())?, K::group());
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

    /// Returns the kernel lowered for the launch variant `form`, from the cache if possible.
    pub fn prepared(&self, form: LaunchVariant) -> Result<Arc<PreparedKernel>> {
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

/// Returns a kernel in a variant. Lowers the kernel if the cache does not contain it.
pub(super) fn prepared<K: Kernel>(form: LaunchVariant) -> Result<Arc<PreparedKernel>> {
    // Kernels with work-groups have no compiled host form: the host interprets them.
    let host_form = |form: &LaunchVariant| match K::group_len() {
        Some(_) => None,
        None => host_form_of::<K>(form.axes, form.returns),
    };
    prepared_by(lower_for::<K>, host_form, (TypeId::of::<K>(), form))
}

/// The part of `prepared` without type parameters, which a program contains only once.
fn prepared_by(
    lower: fn(&LaunchVariant) -> std::result::Result<LoweredKernel, vmarray_kernel::Error>,
    host_form: fn(&LaunchVariant) -> Option<HostForm>,
    key: (TypeId, LaunchVariant),
) -> Result<Arc<PreparedKernel>> {
    if let Some(known) = PREPARED.lock().get(&key) {
        return Ok(Arc::clone(known));
    }
    // Lower without the lock, because lowering is slow. Two threads may therefore lower the same kernel.
    let lowered = lower(&key.1).map_err(|error| refused(&error))?;
    let mut kernel = kernel::VerifiedKernel::new(lowered.body.clone())?.named(lowered.name);
    if let Some(form) = host_form(&key.1) {
        kernel = kernel.with_host(form);
    }
    let prepared = Arc::new(PreparedKernel { lowered, kernel });
    Ok(Arc::clone(PREPARED.lock().entry(key).or_insert(prepared)))
}

impl PreparedKernel {
    /// Returns the error for an invalid launch, with the reason and the kernel's source location.
    pub fn refused(&self, reason: &str) -> Error {
        let reason = format!("{reason} ({})", self.lowered.defined_at());
        ErrorKind::KernelRefused { kernel: self.lowered.name.into(), reason }.into()
    }

    /// Returns the kernel's name, and its source location as `file:line`.
    pub fn name_and_place(&self) -> (String, String) {
        (self.lowered.name.into(), self.lowered.defined_at().to_string())
    }

    /// Adds the kernel's source location to the error of an invalid launch.
    pub fn placed(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::KernelRefused { kernel, reason } if kernel == self.lowered.name => {
                self.refused(reason)
            }
            _ => error,
        }
    }

    /// Converts the device's report to the launch's result. `item` is the failed work-item (GPU thread).
    pub fn outcome(&self, report: Report, item: usize, options: &LaunchOptions) -> Result<()> {
        if report.failures == 0 {
            return Ok(());
        }
        let (kernel, items) = (self.lowered.name.into(), report.failures);
        let in_source = self.lowered.place_of(report.site);
        let place = in_source.map(|place| place.to_string()).unwrap_or_default();
        if let (Some(site), Some(limit)) = (report.loop_over_time(), options.time_limit) {
            let place = self.lowered.place_of(site).map(|place| place.to_string()).unwrap_or_default();
            return Err(ErrorKind::KernelTime { kernel, place, limit, item }.into());
        }
        let kind = match self.kernel.body().operation(report.site) {
            Some(Op::Loop { .. }) => {
                ErrorKind::KernelBudget { kernel, place, turns: report.detail, item, items }
            }
            Some(Op::PrivateAlloc { .. }) => {
                let private_heap_bytes = options.private_heap_bytes;
                ErrorKind::KernelPrivateHeap {
                    kernel,
                    place,
                    asked: report.detail,
                    private_heap_bytes,
                    item,
                    items,
                }
            }
            _ => {
                let index = self.lowered.index_of(&report);
                ErrorKind::KernelOutside { kernel, place, index, item, items }
            }
        };
        Err(kind.into())
    }

    /// Returns true if every work-item (GPU thread) overwrites its whole element (`element_bytes` bytes) in
    /// the view with index `view`, and none reads an element of this view.
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
