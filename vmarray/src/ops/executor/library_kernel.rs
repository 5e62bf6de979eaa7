//! [`LibraryKernel`]: a kernel of the library itself, such as a sort kernel, submitted directly to a device
//! queue. Unlike a kernel of the program, it needs no launch plan.

use backend_api::LaunchView;
#[cfg(feature = "matmul")]
use backend_api::kernel::MatrixProduct;
use backend_api::kernel::{Body, Code, HostForm, InBounds, VerifiedKernel};
use vmarray_kernel::launch::{LaunchVariant, host_form_of, lower_for};
use vmarray_kernel::{GroupPart, Kernel, LoweredKernel, ParameterKind, ScalarSource};

/// A kernel that the library launches over device memory: a lowered `#[kernel]` function, or native code. Its
/// views are contiguous, and its work-items (GPU threads) count from 0.
#[derive(Debug)]
pub(crate) struct LibraryKernel {
    kernel: VerifiedKernel,
    params: Vec<LaunchScalar>,
}

/// The source of a scalar parameter, whose value is computed for each launch.
#[derive(Clone, Copy, Debug)]
enum LaunchScalar {
    /// The value with this index among the values that the caller passes.
    Value(usize),
    /// The number of elements of the view with this index.
    ViewLen(usize),
    Groups,
    /// The number of the first work-item or group, which is 0.
    Zero,
}

impl LibraryKernel {
    /// Lowers a kernel function of the library. The kernel must have one axis, and no
    /// [`Own`](vmarray_kernel::Own) of rows, no windows and no tables.
    ///
    /// # Panics
    /// If the kernel cannot be lowered, because of an error in the library.
    pub fn of<K: Kernel>() -> Self {
        // Kernels with work-groups have no compiled host form: the host interprets them.
        let host_form = K::group_len().is_none().then(|| host_form_of::<K>(0, false)).flatten();
        match lower_for::<K>(&LaunchVariant::default()) {
            Ok(lowered) => Self::lowered(lowered, host_form),
            Err(error) => {
                panic!("a kernel of vmarray itself cannot be lowered: {error}; please report this bug")
            }
        }
    }

    fn lowered(lowered: LoweredKernel, host_form: Option<HostForm>) -> Self {
        let scalars = |parameter: usize| match &lowered.parameters[parameter].kind {
            ParameterKind::Value(layout) => layout.scalars(),
            _ => 0,
        };
        let scalar = |source: &ScalarSource| match *source {
            ScalarSource::Value { parameter, position } => {
                LaunchScalar::Value((0..parameter).map(scalars).sum::<usize>() + position)
            }
            ScalarSource::Length { parameter } => {
                let view = lowered.views.iter().position(|of| *of == parameter);
                LaunchScalar::ViewLen(view.unwrap_or_else(|| {
                    panic!(
                        "kernel `{}` has no view for its parameter {parameter}; please report this bug",
                        lowered.name
                    )
                }))
            }
            ScalarSource::Groups(GroupPart::Count) => LaunchScalar::Groups,
            ScalarSource::Origin | ScalarSource::Groups(GroupPart::First) => LaunchScalar::Zero,
            other => panic!(
                "kernel `{}` needs {other:?}, which only launch plans set; please report this bug",
                lowered.name
            ),
        };
        let params = lowered.scalars.iter().map(scalar).collect();
        // SAFETY: the library launches whole groups over views that contain all elements that its kernels
        // name, and the kernels write group memory before they read it. The reference device, which checks
        // each index and starts group memory with ones, runs the same launches in tests.
        let in_bounds = unsafe { InBounds::promise() };
        let mut kernel = match VerifiedKernel::new(lowered.body) {
            Ok(kernel) => kernel.named(lowered.name).without_bounds_checks(in_bounds),
            Err(error) => {
                panic!("a kernel of vmarray itself cannot be verified: {error}; please report this bug")
            }
        };
        if let Some(form) = host_form {
            kernel = kernel.with_host(form);
        }
        Self { kernel, params }
    }

    /// Sets the number of groups that a multiprocessor should hold at once: see
    /// [`Body::resident_groups`](backend_api::kernel::Body::resident_groups).
    pub fn with_resident_groups(self, groups: u32) -> Self {
        Self { kernel: self.kernel.with_resident_groups(groups), ..self }
    }

    /// Declares that the kernel multiplies matrices, so that a device may call a library of its vendor. The
    /// first nine scalars are the extents and the factors of the [product](MatrixProduct).
    #[cfg(feature = "matmul")]
    pub fn with_product(self) -> Self {
        let number = |value: usize| {
            let is_value = |of: &LaunchScalar| matches!(of, LaunchScalar::Value(own) if *own == value);
            self.params.iter().position(is_value).map_or(u16::MAX, |number| number as u16)
        };
        let [extents, a, b] = [[0, 1, 2], [3, 4, 5], [6, 7, 8]].map(|values| values.map(number));
        // SAFETY: the code has no text and no function. The kernel multiplies matrices inside its views.
        let code = unsafe { Code::new("") }.multiply(MatrixProduct { extents, factors: [a, b] });
        Self { kernel: self.kernel.with_code(code), ..self }
    }

    /// Wraps a native kernel (PTX or OpenCL C). At a launch, the caller passes the kernel's scalars.
    pub fn native(kernel: VerifiedKernel) -> Self {
        let params = (0..kernel.body().params.len()).map(LaunchScalar::Value).collect();
        Self { kernel, params }
    }

    pub fn kernel(&self) -> &VerifiedKernel {
        &self.kernel
    }

    /// Returns the scalar parameters of one launch over `items` work-items (GPU threads). `values` are the
    /// caller's scalars in the order of the kernel's declaration; surplus values are ignored.
    pub fn params(&self, values: &[u64], views: &[LaunchView<'_>], items: u64) -> Vec<u64> {
        self.params_of(values, |view| views[view].count(), items)
    }

    /// Returns the scalar parameters, as [`params`](Self::params) does; `view_len` returns the number of
    /// elements of a view.
    pub fn params_of(&self, values: &[u64], view_len: impl Fn(usize) -> u64, items: u64) -> Vec<u64> {
        let group_len = u64::from(self.kernel.body().group_len.unwrap_or(1));
        let param = |scalar: &LaunchScalar| match *scalar {
            LaunchScalar::Value(number) => values[number],
            LaunchScalar::ViewLen(view) => view_len(view),
            LaunchScalar::Groups => items.div_ceil(group_len),
            LaunchScalar::Zero => 0,
        };
        self.params.iter().map(param).collect()
    }
}

/// Creates a kernel of the library from its PTX and OpenCL C. Devices without a matching text only report a
/// failure.
///
/// # Errors
/// The errors of [`Body::verify`].
pub(crate) fn native_kernel(
    name: &str,
    body: Body,
    texts: [Option<&str>; 2],
    shared_bytes: u32,
) -> backend_api::Result<VerifiedKernel> {
    // SAFETY: the kernel text has the arguments that the body declares: the views, the number of items, and
    // the parameters. It reads elements of the views, and writes only to views that are declared as written.
    // It stays within bounds, because only the sorts launch it, with parameters inside the views. It ends,
    // because a block waits only for blocks that have started before it.
    let mut code = unsafe { Code::new(name) }.with_shared_bytes(shared_bytes);
    let [ptx, opencl_c] = texts;
    code = ptx.into_iter().fold(code, |code, text| code.ptx(text));
    code = opencl_c.into_iter().fold(code, |code, text| code.opencl_c(text));
    Ok(VerifiedKernel::new(body)?.named(name).with_code(code))
}
