//! Caching allocator of a CUDA device: keeps released device memory for later allocations of the same length.
//!
//! The driver takes some 2.5 ms to allocate a GiB and 1 ms to free it; a sort of a GiB takes as long. So this
//! module keeps long allocations for two seconds, and the device reports them as free memory. If an
//! allocation fails, the device frees the cached memory and tries again. On a GPU that is nearly full nothing
//! is cached, because the driver needs memory for launches and streams.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::context::CudaContext;
use crate::driver::{DriverResult, StatusCode, check};
use crate::memory_cache::CachedPiece;

/// The least length of a cached allocation in bytes; shorter ones are freed at once.
const KEPT_BYTES_MIN: u64 = 64 << 20;
const KEPT_FOR: Duration = Duration::from_secs(2);
/// The reciprocal of the fraction of a GPU's memory that must stay free for the driver.
const LEFT_PART: u64 = 32;

/// Contexts that cache, or have cached, memory.
static KEEPERS: Mutex<Vec<Weak<CudaContext>>> = Mutex::new(Vec::new());

/// Returns the cache of each device that uses the same driver context.
fn keepers_of(context: &CudaContext) -> Vec<Arc<CudaContext>> {
    let keepers = KEEPERS.lock();
    keepers.iter().filter_map(Weak::upgrade).filter(|keeper| keeper.is_same_as(context)).collect()
}

impl CudaContext {
    /// Runs a driver allocation. If memory is short, releases the cached memory and tries again.
    pub(crate) fn find_memory(&self, mut find: impl FnMut() -> DriverResult) -> DriverResult {
        match find() {
            Err(StatusCode::OUT_OF_MEMORY) if self.give_all_back_of_all() => find(),
            outcome => outcome,
        }
    }

    /// Returns the free bytes of the GPU, including cached ones, and its total bytes.
    pub(crate) fn memory(&self) -> DriverResult<(u64, u64)> {
        let (free, total) = self.memory_of_driver()?;
        Ok((free + self.cached_bytes(), total))
    }

    /// Returns the number of cached bytes of all devices of this driver context.
    fn cached_bytes(&self) -> u64 {
        keepers_of(self).iter().map(|keeper| keeper.kept.bytes()).sum()
    }

    /// Caches released memory of the context, or frees it. No work in flight may use the memory.
    pub(crate) fn keep(self: &Arc<Self>, address: u64, bytes: u64) -> DriverResult {
        // Free memory of the program's own context at once, because the program may destroy the context.
        let leaves_room = || self.memory_of_driver().is_ok_and(|(free, total)| free >= total / LEFT_PART);
        if bytes < KEPT_BYTES_MIN || !self.is_primary() || !leaves_room() {
            return free(self, address);
        }
        let mut state = self.kept.state.lock();
        if !state.is_watched {
            let weak = Arc::downgrade(self);
            let watch = move || {
                while let Some(wait) = weak.upgrade().and_then(|context| context.give_back_old()) {
                    std::thread::sleep(wait);
                }
            };
            let thread = std::thread::Builder::new().name("vmarray-cuda-kept".into()).spawn(watch);
            if thread.is_err() {
                drop(state);
                return free(self, address);
            }
            state.is_watched = true;
            let mut keepers = KEEPERS.lock();
            keepers
                .retain(|other| other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(self)));
            keepers.push(Arc::downgrade(self));
        }
        state.pieces.push(CachedPiece { address, bytes, since: Instant::now() });
        Ok(())
    }

    /// Frees cached memory that has expired. Returns the time until the next expiry, if any memory is left.
    fn give_back_old(&self) -> Option<Duration> {
        let mut state = self.kept.state.lock();
        let is_young = |piece: &CachedPiece| piece.since.elapsed() < KEPT_FOR;
        let old = state.pieces.iter().position(is_young).unwrap_or(state.pieces.len());
        let old: Vec<CachedPiece> = state.pieces.drain(..old).collect();
        let next = state.pieces.first().map(|piece| KEPT_FOR.saturating_sub(piece.since.elapsed()));
        state.is_watched = next.is_some();
        drop(state);
        give_back(self, old);
        next
    }

    /// Frees the cached memory of all devices of this driver context; returns true if there was any.
    fn give_all_back_of_all(&self) -> bool {
        let mut had_any = false;
        for keeper in keepers_of(self) {
            had_any |= keeper.give_all_back();
        }
        had_any
    }

    /// Frees the cached memory of this device; returns true if there was any.
    pub(crate) fn give_all_back(&self) -> bool {
        let all = std::mem::take(&mut self.kept.state.lock().pieces);
        let had_any = !all.is_empty();
        give_back(self, all);
        had_any
    }
}

