//! Doubly linked lists of cache frames for the eviction policies. One vector has all links, by frame number.
//!
//! The lists of a shard (one channel's part of the cache) have this vector in common, because a frame is in
//! at most one list. Each list is a ring closed by a sentinel, so no operation has a special case for the
//! ends. The first links of the vector are the sentinels; the links of the frames follow.

use super::verdict::{Candidate, Verdict};

/// Value of [`Link::newer`] for a frame that is in no list.
const UNLINKED: u32 = u32::MAX;

/// Number of sentinels before the link of frame 0.
const LISTS: u32 = 2;

/// The two neighbours of a frame or sentinel in its list, as link numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    newer: u32,
    older: u32,
}

/// Returns the links of a shard whose lists are empty: the sentinels only.
pub(super) fn links() -> Vec<Link> {
    (0..LISTS).map(|number| Link { newer: number, older: number }).collect()
}

pub(super) fn is_linked(links: &[Link], frame: u32) -> bool {
    links.get((frame + LISTS) as usize).is_some_and(|link| link.newer != UNLINKED)
}

/// One list of frames, from newest to oldest.
#[derive(Debug)]
pub(super) struct List {
    /// Link number of the sentinel: its `older` neighbour is the newest frame, its `newer` one the oldest.
    sentinel: u32,
    len: usize,
}

impl List {
    /// Returns the empty list whose sentinel has this number, below [`LISTS`].
    pub(super) fn new(sentinel: u32) -> Self {
        Self { sentinel, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a frame, which is in no list, as the newest.
    pub(super) fn push(&mut self, links: &mut Vec<Link>, frame: u32) {
        debug_assert!(!is_linked(links, frame), "frame {frame} must be unlinked before it is pushed");
        let (number, older) = (frame + LISTS, links[self.sentinel as usize].older);
        if links.len() <= number as usize {
            links.resize(number as usize + 1, Link { newer: UNLINKED, older: UNLINKED });
        }
        links[number as usize] = Link { newer: self.sentinel, older };
        links[older as usize].newer = number;
        links[self.sentinel as usize].older = number;
        self.len += 1;
    }

    /// Removes a frame from this list.
    pub(super) fn unlink(&mut self, links: &mut [Link], frame: u32) {
        let number = (frame + LISTS) as usize;
        let Link { newer, older } = links[number];
        links[newer as usize].older = older;
        links[older as usize].newer = newer;
        links[number] = Link { newer: UNLINKED, older: UNLINKED };
        self.len -= 1;
    }

    /// Makes a frame of this list its newest.
    pub(super) fn renew(&mut self, links: &mut Vec<Link>, frame: u32) {
        if links[self.sentinel as usize].older != frame + LISTS {
            self.unlink(links, frame);
            self.push(links, frame);
        }
    }
}

/// One pass over a list, from the oldest frame to the newest, during one call of `victims`.
///
/// No other code may change the list meanwhile.
pub(super) struct ListSweep {
    /// The link of the next frame to propose, unless the pass is over.
    cursor: u32,
    /// Number of frames not proposed yet.
    first: usize,
    /// Number of frames that were referenced at their first proposal, and were not proposed again yet.
    again: usize,
    /// True if the caller has replied that it wants no more.
    stopped: bool,
}

impl ListSweep {
    pub(super) fn new(list: &List, links: &[Link]) -> Self {
        Self { cursor: links[list.sentinel as usize].newer, first: list.len, again: 0, stopped: false }
    }

    pub(super) fn is_over(&self) -> bool {
        self.first + self.again == 0
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Proposes the next frame to the caller. If the caller takes it, it leaves the list, and is returned.
    ///
    /// If `renews`, a referenced frame becomes the newest one. The pass then proposes it once more, after all
    /// others. Otherwise the frame is proposed again at once, and skipped if it is still referenced.
    pub(super) fn propose(
        &mut self,
        list: &mut List,
        links: &mut Vec<Link>,
        renews: bool,
        candidate: &mut Candidate<'_>,
    ) -> Option<u32> {
        let frame = self.cursor - LISTS;
        let first_time = self.first > 0;
        if first_time {
            self.first -= 1;
        } else {
            self.again -= 1;
        }
        self.cursor = links[self.cursor as usize].newer;
        let mut verdict = candidate(frame);
        if verdict == Verdict::Referenced && !renews {
            verdict = candidate(frame);
        }
        match verdict {
            Verdict::Take => {
                list.unlink(links, frame);
                return Some(frame);
            }
            Verdict::Stop => (self.first, self.again, self.stopped) = (0, 0, true),
            Verdict::Referenced if renews => {
                list.renew(links, frame);
                self.again += usize::from(first_time);
                if self.cursor == list.sentinel {
                    // The renewed frame was the newest already, so the sweep continues with this frame.
                    self.cursor = frame + LISTS;
                }
            }
            Verdict::Skip | Verdict::Referenced => {}
        }
        None
    }
}
