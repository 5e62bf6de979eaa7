//! What pages allow: views of arrays in place, past the cache, and for tasks.

use std::ops::RangeBounds;

use backend_api::Device;

use super::section::Section;
use super::shape::{Linear, Shape};
use super::shared::SharedSection;
use super::{View, ViewMut};
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

/// A [`View`] of a range of an array: what can be done with its pages.
///
/// Implemented for each view of that kind. Pages are numbered from the first one that the view touches, and
/// show those of their elements that are in the view.
///
/// # For tasks
///
/// Each of these returns a future that does what the operation without `_async` does, and leaves its thread
/// to others wherever that would block. Thousands can be under way from one thread: the loads of those that
/// are polled one after another are submitted to their device in one call.
///
/// All of them are [`Send`], so that tasks may move from thread to thread, but for those of page guards
/// ([`page_async`](Self::page_async), [`page_mut_async`](PagedViewMut::page_mut_async)).
///
/// A future does nothing until it is polled. It can be dropped at any time and leaves nothing behind: it
/// holds neither page nor frame while it waits, and loads that it began end up in the cache. One that is not
/// polled any more keeps nobody waiting; except that a page guard's counts as a guard from the moment that
/// its page has come.
///
/// **Progress.** Each load that is begun for a task serves that task: what it asked for is copied out of the
/// page, or written to it, when the load ends, whether the task is polled then or not. So an element is
/// loaded at most once for each time that it is asked for (once more, by itself, if a submission of several
/// pages fails), whatever the number of tasks, frames and executors. Tasks that find no frame get one in the
/// order in which they asked; if there is none because a page cannot be written back, the first of them gets
/// that error. What was asked for while the device is busy is submitted by the thread that is told of the end
/// of earlier work, as a rule a thread of the device; no task need be polled for that.
///
/// **Wakers** run in the thread that ends a load: one of the device, or one of the program in a blocking
/// call, which may have a page for itself then. A waker may poll futures of arrays on the spot, or drop
/// arrays, but must not call what blocks on them.
///
/// As a thread that holds guards waits for no page that others may need first (see
/// [Locks](VirtualArray#locks)), so do the tasks that run on it: guards count for their thread, whichever
/// task holds them. A future that is polled by a thread with guards ends with
/// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) or [`TooManyGuards`](crate::ErrorKind::TooManyGuards)
/// where the blocking form would. Also when the thread takes a guard while the future waits. Errors of
/// indices and ranges come from the future.
///
/// ```
/// # use vmarray::prelude::*;
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
/// By a task:
///
/// ```
/// use futures::executor::block_on;
/// # use vmarray::prelude::*;
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
    /// Reads an element without giving its page a frame: right for elements that will not be used again soon.
    ///
    /// If the page is resident, its frame is read; else only the element's bytes are copied from the device.
    ///
    /// # Errors
    /// As [`get`](View::get).
    fn get_uncached(self, index: usize) -> Result<T> {
        let (array, shape) = self.parts();
        array.get_uncached(shape.place(index)?)
    }

    /// What work on elements will do, as things are now: which pages are touched, which way their elements
    /// go, how many bytes that moves, and how long it takes at best by what was measured of the devices. Asks
    /// no device, copies nothing, and looks at the state of each page. What stands beside the view's own
    /// elements (in joins, among arguments of kernels) is not in it: [`watch`](VirtualArray::watch) tells of
    /// that afterwards.
    ///
    /// # Errors
    /// As [`section`](View::section); [`ListedIndexOutside`](ErrorKind::ListedIndexOutside).
    ///
    /// ```
    /// # use vmarray::prelude::*;
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

    /// How many pages the view touches.
    #[must_use]
    fn page_count(self) -> usize {
        let (array, shape) = self.parts();
        array.touched_pages(&shape.range()).count()
    }

    /// Lends a page as a slice. Blocks while another thread has it exclusively, and until it is in RAM.
    ///
    /// # Errors
    /// [`IndexOutside`](ErrorKind::IndexOutside), with pages as index and length;
    /// [`TooManyGuards`](ErrorKind::TooManyGuards) or [`WouldDeadlock`](ErrorKind::WouldDeadlock) if the
    /// calling thread holds guards and would have to wait for others; [`Device`](ErrorKind::Device).
    fn page(self, page: usize) -> Result<PageRef<'a, T, D>> {
        let (array, shape) = self.parts();
        array.visit(array.cut(&shape.range(), page)?, Visit::Stay)
    }

    /// The pages one after the other. Of more pages than the cache holds, new ones give way to the next.
    fn pages(self) -> Pages<'a, T, D> {
        let (array, shape) = self.parts();
        array.pages_of(shape.range())
    }

    /// The elements one after the other, from both ends. Holds a page at a time, so what writes to that page
    /// waits.
    #[must_use = "iterators are lazy: nothing is read unless they are consumed"]
    fn iter(self) -> Iter<'a, T, D> {
        let (array, shape) = self.parts();
        array.iter_over(shape.range())
    }

    /// A cursor for reading, which holds no page yet.
    #[must_use]
    fn cursor(self) -> Cursor<'a, T, D> {
        let (array, shape) = self.parts();
        Cursor::new(array, shape.range())
    }

    /// Runs a closure on a range as one slice, for reading. See [`map_mut`](PagedViewMut::map_mut).
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed),
    /// [`NoMemory`](ErrorKind::NoMemory) if the range does not fit into RAM, and what [`read`](View::read)
    /// reports. The closure's own result is the value.
    fn map<R>(self, range: impl RangeBounds<usize>, run: impl FnOnce(&[T]) -> R) -> Result<R> {
        let (array, shape) = self.parts();
        array.map_in(shape.places(range)?, MapMode::Read, MapBuffer::New, |slice| run(slice))
    }

    /// Runs a closure on each page's part of a range, in parallel and in place: it gets the index of the
    /// first element, and the elements. Stops at the first error.
    ///
    /// Each thread holds one page while the closure runs. A closure that waits for work of the same thread
    /// pool lets its thread take up other pages meanwhile; one of those may be one too many, or held by a
    /// thread that waits for this one, which is an error.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed), and what
    /// [`page`](Self::page) reports.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// # use vmarray::prelude::*;
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

    /// Folds each page's part of a range, in parallel and in place, and combines the results.
    ///
    /// # Errors
    /// As [`par_for_each_slice`](Self::par_for_each_slice).
    ///
    /// ```
    /// # use vmarray::prelude::*;
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

    /// All elements by value as an indexed parallel iterator. Copies a page at a time; nothing is held while
    /// the items are used. An error is the item of one element.
    ///
    /// ```
    /// use rayon::prelude::*;
    /// # use vmarray::prelude::*;
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

    /// [`get`](View::get) for tasks. A hit is there at the first poll, and allocates nothing.
    ///
    /// # Errors
    /// As [`get`](View::get).
    fn get_async(self, index: usize) -> GetAsync<'a, T, D> {
        let (array, shape) = self.parts();
        GetAsync::new(array, shape.place(index))
    }

    /// [`read`](View::read) for tasks. Atomic by page.
    ///
    /// # Errors
    /// As [`read`](View::read).
    fn read_async<'b>(self, start: usize, into: &'b mut [T]) -> ReadAsync<'b, T, D>
    where
        'a: 'b,
    {
        let (array, shape) = self.parts();
        ReadAsync::new(array, shape.places_at(start, into.len()), into)
    }

    /// [`gather`](View::gather) for tasks, on the thread that polls. To drop it before it is ready blocks
    /// until the kernels that it started are done: fractions of a millisecond.
    ///
    /// # Errors
    /// As [`gather`](View::gather).
    fn gather_async<'b>(self, indices: &'b [usize]) -> GatherAsync<'b, T, D>
    where
        'a: 'b,
    {
        let (array, shape) = self.parts();
        GatherAsync::new(array, shape.range(), indices)
    }

    /// [`page`](Self::page) for tasks. Neither the future nor the guard is [`Send`]: a guard counts for the
    /// thread that polled it. So the task has to stay on one thread, as `LocalSet` of tokio or
    /// `LocalExecutor` of smol have it; [`read_async`](Self::read_async) is for tasks that move.
    ///
    /// # Errors
    /// As [`page`](Self::page).
    fn page_async(self, page: usize) -> PageAsync<'a, T, D> {
        let (array, shape) = self.parts();
        PageAsync::new(array, array.cut(&shape.range(), page))
    }

    /// [`prefetch`](View::prefetch) for tasks that want to know when it is done: ready when what was started,
    /// or was on its way already, is there.
    ///
    /// # Errors
    /// As [`prefetch`](View::prefetch).
    fn prefetch_async(self, range: impl RangeBounds<usize>) -> PrefetchAsync<'a, T, D> {
        let (array, shape) = self.parts();
        PrefetchAsync::new(array, shape.places(range))
    }
}

