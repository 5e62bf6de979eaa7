//! Page table of a tier: maps file pages to the GPU memory that caches them.

use std::sync::Arc;

use parking_lot::Mutex;

/// Number of adjacent pages that share a lock; a batch of reads then takes few locks.
const STRIPE_PAGES: u64 = 64;
const STRIPES: u64 = 64;
/// Upper bound of the number of misses in concurrent batches.
const LATER_MAX: u32 = 1 << 20;

/// A page-sized slot in the memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TierSlot {
    /// Index of the GPU in its tier.
    pub card: u32,
    /// Index of the slot (memory for one page) on that GPU.
    pub at: u32,
}

/// Cache state of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Nowhere,
    /// A thread is about to copy the page to a GPU.
    Loading,
    /// A GPU caches the page, with the same bytes as the file.
    Held(TierSlot),
}

/// Cache state of one page. Every method is one step under the lock of the page's stripe.
///
/// After a write to the file has ended, no GPU caches an older version of the page:
///
/// - A writer [begins](Self::begin_write) by removing the page from its GPU before the file changes, and
///   [ends](Self::end_write) after the change. In between no thread can [claim](Self::claim) the page.
/// - A thread that copies the page to a GPU claims the page before it reads the file. A write that begins
///   later makes the claim invalid: [`loaded`](Self::loaded) compares the numbers of begun writes.
/// - A writer can put its new bytes on the GPU if no other write began before its own ended. Otherwise the
///   order of the two writes in the file is unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TierEntry {
    state: State,
    /// Number of begun writes, which may wrap around.
    writes: u32,
    /// Number of writes in progress.
    writers: u32,
    /// Count of all misses at the page's last recorded miss; 0 if there was none.
    missed: u32,
    /// True if a write has evicted the page from a GPU.
    is_due: bool,
}

impl TierEntry {
    /// Returns the GPU memory (slot) that caches the page; `None` if no GPU caches it.
    pub fn slot(&self) -> Option<TierSlot> {
        match self.state {
            State::Held(slot) => Some(slot),
            State::Nowhere | State::Loading => None,
        }
    }

    /// Records a miss of the page. `at` is the count of all misses so far, and `start` the count at the start
    /// of the current batch of reads. Returns the number of misses since the page's last recorded miss: 0 in
    /// the same batch, `None` for the first miss. Does not record a miss within `apart` misses after the last
    /// recorded miss.
    pub fn miss(&mut self, start: u32, at: u32, apart: u32) -> Option<u32> {
        let before = Some(self.missed).filter(|missed| *missed != 0);
        // The counter wraps around. If `missed` is slightly after `start`, this batch or a concurrent one
        // recorded it: return 0.
        let ago = before.map(|missed| start.wrapping_sub(missed));
        let ago = ago.map(|ago| if ago > u32::MAX - LATER_MAX { 0 } else { ago });
        if ago.is_none_or(|ago| ago >= apart) {
            self.missed = at.max(1);
        }
        ago
    }

    /// Returns true if the next read should copy the page to a GPU, because a write has evicted the page.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// Begins to copy the page to a GPU, unless another thread copies or writes the page. Returns a claim
    /// (the number of the page's writes so far), by which [`loaded`](Self::loaded) detects a later write.
    pub fn claim(&mut self) -> Option<u32> {
        let may = self.state == State::Nowhere && self.writers == 0;
        may.then(|| {
            self.state = State::Loading;
            self.writes
        })
    }

    /// Records that `slot` (memory on a GPU) caches the page: the thread has copied the page there after its
    /// call of [`claim`](Self::claim). Returns false, without an effect, if the page was written meanwhile.
    pub fn loaded(&mut self, claim: u32, slot: TierSlot) -> bool {
        let holds = self.state == State::Loading && self.writes == claim;
        if holds {
            (self.state, self.is_due) = (State::Held(slot), false);
        }
        holds
    }

    /// Ends the copy that [`claim`](Self::claim) has begun, without success: no GPU caches the page.
    pub fn abandon(&mut self, claim: u32) {
        if self.state == State::Loading && self.writes == claim {
            self.state = State::Nowhere;
        }
    }

