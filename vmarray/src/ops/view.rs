//! The operations of all views: arrays, sources, their sections, and boxes of several dimensions.

mod paged;
mod query;
mod section;
mod shape;
mod shared;
mod store;

use std::ops::{Range, RangeBounds};

use bytemuck::NoUninit;

use self::sealed::Internal;

use crate::array::range::{PagePart, parts};
use crate::base::element::Field;
use crate::base::error::{ErrorKind, Result, expect_len};
use crate::base::memory::zeroed_vec;
use crate::ops::compute::{Joinable, Joined, Selected};
use crate::ops::executor::{Operand, copy_elements};
use crate::ops::expr::IntoExpr;
use crate::ops::find::{Found, Seek, What, search_region};
use crate::ops::gather::{Gathered, equal_lengths, scatter_chunks};
use crate::ops::launch::{PrefixSummed, Scan, Windowed};
use crate::ops::sort::{self, SortKey};

pub use paged::{PagedView, PagedViewMut};
pub use query::{Query, QueryMut};
pub use section::{Section, SectionMut};
pub use shape::{Linear, Lowered, Shape};
pub use shared::SharedSection;
pub use store::{Store, StoreMut};

pub(crate) mod sealed {
    /// A trait that prevents other crates from implementing the library's sealed traits.
    pub trait Sealed {}

    /// A token for methods that only this crate may call or implement: other crates can neither name it
    /// nor create one.
    #[derive(Clone, Copy, Debug)]
    pub struct Internal(pub(crate) ());
}

/// The approximate number of bytes of one step when the host copies for [`ViewMut::copy_from`].
const COPIED_AT_ONCE: usize = 64 << 10;

/// The token that this crate passes to internal methods.
pub(crate) const INTERNAL: Internal = Internal(());

impl<S: Store> sealed::Sealed for &S {}

