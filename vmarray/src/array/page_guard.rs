//! [`PageRef`] and [`PageMut`]: guards that pin a cached page and dereference to its elements.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::Ordering;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::base::scoped_threads::works_alone;
use crate::engine::page::Holder;
use crate::engine::page::state::{EXCLUSIVE, HOME, RESIDENT};
use crate::engine::pager::{Fetch, Stream};
use crate::setup::any::AnyDevice;

/// A guard with shared access to the elements of a page, which dereferences to a slice in the cache. In a
/// section, the slice has only the elements of the section.
///
/// While the guard lives, the page stays in RAM. Other threads can read the page, but wait before they write
/// to it. The guard belongs to its thread. If the program leaks the guard, the page stays in RAM and
/// unwritable until the array is dropped.
///
/// ```
/// use vmarray::prelude::*;
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

/// A guard with exclusive access to the elements of a page, as a mutable slice in the cache.
///
/// While the guard lives, other threads wait before they access the page. The array writes the page back
/// later if the program borrowed the slice mutably. The guard belongs to its thread. If the program leaks the
/// guard, the page stays locked until the array is dropped.
///
/// ```
/// use vmarray::prelude::*;
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

/// Returns true if the calling thread must not wait for threads that use arrays, because these threads may
/// wait for the calling thread. The result is true while the calling thread holds page guards, cursors or
/// iterators, or runs a progress function for the library.
///
/// Operations that normally use helper threads then run on the calling thread alone. Call this function
/// before you start threads and wait for them.
///
/// ```
/// use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<u32>::new(100)?;
/// assert!(!vmarray::access::must_work_alone());
/// let page = array.page(0)?;
/// assert!(vmarray::access::must_work_alone());
/// # drop(page);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use]
pub fn must_work_alone() -> bool {
    works_alone()
}

/// The eviction priority of a page after a guard's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// The page stays in the cache, as a used page.
    Stay,
    /// If the page was new and other threads have not used it, its frame is evicted next, while data that a
    /// long scan wrote are still in the processor's caches. Fetched pages are evicted in frame order:
    /// neighbouring frames are contiguous, so other pages are fetched into them by fewer copies.
    Pass,
}

/// The part of a page within a range of the array.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    /// The page's index in the array.
    pub(crate) array_page: usize,
    /// The page's index among the pages of the range.
    page: usize,
    /// The offset in the page of its first element in the range.
    first: usize,
    /// The elements, counted from the start of the range.
    range: Range<usize>,
}

/// The part of a page that a guard holds. Its drop releases the page.
pub(crate) struct HeldPart<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    cut: Cut,
    /// Address of the first element of the part.
    address: *mut T,
    exclusive: bool,
    /// True if the page had no contents before a long scan, and is evicted first.
    passes: bool,
    /// Guards must stay on their thread, because each thread has a list of its guards.
    not_send: PhantomData<*mut T>,
}

impl<'a, T: Element, D: Device> HeldPart<'a, T, D> {
    /// Returns the part of a page that the calling thread holds as a guard already, with shut gates, and
    /// counted in its channel. The drop of the part releases the page.
    ///
    /// # Panics
    /// If the page's state counts no such guard, or the part is outside of the page.
    pub(crate) fn of_held(array: &'a VirtualArray<T, D>, cut: Cut, exclusive: bool) -> Self {
        let entry = array.pager().entry(cut.array_page as u64);
        let state = entry.state(Ordering::Relaxed);
        let is_held = state.has(RESIDENT) && state.guards() > 0 && state.any(EXCLUSIVE) == exclusive;
        assert!(is_held, "the page's state must count the guard, since it was acquired before");
        let (len, page_len) = (cut.range.len(), array.page_len());
        assert!(len <= page_len && cut.first <= page_len - len, "the guarded part must end within the page");
        array.pager().identity().hold(cut.array_page as u64);
        // SAFETY: the page is held, so it has a frame. The part begins inside of it, as was checked.
        let address = unsafe { entry.address().cast::<T>().add(cut.first) };
        Self { array, cut, address, exclusive, passes: false, not_send: PhantomData }
    }

    /// Takes a page as a guard, and returns its part in the range.
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
        let mut part = Self::of_held(array, cut, exclusive);
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
    /// Returns the range of element indices that a page contains.
    #[must_use]
    pub fn page_range(&self, page: usize) -> Range<usize> {
        let start = page.saturating_mul(self.page_len()).min(self.len());
        start..start.saturating_add(self.page_len()).min(self.len())
    }

    /// Returns the index of the page that contains an element.
    #[must_use]
    pub fn page_of(&self, index: usize) -> usize {
        self.locate(index).0
    }