    /// Begins a write of the page to the file, and removes the page from its slot (GPU memory). Returns the
    /// write's number, for [`end_write`](Self::end_write), and the slot.
    pub fn begin_write(&mut self) -> (u32, Option<TierSlot>) {
        let slot = self.slot();
        self.is_due |= slot.is_some();
        self.state = State::Nowhere;
        self.writes = self.writes.wrapping_add(1);
        self.writers += 1;
        (self.writes, slot)
    }

    /// Ends a write of the page. If `slot` (memory on a GPU) has the new contents, and no other write has
    /// begun, `slot` caches the page again, and the result is true.
    pub fn end_write(&mut self, write: u32, slot: Option<TierSlot>) -> bool {
        self.writers -= 1;
        match slot {
            Some(slot) if self.writes == write => {
                // No earlier write runs: this write took the slot, which an earlier write would have taken.
                debug_assert_eq!(
                    (self.writers, self.state),
                    (0, State::Nowhere),
                    "another thread uses the entry"
                );
                (self.state, self.is_due) = (State::Held(slot), false);
                true
            }
            _ => false,
        }
    }

    /// Removes the page from `slot` (memory on a GPU). Returns true if `slot` cached the page.
    pub fn leave(&mut self, slot: TierSlot) -> bool {
        let was_there = self.state == State::Held(slot);
        if was_there {
            self.state = State::Nowhere;
        }
        was_there
    }
}

/// Page table of one file device's memory. An unused page takes no memory.
#[derive(Debug)]
pub(super) struct PageMap(Box<[Mutex<Vec<TierEntry>>]>);

impl PageMap {
    /// Creates a page table without cached pages.
    pub fn new() -> Arc<Self> {
        Arc::new(Self((0..STRIPES).map(|_| Mutex::default()).collect()))
    }

    /// Locks the entry of a page, and calls `step` with it.
    pub fn with<T>(&self, page: u64, step: impl FnOnce(&mut TierEntry) -> T) -> T {
        let group = page / STRIPE_PAGES;
        let at = (group / STRIPES * STRIPE_PAGES + page % STRIPE_PAGES) as usize;
        let mut stripe = self.0[(group % STRIPES) as usize].lock();
        if stripe.len() <= at {
            stripe.resize(at + 1, TierEntry::default());
        }
        step(&mut stripe[at])
    }

    /// Removes all pages from the table, and returns the slots (memory on GPUs) that cached them.
    pub fn clear(&self) -> Vec<TierSlot> {
        let mut slots = Vec::new();
        for stripe in &self.0 {
            slots.extend(stripe.lock().iter_mut().filter_map(|entry| {
                let slot = entry.slot();
                slot.inspect(|slot| {
                    entry.leave(*slot);
                })
            }));
        }
        slots
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// One for each thread that may load, and one for the initially cached page.
    const SLOTS: [TierSlot; 4] = [
        TierSlot { card: 0, at: 0 },
        TierSlot { card: 0, at: 1 },
        TierSlot { card: 0, at: 2 },
        TierSlot { card: 0, at: 3 },
    ];

    #[test]
    fn pages_are_kept_apart() {
        let map = PageMap::new();
        let pages: Vec<u64> = (0..300).chain([1 << 13, (1 << 13) + 1, 100_000]).collect();
        for &page in &pages {
            let slot = TierSlot { card: 1, at: page as u32 };
            assert!(map.with(page, |entry| {
                let claim = entry.claim().unwrap();
                entry.loaded(claim, slot)
            }));
        }
        for &page in &pages {
            assert_eq!(map.with(page, |entry| entry.slot()), Some(TierSlot { card: 1, at: page as u32 }));
        }
        assert_eq!((map.clear().len(), map.clear().len()), (pages.len(), 0));
    }

    #[test]
    fn misses_that_belong_together_count_once() {
        let mut entry = TierEntry::default();
        assert_eq!(entry.miss(1, 4, 10), None);
        // Test misses in the same batch, and in later batches.
        assert_eq!(
            [(1, 6), (5, 5), (13, 13)].map(|(start, at)| entry.miss(start, at, 10)),
            [0, 1, 9].map(Some)
        );
        assert_eq!([(30, 30), (31, 31)].map(|(start, at)| entry.miss(start, at, 10)), [26, 1].map(Some));
        // The count of misses wraps around.
        entry.missed = u32::MAX - 3;
        assert_eq!(entry.miss(4, 4, 10), Some(8));
    }

    /// Steps of one thread on a page. The contents are the number of the write that made them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum Thread {
        /// Claims, reads the file, copies to its slot, and publishes, or gives up.
        Load { step: u8, claim: u32, read: u8, fails: bool },
        /// Begins, changes the file, updates the slot that had the page, ends.
        Write { step: u8, write: u32, slot: Option<u8>, value: u8 },
        /// Takes the page out of its slot.
        Evict { done: bool },
    }

