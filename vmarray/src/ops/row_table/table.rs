//! The table: its calls, and the checks of their arguments.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::{Device, DeviceBuffer, HostBuffer, StreamId};

use super::buffers::{Bags, CheckedList, IdBuffer, RowBuffer, RowExtent, RowView, alignment};
use super::cache::{RowCache, RowCacheStats};
use super::formats::RowFormat;
use super::host_reads::HostReads;
use super::launches::{RowKernel, RowKernels, RowLaunch, RowShape, StreamCall};
use super::memory::{RowHome, RowMemory};
use super::order::{self, ListOrders};
use crate::array::export::ExportedElements;
use crate::base::error::{Error, ErrorKind, Result};

/// A table of rows in an array, for lists of ids and results in the memory of a GPU.
///
/// Each call enqueues its work on a stream of the program, and returns at once. The work starts after earlier
/// work of the stream, and later work of the stream starts after it. The first calls compile kernels and
/// allocate memory. Later calls with lists that are not longer neither block nor allocate, and can be
/// captured in a CUDA graph, unless the rows are in storage.
///
/// Rows in the memory of the GPU are read there. Rows in RAM are page-locked, and kernels read them over the
/// bus: kernels first distribute a long list into buckets of neighbouring rows, because the GPU translates
/// few distinct addresses of RAM at a time.
///
/// The table borrows the array exclusively. Any number of threads may use it, on any number of streams. But
/// the calls on one stream use the same memory for the order of a list: graphs that were captured on a stream
/// must not run at the same time as other calls on this stream.
///
/// ```
/// use std::sync::Arc;
/// use vmarray::rows::{IdBuffer, RowBuffer, RowFormat, StreamId};
/// use vmarray::{AnyDevice, prelude::*};
/// /// Reads 1000 rows; `ids` and `out` are addresses of 1000 `i64` and of 64 000 numbers of 16 bits.
/// fn read_rows(gpu: &Arc<AnyDevice>, ids: u64, out: u64) -> Result<(), vmarray::Error> {
///     let mut array = VirtualArray::<f32>::builder(1 << 20).devices([gpu.clone()]).build()?;
///     let table = array.rows(.., 64)?.format(RowFormat::F32).build(gpu)?;
///     let ids = IdBuffer { address: ids, count: 1000, bytes: 8 };
///     let out = RowBuffer { address: out, format: RowFormat::Bf16 };
///     // SAFETY: the memory is on the GPU, and only the default stream uses it until the work is done.
///     unsafe { table.gather_into(out, ids, StreamId(0)) }
/// }
/// ```
pub struct RowTable<'a> {
    pub(super) device: Arc<dyn Device>,
    pub(super) rows: usize,
    pub(super) row_len: usize,
    pub(super) format: RowFormat,
    pub(super) kernels: RowKernels,
    pub(super) orders: ListOrders,
    pub(super) memory: RowMemory,
    pub(super) cache: Option<RowCache>,
    /// Reads rows in storage.
    pub(super) host_reads: Option<HostReads>,
    pub(super) scales: Option<DeviceBuffer<dyn Device>>,
    /// Page-locked: 1 if an id was out of range, and the id.
    pub(super) status: HostBuffer<dyn Device>,
    pub(super) status_address: Option<u64>,
    /// None for rows in memory of other code.
    pub(super) elements: Option<ExportedElements<'a>>,
}

impl fmt::Debug for RowTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowTable")
            .field("rows", &self.rows)
            .field("row_len", &self.row_len)
            .field("format", &self.format)
            .field("home", &self.memory.home)
            .finish_non_exhaustive()
    }
}

