//! The time limit of a kernel launch, which applies to each item (GPU thread).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The reason why an item (GPU thread) must end early: some item of the launch has exceeded the limit.
///
/// ```
/// use backend_api::kernel::{Overtime, TimeLimit};
/// use std::time::{Duration, Instant};
/// let (limit, start) = (TimeLimit::new(Duration::ZERO), Instant::now());
/// while limit.overtime(start).is_none() {}
/// assert_eq!(limit.overtime(Instant::now()), Some(Overtime::OfAnother));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overtime {
    /// This item was the first to exceed the limit, and appears in the launch's report.
    Own,
    /// Another item was the first to exceed the limit.
    OfAnother,
}

/// The time limit for each item (thread) or group of a launch. All clones share a flag. A thread sets the
/// flag when an item has run longer than the limit.
///
/// ```
/// use backend_api::kernel::{LoopClock, TimeLimit};
/// use std::time::Duration;
/// let limit = TimeLimit::new(Duration::ZERO);
/// let mut clock = LoopClock::new(Some(&limit));
/// clock.begin();
/// // A loop without an end.
/// while clock.turn().is_none() {}
/// assert!(limit.is_exceeded());
/// ```
#[derive(Clone, Debug)]
pub struct TimeLimit {
    duration: Duration,
    is_exceeded: Arc<AtomicBool>,
}

impl TimeLimit {
    /// Number of loop iterations (back edges) of an item (thread) between two readings of the clock. The
    /// number is smaller under Miri, because an interpreted iteration takes long.
    pub const TURNS: u32 = if cfg!(miri) { 1 << 6 } else { 1 << 16 };

    /// Creates the time limit of one launch.
    #[must_use]
    pub fn new(duration: Duration) -> Self {
        Self { duration, is_exceeded: Arc::default() }
    }

    /// Returns a time limit with another duration and the same flag, for other code of the same launch.
    #[must_use]
    pub fn with_duration(&self, duration: Duration) -> Self {
        Self { duration, is_exceeded: Arc::clone(&self.is_exceeded) }
    }

    /// Returns true if an item (thread) has exceeded the limit. Then no other item needs to run.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Relaxed)
    }

    /// Returns the reason to end an item (thread) that started at `since`; `None` if it may continue.
    #[must_use]
    pub fn overtime(&self, since: Instant) -> Option<Overtime> {
        if self.is_exceeded() {
            return Some(Overtime::OfAnother);
        }
        let is_first = since.elapsed() > self.duration && !self.is_exceeded.swap(true, Relaxed);
        is_first.then_some(Overtime::Own).or_else(|| self.is_exceeded().then_some(Overtime::OfAnother))
    }
}

/// Checks the time limit of the items that a thread runs one after another. The thread calls
/// [`turn`](Self::turn) at each loop iteration (back edge). The `LoopClock` reads the time only once in
/// [`TimeLimit::TURNS`] iterations, so it does not measure shorter items.
///
/// ```
/// use backend_api::kernel::LoopClock;
/// let mut clock = LoopClock::new(None);
/// assert!((0..200_000).all(|_| clock.turn().is_none()), "there is no limit");
/// ```
#[derive(Debug)]
pub struct LoopClock<'a> {
    limit: Option<&'a TimeLimit>,
    left: u32,
    /// The time of the first reading of the clock for the current item.
    since: Option<Instant>,
}

impl<'a> LoopClock<'a> {
    /// Creates a clock for the items (threads) of a launch. If `limit` is `None`, the clock never ends one.
    #[must_use]
    pub fn new(limit: Option<&'a TimeLimit>) -> Self {
        Self { limit, left: TimeLimit::TURNS, since: None }
    }

    /// Starts an item (thread) or a group. The time counts from the first reading of the clock.
    pub fn begin(&mut self) {
        self.since = None;
    }

    /// Counts a loop iteration (back edge). Returns the reason to end the item (thread), if any.
    #[inline]
    pub fn turn(&mut self) -> Option<Overtime> {
        self.left -= 1;
        if self.left == 0 { self.read() } else { None }
    }

    #[cold]
    fn read(&mut self) -> Option<Overtime> {
        self.left = TimeLimit::TURNS;
        let limit = self.limit?;
        limit.overtime(*self.since.get_or_insert_with(Instant::now))
    }
}
