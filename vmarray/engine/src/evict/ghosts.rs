//! Ghost entries of the 2Q eviction policy: the keys of recently evicted pages, without the pages.

use std::collections::{HashMap, VecDeque};

/// The last `capacity` keys of evicted pages, each until a call takes it. All operations take constant time.
#[derive(Debug)]
pub(super) struct Ghosts {
    capacity: usize,
    /// Keys in the order of their eviction, including taken ones.
    arrivals: VecDeque<u64>,
    /// For each remembered key, its position in the sequence of all pushes.
    numbers: HashMap<u64, u64>,
    pushed: u64,
}

impl Ghosts {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), arrivals: VecDeque::new(), numbers: HashMap::new(), pushed: 0 }
    }

    /// Remembers the key, and forgets the one that is `capacity` pushes older.
    pub(super) fn push(&mut self, key: u64) {
        if self.arrivals.len() == self.capacity
            && let Some(oldest) = self.arrivals.pop_front()
            && self.numbers.get(&oldest).is_some_and(|number| number + self.capacity as u64 == self.pushed)
        {
            self.numbers.remove(&oldest);
        }
        self.arrivals.push_back(key);
        self.numbers.insert(key, self.pushed);
        self.pushed += 1;
    }

    /// Returns true if the key is remembered, and forgets it.
    pub(super) fn take(&mut self, key: u64) -> bool {
        self.numbers.remove(&key).is_some()
    }
}