/// A view of readable elements: a whole array or source, a range of it, or a box of several dimensions.
///
/// `&VirtualArray`, `&Source`, `&NdArray`, [`Section`], [`NdSection`](crate::nd::NdSection) and
/// [`RaggedRow`](crate::ragged::RaggedRow) implement it; all of them are small values that are copied.
/// `use vmarray::prelude::*` brings the trait into scope.
///
/// Bounds are ranges of the view's [`Index`](Self::Index): `5..9` of a section, `[1, 0]..[3, 4]` of a box;
/// `..` is the whole view. Indices, bounds and errors count from the view's first element. Any thread may
/// use a view at any time. Operations block until their result is ready, except operations named
/// `…_async`.
///
/// The devices carry out searches and gathers in place, like the queries of [`Query`].
///
/// ```
/// use vmarray::prelude::*;
/// fn loud<'a>(samples: impl View<'a, Element = f32>) -> vmarray::Result<usize> {
///     samples.count_where(.., Field::whole().gt(0.5))
/// }
///
/// let array = VirtualArray::<f32>::new(1000)?;
/// array.fill(..100, 1.0)?;
/// let source = Source::new(vec![0.25, 0.75])?;
/// let image = NdArray::<f32, 2>::new([30, 40])?;
/// assert_eq!(loud(&array)? + loud(array.section(90..)?)? + loud(&source)? + loud(&image)?, 111);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// Operations of a view:
///
/// ```
/// use futures::executor::block_on;
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u32>::new(1000)?;
/// array.write(100, &[1, 2, 3])?;
/// array.fill(500..600, 5)?;
///
/// let section = array.section(100..200)?;
/// assert!(section.len() == 100 && !section.is_empty());
/// assert_eq!((section.get(2)?, section.section(1..)?.get(1)?), (3, 3));
/// let error = section.section(50..101).unwrap_err();
/// assert!(error.to_string().starts_with("range 50..101 is outside of an array of 100 elements; "));
/// let mut two = [0; 2];
/// section.read(1, &mut two)?;
/// assert_eq!((two, section.to_vec(..3)?), ([2, 3], vec![1, 2, 3]));
///
/// // By value. Fields of structures are named by `field!`.
/// assert_eq!(section.find(Field::whole(), &3)?, [2]);
/// assert_eq!(array.position(.., Field::whole(), &5)?, Some(500));
/// assert_eq!(array.count(550.., Field::whole(), &5)?, 50);
///
/// // By lists of indices.
/// assert_eq!(array.gather(&[507, 100, 7, 507])?, [5, 1, 0, 5]);
/// section.gather_into(&[1, 99], &mut two)?;
/// assert_eq!(two, [2, 0]);
/// let sum = array.gather_iter((0..1000).step_by(10)).sum::<vmarray::Result<u32>>()?;
/// assert_eq!(sum, 1 + 10 * 5);
///
/// // Pages in the cache.
/// array.section(500..)?.prefetch(..100)?;
/// array.flush(..)?;
/// assert!(array.stats().total().write_backs > 0);
/// block_on(array.flush_async(..))?;
/// section.evict(..)?;
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait View<'a>: sealed::Sealed + Copy {
    /// The type of its elements.
    type Element: crate::Element;
    /// The type of an element's index: `usize`, or `[usize; N]`.
    type Index: Copy + std::fmt::Debug + Ord + Send + Sync + Unpin + 'static;
    /// The type of the store that holds the elements.
    type Store: Store<Element = Self::Element> + 'a;
    /// The type that selects elements of the store.
    type Shape: Shape<Index = Self::Index>;
    /// The type of a section of the view.
    type Section: View<'a, Element = Self::Element, Index = Self::Index, Store = Self::Store>;

    /// Returns the view's store and shape.
    #[doc(hidden)]
    fn parts(self) -> (&'a Self::Store, Self::Shape);

    #[doc(hidden)]
    fn of_parts(store: &'a Self::Store, shape: Self::Shape, _: Internal) -> Self::Section;

    /// Returns the number of elements.
    #[must_use]
    fn len(self) -> usize {
        self.parts().1.count()
    }

    /// Returns true if the view has no elements.
    #[must_use]
    fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns a part of the view. The call copies no elements and holds no pages.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed); for boxes
    /// [`BoxOutside`](ErrorKind::BoxOutside), [`BoxReversed`](ErrorKind::BoxReversed).
    fn section(self, bounds: impl RangeBounds<Self::Index>) -> Result<Self::Section> {
        let (store, shape) = self.parts();
        Ok(Self::of_parts(store, shape.cut(&shape.checked(bounds)?), INTERNAL))
    }

    /// Reads an element.
    ///
    /// # Errors
    /// [`IndexOutside`](ErrorKind::IndexOutside), [`PositionOutside`](ErrorKind::PositionOutside);
    /// [`Device`](ErrorKind::Device) if its page cannot be fetched.
    #[inline]
    fn get(self, index: Self::Index) -> Result<Self::Element> {
        let (store, shape) = self.parts();
        store.get_at(shape.place(index)?, INTERNAL)
    }

    /// Copies elements from `start` on into a slice.
    ///
    /// Reads of many pages bypass an array's cache: pages not in the cache are copied from the devices in
    /// long pieces, and the cache is unchanged.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`Device`](ErrorKind::Device): elements before the
    /// failed one are copied. [`TooManyGuards`](ErrorKind::TooManyGuards),
    /// [`WouldDeadlock`](ErrorKind::WouldDeadlock) if the calling thread holds pages and would have to
    /// wait.
    fn read(self, start: usize, into: &mut [Self::Element]) -> Result<()>
    where
        Self: View<'a, Shape = Linear>,
    {
        let (store, shape) = self.parts();
        let range = shape.places_at(start, into.len())?;
        store.read_at(range.start, into, INTERNAL)
    }

    /// Copies elements into a new vector, in the order of their indices.
    ///
    /// # Errors
    /// The errors of [`section`](Self::section) and [`read`](Self::read);
    /// [`NoMemory`](ErrorKind::NoMemory).
    fn to_vec(self, bounds: impl RangeBounds<Self::Index>) -> Result<Vec<Self::Element>> {
        let (store, shape) = self.parts();
        let of = shape.checked(bounds)?;
        let mut values = zeroed_vec(shape.cut(&of).count())?;
        shape.copy_out(store, &of, &mut values, INTERNAL)?;
        Ok(values)
    }

    /// Returns the indices of all elements whose field has this value, in ascending order. Values are equal
    /// if their bytes are equal.
    ///
    /// # Errors
    /// [`Device`](ErrorKind::Device); [`WouldDeadlock`](ErrorKind::WouldDeadlock) if the calling thread
    /// holds a page exclusively.
    fn find<F: NoUninit>(self, field: Field<Self::Element, F>, value: &F) -> Result<Vec<Self::Index>> {
        self.find_first(.., field, value, usize::MAX).map(|found| found.indices)
    }

    /// Like [`find`](Self::find), within bounds. Returns the first `limit` matches, and the number of all
    /// matches.
    ///
    /// The elements of a box are separate runs in the store. The devices search neighbouring runs together,
    /// and drop matches between the runs.
    ///
    /// # Errors
    /// The errors of [`find`](Self::find) and [`section`](Self::section).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u16>::new(10_000)?;
    /// array.fill(100..200, 5)?;
    /// let found = array.find_first(150.., Field::whole(), &5, 3)?;
    /// assert_eq!((found.indices, found.total), (vec![150, 151, 152], 50));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn find_first<F: NoUninit>(
        self,
        bounds: impl RangeBounds<Self::Index>,
        field: Field<Self::Element, F>,
        value: &F,
        limit: usize,
    ) -> Result<Found<Self::Index>> {
        sought(self, bounds, Seek { what: What::field(field, value), limit, count_all: true })
    }

    /// Returns the index of the first element within bounds whose field has this value. The search may
    /// stop at the first match.
    ///
    /// # Errors
    /// The errors of [`find_first`](Self::find_first).
    fn position<F: NoUninit>(
        self,
        bounds: impl RangeBounds<Self::Index>,
        field: Field<Self::Element, F>,
        value: &F,
    ) -> Result<Option<Self::Index>> {
        let seek = Seek { what: What::field(field, value), limit: 1, count_all: false };
        Ok(sought(self, bounds, seek)?.indices.first().copied())
    }

    /// Returns the number of elements within bounds whose field has this value.
    ///
    /// # Errors
    /// The errors of [`find_first`](Self::find_first).
    fn count<F: NoUninit>(
        self,
        bounds: impl RangeBounds<Self::Index>,
        field: Field<Self::Element, F>,
        value: &F,
    ) -> Result<usize> {
        let seek = Seek { what: What::field(field, value), limit: 0, count_all: true };
        Ok(sought(self, bounds, seek)?.total)
    }

    /// Returns the elements within bounds that meet a condition, with their indices, in ascending order.
    ///
    /// The devices search and gather some thousands of elements at a time. Nothing else is copied, and the
    /// iterator uses bounded memory, however many matches there are. If another thread writes to an
    /// element meanwhile, the iterator may return the new value.
    ///
    /// # Errors
    /// The errors of [`section`](Self::section); [`ExpressionTooLong`](ErrorKind::ExpressionTooLong).
    /// After an error of a device, the iterator returns it once and ends.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<[u32; 2]>::new(10_000)?;
    /// array.set(7, [1, 100])?;
    /// array.set(9000, [2, 200])?;
    /// let first = Field::<[u32; 2], [u32; 2]>::whole().nth::<0>();
    /// let found = array.select_where(.., first.gt(0))?.collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(found, [(7, [1, 100]), (9000, [2, 200])]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn select_where(
        self,
        bounds: impl RangeBounds<Self::Index>,
        condition: impl IntoExpr<Self::Element, bool>,
    ) -> Result<Selected<'a, Self>> {
        Selected::new(self, self.parts().1.checked(bounds)?, condition.into_expr())
    }

    /// Reads the elements of a list of indices, in the order of the list.
    ///
    /// The calling thread reads elements of pages in an array's cache. The devices gather the other elements,
    /// so that only elements are copied. The list is not copied, unless the view is a box: its positions are
    /// first converted to places in the store. Several threads of the library work on a long list.
    ///
    /// # Errors
    /// [`ListedIndexOutside`](ErrorKind::ListedIndexOutside),
    /// [`PositionOutside`](ErrorKind::PositionOutside) for the first index of the list that is outside; no
    /// element is read then. [`NoMemory`](ErrorKind::NoMemory), [`Device`](ErrorKind::Device).
    fn gather(self, indices: &[Self::Index]) -> Result<Vec<Self::Element>> {
        let mut values = zeroed_vec(indices.len())?;
        self.gather_into(indices, &mut values)?;
        Ok(values)
    }

    /// Like [`gather`](Self::gather), into the caller's memory.
    ///
    /// # Errors
    /// The errors of [`gather`](Self::gather), and [`LengthMismatch`](ErrorKind::LengthMismatch). After an
    /// error of a device the contents of the slice are unspecified.
    fn gather_into(self, indices: &[Self::Index], into: &mut [Self::Element]) -> Result<()> {
        equal_lengths(indices.len(), into.len())?;
        let (store, shape) = self.parts();
        let (of, list) = shape.list(indices)?;
        store.gather_within(of, &list, into, INTERNAL)
    }

    /// Returns an iterator over the elements of a sequence of indices. The sequence can have any length: the
    /// iterator gathers its elements in chunks of some megabytes.
    fn gather_iter<I: IntoIterator<Item = Self::Index>>(self, indices: I) -> Gathered<'a, Self, I::IntoIter> {
        Gathered::new(self, indices.into_iter())
    }

    /// Joins the view to others of the same shape, element by element, so that expressions can use the
    /// fields of all. The argument is a tuple of one to seven views: arrays, sources, sections of both, or
    /// boxes, of any element types. A view can also be [shifted](crate::boundary::BoundaryView::shifted),
    /// and then shows each element's neighbour at a fixed distance.
    ///
    /// # Errors
    /// [`LengthMismatch`](ErrorKind::LengthMismatch), [`KernelShape`](ErrorKind::KernelShape) for boxes;
    /// [`RankMismatch`](ErrorKind::RankMismatch) if the view has fewer axes than its store.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let (prices, counts) = (VirtualArray::<f64>::new(1000)?, Source::new(vec![3_u32; 1000])?);
    /// prices.fill(.., 2.5)?;
    /// let joined = prices.join((&counts,))?;
    /// let (price, count) = joined.rows();
    /// let whole = Field::<u32, u32>::whole;
    /// joined.transform(..500, price.set(Field::whole(), count.get(whole()).cast::<f64>() * 2.0))?;
    /// assert_eq!((prices.get(499)?, prices.get(500)?), (6.0, 2.5));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn join<O: Joinable<'a, Self>>(self, others: O) -> Result<Joined<'a, Self, O>> {
        Joined::new(self, others)
    }

    /// Returns a view that gives a [kernel](crate::kernel::Windowed) each element together with its
    /// neighbours, up to `halo` elements away along each axis. A read beyond the edges of the view is an
    /// error, unless the view has a [boundary mode](crate::boundary::BoundaryView::window). The kernel must
    /// not read farther than the halo; a launch in place does not check this.
    ///
    /// ```
    /// use vmarray::kernel::{At, Own, Window};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn differences(at: At<1>, of: &Window<i32, 1>, out: &mut Own<i32>) {
    ///     out.set(of[at.plus(1)] - of[at]);
    /// }
    /// let values = Source::new(vec![1, 4, 9, 16])?;
    /// let mut out = VirtualArray::<i32>::new(3)?;
    /// differences::run((values.window(1), &mut out))?;
    /// assert_eq!(out.to_vec(..)?, [3, 5, 7]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn window(self, halo: Self::Index) -> Windowed<Self, Self::Index> {
        Windowed { of: self, halo }
    }

    /// Prefetches elements. Elements of an array are loaded into its cache in the background, until the cache
    /// is full. Elements of a source are copied to the devices before the call returns.
    ///
    /// # Errors
    /// The errors of [`section`](Self::section); [`Device`](ErrorKind::Device).
    fn prefetch(self, bounds: impl RangeBounds<Self::Index>) -> Result<()> {
        let (store, shape) = self.parts();
        shape.fetch(store, &shape.checked(bounds)?, INTERNAL)
    }

    /// Writes back changes: dirty pages in an array's cache to the devices, and devices' changes to a
    /// source to the program's memory. The copies stay cached.
    ///
    /// # Errors
    /// The errors of [`section`](Self::section); [`Device`](ErrorKind::Device). Elements that could not be
    /// written back stay dirty.
    fn flush(self, bounds: impl RangeBounds<Self::Index>) -> Result<()> {
        let (store, shape) = self.parts();
        shape.touched(store, &shape.checked(bounds)?).try_for_each(|run| store.write_back(&run, INTERNAL))
    }

    /// Like [`flush`](Self::flush), as a future that never blocks the thread that polls it. The future also
    /// returns the error of an invalid range.
    #[must_use = "futures do nothing unless they are polled"]
    fn flush_async(self, range: impl RangeBounds<usize>) -> <Self::Store as Store>::FlushAsync<'a>
    where
        Self: View<'a, Shape = Linear>,
    {
        let (store, shape) = self.parts();
        store.write_back_async(shape.places(range), INTERNAL)
    }

    /// Writes back changes and drops the copies: pages leave an array's cache, elements of a source leave
    /// the devices.
    ///
    /// # Errors
    /// The errors of [`flush`](Self::flush).
    fn evict(self, bounds: impl RangeBounds<Self::Index>) -> Result<()> {
        let (store, shape) = self.parts();
        shape.touched(store, &shape.checked(bounds)?).try_for_each(|run| store.give_up(&run, INTERNAL))
    }
}

