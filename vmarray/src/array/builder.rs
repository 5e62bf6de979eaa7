//! Describing and building arrays.

use std::marker::PhantomData;
use std::sync::Arc;

use backend_api::wrap::{Mirrored, ParityGroup};
use backend_api::{Commit, Device, HostMemory};

use crate::array::{VirtualArray, publishing};
use crate::base::element::{self, Element};
use crate::base::error::{ErrorKind, Result};
use crate::base::published;
use crate::engine::channel::checksums::comparing;
use crate::engine::channel::{Channel, ChannelPlan, Layout};
use crate::engine::evict::EvictionPolicy;
use crate::engine::page::PageTable;
use crate::engine::pager::Pager;
use crate::engine::redundancy::{Keeper, Redundancy};
use crate::setup::placement::{Placement, Redundant, expect_room};
use crate::setup::profile;

/// The page size that the default page length comes closest to without exceeding it.
pub(crate) const PAGE_BYTES: usize = 64 << 10;
/// The default size of the cache.
const CACHE_BYTES: usize = 256 << 20;
/// How many pages longer than the default the cache has room for at least.
const FRAMES_LEAST: usize = 64;
/// Shorter pages are not made ready for all that devices may hold, where nobody says how many there will be,
/// but for so many of them.
const PAGE_BYTES_LEAST: usize = 4096;
const SHORT_PAGES: usize = 1 << 16;
/// Frames are aligned to cache lines, so that neither copies nor threads meet in one.
const FRAME_ALIGN: usize = 64;
/// What the eviction policies count stays below this.
const FRAMES_MAX: usize = 1 << 30;

#[derive(Clone, Copy, Debug)]
enum Cache {
    Bytes(usize),
    FramesPerChannel(usize),
}

/// What is set of arrays and of sources.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommonSettings {
    pub(crate) placement: Placement,
    pub(crate) page_len: Option<usize>,
    pub(crate) eviction: EvictionPolicy,
    pub(crate) wipe: bool,
}

impl CommonSettings {
    /// The page length for so many elements: what is asked for, or the power of two that makes a page so many
    /// bytes long, or just below.
    pub(crate) fn page_len<T: Element>(&self, len: usize, suited_bytes: usize) -> Result<usize> {
        let element_bytes = element::Layout::<T>::BYTES;
        let page_len = self.page_len.unwrap_or_else(|| {
            let most = (suited_bytes / element_bytes).max(1);
            // No longer than all elements, or nothing of a few would be shared out.
            (1 << most.ilog2()).min(len.max(1).checked_next_power_of_two().unwrap_or(usize::MAX))
        });
        if page_len == 0 {
            return Err(ErrorKind::ZeroPageLength.into());
        }
        let fits = page_len.checked_mul(element_bytes).is_some_and(|bytes| bytes <= isize::MAX as usize / 64);
        if fits { Ok(page_len) } else { Err(ErrorKind::PageTooLong { page_len, element_bytes }.into()) }
    }
}

/// The devices of what is built.
#[derive(Debug)]
pub(crate) enum Devices<D: Device> {
    Named(Vec<Arc<D>>),
    /// To be looked for when it is built.
    Found(fn() -> Result<Vec<Arc<D>>>),
}

impl<D: Device> Devices<D> {
    /// The devices, with what is known of them and prepared as is asked for, and how much memory each has
    /// left.
    pub(crate) fn open(self, settings: &CommonSettings) -> Result<OpenDevices> {
        let devices = match self {
            Self::Named(devices) => devices,
            Self::Found(find) => find()?,
        };
        settings.placement.measure(&devices)?;
        OpenDevices::of(devices.into_iter().map(|device| device as _).collect(), settings)
    }
}

pub(crate) struct OpenDevices {
    pub(crate) devices: Vec<Arc<dyn Device>>,
    /// How much memory each has left, in bytes.
    pub(crate) usable: Vec<u64>,
}

