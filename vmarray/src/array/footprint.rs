//! [`Footprint`]: the bytes of RAM and device memory that an array uses.

use std::fmt;

use backend_api::{Device, DeviceKind, HostMemory, readable_bytes};

use crate::array::VirtualArray;
use crate::base::element::Element;

/// The RAM and device memory that an array uses, at the time of the call.
///
/// ```
/// use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<u32>::builder(1 << 20).cache_bytes(1 << 20).build()?;
/// let footprint = array.footprint();
/// assert_eq!(footprint.device_bytes, 4 << 20);
/// assert!(footprint.cache_bytes <= footprint.cache_max_bytes);
/// assert_eq!((footprint.cache_max_bytes, footprint.table_bytes / array.page_count()), (1 << 20, 32));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Footprint {
    /// Device memory of all channels (shares of devices), in bytes.
    pub device_bytes: u64,
    /// The part of `device_bytes` that is in files, such as the temporary file of a long result.
    pub file_bytes: u64,
    /// RAM allocated by the cache so far, in bytes.
    pub cache_bytes: usize,
    /// Maximum RAM of the cache, in bytes. At most [`Builder::cache_bytes`](crate::Builder::cache_bytes), but
    /// at least one page for each channel (share of a device).
    pub cache_max_bytes: usize,
    /// RAM allocated so far for operations that bypass the cache, in bytes, in addition to the cache. It
    /// holds staging buffers for long ranges, lists of indices, and results of devices: up to 64 MiB of
    /// staging buffers and some 130 MiB of lists and results for each channel (share of a device). The first
    /// such operation allocates this RAM, and later ones reuse it. Each array on the same devices counts an
    /// equal part.
    pub staging_bytes: usize,
    /// True if all RAM that the cache has allocated is page-locked.
    pub is_pinned: bool,
    /// RAM of the page table, in bytes.
    pub table_bytes: usize,
}

/// Formats the footprint in one line for a log.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u32>::builder(1 << 20).cache_bytes(1 << 20).build()?;
/// let text = array.footprint().to_string();
/// assert!(text.starts_with("4.0 MiB on devices; RAM: cache "), "{text}");
/// # Ok::<(), vmarray::Error>(())
/// ```
impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |bytes: usize| readable_bytes(bytes as u64);
        write!(
            f,
            "{} on devices; RAM: cache {} of {}{}, page table {}, staging {}",
            readable_bytes(self.device_bytes),
            bytes(self.cache_bytes),
            bytes(self.cache_max_bytes),
            if self.is_pinned { "" } else { " (not page-locked)" },
            bytes(self.table_bytes),
            bytes(self.staging_bytes),
        )
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Returns the RAM and device memory that the array uses.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        let pager = self.pager();
        let mut footprint = Footprint {
            device_bytes: 0,
            file_bytes: 0,
            cache_bytes: 0,
            cache_max_bytes: 0,
            staging_bytes: 0,
            is_pinned: true,
            table_bytes: pager.table().bytes(),
        };
        for channel in pager.channels() {
            let (bytes, max_bytes, kind) = channel.cache_memory();
            footprint.device_bytes += channel.slot_bytes();
            if channel.device().info().kind == DeviceKind::File {
                footprint.file_bytes += channel.slot_bytes();
            }
            footprint.cache_bytes += bytes;
            footprint.cache_max_bytes += max_bytes;
            footprint.staging_bytes += channel.staging_bytes();
            footprint.is_pinned &= kind == HostMemory::Pinned;
        }
        footprint
    }
}
