//! Exact LRU: a list in order of last access, and a small array instead where frames are few.

use super::list::{self, Link, List, ListSweep};
use super::{Candidate, Verdict};

/// Up to this many frames, [`FewLru`] is used: the whole order is one machine word.
pub(super) const FEW_FRAMES: usize = 8;

/// LRU for any number of frames. All updates take constant time.
#[derive(Debug)]
pub(crate) struct Lru {
    links: Vec<Link>,
    order: List,
}

impl Lru {
    pub(super) fn new(frames: usize) -> Self {
        Self { links: list::links(frames, 1), order: List::new(frames, 0) }
    }

    pub(super) fn inserted(&mut self, frame: u32) {
        self.removed(frame);
        self.order.push(&mut self.links, frame);
    }

    pub(super) fn touched(&mut self, frame: u32) {
        if list::is_linked(&self.links, frame) {
            self.order.renew(&mut self.links, frame);
        }
    }

    pub(super) fn removed(&mut self, frame: u32) {
        if list::is_linked(&self.links, frame) {
            self.order.unlink(&mut self.links, frame);
        }
    }

    /// At most two proposals a tracked frame, see [`ListSweep::propose`]. A referenced frame counts as just
    /// touched. Skipped frames keep their place, so the next call asks about them again first.
    pub(super) fn victims(&mut self, want: usize, candidate: &mut Candidate<'_>) -> usize {
        let mut sweep = ListSweep::new(&self.order, &self.links);
        let mut taken = 0;
        while taken < want && !sweep.is_over() {
            taken += usize::from(sweep.propose(&mut self.order, &mut self.links, candidate).is_some());
        }
        taken
    }
}

/// LRU for at most [`FEW_FRAMES`] frames: moves to the front of an array.
#[derive(Debug)]
pub(crate) struct FewLru {
    /// Tracked frames, the newest first; valid up to `len`.
    order: [u8; FEW_FRAMES],
    len: usize,
    frames: usize,
}

impl FewLru {
    pub(super) fn new(frames: usize) -> Self {
        assert!(frames <= FEW_FRAMES, "{frames} frames are not few");
        Self { order: [0; FEW_FRAMES], len: 0, frames }
    }

    fn position(&self, frame: u32) -> Option<usize> {
        assert!((frame as usize) < self.frames, "frame {frame} of {}", self.frames);
        self.order[..self.len].iter().position(|&other| u32::from(other) == frame)
    }

    fn remove_at(&mut self, position: usize) {
        self.order.copy_within(position + 1..self.len, position);
        self.len -= 1;
    }

    /// Makes the frame at `position` the newest.
    fn renew_at(&mut self, position: usize) {
        self.order[..=position].rotate_right(1);
    }

    pub(super) fn inserted(&mut self, frame: u32) {
        self.removed(frame);
        self.order[self.len] = frame as u8;
        self.len += 1;
        self.renew_at(self.len - 1);
    }

    pub(super) fn touched(&mut self, frame: u32) {
        // With a single frame, or repeated hits of one page, this comparison is all there is to do. Of an
        // empty order it compares a leftover, which does no harm.
        if u32::from(self.order[0]) != frame
            && let Some(position) = self.position(frame)
        {
            self.renew_at(position);
        }
    }

    pub(super) fn removed(&mut self, frame: u32) {
        if let Some(position) = self.position(frame) {
            self.remove_at(position);
        }
    }

    /// As [`Lru::victims`], with the same bound: `proposals` grows at first proposals only.
    pub(super) fn victims(&mut self, want: usize, candidate: &mut Candidate<'_>) -> usize {
        let (first, mut proposals) = (self.len, self.len);
        let mut position = self.len;
        let (mut made, mut taken) = (0, 0);
        while taken < want && made < proposals {
            made += 1;
            // Referenced frames gather at the front, and all others move up by one: the walk meets them last.
            let at = position - 1;
            match candidate(u32::from(self.order[at])) {
                Verdict::Take => {
                    self.remove_at(at);
                    taken += 1;
                    position = at;
                }
                Verdict::Skip => position = at,
                Verdict::Stop => break,
                Verdict::Referenced => {
                    self.renew_at(at);
                    proposals += usize::from(made <= first);
                }
            }
        }
        taken
    }
}
