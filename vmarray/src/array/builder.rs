//! [`Builder`]: sets devices, page size, cache and other options of a new [`VirtualArray`].

use std::marker::PhantomData;
use std::sync::Arc;

use backend_api::{Commit, Device, HostMemory};

use crate::array::settings::{Cache, Devices, Homes, Recipe, Settings};
use crate::array::{VirtualArray, publishing};
use crate::base::element::{self, Element};
use crate::base::error::{ErrorKind, Result};
use crate::base::stats_export;
use crate::engine::channel::{Channel, ChannelLayout, ChannelPlan};
use crate::engine::evict::EvictionPolicy;
use crate::engine::page::PageTable;
use crate::engine::pager::Pager;
use crate::setup::any::AnyDevice;
use crate::setup::placement::Placement;

/// Page size in bytes below which a growing array without a given greatest length prepares fewer pages.
const PAGE_BYTES_LEAST: usize = 4096;
const SHORT_PAGES: usize = 1 << 16;
/// Alignment of frames to cache lines, so that copies and threads do not share one.
const FRAME_ALIGN: usize = 64;
/// Maximum number of frames, because eviction policies count them in 32 bits.
const FRAMES_MAX: usize = 1 << 30;

/// The settings of a new array, from which [`build`](Self::build) creates it. Each setting has a default.
///
/// | setting | default |
/// |---|---|
/// | devices | [all of the machine](crate::devices), shared with other arrays |
/// | placement | equal shares |
/// | greatest length | [its length](Self::max_len) |
/// | page length | the power of two that makes a page 64 KiB long, or just below; for devices with a known [profile](crate::profile::Profile), the length that suits them |
/// | cache | 256 MiB of page-locked RAM, taken as needed |
/// | eviction | CLOCK |
/// | checksums of pages | off |
/// | read-ahead | on |
/// | hits | not counted |
/// | moving to other devices | [not prepared](Self::movable) |
/// | statistics | [published](Self::publish) only if the environment says so |
///
/// ```
/// use vmarray::prelude::*;
/// use std::sync::Arc;
/// use vmarray::host::HostDevice;
/// use vmarray::{EvictionPolicy, Placement, VirtualArray};
/// use vmarray::device::{Commit, HostMemory};
/// // Named devices are called statically: this is a `VirtualArray<u32, HostDevice>`.
/// let array = VirtualArray::<u32>::builder(1 << 16)
///     .devices([Arc::new(HostDevice::new(1 << 20)?)])
///     .placement(Placement::Ratios(vec![1]))
///     .page_len(1024)
///     .cache_bytes(64 << 10) // 16 frames; or `frames_per_channel(16)`, with one channel
///     .eviction(EvictionPolicy::TwoQueue)
///     .read_ahead(false)
///     .count_hits(true)
///     .host_memory(HostMemory::Pageable)
///     .commit(Commit::Proven)
///     .build()?;
/// assert_eq!((array.page_count(), array.footprint().cache_max_bytes), (64, 64 << 10));
/// for i in 0..array.len() {
///     array.set(i, 7)?;
/// }
/// let stats = array.stats().total();
/// assert_eq!((stats.misses, stats.prefetches), (64, 0));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "describes an array; `build` makes it"]
pub struct Builder<T: Element, D: Device> {
    pub(crate) len: usize,
    /// The greatest length to which the array can grow, in elements.
    pub(crate) max_len: usize,
    devices: Devices,
    pub(crate) settings: Settings,
    marker: PhantomData<fn() -> (T, D)>,
}

impl<T: Element> VirtualArray<T> {
    /// Creates a builder for an array of `len` elements with other devices or settings.
    pub fn builder(len: usize) -> Builder<T, AnyDevice> {
        let (devices, settings) = (Devices::Found, Settings::default());
        Builder { len, max_len: 0, devices, settings, marker: PhantomData }
    }
}

impl<T: Element, D: Device> Builder<T, D> {
    /// Returns the builder with another length.
    pub(crate) fn with_len(mut self, len: usize) -> Self {
        self.len = len;
        self
    }

    /// Returns a builder with the same settings except for the page length, for elements of another type.
    pub(crate) fn twin<U: Element>(&self, len: usize) -> Builder<U, D> {
        let devices = self.devices.clone();
        let mut settings = self.settings.clone();
        settings.common.page_len = None;
        Builder { len, max_len: 0, devices, settings, marker: PhantomData }
    }

