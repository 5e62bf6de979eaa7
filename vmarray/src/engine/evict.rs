//! Which frame to give up next: the eviction policies of one shard.
//!
//! These are plain, deterministic data structures, called under the shard's lock. They know frame numbers and
//! page keys only: no device, no page table, no atomics. Whatever can change behind the lock (the referenced
//! bit, pins, dirtiness) is asked for, frame by frame, through the callback of [`Evictor::victims`], so a
//! policy never holds a stale copy of it.

mod clock;
mod ghosts;
mod list;
mod lru;
#[cfg(test)]
mod tests;
mod two_queue;

/// Which page leaves the cache when a frame is needed.
///
/// Every policy keeps the array correct; they differ in which pages stay and in what a hit costs. All three
/// give up frames in the same bounded way: one search offers each resident page at most twice, so it ends
/// even if every page is in use.
///
/// # Examples
///
/// ```
/// use vmarray::EvictionPolicy;
///
/// // CLOCK, unless something else is asked for.
/// assert_eq!(EvictionPolicy::default(), EvictionPolicy::Clock);
///
/// // A large array is scanned from time to time while other threads work on a few pages.
/// let scans_are_frequent = true;
/// let policy = if scans_are_frequent { EvictionPolicy::TwoQueue } else { EvictionPolicy::default() };
/// assert_eq!(policy, EvictionPolicy::TwoQueue);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum EvictionPolicy {
    /// CLOCK: a hand goes round the frames and gives every page referenced since its last visit one more
    /// turn.
    ///
    /// Approximates least recently used. A hit sets one bit, once per turn of the hand, and takes no lock;
    /// the state is one byte a frame.
    ///
    /// Source: F. J. Corbató, "A Paging Experiment with the Multics System", 1969.
    #[default]
    Clock,

    /// Least recently used, by the exact order of accesses: pages are considered from the one whose last
    /// access is longest ago.
    ///
    /// The order is exact; what leaves is the first in that order that can leave at once. A page that is held
    /// by somebody, or was written to and is not yet on its device again, is passed over while there are
    /// others, and a channel with many frames gives up several of the oldest pages at a time.
    ///
    /// For few frames, for code that counts on the order, and for comparison. Every hit takes the page and is
    /// reported under the shard's lock: there are no lock-free hits, and threads that share a shard wait for
    /// each other even if all their pages are resident. The state is eight bytes a frame; with repeated hits
    /// of one page, a report is one comparison.
    ///
    /// Source: L. A. Belady, "A Study of Replacement Algorithms for a Virtual-Storage Computer", 1966, and
    /// folklore.
    Lru,

    /// 2Q: pages fetched once pass through a short queue; only those that come back soon join the long-lived
    /// ones.
    ///
    /// Scan-resistant: one pass over a large array does not wash out the pages that other threads use all the
    /// time, and a loop slightly larger than the cache still finds most of its pages. References made while a
    /// page is in the short queue count for nothing, because the many elements of a page are usually read in
    /// one go; that is what makes the difference from SIEVE or S3-FIFO here, which take the second element
    /// for a second visit. The price: a page that becomes popular is fetched twice, so a working set that
    /// moves often does a little better with CLOCK.
    ///
    /// A hit costs the same as under [`Clock`](Self::Clock). The state is some 50 bytes a frame, including
    /// the keys of pages evicted lately.
    ///
    /// Source: T. Johnson and D. Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement
    /// Algorithm", 1994, with their queue lengths; the main queue is a CLOCK instead of an LRU list.
    TwoQueue,
}

/// What the paging core answers for a frame proposed by [`Evictor::victims`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The caller has claimed the frame. The policy forgets it.
    Take,
    /// The frame cannot go now: pinned, in flight, or dirty. It keeps its place.
    Skip,
    /// The referenced bit was set and the caller has cleared it. The frame gets a second chance.
    Referenced,
    /// As [`Skip`](Self::Skip), and the caller has enough.
    Stop,
}

/// The callback of [`Evictor::victims`].
pub(crate) type Candidate<'a> = dyn FnMut(u32) -> Verdict + 'a;

/// The eviction state of one shard, for frames `0..frames`.
///
/// A frame is *tracked* from [`inserted`](Self::inserted) until it is taken or [`removed`](Self::removed).
/// The caller keeps frame numbers below `frames`; others may panic.
#[derive(Debug)]
pub(crate) enum Evictor {
    /// See [`EvictionPolicy::Clock`].
    Clock(clock::Clock),
    /// See [`EvictionPolicy::Lru`].
    Lru(lru::Lru),
    /// See [`EvictionPolicy::TwoQueue`].
    TwoQueue(two_queue::TwoQueue),
}

impl Evictor {
    /// A policy that tracks none of its `frames` frames yet. All memory is allocated here.
    pub(crate) fn new(policy: EvictionPolicy, frames: usize) -> Self {
        // The lists need two numbers past the last frame, and one that means "none".
        assert!(frames < u32::MAX as usize - 2, "frame numbers are 32 bits");
        match policy {
            EvictionPolicy::Clock => Self::Clock(clock::Clock::new(frames)),
            EvictionPolicy::Lru => Self::Lru(lru::Lru::new(frames)),
            EvictionPolicy::TwoQueue => Self::TwoQueue(two_queue::TwoQueue::new(frames)),
        }
    }

    /// Whether hits must be reported through [`touched`](Self::touched).
    pub(crate) fn wants_touches(&self) -> bool {
        matches!(self, Self::Lru(_))
    }

    /// The frame has received the page `page_key`, and is now the most recent one.
    ///
    /// A frame that is tracked already is forgotten first. Put back a taken frame that could not be evicted
    /// after all with this, too.
    pub(crate) fn inserted(&mut self, frame: u32, page_key: u64) {
        match self {
            Self::Clock(clock) => clock.inserted(frame),
            Self::Lru(lru) => lru.inserted(frame),
            Self::TwoQueue(queues) => queues.inserted(frame, page_key),
        }
    }

    /// The frame's page was accessed. Only exact LRU cares.
    ///
    /// Reports may be collected and delivered late, in order: a frame no longer tracked is ignored.
    #[inline]
    pub(crate) fn touched(&mut self, frame: u32) {
        if let Self::Lru(lru) = self {
            lru.touched(frame);
        }
    }

    /// The frame has lost its page other than by eviction. Does nothing if the frame is not tracked.
    pub(crate) fn removed(&mut self, frame: u32) {
        match self {
            Self::Clock(clock) => clock.removed(frame),
            Self::Lru(lru) => lru.removed(frame),
            Self::TwoQueue(queues) => queues.removed(frame),
        }
    }

    /// Proposes tracked frames in order of eviction preference until `want` of them are taken, the answer is
    /// [`Verdict::Stop`], or there is nothing left to propose. Returns how many were taken.
    ///
    /// Each tracked frame is proposed at most once, and once more if the first answer was
    /// [`Verdict::Referenced`]: so a call makes at most twice as many proposals as there are tracked frames,
    /// and ends even if all are pinned. Besides that, CLOCK steps over untracked frames, in at most two
    /// turns.
    pub(crate) fn victims(&mut self, want: usize, candidate: &mut Candidate<'_>) -> usize {
        match self {
            Self::Clock(clock) => clock.victims(want, candidate),
            Self::Lru(lru) => lru.victims(want, candidate),
            Self::TwoQueue(queues) => queues.victims(want, candidate),
        }
    }
}
