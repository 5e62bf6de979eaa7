//! Recognises sequential streams of misses, per thread, and says what to fetch ahead.
//!
//! Each thread remembers a few streams. A miss on the page after a stream's last one continues it, and the window of
//! pages fetched ahead doubles from one up to a limit; any other miss begins a stream, in place of the one used least
//! recently. The first use of a page that was read ahead continues its stream, so a stream that keeps up never misses.

use std::cell::RefCell;
use std::ops::Range;

/// Streams that a thread can follow at once.
const STREAMS: usize = 4;
/// The window's limit, in pages.
const WINDOW_MAX: u64 = 16;
/// Misses in a row before anything is fetched ahead.
const RUN_MIN: u64 = 2;

/// What is known of the array that a stream runs through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    /// Its identity.
    pub(crate) array: u64,
    /// Its length in pages.
    pub(crate) pages: u64,
    /// All frames of its cache; the window takes at most an eighth of them.
    pub(crate) frames: u64,
}

#[derive(Clone, Copy, Default)]
struct Stream {
    array: u64,
    /// The page used last.
    last: u64,
    /// How many pages followed one another.
    run: u64,
    /// The end of what was fetched ahead.
    end: u64,
    window: u64,
    /// When it was used last, in uses.
    age: u64,
}

thread_local! {
    static STATE: RefCell<(u64, [Stream; STREAMS])> = RefCell::new((0, [Stream::default(); STREAMS]));
}

/// Notes the use of a page that was not resident, or that had been read ahead; returns the pages to fetch now.
pub(crate) fn advance(array: Streams, page: u64) -> Option<Range<u64>> {
    STATE.try_with(|state| step(&mut state.borrow_mut(), array, page)).ok().flatten()
}

/// Notes that of the pages that [`advance`] gave for this page only those before `reached` are being fetched.
pub(crate) fn retract(array: Streams, page: u64, reached: u64) {
    let _ = STATE.try_with(|state| {
        let (_, streams) = &mut *state.borrow_mut();
        for stream in streams.iter_mut().filter(|s| s.array == array.array && s.last == page) {
            stream.end = stream.end.min(reached.max(page + 1));
        }
    });
}

fn step(state: &mut (u64, [Stream; STREAMS]), array: Streams, page: u64) -> Option<Range<u64>> {
    let (clock, streams) = state;
    *clock += 1;
    let known = streams.iter().position(|s| {
        s.array == array.array && s.run > 0 && page >= s.last && (page <= s.last + 1 || page < s.end)
    });
    let Some(at) = known else {
        let oldest = streams.iter_mut().min_by_key(|s| s.age)?;
        *oldest = Stream { array: array.array, last: page, run: 1, end: page + 1, window: 0, age: *clock };
        return None;
    };
    let stream = &mut streams[at];
    stream.age = *clock;
    if page == stream.last {
        return None;
    }
    stream.run += page - stream.last;
    stream.last = page;
    stream.end = stream.end.max(page + 1);
    let limit = (array.frames / 8).min(WINDOW_MAX);
    if stream.run < RUN_MIN || limit == 0 {
        return None;
    }
    // Half a window is still ahead: wait, so that fetches come in batches.
    if stream.end - (page + 1) > stream.window / 2 {
        return None;
    }
    stream.window = (stream.window * 2).clamp(1, limit);
    let ahead = stream.end..(page + 1 + stream.window).min(array.pages);
    if ahead.is_empty() {
        return None;
    }
    stream.end = ahead.end;
    Some(ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: Streams = Streams { array: 1, pages: 1000, frames: 1000 };

    fn fetched(array: Streams, pages: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        let mut state = (0, [Stream::default(); STREAMS]);
        pages.into_iter().filter_map(|page| step(&mut state, array, page)).collect()
    }

    #[test]
    fn a_scan_is_fetched_ahead_without_gaps_or_repeats() {
        let ahead = fetched(ARRAY, 0..1000);
        assert_eq!(ahead.first().unwrap().start, 2);
        assert_eq!(ahead.last().unwrap().end, 1000);
        assert!(ahead.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(ahead.iter().any(|range| range.end - range.start >= WINDOW_MAX / 2));
    }

    #[test]
    fn random_pages_fetch_nothing() {
        assert!(fetched(ARRAY, (0..500).map(|i| i * 7919 % 1000)).is_empty());
    }

    #[test]
    fn several_streams_run_side_by_side() {
        let pages = (0..100).flat_map(|i| [i, 300 + i, 600 + i]);
        let ahead = fetched(ARRAY, pages);
        for start in [0, 300, 600] {
            assert!(ahead.iter().any(|range| range.start > start && range.end < start + 150));
        }
    }

    #[test]
    fn a_tiny_cache_is_left_alone() {
        assert!(fetched(Streams { frames: 7, ..ARRAY }, 0..100).is_empty());
    }

    #[test]
    fn arrays_are_kept_apart() {
        let mut state = (0, [Stream::default(); STREAMS]);
        for page in 0..50 {
            let array = Streams { array: page % 2, ..ARRAY };
            assert_eq!(step(&mut state, array, page), None);
        }
    }
}
