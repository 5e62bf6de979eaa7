//! Read-ahead: detects sequential and strided cache misses of each thread, and chooses the pages to prefetch.
//!
//! Each thread remembers a few streams of misses, and the last missed pages outside of all streams, the loose
//! pages. A miss next to a loose page begins a sequential stream, up or down; three equal steps begin a
//! strided one. A miss of the stream's next page doubles the number of its prefetched pages (its window),
//! from one up to a limit. The first use of a prefetched page also continues the stream, so a fast enough
//! stream never misses.
//!
//! A miss of a prefetched page means that the cache evicted this page unused, and halves the stream's window.
//! If all prefetched pages of a thread are evicted unused, or its streams end with more pages fetched than
//! used, later streams must be longer before they prefetch.

use std::cell::RefCell;

/// Number of streams that a thread can follow at once.
const STREAMS: usize = 8;
/// Number of loose pages that a thread remembers: three interleaved strided streams take nine.
const LOOSE: usize = 12;
/// Maximum number of steps that a stream may skip. If several threads access the same pages, each one misses
/// only some of them.
const GAP: u64 = 8;
/// Number of consecutive pages of a stream before the first prefetch: initial value, and limit.
const RUN_MIN: u64 = 2;
const RUN_MIN_MOST: u64 = 16;
/// Number of pages at equal distances that begin a strided stream.
const STRIDED_RUN: u64 = 4;

/// An array whose misses read-ahead follows: its identity, its length, and its limit of prefetches.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    /// Identity of the array.
    pub array: u64,
    /// Length of the array in pages.
    pub pages: u64,
    /// The greatest number of pages to prefetch for a stream; 0 disables prefetches.
    pub window_max: u64,
}

/// The kind of a thread's access to a page: a miss, or the first use of a prefetched page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The page was not resident.
    Missed,
    /// The thread used a prefetched page for the first time.
    FetchedAhead,
}

/// Pages to prefetch: a first page, a stride and a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    pub first: u64,
    pub stride: i64,
    pub count: u64,
}

impl Ahead {
    /// Returns the pages, in the order in which the thread will probably use them.
    pub fn pages(self) -> impl Iterator<Item = u64> + Clone {
        (0..self.count as i64).map(move |step| self.first.wrapping_add_signed(step * self.stride))
    }
}

#[derive(Clone, Copy, Default)]
struct MissStream {
    array: u64,
    /// The page that the thread used last.
    last: u64,
    /// Distance from one page to the next; 0 in an unused entry.
    stride: i64,
    /// Number of pages of the stream so far.
    run: u64,
    /// Number of prefetched pages that the thread has used.
    used: u64,
    /// Number of steps beyond `last` that are prefetched.
    ahead: u64,
    window: u64,
    /// Time of the last use, as a count of all uses.
    age: u64,
}

impl MissStream {
    /// Returns the number of steps from the last page to this one, if it can continue the stream.
    fn steps_to(&self, array: u64, page: u64) -> Option<u64> {
        let distance = page.wrapping_sub(self.last) as i64;
        if self.stride == 0 || self.array != array || distance % self.stride != 0 {
            return None;
        }
        let gap = if self.stride.abs() == 1 { GAP } else { 1 };
        let steps = u64::try_from(distance / self.stride).ok()?;
        (steps <= self.ahead + gap).then_some(steps)
    }

    /// Returns the number of steps from the last page to the end of the array.
    fn steps_left(&self, pages: u64) -> u64 {
        let room = if self.stride > 0 { pages.saturating_sub(self.last + 1) } else { self.last };
        room / self.stride.unsigned_abs().max(1)
    }
}

struct Memory {
    clock: u64,
    streams: [MissStream; STREAMS],
    /// Array and page of each loose page; array 0 means an unused entry.
    loose: [(u64, u64); LOOSE],
    next_loose: usize,
    run_min: u64,
}

impl Memory {
    const fn new() -> Self {
        let none = MissStream { array: 0, last: 0, stride: 0, run: 0, used: 0, ahead: 0, window: 0, age: 0 };
        Self { clock: 0, streams: [none; STREAMS], loose: [(0, 0); LOOSE], next_loose: 0, run_min: RUN_MIN }
    }