    /// Returns the part of a page within a range, by the page's index among the pages of the range.
    pub(crate) fn cut(&self, of: &Range<usize>, number: usize) -> Result<Cut> {
        let pages = self.touched_pages(of);
        let count = (pages.end - pages.start) as usize;
        if number >= count {
            return Err(ErrorKind::PageOutside { page: number, pages: count }.into());
        }
        let page = pages.start as usize + number;
        let all = self.page_range(page);
        let (start, end) = (of.start.max(all.start), of.end.min(all.end));
        assert!(start <= end, "elements {of:?} of the page are outside of the array");
        Ok(Cut {
            array_page: page,
            page: number,
            first: start - all.start,
            range: start - of.start..end - of.start,
        })
    }

    /// Takes a shared guard of a page's part within a range.
    pub(crate) fn visit(&self, cut: Cut, visit: Visit) -> Result<PageRef<'_, T, D>> {
        HeldPart::take(self, cut, visit, false).map(PageRef::of)
    }

    /// Takes an exclusive guard of a page's part within a range.
    pub(crate) fn visit_mut(&self, cut: Cut, visit: Visit) -> Result<PageMut<'_, T, D>> {
        HeldPart::take(self, cut, visit, true).map(PageMut::of)
    }

    /// Returns the eviction priority for a scan of `pages` pages: new ones leave first beyond the cache.
    pub(crate) fn scan(&self, pages: usize) -> Visit {
        if pages as u64 > self.pager().frames() { Visit::Pass } else { Visit::Stay }
    }
}

macro_rules! common {
    ($Guard:ident) => {
        impl<T: Element, D: Device> $Guard<'_, T, D> {
            /// Returns the index of the guard's page among the pages of the view.
            #[must_use]
            pub fn page(&self) -> usize {
                self.place.cut.page
            }

            /// Returns the indices of the guard's elements in its view.
            #[must_use]
            pub fn range(&self) -> Range<usize> {
                self.place.cut.range.clone()
            }
        }

        impl<T: Element, D: Device> Deref for $Guard<'_, T, D> {
            type Target = [T];

            fn deref(&self) -> &[T] {
                // SAFETY: the frame is aligned for `T` and holds a whole page of initialised, plain elements;
                // `of_held` has checked that the part is inside. The guard keeps the page resident, and no
                // thread writes to it: shared guards exclude lock-free and latched writers, exclusive ones
                // all threads.
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
    pub(crate) fn of(place: HeldPart<'a, T, D>) -> Self {
        Self { place }
    }

    /// Returns the address of the first element, for a caller that keeps the guard as long as the address.
    pub(crate) fn address(&self) -> *const T {
        self.place.address
    }
}

impl<'a, T: Element, D: Device> PageMut<'a, T, D> {
    pub(crate) fn of(place: HeldPart<'a, T, D>) -> Self {
        Self { place, written: false }
    }

    /// Returns the address as for [`PageRef`]. For writes, they must have been borrowed mutably once.
    pub(crate) fn address(&self) -> *mut T {
        self.place.address
    }

    /// Returns true if the program has borrowed the elements mutably.
    pub(crate) fn is_written(&self) -> bool {
        self.written
    }

    /// Marks the page as dirty, so that threads that flush or search see it.
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use super::*;
    use crate::array::testing::{host, one_channel};

    #[test]
    fn guards_need_a_held_page_and_a_part_inside_of_it() {
        let device = Arc::new(host());
        let array = one_channel::<u32, _>(&device, (4, 8), 2).build().unwrap();
        let longer = one_channel::<u32, _>(&device, (2, 16), 2).build().unwrap();
        let cut = |of: &VirtualArray<u32, _>, range| of.cut(&range, 0).unwrap();
        let is_refused = |cut: Cut, exclusive| {
            let take = || std::mem::forget(HeldPart::of_held(&array, cut, exclusive));
            catch_unwind(AssertUnwindSafe(take)).is_err()
        };
        assert!(is_refused(cut(&array, 0..8), false), "the page is absent");
        array.set(5, 7).unwrap();
        assert!(is_refused(cut(&array, 0..8), true), "no thread holds the page");
        let page = array.visit(cut(&array, 0..8), Visit::Stay).unwrap();
        assert!(is_refused(cut(&array, 0..8), true), "the hold is shared");
        assert!(is_refused(cut(&longer, 8..16), false), "the page has 8 elements");
        assert_eq!(page[5], 7);
        drop(page);
        let mut page = array.visit_mut(cut(&array, 4..12), Visit::Stay).unwrap();
        page[1] = 8;
        assert_eq!((page[..].to_vec(), page.range()), (vec![0, 8, 0, 0], 0..4));
        drop(page);
        assert_eq!(array.get(5).unwrap(), 8);
    }
}