    /// Returns a builder with the same settings, including the page length, and another length.
    pub(crate) fn resized(&self, len: usize) -> Self {
        let mut resized = self.twin(len);
        resized.settings.common.page_len = self.settings.common.page_len;
        resized.max_len = self.max_len;
        resized
    }

    /// Lets the array grow up to the memory of its devices, unless the program gave a greatest length. With
    /// short pages the limit is lower, because of tables for the greatest number of pages and frames.
    pub(crate) fn growing(mut self) -> Self {
        if self.max_len == 0 {
            let short = |page_len: &usize| page_len.saturating_mul(size_of::<T>()) < PAGE_BYTES_LEAST;
            let pages = self.settings.common.page_len.filter(short);
            let some = |page_len: usize| page_len.saturating_mul(SHORT_PAGES).max(self.len.saturating_mul(4));
            self.max_len = pages.map_or(usize::MAX, some);
        }
        self
    }

    /// Sets the devices that store the pages, and with them the type parameter `D`. Keeps all other settings.
    pub fn devices<E: Device>(self, devices: impl IntoIterator<Item = Arc<E>>) -> Builder<T, E> {
        let devices = Devices::named(devices);
        let Self { len, max_len, settings, .. } = self;
        Builder { len, max_len, devices, settings, marker: PhantomData }
    }

