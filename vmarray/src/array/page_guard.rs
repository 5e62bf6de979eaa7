//! Pages in place: guards that lend a page's frame as a slice.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::Ordering;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{Result, index_outside};
use crate::engine::page::Holder;
use crate::engine::page::state::HOME;
use crate::engine::pager::{Fetch, Stream};
use crate::setup::any::AnyDevice;

/// A page's elements, shared: a slice in the page's frame; of a section, those that are in it.
///
/// While it lives the page stays in RAM, others can read it, and threads that want to write to it wait. It
/// belongs to the thread that took it. Leaking it keeps the page in RAM, unwritable, as long as the array
/// lives.
///
/// ```
/// # use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<u32>::new(100)?;
/// array.set(3, 7)?;
/// let page = array.page(0)?;
/// assert_eq!(page[3], 7);
/// assert_eq!((page.page(), page.range()), (0, 0..100));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct PageRef<'a, T: Element, D: Device = AnyDevice> {
    place: HeldPart<'a, T, D>,
}

/// A page's elements, exclusively: a mutable slice in the page's frame.
///
/// While it lives, all other threads that want the page wait. What was lent mutably is written back later. It
/// belongs to the thread that took it. Leaking it locks the page as long as the array lives.
///
/// ```
/// # use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<u32>::new(100)?;
/// let mut page = array.page_mut(array.page_of(70))?;
/// let first = page.range().start;
/// page[70 - first] = 3;
/// drop(page);
/// assert_eq!(array.get(70)?, 3);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct PageMut<'a, T: Element, D: Device = AnyDevice> {
    place: HeldPart<'a, T, D>,
    written: bool,
}

/// What becomes of a page after a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// It is kept as one that was used.
    Stay,
    /// If it is new, and others do not use it too, its frame is the next to go: so what a long scan writes
    /// stays in the processor's caches until it is sent home. Pages that were fetched go in the order of
    /// frames: those of neighbours lie side by side, and to fetch others into these takes fewer copies.
    Pass,
}

/// The part of a page that a range of the array has in it.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    /// The page.
    pub(crate) array_page: usize,
    /// Its number among those of the range.
    page: usize,
    /// The first of its elements that is in the range.
    first: usize,
    /// The elements, counted from the start of the range.
    range: Range<usize>,
}

/// The part of a page that is held, and its end.
pub(crate) struct HeldPart<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    cut: Cut,
    /// Of the first element of the part.
    address: *mut T,
    exclusive: bool,
    /// Whether the page had no contents before a long scan writes to it, which leaves it behind.
    passes: bool,
    /// Guards stay with their thread: the list of what a thread holds depends on it.
    not_send: PhantomData<*mut T>,
}

impl<'a, T: Element, D: Device> HeldPart<'a, T, D> {
    /// Of a page that is held for it already, as a guard, quiet, and counted in its channel.
    pub(crate) fn of_held(
        array: &'a VirtualArray<T, D>,
        cut: Cut,
        address: *mut u8,
        exclusive: bool,
    ) -> Self {
        array.pager().identity().hold(cut.array_page as u64);
        // SAFETY: the page is held, and the part begins inside of it.
        let address = unsafe { address.cast::<T>().add(cut.first) };
        Self { array, cut, address, exclusive, passes: false, not_send: PhantomData }
    }

    /// Takes a page as a guard.
    fn take(array: &'a VirtualArray<T, D>, cut: Cut, visit: Visit, exclusive: bool) -> Result<Self> {
        let (pager, page) = (array.pager(), cut.array_page as u64);
        let channel = pager.channel(page);
        channel.admit_guard()?;
        let held = if exclusive {
            pager.take(page, Holder::Guard, Fetch::Contents, Stream::Follow)
        } else {
            pager.share_steady(page, Holder::Guard, Stream::Follow)
        };
        let held = held.inspect_err(|_| channel.dismiss_guard())?;
        let has_home = pager.entry(page).state(Ordering::Relaxed).any(HOME);
        let passes = visit == Visit::Pass && !held.is_used_again() && !has_home;
        let mut part = Self::of_held(array, cut, held.address, exclusive);
        part.passes = passes;
        Ok(part)
    }

    fn page(&self) -> u64 {
        self.cut.array_page as u64
    }
}

