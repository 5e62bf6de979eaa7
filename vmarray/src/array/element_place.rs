//! Checked pointers to elements in frames of the page cache, and the accesses of threads through them.
//!
//! | type | names | made of |
//! |---|---|---|
//! | [`ElementPlace`] | an element | an index inside of the array |
//! | [`ElementRange`] | elements of one page | an [`ElementPlace`], or a part of a page |
//! | [`LatchedPage`] | a page that the thread holds exclusively | the hold |
//! | [`ElementPtr`] | an element in its frame, during an access | one of the above |
//!
//! Only this module creates values of these types, and each value is within one page. So an access needs no
//! bounds check. It is atomic, or the thread holds the element's sequence lock, or the thread holds the page.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use backend_api::{Device, racy};
use bytemuck::{bytes_of, bytes_of_mut, cast_slice, cast_slice_mut};

use crate::array::VirtualArray;
use crate::array::resident::Share;
use crate::base::element::{self, Element, ElementLayout};
use crate::base::error::Result;
use crate::base::memory::prefetch_write;
use crate::engine::page::state::DIRTY;
use crate::engine::page::{
    Entry, HitCounter, Holder, Lengths, Refusal, SeqLock, State, read_fenced, read_lock_free, write_fenced,
    write_lock_free,
};
use crate::engine::pager::{Fetch, Held};

// SAFETY: the pointer of an array leads into the page table of its pager; all accesses through it follow the
// page protocol, which supports many threads. Elements are `Send + Sync` plain data.
unsafe impl<T: Element, D: Device> Send for VirtualArray<T, D> {}
// SAFETY: as above.
unsafe impl<T: Element, D: Device> Sync for VirtualArray<T, D> {}

/// A checked reference to an element: the entry of its page, and its offset in the page.
pub(crate) struct ElementPlace<'a, T> {
    entry: &'a Entry,
    at: usize,
    of: PhantomData<&'a T>,
}

/// A checked reference to consecutive elements of one page.
pub(crate) struct ElementRange<'a, T> {
    entry: &'a Entry,
    at: usize,
    len: usize,
    of: PhantomData<&'a T>,
}

/// A page that the thread holds exclusively, while others may still access its elements without a lock.
pub(crate) struct LatchedPage<T> {
    held: Held,
    page_len: usize,
    of: PhantomData<fn(T)>,
}

/// A pointer to an element during an access, in a frame or in private memory.
pub(crate) struct ElementPtr<'a, T> {
    pointer: *mut T,
    of: PhantomData<&'a T>,
}

impl<T> Clone for ElementPlace<'_, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ElementPlace<'_, T> {}

impl<T> Clone for ElementPtr<'_, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ElementPtr<'_, T> {}

impl<T: Element, D: Device> VirtualArray<T, D> {
    #[inline(always)]
    pub(super) fn lengths(&self) -> &Lengths {
        // SAFETY: the entries belong to the pager's table, which lives as long as the array.
        unsafe { Lengths::of(self.entries) }
    }

