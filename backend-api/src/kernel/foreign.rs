//! Native code of kernels (PTX, OpenCL C or a Rust function), which a device runs instead of the body, and
//! matrix products, which a device may compute by a library of its vendor.

use std::ffi::c_void;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::Result;
use crate::expr::Geometry;

/// Native code of a kernel for devices, for [`Kernel::with_code`](super::VerifiedKernel::with_code). A device
/// runs this code instead of compiling the kernel's body.
///
/// A device uses the first of these that exists:
///
/// 1. the function that [submits](Self::submit) launches;
/// 2. the source text in the device's language: [`ptx`](Self::ptx) for CUDA, [`opencl_c`](Self::opencl_c) for
///    OpenCL;
/// 3. a library of the device's vendor, if the kernel is a [matrix product](Self::multiply) for which the
///    device has a library: cuBLAS for CUDA;
/// 4. the body. The device also runs the body if a view's elements are not contiguous or, in OpenCL, not in
///    one buffer.
///
/// The entry point of the source text receives these arguments, in this order:
///
/// | | PTX | OpenCL C |
/// |---|---|---|
/// | each view | its address, `.u64` | `__global` pointer to memory, and `ulong`: the view's offset in it, in bytes |
/// | the number of items | `.u64` | `ulong` |
/// | each parameter of 8 bytes | its bits, `.u64`, `.s64`, `.f64` | `ulong`, `long`, `double` |
/// | each other parameter | its bits, `.u32`, `.s32`, `.f32` | `uint`, `int`, `float` |
///
/// A launch can have more items than requested, to fill the last group. A group has
/// [`group_len`](super::Body::group_len) items. If the body has no group length, a group has 256 items, or
/// the maximum of an OpenCL device if that is less (query `get_local_size(0)`). The parameters have the types
/// of the body's parameters.
///
/// ```
/// use backend_api::kernel::Code;
/// // SAFETY: it does nothing, with any arguments.
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
    product: Option<MatrixProduct<u16>>,
}

/// A function that submits a launch to the driver's queue itself; see [`Code::submit`].
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
    /// Creates native code with the name of its entry point. The other methods add source text, or a function
    /// that submits launches.
    ///
    /// # Safety
    /// In every launch of a kernel with this code, the code must accept the kernel's arguments, and must
    /// terminate. The code may only read elements of views, and write elements that the body would write. If
    /// the code names a [product](Self::multiply), the body must compute this product.
    #[must_use]
    pub unsafe fn new(entry: &str) -> Self {
        Self { entry: entry.into(), ..Self::default() }
    }

    /// Adds source text in PTX, for CUDA.
    #[must_use]
    pub fn ptx(self, text: &str) -> Self {
        Self { ptx: Some(text.into()), ..self }
    }

    /// Requests `bytes` bytes of dynamic shared memory for each group (thread block): the array without a
    /// length in the PTX text (`.extern .shared`). Only for CUDA.
    #[must_use]
    pub fn with_shared_bytes(self, bytes: u32) -> Self {
        Self { shared_bytes: bytes, ..self }
    }

    /// Returns the size in bytes of the dynamic shared memory of a group (thread block). The group has this
    /// memory in addition to the shared memory that the PTX text declares.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// Adds source text in OpenCL C.
    #[must_use]
    pub fn opencl_c(self, text: &str) -> Self {
        Self { opencl_c: Some(text.into()), ..self }
    }

    /// Adds a function that submits each launch to the driver's queue, for kernels that another library
    /// has loaded. Its error becomes the error of the launch.
    ///
    /// The function runs while the queue is locked, so it must not call this library: that could deadlock. In
    /// CUDA it must leave the same context current. It should not panic: the panic reaches the caller of the
    /// launch, on CUDA after all submitted work is done.
    #[must_use]
    pub fn submit(self, submit: impl Fn(&NativeLaunch<'_>) -> Result<()> + Send + Sync + 'static) -> Self {
        Self { submit: Some(Arc::new(submit)), ..self }
    }

    /// Declares that the body multiplies matrices, so that a device may call a library of its vendor instead.
    /// `parameters` are the numbers of the kernel's parameters that describe the product.
    ///
    /// The kernel has at least three views, each with one field, `f32` or `f64`: the factors `a` and `b`, and
    /// the product, whose rows are contiguous and start at the first element. The sums of a library may
    /// differ from the body's in the last bits.
    #[must_use]
    pub fn multiply(self, parameters: MatrixProduct<u16>) -> Self {
        Self { product: Some(parameters), ..self }
    }

    /// The name of the entry point.
    #[must_use]
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// Returns the source texts: PTX, then OpenCL C.
    #[must_use]
    pub fn texts(&self) -> [Option<&Arc<str>>; 2] {
        [self.ptx.as_ref(), self.opencl_c.as_ref()]
    }

    /// Returns the function that submits launches, if there is one.
    #[must_use]
    pub fn submission(&self) -> Option<&Submit> {
        self.submit.as_deref()
    }

    /// Returns the numbers of the parameters that describe the matrix product, if the body is
    /// [one](Self::multiply).
    #[must_use]
    pub fn product(&self) -> Option<MatrixProduct<u16>> {
        self.product
    }

    fn submit_address(&self) -> Option<*const ()> {
        self.submit.as_ref().map(|submit| Arc::as_ptr(submit).cast())
    }
}

