//! Describing and building sources.

use std::marker::PhantomData;
use std::sync::Arc;

use backend_api::{Device, HostMemory};

use super::Source;
use super::channel::{HomeBytes, SourceChannel};
use super::core::Core;
use super::directory::{Cuts, DirectoryEntry};
use super::home::Home;
use crate::array::builder::{CommonSettings, Devices};
use crate::base::element::{Element, Layout};
use crate::base::error::{ErrorKind, Result};
use crate::base::imported::ImportedMemory;
use crate::base::trace;
use crate::engine::channel::PinnedPool;
use crate::engine::evict::EvictionPolicy;
use crate::setup::any::AnyDevice;
use crate::setup::placement::Placement;

/// The page size that the default page length comes closest to without exceeding it.
const PAGE_BYTES: usize = 256 << 10;
/// How many slots a channel has at most.
const SLOTS_MAX: usize = 1 << 30;

/// Describes a [`Source`]; every setting has a default that works.
///
/// | setting | default |
/// |---|---|
/// | devices | [those of the machine](crate::devices) |
/// | placement | equal shares |
/// | page length | the power of two that makes a page 256 KiB long, or just below |
/// | device memory | as much as the elements take, three quarters of what is usable at most |
/// | eviction | CLOCK |
/// | import | none: copies go through page-locked staging memory |
///
/// ```
/// # use vmarray::prelude::*;
/// use std::sync::Arc;
/// use vmarray::host::HostDevice;
/// use vmarray::{EvictionPolicy, Placement};
/// // 4 MB of elements, searched through 1 MiB of device memory.
/// let source = Source::builder(vec![1_u32; 1_000_000])
///     .devices([Arc::new(HostDevice::new(1 << 21)?)])
///     .placement(Placement::Ratios(vec![1]))
///     .device_bytes(1 << 20)
///     .page_len(1 << 14)
///     .eviction(EvictionPolicy::TwoQueue)
///     .wipe_on_drop(true)
///     .build()?;
/// assert_eq!(source.count(.., Field::whole(), &1)?, 1_000_000);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "describes a source; `build` makes it"]
pub struct SourceBuilder<T: Element, H: Home<T>, D: Device = AnyDevice> {
    home: H,
    devices: Devices<D>,
    settings: CommonSettings,
    device_bytes: Option<u64>,
    import: Option<HostMemory>,
    marker: PhantomData<fn() -> T>,
}

impl<T: Element, H: Home<T>> SourceBuilder<T, H> {
    pub(super) fn new(home: H) -> Self {
        Self {
            home,
            devices: Devices::Found(crate::setup::discovery::devices),
            settings: CommonSettings::default(),
            device_bytes: None,
            import: None,
            marker: PhantomData,
        }
    }
}

impl<T: Element, H: Home<T>, D: Device> SourceBuilder<T, H, D> {
    /// Works on these devices. Their type may change, so this comes first or nowhere.
    pub fn devices<E: Device>(self, devices: impl IntoIterator<Item = Arc<E>>) -> SourceBuilder<T, H, E> {
        SourceBuilder {
            home: self.home,
            devices: Devices::Named(devices.into_iter().collect()),
            settings: self.settings,
            device_bytes: self.device_bytes,
            import: self.import,
            marker: PhantomData,
        }
    }

