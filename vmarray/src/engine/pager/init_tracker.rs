//! A set of pages that are known to have initialized home slots (in device memory), so that later kernels
//! need not check each page.
//!
//! Before a device works on a range, each home slot of the range must be initialized, if necessary with
//! zeroes. For 8 GiB, checking the states of all pages takes a tenth of the time in which a GPU reads the
//! pages. So the tracker remembers the checked pages. It forgets them when any page of the array loses the
//! contents of its slot.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

#[derive(Debug, Default)]
pub(super) struct InitTracker {
    /// Number of times that a page has lost the contents of its slot.
    losses: AtomicU64,
    known: Mutex<KnownPages>,
}

#[derive(Debug, Default)]
struct KnownPages {
    /// Value of `losses` before the check of the pages.
    losses: u64,
    pages: Range<u64>,
}

/// A check of pages in progress: the number of losses at its begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since(u64);

impl InitTracker {
    /// Begins a check that the home slots of `pages` (in device memory) are initialized. Returns a token for
    /// [`end`](Self::end), and the pages whose slots are not known to be initialized.
    pub fn begin(&self, pages: &Range<u64>) -> (Since, Range<u64>) {
        let losses = self.losses.load(Ordering::Acquire);
        let known = self.known.lock();
        let mut rest = pages.clone();
        if known.losses == losses && !known.pages.is_empty() {
            // Cut known pages off the start and end of `rest`. Known pages in its middle are checked again.
            if known.pages.contains(&rest.start) {
                rest.start = known.pages.end.min(rest.end);
            }
            if rest.start < rest.end && known.pages.contains(&(rest.end - 1)) {
                rest.end = known.pages.start.max(rest.start);
            }
        }
        (Since(losses), rest)
    }

    /// Ends a check. Since `begin`, the caller has initialized the home slots (in device memory) of all
    /// `pages`, or has found them initialized.
    pub fn end(&self, Since(losses): Since, pages: &Range<u64>) {
        let mut known = self.known.lock();
        let touch = known.pages.start <= pages.end && pages.start <= known.pages.end;
        if known.losses == losses && touch && !known.pages.is_empty() {
            known.pages = known.pages.start.min(pages.start)..known.pages.end.max(pages.end);
        } else if known.losses != losses || pages.end - pages.start > known.pages.end - known.pages.start {
            *known = KnownPages { losses, pages: pages.clone() };
        }
    }

    /// Records that the home slot of some page (in device memory) is no longer initialized. Call this after
    /// the change of the page's state, and before another thread may rely on the new state.
    pub fn lose(&self) {
        self.losses.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_pages_are_not_checked_again_until_a_loss() {
        let settled = InitTracker::default();
        let look = |pages: Range<u64>| {
            let (since, rest) = settled.begin(&pages);
            settled.end(since, &pages);
            rest
        };
        assert_eq!(look(10..20), 10..20);
        assert!(look(10..20).is_empty() && look(12..15).is_empty());
        assert_eq!(look(5..15), 5..10);
        assert_eq!(look(15..30), 20..30);
        assert!(look(5..30).is_empty());
        assert_eq!((look(30..33), look(3..5)), (30..33, 3..5), "they touch");
        assert!(look(3..33).is_empty());
        assert_eq!(look(0..40), 0..40, "around what is known");
        assert!(look(0..40).is_empty());
        assert_eq!(look(50..60), 50..60);
        assert!(look(0..40).is_empty(), "the longer one is kept");
        settled.lose();
        assert_eq!(look(3..4), 3..4);
        let (since, rest) = settled.begin(&(0..10));
        assert_eq!(rest, 0..10);
        settled.lose();
        settled.end(since, &(0..10));
        assert_eq!(look(0..10), 0..10, "what was lost meanwhile is looked at");
    }
}
