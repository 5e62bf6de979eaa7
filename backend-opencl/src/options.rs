//! How a device is opened.

use std::path::PathBuf;

/// Where built kernels are kept between runs.
///
/// A driver runs whatever it finds there, so the folder and its files have to be the user's own: on Unix
/// owned by the effective user of the process, writable by nobody else, and no links. What is made is for the
/// user alone (0700, files 0600). Otherwise the folder is not used, and kernels are built at each start:
/// [`kernel_cache_error`](crate::OpenClDevice::kernel_cache_error) tells why. On other systems the
/// permissions of the folder are not looked at.
///
/// ```
/// use backend_opencl::{KernelCache, OpenClDevice, Options, devices};
/// let folder = std::env::temp_dir().join(format!("vmarray-kernels-{}", std::process::id()));
/// let options = Options::new().with_kernel_cache(KernelCache::Folder(folder.clone()));
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
    /// In the user's cache folder: `$XDG_CACHE_HOME/vmarray/opencl`, or `~/.cache/vmarray/opencl`. Nowhere if
    /// neither variable is set.
    #[default]
    User,
    /// In this folder, which is made if it does not exist.
    Folder(PathBuf),
    /// Nowhere: kernels are built each time a device is opened.
    Off,
}

/// How a device is opened.
///
/// ```
/// use backend_api::{Commit, Device};
/// use backend_opencl::{KernelCache, OpenClDevice, Options, devices};
/// let options = Options::new().with_budget_bytes(1 << 21).with_kernel_cache(KernelCache::Off);
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
pub struct Options {
    /// The most device memory that is given out at any time, in bytes. `None`: all, less head-room. Drivers
    /// rarely refuse: many spill to host memory instead, PoCL always gives; so the backend keeps the account
    /// itself.
    pub budget_bytes: Option<u64>,
    /// Lowers the largest single allocation below what the driver states, in bytes; at least 4096. For tests
    /// of memory that consists of several pieces, and for drivers that state too much.
    pub largest_allocation_bytes: Option<u64>,
    /// Where built kernels are kept between runs.
    pub kernel_cache: KernelCache,
    /// Whether kernels work on pinned host memory in place where they can: where the device shares
    /// fine-grained memory with the host (processors and integrated GPUs), and on NVIDIA's cards, where small
    /// pages then move more than ten times as fast. On by default; off, everything goes through copies.
    /// [`OpenClDevice::kernels_reach_pinned_memory`](crate::OpenClDevice::kernels_reach_pinned_memory) tells
    /// whether they can.
    pub zero_copy: bool,
    /// Whether kernels divide `f32` in integers, also where the driver says that it rounds quotients
    /// correctly if asked to (`CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT`); where it does not say so they always
    /// do. Off by default. For tests, and for drivers that promise more than they keep; a division then takes
    /// some tens of instructions.
    pub integer_division: bool,
}

impl Default for Options {
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
    pub fn with_zero_copy(mut self, zero_copy: bool) -> Self {
        self.zero_copy = zero_copy;
        self
    }

    /// The same with or without divisions of `f32` in integers.
    #[must_use]
    pub fn with_integer_division(mut self, integers: bool) -> Self {
        self.integer_division = integers;
        self
    }
}