/// The promise that all launches of one kernel stay in bounds and write group memory before they read it, for
/// [`VerifiedKernel::without_bounds_checks`](super::VerifiedKernel::without_bounds_checks).
///
/// ```
/// use backend_api::kernel::{Body, InBounds, VerifiedKernel};
/// // SAFETY: the kernel has no views and no arrays.
/// let in_bounds = unsafe { InBounds::promise() };
/// assert!(VerifiedKernel::new(Body::default())?.without_bounds_checks(in_bounds).is_unchecked());
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Debug)]
pub struct InBounds(());

impl InBounds {
    /// Promises that a kernel needs no bounds checks.
    ///
    /// # Safety
    /// In every launch of the kernel, each index must be inside of its view or array, and the items must fill
    /// whole groups. The launching code ensures this. An index out of bounds is undefined behaviour. The
    /// items must write each element of a group's array before an item reads it, unless the kernel changes
    /// the array by atomics; otherwise the item reads any bits.
    #[must_use]
    pub unsafe fn promise() -> Self {
        Self(())
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
            && self.product == other.product
            && self.texts() == other.texts()
    }
}

impl Eq for Code {}

impl Hash for Code {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Hash only the lengths of the texts: each launch looks up its code, so hashing must be cheap.
        let lengths = self.texts().map(|text| text.map(|text| text.len()));
        (&self.entry, lengths, self.submit_address(), self.product).hash(state);
    }
}

/// The numbers that describe a product of two matrices, `a` and `b`: for [`Code::multiply`] the numbers of
/// kernel parameters, and for a launch their values, which [`Launch::product`](super::Launch::product)
/// returns.
///
/// ```
/// use backend_api::kernel::{Code, MatrixProduct};
/// // The first three parameters of the kernel are the extents, the next six describe the factors.
/// let parameters = MatrixProduct { extents: [0, 1, 2], factors: [[3, 4, 5], [6, 7, 8]] };
/// // SAFETY: no kernel has this code.
/// let code = unsafe { Code::new("product") }.multiply(parameters);
/// assert_eq!(code.product(), Some(parameters));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixProduct<T> {
    /// The number of rows and of columns of the product, and the depth: the number of columns of `a`.
    pub extents: [T; 3],
    /// For each factor, `a` first: the index of its first element in its view, the distance of neighbours
    /// along the depth, and the distance of neighbours along the product's rows (`a`) or columns (`b`).
    pub factors: [[T; 3]; 2],
}

/// A launch with the driver's own handles, as the argument of the function of [`Code::submit`].
///
/// The function must submit work only to this [queue](Self::queue), and must not change the queue or the
/// current context. The queue runs the work after the launch's dependencies and before later work. The device
/// holds a lock of the queue during the call, so the function must not call this library, and should not
/// panic. The work may write only to views that the kernel declares as written. The pointers are valid during
/// the call; the memory is valid until the submitted work is done.
///
/// ```
/// use backend_api::kernel::{NativeLaunch, NativeQueue};
/// fn stream(launch: &NativeLaunch<'_>) -> Option<*mut std::ffi::c_void> {
///     match launch.queue {
///         // The context is current on this thread.
///         NativeQueue::Cuda { stream, .. } => Some(stream),
///         _ => None,
///     }
/// }
/// # use backend_api::{expr::Geometry, kernel::NativeView};
/// # use std::ptr::null_mut;
/// // A device creates the launch as follows.
/// let queue = NativeQueue::Cuda { context: null_mut(), stream: null_mut() };
/// let views = [NativeView::new(0x7000_0000, 0, 100, 4)];
/// assert!(stream(&NativeLaunch::new(queue, &views, 100, Geometry::plain(0), &[])).is_some());
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NativeLaunch<'a> {
    /// The driver's queue for the launch.
    pub queue: NativeQueue,
    /// The views of the launch, in the order of the kernel's declarations.
    pub views: &'a [NativeView],
    /// Number of items (GPU threads) to run.
    pub items: u64,
    /// Mapping from an item's (GPU thread's) number to the index of its element.
    pub geometry: Geometry,
    /// The kernel's parameters, each as 64 bits; see [`Type`](super::Type).
    pub params: &'a [u64],
}

impl<'a> NativeLaunch<'a> {
    /// Creates a launch. For backends.
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

/// The driver's handles of a device's queue, such as a CUDA stream.
///
/// ```
/// use backend_api::kernel::NativeQueue;
/// let queue = NativeQueue::OpenCl { context: std::ptr::null_mut(), queue: std::ptr::null_mut() };
/// assert!(!matches!(queue, NativeQueue::Cuda { .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NativeQueue {
    /// A queue of CUDA.
    Cuda {
        /// The `CUcontext`, which is current on the calling thread.
        context: *mut c_void,
        /// The `CUstream`.
        stream: *mut c_void,
    },
    /// A queue of OpenCL.
    OpenCl {
        /// The `cl_context`.
        context: *mut c_void,
        /// The `cl_command_queue`, which is in-order.
        queue: *mut c_void,
    },
}

/// The device memory of a view's elements, which are contiguous.
///
/// ```
/// use backend_api::kernel::NativeView;
/// let view = NativeView::new(0x7000_0000, 0, 100, 4);
/// assert_eq!((view.memory, view.count * view.stride), (0x7000_0000, 400));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NativeView {
    /// In CUDA, the address of the first element; in OpenCL, the `cl_mem` object.
    pub memory: u64,
    /// The offset of the first element in the `cl_mem` object, in bytes; 0 in CUDA.
    pub offset: u64,
    /// Number of elements of the view.
    pub count: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
}

impl NativeView {
    /// Creates a view. For backends.
    #[must_use]
    pub fn new(memory: u64, offset: u64, count: u64, stride: u64) -> Self {
        Self { memory, offset, count, stride }
    }
}
