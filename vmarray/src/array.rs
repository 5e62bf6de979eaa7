//! [`VirtualArray`], and its operations on single elements: get, set, update, swap, compare-exchange.

pub(crate) mod asynchronous;
#[forbid(unsafe_code)]
#[cfg(feature = "host")]
pub(crate) mod backed;
pub(crate) mod builder;
#[forbid(unsafe_code)]
pub(crate) mod byte_stream;
#[forbid(unsafe_code)]
mod check;
pub(crate) mod cursor;
mod element_place;
pub(crate) mod empty_like;
#[forbid(unsafe_code)]
pub(crate) mod export;
#[forbid(unsafe_code)]
pub(crate) mod footprint;
#[forbid(unsafe_code)]
pub(crate) mod growth;
#[forbid(unsafe_code)]
pub(crate) mod homes;
#[forbid(unsafe_code)]
pub(crate) mod iter;
#[forbid(unsafe_code)]
pub(crate) mod large_element;
#[forbid(unsafe_code)]
pub(crate) mod map;
pub(crate) mod page_guard;
#[cfg(feature = "rayon")]
#[forbid(unsafe_code)]
pub(crate) mod page_loop;
#[cfg(feature = "rayon")]
#[forbid(unsafe_code)]
pub(crate) mod parallel;
#[forbid(unsafe_code)]
pub(crate) mod publishing;
#[forbid(unsafe_code)]
pub(crate) mod range;
#[forbid(unsafe_code)]
pub(crate) mod registered;
#[forbid(unsafe_code)]
pub(crate) mod resident;
#[forbid(unsafe_code)]
pub(crate) mod settings;
#[forbid(unsafe_code)]
pub(crate) mod short_range;
#[cfg(feature = "host")]
#[forbid(unsafe_code)]
pub(crate) mod stored;
#[cfg(test)]
#[forbid(unsafe_code)]
pub(crate) mod testing;
#[forbid(unsafe_code)]
pub(crate) mod watch;

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use backend_api::Device;
use bytemuck::{bytes_of, bytes_of_mut};

#[cfg(doc)]
use crate::array::builder::Builder;
use crate::array::settings::Recipe;
use crate::base::element::{Element, ElementLayout};
use crate::base::error::{Result, index_outside};
use crate::base::stats::Stats;
use crate::engine::page::state::{DIRTY, RESIDENT};
use crate::engine::page::{Entry, HitCounter};
use crate::engine::pager::Pager;
use crate::setup::any::AnyDevice;

/// Elements longer than this are built in the caller's memory, as moving one takes as long as reading it.
const LONG_BYTES: usize = 256;

