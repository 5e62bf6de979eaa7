//! [`View`] and [`ViewMut`]: operations of arrays, sources (program memory), their sections and boxes.

mod array;
mod gathered;
mod search;
mod section;
mod shape;
mod shared;
mod store;
mod stored_box;

use std::ops::{Range, RangeBounds};

use bytemuck::NoUninit;

use crate::array::range::{PagePart, parts};
use crate::base::element::Field;
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::{Result, expect_len};
use crate::base::memory::zeroed_vec;
use crate::ops::executor::copy_elements;
use crate::ops::find::{Found, Seek, What};
use crate::ops::sealed::{Internal, Sealed};

pub(crate) use crate::ops::sealed::INTERNAL;
pub use gathered::Gathered;
use gathered::scatter_chunks;
use search::search_region;
pub use section::{Section, SectionMut};
pub use shape::{Linear, LoweredRegion, Shape};
pub use shared::SharedSection;
pub use store::{Store, StoreMut};
pub use stored_box::StoredBox;
pub(crate) use stored_box::{SignedBox, count};

/// The approximate number of bytes that the host copies at a time for [`ViewMut::copy_from`].
const COPIED_AT_ONCE: usize = 64 << 10;

impl<S: Store> Sealed for &S {}

/// A readable view: an array, a source (program memory that devices process), or a range or box of either.
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
/// The devices carry out searches and gathers in place. Extension traits add the other operations: see [the
/// table](crate::views).
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
pub trait View<'a>: Sealed + Copy + Send + Sync {
    /// The type of the view's elements.
    type Element: crate::Element;
    /// The type of an element's index: `usize`, or `[usize; N]`.
    type Index: Copy + std::fmt::Debug + Ord + Send + Sync + Unpin + 'static;
    /// The type of the array or [source](crate::Source) that contains the elements.
    type Store: Store<Element = Self::Element> + 'a;
    /// The type that maps indices of the view to indices of its store.
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

    /// Returns a part of the view, as another view. The call copies no elements and holds no pages.
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

    /// Copies elements into a slice, from the element `start` on.
    ///
    /// A read of many pages bypasses an array's cache: the devices copy pages that are not in the cache in
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

    /// Returns the indices of all elements whose field has this value, in ascending order. Two values are
    /// equal if their bytes are equal.
    ///
    /// # Errors
    /// [`Device`](ErrorKind::Device); [`WouldDeadlock`](ErrorKind::WouldDeadlock) if the calling thread
    /// holds a page exclusively.
    fn find<F: NoUninit>(self, field: Field<Self::Element, F>, value: &F) -> Result<Vec<Self::Index>> {
        self.find_first(.., field, value, usize::MAX).map(|found| found.indices)
    }

    /// Like [`find`](Self::find), within bounds. Returns the first `limit` matches, and the total number.
    ///
    /// The elements of a box are separate runs in storage. The devices search neighbouring runs together, and
    /// discard matches between the runs.
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
        expect_len("the slice of values", indices.len(), into.len())?;
        let (store, shape) = self.parts();
        let (of, list) = shape.list(indices)?;
        store.gather_within(of, &list, into, INTERNAL)
    }

    /// Returns an iterator over the elements that a sequence of indices names. The sequence can have any
    /// length, because the iterator gathers its elements in chunks of some megabytes.
    fn gather_iter<I: IntoIterator<Item = Self::Index>>(
        self,
        indices: I,
    ) -> Gathered<'a, Self::Store, Self::Shape, I::IntoIter> {
        let (store, shape) = self.parts();
        Gathered::new(store, shape, indices.into_iter())
    }

    /// Prefetches elements. For an array, loads pages into its cache in the background, until the cache is
    /// full. For a source, copies elements to the devices before the call returns.
    ///
    /// # Errors
    /// The errors of [`section`](Self::section); [`Device`](ErrorKind::Device).
    fn prefetch(self, bounds: impl RangeBounds<Self::Index>) -> Result<()> {
        let (store, shape) = self.parts();
        shape.fetch(store, &shape.checked(bounds)?, INTERNAL)
    }

    /// Writes back changes. For an array, copies dirty pages from its cache to the devices. For a source,
    /// copies the devices' changes to the program's memory. The cached copies remain.
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

    /// Writes back changes and drops the cached copies. Pages leave an array's cache, and elements of a
    /// source leave the devices.
    ///
    /// # Errors
    /// The errors of [`flush`](Self::flush).
    fn evict(self, bounds: impl RangeBounds<Self::Index>) -> Result<()> {
        let (store, shape) = self.parts();
        shape.touched(store, &shape.checked(bounds)?).try_for_each(|run| store.give_up(&run, INTERNAL))
    }
}

