//! Options of a launch: its time limit and the memory of each work-item (GPU thread).

use std::time::Duration;

use vmarray_kernel::PRIVATE_HEAP_BYTES;

use crate::ops::expr::TIME_LIMIT;

/// Options of a launch: loop budget, time limit, and private memory of a work-item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchOptions {
    pub budget: Option<u64>,
    pub time_limit: Option<Duration>,
    pub private_heap_bytes: u64,
}

impl LaunchOptions {
    /// The default options of launches such as [`RunKernel::run`](super::RunKernel::run).
    pub const USUAL: Self = Self { time_limit: Some(TIME_LIMIT), ..Self::OF_LIBRARY };
    /// The options of the library's own kernels. They need no time limit, because their loops always end and
    /// they call no function of the program.
    pub const OF_LIBRARY: Self =
        Self { budget: None, time_limit: None, private_heap_bytes: PRIVATE_HEAP_BYTES };
}
