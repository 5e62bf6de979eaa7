//! [`SourceBuilder`]: sets devices, page size and device memory of a new [`Source`].

use std::marker::PhantomData;
use std::sync::Arc;

use backend_api::{Device, HostMemory};

use super::Source;
use super::channel::SourceChannel;
use super::core::SourceCore;
use super::directory::DirectoryEntry;
use super::home::{Home, HomeMemory};
use crate::array::settings::{CommonSettings, Devices};
use crate::base::element::{Element, ElementLayout};
use crate::base::error::{ErrorKind, Result};
use crate::base::registered_memory::RegisteredMemory;
use crate::base::trace;
use crate::engine::channel::PinnedPool;
use crate::engine::evict::EvictionPolicy;
use crate::setup::any::AnyDevice;
use crate::setup::placement::Placement;

/// Upper bound of the default page size, in bytes.
const PAGE_BYTES: usize = 256 << 10;
/// Maximum number of slots of a channel.
const SLOTS_MAX: usize = 1 << 30;

/// The settings of a new [`Source`]. Each setting has a default.
///
/// | setting | default |
/// |---|---|
/// | devices | [all of the machine](crate::devices) |
/// | placement | equal shares |
/// | page length | the power of two that makes a page 256 KiB long, or just below |
/// | device memory | the size of the elements, at most three quarters of the usable memory |
/// | eviction | CLOCK |
/// | import | none: copies go through page-locked staging memory |
///
/// ```
/// use vmarray::prelude::*;
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
    devices: Devices,
    settings: CommonSettings,
    device_bytes: Option<u64>,
    import: Option<HostMemory>,
    marker: PhantomData<fn() -> (T, D)>,
}

impl<T: Element, H: Home<T>> Source<T, H> {
    /// Creates a builder for a source with other devices or settings.
    pub fn builder(home: H) -> SourceBuilder<T, H> {
        SourceBuilder {
            home,
            devices: Devices::Found,
            settings: CommonSettings::default(),
            device_bytes: None,
            import: None,
            marker: PhantomData,
        }
    }
}

impl<T: Element, H: Home<T>, D: Device> SourceBuilder<T, H, D> {
    /// Sets the devices of the source, and with them the type parameter `D`. Keeps all other settings.
    pub fn devices<E: Device>(self, devices: impl IntoIterator<Item = Arc<E>>) -> SourceBuilder<T, H, E> {
        SourceBuilder {
            home: self.home,
            devices: Devices::named(devices),
            settings: self.settings,
            device_bytes: self.device_bytes,
            import: self.import,
            marker: PhantomData,
        }
    }

