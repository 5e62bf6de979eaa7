//! RAM as the memory of a device: allocation, growth, and racing reads and writes.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::{Commit, Error, ErrorKind, Result, racy};
use parking_lot::Mutex;
use vmarray_support::backends::{Account, AccountShare, check_extend, check_extensible};

use crate::error;
use crate::memory::{Map, Wiping};
use crate::storage::Storage;

/// The memory budget (maximum of allocated bytes) of a device: counts the allocated bytes.
#[derive(Debug)]
pub struct Capacity {
    total_bytes: u64,
    account: Arc<Account>,
    wiping: Arc<Wiping>,
}

impl Capacity {
    /// Creates the budget of a device that can allocate `total_bytes` bytes.
    pub fn new(total_bytes: u64, wiping: &Arc<Wiping>) -> Self {
        Self { total_bytes, account: Arc::default(), wiping: Arc::clone(wiping) }
    }

    /// Returns the number of bytes that can be allocated in all.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Returns the number of bytes that can still be allocated.
    pub fn free_bytes(&self) -> u64 {
        self.total_bytes - self.account.taken_bytes()
    }
}

/// Device memory in RAM.
///
/// All accesses use racing copies ([`racy`], or the single-word reads of `racy_word`). So if a mistake in
/// safe code makes two queues race, they read mixed bytes, but no undefined behaviour. Kernels either load
/// single words in this way, or copy blocks into private memory that fits the first-level cache, and compute
/// there with vectorised code.
#[derive(Debug)]
pub struct Ram {
    // Drop order: unmap the memory before `shares` returns its bytes to the device's budget.
    map: Map,
    bytes: AtomicU64,
    /// The maximum length in bytes. The map has this length, limited to the size of the device.
    most: u64,
    wiping: Arc<Wiping>,
    /// Shares of the budget: the allocation and each extension. A thread that extends the memory locks them.
    shares: Mutex<Vec<AccountShare>>,
}

impl Drop for Ram {
    fn drop(&mut self) {
        // SAFETY: the map has this length and is initialised. Work in flight would own this memory too.
        unsafe { self.wiping.wipe(self.at(0), self.bytes() as usize) };
    }
}

impl Ram {
    /// Allocates `bytes` bytes of device memory.
    pub fn new(capacity: &Capacity, bytes: u64, commit: Commit) -> Result<Self> {
        Self::made(capacity, bytes, bytes, commit, |length| Map::new(length, true))
    }

    /// Allocates `bytes` bytes of device memory, and reserves addresses to grow to `most` bytes.
    pub fn extensible(capacity: &Capacity, bytes: u64, most: u64, commit: Commit) -> Result<Self> {
        check_extensible(bytes, most)?;
        // Reserve at most as many addresses as the device has bytes, because no buffer can be longer.
        let addresses = usize::try_from(most.min(capacity.total_bytes)).unwrap_or(usize::MAX);
        Self::made(capacity, bytes, most, commit, |_| Map::reserved(addresses))
    }

    fn made(
        capacity: &Capacity,
        bytes: u64,
        most: u64,
        commit: Commit,
        map: impl FnOnce(usize) -> io::Result<Map>,
    ) -> Result<Self> {
        let total = capacity.total_bytes;
        let share = capacity.account.take(bytes, total, |taken| total - taken)?;
        let refused = |cause| refused("allocate", bytes, &cause);
        let length = usize::try_from(bytes).map_err(|_| refused(io::ErrorKind::OutOfMemory.into()))?;
        let map = map(length).map_err(refused)?;
        if most > bytes {
            map.use_up_to(length);
        }
        if commit == Commit::Proven {
            map.populate(0..length).map_err(refused)?;
        }
        let (bytes, shares) = (AtomicU64::new(bytes), Mutex::new(vec![share]));
        Ok(Self { map, bytes, most, wiping: Arc::clone(&capacity.wiping), shares })
    }

    /// Extends the memory to `bytes` bytes, and returns the added range.
    pub fn extend(&self, capacity: &Capacity, bytes: u64, commit: Commit) -> Result<Range<u64>> {
        let mut shares = self.shares.lock();
        let now = self.bytes();
        if !check_extend(now, bytes, self.most)? {
            return Ok(now..now);
        }
        let total = capacity.total_bytes;
        let share = capacity.account.take(bytes - now, total, |taken| total - taken);
        let out_of_memory = |error: Error| {
            // Report `OutOfMemory` instead of `TooLarge`, because this memory already uses a part of the
            // device.
            let available = error.available_bytes().unwrap_or(0).min(total - now);
            Error::new(ErrorKind::OutOfMemory, "extend")
                .with_bytes(bytes - now)
                .with_available_bytes(available)
        };
        let share = share.map_err(out_of_memory)?;
        self.map.use_up_to(bytes as usize);
        if commit == Commit::Proven {
            let part = now as usize..bytes as usize;
            self.map.populate(part).map_err(|cause| refused("extend", bytes - now, &cause))?;
        }
        shares.push(share);
        self.bytes.store(bytes, Ordering::Release);
        Ok(now..bytes)
    }

    /// Address of byte `offset` of the memory.
    #[inline]
    pub fn at(&self, offset: u64) -> *mut u8 {
        // The cast is exact, because the map exists, and the offset is inside of it.
        self.map.address().as_ptr().wrapping_add(offset as usize)
    }
}

fn refused(operation: &'static str, bytes: u64, cause: &io::Error) -> Error {
    error::system(ErrorKind::OutOfMemory, operation, cause).with_bytes(bytes)
}

impl Storage for Ram {
    /// A quarter of a common first-level cache; longer and shorter blocks were slower.
    const BLOCK_BYTES: usize = 8 << 10;
    /// Above this stride, a copy of whole elements reads several cache lines for each field. At a stride of
    /// 256 a whole read was faster.
    const SPARSE_STRIDE_BYTES: usize = 512;

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    fn address(&self) -> Option<*mut u8> {
        Some(self.at(0))
    }

    #[inline]
    unsafe fn read(&self, _operation: &'static str, offset: u64, to: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller guarantees both ranges.
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
        // SAFETY: the caller guarantees both ranges.
        unsafe { racy::copy(from, self.at(offset), bytes) };
        Ok(())
    }

    #[inline]
    unsafe fn store(&self, _operation: &'static str, offset: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller guarantees the target.
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
        // SAFETY: the caller guarantees both ranges.
        unsafe { racy::copy(source.at(source_offset), self.at(offset), bytes) };
        Ok(())
    }
}
