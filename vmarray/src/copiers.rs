//! Host threads for long copies: one copies RAM at a fraction of what the memory, or a bus, can do.
//!
//! The threads are scoped to the call. A pool would have to be one that nobody else blocks: a program may call from all
//! threads of its own pool at once, each of them waiting for the others' turn. Calls share the cores: together they
//! start no more threads than there are.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::error::Result;
use crate::guards;

/// What is worth a thread of its own, in bytes: starting it takes as long as copying a hundredth of that.
const SHARE_BYTES: usize = 8 << 20;
/// More threads than this gain nothing on the buses that there are: each copies some 8 GB/s.
const THREADS_MAX: usize = 12;

/// Threads in long copies at the moment, callers included.
static BUSY: AtomicUsize = AtomicUsize::new(0);
static CORES: LazyLock<usize> = LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get));

/// How a copy of so many elements is divided among threads, in elements: at borders of pages, in about equal shares.
/// One share if there is no use in more, or if the calling thread holds guards, for which others would wait in vain.
pub(crate) fn shares(len: usize, element_bytes: usize, start: usize, page_len: usize) -> Vec<usize> {
    let useful = (len.saturating_mul(element_bytes) / SHARE_BYTES).min(THREADS_MAX);
    if useful < 2 || guards::held() {
        return vec![len];
    }
    let idle = CORES.saturating_sub(BUSY.load(Ordering::Relaxed)).max(1);
    divide(len, start, page_len, useful.min(idle))
}

fn divide(len: usize, start: usize, page_len: usize, count: usize) -> Vec<usize> {
    let first_page = start / page_len;
    let pages = (start + len).div_ceil(page_len) - first_page;
    let border = |share: usize| {
        let page = first_page + pages * share / count;
        (page * page_len).clamp(start, start + len) - start
    };
    (0..count).map(|share| border(share + 1) - border(share)).filter(|length| *length > 0).collect()
}

/// Runs the parts at once, the last one on the calling thread. The first error of the first part that has one.
pub(crate) fn run<P: Send>(
    parts: impl Iterator<Item = P>,
    copy: impl Fn(P) -> Result<()> + Sync,
) -> Result<()> {
    let mut parts: Vec<P> = parts.collect();
    let Some(own) = parts.pop() else { return Ok(()) };
    let count = parts.len() + 1;
    BUSY.fetch_add(count, Ordering::Relaxed);
    let outcome = thread::scope(|scope| {
        let copy = &copy;
        let mut refused = Vec::new();
        let mut threads = Vec::new();
        for part in parts {
            // The part is lost with a thread that cannot be started, hence the slot.
            let slot = std::sync::Arc::new(parking_lot::Mutex::new(Some(part)));
            let theirs = std::sync::Arc::clone(&slot);
            let started = thread::Builder::new().name("vmarray-copy".into()).spawn_scoped(scope, move || {
                let part = theirs.lock().take();
                part.map_or(Ok(()), copy)
            });
            match started {
                Ok(thread) => threads.push(thread),
                Err(_) => refused.extend(slot.lock().take()),
            }
        }
        let mut outcome = copy(own);
        for part in refused {
            outcome = copy(part).and(outcome);
        }
        for thread in threads.into_iter().rev() {
            outcome = thread.join().unwrap_or_else(|panic| resume_unwind(panic)).and(outcome);
        }
        outcome
    });
    BUSY.fetch_sub(count, Ordering::Relaxed);
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn shares_end_at_borders_of_pages_and_cover_everything() {
        for (len, start, page_len, count) in [(100, 0, 8, 3), (100, 5, 8, 4), (7, 3, 16, 4), (64, 64, 16, 4)]
        {
            let shares = divide(len, start, page_len, count);
            assert_eq!(shares.iter().sum::<usize>(), len);
            let mut at = start;
            for share in &shares[..shares.len() - 1] {
                at += share;
                assert_eq!(at % page_len, 0);
            }
        }
    }

    #[test]
    fn short_copies_stay_on_their_thread() {
        assert_eq!(shares(1000, 4, 0, 10), [1000]);
    }

    #[test]
    fn all_parts_run_and_the_first_error_is_told() {
        let ran = AtomicUsize::new(0);
        let outcome = run(0..5, |part| {
            ran.fetch_add(1, Ordering::Relaxed);
            if part >= 3 { Err(ErrorKind::NoMemory { bytes: part }.into()) } else { Ok(()) }
        });
        assert_eq!(ran.into_inner(), 5);
        assert_eq!(*outcome.unwrap_err().kind(), ErrorKind::NoMemory { bytes: 3 });
    }
}