/// An array of plain data that may be far larger than RAM. Any number of threads may access it.
///
/// The pages of the array are striped over the memory of one or several devices. A cache in page-locked RAM
/// holds recently used pages, each in a *frame*. A new array reads as zeroes.
///
/// [`new`](Self::new), a [`builder`](Self::builder), or `try_from` on a vector or slice creates one.
///
/// # Access
///
/// Most operations are methods of traits that all [views](crate::views) implement; `use vmarray::prelude::*`
/// imports them.
///
/// | subject | operations |
/// |---|---|
/// | one element | [`get`](Self::get), [`set`](Self::set), [`replace`](Self::replace), [`update`](Self::update), [`compare_exchange`](Self::compare_exchange) |
/// | one element, past the cache | [`get_uncached`](crate::views::PagedView::get_uncached), [`set_uncached`](crate::views::PagedViewMut::set_uncached) |
/// | ranges | [`read`](crate::views::View::read), [`write`](crate::views::ViewMut::write), [`to_vec`](crate::views::View::to_vec), [`fill`](crate::views::ViewMut::fill), [`copy_from`](crate::views::ViewMut::copy_from) |
/// | a range as a slice | [`map`](crate::views::PagedView::map), within a closure |
/// | pages in place | [`page`](crate::views::PagedView::page), [`page_mut`](crate::views::PagedViewMut::page_mut), [`pages`](crate::views::PagedView::pages), [`cursor`](crate::views::PagedView::cursor), [`iter`](crate::views::PagedView::iter) |
/// | lists of indices | [`gather`](crate::views::View::gather), [`scatter`](crate::views::ViewMut::scatter), [`gather_iter`](crate::views::View::gather_iter), [`scatter_iter`](crate::views::ViewMut::scatter_iter) |
/// | on the devices, by value | [`find`](crate::views::View::find), [`position`](crate::views::View::position), [`count`](crate::views::View::count) |
/// | on the devices, by [expressions](crate::expr) | [`find_where`](crate::views::Query::find_where), [`count_where`](crate::views::Query::count_where), [`sum`](crate::views::Query::sum), [`min_max`](crate::views::Query::min_max), [`histogram`](crate::views::Query::histogram), [`select_where`](crate::views::Select::select_where), [`transform`](crate::views::QueryMut::transform), [`assign_where`](crate::views::QueryMut::assign_where) |
/// | by [tasks](crate::views::PagedView#for-tasks) | [`get_async`](crate::views::PagedView::get_async), [`set_async`](crate::views::PagedViewMut::set_async), [`read_async`](crate::views::PagedView::read_async), [`gather_async`](crate::views::PagedView::gather_async), [`page_async`](crate::views::PagedView::page_async), [`prefetch_async`](crate::views::PagedView::prefetch_async), [`flush_async`](crate::views::View::flush_async) |
/// | a range with all operations | [`section`](crate::views::View::section), [`section_mut`](crate::views::ViewMut::section_mut), [`SharedSection`](crate::views::SharedSection) |
/// | the cache itself | [`prefetch`](crate::views::View::prefetch), [`flush`](crate::views::View::flush), [`evict`](crate::views::View::evict), [`discard`](crate::views::ViewMut::discard) |
///
/// # Consistency
///
/// A read never returns a part of a write to an element. All reads after a completed write see it, including
/// reads by other threads, reads past the cache, and reads by devices. [`get`](Self::get) and
/// [`set`](Self::set) order memory like acquire loads and release stores, so a program can publish other data
/// through an element. Operations on ranges are atomic for each page, not as a whole.
///
/// # Lifetime
///
/// Dropping an array loses its contents: the drop waits for copies in flight, writes nothing back and frees
/// all memory. A new array reads as zeroes, even if its devices had other contents before. To keep data, use
/// an array [in a file](Self::create), or [save](Self::save) to one.
///
/// # Cost
///
/// A hit (an access to a cached page) takes no lock on its page, and writes only the element. For elements of
/// other than 1, 2, 4 or 8 bytes, a write also takes a lock that few elements share.
/// [`EvictionPolicy::Lru`](crate::EvictionPolicy::Lru) records every access under a lock. A miss copies one
/// page, and a second one if the evicted page was modified. Threads that miss different pages do not wait for
/// each other. If single accesses and slices on one page alternate, each change costs a barrier on all cores,
/// which takes some microseconds.
///
/// # Locks
///
/// [Page guards](crate::access::PageRef), cursors and iterators hold pages. While a thread holds a page,
/// other threads wait before they write it; they also wait before they read the page of a
/// [`PageMut`](crate::access::PageMut). A thread that holds guards never waits for a thread that could wait
/// for it: it gets [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) or
/// [`TooManyGuards`](crate::ErrorKind::TooManyGuards) instead, and [works
/// alone](crate::access::must_work_alone). Guarded pages are ordered by the age of their arrays, then by
/// number: a thread that takes guards in ascending order may wait for other guards. A leaked guard counts as
/// held by its thread until its array is dropped. No other operation holds a page while it runs a closure of
/// the caller, except [sorts](crate::progress::with_progress) that report progress. For wakers see
/// [tasks](crate::views::PagedView#for-tasks).
///
/// # Example
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::VirtualArray;
///
/// let array = VirtualArray::<u64>::new(1_000_000)?;
/// std::thread::scope(|threads| {
///     for part in 0..4 {
///         let array = &array;
///         threads.spawn(move || {
///             for i in (part..array.len()).step_by(4) {
///                 array.set(i, (i * i) as u64).unwrap();
///             }
///         });
///     }
/// });
/// assert_eq!(array.get(999)?, 998_001);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// Pages and counters:
///
/// ```
/// use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(64).count_hits(true).build()?;
/// assert_eq!((array.len(), array.is_empty()), (1000, false));
/// assert_eq!((array.page_len(), array.page_count()), (64, 16));
/// assert_eq!((array.page_of(70), array.page_range(15)), (1, 960..1000));
/// array.set(70, 1)?;
/// assert_eq!(array.get(70)?, 1);
/// let stats = array.stats();
/// assert_eq!((stats.total().misses, stats.hits), (1, Some(1)));
/// array.reset_stats();
/// assert_eq!(array.stats().hits, Some(0));
/// assert_eq!(array.footprint().device_bytes, 4096);
/// // Each of these is one atomic step, except `swap`.
/// assert_eq!(array.replace(70, 7)?, 1);
/// assert_eq!(array.compare_exchange(70, 7, 8)?, Ok(7));
/// assert_eq!(array.compare_exchange(70, 7, 9)?, Err(8));
/// array.swap(70, 999)?;
/// assert_eq!((array.get(70)?, array.get(999)?), (0, 8));
/// assert!(array.get(1000).is_err());
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct VirtualArray<T: Element, D: Device = AnyDevice> {
    // Fields that a cache hit reads come first. The length is no field, but stored before the page entries.
    // So all fields are constant, and the compiler keeps them in registers.
    entries: NonNull<Entry>,
    /// The shift from an index to its page; valid only if `is_quick`.
    shift: u32,
    counter: HitCounter,
    /// The mask that gives an index's offset in its page; valid only if `is_quick`.
    mask: usize,
    /// True if the page length is a power of two and hits are not counted.
    is_quick: bool,
    recency: bool,
    page_len: usize,
    /// The greatest length to which the array can grow, in elements.
    max_len: usize,
    pager: Box<Pager>,
    recipe: Box<Recipe>,
    marker: PhantomData<fn(T) -> (T, D)>,
}

