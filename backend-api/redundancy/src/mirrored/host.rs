//! Page-locked host memory of a mirror: one allocation that every member device can copy from and to.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use backend_api::{Device, Error, ErrorKind, HostAllocation, HostId, HostMemory, Result, racy};
use vmarray_support::IdMap;

/// The alignment of host memory in bytes; allocations of at least `HUGE` bytes are aligned to a huge page.
const ALIGNMENT: usize = 4096;
const HUGE: usize = 2 << 20;

/// A range of host memory that the program or a device owns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host {
    pub(super) address: usize,
    pub(super) bytes: u64,
    pub(super) kind: HostMemory,
}

/// Host memory that a mirror has allocated.
#[derive(Debug)]
pub(super) struct HostBlock {
    address: NonNull<u8>,
    layout: Layout,
}

// SAFETY: all accesses to a block go through handles; one thread frees it.
unsafe impl Send for HostBlock {}

impl HostBlock {
    /// Allocates zeroed memory; `None` if the allocation fails.
    pub(super) fn new(bytes: usize) -> Option<Self> {
        let align = if bytes >= HUGE { HUGE } else { ALIGNMENT };
        let layout = Layout::from_size_align(bytes.max(1), align).ok()?;
        // SAFETY: the layout has at least one byte.
        let address = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { address, layout })
    }

    pub(super) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Overwrites the block with zeros before its release.
    ///
    /// # Safety
    /// No device uses the block any more.
    pub(super) unsafe fn wipe(&self) {
        // SAFETY: this block owns the initialised memory, and no work touches it, by the caller's promise.
        unsafe { racy::wipe(self.address.as_ptr(), self.layout.size()) };
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; no device knows it any more.
        unsafe { dealloc(self.address.as_ptr(), self.layout) }
    }
}

/// All host memory that the mirror has allocated.
#[derive(Debug, Default)]
pub(super) struct MirrorMemory {
    pub(super) blocks: IdMap<HostId, HostBlock>,
    /// True if the mirror wipes memory before its release.
    pub(super) wipes: bool,
}

impl Drop for MirrorMemory {
    fn drop(&mut self) {
        // SAFETY: the mirror drops its devices first, and with them their use of host memory.
        self.blocks.values().filter(|_| self.wipes).for_each(|block| unsafe { block.wipe() });
    }
}

/// Imports host memory into another device, page-locked if the first import was and the device can lock it.
///
/// # Safety
/// The requirements of [`Device::import_host`].
pub(super) unsafe fn known(device: &dyn Device, host: Host) -> Result<HostAllocation> {
    let address = NonNull::new(std::ptr::with_exposed_provenance_mut(host.address))
        .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "import_host"))?;
    // SAFETY: guaranteed by the caller.
    let import = |kind| unsafe { device.import_host(address, host.bytes as usize, kind) };
    match import(host.kind) {
        Err(error) if matches!(error.kind(), ErrorKind::PinRefused | ErrorKind::Unsupported) => {
            import(HostMemory::Pageable)
        }
        other => other,
    }
}
