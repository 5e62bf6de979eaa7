//! Kernels as devices are given them, each lowered once.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use backend_api::kernel::{self, Access, Op};
use parking_lot::Mutex;
use vmarray_kernel::{Kernel, Lowered, host_form, lower};

use crate::base::error::{Error, ErrorKind, Result};

/// A kernel that can be launched.
#[derive(Debug)]
pub(super) struct PreparedKernel {
    pub lowered: Lowered,
    pub kernel: kernel::Kernel,
}

/// Those that were lowered so far, each with its type and const parameters.
static PREPARED: LazyLock<Mutex<HashMap<TypeId, Arc<PreparedKernel>>>> = LazyLock::new(Mutex::default);

/// A kernel, lowered now if it has not been before.
pub(super) fn prepared<K: Kernel>() -> Result<Arc<PreparedKernel>> {
    let key = TypeId::of::<K>();
    if let Some(known) = PREPARED.lock().get(&key) {
        return Ok(Arc::clone(known));
    }
    // Not under the lock: two threads may do it both.
    let lowered = lower::<K>().map_err(refused)?;
    let kernel = kernel::Kernel::new(lowered.body.clone())?.named(lowered.name);
    // Groups are interpreted.
    let kernel = if K::group_len().is_none() { kernel.with_host(host_form::<K>) } else { kernel };
    let prepared = Arc::new(PreparedKernel { lowered, kernel });
    Ok(Arc::clone(PREPARED.lock().entry(key).or_insert(prepared)))
}

fn refused(error: vmarray_kernel::Error) -> Error {
    ErrorKind::KernelRefused { kernel: error.function().into(), reason: error.to_string() }.into()
}

impl PreparedKernel {
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
