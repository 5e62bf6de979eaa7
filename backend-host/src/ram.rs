//! RAM as device memory.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::backends::{Account, Share, check_extend, check_extensible};
use backend_api::{Commit, Error, ErrorKind, Result, racy};
use parking_lot::Mutex;

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
    bytes: AtomicU64,
    /// How long it may become; the map is as long as that, or as the device has memory.
    most: u64,
    wiping: Arc<Wiping>,
    /// Of the memory, and of each part that it was extended by; locked by who extends it.
    shares: Mutex<Vec<Share>>,
}

impl Drop for Ram {
    fn drop(&mut self) {
        // SAFETY: the map is so long and holds zeroes or what was written. Work in flight would own this
        // memory, too.
        unsafe { self.wiping.wipe(self.at(0), self.bytes() as usize) };
    }
}

impl Ram {
    /// `bytes` bytes of it.
    pub fn new(capacity: &Capacity, bytes: u64, commit: Commit) -> Result<Self> {
        Self::made(capacity, bytes, bytes, commit, |length| Map::new(length, true))
    }

    /// `bytes` bytes of it, which can become `most`, of addresses that are set aside now.
    pub fn extensible(capacity: &Capacity, bytes: u64, most: u64, commit: Commit) -> Result<Self> {
        check_extensible(bytes, most)?;
        // More than there is needs no addresses. What is taken first fits, so the map is long enough for it.
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

    /// Makes it so many bytes long, of `most` that it may have; says what was added.
    pub fn extend(&self, capacity: &Capacity, bytes: u64, commit: Commit) -> Result<Range<u64>> {
        let mut shares = self.shares.lock();
        let now = self.bytes();
        if !check_extend(now, bytes, self.most)? {
            return Ok(now..now);
        }
        let total = capacity.total_bytes;
        let share = capacity.account.take(bytes - now, total, |taken| total - taken);
        let out_of_memory = |error: Error| {
            // To ask for more than the device has is to ask for too much beside what is there.
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

    /// Where byte `offset` is.
    #[inline]
    pub fn at(&self, offset: u64) -> *mut u8 {
        // The map exists, so its length and all offsets into it fit the address space.
        self.map.address().as_ptr().wrapping_add(offset as usize)
    }
}

fn refused(operation: &'static str, bytes: u64, cause: &io::Error) -> Error {
    error::system(ErrorKind::OutOfMemory, operation, cause).with_bytes(bytes)
}

impl Medium for Ram {
    /// A quarter of a common first-level cache; larger and smaller blocks were slower.
    const BLOCK_BYTES: usize = 8 << 10;
    /// From here on a copy of everything reads several cache lines for each field. Measured: 256 is better
    /// read whole.
    const SPARSE_STRIDE_BYTES: usize = 512;

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
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
