//! How a device is opened.

use std::path::PathBuf;
use std::time::Duration;

/// Where built kernels are kept between runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelCache {
    /// In the user's cache folder: `$XDG_CACHE_HOME/vmarray/opencl`, or `~/.cache/vmarray/opencl`. Nowhere if neither
    /// variable is set.
    #[default]
    User,
    /// In this folder, which is made if it does not exist.
    Folder(PathBuf),
    /// Nowhere: kernels are built each time a device is opened.
    Off,
}

/// How a thread that waits for a ticket asks the driver, before it sleeps in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// Again and again: the shortest reaction.
    #[default]
    Spin,
    /// With growing pauses: fewer calls, which take turns in most drivers.
    BackOff,
    /// One of the waiting threads asks for all of them.
    Together,
}

/// What may touch pinned host memory of a device that shares no memory with the host.
///
/// Such memory is a buffer that stays mapped, and the standard leaves open what a kernel sees in one. Where a driver
/// makes both the same memory, a kernel moves many small pages far faster than single copies do. Other than
/// [`Copies`](Self::Copies) is tried out when the device is opened, and not used where bytes do not arrive:
/// [`OpenClDevice::kernels_reach_pinned_memory`](crate::OpenClDevice::kernels_reach_pinned_memory) tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinnedAccess {
    /// Copies alone, as the standard has it.
    #[default]
    Copies,
    /// Copies, and kernels that copy pages.
    Kernels,
    /// The same with buffers of NVIDIA's extension `cl_nv_create_buffer`, which asks for memory of the host in so many
    /// words.
    NvidiaKernels,
}

/// How a device is opened.
///
/// ```
/// use backend_opencl::{KernelCache, Options};
/// let options = Options::new().with_budget_bytes(1 << 30).with_kernel_cache(KernelCache::Off);
/// assert_eq!(options.budget_bytes, Some(1 << 30));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The most device memory that is given out at any time, in bytes. `None`: all, less head-room. Drivers
    /// rarely refuse: many spill to host memory instead, PoCL always gives; so the backend keeps the account itself.
    pub budget_bytes: Option<u64>,
    /// Lowers the largest single allocation below what the driver states, in bytes; at least 4096. For tests of
    /// memory that consists of several pieces, and for drivers that state too much.
    pub largest_allocation_bytes: Option<u64>,
    /// Where built kernels are kept between runs.
    pub kernel_cache: KernelCache,
    /// Whether kernels work on pinned host memory in place, where the device shares fine-grained memory with the host
    /// (processors and integrated GPUs). On by default; off, everything goes through copies, as on a card.
    pub share_host_memory: bool,
    /// What may touch pinned host memory, where it is not shared anyway.
    pub pinned_access: PinnedAccess,
    /// How a thread that waits asks the driver.
    pub waiting: Waiting,
    /// How long it asks before it sleeps in the driver, which frees the core but takes longer to wake up. `None`: 20
    /// microseconds, a little more than the fastest round trips; not at all if the device is a processor, which needs
    /// the core.
    pub patience: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            budget_bytes: None,
            largest_allocation_bytes: None,
            kernel_cache: KernelCache::default(),
            share_host_memory: true,
            pinned_access: PinnedAccess::default(),
            waiting: Waiting::default(),
            patience: None,
        }
    }
}

impl Options {
    /// No budget, the driver's own largest allocation, kernels kept in the user's cache folder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with a budget of device memory.
    #[must_use]
    pub fn with_budget_bytes(mut self, bytes: u64) -> Self {
        self.budget_bytes = Some(bytes);
        self
    }

    /// The same with a lower largest allocation.
    #[must_use]
    pub fn with_largest_allocation_bytes(mut self, bytes: u64) -> Self {
        self.largest_allocation_bytes = Some(bytes);
        self
    }

    /// The same with kernels kept elsewhere.
    #[must_use]
    pub fn with_kernel_cache(mut self, cache: KernelCache) -> Self {
        self.kernel_cache = cache;
        self
    }

    /// The same with or without kernels that work on host memory in place.
    #[must_use]
    pub fn with_shared_host_memory(mut self, share: bool) -> Self {
        self.share_host_memory = share;
        self
    }

    /// The same with other users of pinned host memory.
    #[must_use]
    pub fn with_pinned_access(mut self, access: PinnedAccess) -> Self {
        self.pinned_access = access;
        self
    }

    /// The same with another way to wait, for so long before sleeping in the driver.
    #[must_use]
    pub fn with_waiting(mut self, waiting: Waiting, patience: Duration) -> Self {
        (self.waiting, self.patience) = (waiting, Some(patience));
        self
    }
}
