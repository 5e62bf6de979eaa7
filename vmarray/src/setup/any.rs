//! [`AnyDevice`]: one type for devices of all backends, so that one array can use several backends.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};
use std::task::Waker;

use backend_api::{
    BufferHandle, Commit, Device, DeviceInfo, DeviceKind, DeviceSpan, DirectReads, HostAllocation,
    HostMemory, MemoryStatus, QueueHandle, QueueProgress, Request, Ticket,
};
use enum_dispatch::enum_dispatch;

use crate::setup::inherited::{self, refused};

/// Access to a device of any type as `dyn Device`.
#[enum_dispatch]
trait AsDevice {
    fn device(&self) -> &dyn Device;
}

impl AsDevice for Arc<dyn Device> {
    fn device(&self) -> &dyn Device {
        &**self
    }
}

macro_rules! are_devices {
    ($($(#[$when:meta])* $device:ty;)*) => {$(
        $(#[$when])*
        impl AsDevice for $device {
            fn device(&self) -> &dyn Device {
                self
            }
        }
    )*};
}

are_devices! {
    #[cfg(feature = "host")]
    backend_host::HostDevice;
    #[cfg(feature = "host")]
    vmarray_store::FileDevice;
    #[cfg(feature = "host")]
    backend_host::SimulatedDevice;
    #[cfg(feature = "host")]
    vmarray_store::StoreDevice;
    #[cfg(feature = "cuda")]
    backend_cuda::CudaDevice;
    #[cfg(feature = "opencl")]
    backend_opencl::OpenClDevice;
}

/// A device of any compiled-in backend, or of the program's own type, so an array can use several types.
///
/// Each call to the device compares the type and uses a function table. Accesses to cached pages (hits) do
/// not call devices. To avoid this dispatch, use the device's own type as the type parameter of the array.
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
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "there are few of them, each in an `Arc`")]
pub enum AnyDevice {
    /// Host RAM.
    #[cfg(feature = "host")]
    Host(backend_host::HostDevice),
    /// A file as slow, large memory, whose contents do not persist.
    #[cfg(feature = "host")]
    File(vmarray_store::FileDevice),
    /// A simulated device for tests.
    #[cfg(feature = "host")]
    Simulated(backend_host::SimulatedDevice),
    /// A file whose contents persist.
    #[cfg(feature = "host")]
    Store(vmarray_store::StoreDevice),
    /// An NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda(backend_cuda::CudaDevice),
    /// An OpenCL device: a GPU of any vendor, or a processor.
    #[cfg(feature = "opencl")]
    OpenCl(backend_opencl::OpenClDevice),
    /// A device of another type, for arrays that mix it with others.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use std::sync::Arc;
    /// use vmarray::device::Device;
    /// use vmarray_conformance::wrap::Counting;
    /// use vmarray::host::HostDevice;
    /// use vmarray::AnyDevice;
    /// let own = Arc::new(Counting::new(HostDevice::new(1 << 20)?));
    /// let dynamic: Arc<dyn Device> = own.clone();
    /// let devices: [AnyDevice; 2] = [dynamic.into(), HostDevice::new(1 << 20)?.into()];
    /// let array = VirtualArray::<u32>::builder(1000).devices(devices.map(Arc::new)).build()?;
    /// array.fill(.., 7)?;
    /// assert!(own.counts().work.fill_bytes > 0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    Own(Arc<dyn Device>),
}

// Written out, because derived implementations are inlined: all dependent crates would compile all devices.
impl fmt::Debug for AnyDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.device(), f)
    }
}

impl AnyDevice {
    /// Returns the device that answers requests; in a forked child process, one that returns errors.
    fn answering(&self) -> &dyn Device {
        if inherited::is_child() { &INHERITED } else { self.device() }
    }
}

// SAFETY: all calls are forwarded unchanged to one device, which keeps the contract, or refused.
unsafe impl Device for AnyDevice {
    backend_api::forward! { self => self.device(); info }
    backend_api::forward! { self => self.answering();
        memory create_queue release_queue allocate allocate_extensible extend release allocate_host import_host
        release_host
        submit routes set_routing routing prepare
        kernel_facts poll wait wake reaches order_after wipe_on_release sync direct_reads addresses
        stream_launcher
    }
}

/// Replaces all devices in a forked child process: returns an error for each request, and releases nothing.
#[derive(Debug)]
struct InheritedDevice;

static INHERITED: InheritedDevice = InheritedDevice;

// SAFETY: the device executes no request, and allocates and releases no memory.
unsafe impl Device for InheritedDevice {
    fn info(&self) -> &DeviceInfo {
        static INFO: LazyLock<DeviceInfo> =
            LazyLock::new(|| DeviceInfo::new("host", "of the parent", DeviceKind::HostMemory, "host:parent"));
        &INFO
    }

    fn memory(&self) -> backend_api::Result<MemoryStatus> {
        Err(refused("memory"))
    }

    fn create_queue(&self) -> backend_api::Result<QueueHandle> {
        Err(refused("create_queue"))
    }

    fn release_queue(&self, _: QueueHandle) {}

    fn allocate(&self, _: u64, _: Commit) -> backend_api::Result<BufferHandle> {
        Err(refused("allocate"))
    }

    fn allocate_extensible(&self, _: u64, _: u64, _: Commit) -> backend_api::Result<BufferHandle> {
        Err(refused("allocate_extensible"))
    }

    fn extend(&self, _: &BufferHandle, _: u64, _: Commit) -> backend_api::Result<()> {
        Err(refused("extend"))
    }

    fn release(&self, _: BufferHandle) {}

    fn allocate_host(&self, _: usize, _: HostMemory) -> backend_api::Result<HostAllocation> {
        Err(refused("allocate_host"))
    }

    unsafe fn import_host(
        &self,
        _: NonNull<u8>,
        _: usize,
        _: HostMemory,
    ) -> backend_api::Result<HostAllocation> {
        Err(refused("import_host"))
    }

    fn release_host(&self, _: HostAllocation) {}

    fn wipe_on_release(&self) -> backend_api::Result<()> {
        Err(refused("wipe_on_release"))
    }

    fn sync(&self) -> backend_api::Result<()> {
        Err(refused("sync"))
    }

    fn direct_reads(&self) -> Option<&dyn DirectReads> {
        Some(self)
    }

    fn poll(&self, _: Ticket) -> backend_api::Result<QueueProgress> {
        Err(refused("poll"))
    }

    fn wait(&self, _: Ticket) -> backend_api::Result<()> {
        Err(refused("wait"))
    }

    fn wake(&self, _: Ticket, waker: Waker) {
        waker.wake();
    }

    fn order_after(&self, _: &QueueHandle, _: Ticket) -> backend_api::Result<()> {
        Err(refused("order_after"))
    }

    fn submit(&self, _: &QueueHandle, request: &Request<'_>) -> backend_api::Result<Ticket> {
        Err(refused(request.operation()))
    }
}

impl DirectReads for InheritedDevice {
    fn read_directly(&self, _: DeviceSpan<'_>, _: &mut [u8]) -> backend_api::Result<()> {
        Err(refused("read_directly"))
    }
}
