//! Shared devices inherited by a forked process. The child has neither the threads nor the contexts of these
//! devices: work on them would never end, so the library returns an error.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Once};
use std::task::Waker;

use backend_api::{
    BufferHandle, Commit, Device, DeviceInfo, DeviceKind, DeviceSpan, DirectReads, Error, ErrorKind,
    HostAllocation, HostMemory, MemoryStatus, Progress, QueueHandle, Result, Ticket,
};

/// True in a process that was forked from one with open shared devices.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Has children of this process know that they are children.
pub(crate) fn watch_forks() {
    static WATCHES: Once = Once::new();
    WATCHES.call_once(|| {
        #[cfg(target_os = "linux")]
        {
            extern "C" fn in_child() {
                IS_CHILD.store(true, Ordering::Relaxed);
            }
            // SAFETY: the function stores to a static variable and does nothing else.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            // Without memory for it children are not warned.
            let _ = failed;
        }
    });
}

pub(crate) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Answers in place of a device of the parent: each request with an error, and nothing is given back.
#[derive(Debug)]
pub(crate) struct InheritedDevice;

pub(crate) static INHERITED: InheritedDevice = InheritedDevice;

pub(crate) fn refused(operation: &'static str) -> Error {
    Error::new(ErrorKind::Lost, operation)
        .with_detail(
            "this process was forked from a process with open devices, which only the parent can use",
        )
        .with_advice("start processes by `exec`, and make or open arrays in them")
}

// SAFETY: no request is carried out and no memory is handed out or given back.
unsafe impl Device for InheritedDevice {
    fn info(&self) -> &DeviceInfo {
        static INFO: LazyLock<DeviceInfo> =
            LazyLock::new(|| DeviceInfo::new("host", "of the parent", DeviceKind::HostMemory, "host:parent"));
        &INFO
    }

    fn memory(&self) -> Result<MemoryStatus> {
        Err(refused("memory"))
    }

    fn create_queue(&self) -> Result<QueueHandle> {
        Err(refused("create_queue"))
    }

    fn release_queue(&self, _: QueueHandle) {}

    fn allocate(&self, _: u64, _: Commit) -> Result<BufferHandle> {
        Err(refused("allocate"))
    }

    fn allocate_extensible(&self, _: u64, _: u64, _: Commit) -> Result<BufferHandle> {
        Err(refused("allocate_extensible"))
    }

    fn extend(&self, _: &BufferHandle, _: u64, _: Commit) -> Result<()> {
        Err(refused("extend"))
    }

    fn release(&self, _: BufferHandle) {}

    fn allocate_host(&self, _: usize, _: HostMemory) -> Result<HostAllocation> {
        Err(refused("allocate_host"))
    }

    unsafe fn import_host(&self, _: NonNull<u8>, _: usize, _: HostMemory) -> Result<HostAllocation> {
        Err(refused("import_host"))
    }

    fn release_host(&self, _: HostAllocation) {}

    fn wipe_on_release(&self) -> Result<()> {
        Err(refused("wipe_on_release"))
    }

    fn sync(&self) -> Result<()> {
        Err(refused("sync"))
    }

    fn direct_reads(&self) -> Option<&dyn DirectReads> {
        Some(self)
    }

    fn poll(&self, _: Ticket) -> Result<Progress> {
        Err(refused("poll"))
    }

    fn wait(&self, _: Ticket) -> Result<()> {
        Err(refused("wait"))
    }

    fn wake(&self, _: Ticket, waker: Waker) {
        waker.wake();
    }

    fn order_after(&self, _: &QueueHandle, _: Ticket) -> Result<()> {
        Err(refused("order_after"))
    }

    backend_api::requests! { self, _queue, request => Err(refused(request.operation())) }
}

impl DirectReads for InheritedDevice {
    fn read_directly(&self, _: DeviceSpan<'_>, _: &mut [u8]) -> Result<()> {
        Err(refused("read_directly"))
    }
}
