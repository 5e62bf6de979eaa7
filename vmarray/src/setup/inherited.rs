//! Detection of processes that were forked from a process that uses the library. The child has neither the
//! threads nor the GPU contexts of its parent. A lock that another thread held during the fork stays locked
//! in the child. So the library returns an error in the child before it takes a lock.

use std::ptr::NonNull;
use std::sync::LazyLock;
#[cfg(target_os = "linux")]
use std::sync::Once;
#[cfg(target_os = "linux")]
use std::sync::atomic::AtomicBool;
#[cfg(not(target_os = "linux"))]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::task::Waker;

use backend_api::{
    BufferHandle, Commit, Device, DeviceInfo, DeviceKind, DeviceSpan, DirectReads, Error, ErrorKind,
    HostAllocation, HostMemory, MemoryStatus, QueueHandle, QueueProgress, Request, Result, Ticket,
};

/// True in a process that was forked from one that uses the library.
#[cfg(target_os = "linux")]
static IS_CHILD: AtomicBool = AtomicBool::new(false);
/// The process that uses the library; 0 before the first use.
#[cfg(not(target_os = "linux"))]
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Notes the use of the library by this process, for [`is_child`]. Call it before taking a lock.
///
/// # Errors
/// `Lost` in a child.
pub(crate) fn expect_own_process(operation: &'static str) -> Result<()> {
    if is_child() {
        return Err(refused(operation));
    }
    #[cfg(target_os = "linux")]
    {
        static WATCHES: Once = Once::new();
        extern "C" fn in_child() {
            IS_CHILD.store(true, Ordering::Relaxed);
        }
        WATCHES.call_once(|| {
            // SAFETY: the function stores to a static variable and does nothing else.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            // The call fails only if memory is exhausted. Then the library does not detect child processes.
            let _ = failed;
        });
    }
    #[cfg(not(target_os = "linux"))]
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    Ok(())
}

/// True in a process that was forked from one that uses the library.
pub(crate) fn is_child() -> bool {
    #[cfg(target_os = "linux")]
    {
        IS_CHILD.load(Ordering::Relaxed)
    }
    #[cfg(not(target_os = "linux"))]
    {
        !matches!(PROCESS.load(Ordering::Relaxed), process if process == 0 || process == std::process::id())
    }
}

/// The substitute for all devices in a forked child process: returns an error for each request, and releases
/// nothing.
#[derive(Debug)]
pub(crate) struct InheritedDevice;

pub(crate) static INHERITED: InheritedDevice = InheritedDevice;

pub(crate) fn refused(operation: &'static str) -> Error {
    Error::new(ErrorKind::Lost, operation)
        .with_detail("this process was forked from a process that uses arrays, which only the parent can use")
        .with_advice("start processes by `exec`, and make or open arrays in them")
}

// SAFETY: the device executes no request, and allocates and releases no memory.
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

    fn poll(&self, _: Ticket) -> Result<QueueProgress> {
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

    fn submit(&self, _: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        Err(refused(request.operation()))
    }
}

impl DirectReads for InheritedDevice {
    fn read_directly(&self, _: DeviceSpan<'_>, _: &mut [u8]) -> Result<()> {
        Err(refused("read_directly"))
    }
}
