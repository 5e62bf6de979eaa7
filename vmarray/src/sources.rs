//! [`Source`]: a slice or vector of the program as an operand of device work, cached in device memory.

#[forbid(unsafe_code)]
mod batch;
#[forbid(unsafe_code)]
mod builder;
#[forbid(unsafe_code)]
mod channel;
#[forbid(unsafe_code)]
mod coherence;
#[forbid(unsafe_code)]
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
#[forbid(unsafe_code)]
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

use self::core::SourceCore;

pub use builder::SourceBuilder;
pub use future::SourceFlushAsync;
pub use home::{Home, HomeMut};

/// Elements in memory of the program, such as a slice, a vector or a mapped file, which devices search and
/// change.
///
/// The pages of a [`VirtualArray`](crate::VirtualArray) are stored on devices and cached in RAM. A source is
/// the reverse: its pages are stored in memory of the program, their *home*, and cached on devices. An
/// operation on a device copies the pages to the device. A later access of the program copies changed
/// elements back to the home. The cache on a device has a limited number of *slots*, each for one page, so a
/// source may be larger than the device memory.
///
/// # Coherence
///
/// Each page belongs to one device. A directory records for each *block*, 1/64 of a page, if the device has a
/// copy, and if this copy is newer than the home. An operation copies only blocks that are not valid at the
/// destination:
///
/// | operation | copied data |
/// |---|---|
/// | [`find`](crate::views::View::find), [`count`](crate::views::View::count), [`position`](crate::views::View::position), [`prefetch`](crate::views::View::prefetch) | to the devices, blocks of the range that the devices do not have |
/// | [`count_where`](crate::views::Query::count_where), [`sum`](crate::views::Query::sum), [`min`](crate::views::Query::min) and other queries by [expressions](crate::expr) | the same |
/// | [`select_where`](crate::views::Select::select_where) | the same; and to the home, selected elements that are newer on a device |
/// | [`transform`](crate::views::QueryMut::transform), [`assign_where`](crate::views::QueryMut::assign_where) | the same, except for blocks that the operation overwrites completely |
/// | these operations on [joined](crate::views::Join::join) views | the same, and in each call the elements of the other views |
/// | [`sort`](crate::views::Sort::sort) | to the home, all blocks that are newer on a device; afterwards no device copy is valid |
/// | [`fill`](crate::views::ViewMut::fill) | to the devices, the blocks at the two ends if the range covers only parts of them |
/// | [`get`](crate::views::View::get), [`read`](crate::views::View::read), [`slice`](Self::slice) | to the home, blocks of the range that are newer on a device |
/// | [`set`](crate::views::ViewMut::set), [`write`](crate::views::ViewMut::write) | to the home, blocks that are newer on a device and only partly overwritten |
/// | [`flush`](crate::views::View::flush) | to the home, blocks of the range that are newer on a device |
/// | [`discard`](crate::views::ViewMut::discard) | nothing |
/// | eviction of a page from device memory | to the home, blocks that are newer on the device |
///
/// # Consistency
///
/// Any number of threads may call all operations. All later accesses of the program and of devices see a
/// completed write. An operation on an element is atomic. An operation on a range is atomic for each page,
/// not as a whole. Each access of the program locks the page: a read waits while a device writes the page,
/// and a write also waits while a device reads it. A channel (the connection to a device) executes the
/// device-side operations on a source one after the other.
///
/// # Lifetime
///
/// The source borrows or owns the memory; [`into_home`](Self::into_home) returns it. The drop of a source
/// copies newer elements from the devices to the home, and reports errors to `tracing` or standard error. To
/// get the error instead, call [`flush`](crate::views::View::flush) before the drop. A leaked source copies
/// nothing to the home.
///
/// # Example
///
/// ```
/// use vmarray::prelude::*;
/// let mut elements = vec![1_u32; 100_000];
/// let source = Source::new(&mut elements[..])?;
/// assert_eq!(source.count(.., Field::whole(), &1)?, 100_000);
/// source.fill(500..600, 2)?;
/// // The second call copies nothing.
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
/// // If another program changed a mapped file, the home would differ from the devices.
/// assert_eq!(source.verify(..)?, None);
/// source.invalidate(..)?;
/// // In place, with exclusive access to the source.
/// source.slice_mut(900..)?.fill(2);
/// assert_eq!(source.slice(499..501)?, [5, 7]);
/// assert_eq!(source.into_home().unwrap()[899..901], [7, 2]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Source<T: Element, H: Home<T> = Vec<T>, D: Device = AnyDevice> {
    // Declared first, so that Rust drops the core before `home`: the core's drop copies newer elements to the
    // program's memory.
    core: Box<SourceCore<T>>,
    /// The program's memory. No code accesses it while the core exists. The box keeps its address stable.
    home: Box<H>,
    devices: PhantomData<fn() -> D>,
}

