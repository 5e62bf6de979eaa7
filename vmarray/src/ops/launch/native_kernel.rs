//! Kernels with native code instead of a translated function: PTX, OpenCL C, or a Rust function.

use std::marker::PhantomData;

use backend_api::kernel::Code;
use vmarray_kernel::Kernel;

use super::arguments::Arguments;
use super::execution::{self, LaunchPurpose};
use super::kernel::KernelVariants;
use super::options::LaunchOptions;
use crate::base::error::Result;
use crate::ops::view::INTERNAL;

/// A kernel with native code, such as OpenCL C, which devices that support its language run instead of the
/// kernel. Created by [`RunKernel::with_code`](super::RunKernel::with_code).
///
/// ```
/// use vmarray::kernel::{Code, NativeKernel, Own};
/// use vmarray::prelude::*;
///
/// #[vmarray::kernel]
/// fn cleared(x: &mut Own<u32>) {
///     x.set(0);
/// }
/// // SAFETY: the closure submits nothing, and returns an error.
/// let code = unsafe { Code::new("cleared") }.submit(|launch| {
///     let detail = format!("{} items, and no library to submit them", launch.items);
///     Err(vmarray::device::Error::new(vmarray::device::ErrorKind::Unsupported, "submit").with_detail(detail))
/// });
/// let coded: NativeKernel<cleared> = cleared::with_code(code)?;
/// let mut array = VirtualArray::<u32>::new(100)?;
/// match coded.run((&mut array,)) {
///     Ok(()) => println!("the host runs the function"),
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct NativeKernel<K> {
    kernels: KernelVariants,
    kernel: PhantomData<fn() -> K>,
}

impl<K> std::fmt::Debug for NativeKernel<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeKernel").field("name", &self.kernels.usual.lowered.name).finish_non_exhaustive()
    }
}

impl<K: Kernel> NativeKernel<K> {
    pub(super) fn new(code: Code) -> Result<Self> {
        let mut kernels = KernelVariants::of::<K>()?;
        if !kernels.tile.is_empty() {
            // Reject kernels whose work-groups are tiles: their results are in tile order, and another kernel
            // would have to reorder the results of native code.
            let reason = "its groups are tiles of a result, which native code does not support: write the \
                          code for groups along one axis, `group = N`";
            return Err(kernels.usual.refused(reason));
        }
        kernels.code = Some(code);
        Ok(Self { kernels, kernel: PhantomData })
    }

    /// Runs the native code with the same arguments as [`RunKernel::run`](super::RunKernel::run).
    ///
    /// # Errors
    /// The errors of [`RunKernel::run`](super::RunKernel::run), and [`Device`](crate::ErrorKind::Device) if a
    /// device cannot compile or submit the code.
    pub fn run<'a>(&self, arguments: impl Arguments<'a, K::Parameters>) -> Result<()> {
        execution::run(
            &self.kernels,
            arguments.bound(INTERNAL),
            &LaunchOptions::USUAL,
            None,
            LaunchPurpose::Nothing,
        )
    }
}
