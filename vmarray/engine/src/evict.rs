//! Eviction policies of the page cache: each chooses the cache frames that the engine should free next. A
//! policy serves one shard, the cache of one channel (share of a device).
//!
//! Policies are plain, deterministic data structures, called under the shard's lock. They know frame numbers
//! and page keys only: no device, no page table, no atomics. State that can change without the lock (the
//! referenced bit, pins, dirtiness) is read for each frame through the callback of [`Evictor::victims`], so a
//! policy never has a stale copy of this state.

mod clock;
mod ghosts;
mod list;
mod lru;
#[cfg(test)]
mod tests;
mod two_queue;
mod verdict;

pub use verdict::{Candidate, Verdict};

/// Policy that selects the page to evict when the cache needs a free frame.
///
/// The choice affects only the speed: the policies differ in the pages that stay in the cache, and in the
/// cost of a hit. Each search for a page to evict proposes each cached page at most twice, so it ends even if
/// all pages are in use.
///
/// # Examples
///
/// ```
/// use vmarray::EvictionPolicy;
///
/// // The default is CLOCK.
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
    /// CLOCK: a hand goes round the frames, and spares each page that was referenced since its last visit.
    ///
    /// Approximates least recently used. A hit sets one bit, once per turn of the hand, and takes no lock;
    /// the state is one byte a frame.
    ///
    /// Source: F. J. Corbató, "A Paging Experiment with the Multics System", 1969.
    #[default]
    Clock,

    /// Least recently used: evicts pages in the exact order of their last access, the oldest first.
    ///
    /// The first page in this order that can leave at once is evicted: the policy skips a page in use, or a
    /// dirty page, while other pages can leave. A channel with many frames evicts several of the oldest pages
    /// at a time.
    ///
    /// Use this policy for few frames, for code that depends on the order, and for comparisons. Every hit
    /// latches the page, and is reported under the shard's lock. So no hit is lock-free, and threads of a
    /// shard wait for each other even if all their pages are resident. The state is eight bytes a frame. If
    /// one page is hit repeatedly, a report costs one comparison.
    ///
    /// Source: L. A. Belady, "A Study of Replacement Algorithms for a Virtual-Storage Computer", 1966, and
    /// folklore.
    Lru,

    /// 2Q: new pages pass through a short queue; only pages that are fetched again soon enter the main one.
    ///
    /// 2Q resists scans: a scan of a large array does not evict pages that other threads use all the time,
    /// and a loop slightly larger than the cache still hits most of its pages. References to a page in the
    /// short queue do not count, because a program usually reads the many elements of a page in one go. SIEVE
    /// and S3-FIFO would take the second element for a second visit. In exchange, a page that becomes popular
    /// is fetched twice, so CLOCK is slightly better for a working set that moves often.
    ///
    /// A hit costs the same as with [`Clock`](Self::Clock). The state is some 50 bytes a frame, including the
    /// keys of recently evicted pages.
    ///
    /// Source: T. Johnson and D. Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement
    /// Algorithm", 1994, with their queue lengths; the main queue is a CLOCK instead of an LRU list.
    TwoQueue,
}

/// An eviction policy and its state for the frames `0..frames` of one shard (the cache of one channel, a
/// share of a device).
///
/// The policy *tracks* a frame from [`inserted`](Self::inserted) until the caller takes it as a victim or
/// reports it as [`removed`](Self::removed). Frame numbers must be below `frames`; greater ones may panic.
#[doc(hidden)]
#[derive(Debug)]
pub enum Evictor {
    /// See [`EvictionPolicy::Clock`].
    Clock(clock::Clock),
    /// See [`EvictionPolicy::Lru`].
    Lru(lru::Lru),
    /// See [`EvictionPolicy::TwoQueue`].
    TwoQueue(two_queue::TwoQueue),
}

impl Evictor {
    /// Returns the state of `policy` for `frames` frames, none of them tracked yet. Its memory grows with the
    /// inserted frames. Panics if frame numbers would not fit into 32 bits.
    pub fn new(policy: EvictionPolicy, frames: usize) -> Self {
        // Frame numbers have 32 bits. The lists use two more numbers for their ends, and one for "none".
        assert!(frames < u32::MAX as usize - 2, "frame numbers must fit into 32 bits");
        match policy {
            EvictionPolicy::Clock => Self::Clock(clock::Clock::new(frames)),
            EvictionPolicy::Lru => Self::Lru(lru::Lru::new()),
            EvictionPolicy::TwoQueue => Self::TwoQueue(two_queue::TwoQueue::new(frames)),
        }
    }

    /// Returns true if the policy needs a call of [`touched`](Self::touched) for each cache hit.
    pub fn wants_touches(&self) -> bool {
        matches!(self, Self::Lru(_))
    }

    /// Reports that the frame has received the page `page_key`. The frame becomes the most recently used one.
    ///
    /// If the policy tracks the frame already, this call discards the frame's old state. A caller that could
    /// not evict a victim (page to evict) also calls this method, to track the frame again.
    pub fn inserted(&mut self, frame: u32, page_key: u64) {
        match self {
            Self::Clock(clock) => clock.inserted(frame),
            Self::Lru(lru) => lru.inserted(frame),
            Self::TwoQueue(queues) => queues.inserted(frame, page_key),
        }
    }

    /// Reports an access to the frame's page. Only exact LRU uses these reports.
    ///
    /// The caller may batch reports and deliver them late, but in order. The policy ignores untracked frames.
    #[inline]
    pub fn touched(&mut self, frame: u32) {
        if let Self::Lru(lru) = self {
            lru.touched(frame);
        }
    }

    /// Reports that the frame has lost its page other than by eviction. Does nothing for an untracked frame.
    pub fn removed(&mut self, frame: u32) {
        match self {
            Self::Clock(clock) => clock.removed(frame),
            Self::Lru(lru) => lru.removed(frame),
            Self::TwoQueue(queues) => queues.removed(frame),
        }
    }

    /// Proposes tracked frames for eviction to `candidate`, the best first. Ends when `candidate` has taken
    /// `want` frames or replies [`Verdict::Stop`], or no frame is left. Returns the number of taken frames.
    ///
    /// Each tracked frame is proposed at most once, and once more if the first reply was
    /// [`Verdict::Referenced`]. So the number of proposals is at most twice that of tracked frames, and the
    /// call ends even if all pages are pinned. In addition, CLOCK steps over untracked frames, in at most two
    /// revolutions.
    pub fn victims(&mut self, want: usize, candidate: &mut Candidate<'_>) -> usize {
        match self {
            Self::Clock(clock) => clock.victims(want, candidate),
            Self::Lru(lru) => lru.victims(want, candidate),
            Self::TwoQueue(queues) => queues.victims(want, candidate),
        }
    }
}