    /// Returns the place of an element, if the page length is a power of two and hits are not counted.
    /// Returns `None` otherwise, and for an index out of bounds.
    #[inline(always)]
    pub(super) fn quick_place(&self, index: usize) -> Option<ElementPlace<'_, T>> {
        // SAFETY: the entries belong to the pager's table, which lives as long as the array.
        unsafe { Lengths::has_quick(self.entries, index) }.then(|| {
            // SAFETY: the index is inside, so the table has an entry for its page; it lives as long as the
            // pager.
            let entry = unsafe { self.entries.add(index >> self.shift).as_ref() };
            ElementPlace { entry, at: index & self.mask, of: PhantomData }
        })
    }

    /// Returns the place of the element at offset `at` of a page.
    ///
    /// # Panics
    /// If the offset is outside of the page.
    #[inline(always)]
    pub(crate) fn place(&self, page: u64, at: usize) -> ElementPlace<'_, T> {
        assert!(at < self.page_len, "the element's offset must be below the page length");
        ElementPlace { entry: self.pager.entry(page), at, of: PhantomData }
    }

    /// Returns the place of `len` elements of a page, from offset `at` on.
    ///
    /// # Panics
    /// If the elements are not inside of the page.
    pub(super) fn range_place(&self, page: u64, at: usize, len: usize) -> ElementRange<'_, T> {
        assert!(at <= self.page_len && len <= self.page_len - at, "the range must end within the page");
        ElementRange { entry: self.pager.entry(page), at, len, of: PhantomData }
    }

    /// Copies a huge element to uninitialised memory of the caller.
    pub(super) fn read_huge<'m>(&self, index: usize, to: &'m mut MaybeUninit<T>) -> Result<&'m mut T> {
        let (page, at) = self.checked(index)?;
        let place = self.place(page as u64, at);
        if !place.copy_lock_free(self.counter, to) {
            place.copy_shared(&self.share(page as u64)?, to);
        }
        // SAFETY: one of the two has written the element.
        Ok(unsafe { to.assume_init_mut() })
    }

    /// Copies a huge element over another one, in the caller's memory.
    pub(super) fn read_huge_over(&self, index: usize, to: &mut T) -> Result<()> {
        // SAFETY: `read_huge` writes an element, or nothing.
        let to = unsafe { &mut *std::ptr::from_mut(to).cast::<MaybeUninit<T>>() };
        self.read_huge(index, to).map(|_| ())
    }

    /// Runs a write on an element that other threads may access. The write is atomic or under the element's
    /// sequence lock. `wrote` says from the result if the write changed the element.
    #[inline]
    pub(super) fn write_shared<R>(
        &self,
        page: usize,
        at: usize,
        mut write: impl FnMut(ElementPtr<'_, T>) -> R,
        wrote: impl Fn(&R) -> bool,
    ) -> Result<R> {
        let place = self.place(page as u64, at);
        if let Some(result) = place.write_lock_free::<true, _>(self.counter, &mut write) {
            return Ok(result);
        }
        self.write_latched(page, at, write, wrote)
    }

    #[cold]
    fn write_latched<R>(
        &self,
        page: usize,
        at: usize,
        mut write: impl FnMut(ElementPtr<'_, T>) -> R,
        wrote: impl Fn(&R) -> bool,
    ) -> Result<R> {
        let place = self.place(page as u64, at);
        if let Some(result) = place.write_fenced(self.counter, &mut write) {
            return Ok(result);
        }
        /// Memory for an element, aligned as in a frame, because accesses to one-word elements are atomic.
        #[repr(C, align(16))]
        struct Aligned<T>(T);
        let mut element = Aligned(T::zeroed());
        let element = bytes_of_mut(&mut element.0);
        let changed = self.pager.change_part(page as u64, at * size_of::<T>(), element, |bytes| {
            let result = write(ElementPtr::in_bytes(bytes));
            let is_changed = wrote(&result);
            (result, is_changed)
        })?;
        if let Some(result) = changed {
            return Ok(result);
        }
        let mut result = None;
        self.latched(page, |held| {
            // Lock-free accesses may continue, because this write also is atomic or takes the sequence lock.
            let outcome = result.insert(write(held.element(at)));
            if !wrote(outcome) {
                return 0;
            }
            if self.recency && held.is_used_again() {
                place.entry().open_writes();
            }
            DIRTY
        })?;
        Ok(result.expect("the closure has run and has set the result"))
    }

    /// Runs a function while the calling thread holds the page exclusively, then adds the returned bits to
    /// the page's state.
    pub(crate) fn latched(&self, page: usize, run: impl FnOnce(&LatchedPage<T>) -> u64) -> Result<()> {
        let page = page as u64;
        let held = self.pager.latch(page, Holder::Pin, Fetch::Contents)?;
        let bits = run(&LatchedPage { held, page_len: self.page_len, of: PhantomData });
        if self.recency && ElementLayout::<T>::HUGE && held.is_used_again() {
            self.pager.entry(page).open_reads();
        }
        self.pager.release(page, Holder::Pin, bits);
        Ok(())
    }
}

impl<'a, T: Element> ElementPlace<'a, T> {
    pub(super) fn entry(self) -> &'a Entry {
        self.entry
    }

    /// Returns the place of this element and the `behind_first` elements before; `None` if in several pages.
    #[inline(always)]
    pub(super) fn with_those_before(self, behind_first: usize) -> Option<ElementRange<'a, T>> {
        let at = self.at.checked_sub(behind_first)?;
        Some(ElementRange { entry: self.entry, at, len: behind_first + 1, of: PhantomData })
    }

    /// Prefetches the element into the processor's cache, if the page is open to lock-free writes.
    #[inline(always)]
    pub(super) fn prefetch_write(self) {
        // The gate (frame address, or null) may change, but a prefetch from a wrong address does no harm.
        let guess = self.entry.write_gate().cast::<T>().wrapping_add(self.at);
        prefetch_write(guess);
        if !ElementLayout::<T>::SINGLE_WORD {
            prefetch_write(guess.wrapping_add(1).cast::<u8>().wrapping_sub(1));
        }
    }

    /// Reads the element if its page is open to lock-free reads.
    #[inline(always)]
    pub(super) fn read_lock_free<const COUNTS: bool>(self, counter: HitCounter) -> Option<T> {
        let Self { entry, at, .. } = self;
        if ElementLayout::<T>::SINGLE_WORD {
            // SAFETY: the frame holds a page of elements `T`, is aligned to more than a word, and `at` is
            // within this page. While the gate is open all access is atomic.
            read_lock_free::<COUNTS, _>(entry, counter, at, |frame| unsafe {
                Some(element::load(frame.cast::<T>().add(at)))
            })
        } else {
            // SAFETY: as above; the element's lock detects a racing writer. The thread may wait for the lock,
            // because its holders never wait.
            read_lock_free::<COUNTS, _>(entry, counter, at, |frame| unsafe {
                read_validated(entry, frame.cast::<T>().add(at))
            })
        }
    }

    /// Reads the element as [`read_lock_free`](Self::read_lock_free), also for an unregistered thread.
    #[cold]
    pub(super) fn read_fenced(self, counter: HitCounter) -> Option<T> {
        let Self { entry, at, .. } = self;
        // SAFETY: as in `read_lock_free`.
        read_fenced(entry, counter, |frame| unsafe {
            let element = frame.cast::<T>().add(at);
            if ElementLayout::<T>::SINGLE_WORD {
                Some(element::load(element))
            } else {
                read_validated(entry, element)
            }
        })
    }

    /// Reads the element while a thread holds its page shared.
    ///
    /// # Panics
    /// If `share` holds another page.
    #[inline(always)]
    pub(super) fn read_shared(self, share: &Share<'_>) -> T {
        let element = self.shared_address(share);
        // SAFETY: the page is shared, so it stays resident, and has no writers of huge elements. Words are
        // read atomically; the lock of other elements detects a racing writer.
        unsafe {
            if ElementLayout::<T>::SINGLE_WORD {
                element::load(element)
            } else if ElementLayout::<T>::HUGE {
                element.read()
            } else {
                SeqLock::of(element).read(|| element::read_racy(element))
            }
        }
    }

    #[inline(always)]
    fn shared_address(self, share: &Share<'_>) -> *const T {
        assert!(std::ptr::eq(share.entry(), self.entry), "the hold must be of the element's page");
        self.entry.address().cast::<T>().wrapping_add(self.at).cast_const()
    }

    /// Copies a huge element to the caller's memory, if its page is open to lock-free reads. True on success.
    fn copy_lock_free(self, counter: HitCounter, to: &mut MaybeUninit<T>) -> bool {
        let (Self { entry, at, .. }, to) = (self, to.as_mut_ptr());
        let read = |frame: *const u8| {
            // SAFETY: the frame holds a page of elements `T`, and `at` is within this page; `to` is borrowed
            // exclusively. The version detects a racing writer.
            entry.read_validated(|| unsafe { element::copy_racy(frame.cast::<T>().add(at), to) })
        };
        read_lock_free::<true, _>(entry, counter, at, read).is_some()
            || read_fenced(entry, counter, read).is_some()
    }

    /// Copies a huge element to the caller's memory, while a thread holds its page shared.
    fn copy_shared(self, share: &Share<'_>, to: &mut MaybeUninit<T>) {
        let element = self.shared_address(share);
        // SAFETY: the page is shared, so it stays resident without writers; both places hold a `T`.
        unsafe { element.copy_to_nonoverlapping(to.as_mut_ptr(), 1) };
    }

    /// Runs a write on the element, if its page is open to lock-free writes.
    #[inline(always)]
    pub(super) fn write_lock_free<const COUNTS: bool, R>(
        self,
        counter: HitCounter,
        write: impl FnOnce(ElementPtr<'_, T>) -> R,
    ) -> Option<R> {
        // SAFETY: `at` is within the page that the frame holds. The write gate allows writes that other
        // threads may see.
        let write = |frame| write(unsafe { ElementPtr::in_frame(frame, self.at) });
        write_lock_free::<COUNTS, _>(self.entry, counter, self.at, write)
    }

    /// Writes as [`write_lock_free`](Self::write_lock_free), also for an unregistered thread.
    pub(super) fn write_fenced<R>(
        self,
        counter: HitCounter,
        write: impl FnOnce(ElementPtr<'_, T>) -> R,
    ) -> Option<R> {
        // SAFETY: as in `write_lock_free`.
        let write = |frame| write(unsafe { ElementPtr::in_frame(frame, self.at) });
        write_fenced(self.entry, counter, write)
    }

    /// Takes the page exclusively, if it is resident and has no holders, and runs a write on the element.
    /// Lock-free accesses may continue. The caller releases the page; the result is its earlier state.
    pub(super) fn try_write_latched(self, write: impl FnOnce(ElementPtr<'_, T>)) -> Result<State, Refusal> {
        let before = self.entry.try_exclusive(Holder::Pin)?;
        // SAFETY: `at` is within the page, which stays in its frame, because this thread has just acquired
        // it.
        write(unsafe { ElementPtr::in_frame(self.entry.address(), self.at) });
        Ok(before)
    }
}

impl<T: Element> ElementRange<'_, T> {
    /// Copies the elements out, if their page is open to lock-free reads and no thread writes to the page
    /// meanwhile. Returns true on success.
    ///
    /// # Panics
    /// If `into` has another length than the range.
    #[inline(always)]
    pub(super) fn read_lock_free<const COUNTS: bool>(&self, counter: HitCounter, into: &mut [T]) -> bool {
        // SAFETY: the gate of the entry leads to the frame of its page.
        let reader = unsafe { self.reader(into) };
        read_lock_free::<COUNTS, _>(self.entry, counter, self.at, reader).is_some()
    }

    /// Reads as [`read_lock_free`](Self::read_lock_free), but also for a thread that is not registered yet.
    pub(super) fn read_fenced(&self, counter: HitCounter, into: &mut [T]) -> bool {
        // SAFETY: as in `read_lock_free`.
        read_fenced(self.entry, counter, unsafe { self.reader(into) }).is_some()
    }

    /// # Safety
    /// The caller passes to the result only a frame with the range's page, open to lock-free reads.
    #[inline(always)]
    unsafe fn reader(&self, into: &mut [T]) -> impl FnOnce(*const u8) -> Option<()> {
        assert!(into.len() == self.len, "the destination must have the length of the range");
        move |frame| {
            // Without assembly, a racy copy accesses single bytes. Rust forbids races of accesses of
            // different sizes, so the caller must lock the page.
            if !racy::IN_ASSEMBLY {
                return None;
            }
            // SAFETY: the caller guarantees the frame, and the range is within its page. Other threads access
            // it atomically while the gate is open; the result of a racing write is not used.
            self.entry.read_undisturbed(|| unsafe {
                racy::read(frame.cast::<T>().add(self.at).cast(), cast_slice_mut(into));
            })
        }
    }

    /// Writes the elements, if their page is open to lock-free writes. No other thread may access them before
    /// the return. Returns true on success.
    ///
    /// # Panics
    /// If `from` has another length than the range.
    #[inline(always)]
    pub(super) fn write_lock_free<const COUNTS: bool>(&self, counter: HitCounter, from: &[T]) -> bool {
        // SAFETY: the gate of the entry leads to the frame of its page.
        let writer = unsafe { self.writer(from) };
        write_lock_free::<COUNTS, _>(self.entry, counter, self.at, writer).is_some()
    }

    /// Writes as [`write_lock_free`](Self::write_lock_free), also for an unregistered thread.
    pub(super) fn write_fenced(&self, counter: HitCounter, from: &[T]) -> bool {
        // SAFETY: as in `write_lock_free`.
        write_fenced(self.entry, counter, unsafe { self.writer(from) }).is_some()
    }

    /// # Safety
    /// The caller passes only a frame to the result that has the page of the range. It is open to lock-free
    /// writes, or the thread holds the page exclusively.
    #[inline(always)]
    unsafe fn writer(&self, from: &[T]) -> impl FnOnce(*mut u8) {
        assert!(from.len() == self.len, "the source must have the length of the range");
        // SAFETY: the caller guarantees the frame, and the range is within its page. Other threads may write
        // other elements of the page; a race for these elements yields unspecified values.
        move |frame| unsafe { racy::write(frame.cast::<T>().add(self.at).cast(), cast_slice(from)) }
    }
}

impl<T: Element> LatchedPage<T> {
    pub(super) fn is_used_again(&self) -> bool {
        self.held.is_used_again()
    }

    /// Returns a pointer to the element at offset `at` of the page.
    ///
    /// # Panics
    /// If the offset is outside of the page.
    pub(super) fn element(&self, at: usize) -> ElementPtr<'_, T> {
        assert!(at < self.page_len, "the element's offset must be below the page length");
        // SAFETY: `at` is within the page, which this thread holds.
        unsafe { ElementPtr::in_frame(self.held.address, at) }
    }

    /// Writes the elements of a range of this page; no other thread may access them meanwhile.
    pub(super) fn write(&self, range: &ElementRange<'_, T>, from: &[T]) {
        assert!(range.entry.address() == self.held.address, "the elements must belong to the held page");
        // SAFETY: the frame has the page of the range, as was checked, and this thread holds the page.
        let writer = unsafe { range.writer(from) };
        writer(self.held.address);
    }
}

