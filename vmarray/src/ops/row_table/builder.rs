//! Options of a row table, and its construction.

use std::fmt;
use std::sync::Arc;

use backend_api::{Device, HostBuffer, HostMemory};

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
/// let options = array.rows(100)?.format(RowFormat::E4m3).out_of_range(OutOfRange::Zeros);
/// assert_eq!(options.len(), 10);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use]
pub struct RowTableBuilder<'a> {
    elements: ExportedElements<'a>,
    read: RowReader<'a>,
    row_len: usize,
    format: RowFormat,
    rows: usize,
    scales: Vec<f32>,
    out_of_range: OutOfRange,
    cache_bytes: u64,
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Returns the options of a table whose rows are each `row_len` elements of this array. Elements after
    /// the last whole row belong to no row. The call first writes back cached elements, and waits for all
    /// work of the array.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let mut array = VirtualArray::<f32>::new(1000)?;
    /// assert_eq!(array.rows(64)?.len(), 15);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ZeroPageLength`](ErrorKind::ZeroPageLength) for rows without elements, and errors of devices.
    pub fn rows(&mut self, row_len: usize) -> Result<RowTableBuilder<'_>> {
        if row_len == 0 {
            return Err(ErrorKind::ZeroPageLength.into());
        }
        let (this, rows) = (&*self, self.len() / row_len);
        let elements = this.exported(..)?;
        let read: RowReader<'_> = Arc::new(move |row, into: &mut [u8]| {
            let address = into.as_ptr().addr();
            let elements = bytemuck::try_cast_slice_mut(into)
                .map_err(|_| ErrorKind::Misaligned { address, align: align_of::<T>() })?;
            this.read(row * row_len, elements)
        });
        Ok(RowTableBuilder {
            elements,
            read,
            row_len,
            format: RowFormat::Raw(size_of::<T>()),
            rows,
            scales: Vec::new(),
            out_of_range: OutOfRange::default(),
            cache_bytes: 0,
        })
    }
}

impl<'a> RowTableBuilder<'a> {
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
    /// let options = array.rows(64)?.format(RowFormat::I8).scales(vec![0.5; 10]);
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
    /// let options = array.rows(64)?.cache_bytes(1 << 20);
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
    /// let error = array.rows(64)?.build(&ram).unwrap_err();
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
        let (stride, bytes) = (self.elements.stride(), self.format.bytes());
        if !(stride * self.row_len).is_multiple_of(bytes.max(1)) || bytes == 0 {
            let of = "an element of the format";
            return Err(ErrorKind::LengthMismatch { of, expected: stride, got: bytes }.into());
        }
        if !self.scales.is_empty() && self.scales.len() != self.rows {
            let got = self.scales.len();
            return Err(ErrorKind::LengthMismatch { of: "scales", expected: self.rows, got }.into());
        }
        let streams = device.stream_launcher().ok_or_else(|| no_streams(&device))?;
        let memory = RowMemory::new(&device, self.elements.pager())?;
        let row_bytes = (stride * self.row_len) as u64;
        let cache = match self.cache_bytes {
            0 => None,
            _ if memory.home == RowHome::Gpu => None,
            bytes => Some(RowCache::new(&device, bytes, row_bytes)?),
        };
        let status = HostBuffer::new(&device, 16, HostMemory::Pinned)?;
        let host_reads = (memory.home == RowHome::Storage).then(|| {
            // SAFETY: the drop of the table waits for all calls of the reader before the borrow ends.
            unsafe { HostReads::new(&device, self.read, self.rows as u64, row_bytes, &self.scales) }
        });
        let status_address = match self.out_of_range {
            OutOfRange::Error => Some(streams.kernel_address(status.at(0), 16)?),
            OutOfRange::Zeros => None,
        };
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
            elements: self.elements,
            device,
        })
    }
}

impl fmt::Debug for RowTableBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowTableBuilder").field("rows", &self.rows).finish_non_exhaustive()
    }
}