fn give_back(context: &CudaContext, pieces: Vec<CachedPiece>) {
    for CachedPiece { address, bytes, .. } in pieces {
        if let Err(code) = free(context, address) {
            tracing::debug!(?code, bytes, "cannot free device memory, because the device is lost");
        }
    }
}

fn free(context: &CudaContext, address: u64) -> DriverResult {
    let _current = context.enter()?;
    // SAFETY: the address came from `mem_alloc`. Its former owner made sure that no work in flight uses
    // it. It is freed once: it was removed from the cache, or never was in it.
    check(unsafe { (context.driver.table.mem_free)(address) })
}

#[cfg(test)]
mod tests {
    use backend_api::{Commit, Device, DeviceBuffer, ErrorKind};

    use crate::fake::{device, driven};
    use crate::options::CudaOptions;

    #[test]
    fn long_freed_pieces_count_as_free_and_serve_requests_of_their_length() {
        const BYTES: u64 = 80 << 20;
        let device = device(&CudaOptions::new());
        let memory = |bytes| DeviceBuffer::new(&device, bytes, Commit::Lazy);
        let freed = || driven(|_| ()).freed.0 as u64;
        let (before, first) = (device.memory().unwrap().free_bytes, memory(BYTES).unwrap());
        driven(|driven| driven.freed = (0, 0));
        drop(first);
        assert_eq!(freed(), 0, "it is kept");
        // The simulated driver always reports the same free memory. The device adds the cached memory.
        assert_eq!(device.memory().unwrap().free_bytes, before + BYTES);
        // A slightly shorter allocation reuses the cached memory, and a much shorter one does not.
        let (shorter, other) = (memory(BYTES - 100).unwrap(), memory(BYTES / 2).unwrap());
        drop(shorter);
        assert_eq!(freed(), 0);
        drop(other);
        assert_eq!(freed(), BYTES / 2, "too short to be kept");
        // The cache frees its memory when an allocation would fail.
        driven(|driven| driven.no_bytes_above = Some(1));
        assert_eq!(memory(2 * BYTES).unwrap_err().kind(), ErrorKind::OutOfMemory);
        driven(|driven| driven.no_bytes_above = None);
        assert_eq!(freed(), BYTES / 2 + BYTES);
        // Another device object of the same GPU counts and frees the cached memory, too.
        let second = crate::fake::again(&device);
        drop(memory(BYTES).unwrap());
        assert_eq!(second.memory().unwrap().free_bytes, before + BYTES);
        driven(|driven| (driven.freed, driven.no_bytes_above) = ((0, 0), Some(1)));
        assert!(DeviceBuffer::new(&second, BYTES, Commit::Lazy).is_err());
        driven(|driven| driven.no_bytes_above = None);
        assert_eq!(freed(), BYTES);
        // On a nearly full GPU, the device caches nothing.
        let last = memory(BYTES).unwrap();
        driven(|driven| (driven.freed, driven.is_full) = ((0, 0), true));
        drop(last);
        assert_eq!(freed(), BYTES);
        driven(|driven| driven.is_full = false);
        // When the device is dropped, it frees the cached memory.
        drop(memory(BYTES).unwrap());
        driven(|driven| driven.freed = (0, 0));
        drop(device);
        assert_eq!(freed(), BYTES);
    }
}
