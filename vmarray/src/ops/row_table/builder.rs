//! Options of a row table, and its construction.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use backend_api::{AddressSpace, Device, HostBuffer, HostMemory};

use super::buffers::OutOfRange;
use super::cache::RowCache;
use super::formats::RowFormat;
use super::host_reads::{HostReads, RowReader};
use super::launches::RowKernels;
use super::memory::{RowHome, RowMemory, no_streams};
use super::order::{self, ListOrders};
use super::table::RowTable;
use crate::array::VirtualArray;
use crate::array::export::ExportedElements;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::ops::view::View;

/// Options of a [`RowTable`]; returned by [`VirtualArray::rows`].
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::rows::{OutOfRange, RowFormat};
/// let mut array = VirtualArray::<u8>::new(1000)?;
/// let options = array.rows(.., 100)?.format(RowFormat::E4m3).out_of_range(OutOfRange::Zeros);
/// assert_eq!(options.len(), 10);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use]
pub struct RowTableBuilder<'a> {
    source: RowSource<'a>,
    /// Bytes of an element.
    stride: usize,
    row_len: usize,
    format: RowFormat,
    rows: usize,
    scales: Vec<f32>,
    out_of_range: OutOfRange,
    cache_bytes: u64,
}

/// The elements of a table.
enum RowSource<'a> {
    Array(ExportedElements<'a>, RowReader<'a>),
    /// Memory of other code, by its address.
    Memory(AddressSpace, u64),
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Returns the options of a table whose rows are each `row_len` elements of this range. Elements after
    /// the last whole row belong to no row. The call first writes back cached elements, and waits for all
    /// work of the array.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let mut array = VirtualArray::<f32>::new(1000)?;
    /// assert_eq!(array.rows(.., 64)?.len(), 15);
    /// assert_eq!(array.rows(64..192, 64)?.len(), 2);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ZeroPageLength`](ErrorKind::ZeroPageLength) for rows without elements,
    /// [`RangeOutside`](ErrorKind::RangeOutside), [`RangeReversed`](ErrorKind::RangeReversed), and errors of
    /// devices.
    pub fn rows(&mut self, range: impl RangeBounds<usize>, row_len: usize) -> Result<RowTableBuilder<'_>> {
        if row_len == 0 {
            return Err(ErrorKind::ZeroPageLength.into());
        }
        let this = &*self;
        let elements = this.exported(range)?;
        let (first, rows) = (elements.range().start, elements.range().len() / row_len);
        let read: RowReader<'_> = Arc::new(move |row, into: &mut [u8]| {
            let address = into.as_ptr().addr();
            let elements = bytemuck::try_cast_slice_mut(into)
                .map_err(|_| ErrorKind::Misaligned { address, align: align_of::<T>() })?;
            this.read(first + row * row_len, elements)
        });
        Ok(RowTableBuilder::of(RowSource::Array(elements, read), size_of::<T>(), rows, row_len))
    }
}

impl<'a> RowTableBuilder<'a> {
    fn of(source: RowSource<'a>, stride: usize, rows: usize, row_len: usize) -> Self {
        let (format, scales, out_of_range) = (RowFormat::Raw(stride), Vec::new(), OutOfRange::default());
        Self { source, stride, row_len, format, rows, scales, out_of_range, cache_bytes: 0 }
    }

    /// Returns the options of a read-only table over memory that other code has allocated: a tensor on the
    /// GPU, or RAM, such as a file in memory that several processes map. Rows are `row_bytes` bytes.
    ///
    /// ```
    /// use vmarray::{device::AddressSpace, rows::RowTableBuilder};
    /// let words = vec![7_u32; 640];
    /// // SAFETY: the vector outlives the options.
    /// let options = unsafe { RowTableBuilder::over(AddressSpace::Host, words.as_ptr().addr() as u64, 10, 256) };
    /// assert_eq!(options.len(), 10);
    /// ```
    ///
    /// # Safety
    /// Until the table is dropped, `rows * row_bytes` bytes from `address` on stay allocated, and no code
    /// writes them while calls of the table are in flight.
    pub unsafe fn over(space: AddressSpace, address: u64, rows: usize, row_bytes: usize) -> Self {
        Self::of(RowSource::Memory(space, address), 1, rows, row_bytes)
    }

    /// Returns the number of rows.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty table is of no use")]
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Sets the format of the elements, so that calls can convert rows. By default the elements are bytes,
    /// and calls copy them.
    pub fn format(mut self, format: RowFormat) -> Self {
        self.format = format;
        self
    }

