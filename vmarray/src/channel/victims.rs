//! Which pages give up their frames, and how they do.

use std::mem;

use backend_api::Device;

use super::frames::{Frame, frame_number};
use super::{Channel, NO_PAGE, Shard};
use crate::evict::Verdict;
use crate::page::state::AHEAD;
use crate::page::{Access, PageTable, State, Sweep, unpark};

/// How many frames one round of eviction frees at most, and how many pages one write-back carries. Enough to make the
/// barrier (some microseconds) and the cost of a call cheap a page.
const ROUND_FRAMES_MAX: usize = 32;
/// A round takes at most this share of the frames, so that small caches keep what they hold.
const ROUND_SHARE: usize = 8;
/// How many dirty pages beyond a full batch a sweep passes over, at least, in search of clean ones.
const DIRTY_PATIENCE: usize = 64;
/// How many pages used lately a sweep passes over before it lets others have the lock, at least.
pub(super) const USED_PATIENCE: usize = 256;
/// As long as less than this share of the frames is clean again or on its way home, more dirty pages are sent there.
const WRITE_AHEAD_SHARE: usize = 4;

/// How many pages one write-back carries at most when it is to make up for others.
const WRITE_BACK_PAGES_MAX: usize = 128;

/// A page that a sweep, or a flush, has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) page: u64,
    pub(crate) frame: Frame,
    pub(crate) before: State,
}

/// What one round of eviction found.
#[derive(Default)]
pub(super) struct Victims {
    /// Claimed, to lose their frames.
    pub(super) clean: Vec<Victim>,
    /// Pinned, to be written back.
    pub(super) dirty: Vec<Victim>,
    /// Whether the search was broken off and is worth going on with.
    pub(super) unfinished: bool,
}

impl<D: Device> Channel<D> {
    fn round_frames(&self) -> usize {
        (self.frames_max as usize / ROUND_SHARE).clamp(1, ROUND_FRAMES_MAX)
    }

    pub(super) fn choose_victims(&self, shard: &mut Shard<D>, table: &PageTable) -> Victims {
        let want = self.round_frames();
        let mut victims = Victims::default();
        self.claim_cleaned(shard, table, want, &mut victims);
        // What was sent home lately is clean again: there is more of its kind. Those who come next are not to wait for
        // it, so it is sent ahead of need.
        let in_hand: usize = shard.write_backs.iter().map(|work| work.pages.len()).sum();
        let ahead = shard.frames.len() / WRITE_AHEAD_SHARE;
        let is_behind = !victims.clean.is_empty() && in_hand + shard.cleaned.len() < ahead;
        let wanted = want - victims.clean.len();
        if wanted == 0 && !is_behind {
            return victims;
        }
        // A turn of a clock's hand finds nothing but pages used lately; the next one makes up for it.
        let dirty_want = if is_behind {
            (ahead - in_hand - shard.cleaned.len()).clamp(want, WRITE_BACK_PAGES_MAX.max(want))
        } else {
            want
        };
        // Clean pages are looked for behind dirty ones, but not through all of a large cache.
        let mut patience = DIRTY_PATIENCE.max(4 * want);
        let mut spare = USED_PATIENCE.max(8 * want);
        let Victims { clean, dirty, unfinished } = &mut victims;
        let Shard { evictor, pages, frames, frame_of, .. } = shard;
        evictor.victims(wanted.max(1), &mut |frame| {
            let page = pages[frame as usize];
            match table.entry(page).sweep(self.recency, dirty.len() < dirty_want) {
                Sweep::SecondChance => {
                    spare -= 1;
                    *unfinished = spare == 0;
                    if spare == 0 { Verdict::Stop } else { Verdict::Referenced }
                }
                Sweep::Busy => {
                    patience -= usize::from(dirty.len() >= dirty_want);
                    if patience == 0 { Verdict::Stop } else { Verdict::Skip }
                }
                Sweep::Claimed(before) => {
                    clean.push(Victim { page, frame: frames[frame as usize], before });
                    pages[frame as usize] = NO_PAGE;
                    frame_of.remove(&page);
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

    /// Claims pages that were written back for the sake of their frames. Under an exact order they come first anyway.
    fn claim_cleaned(&self, shard: &mut Shard<D>, table: &PageTable, want: usize, victims: &mut Victims) {
        let Shard { evictor, pages, frames, cleaned, chunks, .. } = shard;
        if !self.recency {
            cleaned.clear();
            return;
        }
        for page in mem::take(cleaned) {
            if victims.clean.len() == want {
                cleaned.push(page);
            } else if let Sweep::Claimed(before) = table.entry(page).sweep(true, false) {
                let frame = frames[frame_number(chunks, self.frame_stride, table.entry(page).address())];
                evictor.removed(frame.index);
                pages[frame.index as usize] = NO_PAGE;
                victims.clean.push(Victim { page, frame, before });
            }
        }
    }

    /// Frees the frames of claimed pages; keeps one for the caller.
    pub(super) fn free_clean(&self, table: &PageTable, clean: &[Victim]) -> Option<Frame> {
        self.quiesce_all(clean.iter().map(|v| (table.entry(v.page), v.before)), Access::All);
        for victim in clean {
            let entry = table.entry(victim.page);
            if entry.vacate(false) {
                unpark(entry);
            }
        }
        let (first, rest) = clean.split_first()?;
        self.counters.evictions.add(clean.len() as u64);
        let unused = clean.iter().filter(|victim| victim.before.any(AHEAD)).count();
        if unused > 0 {
            self.counters.prefetches_unused.add(unused as u64);
            self.fewer_ahead(unused);
        }
        if !rest.is_empty() {
            let mut shard = self.lock();
            shard.free.extend(rest.iter().rev().map(|victim| victim.frame.index));
            self.note_news();
            drop(shard);
            self.announce();
        }
        Some(first.frame)
    }
}
