//! Temporary memory in RAM for a device whose own memory is not RAM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backend_api::{Commit, Result};

use backend_host::parts::{Capacity, Ram, Storage, Wiping};

/// Allocator of RAM for temporary data, for a device whose own memory is not RAM.
#[derive(Debug)]
pub(crate) struct ScratchRam {
    capacity: Capacity,
    is_lent: AtomicBool,
}

impl ScratchRam {
    const BYTES: u64 = 1 << 30;

    /// Creates an allocator of up to 1 GiB of scratch memory. New buffers use this memory only after
    /// [`lend`](Self::lend).
    pub fn new(wiping: &Arc<Wiping>) -> Self {
        Self { capacity: Capacity::new(Self::BYTES, wiping), is_lent: AtomicBool::new(false) }
    }

    /// From this call on, new buffers use scratch memory in RAM.
    pub fn lend(&self) {
        self.is_lent.store(true, Ordering::Release);
    }

    pub fn is_lent(&self) -> bool {
        self.is_lent.load(Ordering::Acquire)
    }

    /// Allocates `bytes` bytes of scratch memory in RAM.
    pub fn take(&self, bytes: u64, commit: Commit) -> Result<Ram> {
        Ram::new(&self.capacity, bytes, commit)
    }

    /// Returns the total and the free bytes of scratch memory.
    pub fn status(&self) -> (u64, u64) {
        (self.capacity.total_bytes(), self.capacity.free_bytes())
    }
}

/// A buffer in the device's own memory or in RAM.
#[derive(Debug)]
pub(crate) enum RamFallback<M> {
    Own(M),
    Ram(Ram),
}

impl<M: Storage> Storage for RamFallback<M> {
    const BLOCK_BYTES: usize = M::BLOCK_BYTES;
    const SPARSE_STRIDE_BYTES: usize = M::SPARSE_STRIDE_BYTES;

    fn announce(&self, offset: u64, bytes: usize) {
        if let Self::Own(own) = self {
            own.announce(offset, bytes);
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Own(own) => own.bytes(),
            Self::Ram(ram) => ram.bytes(),
        }
    }

    fn unit_bytes(&self) -> u64 {
        match self {
            Self::Own(own) => own.unit_bytes(),
            Self::Ram(_) => 1,
        }
    }

    fn address(&self) -> Option<*mut u8> {
        match self {
            Self::Own(own) => own.address(),
            Self::Ram(ram) => ram.address(),
        }
    }

    unsafe fn read(&self, operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()> {
        match self {
            // SAFETY: the caller has the same obligations.
            Self::Own(own) => unsafe { own.read(operation, offset, to, bytes) },
            // SAFETY: the caller has the same obligations.
            Self::Ram(ram) => unsafe { ram.read(operation, offset, to, bytes) },
        }
    }

    unsafe fn read_into(&self, operation: &'static str, offset: u64, into: &mut [u8]) -> Result<()> {
        match self {
            // SAFETY: the caller has the same obligations.
            Self::Own(own) => unsafe { own.read_into(operation, offset, into) },
            // SAFETY: the caller has the same obligations.
            Self::Ram(ram) => unsafe { ram.read_into(operation, offset, into) },
        }
    }

    unsafe fn write(
        &self,
        operation: &'static str,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        match self {
            // SAFETY: the caller has the same obligations.
            Self::Own(own) => unsafe { own.write(operation, offset, from, bytes) },
            // SAFETY: the caller has the same obligations.
            Self::Ram(ram) => unsafe { ram.write(operation, offset, from, bytes) },
        }
    }
}
