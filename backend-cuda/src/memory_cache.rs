//! Storage of released device memory, one per CUDA context: see
//! [`caching_allocator`](crate::caching_allocator).

use std::time::Instant;

use parking_lot::Mutex;

/// Released memory that a driver context keeps for reuse by its devices.
#[derive(Debug, Default)]
pub(crate) struct MemoryCache {
    pub(crate) state: Mutex<CachedPieces>,
}

#[derive(Debug, Default)]
pub(crate) struct CachedPieces {
    /// The allocations in the order of release.
    pub(crate) pieces: Vec<CachedPiece>,
    /// True if a thread will free expired memory.
    pub(crate) is_watched: bool,
}

#[derive(Debug)]
pub(crate) struct CachedPiece {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) since: Instant,
}

impl MemoryCache {
    /// Takes cached memory of at least `bytes` bytes, and at most an eighth more. Returns its address and
    /// length.
    pub(crate) fn take(&self, bytes: u64) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        let fits = |piece: &CachedPiece| (bytes..=bytes.saturating_add(bytes / 8)).contains(&piece.bytes);
        let pieces = state.pieces.iter().enumerate().filter(|(_, piece)| fits(piece));
        let (best, _) = pieces.min_by_key(|(_, piece)| piece.bytes)?;
        let CachedPiece { address, bytes, .. } = state.pieces.remove(best);
        Some((address, bytes))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().pieces.iter().map(|piece| piece.bytes).sum()
    }
}