    /// Sets the distribution of the source's pages over its devices.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.settings.placement = placement;
        self
    }

    /// Sets the number of elements of a page. The unit of copies is a block, 1/64 of a page.
    pub fn page_len(mut self, elements: usize) -> Self {
        self.settings.page_len = Some(elements);
        self
    }

    /// Sets the device memory of the source in bytes, as the sum over all devices. Each channel (share of a
    /// device) uses at least the memory of one page.
    pub fn device_bytes(mut self, bytes: u64) -> Self {
        self.device_bytes = Some(bytes);
        self
    }

    /// Sets the eviction policy, which chooses the pages to remove from device memory when it is full.
    pub fn eviction(mut self, policy: EvictionPolicy) -> Self {
        self.settings.eviction = policy;
        self
    }

    /// Overwrites device memory and staging memory with zeroes before their release, as
    /// [`Builder::wipe_on_drop`](crate::Builder::wipe_on_drop) does. The source does not wipe the program's
    /// memory.
    pub fn wipe_on_drop(mut self, wipe: bool) -> Self {
        self.settings.wipe = wipe;
        self
    }

    /// Registers the program's memory (the home) with the devices, which then copy from and to this memory
    /// directly. [`HostMemory::Pinned`] locks the pages: the registration is slow, and copies are fast.
    /// [`HostMemory::Pageable`] does not lock the pages. If a device does not support the registration,
    /// copies go through staging memory.
    ///
    /// The home must own its memory:
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::device::HostMemory;
    /// let source = Source::builder(vec![0_u32; 1000]).import(HostMemory::Pageable).build()?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// This does not compile, because the program could free borrowed memory while a leaked source keeps it
    /// registered with a driver:
    ///
    /// ```compile_fail
    /// use vmarray::prelude::*;
    /// use vmarray::device::HostMemory;
    /// let mut elements = [0_u32; 1000];
    /// let source = Source::builder(&mut elements[..]).import(HostMemory::Pageable).build()?;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn import(mut self, kind: HostMemory) -> Self {
        const { assert!(H::OWNED, "only a source that owns its memory can register it with devices") };
        self.import = Some(kind);
        self
    }

    /// Builds the source. Allocates all of its device memory, but copies no elements.
    ///
    /// # Errors
    /// [`ZeroPageLength`](ErrorKind::ZeroPageLength), [`PageTooLong`](ErrorKind::PageTooLong),
    /// [`NoDevices`](ErrorKind::NoDevices), [`NoChannels`](ErrorKind::NoChannels),
    /// [`TooManyChannels`](ErrorKind::TooManyChannels), [`SharesMismatch`](ErrorKind::SharesMismatch),
    /// [`DoesNotFit`](ErrorKind::DoesNotFit), [`NoTableMemory`](ErrorKind::NoTableMemory),
    /// [`Misaligned`](ErrorKind::Misaligned) if the memory is not aligned for its elements, such as a file
    /// mapped from an odd offset; [`Device`](ErrorKind::Device) if a device cannot allocate the memory. After
    /// an error the builder drops the home; pass a borrow (`&mut [T]`) to keep it.
    pub fn build(self) -> Result<Source<T, H, D>> {
        let mut home = Box::new(self.home);
        let memory = home.memory();
        let (first, len) = (memory.cast::<T>(), memory.len());
        let element_bytes = ElementLayout::<T>::BYTES;
        if !first.is_aligned() {
            return Err(ErrorKind::Misaligned { address: first.addr().get(), align: align_of::<T>() }.into());
        }
        let page_len = self.settings.page_len(len, element_bytes, PAGE_BYTES)?;
        let page_bytes = page_len * element_bytes;
        let open = self.devices.open(&self.settings)?;
        let (devices, usable) = (&open.devices, &open.usable);
        let memory = HomeMemory::of(&mut *home, page_len);
        let pages = memory.cuts().pages();
        // Operations process larger data in batches, so only pages that fit need room in device memory.
        let room = self.device_bytes.unwrap_or(usable.iter().map(|bytes| bytes / 4 * 3).sum());
        let placed = (pages as u64).min(room / page_bytes as u64).max(1);
        let mut stripe_pattern = open.stripe_pattern(&self.settings.placement, placed, page_bytes)?;
        stripe_pattern.truncate(pages.max(1));
        let slots = |channel: usize| -> usize {
            let device = stripe_pattern[channel];
            let sharers = stripe_pattern.iter().filter(|&&other| other == device).count() as u64;
            let bytes = match self.device_bytes {
                Some(bytes) => bytes / stripe_pattern.len() as u64,
                None => usable[device] / 4 * 3 / sharers,
            };
            let of_channel = pages.saturating_sub(channel).div_ceil(stripe_pattern.len());
            usize::try_from(bytes / page_bytes as u64)
                .unwrap_or(SLOTS_MAX)
                .min(of_channel)
                .clamp(1, SLOTS_MAX)
        };
        open.expect_room(&stripe_pattern, None, |channel| slots(channel) as u64 * page_bytes as u64)?;
        let mut entries = Vec::new();
        entries.try_reserve_exact(pages).map_err(|_| ErrorKind::NoTableMemory { pages: pages as u64 })?;
        entries.resize_with(pages, DirectoryEntry::new);
        let imports: Vec<Option<Arc<RegisteredMemory>>> = devices
            .iter()
            .enumerate()
            .map(|(number, device)| {
                let kind = self.import.filter(|_| H::OWNED && len > 0 && stripe_pattern.contains(&number))?;
                memory.import(device, kind).inspect_err(trace::pin_refused).ok().map(Arc::new)
            })
            .collect();
        let channels = (0..stripe_pattern.len())
            .map(|index| {
                let (device, import) =
                    (Arc::clone(&devices[stripe_pattern[index]]), imports[stripe_pattern[index]].clone());
                let pinned = match self.settings.wipe {
                    true => PinnedPool::separate(&device, HostMemory::Pinned, true),
                    false => PinnedPool::new(&device, index as u32, HostMemory::Pinned),
                };
                SourceChannel::new(
                    device,
                    slots(index),
                    memory.bytes(),
                    self.settings.eviction,
                    import,
                    pinned,
                )
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Source {
            core: Box::new(SourceCore::new(memory, entries.into(), channels)),
            home,
            devices: PhantomData,
        })
    }
}
