//! Single accesses that do not wait: to elements of pages that are resident, or not at all.

use backend_api::Device;

use crate::array::{VirtualArray, read_validated};
use crate::base::element::{self, Element, Layout};
use crate::engine::guards;
use crate::engine::page::state::{AHEAD, DIRTY};
use crate::engine::page::{
    Holder, Refusal, State, count_hit, read_fenced, read_lock_free, write_fenced, write_lock_free,
};
use crate::engine::pager::Pager;

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Reads an element of a page that is resident and not held exclusively, and counts a hit.
    #[inline]
    pub(crate) fn try_read(&self, page: u64, at: usize) -> Result<T, Refusal> {
        let entry = self.pager().entry(page);
        let found = read_lock_free(entry, self.pager().counter(), at, |frame| {
            // SAFETY: the frame is one of pages of `T`, and `at` is within its page. Single words are read
            // atomically while the gate is open; what a racing writer made of others is found out by the
            // version.
            unsafe {
                let element = frame.cast::<T>().add(at);
                if Layout::<T>::SINGLE_WORD {
                    Some(element::load(element))
                } else {
                    read_validated(entry, element)
                }
            }
        });
        found.map_or_else(|| self.try_read_slowly(page, at), Ok)
    }

    #[cold]
    #[inline(never)]
    fn try_read_slowly(&self, page: u64, at: usize) -> Result<T, Refusal> {
        let pager = self.pager();
        let entry = pager.entry(page);
        // SAFETY: as in `try_read`.
        let found = read_fenced(entry, pager.counter(), |frame| unsafe {
            let element = frame.cast::<T>().add(at);
            if Layout::<T>::SINGLE_WORD {
                Some(element::load(element))
            } else {
                read_validated(entry, element)
            }
        });
        if let Some(value) = found {
            return Ok(value);
        }
        let value = self.try_read_shared(page, at, true)?;
        count_hit(pager.counter());
        Ok(value)
    }

    /// As [`try_read`](Self::try_read), through a share of the page; opens it to lock-free reads if so
    /// wanted, and counts nothing.
    pub(crate) fn try_read_shared(&self, page: u64, at: usize, open: bool) -> Result<T, Refusal> {
        let pager = self.pager();
        let entry = pager.entry(page);
        let before = entry.try_share(Holder::Pin, guards::held())?;
        let share = self.shared(page, before, if open { Then::Open } else { Then::Nothing });
        // SAFETY: the page is shared, so it stays resident; lock-free writers exist for single words only,
        // which they store atomically.
        Ok(unsafe { element::read_shared(share.address().cast::<T>().add(at)) })
    }

    /// Sees to the end of a [share](crate::engine::page::Entry::try_share), as a pin, of a page whose state
    /// before is given.
    pub(crate) fn shared(&self, page: u64, before: State, then: Then) -> Shared<'_> {
        Shared { pager: self.pager(), page, before, then }
    }

    /// Writes an element of a page that is resident and that nobody holds; opens the page to lock-free writes
    /// if so wanted.
    #[inline]
    pub(crate) fn try_write(&self, page: u64, at: usize, value: &T, open: bool) -> Result<(), Refusal> {
        let pager = self.pager();
        let entry = pager.entry(page);
        if Layout::<T>::SINGLE_WORD {
            // SAFETY: the frame is one of pages of `T`, `at` is within its page, and access is atomic while
            // the gate is open.
            let access = |frame: *mut u8| unsafe { element::store(frame.cast::<T>().add(at), *value) };
            if write_lock_free(entry, pager.counter(), at, access).is_some()
                || write_fenced(entry, pager.counter(), access).is_some()
            {
                return Ok(());
            }
        }
        let before = entry.try_exclusive(Holder::Pin)?;
        // SAFETY: the page is held exclusively. Lock-free readers of several words find out by the version;
        // single words are written atomically.
        unsafe {
            let element = entry.address().cast::<T>().add(at);
            if Layout::<T>::SINGLE_WORD {
                element::store(element, *value);
            } else {
                element::write_racy(element, value);
            }
        }
        if !pager.recency() {
            pager.channel(page).touched(page);
        } else if Layout::<T>::SINGLE_WORD && open && !before.any(AHEAD) {
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

/// A share of a page, as a pin.
pub(crate) struct Shared<'a> {
    pager: &'a Pager,
    page: u64,
    /// The state before.
    before: State,
    then: Then,
}

/// What comes of a page after it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Nothing,
    /// It is opened to lock-free reads.
    Open,
    /// It was loaded for this, and goes first unless it is used again.
    Leave,
}

impl Shared<'_> {
    /// The first byte of the frame.
    pub(crate) fn address(&self) -> *const u8 {
        self.pager.entry(self.page).address()
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        let Self { pager, page, before, then } = *self;
        if !pager.recency() {
            pager.channel(page).touched(page);
        } else if then == Then::Open && !before.any(AHEAD) {
            pager.entry(page).open_reads();
        }
        if then == Then::Leave {
            pager.unshare_first(page);
        } else {
            pager.unshare(page, Holder::Pin);
        }
        if before.any(AHEAD) {
            pager.advance(page);
        }
    }
}
