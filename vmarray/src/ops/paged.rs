//! Operations on the pages of arrays: guards (locks) for access in place, uncached reads and writes, and
//! futures.

use std::ops::RangeBounds;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::asynchronous::{GetAsync, PageAsync, PageMutAsync, PrefetchAsync, ReadAsync, SetAsync};
use crate::array::cursor::{Cursor, CursorMut};
use crate::array::iter::{Iter, Pages, PagesMut};
use crate::array::map::{MapBuffer, MapMode};
use crate::array::page_guard::{PageMut, PageRef, Visit};
use crate::base::element::Element;
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::ops::explain::{Explained, Work, explain};
use crate::ops::gather::GatherAsync;
use crate::ops::view::{Linear, Section, Shape, SharedSection, View, ViewMut};

/// A linear [`View`] of an array, with operations on its pages.
///
/// The array itself and every section of it implement the trait. Pages are numbered from the first page that
/// the view touches. Of a page, only the elements in the view are visible.
///
/// # For tasks
///
/// Each method named `…_async` returns a future that does the same as the blocking method. If the method
/// would block, the future returns its thread to other tasks. One thread can have thousands of futures in
/// flight: the loads of futures polled one after another are submitted to their device in one call.
///
/// All futures are [`Send`], so that tasks may move between threads, except the futures of page guards
/// ([`page_async`](Self::page_async), [`page_mut_async`](PagedViewMut::page_mut_async)).
///
/// A future does nothing until it is polled. The program can drop a future at any time: a waiting future
/// holds neither page nor frame, and its loads end up in the cache. No thread or task waits for a future that
/// is not polled any more. A page guard's future is an exception: it counts as a guard as soon as its page is
/// loaded.
///
/// **Progress.** Each load that a task begins serves that task. When the load ends, the value is copied
/// from the page or written to it, even if the task is not polled then. Each request for an element
/// therefore causes at most one load, for any number of tasks, frames and executors. If a submission
/// of several pages fails, each page is loaded once more separately. Tasks that find no free frame receive
/// one in the order of their requests. If no frame is free because a page cannot be written back, the
/// first waiting task receives that error. Requests made while the device is busy are submitted by the
/// thread that completes earlier work. This is usually a thread of the device, and needs no poll of a
/// task.
///
/// **Wakers** run in the thread that ends a load: a thread of the device, or a thread of the program in a
/// blocking call. That thread may hold a page exclusively. A waker may poll futures of arrays immediately,
/// or drop arrays, but must not call blocking methods of arrays.
///
/// A thread that holds guards never waits for a page that others may need first (see
/// [Locks](VirtualArray#locks)). The same holds for the tasks that run on the thread: guards count for their
/// thread, whichever task holds them. If a thread with guards polls a future, the future ends with
/// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) or [`TooManyGuards`](crate::ErrorKind::TooManyGuards)
/// whenever the blocking method would return this error. The future also ends so if the thread takes a guard
/// while the future waits. The future returns errors of indices and ranges.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u32>::builder(1000).page_len(10).build()?;
/// array.set_uncached(3, 5)?;
/// assert_eq!(array.get_uncached(3)?, 5);
/// assert_eq!(array.stats().total().misses, 0);
///
/// array.fill(.., 2)?;
/// let section = array.section(105..205)?;
/// let page = section.page(1)?;
/// assert_eq!((section.page_count(), page.range(), page[0]), (11, 5..15, 2));
/// drop(page);
/// let mut sum = 0;
/// for page in section.pages() {
///     sum += page?.iter().sum::<u32>();
/// }
/// assert_eq!((sum, section.iter().sum::<vmarray::Result<u32>>()?), (200, 200));
/// assert_eq!(section.map(5..10, |slice| slice.iter().sum::<u32>())?, 10);
/// assert_eq!(section.cursor().get(99)?, 2);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// In a task:
///
/// ```
/// use futures::executor::block_on;
/// use vmarray::prelude::*;
///
/// let array = VirtualArray::<u32>::new(1000)?;
/// array.write(10, &[1, 2, 3])?;
/// let task = async {
///     array.prefetch_async(..).await?;
///     let mut back = [0; 3];
///     array.read_async(10, &mut back).await?;
///     assert_eq!(array.gather_async(&[13, 10]).await?, [0, 1]);
///     let third = array.page_async(0).await?[12];
///     Ok::<_, vmarray::Error>(back[0] + third + array.get_async(11).await?)
/// };
/// assert_eq!(block_on(task)?, 1 + 3 + 2);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait PagedView<'a, T: Element, D: Device>:
    View<'a, Element = T, Index = usize, Store = VirtualArray<T, D>, Shape = Linear>
{
    /// Reads an element without loading its page into the cache. Use it for elements that are read once.
    ///
    /// If the page is in the cache, the element is read there. Otherwise only the element's bytes are copied
    /// from the device.
    ///
    /// # Errors
    /// The errors of [`get`](View::get).
    fn get_uncached(self, index: usize) -> Result<T> {
        let (array, shape) = self.parts();
        array.get_uncached(shape.place(index)?)
    }

    /// Predicts the cost of an operation on elements in the present state: the pages, the path of the
    /// elements, the bytes to move, and the least duration according to measurements of the devices. The call
    /// submits no work to a device and copies nothing; it reads the state of each page. The prediction does
    /// not include elements of other views in joins or among arguments of kernels;
    /// [`watch`](VirtualArray::watch) reports their costs afterwards.
    ///
    /// # Errors
    /// The errors of [`section`](View::section); [`ListedIndexOutside`](ErrorKind::ListedIndexOutside).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::explain::{PlannedRoute, Work};
    /// let array = VirtualArray::<u64>::builder(10_000).page_len(1000).build()?;
    /// array.fill(.., 7)?;
    /// array.set(5, 8)?;
    /// let plan = array.explain(.., Work::Ask)?;
    /// assert_eq!((plan.pages, plan.resident, plan.dirty), (10, 1, 1));
    /// assert_eq!((plan.route, plan.bytes_in_place()), (PlannedRoute::OnDevices, 80_000));
    /// // The page that was written to goes to the device first.
    /// assert_eq!((plan.bytes_to_device(), plan.bytes_from_device()), (8000, 0));
    /// println!("{plan}");
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn explain(self, bounds: impl RangeBounds<usize>, work: Work<'_>) -> Result<Explained> {
        let (array, shape) = self.parts();
        explain(array, shape.places(bounds)?, work)
    }

    /// The number of pages that the view touches.
    #[must_use]
    fn page_count(self) -> usize {
        let (array, shape) = self.parts();
        array.touched_pages(&shape.range()).count()
    }

    /// Returns a guard through which the thread reads a page as a slice. Blocks until the page is in RAM, and
    /// while another thread holds it exclusively.
    ///
    /// # Errors
    /// [`PageOutside`](ErrorKind::PageOutside);
    /// [`TooManyGuards`](ErrorKind::TooManyGuards) or [`WouldDeadlock`](ErrorKind::WouldDeadlock) if the
    /// calling thread holds guards and would have to wait for another thread;
    /// [`Device`](ErrorKind::Device).
    fn page(self, page: usize) -> Result<PageRef<'a, T, D>> {
        let (array, shape) = self.parts();
        array.visit(array.cut(&shape.range(), page)?, Visit::Stay)
    }

    /// Returns an iterator over the pages. If the cache is smaller than the view, each new page replaces
    /// another page there.
    fn pages(self) -> Pages<'a, T, D> {
        let (array, shape) = self.parts();
        array.pages_of(shape.range())
    }

    /// Returns a double-ended iterator over the elements. It holds the page of the present element, so a
    /// write to that page waits.
    #[must_use = "iterators are lazy: nothing is read unless they are consumed"]
    fn iter(self) -> Iter<'a, T, D> {
        let (array, shape) = self.parts();
        array.iter_over(shape.range())
    }

    /// Returns a cursor for reading elements in place. It holds no page yet.
    #[must_use]
    fn cursor(self) -> Cursor<'a, T, D> {
        let (array, shape) = self.parts();
        Cursor::new(array, shape.range())
    }

    /// Calls a closure with a range of elements as one slice, for reading. See
    /// [`map_mut`](PagedViewMut::map_mut).
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed),
    /// [`NoMemory`](ErrorKind::NoMemory) if the range does not fit into RAM, and the errors of
    /// [`read`](View::read). `Ok` contains the closure's result.
    fn map<R>(self, range: impl RangeBounds<usize>, run: impl FnOnce(&[T]) -> R) -> Result<R> {
        let (array, shape) = self.parts();
        array.map_in(shape.places(range)?, MapMode::Read, MapBuffer::New, |slice| run(slice))
    }

    /// Calls a closure for each page of a range, on several threads, with the page's elements in place. The
    /// closure receives the index of the first element, and the elements. Stops at the first error.
    ///
    /// The calling thread works, too. Each thread holds one page while the closure runs. The cache limits the
    /// number of guards, and therefore the number of threads. A thread that [must work
    /// alone](crate::access::must_work_alone) processes all pages itself.
    ///
    /// The closure may use rayon on its slice. If other jobs of the same thread pool use the array at the
    /// same time, it must not wait for rayon: the thread could run such a job meanwhile, which waits for the
    /// page.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed), and the
    /// errors of [`page`](Self::page).
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::new(100_000)?;
    /// array.fill(.., 2)?;
    /// let sum = AtomicU64::new(0);
    /// array.par_for_each_slice(.., |_, slice| {
    ///     sum.fetch_add(slice.iter().map(|&x| u64::from(x)).sum(), Ordering::Relaxed);
    /// })?;
    /// assert_eq!(sum.into_inner(), 200_000);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[cfg(feature = "rayon")]
    fn par_for_each_slice(
        self,
        range: impl RangeBounds<usize>,
        run: impl Fn(usize, &[T]) + Send + Sync,
    ) -> Result<()> {
        self.par_fold_slices(range, || (), |(), first, slice| run(first, slice), |(), ()| ())
    }

    /// Folds the elements of each page of a range, on several threads and in place, and combines the results
    /// in the order of the pages.
    ///
    /// # Errors
    /// The errors of [`par_for_each_slice`](Self::par_for_each_slice).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::new(100_000)?;
    /// array.set(77_777, 9)?;
    /// let largest =
    ///     array.par_fold_slices(.., || 0, |m, _, slice| slice.iter().fold(m, |m, &x| m.max(x)), u32::max)?;
    /// assert_eq!(largest, 9);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[cfg(feature = "rayon")]
    fn par_fold_slices<R: Send>(
        self,
        range: impl RangeBounds<usize>,
        identity: impl Fn() -> R + Send + Sync,
        fold: impl Fn(R, usize, &[T]) -> R + Send + Sync,
        combine: impl Fn(R, R) -> R + Send + Sync,
    ) -> Result<R> {
        let (array, shape) = self.parts();
        let range = shape.places(range)?;
        let before = range.start - shape.start;
        let fold = |sum, first: usize, slice: &[T]| fold(sum, before + first, slice);
        array.par_fold(range, identity, fold, combine)
    }

    /// Returns an indexed parallel iterator over all elements by value. It copies a page at a time, and holds
    /// no page while the program uses the items. If an element cannot be read, its item is the error. A
    /// thread that [must work alone](crate::access::must_work_alone) must read all elements itself. If
    /// another thread reads items for it, they are the error [`WouldDeadlock`](ErrorKind::WouldDeadlock).
    ///
    /// ```
    /// use rayon::prelude::*;
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::new(100_000)?;
    /// array.fill(.., 2)?;
    /// let sum = array.par_iter().sum::<Result<u32, _>>()?;
    /// assert_eq!(sum, 200_000);
    /// array.set(77_777, 3)?;
    /// assert_eq!(array.par_iter().rev().position_any(|value| value == Ok(3)), Some(99_999 - 77_777));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[cfg(feature = "rayon")]
    fn par_iter(self) -> impl rayon::iter::IndexedParallelIterator<Item = Result<T>> + 'a
    where
        T: 'a,
        D: 'a,
    {
        let (array, shape) = self.parts();
        array.par_elements(shape.range())
    }

    /// Asynchronous form of [`get`](View::get). If the page is in the cache, the first poll returns the
    /// element, and allocates nothing.
    ///
    /// # Errors
    /// The errors of [`get`](View::get).
    fn get_async(self, index: usize) -> GetAsync<'a, T, D> {
        let (array, shape) = self.parts();
        GetAsync::new(array, shape.place(index))
    }

    /// Asynchronous form of [`read`](View::read). The read of each page is atomic.
    ///
    /// # Errors
    /// The errors of [`read`](View::read).
    fn read_async<'b>(self, start: usize, into: &'b mut [T]) -> ReadAsync<'b, T, D>
    where
        'a: 'b,
    {
        let (array, shape) = self.parts();
        ReadAsync::new(array, shape.places_at(start, into.len()), into)
    }

    /// Asynchronous form of [`gather`](View::gather), executed by the thread that polls. A drop of the
    /// unfinished future waits for the kernels that it has started: fractions of a millisecond.
    ///
    /// # Errors
    /// The errors of [`gather`](View::gather).
    fn gather_async<'b>(self, indices: &'b [usize]) -> GatherAsync<'b, T, D>
    where
        'a: 'b,
    {
        let (array, shape) = self.parts();
        GatherAsync::new(array, shape.range(), indices)
    }

    /// Asynchronous form of [`page`](Self::page). Neither the future nor the guard is [`Send`], because a
    /// guard belongs to the thread that polled the future. The task must therefore stay on one thread, as
    /// with `LocalSet` of tokio or `LocalExecutor` of smol. Tasks that move between threads can use
    /// [`read_async`](Self::read_async).
    ///
    /// # Errors
    /// The errors of [`page`](Self::page).
    fn page_async(self, page: usize) -> PageAsync<'a, T, D> {
        let (array, shape) = self.parts();
        PageAsync::new(array, array.cut(&shape.range(), page))
    }

    /// Asynchronous form of [`prefetch`](View::prefetch). The future is ready when all loads of the range
    /// have finished, including loads that were in flight before.
    ///
    /// # Errors
    /// The errors of [`prefetch`](View::prefetch).
    fn prefetch_async(self, range: impl RangeBounds<usize>) -> PrefetchAsync<'a, T, D> {
        let (array, shape) = self.parts();
        PrefetchAsync::new(array, shape.places(range))
    }
}

