//! Options for opening an OpenCL device, such as the cache of built kernels.

use std::path::PathBuf;

/// Storage of built kernels between runs of programs.
///
/// The device stores built kernels in a folder. A driver runs any binary in the folder, so the folder and its
/// files must belong to the user. On Unix the effective user of the process must own folder and files, no
/// other user may write to them, and they must not be symbolic links. The device creates folders with the
/// mode 0700 and files with 0600. If a folder does not meet these conditions, the device builds the kernels
/// each time it is opened: [`kernel_cache_error`](crate::OpenClDevice::kernel_cache_error) returns the
/// reason. On other systems the device does not check the permissions of the folder.
///
/// ```
/// use backend_opencl::{KernelCache, OpenClDevice, OpenClOptions, devices};
/// let folder = std::env::temp_dir().join(format!("vmarray-kernels-{}", std::process::id()));
/// let options = OpenClOptions::new().with_kernel_cache(KernelCache::Folder(folder.clone()));
/// for found in devices() {
///     OpenClDevice::open(&found, &options)?;
///     assert!(OpenClDevice::open(&found, &options)?.kernels_were_cached());
/// }
/// # let _ = std::fs::remove_dir_all(folder);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelCache {
    /// The user's cache folder: `$XDG_CACHE_HOME/vmarray/opencl`, or `~/.cache/vmarray/opencl`. If neither
    /// variable is set, nothing is stored.
    #[default]
    User,
    /// The given folder, which the device creates if it does not exist.
    Folder(PathBuf),
    /// No storage: kernels are built each time a device is opened.
    Off,
}

/// Options for opening an [`OpenClDevice`](crate::OpenClDevice).
///
/// ```
/// use backend_api::{Commit, Device};
/// use backend_opencl::{KernelCache, OpenClDevice, OpenClOptions, devices};
/// let options = OpenClOptions::new().with_budget_bytes(1 << 21).with_kernel_cache(KernelCache::Off);
/// assert_eq!((options.budget_bytes, options.zero_copy), (Some(1 << 21), true));
/// let options = options.with_largest_allocation_bytes(1 << 16).with_zero_copy(false);
/// for found in devices() {
///     let device = OpenClDevice::open(&found, &options.clone().with_integer_division(true))?;
///     // Several buffers of the driver are one of ours.
///     assert!(device.allocate(1 << 20, Commit::Proven).is_ok());
///     assert!(device.allocate(2 << 20, Commit::Lazy).is_err());
/// }
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenClOptions {
    /// Maximum of allocated device memory at any time, in bytes. `None` is all memory of the device, less
    /// head-room. The backend counts the allocated bytes itself, because drivers rarely refuse an allocation:
    /// many spill to host memory instead, and PoCL never refuses one.
    pub budget_bytes: Option<u64>,
    /// Lowers the largest single allocation below the driver's value, in bytes; at least 4096. For tests
    /// of memory that consists of several pieces, and for drivers that report too much.
    pub largest_allocation_bytes: Option<u64>,
    /// Storage of built kernels between runs of programs.
    pub kernel_cache: KernelCache,
    /// Lets kernels access pinned host memory in place, if the device can: devices that share fine-grained
    /// memory with the host (processors and integrated GPUs), and NVIDIA's GPUs. Copies of small pages are
    /// then more than ten times as fast. On by default; if off, the device copies all data.
    /// [`OpenClDevice::kernels_reach_pinned_memory`](crate::OpenClDevice::kernels_reach_pinned_memory)
    /// returns true if kernels do so.
    pub zero_copy: bool,
    /// Makes kernels divide `f32` by integer arithmetic, which takes some tens of instructions, even if the
    /// driver supports correctly rounded quotients (`CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT`). Without that
    /// support kernels always do so. Off by default. Use this option for tests, and for drivers that wrongly
    /// claim the support.
    pub integer_division: bool,
}

impl Default for OpenClOptions {
    fn default() -> Self {
        Self {
            budget_bytes: None,
            largest_allocation_bytes: None,
            kernel_cache: KernelCache::default(),
            zero_copy: true,
            integer_division: false,
        }
    }
}

impl OpenClOptions {
    /// Creates the default options: all memory of the device, the driver's own largest allocation, kernels
    /// cached in the user's cache folder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`budget_bytes`](Self::budget_bytes): the maximum of allocated device memory.
    #[must_use]
    pub fn with_budget_bytes(mut self, bytes: u64) -> Self {
        self.budget_bytes = Some(bytes);
        self
    }

    /// Sets [`largest_allocation_bytes`](Self::largest_allocation_bytes): the largest single allocation.
    #[must_use]
    pub fn with_largest_allocation_bytes(mut self, bytes: u64) -> Self {
        self.largest_allocation_bytes = Some(bytes);
        self
    }

    /// Sets [`kernel_cache`](Self::kernel_cache): the storage of built kernels between runs of programs.
    #[must_use]
    pub fn with_kernel_cache(mut self, cache: KernelCache) -> Self {
        self.kernel_cache = cache;
        self
    }

    /// Sets [`zero_copy`](Self::zero_copy): whether kernels access pinned host memory in place.
    #[must_use]
    pub fn with_zero_copy(mut self, zero_copy: bool) -> Self {
        self.zero_copy = zero_copy;
        self
    }

    /// Sets [`integer_division`](Self::integer_division): whether kernels divide `f32` by integer arithmetic.
    #[must_use]
    pub fn with_integer_division(mut self, integers: bool) -> Self {
        self.integer_division = integers;
        self
    }
}