    #[derive(Clone, Debug)]
    struct World {
        entry: TierEntry,
        file: u8,
        slots: [u8; 4],
        threads: Vec<Thread>,
    }

    impl World {
        fn key(&self) -> impl Eq + std::hash::Hash + use<> {
            let entry = format!("{:?}", self.entry);
            (entry, self.file, self.slots, self.threads.clone())
        }

        /// Does the next step of a thread; returns false at its end.
        fn step(&mut self, at: usize) -> bool {
            let mut thread = self.threads[at];
            let number = |slot: TierSlot| slot.at as u8;
            match &mut thread {
                Thread::Load { step: step @ 0, claim, .. } => match self.entry.claim() {
                    Some(number) => (*step, *claim) = (1, number),
                    None => *step = 9,
                },
                Thread::Load { step: step @ 1, read, .. } => (*step, *read) = (2, self.file),
                Thread::Load { step: step @ 2, read, .. } => {
                    self.slots[at] = *read;
                    *step = 3;
                }
                Thread::Load { step: step @ 3, claim, fails, .. } => {
                    if *fails {
                        self.entry.abandon(*claim);
                    } else {
                        self.entry.loaded(*claim, SLOTS[at]);
                    }
                    *step = 9;
                }
                Thread::Write { step: step @ 0, write, slot, .. } => {
                    let (number_of, taken) = self.entry.begin_write();
                    (*step, *write, *slot) = (1, number_of, taken.map(number));
                }
                Thread::Write { step: step @ 1, value, .. } => {
                    self.file = *value;
                    *step = 2;
                }
                Thread::Write { step: step @ 2, slot, value, .. } => {
                    slot.inspect(|slot| self.slots[usize::from(*slot)] = *value);
                    *step = 3;
                }
                Thread::Write { step: step @ 3, write, slot, .. } => {
                    self.entry.end_write(*write, slot.map(|slot| SLOTS[usize::from(slot)]));
                    *step = 9;
                }
                Thread::Evict { done } if *done => return false,
                Thread::Evict { done } => {
                    *done = true;
                    if let Some(slot) = self.entry.slot() {
                        assert!(self.entry.leave(slot));
                    }
                }
                Thread::Load { .. } | Thread::Write { .. } => return false,
            }
            self.threads[at] = thread;
            true
        }

        /// A cached page equals the page in the file.
        fn check(&self) {
            let Some(slot) = self.entry.slot() else { return };
            let held = self.slots[slot.at as usize];
            assert_eq!(held, self.file, "a card has what the file has not: {self:?}");
        }
    }

    /// Tries all orders of the steps of three threads of every kind, from an uncached page and from a cached
    /// one.
    #[test]
    fn no_order_of_steps_leaves_a_stale_page_on_a_card() {
        let kinds = [
            |_| Thread::Load { step: 0, claim: 0, read: 0, fails: false },
            |_| Thread::Load { step: 0, claim: 0, read: 0, fails: true },
            |at| Thread::Write { step: 0, write: 0, slot: None, value: at + 1 },
            |_| Thread::Evict { done: false },
        ];
        let mut states = 0;
        for combination in 0..64 {
            let threads: Vec<Thread> =
                (0..3_u8).map(|at| kinds[combination / 4_usize.pow(u32::from(at)) % 4](at)).collect();
            for is_held in [false, true] {
                let mut entry = TierEntry::default();
                if is_held {
                    let claim = entry.claim().unwrap();
                    assert!(entry.loaded(claim, SLOTS[3]));
                }
                let mut open = vec![World { entry, file: 0, slots: [0; 4], threads: threads.clone() }];
                let mut seen = HashSet::new();
                while let Some(world) = open.pop() {
                    if !seen.insert(world.key()) {
                        continue;
                    }
                    world.check();
                    for at in 0..3 {
                        let mut next = world.clone();
                        if next.step(at) {
                            open.push(next);
                        }
                    }
                }
                states += seen.len();
            }
        }
        assert!(states > 10_000, "{states} states");
    }
}