    /// Sets the greatest length of an array that [grows](VirtualArray#growth), in elements. The array starts
    /// with `len` elements, and cannot grow unless `elements` is greater. [`usize::MAX`] means the capacity
    /// of the devices.
    ///
    /// The setting reserves addresses on the devices and for the page table. Unused addresses take no memory.
    /// The builder chooses the cache and the default page length for the greatest length.
    ///
    /// OpenCL devices cannot reserve addresses. Arrays on them allocate memory in steps of up to 1/8 of the
    /// greatest size on each device, and [`build`](Self::build) fails with [`Device`](ErrorKind::Device)
    /// ([`Unsupported`](backend_api::ErrorKind::Unsupported)) for [`usize::MAX`]. `build` fails likewise on
    /// devices whose memory cannot grow, such as CUDA drivers older than 10.2.
    ///
    /// Arrays [in files](Self::create) grow without this setting. With the setting, the length of an array in
    /// files is limited until the program drops the array.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::builder(0).max_len(1000).build()?;
    /// for i in 0..1000 {
    ///     assert_eq!(array.push(i)?, i as usize);
    /// }
    /// assert_eq!((array.len(), array.get(999)?), (1000, 999));
    /// assert!(array.push(0).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn max_len(mut self, elements: usize) -> Self {
        self.max_len = elements;
        self
    }

    /// Sets the distribution of pages over the devices. Placements by bandwidth measure devices without a
    /// [profile](crate::profile::Profile). The measurement of a device takes a fraction of a second.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.settings.common.placement = placement;
        self
    }

    /// Sets the number of elements of a page. Prefer a power of two: other lengths cost divisions.
    ///
    /// If the program uses adjacent elements together, long pages use the bus better. Otherwise short pages
    /// waste less bandwidth.
    ///
    /// The default is the power of two that gives a page of at most 64 KiB. If this process knows the
    /// [profiles](crate::profile::Profile) of the devices, the longest page of the profiles replaces 64 KiB,
    /// up to 1/64 of the cache. A short array has shorter pages.
    pub fn page_len(mut self, elements: usize) -> Self {
        self.settings.common.page_len = Some(elements);
        self
    }

    /// Sets the maximum RAM of the cache in bytes, at most the length of the array. Each channel (share of a
    /// device) gets at least one page. [`frames_per_channel`](Self::frames_per_channel) sets the same limit
    /// in pages; the later of the two calls applies.
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.settings.cache = Cache::Bytes(bytes);
        self
    }

    /// Sets the maximum RAM of the cache: `frames` pages for each channel (share of a device). The cache has
    /// at least one page of each channel, and at most all.
    pub fn frames_per_channel(mut self, frames: usize) -> Self {
        self.settings.cache = Cache::FramesPerChannel(frames);
        self
    }

    /// Sets the eviction policy, which chooses the pages to evict when the cache is full.
    pub fn eviction(mut self, policy: EvictionPolicy) -> Self {
        self.settings.common.eviction = policy;
        self
    }

    /// Sets the kind of host memory for the cache. Devices copy page-locked memory at full speed. If
    /// page-locking fails, the cache uses pageable memory and warns once, unless
    /// [`require_pinned`](Self::require_pinned) is set. A later call with [`HostMemory::Pageable`] cancels
    /// `require_pinned`.
    pub fn host_memory(mut self, kind: HostMemory) -> Self {
        self.settings.memory = kind;
        // A later request for page-locked memory does not cancel `require_pinned`.
        self.settings.fall_back |= kind == HostMemory::Pageable;
        self
    }

    /// Makes [`build`](Self::build) fail if the system cannot page-lock the memory of the cache. `build`
    /// allocates and page-locks the whole cache, so that its speed cannot change later. For 2 GiB this takes
    /// at least a quarter of a second.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use std::sync::Arc;
    /// use vmarray::{device::HostMemory, ErrorKind, VirtualArray};
    /// use vmarray::host::HostDevice;
    /// let device = Arc::new(HostDevice::builder().bytes(1 << 20).pinned_max_bytes(0).build()?);
    /// let builder = VirtualArray::<u32>::builder(1000).devices([device.clone()]);
    /// let required = builder.require_pinned().host_memory(HostMemory::Pinned);
    /// assert!(matches!(required.build().unwrap_err().kind(), ErrorKind::Device(_)));
    /// // Without it, pageable memory suffices.
    /// assert!(VirtualArray::<u32>::builder(1000).devices([device]).build().is_ok());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn require_pinned(mut self) -> Self {
        self.settings.memory = HostMemory::Pinned;
        self.settings.fall_back = false;
        self
    }

    /// With [`Commit::Proven`], [`build`](Self::build) writes all device memory once, which takes time. The
    /// write proves that the memory exists: many drivers allocate memory only at its first use.
    pub fn commit(mut self, commit: Commit) -> Self {
        self.settings.commit = commit;
        self
    }

    /// Stores a checksum of each page, and compares it when a page is copied from its device. If a bit flips
    /// on the device or on the bus, the access returns an error of kind
    /// [`Corrupted`](crate::device::ErrorKind::Corrupted) that names the page and the device. A write of the
    /// whole page repairs the page. Off by default, because GPUs with ECC memory correct single bits.
    ///
    /// If a device has written a page itself (assignments, kernels, scatters, partial copies), the page gets
    /// a new checksum at its next fetch or write-back. Two kinds of reads compare no checksums: reads within
    /// devices (searches, expressions, kernels, gathers), and reads of single elements [past the
    /// cache](crate::views::PagedView::get_uncached). Check all pages by
    /// [`check_pages`](VirtualArray::check_pages).
    ///
    /// A thread that fetches a page or writes it back reads the page once more; a hit costs the same. The
    /// checksums take 16 bytes of RAM a page. Copies to other arrays, also on the same devices, count as
    /// copies between devices. If pages have replicas, an access compares only the replica that it reads, and
    /// does not try the other one. Arrays [in files](VirtualArray::create) ignore this setting, because files
    /// have checksums of their own.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::builder(1000).checksums(true).build()?;
    /// array.write(0, &[7; 1000])?;
    /// assert!(array.check_pages()?.is_empty());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn checksums(mut self, on: bool) -> Self {
        self.settings.checksums = on;
        self
    }

    /// Allocates the cache at its first uses, and not with the array. This is useful for results that perhaps
    /// only devices read: page-locked memory takes some milliseconds.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::builder(1000).cache_on_demand().build()?;
    /// array.set(7, 1)?;
    /// assert_eq!(array.get(7)?, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn cache_on_demand(mut self) -> Self {
        self.settings.is_ahead = false;
        self
    }

    /// Enables or disables read-ahead; the default is on. If a thread accesses the array in order, read-ahead
    /// fetches pages into the cache before the thread needs them.
    pub fn read_ahead(mut self, on: bool) -> Self {
        self.settings.read_ahead = on;
        self
    }

    /// Allows the program to [move the pages to other devices](VirtualArray::rebalance) during use.
    ///
    /// For this, the builder wraps the device of each channel (share of a device) in a
    /// [mirror](crate::redundancy::Mirrored) with one member. A mirror shares no memory with other devices.
    /// So joins with other arrays, and accesses by lists of indices over several GPUs, are slower: they go
    /// through the host. Cache hits stay as fast. Errors and statistics use the name of the first device,
    /// also after a move; [`homes`](VirtualArray::homes) reports the current devices. Arrays with
    /// [`Placement::Mirrored`] are always movable.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use vmarray::{host::HostDevice, prelude::*};
    /// let [old, new] = [(); 2].map(|()| Arc::new(HostDevice::new(1 << 20).unwrap()));
    /// let builder = || VirtualArray::<u32>::builder(1000).devices([old.clone()]);
    /// assert!(builder().build()?.rebalance([new.clone()]).is_err());
    /// builder().movable(true).build()?.rebalance([new])?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn movable(mut self, movable: bool) -> Self {
        self.settings.movable = movable;
        self
    }

    /// Enables the counter [`Stats::hits`](crate::Stats::hits). Off by default, because counting a hit takes
    /// as long as the rest of the hit. The array always counts misses.
    pub fn count_hits(mut self, on: bool) -> Self {
        self.settings.counts_hits = on;
        self
    }

    /// Publishes the array's statistics under a name, for other processes of this user such as the program
    /// `vmarray-monitor`; see [`monitor`](crate::monitor). The cost of accesses does not change. If the
    /// environment variable `VMARRAY_PUBLISH` is set, except to `0`, the process publishes all arrays.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::builder(1000).publish("squares").build()?;
    /// for i in 0..1000 {
    ///     array.set(i, (i * i) as u32)?;
    /// }
    /// // At the same time, in another window: `vmarray-monitor`.
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn publish(mut self, name: &str) -> Self {
        self.settings.published = Some(name.into());
        self
    }

    /// Overwrites memory that held elements with zeroes before the driver or the system gets it back, for
    /// confidential data. This covers device memory (slots, and scratch memory of kernels), page-locked and
    /// pageable host memory (frames, staging buffers, lists of indices, results), and contents of files. Off
    /// by default.
    ///
    /// From the call of [`build`](Self::build) until they are dropped, the devices wipe all memory that is
    /// freed. This includes memory of other arrays that share the devices, memory freed after a partial
    /// failure of `build`, and after the loss of another device. Dropping the array then blocks for about the
    /// time of writing all its memory once.
    ///
    /// The following are not wiped:
    ///
    /// - data given to the program (vectors, values, arguments of closures), and small results on the heap;
    /// - pieces of up to a page of other arrays that are copied or read by expressions;
    /// - arguments of searches and fills;
    /// - memory of a lost device, swap space, blocks moved by a drive or file system, registers and caches of
    ///   a GPU.
    ///
    /// [`build`](Self::build) fails with [`ErrorKind::Device`] on a device without support for it.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use std::sync::Arc;
    /// use vmarray::{VirtualArray, store::FileDevice};
    /// # let path = std::env::temp_dir().join(format!("vmarray-wiped-{}", std::process::id()));
    /// let device = Arc::new(FileDevice::create(&path, 1 << 20)?);
    /// let array = VirtualArray::<u32>::builder(1000).devices([device]).wipe_on_drop(true).build()?;
    /// array.write(0, &[7; 1000])?;
    /// array.flush(..)?;
    /// assert!(std::fs::read(&path).unwrap().contains(&7));
    /// drop(array);
    /// assert!(!std::fs::read(&path).unwrap().contains(&7));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn wipe_on_drop(mut self, wipe: bool) -> Self {
        self.settings.common.wipe = wipe;
        self
    }

    /// Builds the array.
    ///
    /// Allocates all device memory, and up to 16 MiB of cache a channel (device part). Copies no elements.
    ///
    /// # Errors
    /// [`ZeroPageLength`](ErrorKind::ZeroPageLength), [`PageTooLong`](ErrorKind::PageTooLong),
    /// [`TooLong`](ErrorKind::TooLong), [`NoDevices`](ErrorKind::NoDevices),
    /// [`NoChannels`](ErrorKind::NoChannels), [`TooManyChannels`](ErrorKind::TooManyChannels),
    /// [`SharesMismatch`](ErrorKind::SharesMismatch), [`MirrorRefused`](ErrorKind::MirrorRefused),
    /// [`DoesNotFit`](ErrorKind::DoesNotFit), [`NoTableMemory`](ErrorKind::NoTableMemory),
    /// [`Device`](ErrorKind::Device) if a device refuses memory.
    pub fn build(self) -> Result<VirtualArray<T, D>> {
        let Self { len, max_len, devices, settings, .. } = self;
        let homes = settings.homes((len, max_len), devices, element::ElementLayout::<T>::BYTES)?;
        Self::build_on(settings, homes, |_| ())
    }

    /// Builds an array with these settings on prepared devices. `prepare` gets the pages first.
    pub(crate) fn build_on(
        settings: Settings,
        homes: Homes,
        prepare: impl FnOnce(&mut Pager),
    ) -> Result<VirtualArray<T, D>> {
        let (lens, page_len) = ((homes.len, homes.max_len), homes.page_len);
        let (mut pager, recipe) = pages(settings, homes, std::alloc::Layout::new::<T>())?;
        prepare(&mut pager);
        Ok(VirtualArray::assemble(lens, page_len, pager, recipe))
    }
}