    fn step(&mut self, array: Streams, page: u64, usage: Use) -> Option<Ahead> {
        self.clock += 1;
        let known = self
            .streams
            .iter()
            .enumerate()
            .find_map(|(at, stream)| stream.steps_to(array.array, page).map(|steps| (at, steps)));
        let mut grows = true;
        let at = match known {
            Some((at, 0)) => {
                self.streams[at].age = self.clock;
                return None;
            }
            Some((at, steps)) => {
                let stream = &mut self.streams[at];
                stream.age = self.clock;
                if usage == Use::Missed && steps <= stream.ahead {
                    // The cache evicted this prefetched page unused, so read-ahead was too early: halve the
                    // window.
                    grows = false;
                    stream.window /= 2;
                    stream.ahead = 0;
                    if stream.window == 0 {
                        stream.run = 0;
                        self.run_min = (self.run_min * 2).min(RUN_MIN_MOST);
                    }
                }
                stream.ahead = stream.ahead.saturating_sub(steps);
                stream.run += steps;
                stream.used += u64::from(usage == Use::FetchedAhead);
                stream.last = page;
                at
            }
            None => {
                let (stride, run) = self.new_stream(array.array, page)?;
                self.replace_oldest(MissStream {
                    array: array.array,
                    last: page,
                    stride,
                    run,
                    age: self.clock,
                    ..MissStream::default()
                })
            }
        };
        let stream = &mut self.streams[at];
        if stream.run < self.run_min || array.window_max == 0 {
            return None;
        }
        // Many prefetched pages of the stream are still unused, so prefetch more pages later, in one batch.
        if stream.ahead > stream.window / 2 {
            return None;
        }
        if grows {
            stream.window = (stream.window * 2).clamp(1, array.window_max);
        }
        let end = stream.window.min(stream.steps_left(array.pages));
        let count = end.saturating_sub(stream.ahead);
        if count == 0 {
            return None;
        }
        let first = page.wrapping_add_signed((stream.ahead as i64 + 1) * stream.stride);
        stream.ahead = end;
        Some(Ahead { first, stride: stream.stride, count })
    }

    /// Returns stride and length of a stream that this page begins together with loose pages. Otherwise
    /// stores the page as a loose one.
    fn new_stream(&mut self, array: u64, page: u64) -> Option<(i64, u64)> {
        let is_loose = |page: u64| self.loose.contains(&(array, page));
        for stride in [1, -1] {
            if is_loose(page.wrapping_add_signed(-stride)) {
                return Some((stride, 2));
            }
        }
        for &(of, other) in &self.loose {
            let stride = page.wrapping_sub(other) as i64;
            let follows = of == array
                && stride != 0
                && (2..STRIDED_RUN as i64).all(|step| is_loose(page.wrapping_add_signed(-stride * step)));
            if follows {
                return Some((stride, STRIDED_RUN));
            }
        }
        if !is_loose(page) {
            self.loose[self.next_loose] = (array, page);
            self.next_loose = (self.next_loose + 1) % LOOSE;
        }
        None
    }

    fn replace_oldest(&mut self, stream: MissStream) -> usize {
        let ages = self.streams.iter().map(|stream| stream.age).enumerate();
        let at = ages.min_by_key(|(_, age)| *age).map_or(0, |(at, _)| at);
        let old = std::mem::replace(&mut self.streams[at], stream);
        if old.ahead > old.used {
            self.run_min = (self.run_min * 2).min(RUN_MIN_MOST);
        } else if old.run >= RUN_MIN_MOST {
            self.run_min = (self.run_min / 2).max(RUN_MIN);
        }
        at
    }
}

thread_local! {
    static MEMORY: RefCell<Memory> = const { RefCell::new(Memory::new()) };
}

/// Records a miss or the first use of a prefetched page. Returns the pages to prefetch now.
pub fn advance(array: Streams, page: u64, usage: Use) -> Option<Ahead> {
    MEMORY.try_with(|memory| memory.borrow_mut().step(array, page, usage)).ok().flatten()
}

