//! RAM as device memory.

use std::sync::Arc;

use backend_api::backends::{Account, Share};
use backend_api::{Commit, ErrorKind, Result, racy};

use crate::error;
use crate::medium::Medium;
use crate::memory::{Map, Wiping};

/// The memory of a device, as a sum.
#[derive(Debug)]
pub(crate) struct Capacity {
    total_bytes: u64,
    account: Arc<Account>,
    wiping: Arc<Wiping>,
}

impl Capacity {
    /// All of it unused.
    pub fn new(total_bytes: u64, wiping: &Arc<Wiping>) -> Self {
        Self { total_bytes, account: Arc::default(), wiping: Arc::clone(wiping) }
    }

    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    pub fn free_bytes(&self) -> u64 {
        self.total_bytes - self.account.taken_bytes()
    }
}

/// Device memory in RAM.
///
/// Nothing but the copies of [`racy`] and the moves of [`short`](crate::short) ever touches it, so that
/// queues which race on it by a mistake of the program, through safe calls, get mixed-up bytes and no
/// undefined behaviour. Kernels either load single words in this way or copy block after block into memory of
/// their own, which stays in the first-level cache, and compute there with ordinary, vectorised code.
#[derive(Debug)]
pub(crate) struct Ram {
    // Dropped in this order: there is no moment at which memory is free by the books and still taken.
    map: Map,
    bytes: u64,
    wiping: Arc<Wiping>,
    _share: Share,
}

impl Drop for Ram {
    fn drop(&mut self) {
        // SAFETY: the map is so long and holds zeroes or what was written. Work in flight would own this
        // memory, too.
        unsafe { self.wiping.wipe(self.at(0), self.bytes as usize) };
    }
}

impl Ram {
    /// `bytes` bytes of it.
    pub fn new(capacity: &Capacity, bytes: u64, commit: Commit) -> Result<Self> {
        let total = capacity.total_bytes;
        let share = capacity.account.take(bytes, total, |taken| total - taken)?;
        let refused = |cause: std::io::Error| {
            error::system(ErrorKind::OutOfMemory, "allocate", &cause).with_bytes(bytes)
        };
        let length = usize::try_from(bytes).map_err(|_| refused(std::io::ErrorKind::OutOfMemory.into()))?;
        let map = Map::new(length, true).map_err(refused)?;
        if commit == Commit::Proven {
            map.populate().map_err(refused)?;
        }
        Ok(Self { map, bytes, wiping: Arc::clone(&capacity.wiping), _share: share })
    }

    /// Where byte `offset` is.
    #[inline]
    pub fn at(&self, offset: u64) -> *mut u8 {
        // The map exists, so its length and all offsets into it fit the address space.
        self.map.address().as_ptr().wrapping_add(offset as usize)
    }
}

impl Medium for Ram {
    /// A quarter of a common first-level cache; larger and smaller blocks were slower.
    const BLOCK_BYTES: usize = 8 << 10;
    /// From here on a copy of everything reads several cache lines for each field. Measured: 256 is better
    /// read whole.
    const SPARSE_STRIDE_BYTES: usize = 512;

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn address(&self) -> Option<*mut u8> {
        Some(self.at(0))
    }

    #[inline]
    unsafe fn read(&self, _operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller vouches for both ranges.
        unsafe { racy::copy(self.at(offset), to, bytes) };
        Ok(())
    }

    #[inline]
    unsafe fn write(
        &self,
        _operation: &'static str,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: the caller vouches for both ranges.
        unsafe { racy::copy(from, self.at(offset), bytes) };
        Ok(())
    }

    #[inline]
    unsafe fn store(&self, _operation: &'static str, offset: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller vouches for the target.
        unsafe { racy::write(self.at(offset), bytes) };
        Ok(())
    }

    unsafe fn copy_from(
        &self,
        _operation: &'static str,
        offset: u64,
        source: &Self,
        source_offset: u64,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: the caller vouches for both ranges.
        unsafe { racy::copy(source.at(source_offset), self.at(offset), bytes) };
        Ok(())
    }
}