impl RowTable<'_> {
    /// Returns the number of rows.
    ///
    /// ```
    /// use vmarray::rows::RowTable;
    /// fn table_bytes(table: &RowTable<'_>) -> usize {
    ///     table.len() * table.row_len() * table.format().bytes()
    /// }
    /// ```
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty table is of no use")]
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns the number of elements of a row.
    ///
    /// ```
    /// use vmarray::rows::RowTable;
    /// fn row_bytes(table: &RowTable<'_>) -> usize {
    ///     table.row_len() * table.format().bytes()
    /// }
    /// ```
    #[must_use]
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// Returns the format of the elements.
    ///
    /// ```
    /// use vmarray::rows::{RowFormat, RowTable};
    /// fn is_quantized(table: &RowTable<'_>) -> bool {
    ///     matches!(table.format(), RowFormat::E4m3 | RowFormat::E5m2 | RowFormat::I8)
    /// }
    /// ```
    #[must_use]
    pub fn format(&self) -> RowFormat {
        self.format
    }

    /// Returns the place of the rows.
    ///
    /// ```
    /// use vmarray::rows::{RowHome, RowTable};
    /// fn uses_the_bus(table: &RowTable<'_>) -> bool {
    ///     table.home() == RowHome::Ram
    /// }
    /// ```
    #[must_use]
    pub fn home(&self) -> RowHome {
        self.memory.home
    }

    /// Returns the numbers of reads and of hits in the cache; zeroes for a table without a cache. Blocks for
    /// a copy of 16 bytes, but does not wait for kernels.
    ///
    /// ```
    /// use vmarray::rows::RowTable;
    /// fn hit_rate(table: &RowTable<'_>) -> Result<f64, vmarray::Error> {
    ///     Ok(table.cache_stats()?.hit_rate())
    /// }
    /// ```
    ///
    /// # Errors
    /// Errors of devices.
    pub fn cache_stats(&self) -> Result<RowCacheStats> {
        Ok(self.cache.as_ref().map_or(Ok(RowCacheStats::default()), RowCache::stats)?)
    }

    /// Returns an error if a kernel has read an id out of range since the last error. Does not wait for
    /// kernels: first synchronise with the streams for certainty.
    ///
    /// ```
    /// use vmarray::rows::RowTable;
    /// fn has_failed(table: &RowTable<'_>) -> bool {
    ///     table.check().is_err()
    /// }
    /// ```
    ///
    /// # Errors
    /// [`RowOutside`](ErrorKind::RowOutside) with one of the ids. A negative id is shown as `usize`.
    pub fn check(&self) -> Result<()> {
        self.host_reads.as_ref().map_or(Ok(()), HostReads::check)?;
        // SAFETY: the buffer has two aligned words. Kernels write them meanwhile, and atomics tolerate that.
        let [flag, id] = unsafe { self.status.address().cast::<[AtomicU64; 2]>().as_ref() };
        if self.status_address.is_none() || flag.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        flag.store(0, Ordering::Release);
        Err(ErrorKind::RowOutside { row: id.load(Ordering::Relaxed) as usize, rows: self.rows }.into())
    }

    /// Reads rows: row `i` of `out` becomes the row with number `ids[i]`, converted to the format of `out`,
    /// or zeros if there is no such row.
    ///
    /// Enqueues one kernel for rows on the GPU. For a long list of rows in RAM, it enqueues four more for the
    /// list's order.
    ///
    /// ```
    /// use vmarray::rows::{IdBuffer, RowBuffer, RowFormat, RowTable, StreamId};
    /// /// # Safety
    /// /// As for `gather_into`.
    /// unsafe fn read(table: &RowTable<'_>, ids: IdBuffer, to: u64) -> Result<(), vmarray::Error> {
    ///     let out = RowBuffer { address: to, format: RowFormat::F32 };
    ///     // SAFETY: guaranteed by the caller.
    ///     unsafe { table.gather_into(out, ids, StreamId(0)) }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`RowOutside`](ErrorKind::RowOutside) for an id of an *earlier* call; then this call enqueues nothing.
    /// [`Device`](ErrorKind::Device): `Unsupported` if the rows cannot be converted to the format,
    /// `InvalidArgument` for misaligned addresses or a stream of another device, `OutOfMemory`, `Lost`, or
    /// the driver's error.
    ///
    /// # Safety
    /// `stream` is a live stream of the table's device, or 0. Until the work is done, also as part of a
    /// graph: the ids and the memory of the result stay allocated; no other code writes the ids or accesses
    /// the result; and the table lives. Another call on the same stream is no other code.
    pub unsafe fn gather_into(&self, out: RowBuffer, ids: IdBuffer, stream: StreamId) -> Result<()> {
        self.check()?;
        let list = self.list(ids)?;
        if ids.count == 0 {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller. The table borrows the array, whose memory has the rows.
        let call = unsafe { StreamCall::new(&self.kernels, stream) };
        match &self.host_reads {
            Some(reads) => self.gather_stored(call, reads, out, &list),
            None => self.gather(call, &list, RowExtent::new(list.count, out.address), out.format),
        }
    }

    /// Starts to bring rows closer that a later [`gather_into`](Self::gather_into) reads, and returns at
    /// once. For rows in storage, a thread reads them after the stream's earlier work, so the system caches
    /// them in RAM; later work of the stream does not wait for this thread. For a table with a cache, a
    /// kernel admits rows as a gather does. For other tables the call has no effect.
    ///
    /// ```
    /// use vmarray::rows::{IdBuffer, RowTable, StreamId};
    /// /// # Safety
    /// /// As for `prefetch`.
    /// unsafe fn announce(table: &RowTable<'_>, next: IdBuffer) -> Result<(), vmarray::Error> {
    ///     // SAFETY: guaranteed by the caller.
    ///     unsafe { table.prefetch(next, StreamId(0)) }
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`gather_into`](Self::gather_into). An error of a read is an error of a later call.
    ///
    /// # Safety
    /// The requirements of [`gather_into`](Self::gather_into) for the ids.
    pub unsafe fn prefetch(&self, ids: IdBuffer, stream: StreamId) -> Result<()> {
        self.check()?;
        let list = self.list(ids)?;
        // SAFETY: guaranteed by the caller; as in `gather_into`.
        let call = unsafe { StreamCall::new(&self.kernels, stream) };
        match &self.host_reads {
            _ if list.count == 0 => Ok(()),
            Some(reads) => reads.prefetch(call, &list),
            None if self.cache.is_none() => Ok(()),
            None if self.scales.is_some() => self.gather(call, &list, RowExtent::default(), RowFormat::F32),
            None => self.gather(call, &list, RowExtent::default(), self.format),
        }
    }

    /// Starts to read rows in storage, as [`prefetch`](Self::prefetch) does, for ids in RAM. Has no effect
    /// for rows in other homes, and for ids without a row.
    ///
    /// ```
    /// use vmarray::rows::RowTable;
    /// fn announce(table: &RowTable<'_>, next_batch: &[u64]) {
    ///     table.prefetch_rows(next_batch);
    /// }
    /// ```
    pub fn prefetch_rows(&self, ids: &[u64]) {
        self.host_reads.iter().for_each(|reads| drop(reads.ahead.send(ids.to_vec())));
    }

    /// Writes rows: the row with number `ids[i]` becomes row `i` of `values`. The call skips ids without a
    /// row. If an id occurs twice, its row becomes one of the two, or a mixture of their words.
    ///
    /// ```
    /// use vmarray::rows::{IdBuffer, RowBuffer, RowTable, StreamId};
    /// /// # Safety
    /// /// As for `scatter_from`.
    /// unsafe fn write(table: &RowTable<'_>, ids: IdBuffer, from: u64) -> Result<(), vmarray::Error> {
    ///     let values = RowBuffer { address: from, format: table.format() };
    ///     // SAFETY: guaranteed by the caller.
    ///     unsafe { table.scatter_from(values, ids, StreamId(0)) }
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`gather_into`](Self::gather_into). `Unsupported` if the values have another format than
    /// the table, or the table has scales or a cache; [`FileRefused`](ErrorKind::FileRefused) if the array is
    /// read-only.
    ///
    /// # Safety
    /// The requirements of [`gather_into`](Self::gather_into), with the values instead of the result. No
    /// other work reads or writes these rows until this work is done.
    pub unsafe fn scatter_from(&self, values: RowBuffer, ids: IdBuffer, stream: StreamId) -> Result<()> {
        self.check()?;
        self.elements.as_ref().ok_or_else(read_only)?.pager().expect_writable()?;
        self.expect_mapped()?;
        let list = self.list(ids)?;
        let bytes = self.row_len as u64 * self.format.bytes() as u64;
        if values.format != self.format || self.scales.is_some() || self.cache.is_some() {
            return Err(self.unsupported(values.format));
        }
        if ids.count == 0 {
            return Ok(());
        }
        let word = self.memory.align(bytes).min(alignment(values.address)).min(8);
        let shape = RowShape {
            kernel: RowKernel::Scatter(word as u8),
            strides: [word; 2],
            chunks: bytes / word,
            formats: [0; 2],
        };
        // SAFETY: as in `gather_into`; the caller guarantees that no other work uses the written rows.
        let call = unsafe { StreamCall::new(&self.kernels, stream) };
        let ((table, first), from) =
            (self.table_view(&shape), RowExtent::new(list.count * shape.chunks, values.address));
        call.launch(&RowLaunch {
            kernel: shape.kernel,
            groups: shape.groups(list.count),
            views: &[list.ids.of(4), from.of(word), table, list.status.of(8)],
            values: &[list.count, self.rows as u64, shape.chunks, first, shape.shift(), list.id_words],
        })
    }

    /// Adds up rows: row `b` of `out` becomes the sum of the rows of bag `b`, each times its weight. Sums are
    /// `f32`, in the order of the list. Ids without a row add nothing.
    ///
    /// ```
    /// use vmarray::rows::{Bags, IdBuffer, RowBuffer, RowTable, StreamId};
    /// /// # Safety
    /// /// As for `sum_into`.
    /// unsafe fn sum(
    ///     table: &RowTable<'_>,
    ///     out: RowBuffer,
    ///     ids: IdBuffer,
    ///     offsets: IdBuffer,
    /// ) -> Result<(), vmarray::Error> {
    ///     let bags = Bags { offsets, count: offsets.count, weights: None };
    ///     // SAFETY: guaranteed by the caller.
    ///     unsafe { table.sum_into(out, ids, bags, StreamId(0)) }
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`gather_into`](Self::gather_into). `Unsupported` also for rows whose number of elements
    /// is not a multiple of 4.
    ///
    /// # Safety
    /// The requirements of [`gather_into`](Self::gather_into), also for offsets and weights.
    pub unsafe fn sum_into(&self, out: RowBuffer, ids: IdBuffer, bags: Bags, stream: StreamId) -> Result<()> {
        self.check()?;
        self.expect_mapped()?;
        let (list, offsets) = (self.list(ids)?, self.list(bags.offsets)?);
        let bytes = self.row_len as u64 * self.format.bytes() as u64;
        let aligns = [self.memory.align(bytes), alignment(out.address)];
        let shape = RowShape::of_gather(self.row_len as u64, [self.format, out.format], true, aligns)
            .ok_or_else(|| self.unsupported(out.format))?;
        let RowKernel::Gather(words) = shape.kernel else { return Err(self.unsupported(out.format)) };
        let bags_len = bags.count.min(bags.offsets.count) as u64;
        if bags_len == 0 {
            return Ok(());
        }
        let scales = self.scales_extent()?;
        let weights =
            bags.weights.map_or(RowExtent::default(), |address| RowExtent::new(list.count, address));
        let (table, first) = self.table_view(&shape);
        let out = RowExtent::new(bags_len * shape.chunks, out.address);
        let [from, to] = shape.formats;
        // SAFETY: as in `gather_into`. Kernels limit offsets to the length of the list.
        let call = unsafe { StreamCall::new(&self.kernels, stream) };
        call.launch(&RowLaunch {
            kernel: RowKernel::Sum(words),
            groups: shape.groups(bags_len),
            views: &[
                list.ids.of(4),
                offsets.ids.of(4),
                weights.of(4),
                table,
                scales.of(4),
                out.of(shape.strides[1]),
                list.status.of(8),
            ],
            values: &[
                list.count,
                self.rows as u64,
                shape.chunks,
                first,
                shape.shift(),
                from,
                to,
                list.id_words,
                bags_len,
                offsets.id_words,
                offsets.count,
            ],
        })
    }

    /// Returns an error if kernels cannot access the rows.
    fn expect_mapped(&self) -> Result<()> {
        if self.host_reads.is_none() {
            return Ok(());
        }
        let error = backend_api::Error::new(backend_api::ErrorKind::Unsupported, "rows");
        let error = error.with_detail("kernels cannot access rows in files or other storage");
        let error = error.with_advice("use `gather_into`, or copy the table to RAM or a GPU");
        Err(error.on(self.device.info()).into())
    }

    pub(super) fn list(&self, ids: IdBuffer) -> Result<CheckedList> {
        if !matches!(ids.bytes, 4 | 8) || !ids.address.is_multiple_of(ids.bytes as u64) {
            let detail = format!("ids of {} bytes at address {:#x}", ids.bytes, ids.address);
            let error = backend_api::Error::new(backend_api::ErrorKind::InvalidArgument, "rows");
            return Err(error.with_detail(detail).with_advice("use aligned ids of 4 or 8 bytes").into());
        }
        let status = self.status_address.map_or(RowExtent::default(), |address| RowExtent::new(2, address));
        let (count, id_words) = (ids.count as u64, ids.bytes as u64 / 4);
        Ok(CheckedList { count, id_words, ids: RowExtent::new(count * id_words, ids.address), status })
    }

    /// Returns the scales; none if the table has none.
    pub(super) fn scales_extent(&self) -> Result<RowExtent> {
        let Some(scales) = &self.scales else { return Ok(RowExtent::default()) };
        Ok(RowExtent::new(self.rows as u64, order::address(&self.device, scales)?))
    }

    /// Returns the view of the rows in chunks, and the number of the first row's first chunk.
    pub(super) fn table_view(&self, shape: &RowShape) -> (RowView<'_>, u64) {
        self.memory.view(shape.strides[0], self.rows as u64 * shape.chunks)
    }

    pub(super) fn unsupported(&self, to: RowFormat) -> Error {
        backend_api::Error::new(backend_api::ErrorKind::Unsupported, "rows")
            .with_detail(format!("rows of {} {:?} cannot be moved as {to:?}", self.row_len, self.format))
            .with_advice("use a result of the table's format, or of F32, F16 or Bf16")
            .on(self.device.info())
            .into()
    }
}

fn read_only() -> Error {
    let error = backend_api::Error::new(backend_api::ErrorKind::ReadOnly, "rows");
    error.with_detail("the table only reads memory of other code").into()
}

impl Drop for RowTable<'_> {
    fn drop(&mut self) {
        // The kernels may still read the array's memory and the scales. An error means that none runs.
        if let Some(addresses) = self.device.addresses() {
            let _ = addresses.synchronize();
        }
    }
}