/// Records that the caller omits the last `left_out` pages that [`advance`] returned for `page`.
pub fn retract(array: Streams, page: u64, left_out: u64) {
    let _ = MEMORY.try_with(|memory| {
        let streams = &mut memory.borrow_mut().streams;
        if let Some(stream) =
            streams.iter_mut().find(|s| s.stride != 0 && s.array == array.array && s.last == page)
        {
            stream.ahead = stream.ahead.saturating_sub(left_out);
            // The cache has no room for more pages, so prefetch no more at once than now.
            stream.window = stream.window.min(stream.ahead.max(1));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const ARRAY: Streams = Streams { array: 1, pages: 1000, window_max: 16 };

    /// Runs accesses against an unlimited cache: the prefetched pages and the number of misses.
    fn run(array: Streams, pages: impl IntoIterator<Item = u64>) -> (Vec<Ahead>, usize) {
        let (mut memory, mut resident) = (Memory::new(), HashSet::new());
        let (mut fetched, mut misses) = (Vec::new(), 0);
        for page in pages {
            let usage = if resident.insert(page) { Use::Missed } else { Use::FetchedAhead };
            misses += usize::from(usage == Use::Missed);
            if let Some(ahead) = memory.step(array, page, usage) {
                resident.extend(ahead.pages());
                fetched.push(ahead);
            }
        }
        (fetched, misses)
    }

    fn random(count: usize, below: u64) -> Vec<u64> {
        let mut state = 1_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (0..count).map(|_| next() % below).collect()
    }

    #[test]
    fn a_scan_is_fetched_ahead_without_gaps_or_repeats() {
        let (ahead, misses) = run(ARRAY, 0..1000);
        let pages: Vec<u64> = ahead.iter().flat_map(|ahead| ahead.pages()).collect();
        assert_eq!(pages, (2..1000).collect::<Vec<_>>());
        assert_eq!(misses, 2);
        assert!(ahead.iter().any(|ahead| ahead.count >= 8));
    }

    #[test]
    fn streams_of_any_stride_are_followed_both_ways() {
        for stride in [-1_i64, 3, -3, 7, -40, 100] {
            let first = if stride > 0 { 0_i64 } else { 999 };
            let pages = std::iter::successors(Some(first), |page| Some(page + stride));
            let pages: Vec<u64> =
                pages.take_while(|page| (0..1000).contains(page)).map(|page| page as u64).collect();
            let (ahead, misses) = run(ARRAY, pages.iter().copied());
            assert!(misses <= 4, "{stride}: {misses}");
            assert!(ahead.iter().all(|ahead| ahead.stride == stride));
            assert!(ahead.iter().flat_map(|ahead| ahead.pages()).all(|page| pages.contains(&page)));
        }
    }

    #[test]
    fn random_pages_fetch_next_to_nothing() {
        let (ahead, _) = run(Streams { pages: 1 << 20, ..ARRAY }, random(5000, 1 << 20));
        assert!(ahead.iter().map(|ahead| ahead.count).sum::<u64>() < 50);
    }

    #[test]
    fn several_streams_run_side_by_side() {
        let (ahead, misses) = run(ARRAY, (0..100).flat_map(|i| [i, 300 + i, 900 - i, 500 + 2 * i]));
        assert!(misses < 20, "{misses}");
        for (stride, start) in [(1, 0), (1, 300), (-1, 800), (2, 500)] {
            let is_of =
                |ahead: &&Ahead| ahead.stride == stride && (start..start + 200).contains(&ahead.first);
            assert!(ahead.iter().find(is_of).is_some(), "{start}");
        }
    }

    #[test]
    fn threads_that_share_a_stream_follow_it_through_gaps() {
        let seen = (0..200).filter(|page| !(page * page % 7_u64).is_multiple_of(3));
        let (ahead, _) = run(ARRAY, seen);
        assert!(ahead.iter().map(|ahead| ahead.count).sum::<u64>() > 150);
        assert!(ahead.len() < 60, "{}", ahead.len());
    }

    #[test]
    fn a_window_that_does_not_pay_shrinks() {
        let mut memory = Memory::new();
        let counts = |memory: &mut Memory, pages: std::ops::Range<u64>, usage| -> Vec<u64> {
            pages.filter_map(|page| memory.step(ARRAY, page, usage)).map(|ahead| ahead.count).collect()
        };
        assert!(counts(&mut memory, 0..100, Use::FetchedAhead).iter().any(|count| *count >= 8));
        // The cache drops each fetched page before its use.
        let shrunk = counts(&mut memory, 100..200, Use::Missed);
        assert!(shrunk.len() < 20 && shrunk[5..].iter().all(|count| *count <= 1), "{shrunk:?}");
    }

    #[test]
    fn a_thread_whose_streams_never_pay_is_fetched_less_for() {
        let mut memory = Memory::new();
        let mut fetched = Vec::new();
        for first in random(100, 1 << 20) {
            for page in [first, first + 1] {
                fetched.extend(memory.step(Streams { pages: 1 << 20, ..ARRAY }, page, Use::Missed));
            }
        }
        assert!(fetched.len() < 30, "{}", fetched.len());
    }

    #[test]
    fn unfetched_pages_are_requested_again() {
        let mut memory = Memory::new();
        for page in 0..50 {
            let _ = memory.step(ARRAY, page, Use::FetchedAhead);
        }
        let (at, stream) = memory.streams.iter().enumerate().find(|(_, s)| s.stride == 1).unwrap();
        let ahead = stream.ahead;
        memory.streams[at].ahead = 0;
        let again = memory.step(ARRAY, 50, Use::Missed).unwrap();
        assert_eq!((again.first, again.stride), (51, 1));
        assert!(ahead > 0);
    }

    #[test]
    fn a_tiny_cache_is_left_alone() {
        assert!(run(Streams { window_max: 0, ..ARRAY }, 0..100).0.is_empty());
    }

    #[test]
    fn arrays_are_kept_apart() {
        let mut memory = Memory::new();
        for page in 0..50 {
            // One array uses the odd pages, the other one the even pages: these are strided streams, never
            // sequential ones.
            let array = Streams { array: 1 + page % 2, ..ARRAY };
            let ahead = memory.step(array, page, Use::Missed);
            assert!(ahead.is_none_or(|ahead| ahead.stride == 2));
        }
    }
}
