//! Export: pointers to an array's elements in device memory, for other GPU libraries in the process.

use std::marker::PhantomData;
use std::ops::RangeBounds;

use backend_api::{AddressSpace, Device};

use crate::array::VirtualArray;
use crate::array::range::checked;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::engine::pager::Pager;

/// Elements of an array in device memory, which other libraries can read and write in place; returned by
/// [`export`](VirtualArray::export).
///
/// If the array has one device and one channel (share of a device), all of its elements are contiguous.
/// Otherwise pages are striped over channels, and only the elements within a page are contiguous.
///
/// ```
/// use vmarray::access::{ExportedElements, ExportedSlice};
/// use vmarray::{host::HostDevice, prelude::*};
/// let devices = [HostDevice::new(1 << 20)?, HostDevice::new(1 << 20)?].map(std::sync::Arc::new);
/// let mut array = VirtualArray::<u32, _>::builder(1000).page_len(100).devices(devices).build()?;
/// let exported: ExportedElements<'_> = array.export(..)?;
/// let run: ExportedSlice = exported.run(230)?;
/// assert_eq!(run.len, 70);
/// assert_eq!(exported.run(429)?.address + 4, exported.run(230)?.address + 4 * 100);
/// exported.synchronize()?;
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct ExportedElements<'a> {
    pager: &'a Pager,
    range: std::ops::Range<usize>,
    stride: usize,
    marker: PhantomData<&'a mut ()>,
}

/// Contiguous elements in the memory of one device.
///
/// ```
/// use vmarray::access::ExportedSlice;
/// use vmarray::{device::AddressSpace, prelude::*};
/// let card = std::sync::Arc::new(vmarray::host::HostDevice::new(1 << 20)?);
/// let mut array = VirtualArray::<u64, _>::builder(1000).page_len(64).devices([card]).build()?;
/// let ExportedSlice { space, address, len, .. } = array.export(10..)?.run(10)?;
/// assert_eq!((space, address % 8, len), (AddressSpace::Host, 0, 990));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportedSlice {
    /// The kind of the address, such as CUDA or host, and the device of the memory.
    pub space: AddressSpace,
    /// Address of the first element.
    pub address: u64,
    /// Number of elements.
    pub len: usize,
}

impl std::fmt::Debug for ExportedElements<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExportedElements").field("range", &self.range).finish_non_exhaustive()
    }
}

impl<'a> ExportedElements<'a> {
    /// Returns the longest contiguous slice that begins at an index of the array.
    ///
    /// # Errors
    /// [`IndexOutside`](ErrorKind::IndexOutside) if the index is outside of the exported range.
    pub fn run(&self, index: usize) -> Result<ExportedSlice> {
        const OPERATION: &str = "export";
        if !self.range.contains(&index) {
            return Err(ErrorKind::IndexOutside { index, len: self.range.end }.into());
        }
        let page_len = self.pager.page_bytes() / self.stride;
        let (page, within) = (index / page_len, index % page_len);
        let end = if self.pager.channels().len() == 1 { usize::MAX } else { (page + 1) * page_len };
        let (channel, len) = (self.pager.channel(page as u64), self.range.end.min(end) - index);
        let device = channel.device();
        let addresses = device.addresses().ok_or_else(|| {
            backend_api::Error::new(backend_api::ErrorKind::Unsupported, OPERATION)
                .with_detail("no other library can use the memory of the device")
                .with_advice(
                    "use an array on NVIDIA GPUs or in RAM, without mirrors and checksums, or copy the \
                     elements",
                )
                .on(device.info())
        })?;
        let place = channel.home(page as u64).plus((within * self.stride) as u64);
        let address = addresses.address(place, (len * self.stride) as u64)?;
        Ok(ExportedSlice { space: addresses.space(), address, len })
    }

    pub(crate) fn pager(&self) -> &'a Pager {
        self.pager
    }

    pub(crate) fn range(&self) -> &std::ops::Range<usize> {
        &self.range
    }

    /// Blocks until all work that other libraries have submitted to the devices has ended.
    ///
    /// # Errors
    /// Errors of devices.
    pub fn synchronize(&self) -> Result<()> {
        let all = self.pager.channels().iter().filter_map(|channel| channel.device().addresses());
        Ok(all.map(|addresses| addresses.synchronize()).reduce(backend_api::Result::and).unwrap_or(Ok(()))?)
    }
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Shares the addresses of elements with other libraries of the process, which can read and write the
    /// elements in place. The call first writes back cached elements, and waits for all work of the array on
    /// the range.
    ///
    /// The addresses are valid until the next use of the array, including reads, or until the array is
    /// dropped. Another library may submit work on the elements to a device, such as kernels in a stream.
    /// Before the next use of the array, wait for this work, or call
    /// [`synchronize`](ExportedElements::synchronize).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let card = std::sync::Arc::new(vmarray::host::HostDevice::new(1 << 20)?);
    /// let mut array = VirtualArray::<u32, _>::builder(1000).page_len(100).devices([card]).build()?;
    /// array.set(999, 7)?;
    /// let exported = array.export(500..)?;
    /// let run = exported.run(500)?;
    /// // SAFETY: no code uses the array, and in RAM on one device all elements are contiguous.
    /// let numbers = unsafe { std::slice::from_raw_parts_mut(run.address as *mut u32, run.len) };
    /// assert_eq!((numbers.len(), numbers[499]), (500, 7));
    /// numbers.fill(3);
    /// exported.synchronize()?;
    /// assert_eq!((array.count(.., Field::whole(), &3)?, array.get(499)?), (500, 0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed), and errors of
    /// devices and of files that are opened for reading.
    pub fn export(&mut self, range: impl RangeBounds<usize>) -> Result<ExportedElements<'_>> {
        self.pager().expect_writable()?;
        self.exported(range)
    }

    /// Exports elements. The caller has exclusive access to the array for as long as it uses addresses.
    pub(crate) fn exported(&self, range: impl RangeBounds<usize>) -> Result<ExportedElements<'_>> {
        let range = checked(range, self.len())?;
        let (pager, page_len) = (self.pager(), self.page_len());
        let pages = (range.start / page_len) as u64..range.end.div_ceil(page_len) as u64;
        pager.settle_alone(if range.is_empty() { 0..0 } else { pages })?;
        Ok(ExportedElements { pager, range, stride: size_of::<T>(), marker: PhantomData })
    }
}
