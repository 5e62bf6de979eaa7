//! Code of kernels that is not made from their bodies.

use std::ffi::c_void;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::Result;
use crate::expr::Geometry;

/// Code of a kernel that comes from elsewhere, in the place of what devices make of its body. For
/// [`Kernel::with_code`](super::Kernel::with_code).
///
/// A device takes what is for it: CUDA [`ptx`](Self::ptx), OpenCL [`opencl_c`](Self::opencl_c), each of them
/// [`submit`](Self::submit), which comes first. Without any of these, and for launches with a view whose
/// elements do not lie one next to the other, or in OpenCL not in one buffer, it runs the body.
///
/// The entry of a text is given, in this order:
///
/// | | PTX | OpenCL C |
/// |---|---|---|
/// | each view | its address, `.u64` | `__global` pointer to memory, and `ulong`: where in it the view begins, in bytes |
/// | the number of items | `.u64` | `ulong` |
/// | each parameter of 8 bytes | its bits, `.u64`, `.s64`, `.f64` | `ulong`, `long`, `double` |
/// | each other parameter | its bits, `.u32`, `.s32`, `.f32` | `uint`, `int`, `float` |
///
/// It is launched with as many items, or more, in groups of [`group_len`](super::Body::group_len), else of
/// 256, or of as many as an OpenCL device can run in a group (ask `get_local_size(0)`). Parameters are those
/// of the body.
///
/// ```
/// use backend_api::kernel::Code;
/// // SAFETY: it does nothing, whatever it is given.
/// let code = unsafe { Code::new("nothing") }.opencl_c("__kernel void nothing() {}");
/// assert_eq!((code.entry(), code.texts().map(|text| text.is_some())), ("nothing", [false, true]));
/// let code = code.ptx("…").submit(|launch| { assert!(launch.items > 0); Ok(()) });
/// assert!(code.submission().is_some());
/// assert_eq!(code.with_shared_bytes(64 << 10).shared_bytes(), 64 << 10);
/// ```
#[derive(Clone, Default)]
pub struct Code {
    entry: String,
    ptx: Option<Arc<str>>,
    opencl_c: Option<Arc<str>>,
    shared_bytes: u32,
    submit: Option<Arc<Submit>>,
}

