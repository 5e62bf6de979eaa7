//! Memory of a device's own kind, or RAM that it lends for work of a while.

use backend_api::Result;

use crate::medium::Medium;
use crate::ram::Ram;

/// How much RAM work on a device whose own memory is not RAM may take for a while.
pub(crate) const SCRATCH_BYTES: u64 = 1 << 30;

/// A buffer of a device that has memory of its own kind, and some RAM.
#[derive(Debug)]
pub(crate) enum OrRam<M> {
    /// What the device is for.
    Own(M),
    /// What is needed for a while.
    Ram(Ram),
}

impl<M: Medium> Medium for OrRam<M> {
    const BLOCK_BYTES: usize = M::BLOCK_BYTES;
    const SPARSE_STRIDE_BYTES: usize = M::SPARSE_STRIDE_BYTES;

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
            // SAFETY: passed on.
            Self::Own(own) => unsafe { own.read(operation, offset, to, bytes) },
            // SAFETY: passed on.
            Self::Ram(ram) => unsafe { ram.read(operation, offset, to, bytes) },
        }
    }

    unsafe fn read_into(&self, operation: &'static str, offset: u64, into: &mut [u8]) -> Result<()> {
        match self {
            // SAFETY: passed on.
            Self::Own(own) => unsafe { own.read_into(operation, offset, into) },
            // SAFETY: passed on.
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
            // SAFETY: passed on.
            Self::Own(own) => unsafe { own.write(operation, offset, from, bytes) },
            // SAFETY: passed on.
            Self::Ram(ram) => unsafe { ram.write(operation, offset, from, bytes) },
        }
    }
}
