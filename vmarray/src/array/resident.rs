//! `try_read` and `try_write`: non-blocking accesses to single elements, only in cached pages.

use backend_api::Device;

use crate::array::VirtualArray;
use crate::base::element::{Element, ElementLayout};
use crate::base::error::Error;
use crate::engine::guards;
use crate::engine::page::state::{AHEAD, DIRTY};
use crate::engine::page::{Entry, Holder, Refusal, State, count_hit};
use crate::engine::pager::Pager;

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Reads an element if its page is resident and no thread holds it exclusively, and counts a hit.
    #[inline]
    pub(crate) fn try_read(&self, page: u64, at: usize) -> Result<T, Refusal> {
        let found = self.place(page, at).read_lock_free::<true>(self.pager().counter());
        found.map_or_else(|| self.try_read_slowly(page, at), Ok)
    }

    #[cold]
    #[inline(never)]
    fn try_read_slowly(&self, page: u64, at: usize) -> Result<T, Refusal> {
        let place = self.place(page, at);
        if let Some(value) = place.read_fenced(self.pager().counter()) {
            return Ok(value);
        }
        let before = place.entry().try_share(Holder::Pin, guards::held())?;
        count_hit(self.pager().counter());
        Ok(self.read_in(&self.shared(page, before, true), at))
    }

    /// Returns a guard for a shared hold (a pin) that the caller has got from
    /// [`try_share`](crate::engine::page::Entry::try_share), which returned `before`. If `opens`, opens the
    /// page to lock-free reads.
    pub(crate) fn shared(&self, page: u64, before: State, opens: bool) -> Share<'_> {
        let pager = self.pager();
        let was_ahead = before.any(AHEAD);
        if !pager.recency() {
            pager.channel(page).touched(page);
        }
        Share { pager, page, opens: opens && pager.recency() && !was_ahead, was_ahead }
    }

    /// Holds a page shared for one access. If the page was used before, opens it to lock-free reads.
    pub(crate) fn share(&self, page: u64) -> Result<Share<'_>, Error> {
        let pager = self.pager();
        let held = pager.share(page, Holder::Pin)?;
        Ok(Share { pager, page, opens: pager.recency() && held.is_used_again(), was_ahead: false })
    }

    /// Reads an element of a page that the thread holds shared.
    #[inline(always)]
    pub(crate) fn read_in(&self, share: &Share<'_>, at: usize) -> T {
        self.place(share.page, at).read_shared(share)
    }

    /// Writes an element if its page is resident and has no holders, and opens the page to lock-free writes.
    #[inline]
    pub(crate) fn try_write(&self, page: u64, at: usize, value: &T) -> Result<(), Refusal> {
        let pager = self.pager();
        let place = self.place(page, at);
        let entry = place.entry();
        if !ElementLayout::<T>::HUGE {
            let counter = pager.counter();
            if place.write_lock_free::<true, _>(counter, |element| element.store(value)).is_some()
                || place.write_fenced(counter, |element| element.store(value)).is_some()
            {
                return Ok(());
            }
        }
        // Lock-free accesses may continue, because this store is atomic or takes the element's sequence lock,
        // as theirs do. Readers of huge elements check the page's version.
        let before = place.try_write_latched(|element| element.store(value))?;
        if !pager.recency() {
            pager.channel(page).touched(page);
        } else if !ElementLayout::<T>::HUGE && !before.any(AHEAD) {
            entry.open_writes();
        }
        pager.release(page, Holder::Pin, DIRTY);
        count_hit(pager.counter());
        if before.any(AHEAD) {
            pager.advance(page);
        }
        Ok(())
    }
}

/// A shared hold (a pin) of a page, which its drop ends.
pub(crate) struct Share<'a> {
    pager: &'a Pager,
    page: u64,
    /// True if the drop opens the page to lock-free reads.
    opens: bool,
    /// True for the first use of a prefetched page, which the drop reports to read-ahead.
    was_ahead: bool,
}

impl Share<'_> {
    pub(super) fn entry(&self) -> &Entry {
        self.pager.entry(self.page)
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let Self { pager, page, opens, was_ahead } = *self;
        if opens {
            pager.entry(page).open_reads();
        }
        pager.unshare(page, Holder::Pin);
        if was_ahead {
            pager.advance(page);
        }
    }
}