/// Searches a view within bounds.
fn sought<'a, V: View<'a>>(
    view: V,
    bounds: impl RangeBounds<V::Index>,
    seek: Seek<'_>,
) -> Result<Found<V::Index>> {
    let (store, shape) = view.parts();
    search_region(store, &shape, &shape.checked(bounds)?, seek)
}

/// A [`View`] with writable elements.
///
/// Writes need no exclusive access: any number of writable views may overlap, in any number of threads.
///
/// ```
/// use vmarray::prelude::*;
/// fn clear<'a>(samples: impl ViewMut<'a, Element = f32>) -> vmarray::Result<()> {
///     samples.fill(.., 0.0)
/// }
///
/// let array = VirtualArray::<f32>::new(1000)?;
/// array.fill(.., 1.0)?;
/// clear(array.section_mut(..10)?)?;
/// clear(&NdArray::<f32, 2>::new([30, 40])?)?;
/// assert_eq!(array.sum(.., Field::whole())?, 990.0);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// Operations that change elements:
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u32>::new(1000)?;
/// let section = array.section_mut(100..)?;
/// section.set(3, 7)?;
/// assert_eq!((section.replace(3, 8)?, array.get(103)?), (7, 8));
/// assert_eq!(section.compare_exchange(3, 8, 9)?, Ok(8));
/// assert_eq!(section.compare_exchange(3, 8, 10)?, Err(9));
/// assert_eq!(section.update(3, |value| value + 5)?, 9);
/// section.swap(3, 4)?;
/// assert_eq!(array.to_vec(102..106)?, [0, 0, 14, 0]);
///
/// section.write(1, &[1, 2, 3])?;
/// section.scatter(&[500, 7, 7], &[1, 2, 3])?;
/// assert_eq!((array.get(101)?, array.get(600)?, array.get(107)?), (1, 1, 3));
/// let count = section.scatter_iter((0..section.len()).step_by(7).map(|i| (i, i as u32)))?;
/// assert_eq!((count, array.get(177)?), (129, 77));
/// array.fill(.., 9)?;
/// section.discard(..5)?;
/// assert_eq!((array.get(99)?, array.get(100)?, array.get(105)?), (9, 0, 9));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait ViewMut<'a>: View<'a, Store: StoreMut> {
    /// The type of a writable section.
    type SectionMut: ViewMut<'a, Element = Self::Element, Index = Self::Index, Store = Self::Store>;

    #[doc(hidden)]
    fn of_parts_mut(store: &'a Self::Store, shape: Self::Shape, _: Internal) -> Self::SectionMut;

    /// Returns a part of the view, for reading and writing. The call copies no elements and holds no
    /// pages.
    ///
    /// # Errors
    /// The errors of [`section`](View::section).
    fn section_mut(self, bounds: impl RangeBounds<Self::Index>) -> Result<Self::SectionMut> {
        let (store, shape) = self.parts();
        Ok(Self::of_parts_mut(store, shape.cut(&shape.checked(bounds)?), INTERNAL))
    }

    /// Writes an element.
    ///
    /// # Errors
    /// The errors of [`get`](View::get).
    #[inline]
    fn set(self, index: Self::Index, value: Self::Element) -> Result<()> {
        let (store, shape) = self.parts();
        store.set_at(shape.place(index)?, value, INTERNAL)
    }

    /// Atomically writes an element and returns its old value.
    ///
    /// # Errors
    /// The errors of [`get`](View::get).
    fn replace(self, index: Self::Index, value: Self::Element) -> Result<Self::Element> {
        let (store, shape) = self.parts();
        store.replace_at(shape.place(index)?, value, INTERNAL)
    }

    /// Atomically writes an element if it has a given value. Returns `Ok` with the old value after the write,
    /// and otherwise `Err` with the present value. Values are equal if their bytes are equal.
    ///
    /// # Errors
    /// The errors of [`get`](View::get).
    fn compare_exchange(
        self,
        index: Self::Index,
        current: Self::Element,
        new: Self::Element,
    ) -> Result<Result<Self::Element, Self::Element>> {
        let (store, shape) = self.parts();
        store.compare_exchange_at(shape.place(index)?, current, new, INTERNAL)
    }

    /// Atomically replaces an element by a function of it, and returns the old value. The method may call
    /// the function several times, and the function must not use the view.
    ///
    /// # Errors
    /// The errors of [`get`](View::get).
    fn update(
        self,
        index: Self::Index,
        change: impl FnMut(Self::Element) -> Self::Element,
    ) -> Result<Self::Element> {
        let (store, shape) = self.parts();
        store.update_at(shape.place(index)?, change, INTERNAL)
    }

    /// Swaps two elements. The swap is not atomic: other threads may briefly see both elements with the
    /// same value.
    ///
    /// # Errors
    /// The errors of [`get`](View::get). Both elements then have their old values, if their devices still
    /// work.
    fn swap(self, a: Self::Index, b: Self::Index) -> Result<()> {
        let (store, shape) = self.parts();
        store.swap_at(shape.place(a)?, shape.place(b)?, INTERNAL)
    }

    /// Copies a slice to the elements from `start` on. Pages that are overwritten as a whole are not
    /// fetched.
    ///
    /// # Errors
    /// The errors of [`read`](View::read): elements before the failed one are written.
    fn write(self, start: usize, from: &[Self::Element]) -> Result<()>
    where
        Self: View<'a, Shape = Linear>,
    {
        let (store, shape) = self.parts();
        let range = shape.places_at(start, from.len())?;
        store.write_at(range.start, from, INTERNAL)
    }

    /// Copies another view to the elements from `start` on. The two may overlap, as in `memmove`.
    ///
    /// Devices copy directly, without the host, under these conditions:
    ///
    /// - The copy has at least 64 KiB and four pages.
    /// - Both views are of arrays without [mirrors](crate::Placement::Mirrored) or
    ///   [parity](crate::Placement::Parity).
    /// - The target's devices can [access](crate::device::Device::reaches) the source's memory.
    /// - The calling thread holds no page.
    /// - Within one array, no page has elements of both views.
    ///
    /// All channels of the target then copy concurrently, in pieces that are contiguous in both places.
    /// Between arrays of the same page length and number of channels, a piece is whole pages, up to 256
    /// MiB. Dirty pages in the caches are written back before, and pages of the target leave its cache.
    /// Nothing else passes through the host; the source's
    /// [`bytes_past_host`](crate::stats::ChannelStats::bytes_past_host) counts the bytes. Pages that are
    /// overwritten as a whole are neither fetched nor zeroed.
    ///
    /// In all other cases, and if a device refuses the copy, the calling thread copies the elements, 64
    /// KiB or a page at a time.
    ///
    /// The call blocks until the whole copy is finished. Other threads may use both views meanwhile, as
    /// during a [`transform`](QueryMut::transform) of joined arrays: an access to a page of the target
    /// waits while the page is written. The copy sees every write to the source that returned before the
    /// call began, and may see concurrent writes.
    ///
    /// # Errors
    /// The errors of [`read`](View::read) and [`write`](Self::write). After an error of devices that copy
    /// among themselves, the target is unchanged, or the error is [`Interrupted`](ErrorKind::Interrupted).
    /// That error lists the written and the unspecified elements.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::new(1000)?;
    /// array.write(0, &[1, 2, 3, 4])?;
    /// array.copy_from(2, array.section(..4)?)?;
    /// assert_eq!(array.to_vec(..6)?, [1, 2, 1, 2, 3, 4]);
    /// array.copy_from(0, &Source::new(vec![8, 9])?)?;
    /// assert_eq!(array.to_vec(..3)?, [8, 9, 1]);
    ///
    /// // On devices that reach each other nothing passes through the host.
    /// use std::sync::Arc;
    /// use vmarray::host::HostDevice;
    /// let devices = [8 << 20, 8 << 20].map(|bytes| Arc::new(HostDevice::new(bytes).unwrap()));
    /// let builder = || VirtualArray::<u32>::builder(500_000).page_len(4096);
    /// let one = builder().devices([devices[0].clone()]).build()?;
    /// let two = builder().devices(devices).build()?;
    /// one.fill(.., 7)?;
    /// two.copy_from(100_000, one.section(..400_000)?)?;
    /// assert_eq!(two.count(.., Field::whole(), &7)?, 400_000);
    /// assert_eq!(one.stats().total().bytes_past_host, 1_600_000);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn copy_from<'s>(
        self,
        start: usize,
        from: impl View<'s, Element = Self::Element, Shape = Linear>,
    ) -> Result<()>
    where
        Self: View<'a, Shape = Linear>,
    {
        let ((to_store, shape), (store, from)) = (self.parts(), from.parts());
        let to = shape.places_at(start, from.len)?;
        let by_host = || copy_by_host(to_store, &to, store, from);
        let (target, source) = (to_store.as_target(INTERNAL), store.as_operand(INTERNAL));
        copy_elements(target, &to, source, from.start, by_host)
            .map_err(|error| error.counted_from(shape.start))
    }

    /// Replaces each element of a range by the sum of all elements of the range up to it, and returns the
    /// sum of all. All devices of the elements work in place. A single GPU reads the range once, other
    /// devices read it twice; each element is written once.
    ///
    /// Integers wrap. Floats are added in an order that does not depend on devices or pages. Blocks of 1024
    /// elements, counted from the start of the array or source, are summed by steps of Hillis and Steele. A
    /// binary tree adds the sums of blocks, in `f64` with compensation. The error of each result is therefore
    /// at most about 12 roundings of the sum of magnitudes in its block, and 2 roundings of the sum of all
    /// magnitudes before the block. This bound holds for ranges of any length.
    ///
    /// To sum an expression, or another array, first [assign](QueryMut::transform) it to the elements; the
    /// sums may then have a wider type. Other threads must not write to the range meanwhile, or the sums
    /// are unspecified.
    ///
    /// A single GPU sums pages of any length. Several GPUs that can access each other's memory sum pages
    /// whose length is a multiple of 4096 elements. On other devices, pages whose length is no multiple of
    /// 1024 elements pass through the host, 4 MiB at a time. So do all pages on OpenCL devices whose
    /// work-groups have less than 1024 items.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let (lengths, ends) = (Source::new(vec![200_u8, 0, 100])?, VirtualArray::<u64>::new(3)?);
    /// let joined = ends.join((&lengths,))?;
    /// let (end, length) = joined.rows();
    /// joined.transform(.., end.set(Field::whole(), length.get(Field::whole()).cast::<u64>()))?;
    /// assert_eq!(ends.prefix_sum(..)?, 300);
    /// assert_eq!(ends.to_vec(..)?, [200, 200, 300]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`section`](View::section), and of devices. After an error of a device any element of
    /// the range may be written; [`Interrupted`](ErrorKind::Interrupted) lists the unspecified ones.
    fn prefix_sum(self, bounds: impl RangeBounds<usize>) -> Result<Self::Element>
    where
        Self: View<'a, Shape = Linear, Element: PrefixSummed>,
    {
        prefix_sums(self, bounds, false)
    }

    /// Replaces each element of a range by the sum of all elements of the range before it, the first one
    /// by zero. Returns the sum of all. See [`prefix_sum`](Self::prefix_sum).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// // Where rows of these lengths begin, and how much room they need.
    /// let rows = VirtualArray::<u32>::new(4)?;
    /// rows.write(0, &[3, 0, 2, 5])?;
    /// assert_eq!(rows.exclusive_prefix_sum(..)?, 10);
    /// assert_eq!(rows.to_vec(..)?, [0, 3, 3, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`prefix_sum`](Self::prefix_sum).
    fn exclusive_prefix_sum(self, bounds: impl RangeBounds<usize>) -> Result<Self::Element>
    where
        Self: View<'a, Shape = Linear, Element: PrefixSummed>,
    {
        prefix_sums(self, bounds, true)
    }

    /// Sorts the elements of a range in ascending order. Floats are in the order of [`f64::total_cmp`]:
    /// `-0.0` comes before `0.0`, and NaNs without a sign come last.
    ///
    /// GPUs sort elements in their own memory (with CUDA from compute capability 7.0 on, or with OpenCL).
    /// This needs as much additional memory on each GPU as the elements have there. With several channels,
    /// each sorts its own elements; the sorted parts are then merged if their GPUs can access each other's
    /// memory. The same holds for memory that an OpenCL driver allocated in several pieces. Without that much
    /// memory, the first GPU sorts in place, with 0.1 to 9.2 GiB of its memory as available. In all other
    /// cases, all cores sort pieces of up to 1 GiB in RAM, and then merge them in place. This takes up to
    /// twice as much RAM as a piece.
    ///
    /// A [`Source`](crate::Source) of at least 16 MiB can be sorted through its device memory. Its devices
    /// must be such GPUs, and must have [imported](crate::source::SourceBuilder::import) the source's memory.
    /// The elements pass through the devices in pieces, and cross the bus twice in each direction. The sort
    /// needs additional RAM: a sixteenth of the elements, and at least 64 MiB. Up to 1 GiB of elements cross
    /// the bus only once in each direction if one channel has device memory for twice the elements; the sort
    /// then needs as much additional RAM as the elements. Cached pages give up their device memory for the
    /// sort. No element is lost on any failure.
    ///
    /// A sort by a GPU holds the whole range: other threads wait for it. During a sort in RAM other
    /// threads must not write to the range, or the result is unspecified.
    /// [`with_progress`](crate::progress::with_progress) reports the progress and can stop the sort.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<i32>::new(5)?;
    /// array.write(0, &[3, -1, 2, -7, 0])?;
    /// array.sort(..4)?;
    /// assert_eq!(array.to_vec(..)?, [-7, -1, 2, 3, 0]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`section`](View::section); [`WouldDeadlock`](ErrorKind::WouldDeadlock) for a thread
    /// that holds guards; [`NoMemory`](ErrorKind::NoMemory); errors of devices. After an error of a device
    /// the range has its elements in some order; [`Interrupted`](ErrorKind::Interrupted) lists the
    /// unspecified ones.
    fn sort(self, bounds: impl RangeBounds<usize>) -> Result<()>
    where
        Self: View<'a, Shape = Linear, Element: SortKey>,
    {
        sorted(self, bounds, None, false)
    }

    /// Sorts the elements of a range in descending order. See [`sort`](Self::sort).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<f64>::new(4)?;
    /// array.write(0, &[1.5, f64::INFINITY, -2.0, 9.0])?;
    /// array.sort_descending(..)?;
    /// assert_eq!(array.to_vec(..)?, [f64::INFINITY, 9.0, 1.5, -2.0]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`sort`](Self::sort).
    fn sort_descending(self, bounds: impl RangeBounds<usize>) -> Result<()>
    where
        Self: View<'a, Shape = Linear, Element: SortKey>,
    {
        sorted(self, bounds, None, true)
    }

    /// Sorts the elements of a range in ascending order, as [`sort`](Self::sort) does, and applies the
    /// same permutation to `values`. The first value belongs to the first element of the range. The sort
    /// is stable: equal elements keep their order, and so do their values.
    ///
    /// Values can be plain data of any type. GPUs move values of 4 and 8 bytes under these conditions:
    ///
    /// - Both arrays are on the same devices, with as much additional memory as elements and values.
    /// - With several channels, both arrays have the same page length. The starts of both ranges differ by a
    ///   multiple of the page length times the number of channels.
    ///
    /// Other values pass through RAM.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let ages = VirtualArray::<u8>::new(4)?;
    /// let names = VirtualArray::<[u8; 3]>::new(4)?;
    /// ages.write(0, &[51, 8, 51, 30])?;
    /// names.write(0, &[*b"Eve", *b"Tim", *b"Ada", *b"Bob"])?;
    /// ages.sort_with(.., &names)?;
    /// assert_eq!(ages.to_vec(..)?, [8, 30, 51, 51]);
    /// assert_eq!(names.to_vec(..)?, [*b"Tim", *b"Bob", *b"Eve", *b"Ada"]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`sort`](Self::sort), for the elements and for the values;
    /// [`LengthMismatch`](ErrorKind::LengthMismatch) unless there is a value for each element;
    /// [`KernelOverlap`](ErrorKind::KernelOverlap) if elements and values overlap.
    fn sort_with<'v, V>(self, bounds: impl RangeBounds<usize>, values: V) -> Result<()>
    where
        Self: View<'a, Shape = Linear, Element: SortKey>,
        V: ViewMut<'v> + View<'v, Shape = Linear>,
    {
        let (store, shape) = values.parts();
        let target = store.as_target(INTERNAL);
        sorted(self, bounds, Some((Operand::changed(target, shape.start), values.len())), false)
    }

    /// Writes one value to all elements within bounds. The devices fill whole pages.
    ///
    /// # Errors
    /// The errors of [`section`](View::section); [`Device`](ErrorKind::Device).
    fn fill(self, bounds: impl RangeBounds<Self::Index>, value: Self::Element) -> Result<()> {
        let (store, shape) = self.parts();
        shape.fill(store, &shape.checked(bounds)?, value, INTERNAL)
    }

    /// Discards the contents of elements. Elements of an array become zero, without any writes for whole
    /// pages. Elements of a source are unspecified afterwards, and changes by devices need not be written
    /// back.
    ///
    /// # Errors
    /// The errors of [`fill`](Self::fill).
    fn discard(self, bounds: impl RangeBounds<Self::Index>) -> Result<()> {
        let (store, shape) = self.parts();
        shape.runs(&shape.checked(bounds)?).try_for_each(|run| store.discard_range(&run, INTERNAL))
    }

    /// Writes values to the elements of a list of indices. If several values have the same index, the last
    /// one wins.
    ///
    /// # Errors
    /// The errors of [`gather`](View::gather), and [`LengthMismatch`](ErrorKind::LengthMismatch). If an
    /// index is outside, no element is written. After an error of a device any of the listed elements may
    /// be written.
    fn scatter(self, indices: &[Self::Index], values: &[Self::Element]) -> Result<()> {
        equal_lengths(indices.len(), values.len())?;
        let (store, shape) = self.parts();
        let (of, list) = shape.list(indices)?;
        store.scatter_within(of, &list, values, INTERNAL)
    }

    /// Writes elements at the indices of a sequence of pairs, in chunks. The sequence can have any length.
    /// Returns the number of written elements.
    ///
    /// # Errors
    /// The errors of [`scatter`](Self::scatter). The chunks before the one with the error are written.
    fn scatter_iter(self, elements: impl IntoIterator<Item = (Self::Index, Self::Element)>) -> Result<usize> {
        scatter_chunks(self, elements)
    }
}

