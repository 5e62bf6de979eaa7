//! Sources: memory of the program as an operand of devices.

#[forbid(unsafe_code)]
mod batch;
mod builder;
mod channel;
#[forbid(unsafe_code)]
mod coherence;
mod core;
#[forbid(unsafe_code)]
mod directory;
#[forbid(unsafe_code)]
mod future;
#[forbid(unsafe_code)]
mod gather;
mod home;
#[forbid(unsafe_code)]
mod operations;
mod sort;
#[forbid(unsafe_code)]
mod staging;
#[forbid(unsafe_code)]
mod view;

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use backend_api::Device;

use crate::array::range::checked as checked_range;
use crate::base::element::Element;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::stats::Stats;
use crate::ops::view::View as _;
use crate::setup::any::AnyDevice;

use self::core::Core;

pub use builder::SourceBuilder;
pub use future::SourceFlushAsync;
pub use home::{Home, HomeMut};

/// Elements in memory of the program (a slice, a vector, a mapped file) that devices can search and change
/// too.
///
/// Pages of an array live on devices and are cached in RAM. Pages of a source live in RAM and are cached on
/// devices: an operation copies them there, and an access of the program copies newer ones back. Device
/// memory is bounded, so devices can search and change data larger than their memory.
///
/// # Coherence
///
/// For each *block*, 1/64 of a page, a directory records whether the device of the page has a copy, and
/// whether the copy is newer than the home. At most one of the two is newer, and each page has one device. An
/// access transfers no data that is valid at its destination:
///
/// | operation | copied data |
/// |---|---|
/// | [`find`](crate::views::View::find), [`count`](crate::views::View::count), [`position`](crate::views::View::position), [`prefetch`](crate::views::View::prefetch) | to the devices, blocks of the range that are not there |
/// | [`count_where`](crate::views::Query::count_where), [`sum`](crate::views::Query::sum), [`min`](crate::views::Query::min) and other queries by [expressions](crate::expr) | the same |
/// | [`select_where`](crate::views::View::select_where) | the same; back, selected elements that are newer on a device |
/// | [`transform`](crate::views::QueryMut::transform), [`assign_where`](crate::views::QueryMut::assign_where) | the same; nothing for blocks that are overwritten completely |
/// | the same on [joined](crate::views::View::join) views | the same, and each time the elements of the others |
/// | [`sort`](crate::views::ViewMut::sort) | home, all that is newer on a device; nothing is valid there afterwards |
/// | [`fill`](crate::views::ViewMut::fill) | to the devices, the blocks at the two ends if the range covers only parts of them |
/// | [`get`](crate::views::View::get), [`read`](crate::views::View::read), [`slice`](Self::slice) | home, blocks of the range that are newer on a device |
/// | [`set`](crate::views::ViewMut::set), [`write`](crate::views::ViewMut::write) | home, blocks that are newer on a device and only partly overwritten |
/// | [`flush`](crate::views::View::flush) | home, blocks of the range that are newer on a device |
/// | [`discard`](crate::views::ViewMut::discard) | nothing |
/// | pages that give up their device memory to others | home, blocks that are newer on the device |
///
/// # Consistency
///
/// Any number of threads may call all operations. Every later access of the program and of devices sees a
/// completed write. Operations on elements are atomic; operations on ranges are atomic by page. Each access
/// of the program takes a lock of the page; it waits while a device writes the page, and a write also waits
/// while a device reads it. Device-side operations on one source alternate on each channel.
///
/// # Lifetime
///
/// The source borrows or owns the memory; [`into_home`](Self::into_home) returns it. Dropping the source
/// copies newer elements home; a failure of a device is reported to `tracing` or standard error. Call
/// [`flush`](crate::views::View::flush) first to get the error. A leaked source copies nothing home.
///
/// # Example
///
/// ```
/// use vmarray::prelude::*;
/// let mut elements = vec![1_u32; 100_000];
/// let source = Source::new(&mut elements[..])?;
/// assert_eq!(source.count(.., Field::whole(), &1)?, 100_000);
/// source.fill(500..600, 2)?;
/// // The second time nothing is copied.
/// assert_eq!(source.count(.., Field::whole(), &1)?, 99_900);
/// drop(source);
/// assert_eq!(elements[500], 2);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// Page states, coherence, and counters:
///
/// ```
/// use vmarray::prelude::*;
/// let mut source = Source::builder(vec![7_u32; 1000]).page_len(100).device_bytes(4000).build()?;
/// assert!(source.page_len() == 100 && source.device_bytes() <= 4000);
/// source.fill(..500, 5)?;
/// assert!(source.page_state(0)?.has_slot && !source.page_state(9)?.has_slot);
/// assert_eq!(source.stats().total().bytes_from_device, 0);
/// source.flush(..)?;
/// source.reset_stats();
/// // A change from outside, as of a mapped file, would make the home differ from the devices.
/// assert_eq!(source.verify(..)?, None);
/// source.invalidate(..)?;
/// // In place, with exclusive access to the source.
/// source.slice_mut(900..)?.fill(2);
/// assert_eq!(source.slice(499..501)?, [5, 7]);
/// assert_eq!(source.into_home().unwrap()[899..901], [7, 2]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Source<T: Element, H: Home<T> = Vec<T>, D: Device = AnyDevice> {
    // Declared first, so that it is dropped first: its drop copies newer elements back.
    core: Box<Core<T>>,
    /// Never accessed while the core exists; boxed, so that it does not move.
    home: Box<H>,
    devices: PhantomData<fn() -> D>,
}