impl OpenDevices {
    /// These devices, with what is known of them and prepared as is asked for.
    pub(crate) fn of(devices: Vec<Arc<dyn Device>>, settings: &CommonSettings) -> Result<Self> {
        if settings.wipe {
            devices.iter().try_for_each(|device| device.wipe_on_release())?;
        }
        profile::apply_known(&devices);
        let usable = devices.iter().map(|device| Ok(device.memory()?.usable_bytes));
        let usable = usable.collect::<Result<_, backend_api::Error>>()?;
        Ok(Self { devices, usable })
    }

    /// The device of each channel, by number, for so many pages; one channel at least.
    pub(crate) fn turns(&self, placement: &Placement, pages: u64, page_bytes: usize) -> Result<Vec<usize>> {
        placement.turns(&self.devices, pages, page_bytes as u64, &self.usable)
    }

    /// Whether the devices have room for what their channels take: each channel on the device of its turn,
    /// and on others what keeps it.
    pub(crate) fn expect_room(
        &self,
        turns: &[usize],
        redundant: Option<&Redundant>,
        bytes: impl Fn(usize) -> u64,
    ) -> Result<()> {
        let mut asked = vec![0; self.devices.len()];
        let bytes: Vec<u64> = (0..turns.len()).map(bytes).collect();
        match redundant {
            Some(redundant) => redundant.ask(&bytes, &mut asked),
            None => turns.iter().zip(bytes).for_each(|(device, bytes)| asked[*device] += bytes),
        }
        expect_room(&self.devices, &asked, &self.usable)
    }

    /// So many pages, or one more than all devices could have if they had nothing else: it is for them to say
    /// that there is no room for it.
    fn pages_most(&self, pages: u64, page_bytes: u64) -> u64 {
        let totals = self.devices.iter().map(|device| device.info().total_bytes);
        let bytes = totals.fold(0, u64::saturating_add).min(isize::MAX as u64 - page_bytes);
        pages.min(bytes / page_bytes + 1)
    }

    /// What takes the place of lost devices, and of those that pages are moved away from, by channel.
    fn redundancy(
        &self,
        redundant: Option<&Redundant>,
        turns: &[usize],
        is_movable: bool,
    ) -> Result<Redundancy> {
        let device = |at: usize| Arc::clone(&self.devices[at]);
        let keeper = match redundant {
            None if is_movable => {
                let movable = turns.iter().map(|turn| Ok(Arc::new(Mirrored::new([device(*turn)])?)));
                Keeper::Movable(movable.collect::<Result<_>>()?)
            }
            None => Keeper::None,
            Some(Redundant::Pairs(pairs)) => {
                let mirrors = pairs[..turns.len()].iter().map(|pair| Mirrored::new(pair.map(device)));
                Keeper::Mirrors(mirrors.map(|mirror| Ok(Arc::new(mirror?))).collect::<Result<_>>()?)
            }
            Some(Redundant::Parity(_)) if is_movable => {
                return Err(ErrorKind::MoveRefused { reason: "parity ties pages to their devices" }.into());
            }
            Some(Redundant::Parity(devices)) => Keeper::Parity(ParityGroup::new((0..*devices).map(device))?),
        };
        Ok(keeper.into())
    }
}

/// What goes for elements and devices of all types.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) common: CommonSettings,
    cache: Cache,
    memory: HostMemory,
    fall_back: bool,
    pub(crate) checksums: bool,
    commit: Commit,
    read_ahead: bool,
    counts_hits: bool,
    movable: bool,
    /// Whether host memory is taken before it is needed.
    is_ahead: bool,
    /// The name under which statistics are published.
    published: Option<String>,
    /// What caches pages of files.
    #[cfg(feature = "host")]
    pub(crate) tier: Option<backend_host::Tier>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            common: CommonSettings::default(),
            cache: Cache::Bytes(CACHE_BYTES),
            memory: HostMemory::Pinned,
            fall_back: true,
            checksums: false,
            commit: Commit::Lazy,
            read_ahead: true,
            counts_hits: false,
            movable: false,
            is_ahead: true,
            published: None,
            #[cfg(feature = "host")]
            tier: None,
        }
    }
}

