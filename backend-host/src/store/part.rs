//! Pages of a store as device memory.

use std::ops::Range;
use std::sync::Arc;

use backend_api::{Result, racy};
use parking_lot::Mutex;

use super::free::Free;
use super::volume::Volume;
use crate::medium::Medium;
use crate::ram::Ram;

/// Pages of a store, which nobody else has.
#[derive(Debug)]
pub(super) struct Part {
    volume: Arc<Volume>,
    claims: Arc<Mutex<Free>>,
    pages: Range<u64>,
    offset: u64,
    bytes: u64,
}

impl Part {
    pub fn new(volume: &Arc<Volume>, claims: &Arc<Mutex<Free>>, pages: Range<u64>, bytes: u64) -> Self {
        let offset = pages.start * volume.page_bytes() as u64;
        Self { volume: Arc::clone(volume), claims: Arc::clone(claims), pages, offset, bytes }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.claims.lock().give_back(self.pages.clone());
    }
}

/// Memory of a store.
#[derive(Debug)]
pub(super) enum StoreMemory {
    /// Pages that stay.
    Part(Part),
    /// What is needed for a while.
    Ram(Ram),
}

impl Medium for StoreMemory {
    /// As much as a store reads at a time.
    const BLOCK_BYTES: usize = 256 << 10;
    /// Pages are read whole.
    const SPARSE_STRIDE_BYTES: usize = usize::MAX;

    fn bytes(&self) -> u64 {
        match self {
            Self::Part(part) => part.bytes,
            Self::Ram(ram) => ram.bytes(),
        }
    }

    fn address(&self) -> Option<*mut u8> {
        match self {
            Self::Part(_) => None,
            Self::Ram(ram) => ram.address(),
        }
    }

    fn unit_bytes(&self) -> u64 {
        match self {
            Self::Part(part) => part.volume.page_bytes() as u64,
            Self::Ram(_) => 1,
        }
    }

    unsafe fn read(&self, operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()> {
        match self {
            Self::Part(own) => {
                own.volume.read(operation, own.offset + offset, bytes, |done, part| {
                    // SAFETY: the caller vouches for the target, of which this is a part.
                    unsafe { racy::write(to.wrapping_add(done), part) };
                })
            }
            // SAFETY: passed on.
            Self::Ram(ram) => unsafe { ram.read(operation, offset, to, bytes) },
        }
    }

    unsafe fn read_into(&self, operation: &'static str, offset: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Self::Part(own) => own.volume.read_into(operation, own.offset + offset, into),
            // SAFETY: passed on; memory of the program is none of a device.
            Self::Ram(ram) => unsafe { ram.read(operation, offset, into.as_mut_ptr(), into.len()) },
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
            Self::Part(own) => {
                own.volume.write(operation, own.offset + offset, bytes, |done, part| {
                    // SAFETY: the caller vouches for the source, of which this is a part.
                    unsafe { racy::copy(from.wrapping_add(done), part.as_mut_ptr(), part.len()) };
                })
            }
            // SAFETY: passed on.
            Self::Ram(ram) => unsafe { ram.write(operation, offset, from, bytes) },
        }
    }
}