/// Locations of the valid copies of a page's elements, from [`Source::page_state`].
///
/// ```
/// use vmarray::prelude::*;
/// let source = vmarray::Source::builder(vec![0_u32; 1000]).page_len(100).build()?;
/// source.prefetch(0..100)?;
/// source.fill(0..10, 1)?;
/// let state = source.page_state(0)?;
/// assert_eq!((state.elements, state.on_device, state.newer), (100, 100, 10));
/// assert_eq!(source.page_state(1)?.on_device, 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageState {
    /// The channel of the page, which determines its device.
    pub channel: usize,
    /// Number of elements of the page.
    pub elements: usize,
    /// True if the page has a slot in device memory.
    pub has_slot: bool,
    /// Number of elements that are valid on the device.
    pub on_device: usize,
    /// The number of elements that are newer on the device. All other elements are valid at home.
    pub newer: usize,
}

/// Error of [`Source::into_home`]: the source, whose newer elements could not be copied home.
///
/// ```
/// use vmarray::prelude::*;
/// # fn f(source: vmarray::Source<u32>) -> Vec<u32> {
/// // For instance, try again.
/// source.into_home().or_else(|unfinished| unfinished.source.into_home()).expect("twice in a row")
/// # }
/// # assert!(f(vmarray::Source::new(vec![1])?) == [1]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Unfinished<T: Element, H: Home<T>, D: Device = AnyDevice> {
    /// The unchanged source, with the elements that are newer on its devices.
    pub source: Source<T, H, D>,
    /// Error of the copy to the home.
    pub error: Error,
}

impl<T: Element, H: Home<T>, D: Device> fmt::Debug for Unfinished<T, H, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unfinished").field("source", &self.source).field("error", &self.error).finish()
    }
}

impl<T: Element, H: Home<T>, D: Device> fmt::Display for Unfinished<T, H, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "elements cannot be copied back from devices: {}", self.error)
    }
}

impl<T: Element, H: Home<T>, D: Device> std::error::Error for Unfinished<T, H, D> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Returns the error, for `source.into_home()?`. Drops the source: elements that are newer on a device that
/// still fails are lost, as with any source that is dropped.
impl<T: Element, H: Home<T>, D: Device> From<Unfinished<T, H, D>> for Error {
    fn from(unfinished: Unfinished<T, H, D>) -> Self {
        unfinished.error
    }
}

impl<T: Element, H: Home<T>> Source<T, H> {
    /// A source of this memory over the [devices of the machine](crate::devices), with default settings.
    /// Allocates device memory; copies nothing.
    ///
    /// # Errors
    /// The errors of [`SourceBuilder::build`].
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let owned = Source::new(vec![1_u32, 2, 3])?;
    /// let borrowed = Source::new(&[1_u32, 2, 3][..])?;
    /// assert_eq!(owned.get(2)?, borrowed.get(2)?);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// A source of a shared borrow cannot be written:
    ///
    /// ```compile_fail
    /// use vmarray::prelude::*;
    /// vmarray::Source::new(&[1_u32, 2, 3][..])?.set(0, 1)?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn new(home: H) -> Result<Self> {
        Self::builder(home).build()
    }

    /// Describes a source over devices of any kind.
    pub fn builder(home: H) -> SourceBuilder<T, H> {
        SourceBuilder::new(home)
    }
}

