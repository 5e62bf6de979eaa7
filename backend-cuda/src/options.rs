//! Options of [`CudaDevice::open_with`](crate::CudaDevice), such as the route of copies.

pub use backend_api::Route;

/// Options for opening a [`CudaDevice`](crate::CudaDevice).
///
/// ```
/// use backend_api::Device;
/// use backend_cuda::{CudaDevice, CudaOptions, Route, devices};
/// let options = CudaOptions::new().with_headroom_bytes(1 << 30).with_route(Route::Single);
/// let options = options.without_cublas();
/// for card in devices() {
///     let status = CudaDevice::open_with(card.index, &options)?.memory()?;
///     assert_eq!(status.usable_bytes, status.free_bytes.saturating_sub(1 << 30));
/// }
/// assert_eq!(CudaOptions::default_headroom_bytes(80 << 30, false), 1 << 30);
/// assert_eq!(CudaOptions::default_headroom_bytes(4 << 30, false), 128 << 20);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    pub(crate) headroom_bytes: Option<u64>,
    pub(crate) route: Option<Route>,
    pub(crate) is_without_cublas: bool,
}

impl CudaOptions {
    /// Creates the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the head-room: the bytes of free device memory that stay unused, instead of
    /// [`default_headroom_bytes`](Self::default_headroom_bytes).
    #[must_use]
    pub fn with_headroom_bytes(mut self, bytes: u64) -> Self {
        self.headroom_bytes = Some(bytes);
        self
    }

    /// Forces one route for all copies, for tests and measurements.
    ///
    /// Drivers before 12.8 have no [batch copy](Route::Batch); the device then uses single copies. The
    /// [kernel](Route::Kernel) route applies to copies between device memory and pinned memory; all other
    /// copies are single copies.
    #[must_use]
    pub fn with_route(mut self, route: Route) -> Self {
        self.route = Some(route);
        self
    }

    /// Turns cuBLAS off: kernels multiply matrices, also if the machine has the library. For measurements,
    /// and for results that do not depend on the installed library.
    #[must_use]
    pub fn without_cublas(mut self) -> Self {
        self.is_without_cublas = true;
        self
    }

    /// Returns the default head-room of a GPU with `total_bytes` of memory: a fiftieth, at least 128 MiB and
    /// at most 1 GiB; at least 512 MiB if the GPU drives a display. The driver uses the head-room for each
    /// program on the GPU, for loaded kernels, and for the windows of a display.
    #[must_use]
    pub fn default_headroom_bytes(total_bytes: u64, drives_display: bool) -> u64 {
        let least = if drives_display { 512 << 20 } else { 128 << 20 };
        (total_bytes / 50).clamp(least, 1 << 30)
    }
}
