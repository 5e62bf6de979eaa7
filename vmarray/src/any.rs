//! One type for devices of all backends, so that an array can lie on a mixture of them.

use backend_api::Device;
use enum_dispatch::enum_dispatch;

/// The definition of [`Device`] once more, for `enum_dispatch` to read; the implementation it generates is for the real
/// trait. Examples in its documentation are run in their own crate, and not once more here.
#[cfg(not(doctest))]
mod shape {
    use enum_dispatch::enum_dispatch;

    backend_api::define_device_trait!(#[enum_dispatch]);
}

/// A device of any backend that is compiled in.
///
/// Calls are dispatched by a comparison, on misses only: hits do not know devices. An array over devices of one type
/// can name that type instead and saves even that.
///
/// ```
/// use std::sync::Arc;
/// use vmarray::{AnyDevice, VirtualArray};
/// use vmarray::host::HostDevice;
/// let one: AnyDevice = HostDevice::new(1 << 20)?.into();
/// let other: AnyDevice = HostDevice::new(1 << 20)?.into();
/// let array = VirtualArray::<u32>::builder(1000).devices([Arc::new(one), Arc::new(other)]).build()?;
/// assert_eq!(array.get(999)?, 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[enum_dispatch(Device)]
#[derive(Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "there are few of them, each in an `Arc`")]
pub enum AnyDevice {
    /// Host RAM.
    #[cfg(feature = "host")]
    Host(backend_host::HostDevice),
    /// A file.
    #[cfg(feature = "host")]
    File(backend_host::FileDevice),
    /// What exists only in tests.
    #[cfg(feature = "host")]
    Simulated(backend_host::SimulatedDevice),
    /// An NVIDIA card.
    #[cfg(feature = "cuda")]
    Cuda(backend_cuda::CudaDevice),
    /// A card of any vendor.
    #[cfg(feature = "opencl")]
    OpenCl(backend_opencl::OpenClDevice),
    /// Nothing: no backend is compiled in.
    #[cfg(not(any(feature = "cuda", feature = "opencl", feature = "host")))]
    Nothing(crate::no_device::NoDevice),
}