impl<'a, T: Element, D: Device, V> PagedView<'a, T, D> for V where
    V: View<'a, Element = T, Index = usize, Store = VirtualArray<T, D>, Shape = Linear>
{
}

/// A [`PagedView`] whose elements can be changed.
///
/// ```
/// # use vmarray::prelude::*;
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
    /// Writes an element without giving its page a frame.
    ///
    /// If the page is resident, its frame is written; else only the element's bytes are copied to the device,
    /// after zeroes for the whole page if it was never written.
    ///
    /// # Errors
    /// As [`get`](View::get). A failed copy leaves its target unspecified, so the page is then given a frame
    /// after all, which takes the value; if that fails, too, the element's value is unspecified.
    fn set_uncached(self, index: usize, value: T) -> Result<()> {
        let (array, shape) = self.parts();
        array.set_uncached(shape.place(index)?, value)
    }

    /// Lends a page as a mutable slice. Blocks while any other thread holds it, and until it is in RAM.
    ///
    /// # Errors
    /// As [`page`](PagedView::page).
    fn page_mut(self, page: usize) -> Result<PageMut<'a, T, D>> {
        let (array, shape) = self.parts();
        array.visit_mut(array.cut(&shape.range(), page)?, Visit::Stay)
    }

    /// The pages one after the other, exclusively. See [`pages`](PagedView::pages).
    fn pages_mut(self) -> PagesMut<'a, T, D> {
        let (array, shape) = self.parts();
        array.pages_mut_of(shape.range())
    }

    /// A cursor for reading and writing, which holds no page yet.
    #[must_use]
    fn cursor_mut(self) -> CursorMut<'a, T, D> {
        let (array, shape) = self.parts();
        CursorMut::new(array, shape.range())
    }

    /// Runs a closure on each element of a range, mutably and in place, in order, with its index.
    ///
    /// An iterator cannot lend elements of pages that it lets go itself; so this is what `iter_mut` is for a
    /// slice. Holds one page at a time.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed), and what
    /// [`page_mut`](Self::page_mut) reports; the elements before are changed then.
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

    /// Runs a closure on a range as one slice.
    ///
    /// The slice is a copy: nothing is locked while the closure runs, so it may use this and other arrays,
    /// take its time, and panic, in which case nothing is written. Reading and writing are atomic by page;
    /// what others write to the range between the two is overwritten in the modes that write.
    ///
    /// # Errors
    /// As [`map`](PagedView::map), and what [`write`](ViewMut::write) reports.
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

    /// As [`map_mut`](Self::map_mut), in memory of a kind of the caller's choice.
    ///
    /// # Errors
    /// As there; [`LengthMismatch`](ErrorKind::LengthMismatch) if a lent buffer is too short.
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

    /// Runs a closure on each page's part of a range, mutably, in parallel and in place. Stops at the first
    /// error.
    ///
    /// # Errors
    /// As [`par_for_each_slice`](PagedView::par_for_each_slice), and what [`page_mut`](Self::page_mut)
    /// reports.
    ///
    /// ```
    /// # use vmarray::prelude::*;
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

    /// [`set`](ViewMut::set) for tasks.
    ///
    /// While readers follow one another without a gap it may wait for long: unlike a thread it does not have
    /// them queue up behind it, since it might not be polled any more. If the future is dropped before it is
    /// ready, the value is written whole or not at all: not if the future was never polled.
    ///
    /// # Errors
    /// As [`set`](ViewMut::set).
    fn set_async(self, index: usize, value: T) -> SetAsync<'a, T, D> {
        let (array, shape) = self.parts();
        SetAsync::new(array, shape.place(index), value)
    }

    /// [`page_mut`](Self::page_mut) for tasks. Neither the future nor the guard is [`Send`], as of
    /// [`page_async`](PagedView::page_async). Readers in a row may keep it waiting, as for
    /// [`set_async`](Self::set_async).
    ///
    /// # Errors
    /// As [`page_mut`](Self::page_mut).
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
