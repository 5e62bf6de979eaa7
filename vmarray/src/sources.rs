//! Sources: memory that the program owns, worked on by devices.

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

/// Elements in memory that the program owns (a slice, a vector, a mapped file), which devices work on as
/// well.
///
/// Where an array's pages live on devices and are cached in RAM, a source's live in RAM and are cached on
/// devices: copied there when an operation needs them, and back when the program looks at them, if they are
/// newer on the device. Device memory is bounded, so that data larger than a card can be searched and changed
/// on it.
///
/// # Coherence
///
/// A directory knows of each *block*, a 64th of a page, whether the device of its page has a copy, and
/// whether that is newer than the home. At most one of the two is newer, and there is one device for each
/// page. An access transfers nothing that is valid where it is needed:
///
/// | operation | what is copied |
/// |---|---|
/// | [`find`](crate::views::View::find), [`count`](crate::views::View::count), [`position`](crate::views::View::position), [`prefetch`](crate::views::View::prefetch) | to the devices, blocks of the range that are not there |
/// | [`count_where`](crate::views::Query::count_where), [`sum`](crate::views::Query::sum), [`min`](crate::views::Query::min) and other questions by [expressions](crate::expr) | the same |
/// | [`select_where`](crate::views::View::select_where) | the same; back, those selected elements that are newer on a device |
/// | [`transform`](crate::views::QueryMut::transform), [`assign_where`](crate::views::QueryMut::assign_where) | the same; nothing for blocks all of whose bytes are written, whatever they were |
/// | the same of what is [joined](crate::views::View::join) | the same, and each time the elements of the others |
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
/// All operations can be called from any number of threads. A write that has returned is seen by every later
/// access of the program and of devices. Element operations are atomic; those on ranges are atomic by page.
/// Each access of the program takes a lock of the page; it waits while a device writes to the page, and, to
/// write, while a device reads it. Device-side operations on one source take turns on each channel.
///
/// # Lifetime
///
/// The memory is borrowed, or owned, by the source; [`into_home`](Self::into_home) gives it back. Dropping
/// the source brings home what is newer on the devices; what cannot be, because a device fails, is reported
/// to `tracing` or standard error. [`flush`](crate::views::View::flush) first where that matters. A source
/// that is leaked brings nothing home.
///
/// # Example
///
/// ```
/// # use vmarray::prelude::*;
/// let mut elements = vec![1_u32; 100_000];
/// let source = Source::new(&mut elements[..])?;
/// assert_eq!(source.count(.., Field::whole(), &1)?, 100_000);
/// source.fill(500..600, 2)?;
/// // Again nothing is copied: it is all there.
/// assert_eq!(source.count(.., Field::whole(), &1)?, 99_900);
/// drop(source);
/// assert_eq!(elements[500], 2);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// What is where, what is right, and what was done:
///
/// ```
/// # use vmarray::prelude::*;
/// let mut source = Source::builder(vec![7_u32; 1000]).page_len(100).device_bytes(4000).build()?;
/// assert!(source.page_len() == 100 && source.device_bytes() <= 4000);
/// source.fill(..500, 5)?;
/// assert!(source.page_state(0)?.has_slot && !source.page_state(9)?.has_slot);
/// assert_eq!(source.stats().total().bytes_from_device, 0);
/// source.flush(..)?;
/// source.reset_stats();
/// // Changed behind the source's back, as a mapped file may be, the home would differ from the devices.
/// assert_eq!(source.verify(..)?, None);
/// source.invalidate(..)?;
/// // In place: nobody else has the source.
/// source.slice_mut(900..)?.fill(2);
/// assert_eq!(source.slice(499..501)?, [5, 7]);
/// assert_eq!(source.into_home().unwrap()[899..901], [7, 2]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Source<T: Element, H: Home<T> = Vec<T>, D: Device = AnyDevice> {
    // Declared first, dropped first: it brings home what is newer elsewhere.
    core: Box<Core<T>>,
    /// Never touched while there is the core; boxed, so that it is not even moved.
    home: Box<H>,
    devices: PhantomData<fn() -> D>,
}

/// Where the elements of a page are, as [`Source::page_state`] tells.
///
/// ```
/// # use vmarray::prelude::*;
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
    /// The channel, and so the device, that the page belongs to.
    pub channel: usize,
    /// How many elements there are.
    pub elements: usize,
    /// Whether the page has a place in device memory.
    pub has_slot: bool,
    /// How many elements are valid on the device.
    pub on_device: usize,
    /// How many of those are newer than the home. All others are valid at home.
    pub newer: usize,
}

