//! A cache of recently released device memory, for later allocations of the same length.
//!
//! The driver takes some 2.5 ms to allocate a GiB and 1 ms to free it. A sort of a GiB takes as long. So this
//! module caches long allocations for two seconds. They count as free: if an allocation fails, the device
//! releases them and tries again. The driver needs memory for launches and streams, so nothing is cached on a
//! GPU that is nearly full.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::context::CudaContext;
use crate::driver::{DriverResult, check};

/// The least length of a cached allocation; shorter ones are freed at once.
const KEPT_BYTES_MIN: u64 = 64 << 20;
const KEPT_FOR: Duration = Duration::from_secs(2);
/// The part of a GPU's memory that must stay free for the driver: one in `LEFT_PART`.
const LEFT_PART: u64 = 32;

/// Contexts that cache, or have cached, memory.
static KEEPERS: Mutex<Vec<Weak<CudaContext>>> = Mutex::new(Vec::new());

/// The cached memory of a context, for the devices that were opened with it.
#[derive(Debug, Default)]
pub(crate) struct CachingAllocator {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The allocations in the order of release.
    pieces: Vec<Piece>,
    /// True if a thread will free them in time.
    is_watched: bool,
}

#[derive(Debug)]
struct Piece {
    address: u64,
    bytes: u64,
    since: Instant,
}

/// Returns all caches of the same context.
fn keepers_of(context: &CudaContext) -> Vec<Arc<CudaContext>> {
    let keepers = KEEPERS.lock();
    keepers.iter().filter_map(Weak::upgrade).filter(|keeper| keeper.is_same_as(context)).collect()
}

impl CachingAllocator {
    /// Returns the cached bytes of a context, of all its devices.
    pub(crate) fn bytes_of(context: &CudaContext) -> u64 {
        let bytes = |kept: &Self| kept.state.lock().pieces.iter().map(|piece| piece.bytes).sum::<u64>();
        keepers_of(context).iter().map(|keeper| bytes(&keeper.kept)).sum()
    }

    /// Takes cached memory of at least `bytes` bytes, and at most an eighth more. Returns its address and
    /// length.
    pub(crate) fn take(&self, bytes: u64) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        let fits = |piece: &Piece| (bytes..=bytes.saturating_add(bytes / 8)).contains(&piece.bytes);
        let pieces = state.pieces.iter().enumerate().filter(|(_, piece)| fits(piece));
        let (best, _) = pieces.min_by_key(|(_, piece)| piece.bytes)?;
        let Piece { address, bytes, .. } = state.pieces.remove(best);
        Some((address, bytes))
    }

    /// Caches memory of a context that no work in flight uses, or frees it.
    pub(crate) fn keep(context: &Arc<CudaContext>, address: u64, bytes: u64) -> DriverResult {
        // A context of the program may end as soon as the device is dropped, so cache nothing for it.
        let leaves_room = || context.memory_of_driver().is_ok_and(|(free, total)| free >= total / LEFT_PART);
        if bytes < KEPT_BYTES_MIN || !context.is_primary() || !leaves_room() {
            return free(context, address);
        }
        let mut state = context.kept.state.lock();
        if !state.is_watched {
            let weak = Arc::downgrade(context);
            let watch = move || {
                while let Some(wait) = weak.upgrade().and_then(|context| context.kept.give_back_old(&context))
                {
                    std::thread::sleep(wait);
                }
            };
            let thread = std::thread::Builder::new().name("vmarray-cuda-kept".into()).spawn(watch);
            if thread.is_err() {
                drop(state);
                return free(context, address);
            }
            state.is_watched = true;
            let mut keepers = KEEPERS.lock();
            keepers.retain(|other| {
                other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(context))
            });
            keepers.push(Arc::downgrade(context));
        }
        state.pieces.push(Piece { address, bytes, since: Instant::now() });
        Ok(())
    }

    /// Frees expired memory. Returns the time until the next expiry, if any is left.
    fn give_back_old(&self, context: &CudaContext) -> Option<Duration> {
        let mut state = self.state.lock();
        let is_young = |piece: &Piece| piece.since.elapsed() < KEPT_FOR;
        let old = state.pieces.iter().position(is_young).unwrap_or(state.pieces.len());
        let old: Vec<Piece> = state.pieces.drain(..old).collect();
        let next = state.pieces.first().map(|piece| KEPT_FOR.saturating_sub(piece.since.elapsed()));
        state.is_watched = next.is_some();
        drop(state);
        give_back(context, old);
        next
    }

    /// Frees all cached memory of a context; returns whether it had any.
    pub(crate) fn give_all_back_of(context: &CudaContext) -> bool {
        let mut had_any = false;
        for keeper in keepers_of(context) {
            had_any |= keeper.kept.give_all_back(&keeper);
        }
        had_any
    }

    /// Frees all memory of this cache; returns whether it had any.
    pub(crate) fn give_all_back(&self, context: &CudaContext) -> bool {
        let all = std::mem::take(&mut self.state.lock().pieces);
        let had_any = !all.is_empty();
        give_back(context, all);
        had_any
    }
}

fn give_back(context: &CudaContext, pieces: Vec<Piece>) {
    for Piece { address, bytes, .. } in pieces {
        if let Err(code) = free(context, address) {
            tracing::debug!(?code, bytes, "device memory was not freed: the device is lost");
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