impl<T: Element> VirtualArray<T> {
    /// Creates an array of `len` elements on the [devices of the machine](crate::devices), with defaults.
    ///
    /// # Errors
    /// The errors of [`Builder::build`], for example if the devices have too little memory.
    pub fn new(len: usize) -> Result<Self> {
        Self::builder(len).build()
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    pub(crate) fn assemble(
        (len, max_len): (usize, usize),
        page_len: usize,
        pager: Pager,
        recipe: Recipe,
    ) -> Self {
        let _ = ElementLayout::<T>::BYTES;
        let pager = Box::new(pager);
        let array = Self {
            entries: pager.table().first(),
            shift: page_len.trailing_zeros(),
            counter: pager.counter(),
            mask: page_len.wrapping_sub(1),
            is_quick: page_len.is_power_of_two() && !pager.counter().counts(),
            recency: pager.recency(),
            page_len,
            max_len,
            pager,
            recipe: Box::new(recipe),
            marker: PhantomData,
        };
        array.publish_len(len);
        array
    }

    /// Publishes a greater length; the caller has written the new elements.
    pub(crate) fn publish_len(&self, len: usize) {
        self.lengths().publish(len, self.is_quick);
    }

    /// Sets another length, with exclusive access to the array.
    pub(crate) fn set_len(&mut self, len: usize) {
        self.lengths().set(len, self.is_quick);
        self.pager.shorten(len);
    }

    /// Number of elements.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.lengths().len()
    }

    /// Returns true if the array has no elements.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of elements of a page. The last page may have fewer.
    #[must_use]
    #[inline]
    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// Number of pages.
    #[must_use]
    #[inline]
    pub fn page_count(&self) -> usize {
        self.len().div_ceil(self.page_len)
    }

    pub(crate) fn pager(&self) -> &Pager {
        &self.pager
    }

    /// Returns the page of an element, and the element's offset in the page.
    #[inline(always)]
    pub(crate) fn locate(&self, index: usize) -> (usize, usize) {
        if self.is_quick {
            (index >> self.shift, index & self.mask)
        } else {
            (index / self.page_len, index % self.page_len)
        }
    }

    /// Reads an element.
    ///
    /// A hit takes no lock (but see [`EvictionPolicy::Lru`](crate::EvictionPolicy::Lru)); a miss copies one
    /// page from its device and blocks until it has arrived.
    ///
    /// # Errors
    /// [`IndexOutside`](crate::ErrorKind::IndexOutside); on a miss also [`Device`](crate::ErrorKind::Device)
    /// and, for threads that hold guards, [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) and
    /// [`TooManyGuards`](crate::ErrorKind::TooManyGuards).
    #[inline]
    pub fn get(&self, index: usize) -> Result<T> {
        if ElementLayout::<T>::HUGE { self.get_large(index) } else { self.get_by_value(index) }
    }

    #[inline(always)]
    fn get_by_value(&self, index: usize) -> Result<T> {
        if let Some(place) = self.quick_place(index)
            && let Some(value) = place.read_lock_free::<false>(self.counter)
        {
            return Ok(value);
        }
        if size_of::<T>() > LONG_BYTES {
            return self.get_long(index);
        }
        // Read into a local value. If `get_slowly` returned the value, the compiler would build the result in
        // memory in this function too.
        let mut value = T::zeroed();
        match self.get_slowly(index, &mut value) {
            Ok(()) => Ok(value),
            Err(error) => Err(error),
        }
    }

    #[cold]
    #[inline(never)]
    fn get_slowly(&self, index: usize, value: &mut T) -> Result<()> {
        *value = self.get_shared(index)?;
        Ok(())
    }