/// Allocates the device memory and the cache of an array.
fn pages(settings: Settings, homes: Homes, element: std::alloc::Layout) -> Result<(Pager, Recipe)> {
    let recipe = Recipe::of(&settings, &homes);
    let Homes { open, len, pages_most, is_open, page_len, mut stripe_pattern, pairs, .. } = homes;
    // Use at most as many channels (shares of devices) as pages, because a channel without pages is useless.
    stripe_pattern.truncate(usize::try_from(pages_most).unwrap_or(usize::MAX).max(1));
    let page_bytes = page_len * element.size();
    let frame_stride = page_bytes.next_multiple_of(FRAME_ALIGN.max(element.align()));
    let pages = len.div_ceil(page_len) as u64;
    if pages.checked_mul(page_bytes as u64).is_none_or(|bytes| bytes > isize::MAX as u64) {
        let (elements, element_bytes) = (len as u64, element.size());
        return Err(ErrorKind::TooLong { elements, element_bytes }.into());
    }
    let channels = stripe_pattern.len() as u64;
    let slots = |channel: usize, pages| Pager::slots_in(channel as u64, channels, pages);
    open.expect_room(&stripe_pattern, pairs.as_deref(), |channel| slots(channel, pages) * page_bytes as u64)?;
    let redundancy = open.redundancy(pairs.as_deref(), &stripe_pattern, settings.movable)?;
    if settings.common.wipe {
        redundancy.wipe_on_release()?;
    }
    let frames = match settings.cache {
        Cache::Bytes(bytes) => bytes / frame_stride / stripe_pattern.len(),
        Cache::FramesPerChannel(frames) => frames,
    };
    let table = PageTable::new(pages as usize, pages_most as usize);
    let table = table.ok_or(ErrorKind::NoTableMemory { pages: pages_most })?;
    let checked_bytes = settings.checksums.then_some(page_bytes);
    let devices = open.channel_devices(&redundancy, &stripe_pattern, checked_bytes);
    let channel = |(index, device): (usize, Arc<dyn Device>)| {
        let most = slots(index, pages_most).clamp(1, FRAMES_MAX as u64) as usize;
        Channel::new(ChannelPlan {
            device,
            layout: ChannelLayout {
                index: index as u32,
                channels: channels as u32,
                page_bytes,
                frame_stride,
                frames_max: frames.clamp(1, most) as u32,
            },
            slots: slots(index, pages),
            slots_most: slots(index, pages_most),
            is_open,
            policy: settings.common.eviction,
            memory: settings.memory,
            fall_back: settings.fall_back,
            commit: settings.commit,
            is_ahead: settings.is_ahead,
            wipe: settings.common.wipe,
        })
    };
    let channels = devices.into_iter().enumerate().map(channel).collect::<Result<Vec<_>>>()?;
    let pager = Pager::new(channels, table, page_bytes, settings.read_ahead, settings.counts_hits);
    let (mut pager, published) = (pager.with_redundancy(redundancy), settings.published);
    if published.is_some() || stats_export::is_wanted() {
        publishing::begin(&mut pager, published.unwrap_or_default(), element.size());
    }
    Ok((pager, recipe))
}