/// Copies elements of a store to a range of another one through a host buffer.
pub(crate) fn copy_by_host<S: StoreMut>(
    target: &S,
    to: &Range<usize>,
    source: &impl Store<Element = S::Element>,
    from: Linear,
) -> Result<()> {
    // Pieces are whole pages of the target, which are then not fetched.
    let page = target.page_elements();
    let piece = (COPIED_AT_ONCE / size_of::<S::Element>() / page).max(1) * page;
    let mut buffer = zeroed_vec(piece.min(from.len))?;
    let mut copy = |part: PagePart| {
        let at = part.of_range;
        let buffer = &mut buffer[..at.len()];
        source.read_at(from.start + at.start, buffer, INTERNAL)?;
        target.write_at(to.start + at.start, buffer, INTERNAL)
    };
    let is_same = std::ptr::from_ref(target).addr() == std::ptr::from_ref(source).addr();
    let mut parts = parts(to.clone(), piece);
    if is_same && from.range().contains(&to.start) {
        // Copies from the end, as `memmove` does, so that no element is overwritten before it is read.
        parts.rev().try_for_each(copy)
    } else {
        parts.try_for_each(&mut copy)
    }
}

fn sorted<'a, V>(
    view: V,
    bounds: impl RangeBounds<usize>,
    values: Option<(Operand<'_>, usize)>,
    is_descending: bool,
) -> Result<()>
where
    V: ViewMut<'a> + View<'a, Shape = Linear, Element: SortKey>,
{
    let (store, shape) = view.parts();
    let range = shape.places(bounds)?;
    if let Some((values, len)) = values {
        expect_len("the values", range.len(), len)?;
        let is_same = std::ptr::addr_eq(values.store, store.as_operand(INTERNAL));
        if is_same && values.start < range.end && range.start < values.start + len {
            let (place, result, argument) = (String::new(), "the elements".into(), "the values".into());
            return Err(ErrorKind::KernelOverlap { kernel: "sort".into(), place, result, argument }.into());
        }
    }
    let values = values.map(|(values, _)| values);
    let sorted = sort::sort(store, &range, values, is_descending);
    sorted.map_err(|error| error.counted_from(shape.start))
}

