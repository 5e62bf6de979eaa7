//! Eviction in a channel (share of a device): chooses, writes back and frees victims (cache frames to free).

use std::mem;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use crossbeam_queue::ArrayQueue;

use super::frames::{Blocking, Frame};
use super::transfers::Wakes;
use super::{Channel, FrameTable, NO_PAGE, Shard};
use crate::base::recording;
use crate::engine::evict::Verdict;
use crate::engine::page::state::{AHEAD, DIRTY};
use crate::engine::page::{HazardAccess, PageTable, State, Sweep};

/// Bytes of frames that one round of eviction frees, and that one write-back copies, within limits. They are
/// enough to amortise the barrier (some microseconds) and the cost of a call.
const ROUND_BYTES: usize = 8 << 20;
const ROUND_FRAMES: RangeInclusive<usize> = 32..=128;
/// At most this fraction of the frames is freed by one round, so that small caches keep their pages.
const ROUND_SHARE: usize = 8;
/// Prefetch distance of page entries, in frames. If the array is far larger than its cache, entries are in
/// memory, each in its own cache line.
const LOOK_AHEAD: usize = 8;
/// Minimum number of dirty pages, beyond a full batch, that a search skips to find clean ones.
const DIRTY_PATIENCE: usize = 64;
/// Minimum number of recently used pages that a search skips before it releases the lock.
pub(super) const USED_PATIENCE: usize = 256;
/// The eviction writes back more dirty pages while clean pages and pages in write-back are less than this
/// fraction of the frames, and less than this number of bytes.
const WRITE_AHEAD_SHARE: usize = 4;
const WRITE_AHEAD_BYTES: usize = 64 << 20;

/// Maximum bytes of the recorded pages that long scans have finished with. They fit into a processor's cache.
const DROP_BEHIND_BYTES: usize = 32 << 20;

/// Maximum number of pages of a write-back that is larger than needed at present.
const WRITE_BACK_PAGES_MAX: usize = 128;

/// A page that a search or a flush has claimed or pinned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) page: u64,
    pub(crate) frame: Frame,
    pub(crate) before: State,
}

/// The last pages that long scans have finished with; they are evicted first.
#[derive(Debug)]
pub(super) struct DropBehind {
    /// Allocated at the first scan.
    pages: OnceLock<ArrayQueue<u64>>,
    /// Maximum number of recorded pages.
    most: usize,
    /// True if these pages are evicted first.
    is_on: bool,
}

impl DropBehind {
    pub(super) fn new(is_on: bool, page_bytes: usize, frames: usize) -> Self {
        let most = (DROP_BEHIND_BYTES / page_bytes).clamp(1, (frames / 2).max(1));
        Self { pages: OnceLock::new(), most, is_on }
    }

    /// Adds a page, and drops the oldest one if there are too many.
    fn push(&self, page: u64) {
        self.pages.get_or_init(|| ArrayQueue::new(self.most)).force_push(page);
    }

    fn pop(&self) -> Option<u64> {
        self.pages.get()?.pop()
    }
}

/// The result of one round of eviction.
#[derive(Default)]
pub(super) struct Victims {
    /// Claimed clean pages, which will lose their frames.
    pub(super) clean: Vec<Victim>,
    /// Pinned dirty pages, which will be written back.
    pub(super) dirty: Vec<Victim>,
    /// True if the search was interrupted, and should be resumed.
    pub(super) unfinished: bool,
}

impl Channel {
    fn round_frames(&self) -> usize {
        let most = (ROUND_BYTES / self.layout.page_bytes).clamp(*ROUND_FRAMES.start(), *ROUND_FRAMES.end());
        (self.layout.frames_max as usize / ROUND_SHARE).clamp(1, most)
    }

    /// Phases 1 and 2 of an eviction: chooses victims. For a thread that blocks, pages in write-back suffice.
    pub(super) fn choose_victims(&self, shard: &mut Shard, table: &PageTable, blocking: Blocking) -> Victims {
        let want = self.round_frames();
        let mut victims = Victims::default();
        self.claim_cleaned(shard, table, want, &mut victims);
        // Clean victims (pages to evict) are mostly pages written back earlier, so most other pages are
        // probably dirty. Write back more pages than needed, so that later threads do not wait.
        let in_hand: usize = shard.work.write_backs.iter().map(|work| work.pages.len()).sum();
        let ahead_bytes = (WRITE_AHEAD_BYTES / self.layout.page_bytes).max(want);
        let ahead = (shard.frames.list.len() / WRITE_AHEAD_SHARE).min(ahead_bytes);
        let is_behind = !victims.clean.is_empty() && in_hand + shard.frames.cleaned.len() < ahead;
        let dirty_want = if is_behind {
            (ahead - in_hand - shard.frames.cleaned.len()).clamp(want, WRITE_BACK_PAGES_MAX.max(want))
        } else {
            want
        };
        self.claim_left_behind(shard, table, (want, if is_behind { dirty_want } else { 0 }), &mut victims);
        let wanted = want.saturating_sub(victims.clean.len());
        let is_supplied = victims.clean.len() + victims.dirty.len() >= want
            && (blocking == Blocking::Wait || !victims.clean.is_empty());
        if is_supplied && !(is_behind && victims.dirty.is_empty()) {
            return victims;
        }
        // Prefer clean pages to dirty ones, but do not search all of a large cache for them.
        let mut spare_dirty = DIRTY_PATIENCE.max(4 * want);
        let mut spare = USED_PATIENCE.max(8 * want);
        let Victims { clean, dirty, unfinished } = &mut victims;
        let FrameTable { evictor, pages, list: frames, frame_of, reserved, .. } = &mut shard.frames;
        evictor.victims(wanted.max(1), &mut |frame| {
            let page = pages[frame as usize];
            if let Some(&later) = pages.get(frame as usize + LOOK_AHEAD) {
                table.prefetch(later);
            }
            if reserved.has(frame) {
                return Verdict::Skip;
            }
            match table.entry(page).sweep(self.recency, dirty.len() < dirty_want) {
                Sweep::SecondChance => {
                    spare -= 1;
                    *unfinished = spare == 0;
                    if spare == 0 { Verdict::Stop } else { Verdict::Referenced }
                }
                Sweep::Busy => {
                    spare_dirty -= usize::from(dirty.len() >= dirty_want);
                    if spare_dirty == 0 { Verdict::Stop } else { Verdict::Skip }
                }
                Sweep::Claimed(before) => {
                    clean.push(Victim { page, frame: frames[frame as usize], before });
                    pages[frame as usize] = NO_PAGE;
                    if !self.recency {
                        frame_of.remove(&page);
                    }
                    Verdict::Take
                }
                Sweep::WriteBack(before) => {
                    dirty.push(Victim { page, frame: frames[frame as usize], before });
                    let is_enough = wanted == 0 && dirty.len() == dirty_want;
                    if is_enough { Verdict::Stop } else { Verdict::Skip }
                }
            }
        });
        victims
    }