impl<'a, T: Element> ElementPtr<'a, T> {
    /// # Safety
    /// The frame keeps its page of elements `T` for the lifetime, and `at` is within the page. Other threads
    /// access the element by the page protocol.
    #[inline(always)]
    unsafe fn in_frame(frame: *mut u8, at: usize) -> Self {
        // SAFETY: guaranteed by the caller.
        Self { pointer: unsafe { frame.cast::<T>().add(at) }, of: PhantomData }
    }

    /// Returns a pointer to an element in private memory.
    ///
    /// # Panics
    /// If the bytes have another length, or are not aligned as in a frame.
    pub(super) fn in_bytes(bytes: &'a mut [u8]) -> Self {
        let pointer = bytes.as_mut_ptr().cast::<T>();
        assert!(
            bytes.len() == size_of::<T>() && pointer.is_aligned(),
            "the bytes must be one aligned element"
        );
        let is_word_aligned = pointer.addr().is_multiple_of(size_of::<T>());
        assert!(
            !ElementLayout::<T>::SINGLE_WORD || is_word_aligned,
            "one-word elements must be aligned to their size"
        );
        Self { pointer, of: PhantomData }
    }

    /// Writes the element; other threads may read and write it meanwhile. A huge element must be in a page
    /// that the thread holds exclusively, because readers check the version of the page.
    #[inline(always)]
    pub(super) fn store(self, value: &T) {
        // SAFETY: the pointer is valid. Words are aligned; readers of several words check the lock or the
        // version.
        unsafe {
            if ElementLayout::<T>::SINGLE_WORD {
                element::store(self.pointer, *value);
            } else if ElementLayout::<T>::HUGE {
                element::write_racy(self.pointer, value);
            } else {
                SeqLock::of(self.pointer).write(|| element::write_racy(self.pointer, value));
            }
        }
    }