/// What submits a launch itself.
///
/// ```
/// use backend_api::kernel::Submit;
/// let nothing: &Submit = &|launch| {
///     println!("{} items", launch.items);
///     Ok(())
/// };
/// # let _ = nothing;
/// ```
pub type Submit = dyn Fn(&NativeLaunch<'_>) -> Result<()> + Send + Sync;

impl Code {
    /// Code whose entry has a name.
    ///
    /// # Safety
    /// Of the kernel that it is given to, the code takes the arguments, whatever is launched; it reads
    /// nothing but elements of the views, writes to nothing but what the body would write, and ends.
    #[must_use]
    pub unsafe fn new(entry: &str) -> Self {
        Self { entry: entry.into(), ..Self::default() }
    }

    /// A text of PTX.
    #[must_use]
    pub fn ptx(self, text: &str) -> Self {
        Self { ptx: Some(text.into()), ..self }
    }

    /// Has items of a group share so many bytes beside what the text of PTX declares, as its array without
    /// a length (`.extern .shared`): in CUDA alone.
    #[must_use]
    pub fn with_shared_bytes(self, bytes: u32) -> Self {
        Self { shared_bytes: bytes, ..self }
    }

    /// How many bytes items of a group share beside what the text of PTX declares.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// A text of OpenCL C.
    #[must_use]
    pub fn opencl_c(self, text: &str) -> Self {
        Self { opencl_c: Some(text.into()), ..self }
    }

    /// A function that submits each launch to the driver's queue by itself, for kernels that another library
    /// has loaded. Its error is that of the launch.
    ///
    /// It runs while the queue is locked: it must not call this library, which may wait for it for ever. In
    /// CUDA it has to leave the context current that was when it was called. It should not panic: the panic
    /// goes on to who launches, on CUDA after all that was submitted is done.
    #[must_use]
    pub fn submit(self, submit: impl Fn(&NativeLaunch<'_>) -> Result<()> + Send + Sync + 'static) -> Self {
        Self { submit: Some(Arc::new(submit)), ..self }
    }

    /// The name of the entry.
    #[must_use]
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// The texts: PTX, OpenCL C.
    #[must_use]
    pub fn texts(&self) -> [Option<&Arc<str>>; 2] {
        [self.ptx.as_ref(), self.opencl_c.as_ref()]
    }

    /// What submits launches.
    #[must_use]
    pub fn submission(&self) -> Option<&Submit> {
        self.submit.as_deref()
    }

    fn submit_address(&self) -> Option<*const ()> {
        self.submit.as_ref().map(|submit| Arc::as_ptr(submit).cast())
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Code").field("entry", &self.entry).finish_non_exhaustive()
    }
}

impl PartialEq for Code {
    fn eq(&self, other: &Self) -> bool {
        let is_same = self.submit_address() == other.submit_address();
        is_same
            && (&self.entry, self.shared_bytes) == (&other.entry, other.shared_bytes)
            && self.texts() == other.texts()
    }
}

impl Eq for Code {}

impl Hash for Code {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Each launch asks for its code, whose texts may be long.
        let lengths = self.texts().map(|text| text.map(|text| text.len()));
        (&self.entry, lengths, self.submit_address()).hash(state);
    }
}

/// A launch, as the driver's own interface names things; for [`Code::submit`], which submits it.
///
/// What it submits is ordered in the queue after what it depends on, and what comes next is ordered after
/// it. It has to submit to this queue alone, and to leave it as it is, with its context current. The queue
/// is locked meanwhile, so it must not call this library, and should not panic. Elements may be written of
/// views that are declared as written, and nothing else. The pointers are valid during the call, the memory
/// until what was submitted is done.
///
/// ```
/// use backend_api::kernel::{NativeLaunch, NativeQueue};
/// fn stream(launch: &NativeLaunch<'_>) -> Option<*mut std::ffi::c_void> {
///     match launch.queue {
///         // On this thread the context is current.
///         NativeQueue::Cuda { stream, .. } => Some(stream),
///         _ => None,
///     }
/// }
/// # use backend_api::{expr::Geometry, kernel::NativeView};
/// # use std::ptr::null_mut;
/// // As a device makes it.
/// let queue = NativeQueue::Cuda { context: null_mut(), stream: null_mut() };
/// let views = [NativeView::new(0x7000_0000, 0, 100, 4)];
/// assert!(stream(&NativeLaunch::new(queue, &views, 100, Geometry::plain(0), &[])).is_some());
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NativeLaunch<'a> {
    /// Where it is submitted.
    pub queue: NativeQueue,
    /// The views.
    pub views: &'a [NativeView],
    /// How many items there are.
    pub items: u64,
    /// Which index each has.
    pub geometry: Geometry,
    /// The parameters, as bits.
    pub params: &'a [u64],
}

impl<'a> NativeLaunch<'a> {
    /// A launch, for a device.
    #[must_use]
    pub fn new(
        queue: NativeQueue,
        views: &'a [NativeView],
        items: u64,
        geometry: Geometry,
        params: &'a [u64],
    ) -> Self {
        Self { queue, views, items, geometry, params }
    }
}

/// A queue, as its driver names it.
///
/// ```
/// use backend_api::kernel::NativeQueue;
/// let queue = NativeQueue::OpenCl { context: std::ptr::null_mut(), queue: std::ptr::null_mut() };
/// assert!(!matches!(queue, NativeQueue::Cuda { .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NativeQueue {
    /// Of CUDA.
    Cuda {
        /// The `CUcontext`, which is current on the calling thread.
        context: *mut c_void,
        /// The `CUstream`.
        stream: *mut c_void,
    },
    /// Of OpenCL.
    OpenCl {
        /// The `cl_context`.
        context: *mut c_void,
        /// The `cl_command_queue`, which keeps its order.
        queue: *mut c_void,
    },
}

/// Where the elements of a view lie, one next to the other.
///
/// ```
/// use backend_api::kernel::NativeView;
/// let view = NativeView::new(0x7000_0000, 0, 100, 4);
/// assert_eq!((view.memory, view.count * view.stride), (0x7000_0000, 400));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NativeView {
    /// The address of the first one, of CUDA; of OpenCL the `cl_mem`.
    pub memory: u64,
    /// Where in the memory the first one begins, in bytes; 0 of CUDA.
    pub offset: u64,
    /// How many there are.
    pub count: u64,
    /// Bytes from one to the next.
    pub stride: u64,
}

impl NativeView {
    /// Elements, for a device.
    #[must_use]
    pub fn new(memory: u64, offset: u64, count: u64, stride: u64) -> Self {
        Self { memory, offset, count, stride }
    }
}
