//! One type for devices of all backends, so that an array can lie on a mixture of them.

use backend_api::Device;
use enum_dispatch::enum_dispatch;

/// A backend's device, whichever it is.
#[enum_dispatch]
trait AsDevice: Device + Sized {
    fn device(&self) -> &dyn Device {
        self
    }
}

#[cfg(feature = "host")]
impl AsDevice for backend_host::HostDevice {}
#[cfg(feature = "host")]
impl AsDevice for backend_host::FileDevice {}
#[cfg(feature = "host")]
impl AsDevice for backend_host::SimulatedDevice {}
#[cfg(feature = "cuda")]
impl AsDevice for backend_cuda::CudaDevice {}
#[cfg(feature = "opencl")]
impl AsDevice for backend_opencl::OpenClDevice {}
#[cfg(not(any(feature = "cuda", feature = "opencl", feature = "host")))]
impl AsDevice for crate::setup::no_device::NoDevice {}

/// A device of any backend that is compiled in.
///
/// Calls are dispatched by a comparison and a table, on misses only: hits do not know devices. An array over
/// devices of one type can name that type instead and saves even that.
///
/// ```
/// use vmarray::{AnyDevice, host::HostDevice, prelude::*};
/// use std::sync::Arc;
/// let one: AnyDevice = HostDevice::new(1 << 20)?.into();
/// let other: AnyDevice = HostDevice::new(1 << 20)?.into();
/// let array = VirtualArray::<u32>::builder(1000).devices([Arc::new(one), Arc::new(other)]).build()?;
/// assert_eq!(array.get(999)?, 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[enum_dispatch(AsDevice)]
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
    Nothing(crate::setup::no_device::NoDevice),
}

// SAFETY: everything is passed on as it is to one and the same device, which keeps the contract.
unsafe impl Device for AnyDevice {
    backend_api::forward! { self => self.device();
        info memory create_queue release_queue allocate release allocate_host import_host release_host
        submit routes submit_by set_routing routing fill search gather scatter compute prepare poll wait wake order_after
        wipe_on_release
    }
}