    /// Reads an element as [`get_slowly`](Self::get_slowly), but returns it. For long elements, which the
    /// compiler builds in memory anyway.
    #[cold]
    #[inline(never)]
    fn get_long(&self, index: usize) -> Result<T> {
        self.get_shared(index)
    }

    #[inline(always)]
    fn get_shared(&self, index: usize) -> Result<T> {
        let (page, at) = self.checked(index)?;
        let place = self.place(page as u64, at);
        if !self.is_quick
            && let Some(found) = place.read_lock_free::<true>(self.counter)
        {
            return Ok(found);
        }
        if let Some(found) = place.read_fenced(self.counter) {
            return Ok(found);
        }
        let mut value = T::zeroed();
        let offset = at * size_of::<T>();
        if self.pager.read_part(page as u64, offset, bytes_of_mut(&mut value))? {
            return Ok(value);
        }
        // The shared hold (right to use the page) keeps the page in its frame until the value is copied.
        let share = self.share(page as u64)?;
        Ok(place.read_shared(&share))
    }

    /// Writes an element.
    ///
    /// A hit takes no lock if the element has 1, 2, 4 or 8 bytes. Otherwise it takes a lock that few elements
    /// share, for the time of the copy; an element above 16 KiB takes the lock of its page. A miss copies one
    /// page from its device, unless the page was never written, and blocks until it has arrived.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    #[inline]
    pub fn set(&self, index: usize, value: T) -> Result<()> {
        if ElementLayout::<T>::HUGE { self.set_large(index, &value) } else { self.set_by_value(index, value) }
    }

    #[inline(always)]
    fn set_by_value(&self, index: usize, value: T) -> Result<()> {
        if let Some(place) = self.quick_place(index) {
            // Prefetch the element's cache line for the write. Some processors prefetch only for the oldest
            // few waiting stores, and the store that announces the access (to the hazard slot) comes first.
            place.prefetch_write();
            let done = place.write_lock_free::<false, _>(self.counter, |element| element.store(&value));
            if done.is_some() {
                return Ok(());
            }
        }
        self.set_slowly(index, value)
    }

    #[cold]
    #[inline(never)]
    fn set_slowly(&self, index: usize, value: T) -> Result<()> {
        let (page, at) = self.checked(index)?;
        if self.pager.write_part(page as u64, at * size_of::<T>(), bytes_of(&value))? {
            return Ok(());
        }
        self.write_shared(page, at, |element| element.store(&value), |()| true)
    }

