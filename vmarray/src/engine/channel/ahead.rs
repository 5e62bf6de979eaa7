//! Limit of the frames (cache buffers) of a channel (share of a device) with prefetched, unused pages.
//!
//! At most half of a channel's frames may hold such pages. Threads prefetch independently of each other.
//! Without the limit, their prefetched pages could evict each other before the first use.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Channel, NO_PAGE};
use crate::engine::page::PageTable;
use crate::engine::page::state::AHEAD;

/// Number of refused prefetches before a recount.
const RECOUNT_REFUSALS: u32 = 64;

/// Approximate number of prefetched pages that no thread has used.
#[derive(Debug, Default)]
pub(super) struct AheadCount {
    count: AtomicU64,
    refusals: AtomicU32,
}

impl Channel {
    /// Returns the number of pages that a thread may prefetch now.
    pub(crate) fn ahead_room(&self, table: &PageTable) -> usize {
        let most = u64::from(self.layout.frames_max / 2);
        let ahead = self.ahead.count.load(Ordering::Relaxed);
        if ahead < most {
            return (most - ahead) as usize;
        }
        // Threads may report uses of prefetched pages late or never, so recount the unused ones at times.
        if self.ahead.refusals.fetch_add(1, Ordering::Relaxed) % RECOUNT_REFUSALS == RECOUNT_REFUSALS - 1 {
            let shard = self.lock();
            let is_ahead =
                |page: &&u64| **page != NO_PAGE && table.entry(**page).state(Ordering::Relaxed).any(AHEAD);
            let resident = shard.frames.pages.iter().filter(is_ahead).count();
            let coming: usize = shard.work.fetches.iter().map(|fetch| fetch.loads.len()).sum();
            self.ahead.count.store((resident + coming + shard.work.queued.len()) as u64, Ordering::Relaxed);
        }
        0
    }

    /// Adds pages that a thread begins to prefetch.
    pub(crate) fn more_ahead(&self, pages: usize) {
        self.ahead.count.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// Subtracts prefetched pages that were used or evicted, or whose load failed.
    pub(crate) fn fewer_ahead(&self, pages: usize) {
        if pages > 0 {
            let fewer = |ahead: u64| Some(ahead.saturating_sub(pages as u64));
            let _ = self.ahead.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::RECOUNT_REFUSALS;
    use crate::array::testing::{host, one_channel};

    #[test]
    fn pages_that_are_not_ahead_any_more_are_found_out_after_some_refusals() {
        let array = one_channel::<u32, _>(&Arc::new(host()), (16, 16), 8).build().unwrap();
        let (channel, table) = (&array.pager().channels()[0], array.pager().table());
        assert_eq!(channel.ahead_room(table), 4);
        channel.more_ahead(4);
        (0..RECOUNT_REFUSALS).for_each(|_| assert_eq!(channel.ahead_room(table), 0));
        assert_eq!(channel.ahead_room(table), 4);
    }
}
