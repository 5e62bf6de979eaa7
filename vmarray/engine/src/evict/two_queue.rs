//! The 2Q eviction policy (Johnson and Shasha), with a CLOCK as its main queue.
//!
//! | here | Johnson and Shasha | holds | length |
//! |---|---|---|---|
//! | `recent` | A1in | pages fetched for the first time in a while, first in first out | target: a quarter of the frames |
//! | `ghosts` | A1out | keys of pages evicted from `recent` | half the number of frames |
//! | `hot` | Am | pages fetched while their key was in `ghosts` | the rest |
//!
//! The policy ignores references to pages in `recent`. A page has thousands of elements, so a reference shows
//! only that a program is reading the page, not that it will read it again. A quarter of the frames is the
//! target of `recent`, because prefetched pages must survive there until their first use. A tenth would gain
//! about one hit in a hundred.

use super::ghosts::Ghosts;
use super::list::{self, Link, List, ListSweep};
use super::verdict::Candidate;

/// The page of one frame, and the queue that it is in.
#[derive(Clone, Copy, Debug)]
struct QueuedPage {
    key: u64,
    is_hot: bool,
}

/// The state of the 2Q policy: the parts `recent`, `ghosts` and `hot` of the table above.
#[derive(Debug)]
pub struct TwoQueue {
    links: Vec<Link>,
    /// The page of each frame, up to the greatest inserted one; valid for tracked frames.
    pages: Vec<QueuedPage>,
    recent: List,
    recent_target: usize,
    hot: List,
    ghosts: Ghosts,
}

impl TwoQueue {
    pub(super) fn new(frames: usize) -> Self {
        Self {
            links: list::links(),
            pages: Vec::new(),
            recent: List::new(0),
            recent_target: (frames / 4).max(1),
            hot: List::new(1),
            ghosts: Ghosts::new(frames / 2),
        }
    }

    pub(super) fn inserted(&mut self, frame: u32, key: u64) {
        self.removed(frame);
        let is_hot = self.ghosts.take(key);
        if self.pages.len() <= frame as usize {
            self.pages.resize(frame as usize + 1, QueuedPage { key: 0, is_hot: false });
        }
        self.pages[frame as usize] = QueuedPage { key, is_hot };
        let queue = if is_hot { &mut self.hot } else { &mut self.recent };
        queue.push(&mut self.links, frame);
    }

    pub(super) fn removed(&mut self, frame: u32) {
        if list::is_linked(&self.links, frame) {
            let queue = if self.pages[frame as usize].is_hot { &mut self.hot } else { &mut self.recent };
            queue.unlink(&mut self.links, frame);
        }
    }

    /// Takes frames from `recent` while it is longer than its target, otherwise from `hot`. If this queue has
    /// no frame left to propose, takes from the other one. Proposes a frame at most twice.
    pub(super) fn victims(&mut self, want: usize, candidate: &mut Candidate<'_>) -> usize {
        let mut recent = ListSweep::new(&self.recent, &self.links);
        let mut hot = ListSweep::new(&self.hot, &self.links);
        let mut taken = 0;
        while taken < want && !(recent.is_over() && hot.is_over()) {
            let prefer_recent = self.recent.len() > self.recent_target;
            if hot.is_over() || (prefer_recent && !recent.is_over()) {
                let victim = recent.propose(&mut self.recent, &mut self.links, false, candidate);
                if let Some(frame) = victim {
                    self.ghosts.push(self.pages[frame as usize].key);
                    taken += 1;
                }
            } else {
                let victim = hot.propose(&mut self.hot, &mut self.links, true, candidate);
                taken += usize::from(victim.is_some());
            }
            if recent.is_stopped() || hot.is_stopped() {
                break;
            }
        }
        taken
    }
}