fn prefix_sums<'a, V>(view: V, bounds: impl RangeBounds<usize>, is_exclusive: bool) -> Result<V::Element>
where
    V: ViewMut<'a> + View<'a, Shape = Linear, Element: PrefixSummed>,
{
    let (store, shape) = view.parts();
    let range = shape.places(bounds)?;
    let Some(last) = range.end.checked_sub(1).filter(|_| !range.is_empty()) else {
        return Ok(bytemuck::Zeroable::zeroed());
    };
    let own = store.get_at(last, INTERNAL)?;
    let (result, page_len) = (store.as_target(INTERNAL), store.page_elements());
    let scan = Scan { store: result, page_len, range, row: 0, is_exclusive };
    scan.run::<V::Element>().map_err(|error| error.counted_from(shape.start))?;
    let sum = store.get_at(last, INTERNAL)?;
    Ok(if is_exclusive { vmarray_kernel::k::add(sum, own) } else { sum })
}

impl<'a, T: crate::Element, D: backend_api::Device> View<'a> for &'a crate::VirtualArray<T, D> {
    type Element = T;
    type Index = usize;
    type Store = crate::VirtualArray<T, D>;
    type Shape = Linear;
    type Section = Section<'a, Self::Store>;

    #[inline(always)]
    fn parts(self) -> (&'a Self::Store, Linear) {
        (self, Linear::whole(self.len()))
    }

    fn of_parts(store: &'a Self::Store, shape: Linear, _: Internal) -> Self::Section {
        Section::new(store, shape)
    }
}

impl<'a, T: crate::Element, D: backend_api::Device> ViewMut<'a> for &'a crate::VirtualArray<T, D> {
    type SectionMut = SectionMut<'a, Self::Store>;

    fn of_parts_mut(store: &'a Self::Store, shape: Linear, _: Internal) -> Self::SectionMut {
        Section::new(store, shape)
    }
}