impl<'a, T: Element, D: Device, V> PagedView<'a, T, D> for V where
    V: View<'a, Element = T, Index = usize, Store = VirtualArray<T, D>, Shape = Linear>
{
}

/// A [`PagedView`] with writable elements.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u32>::new(1000)?;
/// let section = array.section_mut(100..200)?;
/// section.for_each_mut(10.., |index, element| *element = index as u32)?;
/// assert_eq!((array.get(109)?, array.get(199)?), (0, 99));
/// section.page_mut(0)?.fill(2);
/// for page in section.pages_mut() {
///     page?[0] += 1;
/// }
/// section.cursor_mut().set(99, 7)?;
/// section.set_uncached(98, 6)?;
/// assert_eq!((array.get(99)?, array.get(100)?, array.to_vec(197..201)?), (0, 3, vec![2, 6, 7, 0]));
///
/// let task = async {
///     section.set_async(1, 5).await?;
///     section.page_mut_async(0).await?[2] = 4;
///     section.get_async(1).await
/// };
/// assert_eq!((futures::executor::block_on(task)?, array.get(102)?), (5, 4));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait PagedViewMut<'a, T: Element, D: Device>:
    PagedView<'a, T, D> + ViewMut<'a, Element = T, Index = usize, Store = VirtualArray<T, D>, Shape = Linear>
{
    /// Writes an element without loading its page into the cache.
    ///
    /// If the page is in the cache, the element is written there. Otherwise only the element's bytes are
    /// copied to the device. A page that was never written is zeroed there first.
    ///
    /// # Errors
    /// The errors of [`get`](View::get). A failed copy leaves its target unspecified, so the page is then
    /// loaded into a frame, which receives the value. If that fails too, the element's value is
    /// unspecified.
    fn set_uncached(self, index: usize, value: T) -> Result<()> {
        let (array, shape) = self.parts();
        array.set_uncached(shape.place(index)?, value)
    }

    /// Returns a guard through which the thread changes a page as a mutable slice. Blocks until the page is
    /// in RAM, and while any other thread holds it.
    ///
    /// # Errors
    /// The errors of [`page`](PagedView::page).
    fn page_mut(self, page: usize) -> Result<PageMut<'a, T, D>> {
        let (array, shape) = self.parts();
        array.visit_mut(array.cut(&shape.range(), page)?, Visit::Stay)
    }

    /// Returns an iterator over the pages that holds each page exclusively. See [`pages`](PagedView::pages).
    fn pages_mut(self) -> PagesMut<'a, T, D> {
        let (array, shape) = self.parts();
        array.pages_mut_of(shape.range())
    }

    /// Returns a cursor for reading and writing elements in place. It holds no page yet.
    #[must_use]
    fn cursor_mut(self) -> CursorMut<'a, T, D> {
        let (array, shape) = self.parts();
        CursorMut::new(array, shape.range())
    }

    /// Calls a closure for each element of a range, in order and in place, with the element's index. The
    /// closure can change the element.
    ///
    /// Views have no `iter_mut`, because an iterator cannot lend elements of a page that it later releases.
    /// This method holds one page at a time.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed), and the
    /// errors of [`page_mut`](Self::page_mut). The elements before the error are changed.
    fn for_each_mut(
        self,
        range: impl RangeBounds<usize>,
        mut change: impl FnMut(usize, &mut T),
    ) -> Result<()> {
        let (array, shape) = self.parts();
        let range = shape.places(range)?;
        let before = range.start - shape.start;
        for number in 0..array.touched_pages(&range).count() {
            let mut page = array.visit_mut(array.cut(&range, number)?, Visit::Stay)?;
            let first = before + page.range().start;
            page.iter_mut().zip(first..).for_each(|(element, index)| change(index, element));
        }
        Ok(())
    }

    /// Calls a closure with a range of elements as one slice, which it can change.
    ///
    /// The slice is a copy, and no page is held while the closure runs. The closure may therefore use this
    /// and other arrays, take long, or panic; after a panic the range is unchanged. The read and the write of
    /// each page are atomic. In the modes that write, changes by other threads between read and write are
    /// overwritten.
    ///
    /// # Errors
    /// The errors of [`map`](PagedView::map) and [`write`](ViewMut::write).
    ///
    /// ```
    /// use vmarray::{access::MapMode, prelude::*};
    ///
    /// let array = VirtualArray::<u32>::new(10_000)?;
    /// array.map_mut(100..200, MapMode::Write, |slice| {
    ///     for (i, element) in slice.iter_mut().enumerate() {
    ///         *element = i as u32;
    ///     }
    /// })?;
    /// assert_eq!(array.get(199)?, 99);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn map_mut<R>(
        self,
        range: impl RangeBounds<usize>,
        mode: MapMode,
        run: impl FnOnce(&mut [T]) -> R,
    ) -> Result<R> {
        self.map_in(range, mode, MapBuffer::New, run)
    }

    /// Like [`map_mut`](Self::map_mut), with a slice in memory that the caller chooses.
    ///
    /// # Errors
    /// The errors of [`map_mut`](Self::map_mut); [`LengthMismatch`](ErrorKind::LengthMismatch) if a given
    /// buffer is too short.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::access::{MapBuffer, MapMode};
    ///
    /// let array = VirtualArray::<u32>::new(1000)?;
    /// let mut buffer = vec![0; 100];
    /// let place = MapBuffer::Borrowed(&mut buffer);
    /// array.map_in(900.., MapMode::Write, place, |slice| slice.fill(900))?;
    /// assert_eq!(array.get(950)?, 900);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn map_in<R>(
        self,
        range: impl RangeBounds<usize>,
        mode: MapMode,
        buffer: MapBuffer<'_, T>,
        run: impl FnOnce(&mut [T]) -> R,
    ) -> Result<R> {
        let (array, shape) = self.parts();
        array.map_in(shape.places(range)?, mode, buffer, run)
    }

    /// Calls a closure for each page of a range, on several threads, with the page's elements in place. The
    /// closure can change them. Stops at the first error.
    ///
    /// # Errors
    /// The errors of [`par_for_each_slice`](PagedView::par_for_each_slice) and
    /// [`page_mut`](Self::page_mut).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::new(100_000)?;
    /// array.par_for_each_slice_mut(.., |first, slice| {
    ///     slice.iter_mut().zip(first as u32..).for_each(|(element, i)| *element = i);
    /// })?;
    /// assert_eq!(array.get(99_999)?, 99_999);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[cfg(feature = "rayon")]
    fn par_for_each_slice_mut(
        self,
        range: impl RangeBounds<usize>,
        run: impl Fn(usize, &mut [T]) + Send + Sync,
    ) -> Result<()> {
        let (array, shape) = self.parts();
        let range = shape.places(range)?;
        let before = range.start - shape.start;
        array.par_change(range, |first, slice| run(before + first, slice))
    }

    /// Asynchronous form of [`set`](ViewMut::set).
    ///
    /// A set can be delayed for long if readers follow one another without a gap. Unlike a blocked thread,
    /// the future does not make later readers wait, because it may never be polled again. If the future is
    /// dropped before it is ready, the value is either written completely or not at all. If it was never
    /// polled, the value is not written.
    ///
    /// # Errors
    /// The errors of [`set`](ViewMut::set).
    fn set_async(self, index: usize, value: T) -> SetAsync<'a, T, D> {
        let (array, shape) = self.parts();
        SetAsync::new(array, shape.place(index), value)
    }

    /// Asynchronous form of [`page_mut`](Self::page_mut). Neither the future nor the guard is [`Send`], as
    /// with [`page_async`](PagedView::page_async). Consecutive readers may delay it, as with
    /// [`set_async`](Self::set_async).
    ///
    /// # Errors
    /// The errors of [`page_mut`](Self::page_mut).
    fn page_mut_async(self, page: usize) -> PageMutAsync<'a, T, D> {
        let (array, shape) = self.parts();
        PageMutAsync::new(array, array.cut(&shape.range(), page))
    }
}

impl<'a, T: Element, D: Device, V> PagedViewMut<'a, T, D> for V where
    V: ViewMut<'a, Element = T, Index = usize, Store = VirtualArray<T, D>, Shape = Linear>
{
}

impl<'a, T: Element, D: Device, const WRITES: bool> IntoIterator for Section<'a, VirtualArray<T, D>, WRITES> {
    type Item = Result<T>;
    type IntoIter = Iter<'a, T, D>;

    fn into_iter(self) -> Iter<'a, T, D> {
        PagedView::iter(self)
    }
}

impl<'a, T: Element, D: Device> IntoIterator for &'a SharedSection<VirtualArray<T, D>> {
    type Item = Result<T>;
    type IntoIter = Iter<'a, T, D>;

    fn into_iter(self) -> Iter<'a, T, D> {
        PagedView::iter(self)
    }
}