impl Settings {
    /// The usual ones, but for the size of the cache.
    pub(crate) fn cached(bytes: usize) -> Self {
        Self { cache: Cache::Bytes(bytes), ..Self::default() }
    }

    /// The same of an array that is a result, which its devices may be all that ever reads: host memory is
    /// taken when it is needed.
    pub(crate) fn of_result(cache_bytes: usize, memory: HostMemory) -> Self {
        Self { memory, is_ahead: false, ..Self::cached(cache_bytes) }
    }

    #[cfg(feature = "host")]
    pub(crate) fn is_movable(&self) -> bool {
        self.movable
    }
}

/// Where the pages of an array are to be.
pub(crate) struct Homes {
    pub(crate) open: OpenDevices,
    pub(crate) len: usize,
    pub(crate) max_len: usize,
    /// How many pages there may be.
    pub(crate) pages_most: u64,
    /// Whether nobody has said how long it may become.
    pub(crate) is_open: bool,
    pub(crate) page_len: usize,
    /// The device of each channel.
    pub(crate) turns: Vec<usize>,
    pub(crate) redundant: Option<Redundant>,
}

/// Describes an array; every setting has a default that works.
///
/// | setting | default |
/// |---|---|
/// | devices | [those of the machine](crate::devices) |
/// | placement | equal shares |
/// | greatest length | [the one that it is built with](Self::max_len) |
/// | page length | the power of two that makes a page 64 KiB long, or just below; for devices whose [profile](crate::profile::Profile) is known what suits them |
/// | cache | 256 MiB of page-locked RAM, taken as needed |
/// | eviction | CLOCK |
/// | checksums of pages | off |
/// | read-ahead | on |
/// | hits | not counted |
/// | moving to other devices | [not prepared](Self::movable) |
/// | statistics | [published](Self::publish) only if the environment says so |
///
/// ```
/// # use vmarray::prelude::*;
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
    /// How long it may become.
    pub(crate) max_len: usize,
    devices: Devices<D>,
    pub(crate) settings: Settings,
    marker: PhantomData<fn() -> T>,
}

impl<T: Element, D: Device> Builder<T, D> {
    pub(crate) fn new(len: usize, find: fn() -> Result<Vec<Arc<D>>>) -> Self {
        Self {
            len,
            max_len: 0,
            devices: Devices::Found(find),
            settings: Settings::default(),
            marker: PhantomData,
        }
    }

    /// The same array of another length.
    pub(crate) fn with_len(mut self, len: usize) -> Self {
        self.len = len;
        self
    }

    /// The same settings, but for the page length, for elements of another type.
    pub(crate) fn twin<U: Element>(&self, len: usize) -> Builder<U, D> {
        let devices = match &self.devices {
            Devices::Named(devices) => Devices::Named(devices.clone()),
            Devices::Found(find) => Devices::Found(*find),
        };
        let mut settings = self.settings.clone();
        settings.common.page_len = None;
        Builder { len, max_len: 0, devices, settings, marker: PhantomData }
    }

    /// The same settings for another length, the page length included.
    pub(crate) fn resized(&self, len: usize) -> Self {
        let mut resized = self.twin(len);
        resized.settings.common.page_len = self.settings.common.page_len;
        resized.max_len = self.max_len;
        resized
    }

    /// The same array, which can grow as far as its devices have memory, unless it is said how far; or, if
    /// its pages are short, to some of them: what is kept of each page and frame is made for as many as there
    /// may be.
    pub(crate) fn growing(mut self) -> Self {
        if self.max_len == 0 {
            let short = |page_len: &usize| page_len.saturating_mul(size_of::<T>()) < PAGE_BYTES_LEAST;
            let pages = self.settings.common.page_len.filter(short);
            let some = |page_len: usize| page_len.saturating_mul(SHORT_PAGES).max(self.len.saturating_mul(4));
            self.max_len = pages.map_or(usize::MAX, some);
        }
        self
    }