/// The state of one page, from [`Source::page_state`]: the number of its elements that are valid on the
/// device and in the program's memory (the home).
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
    /// The index of the page's channel (share of a device).
    pub channel: usize,
    /// Number of elements of the page.
    pub elements: usize,
    /// True if the page has a slot (place for a page) in device memory.
    pub has_slot: bool,
    /// Number of elements that are valid on the device.
    pub on_device: usize,
    /// Number of elements that are newer on the device than in the program's memory (the home). All other
    /// elements are valid at home.
    pub newer: usize,
}

/// Error of [`Source::into_home`]: a device failed to copy newer elements to the program's memory (the home).
/// Contains the source.
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
    /// The source, whose devices still have the newer elements.
    pub source: Source<T, H, D>,
    /// The error of the copy.
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

/// Returns the error, so that `source.into_home()?` compiles. The source is dropped, so newer elements are
/// lost if their device still fails.
impl<T: Element, H: Home<T>, D: Device> From<Unfinished<T, H, D>> for Error {
    fn from(unfinished: Unfinished<T, H, D>) -> Self {
        unfinished.error
    }
}

impl<T: Element, H: Home<T>> Source<T, H> {
    /// Creates a source over the memory `home` on all [devices of the machine](crate::devices), with default
    /// settings. Allocates device memory, but copies no elements.
    ///
    /// # Errors
    /// The errors of [`SourceBuilder::build`].
    ///
    /// A source of a shared borrow is read-only:
    ///
    /// ```compile_fail
    /// use vmarray::prelude::*;
    /// vmarray::Source::new(&[1_u32, 2, 3][..])?.set(0, 1)?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn new(home: H) -> Result<Self> {
        Self::builder(home).build()
    }
}

impl<T: Element, H: Home<T>, D: Device> Source<T, H, D> {
    /// Returns the number of elements of a page; the last page may have fewer. A block, the unit of copies,
    /// has 1/64 of this number, rounded up.
    #[must_use]
    pub fn page_len(&self) -> usize {
        self.core.cuts.page_len
    }

    /// Returns the device memory of the source in bytes, as the sum over all devices.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.core.channels.iter().map(|channel| channel.slot_bytes()).sum()
    }

    /// Returns the present state of a page: the number of its elements on the device and in RAM.
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

    /// Copies elements of a range that are newer on a device to the program's memory (the home), and returns
    /// the range as a slice of this memory. Reads of the slice take no lock, because the source is borrowed
    /// exclusively.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed);
    /// [`Device`](ErrorKind::Device) if the copy of newer elements fails.
    pub fn slice(&mut self, range: impl RangeBounds<usize>) -> Result<&[T]> {
        let range = checked_range(range, self.len())?;
        self.core.flush(&range)?;
        Ok(self.core.slice(&range))
    }

    /// Discards the device copies of a range, so that the elements in the program's memory (the home) are
    /// valid. Call this after other code has changed the memory, for example a mapped file. Newer elements on
    /// the devices are lost.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed);
    /// [`Device`](ErrorKind::Device) if a device fails to copy newer elements next to the range, in blocks
    /// that the range covers only partly.
    pub fn invalidate(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.core.invalidate(&checked_range(range, self.len())?)
    }

    /// Compares the device copies of a range with the program's memory (the home), except for copies that are
    /// newer than the home. Returns the index of the first element that differs, if any. If one differs,
    /// other code has changed the memory; then call [`invalidate`](Self::invalidate). The comparison includes
    /// all blocks that overlap the range.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed),
    /// [`Device`](ErrorKind::Device).
    pub fn verify(&self, range: impl RangeBounds<usize>) -> Result<Option<usize>> {
        self.core.verify(&checked_range(range, self.len())?)
    }

    /// Ends the source: copies newer elements from the devices to the program's memory (the home), and
    /// returns the memory.
    ///
    /// # Errors
    /// [`Unfinished`], which contains the unchanged source and the error. The operator `?` converts it to an
    /// [`Error`], and drops the source.
    pub fn into_home(self) -> std::result::Result<H, Unfinished<T, H, D>> {
        if let Err(error) = self.core.flush(&(0..self.len())) {
            return Err(Unfinished { source: self, error });
        }
        let Self { core, home, .. } = self;
        drop(core);
        Ok(*home)
    }

    /// Returns the counters since the creation of the source, or since [`reset_stats`](Self::reset_stats). A
    /// device-side operation counts a hit for each page whose data was already on the device, and a miss for
    /// each other page.
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
    /// Copies elements of a range that are newer on a device to the program's memory (the home), and returns
    /// the range as a mutable slice of this memory. The call takes no lock, because it borrows the source
    /// exclusively. The device copies of the range become invalid. If you overwrite the whole range, first
    /// call [`discard`](crate::views::ViewMut::discard) to avoid the copies to the home.
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