/// Executes a search within bounds of a view.
fn sought<'a, V: View<'a>>(
    view: V,
    bounds: impl RangeBounds<V::Index>,
    seek: Seek<'_>,
) -> Result<Found<V::Index>> {
    let (store, shape) = view.parts();
    search_region(store, &shape, &shape.checked(bounds)?, seek)
}

/// A [`View`] with methods that write its elements.
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

    /// Returns a part of the view, as a writable view. The call copies no elements and holds no pages.
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

    /// Atomically writes an element if its present value equals `current`. Returns `Ok` with the old value if
    /// it was written, and otherwise `Err` with the present value. Two values are equal if their bytes are
    /// equal.
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

    /// Atomically replaces an element by the result of a function of it, and returns the old value. The
    /// method may call the function several times. The function must not use the view.
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

    /// Swaps two elements. The swap is not atomic: other threads may briefly see the same value twice.
    ///
    /// # Errors
    /// The errors of [`get`](View::get). Both elements then have their old values, if their devices still
    /// work.
    fn swap(self, a: Self::Index, b: Self::Index) -> Result<()> {
        let (store, shape) = self.parts();
        store.swap_at(shape.place(a)?, shape.place(b)?, INTERNAL)
    }

    /// Copies a slice to the elements from `start` on. Pages that are overwritten as a whole are not fetched.
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

    /// Copies another view to the elements from `start` on. The two views may overlap, as in `memmove`.
    ///
    /// Devices copy directly, without the host, under these conditions:
    ///
    /// - The copy has at least 64 KiB and four pages.
    /// - Both views are of arrays without [mirrors](crate::Placement::Mirrored).
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
    /// during a [`transform`](crate::views::QueryMut::transform) of joined arrays: an access to a page of the
    /// target waits while the page is written. The copy sees every write to the source that returned before
    /// the call began, and may see concurrent writes.
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

    /// Writes one value to all elements within bounds. The devices fill whole pages.
    ///
    /// # Errors
    /// The errors of [`section`](View::section); [`Device`](ErrorKind::Device).
    fn fill(self, bounds: impl RangeBounds<Self::Index>, value: Self::Element) -> Result<()> {
        let (store, shape) = self.parts();
        shape.fill(store, &shape.checked(bounds)?, value, INTERNAL)
    }

    /// Discards the contents of elements. Elements of an array become zero; whole pages need no writes.
    /// Elements of a source become unspecified, and the devices' changes to them need not be written back.
    ///
    /// # Errors
    /// The errors of [`fill`](Self::fill).
    fn discard(self, bounds: impl RangeBounds<Self::Index>) -> Result<()> {
        let (store, shape) = self.parts();
        shape.runs(&shape.checked(bounds)?).try_for_each(|run| store.discard_range(&run, INTERNAL))
    }

    /// Writes values to the elements that a list of indices names. The last value of a repeated index
    /// remains.
    ///
    /// # Errors
    /// The errors of [`gather`](View::gather), and [`LengthMismatch`](ErrorKind::LengthMismatch). If an
    /// index is outside, no element is written. After an error of a device any of the listed elements may
    /// be written.
    fn scatter(self, indices: &[Self::Index], values: &[Self::Element]) -> Result<()> {
        expect_len("the slice of values", indices.len(), values.len())?;
        let (store, shape) = self.parts();
        let (of, list) = shape.list(indices)?;
        store.scatter_within(of, &list, values, INTERNAL)
    }

    /// Writes elements from a sequence of pairs (index and value), in chunks. The sequence can have any
    /// length. Returns the number of written elements.
    ///
    /// # Errors
    /// The errors of [`scatter`](Self::scatter). The chunks before the one with the error are written.
    fn scatter_iter(self, elements: impl IntoIterator<Item = (Self::Index, Self::Element)>) -> Result<usize> {
        let (store, shape) = self.parts();
        scatter_chunks(store, &shape, elements)
    }
}

/// Copies elements of a store to a range of another store, through a host buffer.
pub(crate) fn copy_by_host<S: StoreMut>(
    target: &S,
    to: &Range<usize>,
    source: &impl Store<Element = S::Element>,
    from: Linear,
) -> Result<()> {
    // Copy whole pages of the target, because a page that is overwritten as a whole need not be fetched.
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
        // The ranges overlap: copy from the end, as `memmove` does, to read each element before overwriting
        // it.
        parts.rev().try_for_each(copy)
    } else {
        parts.try_for_each(&mut copy)
    }
}