    /// How the pages are distributed over the devices.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.settings.placement = placement;
        self
    }

    /// How many elements a page has. A 64th of it, a block, is what is copied at least.
    pub fn page_len(mut self, elements: usize) -> Self {
        self.settings.page_len = Some(elements);
        self
    }

    /// How much device memory is taken, of all devices together. Each channel takes a page at least.
    pub fn device_bytes(mut self, bytes: u64) -> Self {
        self.device_bytes = Some(bytes);
        self
    }

    /// Which pages give up their device memory first.
    pub fn eviction(mut self, policy: EvictionPolicy) -> Self {
        self.settings.eviction = policy;
        self
    }

    /// As [`Builder::wipe_on_drop`](crate::Builder::wipe_on_drop). The home is not wiped, nor are pieces of
    /// up to 16 MiB on their way from and to homes that are no memory.
    pub fn wipe_on_drop(mut self, wipe: bool) -> Self {
        self.settings.wipe = wipe;
        self
    }

    /// Makes the elements' memory known to the devices, which then copy from and to it without a stop in
    /// between: page-locked ([`HostMemory::Pinned`]), which is slow to do and fast to use, or as it is. Where
    /// that is refused, copies go through staging memory.
    ///
    /// Only for memory that the home owns:
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use vmarray::device::HostMemory;
    /// let source = Source::builder(vec![0_u32; 1000]).import(HostMemory::Pageable).build()?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// Borrowed memory can be freed while a leaked source still has it known to a driver, so this does not
    /// compile:
    ///
    /// ```compile_fail
    /// use vmarray::prelude::*;
    /// use vmarray::device::HostMemory;
    /// let mut elements = [0_u32; 1000];
    /// let source = Source::builder(&mut elements[..]).import(HostMemory::Pageable).build()?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn import(mut self, kind: HostMemory) -> Self {
        const { assert!(H::OWNED, "only memory that its home owns can be made known to devices") };
        self.import = Some(kind);
        self
    }

    /// Builds the source. Takes device memory at once; copies nothing.
    ///
    /// # Errors
    /// [`ZeroPageLength`](ErrorKind::ZeroPageLength), [`PageTooLong`](ErrorKind::PageTooLong),
    /// [`NoDevices`](ErrorKind::NoDevices), [`NoChannels`](ErrorKind::NoChannels),
    /// [`TooManyChannels`](ErrorKind::TooManyChannels), [`SharesMismatch`](ErrorKind::SharesMismatch),
    /// [`DoesNotFit`](ErrorKind::DoesNotFit), [`NoTableMemory`](ErrorKind::NoTableMemory),
    /// [`Misaligned`](ErrorKind::Misaligned) for a file that was mapped from an odd offset on,
    /// [`Device`](ErrorKind::Device) for refused memory. The home is dropped then; lend it (`&mut [T]`) to
    /// keep it.
    pub fn build(self) -> Result<Source<T, H, D>> {
        let mut home = Box::new(self.home);
        let memory = home.memory();
        let (first, len) = (memory.cast::<T>(), memory.len());
        let element_bytes = Layout::<T>::BYTES;
        if !first.is_aligned() {
            return Err(ErrorKind::Misaligned { address: first.addr().get(), align: align_of::<T>() }.into());
        }
        let page_len = self.settings.page_len::<T>(len, PAGE_BYTES)?;
        let page_bytes = page_len * element_bytes;
        let open = self.devices.open(&self.settings)?;
        let (devices, usable) = (&open.devices, &open.usable);
        let cuts = Cuts::new(len, page_len);
        let pages = cuts.pages();
        // What does not fit takes turns in device memory, so placement need not find room for it.
        let room = self.device_bytes.unwrap_or(usable.iter().map(|bytes| bytes / 4 * 3).sum());
        let placed = (pages as u64).min(room / page_bytes as u64).max(1);
        let mut turns = open.turns(&self.settings.placement, placed, page_bytes)?;
        turns.truncate(pages.max(1));
        let slots = |channel: usize| -> usize {
            let device = turns[channel];
            let sharers = turns.iter().filter(|&&other| other == device).count() as u64;
            let bytes = match self.device_bytes {
                Some(bytes) => bytes / turns.len() as u64,
                None => usable[device] / 4 * 3 / sharers,
            };
            let of_channel = pages.saturating_sub(channel).div_ceil(turns.len());
            usize::try_from(bytes / page_bytes as u64)
                .unwrap_or(SLOTS_MAX)
                .min(of_channel)
                .clamp(1, SLOTS_MAX)
        };
        open.expect_room(&turns, None, |channel| slots(channel) as u64 * page_bytes as u64)?;
        let mut entries = Vec::new();
        entries.try_reserve_exact(pages).map_err(|_| ErrorKind::NoTableMemory { pages: pages as u64 })?;
        entries.resize_with(pages, DirectoryEntry::new);
        let home_bytes = HomeBytes { first: first.cast(), element_bytes, cuts };
        let imports: Vec<Option<Arc<ImportedMemory>>> = devices
            .iter()
            .enumerate()
            .map(|(number, device)| {
                let kind = self.import.filter(|_| H::OWNED && len > 0 && turns.contains(&number))?;
                // SAFETY: the home owns its memory, so that it stays allocated until the home is dropped,
                // which is after the channels. Nothing is downloaded to memory that cannot be written to,
                // since nothing becomes dirty then.
                let import = unsafe { ImportedMemory::new(device, first.cast(), len * element_bytes, kind) };
                import.inspect_err(trace::pin_refused).ok().map(Arc::new)
            })
            .collect();
        let channels = (0..turns.len())
            .map(|index| {
                let (device, import) = (Arc::clone(&devices[turns[index]]), imports[turns[index]].clone());
                let pinned = match self.settings.wipe {
                    true => PinnedPool::separate(&device, HostMemory::Pinned, true),
                    false => PinnedPool::new(&device, index as u32, HostMemory::Pinned),
                };
                SourceChannel::new(device, slots(index), home_bytes, self.settings.eviction, import, pinned)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Source {
            core: Box::new(Core::new(first, cuts, entries.into(), channels)),
            home,
            devices: PhantomData,
        })
    }
}
