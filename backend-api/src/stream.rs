//! Work on streams of the program: kernels and host functions between the program's own work, without
//! tickets.

use std::fmt::Debug;

use crate::kernel::VerifiedKernel;
use crate::{HostSpan, Result};

/// A stream of the program, by its handle in the device's driver: a `CUstream` for CUDA. 0 is the default
/// stream.
///
/// ```
/// use backend_api::StreamId;
/// assert_eq!(StreamId::default(), StreamId(0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamId(pub u64);

/// Layout of a view's elements in memory, which a kernel is compiled for.
///
/// ```
/// use backend_api::StreamLayout;
/// let words = StreamLayout { stride: 16, align: 16, page_len: 1, ranges: 1 };
/// assert_eq!(words, StreamLayout::contiguous(16));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamLayout {
    /// Bytes from one element to the next; at least 1.
    pub stride: u64,
    /// Each start address is a multiple of this power of two, at most 16.
    pub align: u64,
    /// Number of elements of a page, if the pages are striped over several ranges of memory.
    pub page_len: u64,
    /// Number of ranges: 1, or the number of ranges over which pages are striped, as in
    /// [`LaunchView::Striped`](crate::LaunchView::Striped).
    pub ranges: usize,
}

impl StreamLayout {
    /// Returns the layout of contiguous elements of `stride` bytes, whose start has the alignment of a word
    /// of this length.
    #[must_use]
    pub const fn contiguous(stride: u64) -> Self {
        let word = 1 << stride.trailing_zeros();
        Self { stride, align: if word < 16 { word } else { 16 }, page_len: 1, ranges: 1 }
    }
}

/// The elements of a view in a launch: their number, and the start address of each range of memory.
///
/// ```
/// use backend_api::StreamView;
/// let view = StreamView { count: 100, starts: &[0x1000] };
/// assert_eq!(view.starts.len(), 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StreamView<'a> {
    /// Number of elements.
    pub count: u64,
    /// The addresses for kernels, as many as the layout has ranges.
    pub starts: &'a [u64],
}

/// Returns kernels for streams of the program; see [`Device::streams`](crate::Device::stream_launcher).
///
/// Work on a stream has no ticket and no report. The program orders it with other work by its streams and
/// events. Its errors are errors of the stream; a fatal one is the loss of the device.
///
/// ```
/// use backend_api::Device;
/// // RAM has no streams.
/// assert!(backend_host::HostDevice::new(1 << 20)?.stream_launcher().is_none());
/// # Ok::<_, backend_api::Error>(())
/// ```
pub trait StreamLauncher: Send + Sync {
    /// Compiles a kernel for launches with these layouts of its views. Blocks until that is done.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if work-items of the kernel can fail, or if it needs a
    /// private heap or tables. Only kernels [without bounds
    /// checks](crate::kernel::VerifiedKernel::without_bounds_checks) cannot fail. Else the errors of
    /// [`prepare`](crate::Device::prepare).
    fn load(&self, kernel: &VerifiedKernel, layouts: &[StreamLayout]) -> Result<Box<dyn StreamKernel>>;

    /// Returns the address by which kernels access page-locked host memory.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the memory is pageable,
    /// [`UnknownHandle`](crate::ErrorKind::UnknownHandle), or
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a range outside of the memory.
    fn kernel_address(&self, host: HostSpan<'_>, bytes: u64) -> Result<u64>;

    /// Enqueues a call of a host function. Later work of the stream starts after the function has returned.
    /// A thread of the driver calls the function, so it must not call the driver.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost), or the driver's error;
    /// [`Unsupported`](crate::ErrorKind::Unsupported) while a graph captures the stream.
    ///
    /// # Safety
    /// `stream` is a live stream of this device, or 0.
    unsafe fn call_host(&self, stream: StreamId, function: Box<dyn FnOnce() + Send>) -> Result<()>;
}

/// A compiled kernel. Its drop blocks until all work of the device is done.
///
/// ```
/// use backend_api::{Result, StreamId, StreamKernel, StreamView};
/// /// # Safety
/// /// As for `launch`, for a kernel over one array of words.
/// unsafe fn run(kernel: &dyn StreamKernel, count: u64, address: u64) -> Result<()> {
///     let words = StreamView { count, starts: &[address] };
///     // SAFETY: guaranteed by the caller.
///     unsafe { kernel.launch(StreamId(0), count, &[words], &[count]) }
/// }
/// ```
pub trait StreamKernel: Debug + Send + Sync {
    /// Enqueues a launch with `items` work-items. Neither blocks nor allocates, and can be captured in a
    /// graph.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if views or parameters do not match the kernel,
    /// [`Lost`](crate::ErrorKind::Lost), or the driver's error. After an error the launch has not started.
    ///
    /// # Safety
    /// `stream` is a live stream of the device, or 0. Until the launch is done, also as part of a graph: the
    /// kernel may access all elements of the views, whose addresses have the declared alignment; no other
    /// code accesses elements that the kernel writes, or writes elements that the kernel reads, except by
    /// atomics; and the kernel lives. The kernel stays inside of its views with these arguments.
    unsafe fn launch(
        &self,
        stream: StreamId,
        items: u64,
        views: &[StreamView<'_>],
        params: &[u64],
    ) -> Result<()>;
}