    /// Writes an element and returns the old value, as one atomic step.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub fn replace(&self, index: usize, value: T) -> Result<T> {
        let (page, at) = self.checked(index)?;
        if ElementLayout::<T>::SINGLE_WORD {
            return self.write_shared(page, at, |element| element.swap(value), |_| true);
        }
        if ElementLayout::<T>::HUGE {
            self.replace_large(index, &value)
        } else {
            self.replace_by_value((page, at), &value)
        }
    }

    fn replace_by_value(&self, place: (usize, usize), value: &T) -> Result<T> {
        let mut old = T::zeroed();
        self.exchange(place, None, value, &mut old)?;
        Ok(old)
    }

    /// Copies an element of several words to `old`, and writes `new` if the element's bytes equal `current`,
    /// or if there is no `current`. Returns true if it wrote.
    pub(crate) fn exchange(
        &self,
        (page, at): (usize, usize),
        current: Option<&T>,
        new: &T,
        old: &mut T,
    ) -> Result<bool> {
        if !ElementLayout::<T>::HUGE {
            let has_written = |is_written: &bool| *is_written;
            return self.write_shared(page, at, |element| element.exchange(current, new, old), has_written);
        }
        let mut is_written = false;
        self.latched(page, |held| {
            is_written = held.element(at).exchange(current, new, old);
            if is_written { DIRTY } else { 0 }
        })?;
        Ok(is_written)
    }

    /// Writes `new` if the element equals `current`, as one atomic step. Returns the old value: in `Ok` if
    /// the call wrote `new`, else in `Err`.
    ///
    /// The call compares bytes: a floating-point NaN can equal itself, and `0.0` differs from `-0.0`.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get), in the outer result.
    pub fn compare_exchange(&self, index: usize, current: T, new: T) -> Result<Result<T, T>> {
        let (page, at) = self.checked(index)?;
        if ElementLayout::<T>::SINGLE_WORD {
            return self.write_shared(page, at, |word| word.compare_exchange(current, new), Result::is_ok);
        }
        if ElementLayout::<T>::HUGE {
            self.compare_exchange_large(index, &current, &new)
        } else {
            self.compare_exchange_by_value((page, at), &current, &new)
        }
    }

    fn compare_exchange_by_value(&self, place: (usize, usize), current: &T, new: &T) -> Result<Result<T, T>> {
        let mut old = T::zeroed();
        let is_written = self.exchange(place, Some(current), new, &mut old)?;
        Ok(if is_written { Ok(old) } else { Err(old) })
    }

    /// Replaces an element by the result of `change`, as one atomic step; returns the old value.
    ///
    /// The thread holds no page while `change` runs, so `change` may use this and other arrays, and may
    /// panic. If another thread changes the element meanwhile, `change` runs again.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = vmarray::VirtualArray::<u64>::new(10)?;
    /// std::thread::scope(|threads| {
    ///     for _ in 0..4 {
    ///         threads.spawn(|| (0..1000).try_for_each(|_| array.update(3, |x| x + 1).map(drop)));
    ///     }
    /// });
    /// assert_eq!(array.get(3)?, 4000);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn update(&self, index: usize, change: impl FnMut(T) -> T) -> Result<T> {
        if ElementLayout::<T>::HUGE {
            self.update_large(index, change)
        } else {
            self.update_by_value(index, change)
        }
    }

    #[inline(always)]
    fn update_by_value(&self, index: usize, mut change: impl FnMut(T) -> T) -> Result<T> {
        let mut current = self.get(index)?;
        loop {
            match self.compare_exchange(index, current, change(current))? {
                Ok(old) => return Ok(old),
                Err(seen) => current = seen,
            }
        }
    }

    /// Exchanges two elements. Each of the two writes is atomic, but not both together: another thread may
    /// see only the first write, and the call may overwrite a write of another thread to these elements.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get). If a device fails at `b`, element `a` may have the value of `b`.
    pub fn swap(&self, a: usize, b: usize) -> Result<()> {
        self.checked(a)?;
        if ElementLayout::<T>::HUGE { self.swap_large(a, b) } else { self.swap_by_value(a, b) }
    }

    fn swap_by_value(&self, a: usize, b: usize) -> Result<()> {
        let second = self.get(b)?;
        let first = self.replace(a, second)?;
        self.set(b, first).inspect_err(|_| {
            // The second write failed, so restore the first element if possible.
            let _ = self.set(a, first);
        })
    }

    /// Reads an element without loading its page into the cache.
    pub(crate) fn get_uncached(&self, index: usize) -> Result<T> {
        let (page, at) = self.checked(index)?;
        if self.is_resident(page) {
            return self.get(index);
        }
        if ElementLayout::<T>::HUGE {
            self.get_large_uncached(index)
        } else {
            self.get_uncached_by_value((page, at))
        }
    }

    fn get_uncached_by_value(&self, place: (usize, usize)) -> Result<T> {
        let mut value = T::zeroed();
        self.read_uncached(place, &mut value)?;
        Ok(value)
    }

    pub(crate) fn read_uncached(&self, (page, at): (usize, usize), value: &mut T) -> Result<()> {
        self.pager.read_uncached(page as u64, at * size_of::<T>(), bytes_of_mut(value))
    }

    /// Writes an element without loading its page into the cache.
    pub(crate) fn set_uncached(&self, index: usize, value: T) -> Result<()> {
        let (page, at) = self.checked(index)?;
        if self.is_resident(page) {
            return self.set(index, value);
        }
        let bytes = bytes_of(&value);
        match self.pager.write_uncached(page as u64, at * size_of::<T>(), bytes) {
            Err(error) if error.device_error().is_some() => self.set(index, value).map_err(|_| error),
            result => result,
        }
    }

    fn is_resident(&self, page: usize) -> bool {
        self.pager.entry(page as u64).state(Ordering::Relaxed).has(RESIDENT)
    }

    pub(crate) fn checked(&self, index: usize) -> Result<(usize, usize)> {
        let len = self.len();
        if index < len { Ok(self.locate(index)) } else { Err(index_outside(index, len)) }
    }

    /// Returns the counters of accesses and copies since the creation of the array, or since
    /// [`reset_stats`](Self::reset_stats).
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.pager.stats()
    }

    /// Resets all [statistics](Self::stats) to zero.
    pub fn reset_stats(&self) {
        self.pager.reset_stats();
    }
}

impl<T: Element, D: Device> fmt::Debug for VirtualArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualArray")
            .field("len", &self.len())
            .field("page_len", &self.page_len)
            .field("element_bytes", &size_of::<T>())
            .field("channels", &self.pager.channels().len())
            .finish_non_exhaustive()
    }
}