/// A source whose home cannot be given back yet: the error of [`Source::into_home`].
///
/// ```
/// # use vmarray::prelude::*;
/// # fn f(source: vmarray::Source<u32>) -> Vec<u32> {
/// // Tries again, for instance.
/// source.into_home().or_else(|unfinished| unfinished.source.into_home()).expect("twice in a row")
/// # }
/// # assert!(f(vmarray::Source::new(vec![1])?) == [1]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Unfinished<T: Element, H: Home<T>, D: Device = AnyDevice> {
    /// The source, with everything that is newer on its devices.
    pub source: Source<T, H, D>,
    /// Why that cannot be brought home.
    pub error: Error,
}

impl<T: Element, H: Home<T>, D: Device> fmt::Debug for Unfinished<T, H, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unfinished").field("source", &self.source).field("error", &self.error).finish()
    }
}

impl<T: Element, H: Home<T>, D: Device> fmt::Display for Unfinished<T, H, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "elements cannot be brought home: {}", self.error)
    }
}

impl<T: Element, H: Home<T>, D: Device> std::error::Error for Unfinished<T, H, D> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<T: Element, H: Home<T>> Source<T, H> {
    /// Memory of the program over the [devices of the machine](crate::devices), with defaults that suit them.
    /// Takes device memory; copies nothing.
    ///
    /// # Errors
    /// As [`SourceBuilder::build`].
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// let owned = Source::new(vec![1_u32, 2, 3])?;
    /// let borrowed = Source::new(&[1_u32, 2, 3][..])?;
    /// assert_eq!(owned.get(2)?, borrowed.get(2)?);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// What is only borrowed for reading cannot be written to:
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
    /// How many elements a page has. The last page may have fewer; a block, the least that is copied, has a
    /// 64th of them, rounded up.
    #[must_use]
    pub fn page_len(&self) -> usize {
        self.core.cuts.page_len
    }

    /// How much device memory the source has, of all devices together.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.core.channels.iter().map(|channel| channel.slot_bytes()).sum()
    }

    /// What the directory says of a page, at the moment of asking.
    ///
    /// # Errors
    /// [`IndexOutside`](ErrorKind::IndexOutside), with pages as index and length.
    pub fn page_state(&self, page: usize) -> Result<PageState> {
        let core = &self.core;
        let entry =
            core.entries.get(page).ok_or(ErrorKind::IndexOutside { index: page, len: core.cuts.pages() })?;
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

    /// A range in place, in the program's memory: no copy, and no lock, since nobody else has the source.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed);
    /// [`Device`](ErrorKind::Device) if what is newer on a device cannot be brought home.
    pub fn slice(&mut self, range: impl RangeBounds<usize>) -> Result<&[T]> {
        let range = checked_range(range, self.len())?;
        self.core.flush(&range)?;
        Ok(self.core.slice(&range))
    }

    /// Takes the home's elements of a range for right, whatever devices have: for memory that was changed
    /// behind the source's back, such as a mapped file. What was newer on a device is lost.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed);
    /// [`Device`](ErrorKind::Device) if elements beside the range, in blocks that it covers in part, are
    /// newer on a device that fails.
    pub fn invalidate(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.core.invalidate(&checked_range(range, self.len())?)
    }

    /// Compares what devices have of a range, and is not newer there, with the home. The index of the first
    /// element that differs, if any: the memory was changed behind the source's back, and needs
    /// [`invalidate`](Self::invalidate). May look as far as the blocks of the range do.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed),
    /// [`Device`](ErrorKind::Device).
    pub fn verify(&self, range: impl RangeBounds<usize>) -> Result<Option<usize>> {
        self.core.verify(&checked_range(range, self.len())?)
    }

    /// Brings home what is newer on the devices and gives the memory back.
    ///
    /// # Errors
    /// The source, unharmed, and why something cannot be brought home.
    pub fn into_home(self) -> std::result::Result<H, Unfinished<T, H, D>> {
        if let Err(error) = self.core.flush(&(0..self.len())) {
            return Err(Unfinished { source: self, error });
        }
        let Self { core, home, .. } = self;
        drop(core);
        Ok(*home)
    }

    /// What the source has done since it was built or [`reset_stats`](Self::reset_stats) was called. A hit is
    /// a page of a device-side operation that had all that was needed on its device; a miss one that had not.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Sets all [statistics](Self::stats) back to zero.
    pub fn reset_stats(&self) {
        self.core.reset_stats();
    }
}

impl<T: Element, H: HomeMut<T>, D: Device> Source<T, H, D> {
    /// A range in place, in the program's memory, to be changed: no copy, and no lock, since nobody else has
    /// the source. What devices have of it is void. [`discard`](crate::views::ViewMut::discard) first what
    /// will be overwritten anyway.
    ///
    /// # Errors
    /// As [`slice`](Self::slice).
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