    /// Puts the pages on these devices. Their type may change, so this comes first or nowhere.
    pub fn devices<E: Device>(self, devices: impl IntoIterator<Item = Arc<E>>) -> Builder<T, E> {
        let devices = Devices::Named(devices.into_iter().collect());
        let Self { len, max_len, settings, .. } = self;
        Builder { len, max_len, devices, settings, marker: PhantomData }
    }

    /// How many elements the array may have later, when it [grows](VirtualArray#growth): it has `len` at
    /// first, and cannot grow unless this is more. [`usize::MAX`] for as many as the devices may hold.
    ///
    /// What is set aside for it is addresses, on the devices and for the page table, which take no memory
    /// until they are used. The cache, and the default page length, are those of an array so long.
    ///
    /// OpenCL devices, which have no addresses to set aside, take memory in steps of up to an eighth of what
    /// this may be on each; for [`usize::MAX`] they have [`build`](Self::build) fail with
    /// [`Device`](ErrorKind::Device) ([`Unsupported`](backend_api::ErrorKind::Unsupported)), and so have
    /// devices whose memory cannot grow at all, such as those of CUDA drivers older than 10.2.
    /// [`Placement::Parity`](crate::Placement::Parity) has it fail with
    /// [`ParityRefused`](ErrorKind::ParityRefused).
    ///
    /// Arrays [in files](Self::create) grow without it; it says how far, each time one is made or opened.
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