    /// Replaces an element of one machine word.
    #[inline(always)]
    pub(super) fn swap(self, value: T) -> T {
        assert!(ElementLayout::<T>::SINGLE_WORD, "only one-word elements are atomic");
        // SAFETY: the element is a single aligned word, which all threads access atomically.
        unsafe { element::swap(self.pointer, value) }
    }

    /// Replaces an element of one machine word, if its bytes equal the bytes of `current`.
    #[inline(always)]
    pub(super) fn compare_exchange(self, current: T, new: T) -> std::result::Result<T, T> {
        assert!(ElementLayout::<T>::SINGLE_WORD, "only one-word elements are atomic");
        // SAFETY: as in `swap`.
        unsafe { element::compare_exchange(self.pointer, current, new) }
    }

    /// Copies an element of several words to `old`, and writes `new` if the element's bytes equal `current`,
    /// or if there is no `current`. Returns true if it wrote. For huge elements see [`store`](Self::store).
    #[inline]
    pub(super) fn exchange(self, current: Option<&T>, new: &T, old: &mut T) -> bool {
        let element = self.pointer;
        // SAFETY: the pointer is valid. No other thread writes to the element meanwhile, because this one has
        // its lock or its page; its readers detect the write.
        let mut exchange = || unsafe {
            element::copy_racy(element, old);
            let is_written = current.is_none_or(|current| bytes_of(current) == bytes_of(old));
            if is_written {
                element::write_racy(element, new);
            }
            is_written
        };
        match ElementLayout::<T>::HUGE {
            true => exchange(),
            false => SeqLock::of(element).lock_if(exchange, |is_written| *is_written),
        }
    }
}

