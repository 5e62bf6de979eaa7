//! The exact LRU eviction policy: a list of cache frames in the order of their last access.

use super::list::{self, Link, List, ListSweep};
use super::verdict::Candidate;

/// The state of the LRU policy: the list of tracked frames. All updates take constant time.
#[derive(Debug)]
pub struct Lru {
    links: Vec<Link>,
    order: List,
}

impl Lru {
    pub(super) fn new() -> Self {
        Self { links: list::links(), order: List::new(0) }
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

    /// Proposes each tracked frame at most twice, see [`ListSweep::propose`]. A referenced frame becomes the
    /// most recent one. Skipped frames keep their place, so the next call proposes them first.
    pub(super) fn victims(&mut self, want: usize, candidate: &mut Candidate<'_>) -> usize {
        let mut sweep = ListSweep::new(&self.order, &self.links);
        let mut taken = 0;
        while taken < want && !sweep.is_over() {
            taken += usize::from(sweep.propose(&mut self.order, &mut self.links, true, candidate).is_some());
        }
        taken
    }
}