impl<T: Element, D: Device> Drop for HeldPart<'_, T, D> {
    fn drop(&mut self) {
        let (pager, page) = (self.array.pager(), self.page());
        if self.exclusive {
            pager.release(page, Holder::Guard, 0);
        } else {
            pager.unshare(page, Holder::Guard);
        }
        if self.passes {
            pager.channel(page).pass(pager.table(), page);
        }
        pager.identity().let_go(page);
        pager.channel(page).dismiss_guard();
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// The indices of a page's elements.
    #[must_use]
    pub fn page_range(&self, page: usize) -> Range<usize> {
        let start = page.saturating_mul(self.page_len()).min(self.len());
        start..start.saturating_add(self.page_len()).min(self.len())
    }

    /// The page of an element.
    #[must_use]
    pub fn page_of(&self, index: usize) -> usize {
        self.locate(index).0
    }

    /// The part of a page that a range has in it, by the page's number among those of the range.
    pub(crate) fn cut(&self, of: &Range<usize>, number: usize) -> Result<Cut> {
        let pages = self.touched_pages(of);
        let count = (pages.end - pages.start) as usize;
        if number >= count {
            return Err(index_outside(number, count));
        }
        let page = pages.start as usize + number;
        let all = self.page_range(page);
        let (start, end) = (of.start.max(all.start), of.end.min(all.end));
        assert!(start <= end, "{of:?} is outside of the array");
        Ok(Cut {
            array_page: page,
            page: number,
            first: start - all.start,
            range: start - of.start..end - of.start,
        })
    }

    /// Lends what a range has of a page, shared.
    pub(crate) fn visit(&self, cut: Cut, visit: Visit) -> Result<PageRef<'_, T, D>> {
        HeldPart::take(self, cut, visit, false).map(PageRef::of)
    }

    /// Lends what a range has of a page, exclusively.
    pub(crate) fn visit_mut(&self, cut: Cut, visit: Visit) -> Result<PageMut<'_, T, D>> {
        HeldPart::take(self, cut, visit, true).map(PageMut::of)
    }

    /// How a scan of so many pages visits them: if the cache has no room for all, new ones give way to the
    /// next.
    pub(crate) fn scan(&self, pages: usize) -> Visit {
        if pages as u64 > self.pager().frames() { Visit::Pass } else { Visit::Stay }
    }
}

macro_rules! common {
    ($Guard:ident) => {
        impl<T: Element, D: Device> $Guard<'_, T, D> {
            /// The number of the page among those of the view.
            #[must_use]
            pub fn page(&self) -> usize {
                self.place.cut.page
            }

            /// The indices of its elements in the view that it was lent by.
            #[must_use]
            pub fn range(&self) -> Range<usize> {
                self.place.cut.range.clone()
            }
        }

        impl<T: Element, D: Device> Deref for $Guard<'_, T, D> {
            type Target = [T];

            fn deref(&self) -> &[T] {
                // SAFETY: the frame is aligned for `T` and holds a whole page of initialised, plain elements.
                // The guard keeps it resident, and nobody writes to it: shared guards have lock-free and
                // latched writers shut out, exclusive ones everybody.
                unsafe { std::slice::from_raw_parts(self.place.address, self.place.cut.range.len()) }
            }
        }

        impl<T: Element + fmt::Debug, D: Device> fmt::Debug for $Guard<'_, T, D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&**self, f)
            }
        }
    };
}

common!(PageRef);
common!(PageMut);

impl<'a, T: Element, D: Device> PageRef<'a, T, D> {
    /// Of a part that is shared.
    pub(crate) fn of(place: HeldPart<'a, T, D>) -> Self {
        Self { place }
    }

    /// Where the elements are, for threads that keep the guard beside the address.
    pub(crate) fn address(&self) -> *const T {
        self.place.address
    }
}

impl<'a, T: Element, D: Device> PageMut<'a, T, D> {
    /// Of a part that is held exclusively.
    pub(crate) fn of(place: HeldPart<'a, T, D>) -> Self {
        Self { place, written: false }
    }

    /// As for [`PageRef`]. The thread that writes there has borrowed the elements mutably once.
    pub(crate) fn address(&self) -> *mut T {
        self.place.address
    }

    /// Whether it was lent for writing.
    pub(crate) fn is_written(&self) -> bool {
        self.written
    }

    /// Declares the page dirty, so that the thread that flushes or searches meanwhile finds that it cannot be
    /// had.
    fn mark_dirty(&mut self) {
        if !self.written {
            self.written = true;
            self.place.array.pager().entry(self.place.page()).mark_dirty();
        }
    }
}

impl<T: Element, D: Device> DerefMut for PageMut<'_, T, D> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.mark_dirty();
        // SAFETY: as in `deref`; the guard is exclusive, and so is the borrow of the guard.
        unsafe { std::slice::from_raw_parts_mut(self.place.address, self.place.cut.range.len()) }
    }
}