/// Reads an element of several words. Returns `None` if it is huge and a writer was active.
///
/// # Safety
/// The element is in the frame of the entry's page, and reached under a hazard slot through an open gate.
#[inline(always)]
unsafe fn read_validated<T: Element>(entry: &Entry, element: *const T) -> Option<T> {
    // SAFETY: guaranteed by the caller; a racing write only invalidates the value.
    let read = || unsafe { element::read_racy(element) };
    if ElementLayout::<T>::HUGE { entry.read_validated(read) } else { Some(SeqLock::of(element).read(read)) }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use backend_host::HostDevice;

    use super::*;
    use crate::array::testing::host;

    /// Two pages of 4 elements.
    fn array<T: Element>() -> VirtualArray<T, HostDevice> {
        VirtualArray::<T>::builder(8).page_len(4).devices([Arc::new(host())]).build().unwrap()
    }

    fn panics<R>(run: impl FnOnce() -> R) -> bool {
        catch_unwind(AssertUnwindSafe(run)).is_err()
    }

    #[test]
    fn places_outside_of_a_page_are_refused() {
        let array = array::<u32>();
        array.set(3, 5).unwrap();
        assert!(array.quick_place(7).is_some() && array.quick_place(8).is_none());
        assert!(panics(|| array.place(0, 4).entry()));
        assert!(panics(|| array.range_place(0, 3, 2).len));
        assert!(panics(|| array.range_place(0, usize::MAX, 2).len));
        assert!(array.place(0, 3).with_those_before(4).is_none());
        let refused = array.place(1, 0).try_write_latched(|_| unreachable!("the page is absent"));
        assert!(matches!(refused, Err(Refusal::Absent)));
        let range = array.range_place(0, 1, 3);
        assert!(panics(|| range.write_fenced(array.counter, &[1; 2])));
        assert!(panics(|| range.read_fenced(array.counter, &mut [1; 4])));
        let other = array.share(1).unwrap();
        assert!(panics(|| array.place(0, 3).read_shared(&other)));
        drop(other);
        assert_eq!(array.place(0, 3).read_shared(&array.share(0).unwrap()), 5);
        array
            .latched(0, |page| {
                assert!(panics(|| page.element(4).swap(1)));
                assert!(panics(|| page.write(&array.range_place(1, 0, 1), &[1])));
                page.write(&array.range_place(0, 2, 2), &[8, 9]);
                DIRTY
            })
            .unwrap();
        assert_eq!([2, 3].map(|index| array.get(index).unwrap()), [8, 9]);
    }

    #[test]
    fn elements_outside_of_frames_are_exchanged() {
        let mut words = [1_u64, 2, 3];
        let bytes = cast_slice_mut::<_, u8>(&mut words);
        let word = ElementPtr::<u64>::in_bytes(&mut bytes[8..16]);
        assert_eq!(
            (word.swap(7), word.compare_exchange(7, 8), word.compare_exchange(7, 9)),
            (2, Ok(7), Err(8))
        );
        assert!(panics(|| ElementPtr::<u64>::in_bytes(&mut bytes[4..12]).swap(1)));
        assert!(panics(|| ElementPtr::<u64>::in_bytes(&mut bytes[..12]).swap(1)));
        // A word of bytes needs the alignment of a word.
        assert!(panics(|| ElementPtr::<[u8; 8]>::in_bytes(&mut bytes[4..12]).swap([1; 8])));
        let (triple, mut old) = (ElementPtr::<[u64; 3]>::in_bytes(bytes), [0; 3]);
        assert!(panics(|| triple.swap([1; 3])), "it has several words");
        assert!(!triple.exchange(Some(&[1; 3]), &[2; 3], &mut old));
        assert!(triple.exchange(Some(&[1, 8, 3]), &[4; 3], &mut old) && old == [1, 8, 3]);
        assert!(triple.exchange(None, &[5; 3], &mut old) && old == [4; 3]);
        triple.store(&[6; 3]);
        assert_eq!(words, [6; 3]);
    }

    #[test]
    fn elements_of_all_sizes_are_accessed_by_several_threads() {
        fn race<T: Element + PartialEq + std::fmt::Debug>(values: [T; 2]) {
            let array = array::<T>();
            std::thread::scope(|threads| {
                for value in values {
                    let array = &array;
                    threads.spawn(move || {
                        for index in if cfg!(miri) { &[3, 4][..] } else { &[0, 3, 4, 7] } {
                            let index = *index;
                            array.set(index, value).unwrap();
                            let seen = array.get(index).unwrap();
                            assert!(values.contains(&seen), "{seen:?}");
                            let seen = array.replace(index, value).unwrap();
                            assert!(values.contains(&seen), "{seen:?}");
                        }
                    });
                }
            });
            assert!([1, 2, 5, 6].iter().all(|&index| array.get(index).unwrap() == T::zeroed()));
        }
        race([1_u8, 2]);
        race([1_u64, u64::MAX]);
        race([[1_u8; 3], [2; 3]]);
        race([[1_u64; 5], [2; 5]]);
        race([[1_u64; 2100], [2; 2100]]);
    }
}