impl<T: Element, H: Home<T>, D: Device> Source<T, H, D> {
    /// Number of elements of a page. The last page may have fewer; a block, the unit of copies, has 1/64 of
    /// them, rounded up.
    #[must_use]
    pub fn page_len(&self) -> usize {
        self.core.cuts.page_len
    }

    /// Device memory of the source in bytes, over all devices.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.core.channels.iter().map(|channel| channel.slot_bytes()).sum()
    }

    /// The directory's state of a page, at the time of the call.
    ///
    /// # Errors
    /// [`PageOutside`](ErrorKind::PageOutside).
    pub fn page_state(&self, page: usize) -> Result<PageState> {
        let core = &self.core;
        let entry =
            core.entries.get(page).ok_or(ErrorKind::PageOutside { page, pages: core.cuts.pages() })?;
        let _guard = entry.share();
        let count = |blocks| core.cuts.ranges(page, blocks).map(|range| range.len()).sum();
        Ok(PageState {
            channel: page % core.channels.len(),
            elements: core.cuts.elements(page),
            has_slot: entry.slot().is_some(),
            on_device: count(entry.valid()),
            newer: count(entry.dirty()),
        })
    }

    /// Returns a range as a slice of the program's memory, after newer elements were copied home. Reading it
    /// takes no lock, because the access is exclusive.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed);
    /// [`Device`](ErrorKind::Device) if newer elements cannot be copied home.
    pub fn slice(&mut self, range: impl RangeBounds<usize>) -> Result<&[T]> {
        let range = checked_range(range, self.len())?;
        self.core.flush(&range)?;
        Ok(self.core.slice(&range))
    }

    /// Drops device copies of a range, so its elements at home are valid. Call it after other code changed
    /// the memory, such as a mapped file. Newer elements on a device are lost.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed);
    /// [`Device`](ErrorKind::Device) if elements next to the range, in partly covered blocks, are newer on a
    /// device that fails.
    pub fn invalidate(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.core.invalidate(&checked_range(range, self.len())?)
    }

    /// Compares device copies of a range with the home, except for copies that are newer. Returns the index
    /// of the first element that differs, if any: other code has changed the memory, so call
    /// [`invalidate`](Self::invalidate). The comparison covers all blocks that overlap the range.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed),
    /// [`Device`](ErrorKind::Device).
    pub fn verify(&self, range: impl RangeBounds<usize>) -> Result<Option<usize>> {
        self.core.verify(&checked_range(range, self.len())?)
    }

    /// Copies newer elements home and returns the memory.
    ///
    /// # Errors
    /// [`Unfinished`], which has the unchanged source and the error. The operator `?` converts it to an
    /// [`Error`], and drops the source.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let source = Source::new(vec![0_u32; 1000])?;
    /// source.fill(.., 7)?;
    /// assert_eq!(source.into_home()?, [7; 1000]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn into_home(self) -> std::result::Result<H, Unfinished<T, H, D>> {
        if let Err(error) = self.core.flush(&(0..self.len())) {
            return Err(Unfinished { source: self, error });
        }
        let Self { core, home, .. } = self;
        drop(core);
        Ok(*home)
    }

    /// Counters since the source was built, or since [`reset_stats`](Self::reset_stats). Each page of a
    /// device-side operation counts: as a hit if all necessary data was on its device, else as a miss.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Resets all [statistics](Self::stats) to zero.
    pub fn reset_stats(&self) {
        self.core.reset_stats();
    }
}

impl<T: Element, H: HomeMut<T>, D: Device> Source<T, H, D> {
    /// Returns a range as a mutable slice of the program's memory, after newer elements were copied home.
    /// Takes no lock, because the access is exclusive. Device copies become invalid. If you overwrite the
    /// whole range, call [`discard`](crate::views::ViewMut::discard) before, which saves the copies.
    ///
    /// # Errors
    /// The errors of [`slice`](Self::slice).
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<&mut [T]> {
        let range = checked_range(range, self.len())?;
        self.core.flush(&range)?;
        self.core.invalidate(&range)?;
        Ok(self.core.slice_mut(&range))
    }
}

impl<T: Element, H: Home<T>, D: Device> fmt::Debug for Source<T, H, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("len", &self.len())
            .field("page_len", &self.page_len())
            .field("element_bytes", &size_of::<T>())
            .field("channels", &self.core.channels.len())
            .field("device_bytes", &self.device_bytes())
            .finish_non_exhaustive()
    }
}
