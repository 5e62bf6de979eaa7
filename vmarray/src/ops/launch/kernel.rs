//! Kernels as devices are given them, each lowered once.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use backend_api::kernel::{self, Access, Op, Report};
use parking_lot::Mutex;
use vmarray_kernel::{Kernel, Lowered, host_form, host_form_returning, lower, lower_returning};

use super::options::Options;
use crate::base::error::{Error, ErrorKind, Result};

/// A kernel that can be launched.
#[derive(Clone, Debug)]
pub(super) struct PreparedKernel {
    pub lowered: Lowered,
    pub kernel: kernel::Kernel,
}

/// Those that were lowered so far, each with its type and const parameters.
/// and whether they write down what items return.
static PREPARED: LazyLock<Mutex<Prepared>> = LazyLock::new(Mutex::default);
type Prepared = HashMap<(TypeId, bool), Arc<PreparedKernel>>;

/// A kernel that may write down what items return, lowered now if it has not been before.
pub(super) fn prepared<K: Kernel>(returns: bool) -> Result<Arc<PreparedKernel>> {
    let key = (TypeId::of::<K>(), returns);
    if let Some(known) = PREPARED.lock().get(&key) {
        return Ok(Arc::clone(known));
    }
    // Not under the lock: two threads may do it both.
    let lowered = if returns { lower_returning::<K>() } else { lower::<K>() };
    let lowered = lowered.map_err(refused)?;
    let kernel = kernel::Kernel::new(lowered.body.clone())?.named(lowered.name);
    // Groups are interpreted.
    let kernel = match K::group_len() {
        Some(_) => kernel,
        None if returns => kernel.with_host(host_form_returning::<K>),
        None => kernel.with_host(host_form::<K>),
    };
    let prepared = Arc::new(PreparedKernel { lowered, kernel });
    Ok(Arc::clone(PREPARED.lock().entry(key).or_insert(prepared)))
}

fn refused(error: vmarray_kernel::Error) -> Error {
    ErrorKind::KernelRefused { kernel: error.function().into(), reason: error.to_string() }.into()
}

impl PreparedKernel {
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
        Err(match self.kernel.body().operation(report.site) {
            Some(Op::Loop { .. }) => {
                ErrorKind::KernelBudget { kernel, place, turns: report.detail, item, items }
            }
            Some(Op::Arena { .. }) => {
                let arena_bytes = options.arena_bytes;
                ErrorKind::KernelArena { kernel, place, asked: report.detail, arena_bytes, item, items }
            }
            _ => ErrorKind::KernelOutside { kernel, place, index: report.detail.into(), item, items },
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