    /// Claims pages that were written back for eviction. An exact policy selects them first anyway.
    fn claim_cleaned(&self, shard: &mut Shard, table: &PageTable, want: usize, victims: &mut Victims) {
        let mut cleaned = mem::take(&mut shard.frames.cleaned);
        if !self.recency {
            cleaned.clear();
        }
        let mut looked_at = 0;
        for &page in &cleaned {
            if victims.clean.len() == want {
                break;
            }
            looked_at += 1;
            if shard.frames.keeps(table, page) {
                continue;
            }
            if let Sweep::Claimed(before) = table.entry(page).sweep(true, false) {
                victims.clean.push(self.claimed(shard, table, page, before));
            }
        }
        cleaned.drain(..looked_at);
        shard.frames.cleaned = cleaned;
    }

    /// Claims pages that a long scan has finished with: up to `want` clean ones, and dirty ones for the
    /// missing number, or `ahead`.
    ///
    /// So such a scan reuses its own last frames, whose data are still in the processor's caches.
    fn claim_left_behind(
        &self,
        shard: &mut Shard,
        table: &PageTable,
        (want, ahead): (usize, usize),
        victims: &mut Victims,
    ) {
        for _ in 0..USED_PATIENCE.max(8 * want) {
            let (clean, dirty) = (victims.clean.len(), victims.dirty.len());
            if clean + dirty >= want && dirty >= ahead {
                break;
            }
            let Some(page) = self.drop_behind.pop() else { break };
            let entry = table.entry(page);
            // Keep the page if a thread outside of the scan has used it.
            if entry.is_used() || shard.frames.keeps(table, page) {
                continue;
            }
            if clean >= want && !entry.state(Ordering::Relaxed).any(DIRTY) {
                self.drop_behind.push(page);
                break;
            }
            match entry.sweep(true, true) {
                Sweep::Claimed(before) => {
                    victims.clean.push(self.claimed(shard, table, page, before));
                }
                Sweep::WriteBack(before) => {
                    let frame = shard.frames.frame_at(entry.address());
                    victims.dirty.push(Victim { page, frame, before });
                }
                Sweep::SecondChance | Sweep::Busy => {}
            }
        }
    }

    /// Removes a claimed page from the policy, and returns it as a victim.
    fn claimed(&self, shard: &mut Shard, table: &PageTable, page: u64, before: State) -> Victim {
        // Report new pages to the eviction policy first. A report after the removal would assign the freed
        // frame to this page again.
        self.update_policy(shard);
        let frame = shard.frames.policy_remove(table.entry(page).address(), page);
        Victim { page, frame, before }
    }

    /// Records that a long scan has finished with a new page, so it is evicted next unless a thread uses it.
    pub(crate) fn pass(&self, table: &PageTable, page: u64) {
        if self.drop_behind.is_on {
            table.entry(page).forget_use();
            self.drop_behind.push(page);
        }
    }

    /// Phases 3 and 4 of an eviction: frees the frames of claimed pages, and returns one of them to the
    /// caller. The caller wakes waiting threads.
    pub(super) fn free_clean(&self, table: &PageTable, clean: &[Victim], wakes: &mut Wakes) -> Option<Frame> {
        self.quiesce_all(clean.iter().map(|v| (table.entry(v.page), v.before)), HazardAccess::All);
        for victim in clean {
            wakes.add(victim.page, table.entry(victim.page).unmap(false));
        }
        let (first, rest) = clean.split_first()?;
        self.counters.evictions.add(clean.len() as u64);
        recording::happened("evicted", clean.len());
        let unused = clean.iter().filter(|victim| victim.before.any(AHEAD)).count();
        if unused > 0 {
            self.counters.prefetches_unused.add(unused as u64);
            self.fewer_ahead(unused);
        }
        let mut rest: Vec<Frame> = rest.iter().map(|victim| victim.frame).collect();
        rest.sort_unstable_by_key(|frame| frame.index);
        self.free_all(&rest);
        self.events.advance();
        Some(first.frame)
    }
}