    /// How the pages are distributed over the devices. Placements by bandwidth measure devices that are not
    /// yet [known](crate::profile::Profile), which takes a fraction of a second each.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.settings.common.placement = placement;
        self
    }

    /// How many elements a page has. A power of two is best: others cost a division in each access.
    ///
    /// Long pages make good use of the bus when neighbours are used together; short ones waste less of it
    /// when they are not.
    ///
    /// By default the power of two that makes a page 64 KiB long, or just below. For devices whose
    /// [profile](crate::profile::Profile) is known in this process, the page of their profiles takes the
    /// place of 64 KiB: the longest, and no longer than a 64th of the cache. A short array has shorter pages.
    pub fn page_len(mut self, elements: usize) -> Self {
        self.settings.common.page_len = Some(elements);
        self
    }

    /// How much RAM the cache may take, in bytes. At least one page a channel is needed, and more than the
    /// array is never taken. Takes the place of [`frames_per_channel`](Self::frames_per_channel), which is
    /// the same in pages: the last of the two counts.
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.settings.cache = Cache::Bytes(bytes);
        self
    }

    /// How much RAM the cache may take, in pages for each channel; at least one, and never more than the
    /// channel has.
    pub fn frames_per_channel(mut self, frames: usize) -> Self {
        self.settings.cache = Cache::FramesPerChannel(frames);
        self
    }

    /// Which pages leave the cache first.
    pub fn eviction(mut self, policy: EvictionPolicy) -> Self {
        self.settings.common.eviction = policy;
        self
    }

    /// What the cache is made of. Page-locked memory is copied from and to at full speed; where it is
    /// refused, the cache goes on in pageable memory and warns of it once, unless
    /// [`require_pinned`](Self::require_pinned) was called, before or after. [`HostMemory::Pageable`] takes
    /// that back if it comes after it.
    pub fn host_memory(mut self, kind: HostMemory) -> Self {
        self.settings.memory = kind;
        // To ask for page-locked memory once more does not take back that it is required.
        self.settings.fall_back |= kind == HostMemory::Pageable;
        self
    }

    /// Makes a refusal of page-locked memory an error instead. The whole cache is page-locked while the array
    /// is built, not as it is used, so that what is built stays as fast as it is. That takes a quarter of a
    /// second for 2 GiB at best.
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use std::sync::Arc;
    /// use vmarray::{device::HostMemory, ErrorKind, VirtualArray};
    /// use vmarray::host::HostDevice;
    /// let device = Arc::new(HostDevice::builder().bytes(1 << 20).pinned_max_bytes(0).build()?);
    /// let builder = VirtualArray::<u32>::builder(1000).devices([device.clone()]);
    /// let required = builder.require_pinned().host_memory(HostMemory::Pinned);
    /// assert!(matches!(required.build().unwrap_err().kind(), ErrorKind::Device(_)));
    /// // Without it, pageable memory does.
    /// assert!(VirtualArray::<u32>::builder(1000).devices([device]).build().is_ok());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn require_pinned(mut self) -> Self {
        self.settings.memory = HostMemory::Pinned;
        self.settings.fall_back = false;
        self
    }

    /// Whether device memory is written to once while the array is built, so that it is known to exist. Many
    /// drivers hand out memory that they look for at first use. Costs the time to write it.
    pub fn commit(mut self, commit: Commit) -> Self {
        self.settings.commit = commit;
        self
    }

    /// Whether each page has a checksum, which is compared when the page comes from its device: a bit that
    /// has flipped there, or on the way there or back, is an error of kind
    /// [`Corrupted`](crate::device::ErrorKind::Corrupted) that names the page and the device, and no value.
    /// The page is sound again once all of it is written anew. Off by default: cards correct single bits by
    /// themselves where their memory has the means for it.
    ///
    /// What a device has written to a page by itself (assignments, kernels, scatters, copies of parts of
    /// pages) has a checksum once the page was fetched, or written back, after that. What devices read by
    /// themselves (searches, expressions, kernels, gathers) is not compared, nor are single elements that are
    /// read [past the cache](crate::views::PagedView::get_uncached).
    /// [`check_pages`](VirtualArray::check_pages) looks through all.
    ///
    /// The thread that fetches pages, or has them written back, reads them once more; a hit costs what it
    /// does without. 16 bytes of RAM a page. To other arrays, also on the same devices, data goes as from one
    /// device to another. Where pages have copies on several devices, the copy that is read is compared, and
    /// none is read in its place. Arrays [in files](VirtualArray::create) have checksums of their own, and no
    /// others.
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::builder(1000).checksums(true).build()?;
    /// array.write(0, &[7; 1000])?;
    /// assert!(array.check_pages()?.is_empty());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn checksums(mut self, on: bool) -> Self {
        self.settings.checksums = on;
        self
    }

    /// Whether pages are fetched ahead of threads that go through the array in order.
    pub fn read_ahead(mut self, on: bool) -> Self {
        self.settings.read_ahead = on;
        self
    }

    /// Whether the pages can be [moved to other devices](VirtualArray::rebalance) while the array is used.
    ///
    /// Hits cost the same. Each channel's device is a [mirror](crate::device::wrap::Mirrored) of one then:
    /// what is submitted to it is kept account of, and it shares nothing with other devices, so that joins
    /// with other arrays, and lists over several cards, go through the host. It goes by the name of the first
    /// device, in errors and statistics, also when it has moved; [`homes`](VirtualArray::homes) tells where
    /// pages are. Arrays of
    /// [`Placement::Mirrored`] can be moved without it; with [`Placement::Parity`],
    /// [`build`](Self::build) says [`MoveRefused`](ErrorKind::MoveRefused).
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

    /// Whether [`Stats::hits`](crate::Stats::hits) are counted. Off by default: to count takes a processor as
    /// long as all the rest of a hit, which is half as fast then. Misses are always counted.
    pub fn count_hits(mut self, on: bool) -> Self {
        self.settings.counts_hits = on;
        self
    }

    /// Publishes statistics of the array under a name, for other processes of this user, above all for the
    /// program `vmarray-monitor`: [`monitor`](crate::monitor) says how. Costs accesses nothing. The
    /// environment variable `VMARRAY_PUBLISH`, set to anything but `0`, does so for all arrays of a process.
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::builder(1000).publish("squares").build()?;
    /// for i in 0..1000 {
    ///     array.set(i, (i * i) as u32)?;
    /// }
    /// // Meanwhile, in another window: `vmarray-monitor`.
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn publish(mut self, name: &str) -> Self {
        self.settings.published = Some(name.into());
        self
    }

    /// Whether memory that held elements is overwritten with zeroes before it goes back to the driver or the
    /// system: of the devices (slots, and what kernels work in), page-locked and pageable host memory
    /// (frames, stages, lists, answers), and the contents of files. For data that nobody is to find there
    /// later. Off by default.
    ///
    /// It is the devices that wipe, from when this array is built and as long as they live: for all who share
    /// them, in whatever way memory is given back, also if building fails half-way or another device is lost.
    /// Dropping then takes about as long as to write all of that memory once, and blocks meanwhile.
    ///
    /// Not wiped: what the program was given (vectors, values, what closures work on) and small results on
    /// the heap on their way to it; pieces of up to a page of other arrays that are copied from or that
    /// expressions read; values that calls were given to look for or to fill with; memory of a lost device;
    /// the system's swap space; blocks that a drive or a file system has moved; registers and caches of a
    /// card. A device that cannot do it has [`build`](Self::build) fail with [`ErrorKind::Device`].
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use std::sync::Arc;
    /// use vmarray::{VirtualArray, host::FileDevice};
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
    /// Takes the device memory at once, and of the cache one piece of up to 16 MiB a channel. Nothing is
    /// copied.
    ///
    /// # Errors
    /// [`ZeroPageLength`](ErrorKind::ZeroPageLength), [`PageTooLong`](ErrorKind::PageTooLong),
    /// [`TooLong`](ErrorKind::TooLong), [`NoDevices`](ErrorKind::NoDevices),
    /// [`NoChannels`](ErrorKind::NoChannels), [`TooManyChannels`](ErrorKind::TooManyChannels),
    /// [`SharesMismatch`](ErrorKind::SharesMismatch), [`MirrorRefused`](ErrorKind::MirrorRefused),
    /// [`ParityRefused`](ErrorKind::ParityRefused), [`MoveRefused`](ErrorKind::MoveRefused),
    /// [`DoesNotFit`](ErrorKind::DoesNotFit),
    /// [`NoTableMemory`](ErrorKind::NoTableMemory), [`Device`](ErrorKind::Device) for refused memory.
    pub fn build(self) -> Result<VirtualArray<T, D>> {
        let Self { len, max_len, devices, settings, .. } = self;
        #[cfg(feature = "host")]
        if settings.tier.is_some() {
            let reason = "and files alone have a tier; a `FileDevice` is given one when it is made";
            return Err(ErrorKind::FileRefused { reason }.into());
        }
        let open = devices.open(&settings.common)?;
        let room = match settings.cache {
            Cache::Bytes(bytes) => bytes / FRAMES_LEAST,
            Cache::FramesPerChannel(_) => usize::MAX,
        };
        let suited = profile::suited_page_bytes(&open.devices, PAGE_BYTES).min(room.max(PAGE_BYTES));
        let page_len = settings.common.page_len::<T>(len.max(max_len), suited)?;
        let page_bytes = page_len * element::Layout::<T>::BYTES;
        let pages = len.div_ceil(page_len) as u64;
        let redundant = settings.common.placement.redundant(open.devices.len())?;
        let pages_most = open.pages_most(max_len.div_ceil(page_len) as u64, page_bytes as u64).max(pages);
        let is_open = max_len == usize::MAX;
        // Less where the devices can never have so much. What it is built with it may have again.
        let max_len = max_len.min((pages_most as usize).saturating_mul(page_len)).max(len);
        if max_len > len && matches!(redundant, Some(Redundant::Parity(_))) {
            let reason = "the array is to grow, which moves what parity is made of";
            return Err(ErrorKind::ParityRefused { reason }.into());
        }
        let mut turns = match &redundant {
            Some(redundant) => (0..redundant.channels()).collect(),
            None => open.turns(&settings.common.placement, pages_most, page_bytes)?,
        };
        // A channel without a page would be of no use.
        turns.truncate(usize::try_from(pages_most).unwrap_or(usize::MAX).max(1));
        let homes = Homes { open, len, max_len, pages_most, is_open, page_len, turns, redundant };
        Self::build_on(settings, homes, |_| ())
    }

    /// Builds an array of these settings on these devices. `prepare` is shown its pages before anybody uses
    /// them.
    pub(crate) fn build_on(
        settings: Settings,
        homes: Homes,
        prepare: impl FnOnce(&mut Pager),
    ) -> Result<VirtualArray<T, D>> {
        let Homes { open, len, max_len, pages_most, is_open, page_len, turns, redundant } = homes;
        let Settings {
            common,
            cache,
            memory,
            fall_back,
            checksums,
            commit,
            read_ahead,
            counts_hits,
            movable,
            is_ahead,
            published,
            ..
        } = settings;
        let page_bytes = page_len * element::Layout::<T>::BYTES;
        let frame_stride = page_bytes.next_multiple_of(FRAME_ALIGN.max(align_of::<T>()));
        let pages = len.div_ceil(page_len) as u64;
        if pages.checked_mul(page_bytes as u64).is_none_or(|bytes| bytes > isize::MAX as u64) {
            let (elements, element_bytes) = (len as u64, element::Layout::<T>::BYTES);
            return Err(ErrorKind::TooLong { elements, element_bytes }.into());
        }
        let channels = turns.len() as u64;
        let slots = |channel: usize, pages| Pager::slots_in(channel as u64, channels, pages);
        open.expect_room(&turns, redundant.as_ref(), |channel| slots(channel, pages) * page_bytes as u64)?;
        let redundancy = open.redundancy(redundant.as_ref(), &turns, movable)?;
        if common.wipe {
            redundancy.wipe_on_release()?;
        }
        let frames = match cache {
            Cache::Bytes(bytes) => bytes / frame_stride / turns.len(),
            Cache::FramesPerChannel(frames) => frames,
        };
        let table = PageTable::new(pages as usize, pages_most as usize);
        let table = table.ok_or(ErrorKind::NoTableMemory { pages: pages_most })?;
        // One for each device, which channels share as they do the device.
        let mut compared: Vec<Option<Arc<dyn Device>>> = vec![None; open.devices.len()];
        let mut home = |index: usize, device: usize| -> Arc<dyn Device> {
            let plain = || Arc::clone(&open.devices[device]);
            match redundancy.device(index) {
                Some(own) if checksums => comparing(own, page_bytes),
                Some(own) => own,
                None if checksums => {
                    Arc::clone(compared[device].get_or_insert_with(|| comparing(plain(), page_bytes)))
                }
                None => plain(),
            }
        };
        let channel = |(index, device): (usize, &usize)| {
            let most = slots(index, pages_most).clamp(1, FRAMES_MAX as u64) as usize;
            Channel::new(ChannelPlan {
                device: home(index, *device),
                layout: Layout {
                    index: index as u32,
                    channels: channels as u32,
                    page_bytes,
                    frame_stride,
                    frames_max: frames.clamp(1, most) as u32,
                },
                slots: slots(index, pages),
                slots_most: slots(index, pages_most),
                is_open,
                policy: common.eviction,
                memory,
                fall_back,
                commit,
                is_ahead,
            })
        };
        let channels = turns.iter().enumerate().map(channel).collect::<Result<Vec<_>>>()?;
        let mut pager =
            Pager::new(channels, table, page_bytes, read_ahead, counts_hits).with_redundancy(redundancy);
        if published.is_some() || published::is_wanted() {
            publishing::begin(&mut pager, published.unwrap_or_default(), element::Layout::<T>::BYTES);
        }
        prepare(&mut pager);
        Ok(VirtualArray::assemble((len, max_len), page_len, pager))
    }
}
