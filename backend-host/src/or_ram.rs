//! Memory of a device's own kind, or RAM that it lends for work of a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backend_api::{Commit, Result};

use crate::medium::Medium;
use crate::memory::Wiping;
use crate::ram::{Capacity, Ram};

/// RAM that a device lends whose own memory is not RAM, once it is for work.
#[derive(Debug)]
pub(crate) struct Scratch {
    capacity: Capacity,
    is_lent: AtomicBool,
}

impl Scratch {
    const BYTES: u64 = 1 << 30;

    /// A GiB that is not lent as yet.
    pub fn new(wiping: &Arc<Wiping>) -> Self {
        Self { capacity: Capacity::new(Self::BYTES, wiping), is_lent: AtomicBool::new(false) }
    }

    /// Has memory that is asked for from now on be of it.
    pub fn lend(&self) {
        self.is_lent.store(true, Ordering::Release);
    }

    pub fn is_lent(&self) -> bool {
        self.is_lent.load(Ordering::Acquire)
    }

    /// So much of it.
    pub fn take(&self, bytes: u64, commit: Commit) -> Result<Ram> {
        Ram::new(&self.capacity, bytes, commit)
    }

    /// How many bytes there are, and how many of them are free.
    pub fn status(&self) -> (u64, u64) {
        (self.capacity.total_bytes(), self.capacity.free_bytes())
    }
}

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