    /// Sets a factor for each row. The factors are copied to the GPU.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::rows::RowFormat;
    /// let mut array = VirtualArray::<i8>::new(640)?;
    /// let options = array.rows(.., 64)?.format(RowFormat::I8).scales(vec![0.5; 10]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn scales(mut self, scales: Vec<f32>) -> Self {
        self.scales = scales;
        self
    }

    /// Sets the result for ids without a row.
    pub fn out_of_range(mut self, out_of_range: OutOfRange) -> Self {
        self.out_of_range = out_of_range;
        self
    }

    /// Sets the bytes of a cache in the memory of the GPU for rows that are in RAM. Kernels keep the rows
    /// there that they read most often. A table with a cache is read-only.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let mut array = VirtualArray::<f32>::new(1000)?;
    /// let options = array.rows(.., 64)?.cache_bytes(1 << 20);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Makes the table for lists and results in the memory of `device`. Page-locks the array's memory in RAM,
    /// which takes about 0.3 s for each GiB.
    ///
    /// ```
    /// use vmarray::{host::HostDevice, prelude::*};
    /// let mut array = VirtualArray::<f32>::new(1000)?;
    /// let ram = std::sync::Arc::new(HostDevice::new(1 << 20)?);
    /// // RAM has no streams.
    /// let error = array.rows(.., 64)?.build(&ram).unwrap_err();
    /// assert!(error.to_string().contains("no streams"), "{error}");
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`LengthMismatch`](ErrorKind::LengthMismatch) if there is not one scale for each row, or if the
    /// format has another length than the elements. [`Device`](ErrorKind::Device): `Unsupported` if the
    /// device has no streams, or if its kernels cannot read the array's memory; `PinRefused` for RAM that
    /// cannot be page-locked; other errors of devices.
    pub fn build<D: Device>(self, device: &Arc<D>) -> Result<RowTable<'a>> {
        let device: Arc<dyn Device> = Arc::clone(device) as Arc<dyn Device>;
        let (stride, bytes) = (self.stride, self.format.bytes());
        if !(stride * self.row_len).is_multiple_of(bytes.max(1)) || bytes == 0 {
            let of = "an element of the format";
            return Err(ErrorKind::LengthMismatch { of, expected: stride, got: bytes }.into());
        }
        if !self.scales.is_empty() && self.scales.len() != self.rows {
            let got = self.scales.len();
            return Err(ErrorKind::LengthMismatch { of: "scales", expected: self.rows, got }.into());
        }
        let streams = device.stream_launcher().ok_or_else(|| no_streams(&device))?;
        let (row_bytes, rows) = ((stride * self.row_len) as u64, self.rows as u64);
        let (memory, array) = match self.source {
            RowSource::Array(elements, read) => {
                let offset = (elements.range().start * stride) as u64;
                (RowMemory::new(&device, elements.pager(), offset)?, Some((elements, read)))
            }
            // SAFETY: the maker of the options has guaranteed this until the drop of the table.
            RowSource::Memory(space, address) => unsafe {
                (RowMemory::over(&device, space, (address, rows * row_bytes))?, None)
            },
        };
        let cache = match self.cache_bytes {
            bytes if bytes > 0 && memory.home == RowHome::Ram => {
                Some(RowCache::new(&device, bytes, row_bytes)?)
            }
            _ => None,
        };
        let status = HostBuffer::new(&device, 16, HostMemory::Pinned)?;
        let status_address = match self.out_of_range {
            OutOfRange::Error => Some(streams.kernel_address(status.at(0), 16)?),
            OutOfRange::Zeros => None,
        };
        let (elements, read) = array.unzip();
        let read = read.filter(|_| memory.home == RowHome::Storage);
        // SAFETY: the drop of the table waits for all calls of the reader before the borrow ends.
        let reads = |read| unsafe { HostReads::new(&device, read, rows, row_bytes, &self.scales) };
        let host_reads = read.map(reads).transpose()?;
        let scales = match &self.scales[..] {
            [] => None,
            scales => Some(order::uploaded(&device, bytemuck::cast_slice(scales))?),
        };
        Ok(RowTable {
            rows: self.rows,
            row_len: stride * self.row_len / bytes,
            format: self.format,
            kernels: RowKernels::new(&device),
            orders: ListOrders::new(&device),
            memory,
            cache,
            host_reads,
            scales,
            status,
            status_address,
            elements,
            device,
        })
    }
}

impl fmt::Debug for RowTableBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowTableBuilder").field("rows", &self.rows).finish_non_exhaustive()
    }
}
